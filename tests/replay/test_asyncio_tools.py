"""Asyncio's own tools in workflow code: whatever interleaving happened live happens again on replay."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import assert_deterministic, live

from holdfast import Context, workflow
from holdfast.replay.location import Scope
from holdfast.replay.loop import RunLoop


def work(x: int) -> int:
    return x * 10


def fail(x: int) -> int:
    raise ValueError(f"no {x}")


async def _worked(ctx: Context, x: int, delay: float = 0) -> int:
    if delay:
        await asyncio.sleep(delay)
    first = await ctx.step(work, x)
    return await ctx.step(work, first)


@workflow
async def gathers(ctx: Context) -> list:
    order: list[int] = []

    async def one(x: int) -> int:
        result = await _worked(ctx, x)
        order.append(x)
        return result

    results = await asyncio.gather(one(1), one(2), ctx.step(work, 3), one(4))
    await ctx.step("record", work, sum(order[:1]))
    return [order, results]


@workflow
async def gathers_errors(ctx: Context) -> list:
    results = await asyncio.gather(ctx.step(fail, 1), ctx.step(work, 2), _worked(ctx, 3), return_exceptions=True)
    return [repr(result) for result in results]


@workflow
async def task_groups(ctx: Context) -> list:
    seen: list[str] = []

    async def one(x: int) -> None:
        try:
            seen.append(f"{x} got {await _worked(ctx, x, x / 2)}")
            if x == 3:
                await ctx.step(fail, x)
        except asyncio.CancelledError:
            seen.append(f"{x} cancelled")
            await ctx.step("clean-up", work, x) if x == 5 else None
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for x in range(1, 7):
                group.create_task(one(x))
    except* ValueError as errors:
        seen += [str(error) for error in errors.exceptions]
    await ctx.step("after", work, len(seen))
    return seen


@workflow
async def timeouts(ctx: Context) -> list:
    seen: list[object] = []
    for limit in (0.0, 0.5, 3.0):
        try:
            async with asyncio.timeout(limit):
                seen.append(await _worked(ctx, 1, 0.4))
        except TimeoutError:
            seen.append("timeout")
    try:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.2) as scope:
            scope.reschedule((scope.when() or 0) + 0.6)
            seen.append(await ctx.step(work, 2))
            await asyncio.sleep(10)
    except TimeoutError:
        seen.append("timeout at")
    try:
        seen.append(await asyncio.wait_for(ctx.step(work, 3), 0.3))
    except TimeoutError:
        seen.append("wait_for gave up")
    await ctx.step("after", work, len(seen))
    return seen


@workflow
async def waits_for_some(ctx: Context) -> list:
    tasks = [asyncio.create_task(_worked(ctx, x, x % 3), name=f"t{x}") for x in range(9)]
    verbs = [ctx.step(work, x) for x in range(20, 29)]
    seen: list[str] = []
    pending: set = {*tasks, *verbs}
    while pending:
        done, pending = await asyncio.wait(pending, timeout=2.5, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            seen.append(f"{each.result()}")
            await ctx.step("note", work, each.result()) if len(seen) == 4 else None
        if len(seen) > 11:
            break
    for each in pending:
        each.cancel()
        seen.append("cancelled")
    await asyncio.wait(pending) if pending else None
    await ctx.step("after", work, len(seen))
    return seen


@workflow
async def as_they_complete(ctx: Context) -> list:
    seen: list[object] = []
    things = [ctx.step(work, 1), asyncio.create_task(_worked(ctx, 2)), ctx.step(fail, 3), ctx.step(work, 4)]
    for each in asyncio.as_completed(things):
        try:
            seen.append(await each)
        except ValueError as error:
            seen.append(str(error))
        await ctx.step("note", work, len(seen)) if len(seen) == 2 else None
    return seen


@workflow
async def synchronised(ctx: Context) -> list:
    seen: list[object] = []
    queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
    lock, event, condition = asyncio.Lock(), asyncio.Event(), asyncio.Condition()
    semaphore, barrier = asyncio.Semaphore(2), asyncio.Barrier(3)

    async def produce(x: int) -> None:
        async with semaphore:
            await queue.put(await ctx.step(work, x))
        await barrier.wait()
        async with lock:
            seen.append(("passed", x, await ctx.step(work, x + 100)))
            event.set()

    async def consume() -> None:
        for _ in range(3):
            seen.append(await queue.get())
            queue.task_done()
            async with condition:
                condition.notify_all()

    async def watch() -> None:
        async with condition:
            await condition.wait_for(lambda: len(seen) >= 3)
        seen.append("three")

    await asyncio.gather(*(produce(x) for x in range(3)), consume(), watch(), event.wait(), queue.join())
    await ctx.step("after", work, len(seen))
    return [str(each) for each in seen]


@workflow
async def shielded(ctx: Context) -> list:
    seen: list[object] = []
    inner = asyncio.create_task(_worked(ctx, 1))
    try:
        async with asyncio.timeout(0.4):
            seen.append(await asyncio.shield(inner))
    except TimeoutError:
        seen.append("not waited for")
    seen.append(await inner)
    return seen


@workflow
async def generators(ctx: Context) -> list:
    seen: list[object] = []

    async def numbers(name: str):
        try:
            for x in range(5):
                yield await ctx.step(work, x)
        finally:
            seen.append(f"{name} closed")
            await ctx.step(f"close {name}", work, 0)

    async for x in numbers("abandoned"):
        seen.append(x)
        if x == 20:
            break
    await ctx.sleep(timedelta(seconds=1))
    async for x in numbers("whole"):
        seen.append(x)
    seen.append([x async for x in numbers("comprehended") if x < 20])
    return seen


@workflow
async def sleeps(ctx: Context) -> list:
    seen: list[object] = []

    async def one(x: int) -> None:
        await asyncio.sleep(86_400)
        seen.append(x)

    began = ctx.now()
    await asyncio.gather(*(one(x) for x in range(5)), ctx.sleep(timedelta(days=2)))
    return [*seen, (ctx.now() - began) >= timedelta(days=2)]


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


@workflow
async def context_variables(ctx: Context) -> list:
    seen = [VARIABLE.get()]
    VARIABLE.set("root")

    async def child(value: str) -> str:
        before = VARIABLE.get()
        VARIABLE.set(value)
        await ctx.step(work, 1)
        return f"{before}>{VARIABLE.get()}"

    seen += await asyncio.gather(child("a"), child("b"))
    own = contextvars.Context()
    seen.append(await asyncio.create_task(child("c"), context=own))
    return [*seen, own[VARIABLE], VARIABLE.get()]


ALL = [
    gathers,
    gathers_errors,
    task_groups,
    timeouts,
    waits_for_some,
    as_they_complete,
    synchronised,
    shielded,
    generators,
    sleeps,
    context_variables,
]


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_the_same_interleaving_happens_live_and_on_replay_from_every_cut(definition):
    """S1-1 S1-14 S1-16 S1-32 Replay gives the recorded values, passes what is over, and writes nothing."""
    assert_deterministic(definition)


def test_orders_of_completion_really_differ():
    """The property above says something only if different orders were tried."""
    assert len({str(live(gathers, seed=seed).result) for seed in range(6)}) > 2
    assert len({str(live(waits_for_some, seed=seed).result) for seed in range(6)}) > 2


def test_a_run_does_not_see_the_callers_context_variables():
    token = VARIABLE.set("the caller's")
    try:
        seen = live(context_variables).result
    finally:
        VARIABLE.reset(token)
    assert seen == ["unset", "root>a", "root>b", "unset>c", "c", "root"]


def test_sleeping_for_ever_is_possible_and_durable():
    @workflow
    async def sleeper(ctx: Context) -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(float("inf"))
        except TimeoutError:
            return "woken"
        return "never"

    assert live(sleeper).result == "woken"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_replay_alike():
    @workflow
    async def eager(ctx: Context) -> list:
        seen: list[object] = []

        async def one(x: int) -> int:
            seen.append(x)
            return await ctx.step(work, x) if x else 0

        loop: Any = asyncio.get_running_loop()
        tasks = [loop.create_task(one(x), eager_start=True) for x in range(4)]
        seen.append("started")
        seen += await asyncio.gather(*tasks)
        return seen

    assert live(eager).result == [0, 1, 2, 3, "started", 0, 10, 20, 30]
    assert_deterministic(eager)


def test_tasks_of_different_runs_hash_apart_and_those_of_one_run_by_creation():
    """Asyncio keeps the tasks of all runs in one set: with one hash for all, starting the n-th run would cost n."""
    scopes = [Scope() for _ in range(1000)]
    loops = [RunLoop(deque(), 0, seed) for seed in range(1000)]
    assert len({loop.hash_number(scope) for loop, scope in zip(loops, scopes, strict=True)}) == 1000
    numbers = [loops[7].hash_number(scopes[7]) for _ in range(50)]
    assert list(set(numbers)) == numbers
