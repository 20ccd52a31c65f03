"""What an engine did in a bounded time, and which runs are still open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from holdfast.changes import Change
from holdfast.contract.rows import TERMINAL, Status


class LifespanReport(msgspec.Struct, frozen=True):
    """What `engine.run(lifespan=...)` did: runs ended and steps completed or failed, and how many runs are open."""

    completed: int
    failed: int
    cancelled: int
    steps_completed: int
    steps_failed: int
    open_runs: int
    """Runs that have not ended, whatever they wait for."""


class Lifespan:
    """Counts what an engine does."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, change: Change) -> None:
        """Count a change."""
        self._counts[change.type] += 1

    def over(self, stats: Mapping[str, int]) -> LifespanReport:
        """Return what came of it."""
        counts = self._counts
        return LifespanReport(
            completed=counts["run.completed"],
            failed=counts["run.failed"],
            cancelled=counts["run.cancelled"],
            steps_completed=counts["step.completed"],
            steps_failed=counts["step.failed"],
            open_runs=sum(stats[status] for status in Status if status not in TERMINAL),
        )
