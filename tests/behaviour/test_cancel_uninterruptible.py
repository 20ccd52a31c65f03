"""Cancelling a run whose body in a thread cannot be interrupted: it is waited for, and what it returns is kept."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow

MINUTE = timedelta(minutes=1)


class Bank:
    """A call in a thread that says that it began, and ends when it may."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.told: list[str] = []
        self.may_end = threading.Event()
        bank = self

        def charge(amount: int) -> str:
            bank.asked.append(amount)
            context = step_context()
            context.signal.wait(LONG)
            bank.told.append(context.signal.reason)
            assert bank.may_end.wait(LONG)
            return f"receipt for {amount}"

        self.charge = charge

        @workflow
        async def order(ctx: Context, amount: int) -> str:
            receipt = await ctx.step(charge, amount)
            await ctx.receive("go")
            return receipt

        self.order = order


async def cancelled(run: object) -> None:
    with pytest.raises(RunCancelled):
        await run.result(timedelta(seconds=LONG))  # type: ignore[attr-defined]


async def test_the_end_waits_for_the_call_and_resume_does_not_repeat_it(make_engine):
    """S4-15 B36 B8 The body is told at once; its result is recorded, and is what the code gets when it goes on."""
    bank = Bank()
    engine = await make_engine(bank.order)
    run = await engine.start(bank.order, 5)
    await eventually(lambda: bank.asked)
    assert await run.cancel() is True
    await eventually(lambda: bank.told == ["cancelled"])
    assert await run.status() is Status.CANCELLING
    bank.may_end.set()
    await cancelled(run)
    [step] = await run.steps()
    assert (step.status, step.result, step.attempts) == ("completed", "receipt for 5", 1)
    assert await run.resume() is True
    await run.send("go")
    assert await run.result() == "receipt for 5"
    assert bank.asked == [5]


async def test_after_the_grace_the_run_is_cancelled_without_the_call(make_engine):
    """S4-15 B36 B7 The history says that the attempt was left behind; resume makes another."""
    bank = Bank()
    engine = await make_engine(bank.order, cancel_grace=MINUTE)
    run = await engine.start(bank.order, 5)
    await eventually(lambda: bank.asked)
    await run.cancel()
    await eventually(lambda: bank.told)
    engine.jumping.advance(MINUTE)
    await cancelled(run)
    lost = [entry.entry for entry in await run.history() if entry.kind == "attempt lost"]
    assert [(each.attempt, each.why) for each in lost] == [(1, "left behind")]
    bank.may_end.set()
    await run.resume()
    await eventually(lambda: len(bank.asked) == 2)
    await run.cancel()
    await cancelled(run)


async def test_the_code_cleans_up_while_the_call_goes_on(make_engine):
    """S4-15 B36 B7 Only the end waits."""
    bank, cleaned = Bank(), []

    async def clean() -> None:
        cleaned.append("up")

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.step(bank.charge, 5)
        finally:
            await ctx.step(clean)

    engine = await make_engine(careful)
    run = await engine.start(careful)
    await eventually(lambda: bank.asked)
    await run.cancel()
    await eventually(lambda: cleaned == ["up"])
    assert await run.status() is Status.CANCELLING
    bank.may_end.set()
    await cancelled(run)
    assert [(step.name, step.status) for step in await run.steps()] == [("charge", "completed"), ("clean", "completed")]


async def test_a_call_that_fails_after_the_cancel_is_made_again_by_resume(make_engine):
    """S4-15 B36 There is no result to keep."""
    asked: list[int] = []

    def charge() -> str:
        asked.append(step_context().attempt)
        if len(asked) == 1:
            assert step_context().signal.wait(LONG)
            raise ConnectionError("no")
        return "receipt"

    @workflow
    async def order(ctx: Context) -> str:
        return await ctx.step(activity(retry=Retry.never)(charge))

    engine = await make_engine(order)
    run = await engine.start(order)
    await eventually(lambda: asked)
    await run.cancel()
    await cancelled(run)
    await run.resume()
    assert await run.result() == "receipt"
    assert asked == [1, 2]


@pytest.mark.parametrize("mode", ["file"])
async def test_an_engine_that_stops_does_not_wait_for_the_grace(make_engine):
    """S4-15 G9 The run is cancelled by the stop, and the next engine resumes it from its history."""
    bank = Bank()
    first = await make_engine(bank.order)
    run = await first.start(bank.order, 5, id="r")
    await eventually(lambda: bank.asked)
    await run.cancel()
    await eventually(lambda: bank.told)
    await first.stop(grace=timedelta(0))
    bank.may_end.set()
    second = await make_engine(bank.order)
    run = second.get("r")
    assert await run.status() is Status.CANCELLED
    await run.resume()
    await eventually(lambda: len(bank.asked) == 2)
    await run.cancel()
    await cancelled(run)


async def test_a_run_that_is_being_undone_cannot_be_cancelled(make_engine):
    """B32 S2-6 It is ending already: False, and nothing changes; terminate stops it."""
    undoing, may_end = asyncio.Event(), asyncio.Event()

    async def undo() -> None:
        undoing.set()
        await may_end.wait()

    @activity(retry=Retry.never)
    async def fail() -> None:
        raise ValueError("no")

    async def did() -> None: ...

    @workflow
    async def saga(ctx: Context) -> None:
        await ctx.step(did)
        ctx.compensate(undo)
        await ctx.step(fail)

    engine = await make_engine(saga)
    run, other = await engine.start(saga), await engine.start(saga)
    await undoing.wait()
    await eventually(lambda: _is(run, Status.COMPENSATING))
    for compensate in (False, True):
        assert await run.cancel(compensate=compensate) is False
    assert not engine.offers("audit") or await engine.audit.records() == []
    await eventually(lambda: _is(other, Status.COMPENSATING))
    assert await other.terminate() is True
    may_end.set()
    with pytest.raises(RunFailed):
        await run.result()
    assert await other.status() is Status.CANCELLED


async def _is(run: object, status: Status) -> bool:
    return await run.status() is status  # type: ignore[attr-defined]
