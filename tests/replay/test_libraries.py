"""Libraries in workflow code: anyio's tools, current_context, and coroutines that catch being closed."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
from datetime import timedelta
from typing import Any

import anyio
import pytest
from tests.support.driving import START, answer, assert_deterministic, execution, live

from holdfast import Context, current_context, workflow
from holdfast.replay.ending import LIMBO

HOUR = timedelta(hours=1)


def work(x: int) -> int:
    return x


# anyio.


async def in_a_task_group(ctx: Context) -> Any:
    seen: list[int] = []

    async def one(x: int) -> None:
        seen.append(await ctx.step(work, x))

    async with anyio.create_task_group() as group:
        for x in range(4):
            group.start_soon(one, x)
    return sorted(seen)


async def with_a_lock(ctx: Context) -> Any:
    lock, inside = anyio.Lock(), []

    async def one(x: int) -> None:
        async with lock:
            inside.append(x)
            await ctx.step(work, x)
            assert inside[-1] == x

    async with anyio.create_task_group() as group:
        for x in range(3):
            group.start_soon(one, x)
    return inside


async def with_an_event(ctx: Context) -> Any:
    event, seen = anyio.Event(), []

    async def waits() -> None:
        await event.wait()
        seen.append("went on")

    async with anyio.create_task_group() as group:
        group.start_soon(waits)
        await ctx.step(work, 1)
        seen.append("set")
        event.set()
    return seen


async def in_a_cancel_scope(ctx: Context) -> Any:
    async def waits() -> None:
        await ctx.receive("never")

    async with anyio.create_task_group() as group:
        group.start_soon(waits)
        await ctx.step(work, 1)
        group.cancel_scope.cancel()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ctx.sleep(HOUR)
    return [scope.cancelled_caught, await ctx.step("after", work, 2)]


async def failing_after(ctx: Context) -> Any:
    try:
        with anyio.fail_after(60):
            await ctx.receive("never")
    except TimeoutError:
        with anyio.move_on_after(30) as scope:
            await ctx.sleep(HOUR)
        return ["late", scope.cancelled_caught]


ANYIO = {
    each.__name__: each for each in (in_a_task_group, with_a_lock, with_an_event, in_a_cancel_scope, failing_after)
}
RESULTS = {
    "in_a_task_group": [0, 1, 2, 3],
    "with_a_lock": [0, 1, 2],
    "with_an_event": ["set", "went on"],
    "in_a_cancel_scope": [True, 2],
    "failing_after": ["late", True],
}


@pytest.mark.parametrize("name", ANYIO)
def test_the_tools_of_anyio_work_in_workflow_code(name: str):
    """S1-1 TaskGroup, Lock, Event, CancelScope, fail_after: live and replayed from every cut."""
    definition = workflow(name=name, check=False)(ANYIO[name])
    assert live(definition).result == RESULTS[name]
    assert_deterministic(definition, seeds=range(3))


def test_a_run_has_no_task_factory_and_takes_none():
    """S1-1 anyio asks for it before it makes a task."""

    @workflow(check=False)
    async def asks(ctx: Context) -> list[Any]:
        loop = asyncio.get_running_loop()
        try:
            loop.set_task_factory(None)
        except Exception as error:
            return [loop.get_task_factory(), type(error).__name__]
        return []

    outcome = live(asks).outcome
    assert outcome is not None
    assert outcome.error is not None
    assert "set_task_factory" in outcome.error.message


def test_setting_the_running_loop_as_the_threads_is_tolerated():
    """S1-1 It is the thread's only until the turn is over."""

    @workflow(check=False)
    async def sets(ctx: Context) -> bool:
        loop = asyncio.get_running_loop()
        asyncio.set_event_loop(loop)
        await ctx.step(work, 1)
        return asyncio.get_event_loop() is loop

    async def outside() -> None:
        after: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def turn() -> None:
            run = execution(sets)
            run.begin()
            after.set_result(asyncio.get_event_loop_policy().get_event_loop() is asyncio.get_running_loop())
            run.drop()

        asyncio.get_running_loop().call_soon(turn)
        assert await after

    asyncio.run(outside())
    assert live(sets).result is True


