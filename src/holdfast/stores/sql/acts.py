"""Searching the audit trail for faces, newest first: by its target's index, or down the trail up to a budget."""

from __future__ import annotations

from typing import Any

from holdfast.contract.heads import SCAN_BUDGET
from holdfast.contract.house import AuditFilter, AuditPage
from holdfast.contract.rows import AuditRow
from holdfast.stores.sql.conditions import Conditions
from holdfast.stores.sql.spans import Look, spans
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import record_of

_PIECE = 4_000


async def search_acts(look: Look, which: AuditFilter) -> AuditPage:
    """Return a page of the audit trail."""
    [(_, last)] = await look(lambda db: db.read("audit_ends", [()]))
    rows: list[AuditRow] = []
    scanned, top = 0, (last or 0) + 1 if which.before is None else which.before
    for span in await spans(look, "audit", which.at_from, which.at_until):
        bottom = span.low or 1
        top = min(top, span.high or top)
        while bottom < top:
            # The rows of one target have an index of their own.
            low = bottom if which.target is not None else max(bottom, top - min(_PIECE, SCAN_BUDGET - scanned))
            found = await look(_piece(which, which.limit - len(rows), low, top))
            rows += found
            scanned += len(found) if which.target is not None else top - low
            if len(rows) >= which.limit:
                return AuditPage(rows=rows, next=rows[-1].n, scanned=scanned)
            top = low
            if scanned >= SCAN_BUDGET:
                return AuditPage(rows=rows, next=top, partial=True, scanned=scanned)
    return AuditPage(rows=rows, next=None, scanned=scanned)


def _piece(which: AuditFilter, limit: int, low: int, top: int) -> Any:
    async def read(db: Statements) -> list[AuditRow]:
        wanted = Conditions(limit)
        wanted.add("audit.n >=", low)
        wanted.add("audit.n <", top)
        equal = {"audit.target": which.target, "audit.actor": which.actor, "audit.action": which.action}
        for column, text in equal.items():
            if text is not None:
                wanted.add(f"{column} =", text)
        if which.at_from is not None:
            wanted.add("audit.at >=", which.at_from)
        if which.at_until is not None:
            wanted.add("audit.at <", which.at_until)
        rows = await db.list("list_acts", str(wanted), tuple(wanted.values))
        return [record_of(AuditRow, row) for row in rows]

    return read
