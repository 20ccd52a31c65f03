"""The garbage collector while engines are open."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, Engine, workflow
from holdfast.engine.runs.resident import Resident
from holdfast.engine.worker.garbage import RARELY


def in_thread(x: int) -> int:
    return x


async def on_loop(x: int) -> int:
    return x


@workflow
async def steps(ctx: Context) -> None:
    await ctx.step(in_thread, 1)
    await ctx.step(on_loop, 1)
    await ctx.receive("go")


@workflow
async def branches(ctx: Context) -> None:
    async def one(ctx: Context) -> None:
        await asyncio.gather(ctx.step(in_thread, 1), ctx.receive("go"))

    async with asyncio.timeout(1000), asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
        await ctx.join({"one": one})


@workflow
async def looping(ctx: Context) -> None:
    async for it in ctx.loop("again", state=0):
        await it.step(on_loop, 1)
        if it.index:
            break
        await it.receive("go")
    await ctx.child(steps, propagate=False)


WORKFLOWS = [steps, branches, looping]


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


async def test_full_collections_are_rarer_while_any_engine_is_open() -> None:
    """W7 The younger generations are left alone, and so is everything once the last engine is closed."""
    before = gc.get_threshold()
    async with Engine(":memory:"):
        assert gc.get_threshold() == (*before[:2], RARELY)
        async with Engine(":memory:"):
            pass
        assert gc.get_threshold() == (*before[:2], RARELY)
    assert gc.get_threshold() == before


async def test_what_the_application_says_counts() -> None:
    """A larger threshold stays, and so does one that was set meanwhile."""
    gc.set_threshold(5000, 20, 10 * RARELY)
    async with Engine(":memory:"):
        assert gc.get_threshold() == (5000, 20, 10 * RARELY)
        gc.set_threshold(1000, 5, 5)
    assert gc.get_threshold() == (1000, 5, 5)


@pytest.mark.parametrize("definition", WORKFLOWS, ids=lambda each: each.name)
async def test_runs_that_leave_memory_leave_nothing_to_a_full_collection(definition: Any, path: Path) -> None:
    """W7 It is so rare that the garbage of a hundred thousand runs would be there at once."""
    async with Engine(path, workflows=WORKFLOWS, max_resident=4) as engine:
        await _through_memory(engine, definition, 10)
        _garbage()
        gc.disable()
        try:
            await _through_memory(engine, definition, 40)
            found = _garbage()
        finally:
            gc.enable()
    assert [text for text in found if "holdfast" in text or "frame" in text or "coroutine" in text] == []


async def test_runs_that_leave_memory_are_not_kept_by_their_timers(path: Path) -> None:
    """W7 A sleeping run that makes room for another is freed long before it is due."""

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(timedelta(days=30))

    async def sleeping(engine: Engine, count: int) -> bool:
        return (await engine.stats()).get("suspended") == count

    async with Engine(path, workflows=[sleeper]) as engine:
        for number in range(1, 11):
            runs = await engine.start_many(sleeper, [()] * 100)
            await eventually(partial(sleeping, engine, 100 * number))
            for run in runs:
                await run.evict()
        await eventually(lambda: not engine._working().runner.residents)
        gc.collect()
        assert sum(type(each) is Resident for each in gc.get_objects()) < 500


async def _through_memory(engine: Engine, definition: Any, count: int) -> None:
    """Let runs start, leave memory, come back for a message, and end, all but the last steps that a loop called."""

    async def waiting(expected: int) -> bool:
        return (await engine.stats())["suspended"] == expected and len(engine._working().runner.residents) <= 5

    before = (await engine.stats())["suspended"]
    runs = await engine.start_many(definition, [()] * count)
    await eventually(lambda: waiting(before + count))
    for run in runs:
        await run.send("go")
    await eventually(lambda: waiting(before + (2 * count if definition is looping else 0)))


def _garbage() -> list[str]:
    """Collect what refers to itself, and say what it was."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = [f"{type(each).__module__}.{type(each).__name__}" for each in gc.garbage]
    gc.garbage.clear()
    gc.collect()
    return found
