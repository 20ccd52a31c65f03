"""Dead letters: looking at them, putting them away, and trying again what was given up on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta

import pytest
from tests.support.ops_cases import BEGIN, PlainPort, plain_port

from holdfast.clock import FAR_FUTURE
from holdfast.contract.operations import Purge, Refused, Reopen, SendMessage
from holdfast.contract.rows import Message, Status
from holdfast.contract.turns import CommitTurn, NewLetter, PublishEvent, TurnEffects
from holdfast.errors import BadInput, CannotReopen, NoSuchLetter, NoSuchRun, QueueFull, RunTerminal, StoreBusy
from holdfast.events import Event, Events
from holdfast.ops.dead_letters import DeadLetter, DeadLetters, ReplayReport

EVENTS = Events([Event(name="news", on_target_ended="dead_letter", max_pending=2)])


class Desk:
    """Dead letters on a store of their own, with a retry that reopens a run as an engine does."""

    def __init__(self, port: PlainPort) -> None:
        self.port = port
        self.retried: list[tuple[str, str]] = []
        self.letters = DeadLetters(port, EVENTS, self.retry)

    async def retry(self, letter: DeadLetter, by: str, reason: str = "", steps: Collection[str] | None = None) -> bool:
        await self.reopen(letter.run_id, by)
        return True

    async def reopen(self, run_id: str, by: str) -> None:
        self.retried.append((run_id, by))
        row = await self.port.row(run_id)
        outcome = await self.port.apply(
            Reopen(target=run_id, epoch=row.epoch, cut=FAR_FUTURE, at=self.port.clock.now())
        )
        if isinstance(outcome, Refused):
            raise CannotReopen(run_id, f"run {run_id!r} is {outcome.status}")

    async def undelivered(self, run_id: str = "gone", payload: str = '"hello"') -> str:
        """Let a run end with an unread message and return the id of the letter."""
        if await self.port.store.get(run_id) is None:
            await self.port.run(run_id)
        self.port.clock.advance(timedelta(milliseconds=2))
        message = SendMessage(target=run_id, name="news", id="m", payload=payload, at=self.port.clock.now())
        await self.port.apply(message)
        self.port.clock.advance(timedelta(seconds=1))
        await self.port.end(run_id, Status.CANCELLED, unread=EVENTS.unread)
        [letter] = await self.letters.list(run=run_id)
        return letter.id

    async def inbox(self, run_id: str) -> list[Message]:
        key = (await self.port.row(run_id)).key
        return (await self.port.store.inboxes({key: 0}))[key]


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with plain_port() as port:
        yield Desk(port)


async def test_a_letter_of_work_says_what_failed_why_how_often_and_with_which_input(desk: Desk) -> None:
    """S0-9, S4-23, S4-32, B9"""
    await desk.port.fail("order-1", "d1", retryable=False)
    letter = await desk.letters.get("d1")
    assert (letter.kind, letter.run_id, letter.workflow) == ("work", "order-1", "order")
    assert (letter.step, letter.activity, letter.attempts) == ("orders/~3/charge#2", "charge", 3)
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == ("bank.Declined", "no funds")
    assert letter.retryable is False
    assert letter.payload == {"amount": 5}
    assert (letter.at, letter.acknowledged_at, letter.outcome) == (BEGIN, None, "")
    await desk.port.fail("order-2", "d2")
    assert (await desk.letters.get("d2")).retryable is True


async def test_a_letter_of_an_event_says_what_it_carried_for_whom_and_how_that_run_ended(desk: Desk) -> None:
    """S2-19, B9"""
    letter = await desk.letters.get(await desk.undelivered("gone"))
    assert (letter.kind, letter.name, letter.payload) == ("event", "news", "hello")
    assert (letter.run_id, letter.target_status) == ("gone", "cancelled")
    assert letter.sent_at is not None
    assert letter.at - letter.sent_at == timedelta(seconds=1)
    assert letter.error is None


async def test_letters_are_listed_newest_first_by_page_and_by_what_they_are_about(desk: Desk) -> None:
    """S0-38, S2-20, B9"""
    for number in range(5):
        await desk.port.fail(f"order-{number}", f"0{number}")
    await desk.port.fail("bill-1", "05", workflow="bill")
    event = await desk.undelivered()
    await desk.letters.acknowledge("02")

    async def ids(**which) -> list[str]:
        return [letter.id for letter in await desk.letters.list(**which)]

    assert await ids(kind="work") == ["05", "04", "03", "02", "01", "00"]
    assert await ids(kind="work", limit=2, before="04") == ["03", "02"]
    assert await ids(kind="event") == await ids(name="news") == [event]
    assert await ids(workflow="bill") == ["05"]
    assert await ids(run="order-3") == ["03"]
    assert await ids(acknowledged=True) == ["02"]
    assert "02" not in await ids(acknowledged=False)


@pytest.mark.parametrize("which", [{"kind": "dead"}, {"limit": 0}, {"limit": 1001}])
async def test_a_list_that_means_nothing_is_refused(desk: Desk, which) -> None:
    """S0-38"""
    with pytest.raises(BadInput):
        await desk.letters.list(**which)


async def test_a_payload_that_is_no_json_is_shown_as_it_is(desk: Desk) -> None:
    """G12: what cannot be read must not hide the other letters."""
    await desk.port.fail("order-1", "d1")
    await desk.undelivered(payload="{half")
    assert {letter.kind: letter.payload for letter in await desk.letters.list()} == {
        "event": "{half",
        "work": {"amount": 5},
    }


async def test_an_error_that_is_no_json_is_shown_as_it_is(desk: Desk) -> None:
    """G12"""
    row = await desk.port.run("order-1")
    letter = NewLetter(id="d1", step="charge", attempts=1, error="half {")
    await desk.port.apply(
        CommitTurn(key=row.key, epoch=row.epoch, at=desk.port.clock.now(), effects=TurnEffects(letters=[letter]))
    )
    [shown] = await desk.letters.list()
    assert shown.error is not None
    assert shown.error.message == "half {"


async def test_a_store_that_fails_ends_a_replay_of_many(desk: Desk) -> None:
    """S4-24, G14: what was not tried is not reported as if it had been."""
    await desk.port.fail("order-1", "d1")

    async def busy(letter: DeadLetter, by: str, reason: str, steps: Collection[str] | None) -> bool:
        raise StoreBusy("somebody holds the lock")

    with pytest.raises(StoreBusy):
        await DeadLetters(desk.port, EVENTS, busy).replay_all()


async def test_a_letter_is_acknowledged_once_and_removed_once(desk: Desk) -> None:
    """S0-38, S2-20, B33: done before is False; an act on a letter that never was is an error."""
    await desk.port.fail("order-1", "d1")
    assert await desk.letters.acknowledge("d1", by="kim") is True
    assert (await desk.letters.get("d1")).acknowledged_at == BEGIN
    assert await desk.letters.acknowledge("d1") is False
    assert await desk.letters.remove("d1") is True
    assert await desk.letters.remove("d1") is False
    assert await desk.letters.find("d1") is None
    with pytest.raises(NoSuchLetter, match="'d1'"):
        await desk.letters.acknowledge("d1")
    with pytest.raises(NoSuchLetter, match="'d1'"):
        await desk.letters.get("d1")
    done = [(row.actor, row.action, row.target) for row in await desk.port.store.audit()]
    assert done[0] == ("kim", "deadletter.acknowledge", "d1")
    assert ("engine-1", "deadletter.remove", "d1") in done


async def test_replaying_work_retries_its_run_once(desk: Desk) -> None:
    """S4-24, S4-32, S2-20, B33, G12: a letter that was dealt with answers False."""
    await desk.port.fail("order-1", "d1")
    assert await desk.letters.replay("d1", by="kim") is True
    assert desk.retried == [("order-1", "kim")]
    assert (await desk.letters.get("d1")).outcome == "replayed"
    assert await desk.letters.replay("d1") is False
    assert len(desk.retried) == 1


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
async def test_a_replayed_letter_tells_how_its_run_ended(desk: Desk, status: Status) -> None:
    """S4-24, S4-32"""
    await desk.port.fail("order-1", "d1")
    await desk.letters.replay("d1")
    await desk.port.end("order-1", status)
    assert (await desk.letters.get("d1")).outcome == status.value
    assert await desk.letters.replay("d1") is False


async def test_work_cannot_be_sent_elsewhere(desk: Desk) -> None:
    """B9"""
    await desk.port.fail("order-1", "d1")
    for where in ({"to": "order-2"}, {"broadcast": True}):
        with pytest.raises(BadInput, match="order-1"):
            await desk.letters.replay("d1", **where)
    assert desk.retried == []


async def test_a_run_retried_by_somebody_deals_with_its_letters(desk: Desk) -> None:
    """G12"""
    await desk.port.fail("order-1", "d1")
    await desk.reopen("order-1", "somebody who reopened the run")
    assert await desk.letters.replay("d1") is False
    assert len(desk.retried) == 1


async def test_a_retry_that_is_refused_leaves_the_letter_open(desk: Desk) -> None:
    """G12"""
    await desk.port.fail("order-1", "d1")

    async def refuse(letter: DeadLetter, by: str, reason: str, steps: Collection[str] | None) -> bool:
        raise CannotReopen(letter.run_id, "not from there")

    letters = DeadLetters(desk.port, EVENTS, refuse)
    with pytest.raises(CannotReopen):
        await letters.replay("d1")
    assert (await letters.replay_all()).failed == {"d1": "CannotReopen: not from there"}
    assert (await desk.letters.get("d1")).outcome == ""


async def test_of_two_who_replay_one_piece_of_work_at_once_one_succeeds(desk: Desk) -> None:
    """G12"""
    await desk.port.fail("order-1", "d1")
    replays = [desk.letters.replay("d1") for _ in range(3)]
    results = await asyncio.gather(*replays)
    assert sorted(results) == [False, False, True]
    assert (await desk.port.row("order-1")).reopens == 1


async def test_an_event_goes_to_the_run_it_was_meant_for_when_that_is_open_again(desk: Desk) -> None:
    """S2-20, G12"""
    letter = await desk.undelivered("gone")
    with pytest.raises(RunTerminal, match="cancelled"):
        await desk.letters.replay(letter)
    assert (await desk.letters.get(letter)).outcome == ""
    await desk.reopen("gone", "kim")
    assert await desk.letters.replay(letter) is True
    assert [(message.name, message.payload) for message in await desk.inbox("gone")] == [("news", '"hello"')]
    assert await desk.letters.replay(letter) is False
    assert (await desk.letters.get(letter)).outcome == "delivered"


async def test_an_event_goes_to_another_run(desk: Desk) -> None:
    """S2-20"""
    letter = await desk.undelivered()
    await desk.port.run("other")
    with pytest.raises(NoSuchRun, match="'nobody'"):
        await desk.letters.replay(letter, to="nobody")
    with pytest.raises(BadInput, match="not both"):
        await desk.letters.replay(letter, to="other", broadcast=True)
    await desk.letters.replay(letter, to="other", by="kim")
    assert [message.payload for message in await desk.inbox("other")] == ['"hello"']
    assert (await desk.letters.get(letter)).acknowledged_at is not None
    [row] = await desk.port.store.audit(letter)
    assert (row.actor, row.action, row.detail) == ("kim", "deadletter.replay", '{"to":"other","name":"news"}')


async def test_an_event_goes_to_whoever_waits_for_its_name_or_to_the_queue(desk: Desk) -> None:
    """S2-20, B23"""
    letter = await desk.undelivered()
    await desk.letters.replay(letter, broadcast=True)
    assert (await desk.port.store.counts()).events == {"news": 1}
    other = await desk.undelivered("gone-too")
    rule = EVENTS.get("news").rule(desk.port.clock.now())
    await desk.port.apply(PublishEvent(name="news", id="e", payload="1", at=desk.port.clock.now(), rule=rule))
    with pytest.raises(QueueFull, match="'news'"):
        await desk.letters.replay(other, broadcast=True)
    assert (await desk.letters.get(other)).outcome == ""


async def test_of_two_who_replay_one_event_at_once_one_succeeds(desk: Desk) -> None:
    """G12"""
    letter = await desk.undelivered()
    await desk.port.run("other")
    replays = [desk.letters.replay(letter, to="other") for _ in range(5)]
    assert sorted(await asyncio.gather(*replays)) == [False] * 4 + [True]
    assert len(await desk.inbox("other")) == 1


async def test_many_are_replayed_only_as_many_as_a_dry_run_has_listed(desk: Desk) -> None:
    """S4-24, B38"""
    await desk.port.fail("order-1", "d1")
    await desk.port.fail("order-2", "d2")
    assert await desk.letters.replay_all(dry_run=True) == ReplayReport(matched=("d1", "d2"))
    with pytest.raises(BadInput, match=r"act on 2 letters: .* expect=2"):
        await desk.letters.replay_all()
    await desk.port.fail("order-3", "d3")
    with pytest.raises(BadInput, match="act on 3 letters, not on 2"):
        await desk.letters.replay_all(expect=2)
    assert desk.retried == []
    assert (await desk.letters.replay_all(expect=3)).replayed == ("d1", "d2", "d3")


async def test_what_says_that_it_is_no_use_is_not_replayed_with_many(desk: Desk) -> None:
    """S4-24, B38"""
    await desk.port.fail("order-1", "d1", retryable=False)
    report = await desk.letters.replay_all()
    assert (report.replayed, list(report.skipped)) == ((), ["d1"])
    assert "pointless" in report.skipped["d1"]
    assert desk.retried == []
    assert await desk.letters.replay("d1") is True, "named, it is"


@pytest.mark.parametrize("steps", ["charge", 7, ["a\0b"]])
async def test_names_of_steps_are_several_texts(desk: Desk, steps) -> None:
    """B38: one text is a collection of its letters, which is not meant."""
    with pytest.raises(BadInput, match="steps"):
        await desk.letters.replay_all(steps=steps)


async def test_many_are_replayed_one_by_one_and_one_failure_stops_no_other(desk: Desk) -> None:
    """S4-24, G12"""
    for number in (1, 2, 3):
        await desk.port.fail(f"order-{number}", f"d{number}")
    await desk.port.fail("bill-1", "d4", workflow="bill")
    event = await desk.undelivered("gone")
    await desk.letters.replay("d2")
    report = await desk.letters.replay_all(expect=4, by="kim")
    assert set(report.replayed) == {"d1", "d3", "d4"}
    assert list(report.failed) == [event]
    assert "RunTerminal" in report.failed[event]
    assert desk.retried[1:] == [("order-1", "kim"), ("order-3", "kim"), ("bill-1", "kim")]
    assert await desk.letters.replay_all(kind="work") == ReplayReport()


async def test_letters_of_one_run_are_replayed_together(desk: Desk) -> None:
    """S4-24, G12"""
    await desk.port.fail("order-1", "d1", "d2", "d3")
    report = await desk.letters.replay_all(expect=3)
    assert report.replayed == ("d1", "d2", "d3")
    assert report.failed == {}
    assert desk.retried == [("order-1", "engine-1")]


async def test_replayed_letters_do_not_hide_older_ones_from_a_limited_replay(desk: Desk) -> None:
    """S4-24"""
    for number in range(6):
        await desk.port.fail(f"order-{number}", f"d{number}")
    assert (await desk.letters.replay_all(expect=2, limit=2)).replayed == ("d4", "d5")
    assert (await desk.letters.replay_all(expect=3, limit=3)).replayed == ("d1", "d2", "d3")


async def test_letters_are_counted_by_kind_and_outcome(desk: Desk) -> None:
    """S4-24, S4-32"""
    for number in range(6):
        await desk.port.fail(f"order-{number}", f"d{number}")
    await desk.letters.acknowledge("d1")
    for number, status in ((2, Status.COMPLETED), (3, Status.FAILED), (4, Status.CANCELLED)):
        await desk.letters.replay(f"d{number}")
        await desk.port.end(f"order-{number}", status)
    await desk.letters.replay("d5")
    await desk.letters.replay(await desk.undelivered(), broadcast=True)
    none = dict.fromkeys(("open", "acknowledged", "replayed", "completed", "failed", "cancelled"), 0)
    assert await desk.letters.counts() == {
        "work": dict.fromkeys(none, 1),
        "event": none | {"delivered": 1},
    }


async def test_old_letters_are_purged_in_small_batches_those_nobody_acknowledged_only_when_asked(desk: Desk) -> None:
    """S0-38, S0-59"""
    await desk.port.fail("order-1", *(f"d{number:03}" for number in range(250)), "kept")
    await desk.reopen("order-1", "kim")
    await desk.port.fail("order-2", "unseen")
    desk.port.clock.advance(timedelta(days=8))
    await desk.port.fail("order-3", "young")
    await desk.letters.acknowledge("young")
    purged: list[str] = []
    assert await desk.letters.purge(older_than=timedelta(days=7), on_purged=purged.append, by="kim") == 251
    assert len(set(purged)) == 251
    assert {letter.id for letter in await desk.letters.list()} == {"unseen", "young"}
    assert [change.data for change in desk.port.told if change.type == "purged"] == [{"dead_letters": 251}]
    asked = [operation for operation in desk.port.asked if isinstance(operation, Purge)]
    assert max(operation.limit for operation in asked) <= 100
    assert (await desk.port.store.audit("work"))[0].actor == "kim"
    assert await desk.letters.purge(older_than=timedelta(days=7), acknowledged_only=False, kind="event") == 0
    assert await desk.letters.purge(older_than=timedelta(days=7), acknowledged_only=False) == 1
    assert [letter.id for letter in await desk.letters.list()] == ["young"]


async def test_a_callback_that_raises_is_told_and_stops_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """B19"""
    await desk.port.fail("order-1", "d1", "d2")
    desk.port.clock.advance(timedelta(days=1))

    def broken(letter: str) -> None:
        raise ValueError(f"cannot file {letter}")

    purged = await desk.letters.purge(older_than=timedelta(hours=1), acknowledged_only=False, on_purged=broken)
    assert purged == 2
    assert await desk.letters.list() == []
    errors = [change.data for change in desk.port.told if change.type == "callback.error"]
    assert [data["given"] for data in errors] == [["d1"], ["d2"]]
    assert errors[0]["error"] == "ValueError: cannot file d1"
    assert "on_purged raised" in caplog.text


async def test_a_callback_that_could_not_be_called_is_refused_before_anything_goes(desk: Desk) -> None:
    """B19"""
    await desk.port.fail("order-1", "d1")
    desk.port.clock.advance(timedelta(days=1))
    with pytest.raises(BadInput, match="on_purged"):
        await desk.letters.purge(older_than=timedelta(0), acknowledged_only=False, on_purged="archive")  # type: ignore[arg-type]
    assert len(await desk.letters.list()) == 1


async def test_a_callback_of_a_purge_may_be_async(desk: Desk) -> None:
    """S0-38, S0-39, S0-59: it is awaited for each letter, before the purge returns."""
    purged: list[str] = []

    async def archive(letter: str) -> None:
        await asyncio.sleep(0)
        purged.append(letter)

    await desk.port.fail("order-1", "d1", "d2")
    desk.port.clock.advance(timedelta(days=1))
    assert await desk.letters.purge(older_than=timedelta(0), acknowledged_only=False, on_purged=archive) == 2
    assert sorted(purged) == ["d1", "d2"]
