"""Retention: what goes when, what never goes, and who is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.support.ops_cases import PlainPort, plain_port

from holdfast import Engine
from holdfast.contract.figures import HOUR, MINUTE, FigureFilter
from holdfast.contract.operations import Existing, Operation, Outcome, Published, Purge, Started
from holdfast.contract.rows import Status
from holdfast.contract.turns import NewRun, PublishEvent, StartRun
from holdfast.errors import BadInput, InvalidDuration, StoreBusy
from holdfast.events import Event, Events
from holdfast.looking import LocalDesk
from holdfast.ops.dead_letters import DeadLetter, DeadLetters
from holdfast.ops.retention import Retention, Sweeper
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.figures import figure
from holdfast.testing.faults import Faults

DAY = timedelta(days=1)
EVENTS = Events([Event(name="kept", on_target_ended="dead_letter"), Event(name="lost")])
NOTHING = Retention(
    completed=None, failed=None, cancelled=None, acknowledged_dead_letters=None, events=None, ids=None,
    pause=timedelta(0),
)  # fmt: skip


@pytest.fixture
async def port() -> AsyncIterator[PlainPort]:
    async with plain_port() as port:
        yield port


def sweeper(port: PlainPort, **fields) -> Sweeper:
    return Sweeper(port, Retention(**{"pause": timedelta(0), **fields}), EVENTS)


async def ended(port: PlainPort, *ids: str, status: Status = Status.COMPLETED) -> None:
    for id in ids:
        await port.run(id)
        await port.end(id, status)


async def publish(port: PlainPort, name: str, id: str, *, deduplicate: bool = False) -> Outcome:
    now = port.clock.now()
    rule = EVENTS.get(name).rule(now)
    return await port.apply(PublishEvent(name=name, id=id, payload="1", at=now, rule=rule, deduplicate=deduplicate))


async def start_again(port: PlainPort, id: str) -> Outcome:
    now = port.clock.now()
    return await port.apply(
        StartRun(run=NewRun(id=id, workflow="order", version="1", input="{}", digest=8, seed=1, at=now))
    )


async def test_runs_go_as_long_after_their_end_as_their_status_says(port: PlainPort) -> None:
    """S0-39, S0-59"""
    await ended(port, "good")
    await ended(port, "bad", status=Status.FAILED)
    await ended(port, "stopped", status=Status.CANCELLED)
    sweep = sweeper(port, completed=DAY, failed=3 * DAY, cancelled=2 * DAY).sweep
    remaining = []
    for _ in range(4):
        await sweep()
        remaining.append([id for id in ("good", "stopped", "bad") if await port.store.get(id) is not None])
        port.clock.advance(DAY + timedelta(seconds=1))
    assert remaining == [["good", "stopped", "bad"], ["stopped", "bad"], ["bad"], []]


async def test_a_sweep_returns_and_tells_how_much_of_each_kind_went(port: PlainPort) -> None:
    """S0-59"""
    await ended(port, "good-1", "good-2")
    await port.fail("bad", "d1", "d2")
    await DeadLetters(port, EVENTS, _no_retry).acknowledge("d1")
    await publish(port, "lost", "e1")
    port.clock.advance(400 * DAY)
    counts = await sweeper(port).sweep()
    expected = {
        "completed": 2, "failed": 1, "cancelled": 0, "moved": 0, "dead_letters": 1, "events": 1, "keys": 0, "ids": 0,
        "figures": 0,
    }  # fmt: skip
    assert counts == expected
    assert [(change.type, change.data) for change in port.told] == [("purged", expected)]
    assert set((await sweeper(port).sweep()).values()) == {0}
    assert len(port.told) == 1


async def test_figures_are_kept_by_the_minute_for_two_days_and_by_the_hour_for_as_long_as_said(port: PlainPort) -> None:
    now = port.clock.now()
    await port.store.add_figures([figure(at=now)])
    which = FigureFilter(since=0, until=now + HOUR)
    by_minute = msgspec.structs.replace(which, span=MINUTE)
    left: list[tuple[int, int]] = []
    for _ in range(4):
        await sweeper(port, figures=3 * DAY).sweep()
        left.append((len((await port.store.figures(by_minute)).rows), len((await port.store.figures(which)).rows)))
        port.clock.advance(DAY + timedelta(hours=1))
    assert left == [(1, 1), (1, 1), (0, 1), (0, 0)]


async def test_quantiles_of_ninety_days_are_there_by_workflow_and_by_step(port: PlainPort) -> None:
    """S12 of the faces: what an engine keeps of itself."""
    now = port.clock.now()
    counted = [
        figure(step, at=now, n=n, total=n, bucket=bucket) for step in ("", "charge") for n, bucket in ((90, 0), (10, 5))
    ]
    await port.store.add_figures(counted)
    port.store.clock = port.clock
    desk = LocalDesk(port.store)
    for days, there in ((89, 1), (2, 0)):
        port.clock.advance(days * DAY)
        await sweeper(port).sweep()
        for by in ("workflow", "step"):
            found = (await desk.figures(by=by, last=timedelta(days=92))).items
            assert len(found) == there
            for each in found:
                assert each.completed == 100
                assert 0 < (each.p50 or 0) < 0.002
                assert (each.p95 or 0) > 0.2


async def test_open_runs_are_never_purged(port: PlainPort) -> None:
    """S0-59"""
    await port.run("open")
    port.clock.advance(10_000 * DAY)
    hasty = dict.fromkeys(("completed", "failed", "cancelled", "dead_letters", "events", "ids"), timedelta(0))
    await sweeper(port, **hasty).sweep()
    assert (await port.row("open")).status is Status.RUNNING


async def test_each_age_of_none_keeps_for_ever(port: PlainPort) -> None:
    """S0-39"""
    await ended(port, "good")
    await port.fail("bad", "d1")
    await ended(port, "stopped", status=Status.CANCELLED)
    await publish(port, "kept", "e1")
    port.clock.advance(10_000 * DAY)
    counts = await Sweeper(port, NOTHING, EVENTS).sweep()
    assert not any(counts.values())
    assert port.told == []


async def test_letters_nobody_acknowledged_stay_unless_they_have_an_age_too(port: PlainPort) -> None:
    """S0-39: the automatic purge takes acknowledged ones only."""
    await port.fail("bad", "d1", "d2")
    letters = DeadLetters(port, EVENTS, _no_retry)
    await letters.acknowledge("d1")
    port.clock.advance(31 * DAY)
    assert (await sweeper(port).sweep())["dead_letters"] == 1
    assert [letter.id for letter in await letters.list()] == ["d2"]
    assert (await sweeper(port, dead_letters=30 * DAY).sweep())["dead_letters"] == 1
    assert await letters.list() == []


async def test_events_nobody_took_go_after_their_time_as_their_policy_says(port: PlainPort) -> None:
    """S2-35, B23"""
    await publish(port, "kept", "e1")
    await publish(port, "lost", "e2")
    port.clock.advance(6 * DAY)
    await publish(port, "lost", "e3")
    assert (await sweeper(port).sweep())["events"] == 0
    port.clock.advance(DAY + timedelta(seconds=1))
    assert (await sweeper(port).sweep())["events"] == 2
    assert (await port.store.counts()).events == {"lost": 1}
    [letter] = await DeadLetters(port, EVENTS, _no_retry).list()
    assert (letter.kind, letter.name, letter.payload, letter.run_id) == ("event", "kept", 1, "")


async def test_an_expired_event_without_a_target_is_replayed_to_whoever_waits(port: PlainPort) -> None:
    """S2-20, B23"""
    await publish(port, "kept", "e1")
    port.clock.advance(8 * DAY)
    await sweeper(port).sweep()
    letters = DeadLetters(port, EVENTS, _no_retry)
    [letter] = await letters.list()
    await letters.replay(letter.id)
    assert (await port.store.counts()).events == {"kept": 1}


async def test_the_id_of_a_purged_run_stays_taken_for_as_long_as_ids_are_kept(port: PlainPort) -> None:
    """B16"""
    await ended(port, "good")
    port.clock.advance(2 * DAY)
    short = sweeper(port, completed=DAY, ids=5 * DAY)
    assert (await short.sweep())["completed"] == 1
    assert await port.store.get("good") is None
    for _ in range(2):
        port.clock.advance(2 * DAY)
        await short.sweep()
        outcome = await start_again(port, "good")
        assert isinstance(outcome, Existing)
        assert outcome.status is None
    port.clock.advance(7 * DAY)
    assert (await short.sweep())["ids"] == 1
    assert isinstance(await start_again(port, "good"), Started)


async def test_ids_are_kept_for_ever_when_they_have_no_age(port: PlainPort) -> None:
    """B16"""
    await ended(port, "good")
    port.clock.advance(40 * DAY)
    await sweeper(port, ids=None).sweep()
    port.clock.advance(10_000 * DAY)
    await sweeper(port, ids=None).sweep()
    assert isinstance(await start_again(port, "good"), Existing)


async def test_the_id_of_an_event_is_remembered_for_as_long_as_ids_are_kept(port: PlainPort) -> None:
    """B16"""
    short = sweeper(port, ids=5 * DAY)
    await publish(port, "lost", "e1", deduplicate=True)
    port.clock.advance(4 * DAY)
    await short.sweep()
    assert await publish(port, "lost", "e1", deduplicate=True) == Published(0, duplicate=True)
    port.clock.advance(2 * DAY)
    await short.sweep()
    assert await publish(port, "lost", "e1", deduplicate=True) == Published(0)


async def test_a_sweep_works_in_small_batches_and_gives_way_between_them(port: PlainPort) -> None:
    """S0-59"""
    await ended(port, *(f"r{number}" for number in range(25)))
    port.clock.advance(31 * DAY)
    passed = 0

    async def somebody_else() -> None:
        nonlocal passed
        while True:
            await asyncio.sleep(0)
            passed += 1

    other = asyncio.create_task(somebody_else())
    assert (await sweeper(port, batch=10).sweep())["completed"] == 25
    other.cancel()
    purges = [operation for operation in port.asked if isinstance(operation, Purge) and operation.what == "completed"]
    assert [operation.limit for operation in purges] == [1, 10, 10, 10]  # first a tenth, for each kind has its share
    assert passed >= 2


async def test_a_sweep_stops_early_when_it_is_asked_to(port: PlainPort) -> None:
    """S0-59"""
    await ended(port, *(f"r{number}" for number in range(30)))
    port.clock.advance(31 * DAY)
    purged: list[str] = []

    def seen(what: str, id: str) -> None:
        purged.append(id)
        sweep.stop()

    sweep = sweeper(port, batch=10, on_purged=seen)
    assert (await sweep.sweep())["completed"] == 1
    assert len(purged) == 1
    assert port.types() == ["purged"]


async def test_each_row_that_goes_is_told_by_kind_and_id(port: PlainPort) -> None:
    """S0-39, S0-59"""
    await ended(port, "good")
    await port.fail("bad", "d1")
    await publish(port, "lost", "e1")
    port.clock.advance(100 * DAY)
    purged: list[tuple[str, str]] = []
    await sweeper(port, dead_letters=DAY, on_purged=lambda what, id: purged.append((what, id))).sweep()
    assert purged == [("completed", "good"), ("failed", "bad"), ("dead_letters", "d1"), ("events", "e1")]


async def test_a_callback_that_raises_is_told_and_stops_nothing(
    port: PlainPort, caplog: pytest.LogCaptureFixture
) -> None:
    """B19"""
    await ended(port, "r1", "r2")
    port.clock.advance(31 * DAY)

    def broken(what: str, id: str) -> None:
        raise OSError("no space for the archive")

    assert (await sweeper(port, on_purged=broken).sweep())["completed"] == 2
    assert port.types() == ["callback.error", "callback.error", "purged"]
    assert port.told[0].data == {
        "callback": "on_purged",
        "error": "OSError: no space for the archive",
        "given": ["completed", "r1"],
    }
    assert "on_purged" in caplog.text


async def test_what_is_told_of_a_purge_may_be_async_and_do_io(
    port: PlainPort, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-39, S0-59, B19: awaited before the sweep goes on; what it raises changes nothing."""
    purged: list[str] = []

    async def clean_up(what: str, id: str) -> None:
        await asyncio.sleep(0)
        purged.append(id)
        if id == "one":
            raise OSError("the bucket is gone")

    await ended(port, "one", "two")
    port.clock.advance(DAY * 31)
    assert (await sweeper(port, completed=DAY, on_purged=clean_up).sweep())["completed"] == 2
    assert sorted(purged) == ["one", "two"]
    assert [change.data["error"] for change in port.told if change.type == "callback.error"] == [
        "OSError: the bucket is gone"
    ]


