"""Schedules end to end: runs started by the calendar, once, whichever engines are there and whichever were not."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, Status, workflow
from holdfast.clock import micros, to_datetime
from holdfast.contract.operations import Purge, Tick
from holdfast.errors import BadInput, InvalidSchedule, NoSuchSchedule, UnknownWorkflow
from holdfast.looking import LocalDesk

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)

shared = pytest.mark.parametrize("mode", ["file", "evict"])
anywhere = pytest.mark.parametrize("mode", ["memory"])


@workflow
async def report(ctx: Context, region: str = "north", pages: int = 1) -> str:
    return f"{region} {pages}"


@workflow
async def patient(ctx: Context) -> Any:
    return await ctx.receive("word")


async def runs_of(engine: Any, schedule: str) -> list[str]:
    """Return the ticks that have runs, oldest first, as their ids name them."""
    found = (run.id for run in await engine.runs(limit=1000))
    return sorted(id.partition(":")[2] for id in found if id.startswith(f"{schedule}:"))


async def test_a_schedule_runs_its_workflow_at_every_tick(make_engine):
    """S0-54 schedule(wf, {cron, input}): each tick a run of its own, with the input, that ends like any other."""
    engine = await make_engine(report, start=BEGIN)
    schedule = await engine.schedules.put("nightly", report, "south", pages=3, cron="0 2 * * *")
    assert schedule.next_at == BEGIN + 2 * HOUR
    await engine.advance(2 * DAY + 3 * HOUR)
    assert await runs_of(engine, "nightly") == ["20260301T020000Z", "20260302T020000Z", "20260303T020000Z"]
    last = await engine.get("nightly:20260303T020000Z").describe()
    assert (last.output, last.actor, last.created_at) == ("south 3", "schedule:nightly", BEGIN + 2 * DAY + 2 * HOUR)
    assert (await engine.schedules.get("nightly")).last_run == last.id


@shared
async def test_two_engines_start_each_tick_once(make_engine):
    """S0-54 G2 Both see every tick come due at the same moment; every run is there once and ran once."""
    bodies: list[str] = []

    async def body(id: str) -> None:
        bodies.append(id)

    @workflow
    async def noted(ctx: Context) -> None:
        await ctx.step(body, ctx.run_id)

    first = await make_engine(noted, start=BEGIN)
    for number in range(3):
        await first.schedules.put(f"s{number}", noted, every=HOUR)
    second = await make_engine(noted, clock=first.jumping)
    await eventually(lambda: _knows(second, BEGIN + HOUR))
    for _ in range(8):
        await first.advance(HOUR)
        await second.settle()
    for number in range(3):
        assert await runs_of(first, f"s{number}") == [f"20260301T{hour:02}0000Z" for hour in range(1, 9)]
    await eventually(lambda: _ended(first, 24))
    assert len(bodies) == len(set(bodies)) == 24


async def _knows(engine: Any, tick: datetime) -> bool:
    known = engine._maintenance.next_tick
    return known is not None and known <= int(tick.timestamp() * 1e6)


async def _ended(engine: Any, count: int) -> bool:
    return len(await engine.runs(status="completed", limit=1000)) >= count


@pytest.mark.parametrize("mode", ["file"])
async def test_a_schedule_made_elsewhere_is_noticed(make_engine):
    """S0-54 S0-60 A client puts it; the engine that knows the workflow runs it."""
    worker = await make_engine(report, start=BEGIN)
    client = await make_engine(report, run_workflows=False, clock=worker.jumping)
    await client.schedules.put("often", report, every=HOUR)
    await eventually(lambda: _knows(worker, BEGIN + HOUR))
    await worker.advance(HOUR)
    assert await runs_of(client, "often") == ["20260301T010000Z"]


# Outages.


@shared
@pytest.mark.parametrize(
    ("catch_up", "hours"),
    [("latest", [1, 6]), ("all", [1, 2, 3, 4, 5, 6]), ("none", [1])],
    ids=lambda value: str(value),
)
async def test_ticks_passed_while_no_engine_was_there_are_made_up_for_as_the_schedule_says(
    make_engine, catch_up, hours
):
    """S0-54 The outage is from half past one to half past six; afterwards it goes on by the timetable."""
    first = await make_engine(report, start=BEGIN)
    await first.schedules.put("s", report, every=HOUR, catch_up=catch_up, overlap="allow")
    await first.advance(HOUR * 1.5)
    await first.stop()
    first.jumping.advance(HOUR * 5)
    second = await make_engine(report, clock=first.jumping)
    await second.settle()
    assert await runs_of(second, "s") == [f"20260301T{hour:02}0000Z" for hour in hours]
    await second.advance(HOUR)
    assert await runs_of(second, "s") == [f"20260301T{hour:02}0000Z" for hour in [*hours, 7]]


@shared
async def test_a_tick_whose_commit_fails_is_neither_lost_nor_started_twice(make_engine):
    """S0-54 G14 Before the commit it is tried again; after it the run is there and the schedule has moved on."""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, every=HOUR, overlap="allow")
    refused, lost = engine.faults.fail(2, only=Tick), engine.faults.lose_answer(only=Tick)
    await engine.advance(HOUR + timedelta(minutes=1))
    assert (refused.injected, lost.injected) == (2, 1)
    assert await runs_of(engine, "s") == ["20260301T010000Z"]
    await engine.advance(HOUR)
    assert await runs_of(engine, "s") == ["20260301T010000Z", "20260301T020000Z"]


# The calendar.


@pytest.mark.parametrize(
    ("cron", "begin", "ticks"),
    [
        # Clocks go from 2 to 3 on 29 March: half past two does not exist, and ticks at three (01:00 UTC).
        ("30 2 * * *", datetime(2026, 3, 28, tzinfo=UTC), ["20260328T013000Z", "20260329T010000Z", "20260330T003000Z"]),
        # They go from 3 to 2 on 25 October: half past two comes twice, and ticks the first time.
        (
            "30 2 * * *",
            datetime(2026, 10, 24, tzinfo=UTC),
            ["20261024T003000Z", "20261025T003000Z", "20261026T013000Z"],
        ),
    ],
    ids=["spring", "autumn"],
)
async def test_a_daily_schedule_ticks_once_a_day_whatever_the_clocks_do(make_engine, cron, begin, ticks):
    """S0-54"""
    engine = await make_engine(report, start=begin)
    await engine.schedules.put("daily", report, cron=cron, timezone="Europe/Berlin")
    await engine.advance(3 * DAY - HOUR)
    assert await runs_of(engine, "daily") == ticks


async def test_an_interval_knows_no_time_zone_and_a_jitter_puts_off_the_beginning(make_engine):
    """S0-54 Twenty-four ticks on the day that has 23 hours in Berlin; each begins within its jitter."""
    engine = await make_engine(report, start=datetime(2026, 3, 29, tzinfo=UTC))
    await engine.schedules.put("hourly", report, every=HOUR, jitter=HOUR / 2, timezone="Europe/Berlin")
    await engine.advance(DAY + HOUR / 2)
    runs = [run for run in await engine.runs() if run.id.startswith("hourly:")]
    assert len(runs) == 24
    late = {run.begins_at - datetime.strptime(run.id, "hourly:%Y%m%dT%H%M%S%z") for run in runs}
    assert timedelta(0) <= min(late) < max(late) < HOUR / 2
    assert len(late) > 20
    assert {run.status for run in runs} == {Status.COMPLETED}


# Overlap.


@pytest.mark.parametrize(
    ("overlap", "statuses"),
    [
        ("skip", {"01": "suspended"}),
        ("allow", {"01": "suspended", "02": "suspended", "03": "suspended"}),
        ("cancel", {"01": "cancelled", "02": "cancelled", "03": "suspended"}),
    ],
)
async def test_a_tick_that_meets_the_run_of_the_last_one_does_as_it_was_told(make_engine, overlap, statuses):
    """S0-54"""
    engine = await make_engine(patient, start=BEGIN)
    await engine.schedules.put("s", patient, every=HOUR, overlap=overlap)
    await engine.advance(3 * HOUR)
    found = {run.id[-7:-5]: str(run.status) for run in await engine.runs()}
    assert found == statuses
    oldest_open = min(run.id for run in await engine.runs(status="suspended"))
    await engine.get(oldest_open).send("word")
    await engine.get(oldest_open).result()
    await engine.advance(HOUR)
    assert await engine.get("s:20260301T040000Z").status() is Status.SUSPENDED


async def test_a_paused_run_still_counts_as_open_for_the_next_tick(make_engine):
    """S0-54 Somebody paused it to look at it: no second one may begin beside it."""
    engine = await make_engine(patient, start=BEGIN)
    await engine.schedules.put("s", patient, every=HOUR)
    await engine.advance(HOUR)
    await engine.get("s:20260301T010000Z").pause()
    await engine.advance(2 * HOUR)
    assert await runs_of(engine, "s") == ["20260301T010000Z"]


# By hand.


async def test_a_paused_schedule_starts_nothing_until_it_is_resumed(make_engine):
    """S0-54 What it passed meanwhile is over; a backfill brings it back."""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, every=HOUR)
    await engine.advance(HOUR)
    assert (await engine.schedules.pause("s", by="kim")).paused
    await engine.advance(3 * HOUR + HOUR / 2)
    assert await runs_of(engine, "s") == ["20260301T010000Z"]
    assert (await engine.schedules.resume("s", by="kim")).next_at == BEGIN + 5 * HOUR
    await engine.advance(HOUR)
    assert await runs_of(engine, "s") == ["20260301T010000Z", "20260301T050000Z"]
    assert [(record.actor, record.action, record.target) for record in await engine.audit.records()] == [
        ("engine", "schedule.put", "s"),
        ("kim", "schedule.pause", "s"),
        ("kim", "schedule.resume", "s"),
    ]


async def test_a_backfill_starts_what_has_no_run_yet_and_nothing_the_second_time(make_engine):
    """S0-54 G2"""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, "west", every=HOUR)
    await engine.advance(HOUR)
    early, now = BEGIN - 2 * HOUR, BEGIN + HOUR
    started = await engine.schedules.backfill("s", early, now + DAY)
    assert started == ["s:20260228T220000Z", "s:20260228T230000Z", "s:20260301T000000Z"]
    assert await engine.schedules.backfill("s", early, now + DAY) == []
    assert [await engine.get(id).result() for id in started] == ["west 1"] * 3


@anywhere
async def test_past_ticks_say_which_have_a_run_and_why_others_have_none(make_engine):
    engine = await make_engine(patient, start=BEGIN)
    await engine.schedules.put("s", patient, cron="0 * * * *", overlap="skip")
    await engine.advance(3.5 * HOUR)
    await engine.schedules.pause("s")
    await engine.get("s:20260301T010000Z").send("word", 1)
    await engine.advance(2 * HOUR)
    engine.store.clock = engine.clock
    ticks = await LocalDesk(engine.store).past_ticks("s")
    assert [(each.run, each.status) for each in ticks] == [
        ("s:20260301T010000Z", "completed"), *((f"s:20260301T0{hour}0000Z", "") for hour in (2, 3, 4, 5)),
    ]  # fmt: skip
    assert [each.note.partition(":")[0] for each in ticks] == ["", "skipped", "skipped", "missed", "missed"]
    assert ticks[1].note == "skipped: s:20260301T010000Z was still open"


async def test_a_backfill_starts_no_run_that_was_purged_and_says_so_before(make_engine):
    """FACES 10, line 9: what a dry run says is what is done; ids of purged runs are not used again."""
    engine = await make_engine(patient, start=BEGIN)
    await engine.schedules.put("s", patient, cron="0 * * * *", overlap="allow")
    await engine.advance(2.5 * HOUR)
    await engine.get("s:20260301T010000Z").send("word", 1)
    await engine.settle()
    engine.store.clock = engine.clock
    now = engine.clock.now()
    await engine.store.apply([Purge(what="completed", before=now + 1, at=now, keep_ids=now + micros(HOUR))])
    end = to_datetime(now)
    ticks = await LocalDesk(engine.store).past_ticks("s", end - 4 * HOUR, end)
    assert [each.status for each in ticks] == ["", "", "purged", "suspended"]
    started = await engine.schedules.backfill("s", end - 4 * HOUR, end)
    assert started == [each.run for each in ticks if not each.status]


@shared
async def test_a_backfill_asked_for_twice_at_once_starts_each_run_once(make_engine):
    """S0-54 G2 Two people, two engines: each run is in the answer of one of them."""
    first = await make_engine(report, start=BEGIN)
    second = await make_engine(report, clock=first.jumping)
    await first.schedules.put("s", report, every=HOUR)
    answers = await asyncio.gather(
        *(engine.schedules.backfill("s", BEGIN - DAY, BEGIN) for engine in (first, second, first))
    )
    started = [id for answer in answers for id in answer]
    assert len(started) == len(set(started)) == 24
    await eventually(lambda: _ended(first, 24))


async def test_a_run_may_be_triggered_outside_the_timetable(make_engine):
    """S0-54 Even while the schedule is paused; the timetable does not move."""
    engine = await make_engine(report, start=BEGIN)
    before = await engine.schedules.put("s", report, "east", every=HOUR)
    await engine.schedules.pause("s")
    id = await engine.schedules.trigger("s", by="kim")
    run = engine.get(id)
    assert await run.result() == "east 1"
    assert [each.id for each in await engine.runs(actor="schedule:s")] == [id]
    assert (await engine.schedules.get("s")).next_at == before.next_at


async def test_a_run_started_by_hand_is_audited(make_engine):
    """S3-19 GUARANTEES 5 Whoever lets a schedule run out of turn is on record."""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, every=HOUR)
    await engine.schedules.trigger("s", by="kim")
    await engine.schedules.backfill("s", BEGIN - HOUR, BEGIN, by="lee")
    said = [(record.actor, record.action) for record in await engine.audit.records()]
    assert said[1:] == [("kim", "schedule.trigger"), ("lee", "schedule.backfill")]
    assert len(await engine.runs(actor="schedule:s")) == 2


async def test_a_deleted_schedule_starts_nothing_more_and_its_runs_go_on(make_engine):
    """S0-54"""
    engine = await make_engine(patient, start=BEGIN)
    await engine.schedules.put("s", patient, every=HOUR, overlap="allow")
    await engine.advance(HOUR)
    await engine.schedules.delete("s")
    await engine.advance(DAY)
    run = engine.get("s:20260301T010000Z")
    await run.send("word", "still here")
    assert await run.result() == "still here"
    assert await engine.schedules.list() == []
    with pytest.raises(NoSuchSchedule, match="'s'"):
        await engine.schedules.trigger("s")


async def test_a_schedule_declared_at_every_start_of_the_service_stays_as_it_is(make_engine):
    """S0-54 Its next tick does not move, it stays paused, and nothing is put on record twice."""
    engine = await make_engine(report, start=BEGIN)
    first = await engine.schedules.put("s", report, every=HOUR)
    await engine.schedules.pause("s")
    await engine.advance(HOUR / 2)
    again = await engine.schedules.put("s", report, every=HOUR)
    assert (again.next_at, again.paused) == (first.next_at, True)
    changed = await engine.schedules.put("s", report, "south", every=HOUR)
    assert (changed.next_at, changed.paused, changed.input) == (first.next_at, True, {"region": "south", "pages": 1})
    assert [record.action for record in await engine.audit.records()] == [
        "schedule.put",
        "schedule.pause",
        "schedule.put",
    ]


@shared
async def test_a_pause_is_not_undone_by_a_schedule_that_is_put_meanwhile(make_engine):
    """S0-54 S0-60 Two people at once: what was acknowledged to one is not undone by the other."""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, every=HOUR)
    await engine.settle()
    meanwhile = engine.faults.call(lambda: engine.schedules.pause("s"), at="schedules", moment="after")
    await engine.schedules.put("s", report, "south", every=HOUR)
    assert meanwhile.injected == 1
    seen = await engine.schedules.get("s")
    assert (seen.paused, seen.input["region"]) == (True, "south")


@shared
async def test_a_change_is_not_undone_by_a_pause_made_meanwhile(make_engine):
    """S0-54 S0-60 The other way round."""
    engine = await make_engine(report, start=BEGIN)
    await engine.schedules.put("s", report, every=HOUR)
    await engine.settle()
    meanwhile = engine.faults.call(
        lambda: engine.schedules.put("s", report, "south", every=HOUR), at="schedules", moment="after"
    )
    await engine.schedules.pause("s")
    assert meanwhile.injected == 1
    seen = await engine.schedules.get("s")
    assert (seen.paused, seen.input["region"]) == (True, "south")


# What makes no sense.


@anywhere
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"cron": "61 * * * *"}, "cron.*bad minute"),
        ({"cron": "* * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "@reboot"}, "cron.*@daily"),
        ({"every": timedelta(0)}, "every"),
        ({"every": -HOUR}, "every"),
        ({"every": 60}, "every"),
        ({}, "cron, every"),
        ({"every": HOUR, "cron": "@daily"}, "cron, every.*both"),
        ({"cron": "@daily", "timezone": "Europe/Berlinn"}, "timezone.*Europe/Berlin"),
        ({"every": HOUR, "jitter": DAY}, "jitter"),
        ({"every": HOUR, "overlap": "maybe"}, "overlap"),
        ({"every": HOUR, "catch_up": "some"}, "catch_up"),
        ({"every": HOUR, "starting": datetime(2026, 1, 1)}, "starting.*time zone"),  # noqa: DTZ001  # under test
        ({"every": HOUR, "starting": BEGIN, "until": BEGIN - HOUR}, "until"),
    ],
)
async def test_a_timetable_that_makes_no_sense_is_refused_by_its_field(make_engine, fields, named):
    """GUARANTEES 6.16 InvalidSchedule at the call; nothing is stored."""
    engine = await make_engine(report)
    with pytest.raises(InvalidSchedule, match=named):
        await engine.schedules.put("s", report, **fields)
    assert await engine.schedules.list() == []


@anywhere
async def test_arguments_that_do_not_fit_the_workflow_are_refused(make_engine):
    """GUARANTEES 6.14 6.12 When the schedule is made, not at two in the morning."""
    engine = await make_engine(report)
    with pytest.raises(BadInput, match="pages"):
        await engine.schedules.put("s", report, "north", "three", every=HOUR)
    with pytest.raises(BadInput, match="page"):
        await engine.schedules.put("s", report, page=1, every=HOUR)
    with pytest.raises(UnknownWorkflow, match="'report'"):
        await engine.schedules.put("s", "reprot", every=HOUR)
    assert await engine.schedules.list() == []


@anywhere
async def test_a_parameter_named_like_a_part_of_the_timetable_is_never_swallowed(make_engine):
    """GUARANTEES 6.14 `until` of a workflow is not the end of its schedule."""

    @workflow
    async def export(ctx: Context, until: str | None = None) -> None: ...

    engine = await make_engine(export)
    with pytest.raises(BadInput, match=r"'until'.*position"):
        await engine.schedules.put("s", export, every=HOUR, until=BEGIN + DAY)
