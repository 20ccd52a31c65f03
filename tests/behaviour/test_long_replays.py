"""A long history is replayed in slices: meanwhile the worker's loop, other runs and callers go on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, workflow

STEPS = 100
BURN = 0.002


class Burner:
    """Code that takes a while after each step when it is replayed, however fast the machine is."""

    def __init__(self) -> None:
        self.on = False
        self.burnt = 0

    def __call__(self) -> None:
        if self.on:
            self.burnt += 1
            end = time.perf_counter() + BURN
            while time.perf_counter() < end:
                pass


async def echo(x: int) -> int:
    return x


def long_workflow(burner: Burner) -> Any:
    @workflow(check=False)
    async def long(ctx: Context) -> int:
        total = 0
        ctx.on_query("total", lambda: total)
        for x in range(STEPS):
            total += await ctx.step(echo, x)
            burner()
        await ctx.receive("go")
        return total

    return long


@workflow
async def short(ctx: Context, x: int) -> int:
    return await ctx.step(echo, x)


async def replaying(make_engine: Any, burner: Burner) -> Any:
    """Return an engine that is about to replay a long run, which then ends."""
    long = long_workflow(burner)
    engine = await make_engine(long, short)
    run = await engine.start(long, id="long")
    await eventually(lambda: _waits(run))
    await engine.stop()
    burner.on = True
    engine = await make_engine(long, short)
    await engine.get("long").send("go")
    return engine


async def rounds_during(burner: Burner) -> tuple[int, int]:
    """Count the rounds of the event loop between the first and the last fact that is replayed."""
    await eventually(lambda: burner.burnt)
    rounds, slices, before = 0, 0, burner.burnt
    while burner.burnt < STEPS:
        await asyncio.sleep(0)
        rounds += 1
        slices += burner.burnt > before
        before = burner.burnt
    return rounds, slices


@pytest.mark.parametrize("mode", ["file"])
async def test_the_event_loop_gets_its_round_while_a_long_history_is_replayed(make_engine):
    """At least every few facts of 2 ms each, counted; another run is started and completed meanwhile."""
    burner = Burner()
    engine = await replaying(make_engine, burner)
    _rounds, slices = await rounds_during(burner)
    assert slices >= STEPS * BURN / 0.01 / 2
    assert await engine.execute(short, 7) == 7
    assert await engine.get("long").result() == sum(range(STEPS))
    assert burner.burnt == STEPS


@pytest.mark.parametrize("mode", ["file"])
async def test_other_runs_go_on_while_a_long_history_is_replayed(make_engine):
    """One that is started after the replay began has ended before it is over."""
    burner = Burner()
    engine = await replaying(make_engine, burner)
    await eventually(lambda: burner.burnt)
    assert await engine.execute(short, 7) == 7
    assert burner.burnt < STEPS
    assert await engine.get("long").result() == sum(range(STEPS))


@pytest.mark.parametrize("mode", ["file"])
async def test_a_query_that_replays_a_long_history_lets_the_loop_have_its_rounds(make_engine):
    """B28 The run is not in memory: only the answer is wanted of it."""
    burner = Burner()
    long = long_workflow(burner)
    engine = await make_engine(long, short, max_resident=0)
    run = await engine.start(long, id="long")
    await eventually(lambda: _waits(run))
    burner.on = True
    asking = asyncio.create_task(run.query("total"))
    _, slices = await rounds_during(burner)
    assert slices >= STEPS * BURN / 0.01 / 2
    assert await asking == sum(range(STEPS))


async def _waits(run: Any) -> bool:
    return (await run.describe()).waiting_for.startswith("message")
