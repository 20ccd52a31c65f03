"""Suspects that cannot run in a child process run here one after another.

Each begins its attempt only when no other is under way: a third loss then convicts the step that ran, and none that
was merely waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast.context.steps import StepVerb
from holdfast.replay.journal import Journal


class SuspectTurns:
    """Whose turn it is."""

    def __init__(self) -> None:
        self.holder: StepVerb | None = None
        """The step that has the turn."""
        self._queue: deque[tuple[StepVerb, Callable[[], None]]] = deque()

    def ask(self, verb: StepVerb, go: Callable[[], None]) -> bool:
        """Return True if the step may begin now; otherwise `go` is called when it may."""
        if self.holder is None:
            self.holder = verb
            return True
        self._queue.append((verb, go))
        return False

    def leave(self, verb: StepVerb) -> None:
        """Give the turn to the next; harmless for a step that does not have it."""
        if self.holder is verb:
            self.holder = None
            if self._queue:
                self.holder, go = self._queue.popleft()
                go()

    def forget(self, journal: Journal) -> None:
        """Withdraw every step of a run that leaves this worker."""
        if self.holder is None:
            return
        self._queue = deque((verb, go) for verb, go in self._queue if verb.journal is not journal)
        if self.holder.journal is journal:
            self.leave(self.holder)
