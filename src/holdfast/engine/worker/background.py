"""The background tasks of a worker: one list of all of them, each under its name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_logger = logging.getLogger("holdfast.engine")
LAST_WORDS = 5.0
"""For how many seconds a worker that stops waits for what is under way."""


def hide(task: asyncio.Task[Any]) -> None:
    """Keep a task out of `asyncio.all_tasks()`.

    `asyncio.run` and many programs cancel all that are there when they end; this one has to come to its own end.
    """
    asyncio.tasks._unregister_task(task)
    # If its loop is closed all the same, the thread that keeps the lease says so, with what to do about it.
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own way to say that it is meant


class BackgroundTasks:
    """At most one task of each name at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task under a name that is not busy."""
        assert not self.busy(name), name
        self._tasks[name] = self._loop.create_task(work, name=f"holdfast {name}")

    def busy(self, name: str) -> bool:
        """Whether a task of this name is under way."""
        task = self._tasks.get(name)
        return task is not None and not task.done()

    async def finish(self, *names: str) -> None:
        """Wait for some tasks, or for all: but not for ever, for the store may be away."""
        waiting = [task for name, task in self._tasks.items() if not names or name in names]
        _, pending = await asyncio.wait(waiting, timeout=LAST_WORDS) if waiting else ((), ())
        for task in pending:
            _logger.warning("%s takes too long while the worker stops; it is left behind", task.get_name())
            task.cancel()
