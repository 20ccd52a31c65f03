"""A daemon thread that does one job after another for an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], done: Callable[[], None]) -> None:
        self.work = work
        self.done = done
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def run(self) -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = self.work()
        except BaseException as raised:  # handed to the caller that waits
            error = raised
        try:
            self.loop.call_soon_threadsafe(self._finish, result, error)
        except RuntimeError:
            pass  # the loop was closed without waiting; no caller is left to tell

    def _finish(self, result: T | None, error: BaseException | None) -> None:
        self.done()
        if self.future.cancelled():
            return
        if error is None:
            self.future.set_result(result)  # type: ignore[arg-type]  # None only where T allows it
        else:
            self.future.set_exception(error)


class JobThread:
    """Runs jobs in the order given. `busy` counts those whose end the event loop has not heard of yet."""

    def __init__(self, name: str) -> None:
        self.busy = 0
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job. It is done even if its future is cancelled."""
        job = _Job(work, self._finished)
        self.busy += 1
        self._jobs.put(job)  # type: ignore[arg-type]  # the queue does not care what a job returns
        return job.future

    def stop(self) -> None:
        """End the thread after the jobs queued so far."""
        self._jobs.put(None)

    def _finished(self) -> None:
        self.busy -= 1

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
            del job
