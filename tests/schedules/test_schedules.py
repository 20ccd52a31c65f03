"""Schedules: runs started by the calendar, exactly once, however many engines there are and whatever was missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.ops_cases import BEGIN, PlainPort, plain_port
from tests.support.sqlite_cases import opened

from holdfast import workflow
from holdfast.clock import to_datetime
from holdfast.contract.operations import PutSchedule, RequestCancel, SendMessage, Tick
from holdfast.contract.rows import RunFilter, Status
from holdfast.definitions import Registry
from holdfast.errors import (
    BadInput,
    InvalidDuration,
    InvalidId,
    InvalidSchedule,
    NoSuchSchedule,
    UndecodablePayload,
    UnknownWorkflow,
)
from holdfast.events import Event, Events
from holdfast.schedules.service import Schedules

HOUR = timedelta(hours=1)
EVENTS = Events([Event(name="news", on_target_ended="dead_letter")])


@workflow
async def report(ctx: Any, region: str, pages: int = 1) -> None: ...


@workflow
async def backup(ctx: Any) -> None: ...


@workflow(name="report", version="2")
async def report_by_number(ctx: Any, region: int, pages: int = 1) -> None: ...


@workflow(name="report", version="2")
async def better_report(ctx: Any, region: str, pages: float = 1) -> None: ...


def schedules_of(port: PlainPort, *workflows: Any) -> Schedules:
    return Schedules(port, Registry(workflows or [report, backup]), EVENTS, lambda: None)


async def started(port: PlainPort) -> list[str]:
    """Return the ids of all runs, oldest first."""
    return [row.id for row in reversed(await port.store.runs(RunFilter(limit=5000)))]


async def tick(port: PlainPort, schedules: Schedules, after: timedelta = timedelta(0)) -> datetime | None:
    """Let time pass and the schedules tick; return when they want to again."""
    port.clock.advance(after)
    instant = await schedules.ticker.tick()
    return None if instant is None else to_datetime(instant)


@pytest.fixture
async def port() -> AsyncIterator[PlainPort]:
    async with plain_port() as port:
        yield port


@pytest.fixture
def schedules(port: PlainPort) -> Schedules:
    return schedules_of(port)


# What is started.


async def test_a_tick_starts_a_run_with_the_schedule_s_input_and_an_id_that_says_which(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54"""
    await schedules.put("nightly", report, "north", pages=3, cron="0 2 * * *", timezone="Europe/Berlin")
    assert await tick(port, schedules) == datetime(2026, 2, 1, 1, tzinfo=UTC)
    assert await started(port) == []
    assert await tick(port, schedules, 13 * HOUR) == datetime(2026, 2, 2, 1, tzinfo=UTC)
    assert await started(port) == ["nightly:20260201T010000Z"]
    row = await port.row("nightly:20260201T010000Z")
    assert (row.workflow, row.version, row.input) == ("report", "1", '{"region":"north","pages":3}')
    assert row.digest == report.encode_input(("north",), {"pages": 3})[1]
    assert (row.status, row.actor, row.due) == (Status.PENDING, "schedule:nightly", row.begins)
    assert (await schedules.get("nightly")).last_run == row.id


