"""Group commit: everything that is asked for while a commit is in flight goes into the next one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from holdfast.errors import StoreBusy, StoreError, StoreFull
from holdfast.records import Operation, Outcome
from holdfast.stores.base import Store

_logger = logging.getLogger("holdfast.engine")

Done = Callable[[Outcome | Exception], None]
MAX_BATCH = 2000
_RETRIES = (0.05, 0.2, 0.5, 1.0, 2.0)


class Committer:
    """Collects operations and applies them in order, one batch at a time.

    `done` is called from a plain callback of the event loop, never inside a task, so that it may drive turns.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pending: list[tuple[Operation, Done]] = []
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.busy = False
        self.failing: Exception | None = None

    def start(self) -> None:
        """Begin committing."""
        self._task = asyncio.get_running_loop().create_task(self._commit_for_ever(), name="holdfast committer")

    async def stop(self) -> None:
        """Commit what is pending and stop."""
        self._stopping = True
        self._notify()
        if self._task is not None:
            await self._task

    def submit(self, operation: Operation, done: Done) -> None:
        """Ask for an operation to be made durable."""
        self._pending.append((operation, done))
        self._notify()

    async def apply(self, operation: Operation) -> Outcome:
        """Make one operation durable and return its outcome, for callers that are tasks."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome | Exception) -> None:
            if future.done():
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.submit(operation, done)
        return await future

    def _notify(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _commit_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._pending:
                if self._stopping:
                    return
                self._wake = loop.create_future()
                await self._wake
                continue
            batch, self._pending = self._pending[:MAX_BATCH], self._pending[MAX_BATCH:]
            self.busy = True
            try:
                outcomes: list[Any] = list(await self._commit([operation for operation, _ in batch]))
            except Exception as error:
                outcomes = [error] * len(batch)
            self.busy = False
            loop.call_soon(_distribute, batch, outcomes)

    async def _commit(self, operations: list[Operation]) -> list[Outcome]:
        for pause in (*_RETRIES, None):
            try:
                outcomes = await self._store.apply(operations)
            except (StoreBusy, StoreFull) as error:
                self.failing = error
                if pause is None or self._stopping:
                    raise
                _logger.warning("the store cannot commit, trying again: %s", error)
                await asyncio.sleep(pause)
            else:
                self.failing = None
                return outcomes
        raise StoreError("unreachable")


def _distribute(batch: list[tuple[Operation, Done]], outcomes: list[Any]) -> None:
    for (_, done), outcome in zip(batch, outcomes, strict=True):
        try:
            done(outcome)
        except Exception:
            _logger.exception("a failure while acting on a commit; the worker goes on")
