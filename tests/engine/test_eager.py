"""Tasks that begin at once."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, workflow
from holdfast.bodies import eager
from holdfast.testing import TestEngine

NAME: contextvars.ContextVar[str] = contextvars.ContextVar("NAME", default="nobody")


async def from_callback(make: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
    """Start a coroutine from a plain callback of the running loop."""
    loop = asyncio.get_running_loop()
    started: asyncio.Future[asyncio.Task[Any]] = loop.create_future()
    context = contextvars.copy_context()
    loop.call_soon(lambda: started.set_result(eager.start(loop, make(), context)))
    return await started


async def test_a_body_that_never_waits_is_done_when_it_was_started() -> None:
    """It is a task like any other, and sees its own context."""
    loop, seen = asyncio.get_running_loop(), []

    async def body() -> int:
        assert asyncio.current_task() is not None
        assert asyncio.get_running_loop() is loop
        seen.append(NAME.get())
        return 7

    NAME.set("ada")
    states: list[bool] = []

    def start() -> None:
        task = eager.start(loop, body(), contextvars.copy_context())
        states.append(task.done())
        assert asyncio.current_task() is None
        done.set_result(task)

    done: asyncio.Future[asyncio.Task[int]] = loop.create_future()
    loop.call_soon(start)
    assert await (await done) == 7
    assert (states, seen) == ([True], ["ada"])
    assert "call_soon" not in vars(loop)


async def test_a_body_that_waits_goes_on_as_any_task() -> None:
    """With a timeout that was begun before its first wait, with cancellation, with its context kept."""

    async def body() -> str:
        NAME.set("grace")
        async with asyncio.timeout(LONG):
            await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return NAME.get()
        return "never"

    task = await from_callback(body)
    assert not task.done()
    await asyncio.sleep(0.01)
    task.cancel()
    assert await task == "grace"


async def test_a_body_that_raises_at_once_has_failed() -> None:
    async def body() -> None:
        raise ValueError("at once")

    task = await from_callback(body)
    with pytest.raises(ValueError, match="at once"):
        await task


async def test_inside_a_task_and_with_a_task_factory_it_waits_for_its_turn() -> None:
    """Two tasks cannot run at once, and whoever makes the tasks of a loop is asked."""
    loop = asyncio.get_running_loop()
    made: list[str] = []

    async def body() -> None:
        made.append("body")

    task = eager.start(loop, body(), contextvars.copy_context())
    assert not task.done()
    await task

    def factory(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append("factory")
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        await (await from_callback(body))
    finally:
        loop.set_task_factory(None)
    assert made == ["body", "factory", "body"]


async def test_a_task_factory_that_is_set_while_an_engine_is_open_makes_the_tasks_of_bodies() -> None:
    """Whether a body may begin without it is not asked for each step, but at every tick."""
    loop = asyncio.get_running_loop()
    made: list[str] = []

    def factory(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    async def body() -> None:
        await asyncio.sleep(0)

    @workflow
    async def two_steps(ctx: Context) -> None:
        await ctx.step(body)
        await ctx.step(body)

    async with TestEngine(workflows=[two_steps]) as engine:
        await engine.execute(two_steps)
        loop.set_task_factory(factory)
        try:
            engine._working().tick()
            await engine.execute(two_steps)
        finally:
            loop.set_task_factory(None)
    assert made.count("_called") == 2
