"""Threads for sync bodies: daemons, so that a body that never ends cannot hold up a stop."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Report = Callable[[Any, BaseException | None], None]


class ThreadPool:
    """Runs every function at once, in an idle thread or a new one; how many may run is for the caller to decide.

    `returned` is called, in its thread, by each abandoned thread that comes back after all.
    """

    def __init__(self, returned: Callable[[], None] = lambda: None) -> None:
        self._returned = returned
        self._idle = 0
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self.abandoned = 0
        """How many threads were given up and have not come back."""

    def submit(self, function: Callable[[], Any], context: contextvars.Context, report: Report) -> _Job:
        """Run a function in a context; `report` is called in the thread that ran it."""
        job = _Job(function, context, report)
        with self._ready:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            else:
                threading.Thread(target=self._work, name="holdfast step", daemon=True).start()
        return job

    def abandon(self, job: _Job) -> bool:
        """Give up a job: unstarted it never runs, started its thread is counted until it comes back.

        Return whether it never runs.
        """
        with self._ready:
            if job in self._jobs:
                self._jobs.remove(job)
                job.ended = True
                job.let_go()
                return True
            if not job.ended and not job.abandoned:
                job.abandoned = True
                self.abandoned += 1
            return False

    def close(self) -> None:
        """Let idle threads end; running ones are not waited for."""
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify_all()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            result, error = None, None
            try:
                result = job.context.run(job.function)
            except BaseException as raised:
                error = raised
            with self._ready:
                job.ended = True
                late = job.abandoned
                self.abandoned -= late
            report = job.report
            job.let_go()
            report(result, error)
            if late:
                self._returned()
                return
            del job, report, result, error

    def _next(self) -> _Job | None:
        with self._ready:
            while not self._jobs:
                if self._closed:
                    return None
                self._idle += 1
                self._ready.wait()
                self._idle -= 1
            return self._jobs.popleft()


class _Job:
    __slots__ = ("abandoned", "context", "ended", "function", "report")

    def __init__(self, function: Callable[[], Any], context: contextvars.Context, report: Report) -> None:
        self.function = function
        self.context = context
        self.report = report
        self.ended = False
        self.abandoned = False

    def let_go(self) -> None:
        """Forget what was to be done, for it leads back to what keeps this job."""
        del self.function, self.context, self.report
