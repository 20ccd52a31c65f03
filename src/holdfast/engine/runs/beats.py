"""Progress that steps report, made durable outside the turns of their runs."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable
from threading import get_ident

from holdfast.clock import Clock
from holdfast.contract.operations import Beat
from holdfast.engine.runs.resident import FINISHING, Resident
from holdfast.engine.views.observers import Reporter
from holdfast.engine.worker.committer import Committer


class Beats:
    """What the steps of one worker report."""

    def __init__(self, committer: Committer, reporter: Reporter, clock: Clock, loop: AbstractEventLoop) -> None:
        self._committer = committer
        self._reporter = reporter
        self._clock = clock
        self._loop = loop
        self._thread = get_ident()

    def record(self, resident: Resident, location: str, progress: str, told: Callable[[object], None]) -> None:
        """Record that a step reported progress, and tell what came of that; called from any thread."""
        if get_ident() == self._thread:
            self._record(resident, location, progress, told)
        else:
            self._loop.call_soon_threadsafe(self._record, resident, location, progress, told)

    def _record(self, resident: Resident, location: str, progress: str, told: Callable[[object], None]) -> None:
        if resident.phase >= FINISHING:
            told(None)
            return
        self._reporter.progress(resident, location, progress)
        at = self._clock.now()
        beat = Beat(key=resident.key, epoch=resident.epoch, location=location, at=at, detail=progress)
        self._committer.submit(beat, told)  # unless a body waits for it, a lost heartbeat is harmless