async def test_ticks_follow_each_other_and_none_comes_twice(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("often", backup, every=timedelta(minutes=10), overlap="allow")
    for _ in range(13):
        await tick(port, schedules, timedelta(minutes=5))
    assert await started(port) == [
        f"often:20260131T{when}00Z" for when in ("1210", "1220", "1230", "1240", "1250", "1300")
    ]


async def test_ticks_within_one_second_have_ids_of_their_own(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("fast", backup, every=timedelta(milliseconds=250), overlap="allow", catch_up="all")
    await tick(port, schedules, timedelta(milliseconds=500))
    assert await started(port) == ["fast:20260131T120000.250000Z", "fast:20260131T120000.500000Z"]


async def test_a_run_begins_later_by_its_jitter_the_same_whoever_starts_it(port: PlainPort) -> None:
    """S0-54"""
    schedules = schedules_of(port)
    await schedules.put("nightly", backup, cron="0 13 * * *", jitter=timedelta(minutes=30))
    await tick(port, schedules, HOUR)
    row = await port.row("nightly:20260131T130000Z")
    assert row.begins is not None
    late = to_datetime(row.begins) - (BEGIN + HOUR)
    assert timedelta(0) < late < timedelta(minutes=30)
    assert row.due == row.begins


async def test_new_runs_are_of_the_latest_version(port: PlainPort) -> None:
    """S0-54"""
    await schedules_of(port).put("hourly", report, "north", every=HOUR)
    await tick(port, schedules_of(port, report, better_report), HOUR)
    row = await port.row("hourly:20260131T130000Z")
    assert (row.version, row.input) == ("2", '{"region":"north","pages":1.0}')


async def test_an_engine_leaves_the_workflows_it_does_not_know_to_others(port: PlainPort) -> None:
    """S0-54"""
    await schedules_of(port).put("hourly", backup, every=HOUR)
    ignorant = schedules_of(port, report)
    assert await tick(port, ignorant, 2 * HOUR) is None
    assert await started(port) == []
    await tick(port, schedules_of(port))
    assert await started(port) == ["hourly:20260131T140000Z"]


async def test_a_schedule_is_over_after_its_end(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    schedule = await schedules.put("twice", backup, every=HOUR, until=BEGIN + 2 * HOUR, overlap="allow")
    assert schedule.until == BEGIN + 2 * HOUR
    assert await tick(port, schedules, HOUR) == BEGIN + 2 * HOUR
    assert await tick(port, schedules, HOUR) is None
    assert await tick(port, schedules, 10 * HOUR) is None
    assert len(await started(port)) == 2
    assert (await schedules.get("twice")).next_at is None


async def test_a_schedule_that_begins_later_begins_with_that_very_instant(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54"""
    await schedules.put("later", backup, every=HOUR, starting=BEGIN + timedelta(minutes=90))
    await tick(port, schedules, timedelta(minutes=90))
    assert await started(port) == ["later:20260131T133000Z"]


# Exactly once.


async def test_two_engines_that_tick_at_once_start_each_run_once(path: Path) -> None:
    """S0-54"""
    first, second = await opened(path, durability="process"), await opened(path, durability="process")
    try:
        ports = [PlainPort(first), PlainPort(second), PlainPort(first)]
        engines = [schedules_of(port) for port in ports]
        for number in range(5):
            await engines[0].put(f"s{number}", backup, every=timedelta(minutes=1), overlap="allow", catch_up="all")
        for _ in range(6):
            for port in ports:
                port.clock.advance(timedelta(seconds=50))
            instants = await asyncio.gather(*(engine.ticker.tick() for engine in engines))
            assert len(set(instants)) == 1
        ids = await started(ports[0])
        assert len(ids) == len(set(ids)) == 25
        ticks = [operation for port in ports for operation in port.asked if isinstance(operation, Tick)]
        assert len(ticks) > 25
    finally:
        await first.close()
        await second.close()


async def test_a_tick_and_a_backfill_never_start_the_same_run_twice(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR, overlap="allow")
    port.clock.advance(3 * HOUR)
    filled = await schedules.backfill("hourly", BEGIN, BEGIN + 2 * HOUR + timedelta(seconds=1))
    assert filled == ["hourly:20260131T120000Z", "hourly:20260131T130000Z", "hourly:20260131T140000Z"]
    await asyncio.gather(
        schedules.ticker.tick(), schedules.backfill("hourly", BEGIN, BEGIN + 4 * HOUR), schedules.ticker.tick()
    )
    assert sorted(await started(port)) == [*filled, "hourly:20260131T150000Z"]


async def test_a_schedule_changed_while_it_ticks_neither_starts_nor_stops_the_run_of_that_tick(port: PlainPort) -> None:
    """S0-54: the change was decided on a row that the tick has moved since."""
    schedules = schedules_of(port)
    await schedules.put("hourly", backup, every=HOUR, overlap="cancel")
    port.clock.advance(HOUR)
    [before] = await port.store.schedules()
    await schedules.ticker.tick()
    await schedules._change(before, before.next, False, None, "")
    await schedules.ticker.tick()
    assert await started(port) == ["hourly:20260131T130000Z"]
    assert (await port.row("hourly:20260131T130000Z")).status is Status.PENDING


# Overlap and outages.


async def test_a_tick_is_skipped_while_the_last_run_is_open(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR)
    await tick(port, schedules, HOUR)
    assert await tick(port, schedules, HOUR) == BEGIN + 3 * HOUR
    assert await started(port) == ["hourly:20260131T130000Z"]
    await port.apply(RequestCancel(target="hourly:20260131T130000Z", at=port.clock.now()))
    await tick(port, schedules, HOUR)
    assert await started(port) == ["hourly:20260131T130000Z", "hourly:20260131T150000Z"]


async def test_runs_may_overlap_where_that_is_allowed(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR, overlap="allow")
    await tick(port, schedules, HOUR)
    await tick(port, schedules, HOUR)
    assert [(await port.row(id)).status for id in await started(port)] == [Status.PENDING] * 2


async def test_the_old_run_is_asked_to_stop_where_that_is_wanted(port: PlainPort, schedules: Schedules) -> None:
    """S0-54, B23: what it had not read goes where its policy says."""
    await schedules.put("hourly", backup, every=HOUR, overlap="cancel")
    await tick(port, schedules, HOUR)
    old = "hourly:20260131T130000Z"
    await port.apply(SendMessage(target=old, name="news", id="m", payload="1", at=port.clock.now()))
    await tick(port, schedules, HOUR)
    assert (await port.row(old)).status is Status.CANCELLED
    assert (await port.row("hourly:20260131T140000Z")).status is Status.PENDING
    assert (await port.store.counts()).letters == [("event", "", False, 1)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"catch_up": "latest", "overlap": "allow"}, ["1700"]),
        ({"catch_up": "all", "overlap": "allow"}, ["1300", "1400", "1500", "1600", "1700"]),
        ({"catch_up": "all", "overlap": "skip"}, ["1300"]),
        ({"catch_up": "all", "overlap": "cancel"}, ["1700"]),
        ({"catch_up": "none", "overlap": "allow"}, []),
    ],
)
async def test_after_an_outage_what_was_missed_is_started_as_the_policy_says(
    port: PlainPort, schedules: Schedules, policy, expected: list[str]
) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR, **policy)
    assert await tick(port, schedules, 5 * HOUR + timedelta(minutes=30)) == BEGIN + 6 * HOUR
    assert await started(port) == [f"hourly:20260131T{when}00Z" for when in expected]


async def test_more_than_one_commit_should_hold_is_caught_up_in_pieces(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("busy", backup, every=timedelta(seconds=1), overlap="allow", catch_up="all")
    again = await tick(port, schedules, timedelta(seconds=1500))
    assert again is not None
    assert again <= to_datetime(port.clock.now())
    assert len(await started(port)) == 1000
    assert await tick(port, schedules) == BEGIN + timedelta(seconds=1501)
    assert len(await started(port)) == 1500


# Declaring.


async def test_a_schedule_shows_all_that_was_said_about_it(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    schedule = await schedules.put(
        "nightly", "report", "north", cron="@daily", timezone="Europe/Berlin", jitter=HOUR, catch_up="all",
        overlap="cancel", starting=BEGIN, until=BEGIN + 999 * HOUR, by="kim",
    )  # fmt: skip
    assert (schedule.id, schedule.workflow, schedule.input) == ("nightly", "report", {"region": "north", "pages": 1})
    assert (schedule.cron, schedule.every, schedule.timezone) == ("0 0 * * *", None, "Europe/Berlin")
    assert (schedule.jitter, schedule.catch_up, schedule.overlap) == (HOUR, "all", "cancel")
    assert (schedule.starting, schedule.until) == (BEGIN, BEGIN + 999 * HOUR)
    assert schedule.next_at == datetime(2026, 1, 31, 23, tzinfo=UTC)
    assert (schedule.paused, schedule.last_run, schedule.created_at, schedule.updated_at) == (False, None, BEGIN, BEGIN)
    assert await schedules.get("nightly") == schedule
    await schedules.put("b", backup, every=HOUR)
    assert [each.id for each in await schedules.list()] == ["b", "nightly"]
    [audit] = await port.store.audit("nightly")
    assert (audit.actor, audit.action) == ("kim", "schedule.put")


async def test_declaring_a_schedule_again_as_it_is_changes_nothing(port: PlainPort, schedules: Schedules) -> None:
    """S0-54: a program declares its schedules each time it starts."""
    first = await schedules.put("hourly", backup, every=HOUR)
    port.clock.advance(timedelta(minutes=40))
    assert await schedules.put("hourly", backup, every=HOUR) == first
    assert len(await port.store.audit("hourly")) == 1
    port.clock.advance(timedelta(minutes=40))
    assert await schedules.put("hourly", backup, every=HOUR) == first
    await tick(port, schedules)
    assert await started(port) == ["hourly:20260131T130000Z"]


async def test_a_change_that_is_not_of_the_timetable_keeps_the_next_tick(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    first = await schedules.put("hourly", report, "north", every=HOUR)
    port.clock.advance(timedelta(minutes=40))
    changed = await schedules.put("hourly", report, "south", every=HOUR, overlap="allow", jitter=HOUR)
    assert (changed.next_at, changed.starting, changed.created_at) == (first.next_at, first.starting, BEGIN)
    assert (changed.input["region"], changed.overlap, changed.jitter) == ("south", "allow", HOUR)
    assert changed.updated_at == BEGIN + timedelta(minutes=40)


async def test_a_change_of_the_timetable_gives_the_next_tick_of_the_new_one(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54"""
    await schedules.put("s", backup, every=HOUR)
    port.clock.advance(timedelta(minutes=40))
    assert (await schedules.put("s", backup, every=2 * HOUR)).next_at == BEGIN + timedelta(minutes=160)
    assert (await schedules.put("s", backup, cron="0 18 * * *")).next_at == BEGIN + 6 * HOUR
    berlin = await schedules.put("s", backup, cron="0 18 * * *", timezone="Europe/Berlin")
    assert berlin.next_at == BEGIN + 5 * HOUR
    later = await schedules.put("s", backup, cron="0 18 * * *", timezone="Europe/Berlin", starting=BEGIN + 24 * HOUR)
    assert later.next_at == BEGIN + 29 * HOUR


async def test_an_end_may_be_moved(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("s", backup, every=HOUR)
    assert (await schedules.put("s", backup, every=HOUR, until=BEGIN + timedelta(minutes=30))).next_at is None
    port.clock.advance(timedelta(minutes=90))
    assert (await schedules.put("s", backup, every=HOUR, until=BEGIN + 9 * HOUR)).next_at == BEGIN + 2 * HOUR
    assert (await schedules.put("s", backup, every=HOUR)).next_at == BEGIN + 2 * HOUR


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda put: put("s", backup), InvalidSchedule),
        (lambda put: put("s", backup, cron="61 * * * *"), InvalidSchedule),
        (lambda put: put("s", backup, every=HOUR, timezone="Mars/Base"), InvalidSchedule),
        (lambda put: put("s", backup, "surplus", every=HOUR), BadInput),
        (lambda put: put("s", report, 5, every=HOUR), UndecodablePayload),
        (lambda put: put("s", "reprot", every=HOUR), UnknownWorkflow),
        (lambda put: put("s", better_report, "north", every=HOUR), BadInput),
        (lambda put: put("s", print, every=HOUR), BadInput),
        (lambda put: put("a/b", backup, every=HOUR), InvalidId),
        (lambda put: put("x" * 201, backup, every=HOUR), InvalidId),
    ],
)
async def test_a_schedule_that_cannot_work_is_refused_and_nothing_stored(
    port: PlainPort, schedules: Schedules, call, error
) -> None:
    """S0-54"""
    with pytest.raises(error):
        await call(schedules.put)
    assert await schedules.list() == []


async def test_the_longest_id_there_is_makes_runs_of_allowed_length(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    id = "x" * 200
    await schedules.put(id, backup, every=timedelta(microseconds=3_600_000_001))
    await tick(port, schedules, 2 * HOUR)
    run_id = await schedules.trigger(id)
    assert max(map(len, [*await started(port), run_id])) <= 255
    assert len(await started(port)) == 2


# Tending.


async def test_a_paused_schedule_starts_nothing_and_goes_on_with_the_next_tick_when_resumed(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54, S4-25"""
    await schedules.put("hourly", backup, every=HOUR, catch_up="all", overlap="allow")
    assert (await schedules.pause("hourly", by="kim")).paused is True
    assert await tick(port, schedules, 3 * HOUR + timedelta(minutes=1)) is None
    assert (await schedules.put("hourly", backup, every=HOUR, catch_up="latest", overlap="allow")).paused is True
    resumed = await schedules.resume("hourly", by="lee")
    assert (resumed.paused, resumed.next_at) == (False, BEGIN + 4 * HOUR)
    await tick(port, schedules)
    assert await started(port) == []
    await tick(port, schedules, HOUR)
    assert await started(port) == ["hourly:20260131T160000Z"]
    done = [(row.actor, row.action) for row in await port.store.audit("hourly")]
    assert done[1:] == [("kim", "schedule.pause"), ("engine-1", "schedule.put"), ("lee", "schedule.resume")]


async def test_pausing_and_resuming_twice_is_harmless(port: PlainPort, schedules: Schedules) -> None:
    """S4-25"""
    first = await schedules.put("hourly", backup, every=HOUR)
    assert await schedules.resume("hourly") == first
    paused = await schedules.pause("hourly")
    port.clock.advance(HOUR)
    assert await schedules.pause("hourly") == paused
    assert len(await port.store.audit("hourly")) == 2


async def test_a_deleted_schedule_is_gone_and_its_runs_stay(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR)
    await tick(port, schedules, HOUR)
    await schedules.delete("hourly", by="kim")
    assert await tick(port, schedules, HOUR) is None
    assert await schedules.list() == []
    assert len(await started(port)) == 1
    assert (await port.store.audit("hourly"))[-1].action == "schedule.delete"


@pytest.mark.parametrize("verb", ["get", "pause", "resume", "delete", "trigger"])
async def test_a_schedule_that_is_not_there_is_named(schedules: Schedules, verb: str) -> None:
    """S0-54"""
    with pytest.raises(NoSuchSchedule, match="'nobody'"):
        await getattr(schedules, verb)("nobody")
    with pytest.raises(NoSuchSchedule, match="'nobody'"):
        await schedules.backfill("nobody", BEGIN, BEGIN)


# By hand.


async def test_a_run_is_started_by_hand_outside_the_timetable(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    before = await schedules.put("hourly", report, "north", every=HOUR)
    await schedules.pause("hourly")
    run_id = await schedules.trigger("hourly", by="kim")
    assert run_id.startswith("hourly:")
    row = await port.row(run_id)
    assert (row.workflow, row.actor, row.due) == ("report", "schedule:hourly", port.clock.now())
    await schedules.resume("hourly")
    after = await schedules.get("hourly")
    assert (after.next_at, after.last_run) == (before.next_at, None)
    await tick(port, schedules, HOUR)
    assert len(await started(port)) == 2


async def test_a_backfill_starts_past_ticks_and_passes_over_those_that_were_started(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54"""
    await schedules.put("daily", backup, cron="0 6 * * *")
    last_week = BEGIN - timedelta(days=7)
    filled = await schedules.backfill("daily", last_week, last_week + timedelta(days=3), by="kim")
    assert filled == [f"daily:202601{day}T060000Z" for day in (25, 26, 27)]
    assert (await port.row(filled[0])).actor == "schedule:daily"
    assert await schedules.backfill("daily", last_week, last_week + timedelta(days=4)) == ["daily:20260128T060000Z"]
    assert await schedules.backfill("daily", last_week, last_week + timedelta(days=4)) == []


async def test_a_backfill_of_many_ticks_starts_each(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("busy", backup, every=timedelta(minutes=1))
    filled = await schedules.backfill("busy", BEGIN - timedelta(minutes=250), BEGIN)
    assert len(set(filled)) == 250
    assert sorted(await started(port)) == sorted(filled)


async def test_a_backfill_starts_nothing_of_the_future(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR)
    assert await schedules.backfill("hourly", BEGIN - HOUR, BEGIN + 9 * HOUR) == [
        "hourly:20260131T110000Z",
        "hourly:20260131T120000Z",
    ]


async def test_a_backfill_that_would_be_cut_short_is_refused(port: PlainPort, schedules: Schedules) -> None:
    """S0-54"""
    await schedules.put("hourly", backup, every=HOUR)
    with pytest.raises(BadInput, match="more than 3 ticks"):
        await schedules.backfill("hourly", BEGIN - 4 * HOUR, BEGIN, limit=3)
    with pytest.raises(BadInput, match="limit"):
        await schedules.backfill("hourly", BEGIN - 4 * HOUR, BEGIN, limit=0)
    with pytest.raises(InvalidDuration, match="start"):
        await schedules.backfill("hourly", datetime(2026, 1, 1), BEGIN)  # noqa: DTZ001  # a naive one is refused
    assert await started(port) == []
    assert len(await schedules.backfill("hourly", BEGIN - 3 * HOUR, BEGIN, limit=3)) == 3


# Input that does not fit any more.


async def test_input_that_no_longer_fits_is_told_once_per_tick_and_stops_no_other_schedule(
    port: PlainPort, caplog: pytest.LogCaptureFixture
) -> None:
    """S0-54, G12"""
    await schedules_of(port).put("a-bad", report, "north", every=HOUR)
    await schedules_of(port).put("b-good", backup, every=HOUR, overlap="allow")
    changed = schedules_of(port, report_by_number, backup)
    assert await tick(port, changed, HOUR) == BEGIN + 2 * HOUR
    assert await started(port) == ["b-good:20260131T130000Z"]
    await tick(port, changed, timedelta(minutes=5))
    [told] = port.told
    assert (told.type, told.workflow, told.run_id, told.data["schedule"]) == ("run.blocked", "report", "", "a-bad")
    assert "region" in told.data["error"]["message"]
    assert "a-bad" in caplog.text
    await tick(port, changed, HOUR)
    assert len(port.told) == 2
    with pytest.raises(UndecodablePayload):
        await changed.trigger("a-bad")


async def test_a_tick_that_one_engine_could_not_start_is_started_by_one_whose_code_fits(port: PlainPort) -> None:
    """S0-54: while a new version is rolled out, neither takes the ticks of the other away."""
    await schedules_of(port).put("hourly", report, "north", every=HOUR)
    await tick(port, schedules_of(port, report_by_number), HOUR)
    await tick(port, schedules_of(port))
    assert await started(port) == ["hourly:20260131T130000Z"]


async def test_when_the_input_fits_again_what_was_missed_is_made_up_for(port: PlainPort) -> None:
    """S0-54"""
    await schedules_of(port).put("hourly", report, "north", every=HOUR, catch_up="all", overlap="allow")
    changed = schedules_of(port, report_by_number)
    for _ in range(3):
        await tick(port, changed, HOUR)
    assert await started(port) == []
    await changed.put("hourly", report_by_number, 7, every=HOUR, catch_up="all", overlap="allow")
    assert await tick(port, changed) == BEGIN + 4 * HOUR
    assert len(await started(port)) == 3
    assert (await port.row("hourly:20260131T130000Z")).input == '{"region":7,"pages":1}'


async def test_a_timetable_that_means_nothing_here_is_told_and_looked_at_again(
    port: PlainPort, schedules: Schedules
) -> None:
    """S0-54: another machine may know a time zone that this one does not."""
    await schedules.put("strange", backup, cron="0 * * * *", timezone="Europe/Berlin")
    [row] = await port.store.schedules()
    changed = row.spec.replace("Europe/Berlin", "Mars/Base")
    await port.apply(
        PutSchedule(
            id=row.id,
            workflow=row.workflow,
            spec=changed,
            input=row.input,
            next=row.next,
            paused=False,
            at=port.clock.now(),
        )
    )
    assert await tick(port, schedules, HOUR) == BEGIN + HOUR + timedelta(minutes=1)
    assert "Mars/Base" in port.told[0].data["error"]["message"]
    assert await started(port) == []
    assert (await schedules.put("strange", backup, cron="0 * * * *")).next_at == BEGIN + 2 * HOUR
    await tick(port, schedules, HOUR)
    assert await started(port) == ["strange:20260131T140000Z"]
