"""Searching the audit trail for faces, newest first: by its target's index, or down the trail up to a budget."""

from __future__ import annotations

from typing import Any

from holdfast.contract.heads import SCAN_BUDGET
from holdfast.contract.house import AuditFilter, AuditPage
from holdfast.contract.rows import AuditRow
from holdfast.stores.sql.conditions import Conditions
from holdfast.stores.sql.heads import Look
from holdfast.stores.sql.probing import Mark, after_instant, before_instant
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import record_of

_PIECE = 4_000


async def search_acts(look: Look, which: AuditFilter) -> AuditPage:
    """Return a page of the audit trail."""
    bottom, top = await _ends(look, which)
    rows: list[AuditRow] = []
    scanned = 0
    while bottom < top:
        # The rows of one target have an index of their own.
        low = bottom if which.target is not None else max(bottom, top - min(_PIECE, SCAN_BUDGET - scanned))
        found = await look(_piece(which, which.limit - len(rows), low, top))
        rows += found
        scanned += len(found) if which.target is not None else top - low
        if len(rows) >= which.limit:
            return AuditPage(rows=rows, next=rows[-1].n, scanned=scanned)
        top = low
        if scanned >= SCAN_BUDGET and bottom < top:
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


async def _ends(look: Look, which: AuditFilter) -> tuple[int, int]:
    """Return the numbers between which to look: rows have those from 1 on, one by one."""
    [(last,)] = await look(lambda db: db.read("last_act", [()]))
    if last is None:
        return 1, 1

    async def around(n: int) -> tuple[Mark | None, Mark | None]:
        async def read(db: Statements) -> list[Any]:
            wanted = Conditions(2)
            wanted.add("audit.n >=", n - 1)
            wanted.add("audit.n <=", n)
            return await db.list("list_acts", str(wanted), tuple(wanted.values))

        rows = {row.n: Mark(row.n, row.at) for row in (record_of(AuditRow, each) for each in await look(read))}
        return rows.get(n - 1), rows.get(n)

    bottom, top = 1, last + 1
    if which.at_from is not None:
        bottom = await before_instant(around, (1, last), which.at_from)
    if which.at_until is not None:
        top = await after_instant(around, (1, last), which.at_until)
    return bottom, min(top, which.before) if which.before is not None else top