# The Context.


def test_the_current_context_is_that_of_the_scope_in_which_the_code_runs():
    """S1-10 S1-12 In the root, a branch, an iteration, a loop's body, and in tasks begun there."""

    async def deep(name: str) -> int:
        ctx = current_context()
        assert ctx is not None
        return await ctx.step(name, work, 1)

    @workflow
    async def scopes(ctx: Context) -> bool:
        async def branch(ctx: Context) -> int:
            return await deep("b")

        async def body(ctx: Context, state: int) -> Any:
            await asyncio.create_task(deep("c"))
            from holdfast import Break

            return Break(1)

        await deep("a")
        await ctx.join("join", {"x": branch})
        async for it in ctx.loop("each"):
            await deep("d")
            assert current_context() is it
            break
        await ctx.step("back", work, 1)
        await ctx.loop("loop", body, state=0)
        await asyncio.create_task(deep("e"), context=contextvars.Context())
        return current_context() is ctx

    recording = live(scopes)
    assert recording.result is True
    from holdfast.replay.entry import StepBegun

    assert recording.paths(StepBegun) == ["a", "join/x/b", "each/~0/d", "back", "loop/~0/c", "e"]
    assert_deterministic(scopes, seeds=range(2))
    assert current_context() is None


def test_replaying_is_true_until_the_code_is_where_it_was():
    """S1-14 For telemetry: what was done before is not counted twice."""
    seen: list[tuple[int, bool]] = []

    @workflow(check=False)
    async def counts(ctx: Context) -> None:
        for x in range(3):
            await ctx.step(work, x)
            seen.append((x, ctx.replaying))

    run = execution(counts)
    turn = run.begin()
    rows = list(turn.entries)
    for _ in range(2):
        [verb] = turn.started
        turn = run.apply(verb.location, answer(verb), START)
        rows += turn.entries
    run.drop()
    assert seen == [(0, False), (1, False)]
    seen.clear()
    run = execution(counts)
    [verb] = run.begin(rows).started
    run.apply(verb.location, answer(verb), START)
    assert seen == [(0, True), (1, True), (2, False)]
    run.drop()


# Being dropped.


def test_coroutines_that_catch_being_closed_print_nothing():
    """S1-42 Nested ones, once or for ever; at that moment, when they are collected, and when the program ends."""
    done = subprocess.run([sys.executable, "-c", _CATCHES], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("dropped\n", "")


_CATCHES = """
import asyncio, gc
from datetime import timedelta
from tests.support.driving import execution
from holdfast import Context, workflow

HOUR = timedelta(hours=1)

async def once(ctx):
    try:
        await ctx.sleep(HOUR)
    except BaseException:
        await ctx.sleep(HOUR)
        raise

async def for_ever(ctx):
    while True:
        try:
            await ctx.sleep(HOUR)
        except BaseException:
            continue

async def inside(ctx, inner):
    try:
        await inner(ctx)
    except BaseException as error:
        kept.append(error)
        await ctx.sleep(HOUR)

kept = []

@workflow(check=False)
async def catches(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(inside(ctx, once))
        await inside(ctx, for_ever)

for _ in range(3):
    run = execution(catches)
    run.begin()
    run.drop()
    del run
    kept.clear()
    gc.collect()
print("dropped")
"""


def test_a_coroutine_that_catches_being_closed_once_is_freed():
    async def once(ctx: Context) -> None:
        try:
            await ctx.sleep(HOUR)
        except BaseException:
            await ctx.sleep(HOUR)
            raise

    @workflow(check=False)
    async def catches(ctx: Context) -> None:
        await once(ctx)

    before = len(LIMBO)
    run = execution(catches)
    run.begin()
    run.drop()
    gc.collect()
    assert len(LIMBO) == before
