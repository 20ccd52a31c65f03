"""Looking at all runs: whether a run exists, and which steps have not ended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.contract.rows import TERMINAL, RunFilter, RunRow, Status
from holdfast.definitions import Registry, check_run_id
from holdfast.engine.client.link import Linked
from holdfast.engine.views.run import Run, run_of
from holdfast.errors import BadInput
from holdfast.patience import patient
from holdfast.texts import check_text

if TYPE_CHECKING:
    from holdfast.engine.views.steps import Step

_OPEN = tuple(status for status in Status if status not in TERMINAL)
_OVER = frozenset({"completed", "failed", "cancelled"})
_PAGE = 200
_MOST = 10_000
_BEGINNING = datetime.min.replace(tzinfo=UTC)


class Looking(Linked):
    """What an engine answers about runs that its caller has no handle of."""

    registry: Registry

    @patient
    async def find(self, run_id: str) -> Run | None:
        """Return a run as it stands now, None if there is none with that id (any more)."""
        self._link.check_usable()
        row = await self._link.store.get(check_run_id(run_id))
        return run_of(row) if row is not None else None

    @patient
    async def stats(self) -> dict[str, int]:
        """Return how many runs there are of each status, unseen dead letters, and events that wait."""
        counts = await self._link.store.counts()
        stats = {str(status): counts.runs.get(status, 0) for status in Status}
        stats["dead_letters"] = sum(n for _, outcome, seen, n in counts.letters if not seen and not outcome)
        stats["pending_events"] = sum(counts.events.values())
        worker = self._link.current
        if worker is not None:
            stats["abandoned_threads"] = worker.executor.abandoned
        return stats

    @patient
    async def pending_steps(self, *, workflow: str | None = None, limit: int = 100) -> list[Step]:
        """Return steps of all open runs that have not ended: waiting, skipped, pending or running.

        Those of a higher priority come first, then those that go on first. It reads the histories of the open runs (of
        one `workflow`): a question for people, not for a loop.
        """
        if not 1 <= limit <= _MOST:
            raise BadInput(f"limit must be between 1 and {_MOST:,}, not {limit!r}")
        if workflow is not None:
            check_text(workflow, "workflow", printable=False)
        self._link.check_usable()
        found: list[Step] = []
        for status in _OPEN:
            before: int | None = None
            while rows := await self._page(workflow, status, before):
                found += await self._open_steps(rows)
                before = rows[-1].key
        found.sort(key=lambda step: (-(step.priority or 0), step.next_attempt_at or step.created_at or _BEGINNING))
        return found[:limit]

    async def _page(self, workflow: str | None, status: Status, before: int | None) -> list[RunRow]:
        which = RunFilter(workflow=workflow, status=status, before=before, limit=_PAGE)
        return await self._link.store.runs(which)

    async def _open_steps(self, rows: list[RunRow]) -> list[Step]:
        from holdfast.engine.views.steps import activities_of, steps_of

        found: list[Step] = []
        runs = {row.key: row for row in rows}
        for history in await self._link.store.load(list(runs)):
            row = runs[history.key]
            known = activities_of(self.registry, row.workflow, row.version)
            beats = await self._link.store.beats(row.key)
            steps = steps_of(row.id, history.entries, beats, row.ended, row.generation, known)
            found += [step for step in steps if step.status not in _OVER]
        return found
