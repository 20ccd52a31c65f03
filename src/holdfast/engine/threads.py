"""Threads for sync bodies: daemons, so that a body that never ends cannot hold up a stop."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Report = Callable[[Any, BaseException | None], None]


class ThreadPool:
    """Runs functions in at most `size` threads; one abandoned to its fate gives its place to a new thread."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle = 0
        self._threads = 0
        self._jobs: deque[_Job] = deque()
        self._ready = threading.Condition()
        self._closed = False
        self.abandoned = 0

    def submit(self, function: Callable[[], Any], context: contextvars.Context, report: Report) -> _Job:
        """Run a function in a context; `report` is called in the thread that ran it."""
        job = _Job(function, context, report)
        with self._ready:
            self._jobs.append(job)
            if self._idle >= len(self._jobs):
                self._ready.notify()
            elif self._threads < self._size:
                self._spawn()
        return job

    def abandon(self, job: _Job) -> None:
        """Give up a job: unstarted it never runs, started its thread no longer counts."""
        with self._ready:
            if job in self._jobs:
                self._jobs.remove(job)
            elif job.running and not job.abandoned:
                job.abandoned = True
                self.abandoned += 1
                self._threads -= 1
                if self._jobs:
                    self._spawn()

    def close(self) -> None:
        """Let idle threads end; running ones are not waited for."""
        with self._ready:
            self._closed = True
            self._jobs.clear()
            self._ready.notify_all()

    def _spawn(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="holdfast step", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._jobs:
                    if self._closed:
                        self._threads -= 1
                        return
                    self._idle += 1
                    self._ready.wait()
                    self._idle -= 1
                job = self._jobs.popleft()
                job.running = True
            result, error = None, None
            try:
                result = job.context.run(job.function)
            except BaseException as raised:
                error = raised
            with self._ready:
                job.running = False
                if job.abandoned:
                    self.abandoned -= 1
                    return
            job.report(result, error)
            del job, result, error


class _Job:
    __slots__ = ("abandoned", "context", "function", "report", "running")

    def __init__(self, function: Callable[[], Any], context: contextvars.Context, report: Report) -> None:
        self.function = function
        self.context = context
        self.report = report
        self.running = False
        self.abandoned = False
