"""Clocks that jump: forward while the machine slept, or back between two workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, Retry, Status, activity, workflow

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


async def test_a_timer_of_a_run_in_memory_fires_within_a_second_of_a_jump_of_the_clock(make_engine):
    """G9 The machine slept, or its clock was set: nobody tells the engine, which waits on another clock."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))

    engine = await make_engine(work, max_resident=10)
    run = await engine.start(work)
    await engine.settle()
    engine.jumping.advance(timedelta(hours=2))
    await eventually(lambda: over(run))  # result() would tell the engine


async def test_the_time_of_a_run_does_not_go_back_with_the_clock(make_engine):
    """G9 S2-27 The next worker's clock is behind what the last one recorded: history goes on from there."""
    hour = timedelta(hours=1)

    @activity(retry=Retry(max_attempts=None, initial_interval=hour, coefficient=1.0))
    async def hopeless() -> None:
        raise OSError("not yet")

    @workflow
    async def work(ctx: Context) -> datetime:
        trying: Any = ctx.step(hopeless)
        await ctx.receive("enough")
        trying.cancel()
        return ctx.now()

    start = datetime(2030, 1, 1, tzinfo=UTC)
    engine = await make_engine(work, start=start)
    await engine.start(work, id="r")
    await engine.advance(3 * hour)
    await engine.stop()
    engine = await make_engine(work, start=start + hour)
    await engine.get("r").send("enough")
    assert await engine.get("r", work).result() >= start + 3 * hour
    row = await engine.store.get("r")
    times = [entry.at for entry in await engine.store.history(row.key)]
    assert times == sorted(times)


async def test_a_timer_of_any_run_passed_by_a_jump_of_the_clock_fires_within_a_second(make_engine):
    """G9 The machine slept, or its clock was set: nobody tells the engine, which waits on another clock."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    engine.jumping.advance(timedelta(hours=2))
    await eventually(lambda: over(run))  # result() would tell the engine


async def test_a_message_from_a_process_whose_clock_was_ahead_is_taken_once_the_clocks_agree(make_engine):
    """G7 G9 The worker looks again by itself, though nothing changes meanwhile."""

    @workflow
    async def work(ctx: Context) -> Any:
        return await ctx.receive("word")

    start = datetime(2030, 1, 1, tzinfo=UTC)
    engine = await make_engine(work, start=start, max_resident=10, lease=timedelta(hours=1))
    run, other = await engine.start(work), await engine.start(work)
    await engine.settle()
    ahead = await make_engine(work, start=start + timedelta(seconds=10), run_workflows=False)
    beside = await make_engine(work, clock=engine.jumping, run_workflows=False)
    await ahead.get(run.id).send("word", 7)
    await beside.get(other.id).send("word", 7)
    await eventually(lambda: over(other))  # so the worker has looked
    assert await run.status() is Status.SUSPENDED
    engine.jumping.advance(timedelta(seconds=20))
    await eventually(lambda: over(run))


async def over(run: Any) -> bool:
    return await run.status() is Status.COMPLETED
