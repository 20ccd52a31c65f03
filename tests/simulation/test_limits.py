"""Shared limits in a world where workers are killed, stopped and replaced while operators pause and cancel.

What is judged is what the bodies themselves wrote down: how many were inside at any moment, over all workers and for
each key. A worker that is killed here takes its bodies with it, so nothing may ever run above the limit. In the end
every step has begun, and no place is left taken.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, Retry, Status, activity, workflow
from holdfast.clock import Clock
from holdfast.errors import HoldfastError, RetryAfter
from holdfast.limits import Limit
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.invariants import violations

RUNS = 24
LIMITS = [
    Limit(name="whole", at_once=3, per_key_at_once=2),
    Limit(name="paced", rate=20, per=timedelta(milliseconds=100)),
    Limit(name="one", at_once=1, trip_after=3, cool_down=timedelta(milliseconds=50)),
]
ALLOWED = {"whole": 3, "one": 1}


class World:
    """Workers on one file, and what the bodies of their steps wrote down."""

    def __init__(self, seed: int, path: Path) -> None:
        self.random = Random(seed)
        self.path = path
        self.inside: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.bodies = 0
        self.engines: list[TestEngine] = []
        self.workflow = self._workflow()

    def _workflow(self) -> Any:
        random = self.random

        async def stay(*names: str) -> None:
            for name in names:
                self.inside[name] += 1
                self.most[name] = max(self.most[name], self.inside[name])
            self.bodies += 1
            try:
                await asyncio.sleep(random.choice([0, 0.001, 0.005]))
                if random.random() < 0.05:
                    raise RetryAfter(timedelta(milliseconds=random.randrange(20)), "429")
                if random.random() < 0.1:
                    raise ConnectionError("down")
            finally:
                for name in names:
                    self.inside[name] -= 1

        retry = Retry(max_attempts=None, initial_interval=timedelta(milliseconds=5), coefficient=1.0)

        @activity(limit="whole", limit_key=lambda tenant: tenant, retry=retry)
        async def shared(tenant: str) -> None:
            await stay("whole", f"whole/{tenant}")

        @activity(limit="whole", limit_key=lambda tenant: tenant, retry=retry, queue="far")
        async def taken(tenant: str) -> None:
            await stay("whole", f"whole/{tenant}")

        @activity(limit="paced", retry=retry)
        async def paced() -> None:
            await stay("paced")

        @activity(limit="one", retry=retry)
        async def alone() -> None:
            await stay("one")

        @workflow
        async def several(ctx: Context, number: int) -> int:
            await ctx.step(shared, f"t{number % 3}")
            await asyncio.gather(ctx.step(paced), ctx.step("more", shared, f"t{number % 2}"))
            await asyncio.gather(ctx.step(alone), ctx.step(taken, f"t{number % 3}"))
            return number

        return several

    async def open(self, stack: AsyncExitStack) -> None:
        engine = TestEngine(
            str(self.path), workflows=[self.workflow], limits=LIMITS, clock=RealTime(),
            queues=["default", "far"],
            max_steps=self.random.choice([2, 8]), max_resident=self.random.choice([0, 3, 1000]),
            stop_grace=timedelta(milliseconds=5), lease=timedelta(seconds=30),
        )  # fmt: skip
        await stack.enter_async_context(engine)
        self.engines.append(engine)

    async def trouble(self, stack: AsyncExitStack) -> None:
        """Do something to the workers, the limits or a run."""
        what = self.random.randrange(10)
        engine = self.random.choice(self.engines)
        try:
            if what < 3 and len(self.engines) > 1:
                self.engines.remove(engine)
                await (engine.crash() if what < 2 else engine.stop())
                await self.open(stack)
            elif what < 5:
                name = self.random.choice(LIMITS).name
                await engine.limits.pause(name)
                await asyncio.sleep(0.01)
                await engine.limits.resume(name)
            else:
                run = engine.get(f"run-{self.random.randrange(RUNS)}")
                await run.pause()
                await asyncio.sleep(0.005)
                await run.resume()
        except HoldfastError:
            pass  # it has ended, or stands otherwise


class RealTime(JumpingClock):
    """The clock of this machine, where a test engine asks for one that jumps."""

    def now(self) -> int:
        return Clock().now()


async def live(seed: int, path: Path) -> World:
    world = World(seed, path)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await world.open(stack)
        for number in range(RUNS):
            await world.random.choice(world.engines).start(world.workflow, number, id=f"run-{number}")
            if world.random.random() < 0.3:
                await world.trouble(stack)
        for _ in range(6):
            await world.trouble(stack)
            await asyncio.sleep(0.02)
        await eventually(lambda: _all_ended(world))
        await eventually(lambda: _free(world))
        assert await violations(world.engines[0].store) == []
    return world


async def _all_ended(world: World) -> bool:
    for engine in world.engines:
        for run in await engine.runs(status=Status.PAUSED, limit=RUNS):
            await engine.get(run.id).resume()
    return (await world.engines[0].stats())[Status.COMPLETED] == RUNS


async def _free(world: World) -> bool:
    return all((limit.used, limit.waiting) == (0, 0) for limit in await world.engines[0].limits())


async def check(seed: int, path: Path) -> None:
    world = await live(seed, path)
    assert world.bodies >= RUNS * 5
    for name, allowed in ALLOWED.items():
        assert 1 <= world.most[name] <= allowed, (seed, name)
    for name, most in world.most.items():
        if name.startswith("whole/"):
            assert most <= 2, (seed, name)


@pytest.mark.parametrize("seed", range(3))
async def test_no_more_are_ever_inside_than_a_limit_allows(seed: int, tmp_path: Path) -> None:
    """S4-19 G1 G2: kills, stops, takeovers, pauses of runs and limits, on SQLite."""
    await check(seed, tmp_path / "limits.db")


@pytest.mark.slow
@pytest.mark.parametrize("start", range(3, 200, 20))
async def test_no_more_are_ever_inside_in_many_worlds(start: int, tmp_path: Path) -> None:
    """S4-19 G1 G2"""
    for seed in range(start, start + 20):
        await check(seed, tmp_path / f"limits-{seed}.db")
