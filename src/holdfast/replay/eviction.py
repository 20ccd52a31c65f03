"""Eviction: letting go of a run in memory without letting it act.

Python has no way to free a coroutine without running its `finally` blocks. While a run is dropped its loop is dead:
verbs wait for ever, nothing is recorded, nothing is logged. Plain synchronous code in `finally` does run.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from holdfast.replay import generators
from holdfast.replay.loop import RunLoop, RunTask, _running_loop, _set_running_loop

LIMBO: list[Any] = []
"""Coroutines that swallow even being closed. Freeing them would run them again, so they are kept for ever."""

_CLOSES = 100


def close_tasks(loop: RunLoop) -> None:
    """Close every task of a loop, the youngest first, and those that closing them creates."""
    loop.dead = True
    if not all(task.done() for task in loop.tasks):
        outer = _running_loop()
        generators.adopt(sys.get_asyncgen_hooks())
        _set_running_loop(loop)  # so that asyncio.sleep() in a finally meets the dead loop
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # coroutines of the user's that were never awaited
                while loop.tasks:
                    _close(loop.tasks.pop())
        finally:
            _set_running_loop(outer)
    while loop.tasks:
        _close(loop.tasks.pop())
    loop.forget_timers()


def _close(task: RunTask) -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own switch for a task ended on purpose
    if task.done():
        if not task.cancelled():
            task.exception()
        return
    coro: Any = task.get_coro()  # not of a done task: one that ran eagerly has none, and Python 3.12.1 crashes on it
    for _ in range(_CLOSES):
        try:
            task.own_context.run(coro.close)
        except BaseException:  # noqa: S110  # what cleanup raises while being dropped concerns no run
            pass
        if getattr(coro, "cr_frame", None) is None:
            break
    else:
        LIMBO.append(task)
        return
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is not None:
        waiter.cancel()
