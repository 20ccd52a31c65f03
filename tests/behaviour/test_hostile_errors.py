"""Exceptions that raise, lie or grow when they are looked at: each way of running code ends all the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.hostile_errors import raise_hostile
from tests.support.waiting import LONG

from holdfast import Context, Retry, RunFailed, Status, activity, step_context, workflow
from holdfast.changes import Change

NAMES = (
    "NoArgs", "NoDict", "NoText", "TextExits", "TextCancels", "NoClass", "Liar", "NoAttributes", "AnyAttribute",
    "NoCause", "NoNotes", "OddClass", "Outside", "crowd", "group",
)  # fmt: skip
"""The worst of them; tests/payloads looks at all."""
hostile = pytest.mark.parametrize("name", NAMES)
NEVER = Retry.never
TWICE = Retry(max_attempts=2, initial_interval=timedelta(seconds=1))

pytestmark = pytest.mark.parametrize("mode", ["memory"])


@activity(name="raise", retry=TWICE)
async def in_loop(name: str) -> None:
    raise_hostile(name)


@activity(name="raise", retry=TWICE)
def in_thread(name: str) -> None:
    raise_hostile(name)


@activity(name="raise", retry=NEVER, isolate="process")
def in_process(name: str) -> None:
    raise_hostile(name)


@activity(name="raise", retry=TWICE, queue="default")
async def in_queue(name: str) -> None:
    raise_hostile(name)


@activity(name="raise", retry=TWICE, transaction=True)
def in_transaction(name: str) -> None:
    raise_hostile(name)


@activity(name="undo", retry=NEVER)
async def undo(name: str) -> None:
    raise_hostile(name)


async def fine() -> str:
    return "fine"


async def ends(engine: Any, flow: Any, *args: Any) -> Any:
    """Run a workflow to its end and return its handle; the next run of the same engine must be able to go on."""
    run = await engine.start(flow, *args)
    async with asyncio.timeout(LONG):
        with pytest.raises(RunFailed):
            await run.result()
    assert await run.status() is Status.FAILED
    return run


@pytest.mark.parametrize(
    "body", [in_loop, in_thread, in_queue, in_transaction], ids=["loop", "thread", "queue", "transaction"]
)
async def test_a_step_that_raises_anything_ends(make_engine, body):
    """S1-22 G3 It is tried as often as its policy says, and then its run fails."""

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(body, name)

    engine = await make_engine(flow)
    for name in NAMES:
        run = await ends(engine, flow, name)
        [step] = await run.steps()
        assert (step.status, step.attempts) == ("failed", 2), name


@pytest.mark.parametrize("name", ["NoText", "NoArgs", "TextExits", "NoAttributes", "crowd"])
async def test_a_step_that_raises_anything_in_a_child_process_ends(make_engine, name):
    """S1-22 What the child cannot print it can still send."""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(in_process, name)

    run = await ends(await make_engine(flow), flow)
    [step] = await run.steps()
    assert step.attempts == 1
    assert "StepCrashed" not in step.error.type


async def test_workflow_code_that_raises_anything_ends(make_engine):
    """S1-22 After a step, so that it is replayed too."""

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(fine)
        await ctx.sleep(timedelta(hours=1))
        raise_hostile(name)

    engine = await make_engine(flow)
    for name in NAMES:
        await ends(engine, flow, name)


async def test_a_branch_that_raises_anything_fails_its_join(make_engine):
    """S1-22 The error of the join names it as well as it can."""

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        async def broken(inner: Context) -> None:
            await inner.step(fine)
            raise_hostile(name)

        await ctx.join({"a": broken, "b": broken})

    engine = await make_engine(flow)
    for name in NAMES:
        await ends(engine, flow, name)


async def test_a_compensation_that_raises_anything_ends(make_engine):
    """S1-22 The run fails, and says that it could not undo that."""

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(fine)
        ctx.compensate(undo, name)
        raise ValueError("undo")

    engine = await make_engine(flow)
    for name in NAMES:
        run = await ends(engine, flow, name)
        assert [step.status for step in await run.steps() if step.compensation] == ["failed"], name


@hostile
async def test_a_condition_that_raises_anything_fails_its_step(make_engine, name):
    """S1-22 As if the body had raised it."""

    def broken(context: Any) -> bool:
        raise_hostile(name)
        return True

    @activity(run_when=broken, retry=NEVER)
    async def never() -> None:
        raise AssertionError("it must not run")

    @activity(run_when=broken, retry=NEVER, queue="default")
    async def never_there() -> None:
        raise AssertionError("it must not run")

    @workflow
    async def flow(ctx: Context, there: bool) -> None:
        await ctx.step(never_there if there else never)

    engine = await make_engine(flow)
    for there in (False, True):
        await ends(engine, flow, there)


@hostile
async def test_callbacks_that_raise_anything_change_nothing(make_engine, name):
    """S1-22 Those of activities and of the engine; what they raise is told to the others."""
    told: list[Change] = []

    def broken(*args: Any) -> None:
        raise_hostile(name)

    @activity(on_start=broken, on_success=broken, on_failure=broken, on_failed=broken, retry=TWICE)
    async def work() -> int:
        if step_context().attempt == 1:
            raise ValueError("once")
        return 7

    @workflow
    async def flow(ctx: Context) -> int:
        return await ctx.step(work)

    engine = await make_engine(flow, on_change=[broken, told.append])
    run = await engine.start(flow)
    async with asyncio.timeout(LONG):
        assert await run.result() == 7
    assert any(change.type == "callback.error" for change in told)


async def test_an_error_that_asks_to_wait_for_no_time_is_an_ordinary_failure(make_engine):
    """S1-22 Its step is not tried for ever."""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(in_loop, "OddDelay")

    run = await ends(await make_engine(flow), flow)
    [step] = await run.steps()
    assert (step.attempts, step.failures) == (2, 2)
