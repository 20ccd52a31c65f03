"""Runs are listed and counted, and started by the calendar, by the server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from holdfast import Context, RunCancelled, RunFailed, workflow
from holdfast.errors import BadInput, InvalidSchedule, NoSuchSchedule, NotOffered

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share


@workflow
async def report(ctx: Context, of: str) -> str:
    return f"report of {of}"


async def test_runs_are_chosen_by_what_they_are(make_engine):
    engine = await make_engine(flows.count, flows.saga, flows.parent, flows.kid, flows.lives)
    done = [
        await engine.start(flows.count, n, id=f"count-{n}", attributes={"n": n, "of": f'"{n}"\\ ü'}, actor="kim")
        for n in (1, 2)
    ]
    failed = await engine.start(flows.saga, True, id="failed", tenant="north")
    cancelled = await engine.start(flows.saga, False, id="cancelled")
    open_one = await engine.start(flows.saga, False, id="open", unique_key=None)
    lives = await engine.start(flows.lives, 1, id="lives")
    await engine.execute(flows.parent, id="family")
    for run in (*done, lives):
        await run.result()
    with pytest.raises(RunFailed):
        await failed.result()
    await cancelled.cancel()
    with pytest.raises(RunCancelled):
        await cancelled.result()

    async def ids(**which: object) -> list[str]:
        return [run.id for run in await engine.runs(**which)]

    async def all_there() -> bool:
        stats = await engine.stats()
        return (stats["completed"], stats["failed"], stats["cancelled"], stats["running"]) == (6, 2, 1, 1)

    await eventually(all_there)
    assert await ids(workflow="count") == ["count-2", "count-1"]
    assert await ids(attributes={"n": 2}) == await ids(attributes={"of": '"2"\\ ü'}) == ["count-2"]
    assert (await done[1].describe()).attributes == {"n": 2, "of": '"2"\\ ü'}
    assert await ids(actor="kim") == ["count-2", "count-1"]
    assert await ids(tenant="north", status="failed") == ["failed"]
    assert await ids(status="cancelled") == ["cancelled"]
    assert await ids(status="suspended") == ["open"]
    assert await ids(workflow="lives") == ["lives"]
    assert len(await ids(parent="family")) == 3
    assert len(await ids()) == 10
    newest = await engine.runs(limit=3)
    assert len(newest) == 3
    rest = await engine.runs(before=newest[-1])
    assert [*(run.id for run in newest), *(run.id for run in rest)] == await ids()
    with pytest.raises(BadInput, match="runs cannot be chosen by colour"):
        await engine.runs(colour="red")
    await open_one.terminate()
    without = await make_engine(flows.count, tags=False, run_workflows=False)
    with pytest.raises(NotOffered, match="search attribute"):
        await without.runs(attributes={"n": 1})


async def test_a_schedule_starts_runs_by_the_calendar(make_engine):
    engine = await make_engine(report)
    schedules = engine.schedules
    put = await schedules.put("often", report, "sales", every=timedelta(seconds=1))
    assert (put.workflow, put.every, put.paused, put.input) == ("report", timedelta(seconds=1), False, {"of": "sales"})
    again = await schedules.put("often", report, "sales", every=timedelta(seconds=1))
    assert (again.starting, again.updated_at) == (put.starting, put.updated_at)

    async def first() -> str | None:
        return (await schedules.get("often")).last_run

    run = engine.get(await eventually(first), report)
    assert await run.result() == "report of sales"
    assert (await run.describe()).actor == "schedule:often"
    paused = await schedules.pause("often", by="kim", reason="too often")
    assert paused.paused
    changed = await schedules.put("often", report, "returns", every=timedelta(hours=1))
    assert (changed.paused, changed.every, changed.input) == (True, timedelta(hours=1), {"of": "returns"})
    assert not (await schedules.resume("often")).paused
    assert await engine.get(await schedules.trigger("often"), report).result() == "report of returns"
    await schedules.delete("often")
    for missing_one in (schedules.get, schedules.delete, schedules.pause, schedules.trigger):
        with pytest.raises(NoSuchSchedule, match="there is no schedule 'often'"):
            await missing_one("often")


async def test_past_ticks_are_filled_once(make_engine):
    engine = await make_engine(report)
    schedules = engine.schedules
    nightly = await schedules.put("nightly", report, "sales", cron="30 2 * * *", timezone="Europe/Berlin")
    assert nightly.next_at is not None
    assert (nightly.next_at.minute, nightly.catch_up, nightly.overlap) == (30, "latest", "skip")
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 4, tzinfo=UTC)
    ids = [f"nightly-2026-01-0{day}T01:30:00Z" for day in (1, 2, 3)]
    assert await schedules.backfill("nightly", start, end) == ids
    assert await schedules.backfill("nightly", start, end) == []
    assert await engine.get(ids[0], report).result() == "report of sales"
    assert [tick.at for tick in await schedules.preview("nightly", 1)] == [nightly.next_at]
    with pytest.raises(BadInput, match="more than 1 ticks"):
        await schedules.backfill("nightly", start, end, 1)

    async def listed() -> bool:
        return [each.id for each in await schedules.list()] == ["nightly"]

    await eventually(listed)


async def test_timetables_that_mean_nothing_are_refused(make_engine):
    engine = await make_engine(report, run_workflows=False)
    with pytest.raises(InvalidSchedule, match="whole number of seconds"):
        await engine.schedules.put("fast", report, "x", every=timedelta(milliseconds=1500))
    with pytest.raises(InvalidSchedule):
        await engine.schedules.put("odd", report, "x", cron="61 * * * *")
    await engine.schedules.put("seconds", report, "x", cron="5 * * * * *", overlap="cancel", catch_up="all")
    await engine.schedules.put("daily", report, "x", cron="@daily", overlap="allow", catch_up="none")
