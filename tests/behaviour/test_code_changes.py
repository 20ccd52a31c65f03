"""Code that changes under runs that are under way: noticed, explained, and put right without loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Status, workflow
from holdfast.errors import HistoryMismatch, RunBlocked
from holdfast.testing import record, replay

DAY = timedelta(days=1)
pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


class Deploy:
    """An engine that is stopped and started again with other code, on the same database and clock."""

    def __init__(self, make_engine: Callable[..., Any]) -> None:
        self._make = make_engine
        self.engine: Any = None

    async def __call__(self, *workflows: Any) -> Any:
        options: dict[str, Any] = {}
        if self.engine is not None:
            options["clock"] = self.engine.jumping
            await self.engine.stop()
        self.engine = await self._make(*workflows, **options)
        return self.engine


@pytest.fixture
def deploy(make_engine) -> Deploy:
    return Deploy(make_engine)


calls: list[str] = []


@pytest.fixture(autouse=True)
def _forget_calls():
    calls.clear()


async def work(name: str) -> str:
    calls.append(name)
    return name


@workflow(name="order")
async def first(ctx: Context) -> list[str]:
    seen = [await ctx.step("reserve", work, "reserve"), await ctx.step("charge", work, "charge")]
    await ctx.sleep(DAY)
    seen.append(await ctx.step("ship", work, "ship"))
    return seen


async def test_a_changed_workflow_is_blocked_with_both_sides_and_goes_on_when_put_right(deploy):
    """S1-37 B6 Nothing is executed or lost meanwhile."""

    @workflow(name="order")
    async def second(ctx: Context) -> list[str]:
        seen = [await ctx.step("reserve", work, "reserve"), await ctx.step("tax", work, "tax")]
        return [*seen, await ctx.step("charge", work, "charge")]

    engine = await deploy(first)
    await engine.start(first, id="o-1")
    await engine.settle()
    engine = await deploy(second)
    await engine.advance(DAY)
    run = engine.get("o-1")
    assert await run.status() is Status.BLOCKED
    with pytest.raises(RunBlocked, match=r'(?s)at \'tax\'.*test_code_changes.py:\d+.*ctx.patched\("add-tax"\)'):
        await run.result()
    assert calls == ["reserve", "charge"]
    engine = await deploy(first)
    assert engine.offers("blocked.retried") or await engine.get("o-1").recover()
    assert await engine.get("o-1").result() == ["reserve", "charge", "ship"]
    assert calls == ["reserve", "charge", "ship"]


async def test_patched_code_serves_old_and_new_runs(deploy):
    """S1-37"""

    @workflow(name="order")
    async def second(ctx: Context) -> list[str]:
        seen = [await ctx.step("reserve", work, "reserve")]
        if ctx.patched("tax"):
            seen.append(await ctx.step("tax", work, "tax"))
        seen.append(await ctx.step("charge", work, "charge"))
        await ctx.sleep(DAY)
        if ctx.patched("insure"):
            seen.append(await ctx.step("insure", work, "insure"))
        seen.append(await ctx.step("ship", work, "ship"))
        return seen

    engine = await deploy(first)
    await engine.start(first, id="old")
    await engine.settle()
    engine = await deploy(second)
    await engine.start(second, id="new")
    assert await engine.get("old").result() == ["reserve", "charge", "insure", "ship"]
    assert await engine.get("new").result() == ["reserve", "tax", "charge", "insure", "ship"]


async def test_removed_code_serves_old_and_new_runs(deploy):
    """S1-35"""

    @workflow(name="order")
    async def second(ctx: Context) -> list[str]:
        seen = [await ctx.step("reserve", work, "reserve")]
        ctx.removed("charge")
        ctx.removed("sleep", "sleep")
        seen.append(await ctx.step("ship", work, "ship"))
        return seen

    engine = await deploy(first)
    await engine.start(first, id="old")
    await engine.settle()
    engine = await deploy(second)
    await engine.start(second, id="new")
    assert await engine.get("old").result() == ["reserve", "ship"]
    assert await engine.get("new").result() == ["reserve", "ship"]
    assert sorted(calls) == ["charge", "reserve", "reserve", "ship", "ship"]


async def test_a_recorded_history_can_be_replayed_against_new_code_in_a_test(deploy):
    """S1-32 S1-37 Nothing is executed and nothing is written."""

    @workflow(name="order")
    async def second(ctx: Context) -> list[str]:
        return [await ctx.step("charge", work, "charge")]

    engine = await deploy(first)
    run = await engine.start(first, id="o-1")
    await engine.settle()
    half = await record(run)
    await run.result()
    whole = await record(run)
    before = list(calls)
    assert replay(half, first).status == "waiting"
    ended = replay(whole, first)
    assert (ended.status, ended.output) == ("completed", ["reserve", "charge", "ship"])
    with pytest.raises(HistoryMismatch, match="at 'reserve'"):
        replay(half, second)
    assert calls == before
    assert (await record(run)).entries == whole.entries


async def test_a_run_of_a_version_still_registered_keeps_its_version(deploy):
    """B20 The version is stored at the start; new runs take the latest."""

    @workflow(name="order", version="2")
    async def second(ctx: Context) -> str:
        return await ctx.step("other", work, "other")

    engine = await deploy(first)
    await engine.start(first, id="old")
    await engine.settle()
    engine = await deploy(first, second)
    new = await engine.start(second, id="new")
    assert await engine.get("old").result() == ["reserve", "charge", "ship"]
    assert await new.result() == "other"


async def test_what_a_step_achieved_is_kept_when_the_code_after_it_blocks(make_engine):
    """G3 G13 The turn that took its result is not recorded, but the result is: put right, the code finds it there."""
    bodies: list[str] = []

    async def charge() -> str:
        bodies.append("charge")
        return "charged"

    @workflow(name="work")
    async def wrong(ctx: Context) -> str:
        await ctx.step(charge)
        return await asyncio.get_running_loop().create_future()

    @workflow(name="work")
    async def right(ctx: Context) -> str:
        return await ctx.step(charge)

    engine = await make_engine(wrong)
    run = await engine.start(wrong, id="r")
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    await engine.stop()
    engine = await make_engine(right, clock=engine.jumping)
    assert engine.offers("blocked.retried") or await engine.get("r").recover()
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "charged"
    assert bodies == ["charge"]


@pytest.mark.parametrize("edited", [timedelta(minutes=1), timedelta(days=1)], ids=["shorter", "longer"])
async def test_the_deadline_of_a_wait_outlives_an_edit_of_its_timeout(make_engine, edited):
    """G9 S2-27 A wait ends when it was said to end, whatever timeout the code gives to later ones."""

    def made(timeout: timedelta) -> Any:
        @workflow
        async def work(ctx: Context) -> str:
            return await ctx.receive("word", str, timeout=timeout, default="nobody")

        return work

    before, after = made(timedelta(hours=1)), made(edited)
    engine = await make_engine(before)
    await engine.start(before, id="r")
    await engine.settle()
    await engine.stop()
    engine = await make_engine(after, clock=engine.jumping)
    run = engine.get("r")
    await engine.advance(timedelta(minutes=59))
    assert await run.status() is Status.SUSPENDED
    await engine.advance(timedelta(minutes=1))
    assert await run.status() is Status.COMPLETED
