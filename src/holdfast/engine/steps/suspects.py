"""Suspects that cannot run in a child process run here one after another.

Each begins its attempt only when no other is under way: a third loss then convicts the one that ran, and nobody who was
merely waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.context.steps import StepVerb
from holdfast.replay.journal import Journal


class SuspectTurns:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._holder: StepVerb | None = None
        self._queue: deque[tuple[StepVerb, Callable[[], None]]] = deque()

    @property
    def busy(self) -> bool:
        """Whether anybody has the turn."""
        return self._holder is not None

    def ask(self, verb: StepVerb, go: Callable[[], None]) -> bool:
        """Return True if the step may begin now; otherwise `go` is called when it may."""
        if self._holder is None:
            self._holder = verb
            return True
        self._queue.append((verb, go))
        return False

    def leave(self, verb: StepVerb) -> None:
        """Give the turn to the next; harmless for a step that does not have it."""
        if self._holder is verb:
            self._holder = None
            if self._queue:
                self._holder, go = self._queue.popleft()
                go()

    def forget(self, journal: Journal) -> None:
        """Withdraw every step of a run that leaves this worker."""
        if self._holder is None:
            return
        self._queue = deque((verb, go) for verb, go in self._queue if verb.journal is not journal)
        if self._holder.journal is journal:
            self.leave(self._holder)
