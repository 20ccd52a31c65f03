"""Time that passes in a test engine while bodies of steps run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from tests.support.acts_cases import Gate

from holdfast import Context, Status, workflow
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)


async def test_time_passes_while_a_step_runs() -> None:
    """Timers beside it fire, in order; the body is left alone, and its result counts when it comes."""
    gate, noted = Gate(), list[int]()

    @workflow
    async def work(ctx: Context) -> str:
        async def clock() -> None:
            for hour in range(1, 4):
                await ctx.sleep(HOUR)
                noted.append(hour)

        said, _ = await asyncio.gather(ctx.step(gate, "body"), clock())
        return f"{said} after {noted[-1]} hours"

    async with TestEngine(workflows=[work]) as engine:
        run = await engine.start(work)
        await gate.entered("body")
        before = engine.clock.now()
        await engine.advance(HOUR)
        assert noted == [1]
        await engine.advance(2 * HOUR)
        assert (noted, engine.bodies) == ([1, 2, 3], 1)
        assert engine.clock.now() - before == 3 * 3_600_000_000
        assert await run.status() is Status.RUNNING
        gate.open("body")
        assert await run.result() == "body after 3 hours"


async def test_a_step_that_ends_in_a_moment_has_ended_when_time_passes() -> None:
    """What it leads to is asked for at the time it had then, also where another body takes for ever."""
    gate = Gate()

    async def quick(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    @workflow
    async def slow(ctx: Context) -> str:
        return await ctx.step(gate, "slow")

    @workflow
    async def naps(ctx: Context) -> float:
        begun = ctx.now()
        for number in range(3):
            await ctx.step(quick, number)
            await ctx.sleep(HOUR)
        return (ctx.now() - begun) / HOUR

    async with TestEngine(workflows=[slow, naps]) as engine:
        await engine.start(slow)
        await gate.entered("slow")
        run = await engine.start(naps)
        await engine.advance(3 * HOUR)
        assert await run.status() is Status.COMPLETED
        assert (await run.describe()).output == 3.0
        gate.open("slow")
