"""Chains of rows: each carries the hash of the one before it, so that a change to one breaks the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.contract.rows import AuditRow, EvidenceRow

_encode = msgspec.json.Encoder().encode


def chained(previous: str, *fields: str | int) -> str:
    """Return the hash of a row: over the hash of the one before it and its own fields."""
    return hashlib.sha256(_encode([previous, *fields])).hexdigest()


def broken_link(rows: Sequence[AuditRow | EvidenceRow], previous: str = "", n: int = 0) -> int | None:
    """Return the number of the first row that does not continue the chain before it, None if all of them do."""
    for row in rows:
        n += 1
        if isinstance(row, AuditRow):
            fields: tuple[str | int, ...] = (row.n, row.at, row.actor, row.action, row.target, row.detail)
        else:
            fields = (row.run, row.n, row.id, row.kind, row.data, row.at)
        if row.n != n or row.previous != previous or row.hash != chained(previous, *fields):
            return row.n
        previous = row.hash
    return None