async def test_two_who_sweep_at_once_count_each_row_once(port: PlainPort) -> None:
    """S0-59"""
    await ended(port, *(f"r{number}" for number in range(30)))
    port.clock.advance(31 * DAY)
    purged: list[str] = []
    both = [sweeper(port, batch=4, on_purged=lambda what, id: purged.append(id)) for _ in range(2)]
    counts = await asyncio.gather(*(each.sweep() for each in both))
    assert sum(count["completed"] for count in counts) == 30
    assert len(purged) == len(set(purged)) == 30


class Faulty(PlainPort):
    """A port whose first operation fails."""

    failed = False

    async def apply(self, operation: Operation) -> Outcome:
        if not self.failed:
            self.failed = True
            raise StoreBusy("somebody holds the lock")
        return await super().apply(operation)


async def test_sweeping_goes_on_after_a_fault_until_it_is_stopped(
    port: PlainPort, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-39"""
    await ended(port, "good")
    port.clock.advance(31 * DAY)
    faulty = Faulty(port.store, port.clock)
    swept = asyncio.Event()
    sweep = sweeper(faulty, every=timedelta(microseconds=1), on_purged=lambda what, id: swept.set())
    running = asyncio.create_task(sweep.run())
    await swept.wait()
    sweep.stop()
    await running
    assert await port.store.get("good") is None
    assert "given up" in caplog.text


@pytest.mark.parametrize("on_start", [True, False])
async def test_a_sweep_comes_at_the_start_only_if_that_is_wanted(port: PlainPort, on_start: bool) -> None:
    """S0-39"""
    await ended(port, "good")
    port.clock.advance(31 * DAY)
    sweep = sweeper(port, on_start=on_start)
    running = asyncio.create_task(sweep.run())
    for _ in range(50):
        await asyncio.sleep(0)
    sweep.stop()
    await running
    asked = any(isinstance(operation, Purge) for operation in port.asked)
    assert asked is on_start


def test_ages_that_suit_most_are_given() -> None:
    """S0-39, S2-35, B16"""
    retention = Retention()
    assert retention.events == 7 * DAY
    assert retention.ids == 365 * DAY
    assert retention.dead_letters is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"completed": 30}, InvalidDuration),
        ({"ids": -DAY}, InvalidDuration),
        ({"every": timedelta(0)}, BadInput),
        ({"pause": None}, InvalidDuration),
        ({"batch": 0}, BadInput),
        ({"batch": 1.5}, BadInput),
        ({"on_purged": "archive"}, BadInput),
    ],
)
def test_a_retention_that_means_nothing_is_refused_by_the_name_of_its_field(fields, error) -> None:
    """S0-39"""
    with pytest.raises(error, match=next(iter(fields))):
        Retention(**fields)


async def _no_retry(letter: DeadLetter, by: str, reason: str, steps: Collection[str] | None) -> bool:
    raise AssertionError("nothing is retried here")


# What is told before a run goes.


async def test_a_callback_gets_the_whole_run_before_it_is_deleted(port: PlainPort) -> None:
    """B35, S0-39, S0-59: plain or async; the run is still there."""
    await ended(port, "one", "two")
    port.clock.advance(31 * DAY)
    archived: list[tuple[str, str | None]] = []

    async def archive(run: Any) -> None:
        found = await port.store.get(run.id)
        assert found is not None
        archived.append((run.id, run.input))

    assert (await sweeper(port, before_purge=archive).sweep())["completed"] == 2
    assert archived == [("one", '{"amount":5}'), ("two", '{"amount":5}')]
    assert await port.store.get("one") is None


async def test_a_run_whose_callback_fails_stays_until_the_next_sweep_three_times_at_most(
    port: PlainPort, caplog: pytest.LogCaptureFixture
) -> None:
    """B35, B19: the others go; after that it goes all the same, and the log says so."""
    await ended(port, *(f"r{number}" for number in range(12)))
    port.clock.advance(31 * DAY)
    asked: list[str] = []

    def archive(run: Any) -> None:
        asked.append(run.id)
        if run.id in ("r0", "r7"):
            raise OSError("the archive is full")

    sweep = sweeper(port, batch=3, before_purge=archive)
    assert [(await sweep.sweep())["completed"] for _ in range(5)] == [10, 0, 0, 2, 0]
    assert len(asked) == 12 + 3 * 2
    assert "run r7 is deleted though before_purge failed for it 4 times" in caplog.text
    errors = [change.data for change in port.told if change.type == "callback.error"]
    assert errors[0] == {"callback": "before_purge", "error": "OSError: the archive is full", "given": ["r0"]}
    assert len(errors) == 8


async def test_a_run_that_was_archived_at_last_is_forgotten_as_one_that_failed(port: PlainPort) -> None:
    """B35"""
    await ended(port, "r")
    port.clock.advance(31 * DAY)
    answers = [OSError("full"), OSError("full"), None]

    def archive(run: Any) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    sweep = sweeper(port, before_purge=archive)
    assert [(await sweep.sweep())["completed"] for _ in range(4)] == [0, 0, 1, 0]
    assert answers == []


async def test_that_there_is_nothing_to_delete_is_found_out_in_one_transaction(path):
    """An engine that opens has other things to do."""
    store = SQLiteStore(path, durability="process")
    faults = Faults(store)
    async with Engine(store=store, retention=Retention(on_start=False)) as engine:
        before = faults.commits
        assert not any((await engine.sweep()).values())
        assert faults.commits == before + 1
        assert len([each for each in faults.batches[-1] if isinstance(each, Purge)]) == 11
