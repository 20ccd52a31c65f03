"""Cancelling families: children that go with their parent, those that do not, and how a cancel is asked for."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Flaky
from tests.support.waiting import LONG, eventually

from holdfast import ChildFailed, Context, RunCancelled, Status, step_context, workflow
from holdfast.errors import StoreError

HOUR = timedelta(hours=1)
restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow
async def family(ctx: Context, depth: int) -> None:
    if depth:
        ctx.child(family, depth - 1, id=f"follows-{depth}", cancel_with_parent=True)
        ctx.child(waits, id=f"stays-{depth}")
    await ctx.receive("never")


async def test_a_cancel_reaches_every_child_that_follows_however_deep(make_engine):
    """B18 G10 B7 One transaction marks the whole family; children without the option go on."""
    engine = await make_engine(family, waits)
    run = await engine.start(family, 3)
    await engine.settle()
    assert await run.cancel(by="kim")
    await engine.settle()
    assert await run.status() is Status.CANCELLED
    assert [await engine.get(f"follows-{depth}").status() for depth in (1, 2, 3)] == [Status.CANCELLED] * 3
    assert [await engine.get(f"stays-{depth}").status() for depth in (1, 2, 3)] == [Status.SUSPENDED] * 3
    if engine.offers("audit"):
        assert [record.target for record in await engine.audit.records()] == [run.id]


@pytest.mark.parametrize("state", ["pending", "paused", "blocked", "running"])
async def test_a_child_that_follows_is_cancelled_whatever_it_is_doing(make_engine, state):
    """B18 G10 S4-2 Not begun, paused, blocked, or in the middle of a step."""
    begun, heard = asyncio.Event(), []

    async def busy() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append(True)
            raise

    @workflow
    async def kid(ctx: Context) -> None:
        if state == "running":
            await ctx.step(busy)
        elif state == "blocked":
            await asyncio.Event().wait()
        await ctx.receive("never")

    @workflow
    async def parent(ctx: Context) -> None:
        ctx.child("stranger" if state == "pending" else kid, id="kid", cancel_with_parent=True)
        await ctx.receive("never")

    engine = await make_engine(parent, kid)
    run = await engine.start(parent)
    if state == "running":
        await begun.wait()
    else:
        await engine.settle()
    child = engine.get("kid")
    if state == "paused":
        await child.pause()
        await engine.settle()
    assert await child.status() == state
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await engine.settle()
    assert await child.status() is Status.CANCELLED
    assert heard == [True] * (state == "running")


async def test_children_outlive_a_parent_that_completes_or_fails(make_engine):
    """B18 Only a cancel goes with it; a child that nobody awaits is on its own."""

    @workflow
    async def parent(ctx: Context, fails: bool) -> None:
        ctx.child(waits, id=f"kid-{fails}", cancel_with_parent=True)
        await ctx.sleep(HOUR)
        if fails:
            raise ValueError("no")

    engine = await make_engine(parent, waits)
    runs = [await engine.start(parent, fails) for fails in (False, True)]
    await engine.advance(2 * HOUR)
    assert [await run.status() for run in runs] == [Status.COMPLETED, Status.FAILED]
    assert [await engine.get(f"kid-{fails}").status() for fails in (False, True)] == [Status.SUSPENDED] * 2


async def test_a_cancelled_child_counts_as_failed_for_its_parent(make_engine):
    """B18 ChildFailed with its status, raised or as a value; a parent that does not wait is not concerned."""

    @workflow
    async def parent(ctx: Context) -> list[str]:
        told = []
        try:
            await ctx.child(waits, id="raises")
        except ChildFailed as failure:
            told.append(failure.status)
        value: Any = await ctx.child(waits, id="value", propagate=False)
        told.append(value.status)
        ctx.child(waits, id="alone")
        return told

    engine = await make_engine(parent, waits)
    run = await engine.start(parent)
    for name in ("raises", "value"):
        await engine.settle()
        assert await engine.get(name).cancel()
    assert await run.result() == ["cancelled", "cancelled"]
    assert await engine.get("alone").cancel()
    await engine.settle()
    assert await run.status() is Status.COMPLETED


@restarts
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_that_dies_while_it_cancels_a_family_cancels_all_or_none(make_engine, moment):
    """B18 G10 The request to the parent and to its children is one commit."""
    engine = await make_engine(family, waits)
    faults = engine.faults
    run = await engine.start(family, 2, id="top")
    await engine.settle()
    faults.die(1, moment)
    with pytest.raises(StoreError):
        await run.cancel()
    await engine.crash()
    engine = await make_engine(family, waits, clock=engine.jumping)
    await engine.settle()
    expected = Status.CANCELLED if moment == "after" else Status.SUSPENDED
    assert [await engine.get(name).status() for name in ("top", "follows-2", "follows-1")] == [expected] * 3


async def test_a_call_that_cannot_be_interrupted_ends_and_nothing_follows_it(make_engine):
    """S4-15 B36 S0-35 S4-13 A thread is not killed: it is told, may finish, and no other side effect follows it."""
    begun, may_end, log = threading.Event(), threading.Event(), []

    def call() -> str:
        begun.set()
        may_end.wait(LONG)
        log.append(f"call, told {step_context().signal.aborted}")
        return "done"

    async def after() -> None:
        log.append("after")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(call)
        await ctx.step(after)

    engine = await make_engine(work)
    run = await engine.start(work)
    await eventually(begun.is_set)
    assert await run.cancel()
    may_end.set()
    with pytest.raises(RunCancelled):
        await run.result()
    assert log == ["call, told True"]
    assert [step.status for step in await run.steps()] == ["completed"]


async def test_a_cancel_is_seen_before_a_retry(make_engine):
    """S4-13 S0-34 B7 The attempt that waits is never begun; the key is free once the run is cancelled."""
    body = Flaky("pay")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step("pay", body.body, "pay")

    engine = await make_engine(work)
    run = await engine.start(work, unique_key="k")
    await engine.settle()
    assert [step.status for step in await run.steps()] == ["waiting"]
    assert await run.cancel()
    await engine.advance(10 * HOUR)
    assert body.ran == ["pay"]
    assert [step.status for step in await run.steps()] == ["cancelled"]
    body.failing.clear()
    assert await (await engine.start(work, unique_key="k")).result() is None


async def test_a_second_cancel_may_ask_for_compensation(make_engine):
    """B7 B17 What is acknowledged is done."""
    undone: list[Any] = []

    async def undo() -> None:
        undone.append("undo")

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(undo)
        try:
            await ctx.receive("never")
        finally:
            await ctx.sleep(timedelta(seconds=30))

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.cancel()
    await engine.settle()
    asked = await run.cancel(compensate=True)
    with pytest.raises(RunCancelled):
        await run.result()
    assert undone == ["undo"] * asked
