"""Work that finishes even if the tasks that wait for it are cancelled: an engine must not stop halfway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.engine.worker.background import hide
from holdfast.errors import HoldfastError

_logger = logging.getLogger("holdfast.engine")
T = TypeVar("T")


class Unbroken(Generic[T]):
    """Work in a task of its own, which no cancel reaches.

    `hurry` is called when a task that waits is cancelled. If an interrupt (Ctrl-C) ends the work it is begun again, so
    it must be harmless to do twice.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]], hurry: Callable[[], None] = lambda: None) -> None:
        self._work = work
        self.hurry = hurry
        """Make the work end sooner."""
        self._task = self._begin()

    def _begin(self) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(self._work(), name="holdfast stop")
        hide(task)
        return task

    async def finished(self) -> T:
        """Wait for the end; a cancel is raised after it."""
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                await asyncio.wait([self._task])
            except asyncio.CancelledError as error:
                cancelled = error
                self.hurry()
                continue
            if not _broken(self._task):
                break
            self.hurry()
            self._task = self._begin()
        if cancelled is None:
            return self._task.result()
        failure = self._task.exception()
        if failure is not None:
            _logger.error("what a cancelled task waited for failed", exc_info=failure)
        raise cancelled


class Stopping:
    """The stop of an engine that is under way, if there is one: tasks that stop it meanwhile wait for the same."""

    def __init__(self) -> None:
        self._work: Unbroken[dict[str, int]] | None = None

    def check(self, is_open: bool) -> None:
        """Check that an engine may be opened.

        Raises:
            HoldfastError: it is open, or a stop is under way.
        """
        if is_open:
            raise HoldfastError(
                "the engine is open already; a second one on the same database needs an Engine of its own"
            )
        if self._work is not None:
            raise HoldfastError("the engine is stopping; await engine.stop() before it is opened again")

    def begin(self, work: Callable[[], Coroutine[Any, Any, dict[str, int]]], hurry: Callable[[], None]) -> None:
        """Begin to stop."""
        self._work = Unbroken(work, hurry)

    def hurry(self) -> None:
        """Wait for bodies no longer; nothing where no stop is under way."""
        if self._work is not None:
            self._work.hurry()

    async def finished(self) -> dict[str, int]:
        """Wait for the end of the stop that is under way, and return what it says; nothing if there is none."""
        work = self._work
        if work is None:
            return {}
        try:
            return await work.finished()
        finally:
            if self._work is work:
                self._work = None


def _broken(task: asyncio.Task[Any]) -> bool:
    """Whether work was ended from outside, by an interrupt or a cancel."""
    return task.cancelled() or isinstance(task.exception(), KeyboardInterrupt | SystemExit | asyncio.CancelledError)
