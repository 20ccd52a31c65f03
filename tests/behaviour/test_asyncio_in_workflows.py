"""Plain asyncio in workflow code, on a real engine: durable, replayed alike, and without I/O."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.behaviour.instants import same
from tests.support.waiting import LONG

from holdfast import Context, Engine, RunFailed, workflow
from holdfast.errors import NonDeterministic, RunBlocked

HOUR = timedelta(hours=1)
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")


async def double(number: int) -> int:
    return number * 2


async def test_gather_task_group_queue_and_timeout_work_across_days(make_engine):
    """S1-1 Each wait is durable; in always-evict mode every one of them is a replay."""

    @workflow
    async def busy(ctx: Context) -> list[Any]:
        queue: asyncio.Queue[int] = asyncio.Queue()
        seen: list[Any] = []

        async def produce(number: int) -> None:
            await asyncio.sleep(86_400 * number)
            await queue.put(await ctx.step(double, number))

        async def consume() -> None:
            while len(seen) < 3:
                seen.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for number in (3, 1, 2):
                group.create_task(produce(number))
        seen.append(await asyncio.gather(*(ctx.step(double, number) for number in range(3))))
        try:
            async with asyncio.timeout(3600):
                await ctx.receive("never")
        except TimeoutError:
            seen.append("timeout")
        return seen

    engine = await make_engine(busy)
    before = engine.clock.now()
    assert await engine.execute(busy) == [2, 4, 6, [0, 2, 4], "timeout"]
    assert engine.clock.now() - before >= (3 * 86_400 + 3600) * 1_000_000


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_sleep_of_asyncio_survives_a_restart_and_is_not_shortened(make_engine):
    """S1-15 S1-16"""

    @workflow
    async def naps(ctx: Context) -> list[float]:
        times = []
        for _ in range(3):
            began = ctx.now()
            await asyncio.sleep(7200)
            times.append((ctx.now() - began).total_seconds())
        return times

    engine = await make_engine(naps)
    await engine.start(naps, id="n-1")
    for _ in range(5):
        await engine.advance(HOUR)
        clock = engine.jumping
        await engine.stop()
        engine = await make_engine(naps, clock=clock)
    naps_taken = [timedelta(seconds=seconds) for seconds in await engine.get("n-1").result()]
    assert len(naps_taken) == 3
    assert all(same(engine, nap, 2 * HOUR) for nap in naps_taken)


async def test_a_step_given_up_by_wait_for_is_stopped(make_engine):
    started, stopped = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @workflow
    async def impatient(ctx: Context) -> str:
        try:
            await asyncio.wait_for(ctx.step(hang), 60)
        except TimeoutError:
            return "gave up"
        return "never"

    engine = await make_engine(impatient)
    run = await engine.start(impatient)
    await asyncio.wait_for(started.wait(), LONG)
    engine.jumping.advance(HOUR)
    assert await run.result() == "gave up"
    await asyncio.wait_for(stopped.wait(), LONG)


async def test_a_run_does_not_see_context_variables_of_whoever_started_it(make_engine):
    @workflow
    async def looks(ctx: Context) -> str:
        before = REQUEST.get()
        await ctx.sleep(HOUR)
        return f"{before} {REQUEST.get()}"

    engine = await make_engine(looks)
    REQUEST.set("a web request")
    assert await engine.execute(looks) == "none none"


@pytest.mark.parametrize("swallow", [False, True], ids=["raised", "swallowed"])
async def test_io_in_workflow_code_blocks_the_run_with_file_and_line(make_engine, swallow):
    """S1-1 Also where the code swallows the error."""

    @workflow(check=False)
    async def fetches(ctx: Context) -> str:
        await ctx.step(double, 1)
        try:
            await asyncio.open_connection("localhost", 1)
        except Exception:
            if not swallow:
                raise
        return "never"

    engine = await make_engine(fetches)
    run = await engine.start(fetches)
    with pytest.raises(RunBlocked, match=r"test_asyncio_in_workflows.py:\d+: this is I/O: put it in a step"):
        await run.result()


async def test_a_stuck_run_and_a_busy_one_are_blocked_and_others_go_on(make_engine):
    @workflow
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    @workflow
    async def spins(ctx: Context) -> None:
        while True:  # noqa: ASYNC110  # the very thing under test
            await asyncio.sleep(0)

    @workflow
    async def fine(ctx: Context) -> int:
        return await ctx.step(double, 4)

    engine = await make_engine(stuck, spins, fine)
    runs = [await engine.start(each) for each in (stuck, spins, fine)]
    with pytest.raises(RunBlocked, match="nothing can bring about"):
        await runs[0].result()
    with pytest.raises(RunBlocked, match="never waits for anything durable"):
        await runs[1].result()
    assert await runs[2].result() == 8


async def test_exit_in_workflow_code_fails_that_run_and_no_other(make_engine):
    @workflow
    async def exits(ctx: Context) -> None:
        await ctx.step(double, 1)
        raise SystemExit("enough")

    @workflow
    async def fine(ctx: Context) -> int:
        return await ctx.step(double, 4)

    engine = await make_engine(exits, fine)
    run, other = await engine.start(exits), await engine.start(fine)
    with pytest.raises(RunFailed, match="enough"):
        await run.result()
    assert await other.result() == 8


async def test_clocks_and_dice_are_refused_when_the_engine_is_made():
    @workflow
    async def clocked(ctx: Context) -> float:
        return time.time()

    with pytest.raises(NonDeterministic, match=r"test_asyncio_in_workflows.py:\d+; use ctx.now\(\)"):
        Engine(":memory:", workflows=[clocked])


async def test_an_abandoned_generator_is_closed_inside_its_run(make_engine):
    """Its clean-up steps are steps of the run, not callbacks of the worker's loop."""

    @workflow
    async def reads(ctx: Context) -> list[int]:
        async def numbers() -> Any:
            try:
                for number in range(5):
                    yield await ctx.step(double, number)
            finally:
                closed.append(await ctx.step("close", double, 21))

        closed: list[int] = []
        async for number in numbers():
            if number == 4:
                break
        await ctx.sleep(HOUR)
        return closed

    engine = await make_engine(reads)
    assert await engine.execute(reads) == [42]


async def test_async_generators_of_the_application_are_closed_by_its_own_loop(make_engine):
    """Turns of runs on the same thread leave them alone, and those of runs to their runs."""
    closed: list[str] = []

    async def numbers(name: str):
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    async def first_of(name: str) -> int:
        async for number in numbers(name):
            return number
        return -1

    @workflow(check=False)
    async def peek(ctx: Context) -> int:
        first = await first_of("run")
        await ctx.step(step_that_peeks)
        return first

    async def step_that_peeks() -> int:
        return await first_of("step")

    engine = await make_engine(peek)
    assert await first_of("before") == 0
    assert await engine.execute(peek) == 0
    assert await first_of("after") == 0
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert set(closed) == {"before", "run", "step", "after"}
