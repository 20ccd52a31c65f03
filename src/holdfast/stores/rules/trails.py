"""Trails that only grow: acts of operators, and evidence of runs; each row carries the hash of the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.chains import chained
from holdfast.clock import Instant
from holdfast.contract.operations import Delivered, Done, Fenced, KeyHeld, Outcome, Published, Refused, SendMessage
from holdfast.contract.turns import Audit, Evidence, PublishEvent
from holdfast.stores.sql.tables import Row

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


class TrailRules:
    """What one batch adds to the trails."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._ends: dict[str, tuple[int, str]] = {}
        self._audit: list[Row] = []
        self._evidence: list[Row] = []

    async def audit(self, audit: Audit, target: str, at: Instant) -> None:
        """Record what was done and by whom, in the transaction that does it."""
        n, previous = await self._end("last_audit", "", ())
        digest = chained(previous, n + 1, at, audit.actor, audit.action, target, audit.detail)
        self._audit.append((n + 1, at, audit.actor, audit.action, target, audit.detail, previous, digest))
        self._ends[""] = (n + 1, digest)

    async def audited(self, audit: Audit | None, target: str, at: Instant, outcome: Outcome) -> Outcome:
        """Record what was done if anything was, and return what came of it."""
        in_vain = isinstance(outcome, Refused | KeyHeld | Fenced) or (isinstance(outcome, Done) and not outcome.count)
        if audit is not None and not in_vain:
            await self.audit(audit, target, at)
        return outcome

    async def told(self, what: SendMessage | PublishEvent, target: str, outcome: Outcome) -> Outcome:
        """Record what was sent or published, unless it was before."""
        again = isinstance(outcome, Delivered | Published) and outcome.duplicate
        return outcome if again else await self.audited(what.audit, target, what.at, outcome)

    async def evidence(self, run: str, items: Sequence[Evidence]) -> None:
        """Add to a run's own trail."""
        for item in items:
            n, previous = await self._end("last_evidence", run, (run,))
            digest = chained(previous, run, n + 1, item.id, item.kind, item.data, item.at)
            self._evidence.append((run, n + 1, item.id, item.kind, item.data, item.at, previous, digest))
            self._ends[run] = (n + 1, digest)

    async def purge(self, run: str) -> int:
        """Delete all that a run put on record."""
        self._ends.pop(run, None)
        return await self._batch.statements.change("purge_evidence", (run,))

    async def _end(self, statement: str, trail: str, row: Row) -> tuple[int, str]:
        end = self._ends.get(trail)
        if end is None:
            rows = await self._batch.statements.read(statement, [row])
            end = (int(rows[0][0] or 0), str(rows[0][1])) if rows else (0, "")
        return end

    def pending(self) -> list[tuple[str, Sequence[Row]]]:
        """Return what is to be written, and forget it."""
        work: list[tuple[str, Sequence[Row]]] = [("insert_audit", self._audit), ("insert_evidence", self._evidence)]
        self._audit, self._evidence = [], []
        return work
