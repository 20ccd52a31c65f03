"""The shortest proof that the parts work together."""

from __future__ import annotations

from datetime import timedelta

from holdfast import Context, workflow


async def add_one(number: int) -> int:
    return number + 1


@workflow
async def count(ctx: Context, to: int) -> int:
    number = 0
    while number < to:
        number = await ctx.step(add_one, number)
        await ctx.sleep(timedelta(days=30))
    return number


async def test_a_workflow_with_steps_and_month_long_sleeps_runs_to_its_end(make_engine):
    """S1-1 S2-21 Steps are recorded, sleeps are durable timers, and the test clock jumps over them."""
    engine = await make_engine(count)
    before = engine.clock.now()
    assert await engine.execute(count, 3) == 3
    assert engine.clock.now() - before >= 90 * 86_400 * 1_000_000
