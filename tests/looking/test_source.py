"""The line of code at which a run waits, found by a replay with the code at hand that executes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.definitions import Registry
from holdfast.errors import NoSuchRun
from holdfast.looking import LocalDesk
from holdfast.testing import TestEngine

_calls: list[str] = []
HOUR = timedelta(hours=1)


@activity(retry=Retry(initial_interval=HOUR, max_interval=HOUR, jitter=0))
async def book(name: str) -> None:
    _calls.append(name)
    raise ConnectionError("down")


@activity
async def pack() -> str:
    _calls.append("pack")
    return "box"


async def helper(ctx: Context) -> None:
    await ctx.receive("approved")  # waits here


@workflow
async def fulfil(ctx: Context) -> None:
    await ctx.step(pack)
    await ctx.step(book, "carrier")  # retries here


@workflow
async def nested(ctx: Context) -> None:
    await ctx.step(pack)
    await helper(ctx)


@workflow
async def together(ctx: Context) -> None:
    await asyncio.gather(ctx.receive("a"), helper(ctx))  # gathers here


ALL = [fulfil, nested, together]


@workflow(name="fulfil")
async def changed(ctx: Context) -> None:
    await ctx.receive("something else")


async def test_the_line_at_which_a_run_waits_is_found_without_executing_anything():
    async with TestEngine(workflows=ALL) as engine:
        for each in ALL:
            await engine.start(each, id=each.name)
        await engine.settle()
        called = list(_calls)
        desk = LocalDesk(engine.store, code=engine.registry)
        found = {each.name: await desk.source(each.name) for each in ALL}
        lines = {name: source.text.partition("# ")[2] for name, source in found.items() if source is not None}
        assert lines == {"fulfil": "retries here", "nested": "waits here", "together": "gathers here"}
        assert found["fulfil"] is not None
        assert found["fulfil"].file == __file__
        assert (await desk.why("nested")).source == found["nested"]
        assert _calls == called


async def test_without_code_that_fits_there_is_no_line():
    async with TestEngine(workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, id="order-1")
        await engine.settle()
        assert await LocalDesk(engine.store).source("order-1") is None
        assert (await LocalDesk(engine.store).why("order-1")).source is None
        assert await LocalDesk(engine.store, code=Registry([nested])).source("order-1") is None
        assert await LocalDesk(engine.store, code=Registry([changed])).source("order-1") is None
        desk = LocalDesk(engine.store, code=engine.registry)
        await run.terminate()
        assert await desk.source("order-1") is None
        with pytest.raises(NoSuchRun):
            await desk.source("none")
