"""Rows of a chain as they are stored, so that a reader can check them: see `ops/audit.py` for the rule."""

from __future__ import annotations

import msgspec

from holdfast.contract.rows import AuditRow, EvidenceRow
from holdfast.contract.store import Store
from holdfast.looking.control import check_known


class ChainRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row: `hash` is the SHA-256 of the JSON array of `previous` and the `fields`, in their order."""

    n: int
    previous: str
    fields: list[str | int]
    hash: str

    def audit_row(self) -> AuditRow:
        """Return it as the store has it: something that was done."""
        return msgspec.convert(
            dict(zip(_AUDIT, self.fields, strict=True)) | {"previous": self.previous, "hash": self.hash}, AuditRow
        )

    def evidence_row(self) -> EvidenceRow:
        """Return it as the store has it: something that a run put on record."""
        return msgspec.convert(
            dict(zip(_EVIDENCE, self.fields, strict=True)) | {"previous": self.previous, "hash": self.hash}, EvidenceRow
        )


class ChainPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a chain, oldest first; `next` is the number after which there are more."""

    items: list[ChainRow]
    next: int | None = None


_AUDIT = ("n", "at", "actor", "action", "target", "detail")
_EVIDENCE = ("run", "n", "id", "kind", "data", "at")


async def chain_page(store: Store, run_id: str | None, after: int, limit: int) -> ChainPage:
    """Return rows of the audit trail, or of what a run put on record, those after a number."""
    rows: list[AuditRow] | list[EvidenceRow]
    rows = await (store.audit(None, after, limit + 1) if run_id is None else store.evidence(run_id, after, limit + 1))
    if not rows and not after and run_id is not None:
        await check_known(store, run_id)
    items = [
        ChainRow(
            n=row.n,
            previous=row.previous,
            fields=[getattr(row, name) for name in (_AUDIT if isinstance(row, AuditRow) else _EVIDENCE)],
            hash=row.hash,
        )
        for row in rows[:limit]
    ]
    return ChainPage(items=items, next=items[-1].n if len(rows) > limit else None)
