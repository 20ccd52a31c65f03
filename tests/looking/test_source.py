"""The line of code at which a run waits, found by a replay with the code at hand that executes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.contract.operations import Committed, Started
from holdfast.contract.rows import Status
from holdfast.contract.turns import StartRun, State
from holdfast.definitions import Registry
from holdfast.errors import BadInput, NoSuchRun
from holdfast.looking import LocalDesk
from holdfast.testing import TestEngine
from holdfast.testing.conformance.samples import claim, new_run, one, turn

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


@workflow
async def order(ctx: Context) -> None:
    _calls.append("would kill this process")


@pytest.mark.parametrize("trials", [1, 3])
async def test_the_code_of_a_run_that_killed_its_workers_is_not_replayed_to_look_at_it(path, trials):
    """Neither by a person's command nor by the process that serves the dashboard, which may be a worker."""
    async with TestEngine(str(path), workflows=[order], run_workflows=False) as engine:
        store, now = engine.store, engine.clock.now()
        await one(store, StartRun(run=new_run("picture-7", at=now)), Started)
        await store.join("worker-3", HOUR)
        for trial in [False] + [True] * trials:
            [taken] = await claim(store, "worker-3", now=now)
            if trial:
                await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
            state = State(status=Status.PENDING, seen=0, due=now, released=True)
            await one(store, turn(taken.key, taken.epoch, state=state), Committed)
        blocked = trials == 3 and not await claim(store, "worker-3", now=now)
        desk = LocalDesk(store, code=engine.registry, engine=engine)
        called = list(_calls)
        assert (await desk.why("picture-7")).code == ("blocked.poison" if blocked else "pending.busy")
        assert await desk.source("picture-7") is None
        await desk.frames("picture-7")
        for said in ((await desk.state("picture-7")).said, (await desk.misfit("picture-7")).said):
            assert "is not replayed to be looked at: holdfast debug picture-7 does" in said
        with pytest.raises(BadInput, match="cannot be asked: workers that drove it were lost with it"):
            await desk.query("picture-7", "total")
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
