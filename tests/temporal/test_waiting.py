"""What waits keeps its time: a run that begins later, an attempt that waits for a place."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal import flows
from tests.temporal.server import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from temporalio.api.enums.v1 import EventType

from holdfast import Context, RunCancelled, Status, activity, workflow
from holdfast.limits import Limit

pytestmark = pytest.mark.leaves("process")  # the server that the tests of the file share
HOUR = timedelta(hours=1)
running: list[str] = []


@activity(limit="narrow", timeout=timedelta(seconds=5))
async def alone(name: str) -> int:
    running.append(name)
    await eventually(lambda: "free" in running)
    return running.index(name)


@workflow
async def through(ctx: Context, name: str) -> int:
    return await ctx.step(alone, name)


@workflow
async def beside(ctx: Context) -> str:
    return await ctx.step(flows.mark, "beside")


async def test_a_run_that_is_sent_something_before_its_time_begins_at_its_time(make_engine):
    """G7 S3-16"""
    engine = await make_engine()
    run = await engine.start(flows.waiting_kid, delay=timedelta(seconds=3))
    await run.send("go", "early")
    assert await run.result() == "early"
    ended = await run.describe()
    assert ended.ended_at >= ended.created_at + timedelta(seconds=3)


async def test_a_run_that_is_cancelled_before_its_time_ends_at_once(make_engine):
    """B7 Whether or not it was sent something, which brings its first task."""
    engine = await make_engine()
    runs = [await engine.start(flows.cleaning, delay=HOUR) for _ in range(2)]
    await runs[1].send("word", "early")
    for run in runs:
        seen = await run.describe()
        assert (seen.status, seen.due_at) == (Status.PENDING, seen.created_at + HOUR)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert await run.history() == []
    assert datetime.now(UTC) < (await runs[0].describe()).created_at + HOUR


async def test_attempts_that_wait_for_a_limit_keep_no_place_and_no_server_gives_them_up(make_engine):
    """S4-19 With two places in all one waits: another step runs; its own timeout counts from its body's beginning."""
    running.clear()
    limit = Limit(name="narrow", at_once=1, scope="engine")
    engine = await make_engine(through, beside, limits=[limit], max_steps=2)
    runs = [await engine.start(through, name) for name in "abc"]
    await eventually(lambda: len(running) == 1)
    assert await engine.execute(beside) == "beside"
    assert len(running) == 1
    running.append("free")
    assert sorted(await asyncio.gather(*(run.result() for run in runs))) == [0, 2, 3]
    scheduled = EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
    async for event in engine._client.handle(runs[0].id).fetch_history_events():
        if event.event_type == scheduled:
            longest = event.activity_task_scheduled_event_attributes.start_to_close_timeout.ToTimedelta()
            assert longest > timedelta(days=365)


@workflow(queue="late")
async def late_kid(ctx: Context) -> str:
    return await ctx.step(flows.mark, "never")


@workflow
async def parent_of_late_kid(ctx: Context) -> str:
    failed: Any = await ctx.child(late_kid, propagate=False)
    return f"{type(failed).__name__} {failed.status}"


async def test_a_child_that_is_cancelled_before_any_worker_had_it_is_told_to_its_parent(make_engine):
    """B7 B18 It runs no code, so it tells nobody itself."""
    engine = await make_engine(parent_of_late_kid, late_kid)
    parent = await engine.start(parent_of_late_kid)
    child = engine.get(f"{parent.id}:late_kid")
    await eventually(lambda: engine.find(child.id))
    assert await child.status() is Status.PENDING
    assert await child.cancel()
    await make_engine(late_kid, queues=["late"])
    assert await parent.result() == "ChildFailed cancelled"
    assert await child.status() is Status.CANCELLED
