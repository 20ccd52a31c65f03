"""Retrying families: a parent that failed by its child, the child by itself, and both at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Flaky, Gate, moments

from holdfast import ChildFailed, Context, Retry, RunFailed, Status, activity, workflow
from holdfast.contract.operations import Purge
from holdfast.errors import CannotReopen

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


async def fails(run: Any, match: str | None = None) -> None:
    with pytest.raises(RunFailed, match=match):
        await run.result()


@workflow
async def parent(ctx: Context) -> str:
    return "parent of " + await ctx.child(child, id="kid")


@workflow
async def child(ctx: Context) -> str:
    return await ctx.step("work", family_step, "work")


family = Flaky()
gate = Gate()


@activity(retry=Retry.never)
async def family_step(name: str) -> str:
    if "gated" in family.failing:
        return await gate(name)
    return await family.body(name)


@pytest.fixture
def failing_family() -> Flaky:
    family.failing, family.ran = {"work"}, []
    gate.begun.clear()
    gate._may_end.clear()
    return family


async def test_retry_of_a_parent_retries_the_child_that_failed_it(make_engine, failing_family):
    """B8 G10 The same child goes on where it failed; no second one is started."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run, "ChildFailed")
    failing_family.failing.clear()
    await run.retry()
    assert await run.result() == "parent of work"
    assert [each.id for each in await engine.runs(workflow="child")] == ["kid"]
    assert (await engine.get("kid").describe()).reopened == 1


async def test_a_child_that_was_retried_by_itself_is_heard_by_its_parents_retry(make_engine, failing_family):
    """B8 G10 It has completed meanwhile, or is still under way: its result is taken once."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing.clear()
    await engine.get("kid").retry()
    assert await engine.get("kid").result() == "work"
    assert await run.status() is Status.FAILED
    await run.retry()
    assert await run.result() == "parent of work"
    assert (await engine.get("kid").describe()).reopened == 1


async def test_a_child_that_is_under_way_again_is_waited_for(make_engine, failing_family):
    """B8 G10 The parent's retry finds it open."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing = {"gated"}
    await engine.get("kid").retry()
    await gate.entered("work")
    await run.retry()
    await moments()
    gate.open("work")
    assert await run.result() == "parent of work"


@restarts
async def test_a_child_that_ends_while_its_parent_is_retried_is_heard(make_engine, failing_family):
    """B8 G10 It was open when the retry looked and has ended when the retry is written: no lost wake-up."""
    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await fails(run)
    failing_family.failing = {"gated"}
    await engine.get("kid").retry()
    await gate.entered("work")

    async def end() -> None:
        gate.open("work")
        await engine.get("kid").result()

    looked = engine.faults.call(end, at="get", moment="after", only=lambda row: row is not None and row.id == "kid")
    await run.retry()
    assert looked.injected == 1
    await engine.settle()
    assert await run.status() is Status.COMPLETED


async def test_only_the_children_that_failed_it_are_retried_with_a_parent(make_engine, failing_family):
    """B8 B18 A child that nobody waited for stays as it is."""

    @workflow
    async def starter(ctx: Context) -> str:
        ctx.child(child, id="alone")
        return await ctx.child(child, id="kid")

    engine = await make_engine(starter, child)
    run = await engine.start(starter)
    await fails(run)
    await engine.settle()
    failing_family.failing.clear()
    await run.retry()
    assert await run.result() == "work"
    assert await engine.get("alone").status() is Status.FAILED
    assert (await engine.get("alone").describe()).reopened == 0


async def test_a_whole_line_of_descendants_is_retried_in_one_go(make_engine, failing_family):
    """B8 G10 Down to the step that failed, each run once."""

    @workflow
    async def line(ctx: Context, depth: int) -> str:
        if depth == 0:
            return await ctx.step("work", family_step, "work")
        return f"{depth} " + await ctx.child(line, depth - 1, id=f"depth-{depth - 1}")

    engine = await make_engine(line)
    run = await engine.start(line, 4, id="depth-4")
    await fails(run)
    failing_family.failing.clear()
    await run.retry(by="kim")
    assert await run.result() == "4 3 2 1 work"
    assert failing_family.ran == ["work", "work"]
    found = await engine.runs(workflow="line")
    assert [(each.status, each.reopened) for each in found] == [(Status.COMPLETED, 1)] * 5
    assert [record.target for record in await engine.audit.records()] == ["depth-4"]


async def test_a_family_is_retried_as_a_whole_or_not_at_all(make_engine, failing_family):
    """B8 The child was deleted meanwhile: its parent stays failed, and the error says why."""

    @workflow
    async def patient(ctx: Context) -> None:
        try:
            await ctx.child(child, id="kid")
        except ChildFailed:
            await ctx.sleep(timedelta(hours=1))
            raise

    engine = await make_engine(patient, child)
    run = await engine.start(patient)
    await fails(run)
    await engine.store.apply([Purge(what="failed", before=engine.clock.now(), at=engine.clock.now())])
    before = await run.describe()
    assert await engine.store.get("kid") is None
    failing_family.failing.clear()
    with pytest.raises(CannotReopen, match="child 'kid'"):
        await run.retry()
    assert await run.describe() == before
    assert await engine.audit.records() == []


@pytest.mark.parametrize("follows", [True, False])
async def test_a_resumed_parent_goes_on_with_a_child_that_was_cancelled_meanwhile(make_engine, follows):
    """G10 B8 The child is let go on with its parent, whose cancel it was, or who waits for it again."""

    @workflow
    async def kid(ctx: Context) -> int:
        return await ctx.receive("go", int)

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(kid, id="kid", cancel_with_parent=follows)

    engine = await make_engine(parent, kid)
    run = await engine.start(parent)
    await engine.settle()
    await run.cancel()
    await engine.settle()
    await engine.get("kid").cancel()
    await engine.settle()
    await run.resume()
    await engine.settle()
    await engine.get("kid").send("go", 7)
    assert await run.result() == 7
