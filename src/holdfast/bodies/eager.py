"""Beginning a task at once instead of in the next round of the event loop.

A body that never waits has ended when this returns, which saves two rounds of the loop for each step. Python 3.12 can
do this itself. Before that, a task asks its loop to call its first step soon: this module intercepts that and calls it
now.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Callable, Coroutine
from typing import Any

_NATIVE = sys.version_info >= (3, 12)


def start(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: contextvars.Context
) -> asyncio.Task[Any]:
    """Begin a coroutine as a task of the running loop, from a plain callback of it; the task may be done already."""
    if asyncio.current_task(loop) is not None or not possible(loop):
        return loop.create_task(coro, context=context)
    return start_now(loop, coro, context)


def possible(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether tasks of a loop can begin at once: not if it makes them in its own way, or watches over them."""
    return loop.get_task_factory() is None and not loop.get_debug()


def start_now(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: contextvars.Context
) -> asyncio.Task[Any]:
    """Begin a coroutine as `start` does, for a caller that knows that it is possible and that no task is running."""
    if _NATIVE:
        return asyncio.Task(coro, loop=loop, context=context, eager_start=True)  # type: ignore[call-arg]  # since 3.12
    first_step: list[Callable[[], object]] = []

    def hear(step: Callable[[], object], *, context: contextvars.Context | None = None) -> None:
        first_step.append(step)

    try:
        loop.call_soon = hear  # type: ignore[method-assign, assignment]  # an attribute of this one loop, for one call
    except AttributeError:  # a loop that is not written in Python
        return loop.create_task(coro, context=context)
    try:
        task = asyncio.Task(coro, loop=loop, context=context)
    finally:
        del loop.call_soon
    context.run(first_step[0])
    return task
