"""Terminate: a run ends here and now, none of its code runs, whatever it was doing."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.acts_cases import Flaky, Gate, moments
from tests.support.waiting import eventually

from holdfast import Context, RunCancelled, RunTerminal, Status, step_context, workflow

HOUR = timedelta(hours=1)
restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_terminated_run_ends_at_once_and_cleans_up_nothing(make_engine):
    """B7 S0-34 No CancelledError, no cleanup, no compensation; who, why and when are on record."""
    body, undone = Flaky(), []

    async def undo() -> None:
        undone.append("undo")

    @workflow
    async def careful(ctx: Context) -> None:
        await ctx.step("one", body.body, "one")
        ctx.compensate(undo)
        try:
            await ctx.receive("word")
        finally:
            await ctx.step("cleanup", body.body, "cleanup")

    engine = await make_engine(careful)
    run = await engine.start(careful)
    await engine.settle()
    assert await run.terminate(by="kim", reason="it was a mistake")
    seen = await run.describe()
    assert (seen.status, seen.owner, seen.due_at) == (Status.CANCELLED, None, None)
    assert seen.error is not None
    assert (seen.error.type, seen.error.message) == ("Terminated", "it was a mistake")
    with pytest.raises(RunCancelled, match="it was a mistake"):
        await run.result()
    await engine.advance(HOUR)
    assert body.ran == ["one"]
    assert undone == []
    if engine.offers("audit"):
        (record,) = await engine.audit.records(target=run.id)
        assert (record.actor, record.action, record.detail) == ("kim", "terminate", {"reason": "it was a mistake"})


async def test_a_body_under_way_is_stopped_and_its_result_is_refused(make_engine):
    """B7 S0-34 S0-36 An async body is cancelled, its signal is set; one that returns nevertheless is not recorded."""
    begun, heard = asyncio.Event(), []

    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append(step_context().signal.aborted)
        return "too late"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(stubborn)

    engine = await make_engine(work)
    run = await engine.start(work)
    await begun.wait()
    assert await run.terminate()
    await eventually(lambda: heard == [True])
    await moments()
    assert await run.status() is Status.CANCELLED
    assert all(entry.kind != "step completed" for entry in await run.history())


async def test_a_blocked_run_can_be_terminated(make_engine):
    """B7 S4-2 Nothing of its code is needed for that."""

    @workflow
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    engine = await make_engine(stuck)
    run = await engine.start(stuck, unique_key="k")
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    assert await run.terminate()
    assert await run.status() is Status.CANCELLED
    again = await engine.start(stuck, unique_key="k")  # the key is free
    await engine.settle()
    assert await again.terminate()


@restarts
async def test_a_run_whose_workflow_nobody_knows_can_be_terminated(make_engine):
    """B7 By a client, or by an engine with other workflows."""
    engine = await make_engine(waits)
    await engine.start(waits, id="r")
    await engine.stop()
    engine = await make_engine(clock=engine.jumping)
    assert await engine.get("r").terminate()
    assert await engine.get("r").status() is Status.CANCELLED


async def test_its_parent_hears_of_it_and_those_who_follow_it_are_cancelled(make_engine):
    """B7 B18 G10 A terminated child counts as cancelled; children with cancel_with_parent go with it."""

    @workflow
    async def middle(ctx: Context) -> None:
        ctx.child(waits, id="follows", cancel_with_parent=True)
        ctx.child(waits, id="stays")
        await ctx.receive("never")

    @workflow
    async def top(ctx: Context) -> str:
        failure = await ctx.child(middle, id="middle", propagate=False)
        return f"{failure.status}: {failure}"

    engine = await make_engine(top, middle, waits)
    run = await engine.start(top)
    await engine.settle()
    assert await engine.get("middle").terminate(reason="enough")
    assert "cancelled: " in await run.result()
    await engine.settle()
    assert await engine.get("follows").status() is Status.CANCELLED
    assert await engine.get("stays").status() is Status.SUSPENDED


async def test_a_terminated_run_takes_no_more_messages_and_frees_its_key(make_engine):
    """B7 S0-34 As for any run that has ended."""
    engine = await make_engine(waits)
    run = await engine.start(waits, unique_key="k")
    await engine.settle()
    assert await run.terminate()
    with pytest.raises(RunTerminal):
        await run.send("word", "late")
    assert await run.terminate() is False
    assert await run.cancel() is False
    other = await engine.start(waits, unique_key="k")
    assert other.id != run.id


async def test_a_terminated_run_can_be_resumed_where_it_stood(make_engine):
    """B8 S4-14 It is a cancelled run like any other; a step that was under way runs again."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", gate, "one") + await ctx.step("two", gate, "two")

    engine = await make_engine(work)
    gate.open("one")
    run = await engine.start(work)
    await gate.entered("two")
    assert await run.terminate()
    await moments()
    gate.open("two")
    assert await run.resume()
    assert await run.result() == "onetwo"
    assert gate.begun == ["one", "two", "two"]


async def test_terminate_and_completion_at_once_have_one_winner(make_engine):
    """G6 S2-38 Whatever comes first stays; the other is told."""
    engine = await make_engine(waits)
    outcomes = set()
    for round in range(20):
        run = await engine.start(waits)
        if round % 2:
            await engine.settle()
        if round % 4 < 2:
            both = [run.send("word", "hello"), run.terminate()][:: 1 - 2 * (round % 4)]
            told = await asyncio.gather(*both, return_exceptions=True)
            terminated = bool(told[1 - round % 4])
        else:
            await run.send("word", "hello")
            if round % 4 == 3:
                await engine.settle()
            terminated = await run.terminate()
        await engine.settle()
        assert await run.status() is (Status.CANCELLED if terminated else Status.COMPLETED)
        outcomes.add(terminated)
        assert not engine.offers("audit") or len(await engine.audit.records(target=run.id)) == terminated
    assert outcomes == {True, False}


@pytest.mark.parametrize("mode", ["file"])
async def test_a_run_terminated_by_another_engine_stops_there_too(make_engine):
    """B7 S0-34 Its body is told within moments, and a run that only waits leaves that engine's memory."""
    begun, heard = asyncio.Event(), []

    async def body() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard.append(step_context().signal.aborted)
            raise

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(body)

    owner = await make_engine(work, waits)
    other = await make_engine(run_workflows=False, clock=owner.jumping)
    busy, idle = await owner.start(work), await owner.start(waits)
    await begun.wait()
    await moments()
    assert await other.get(busy.id).terminate()
    assert await other.get(idle.id).terminate()
    await eventually(lambda: heard and not owner.residents)


@restarts
async def test_a_worker_that_dies_after_a_terminate_brings_nothing_back(make_engine):
    """B7 G6 The end is in the store; the body that was under way is nobody's."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", gate, "one")

    engine = await make_engine(work, stop_grace=timedelta(0))
    run = await engine.start(work, id="r")
    await gate.entered("one")
    assert await run.terminate()
    await engine.crash()
    engine = await make_engine(work, clock=engine.jumping)
    await engine.advance(HOUR)
    assert await engine.get("r").status() is Status.CANCELLED
    assert gate.begun == ["one"]
