"""The audit trail: who did what, and what runs put on record, in chains that every reader can check.

The hash rule. Rows are numbered from 1 without gaps. Each carries the `hash` of the row before it as `previous` (empty
in the first) and its own `hash`: the SHA-256, in lower-case hexadecimal, of the UTF-8 text of a JSON array without
white space,

    audit:     [previous, n, at, actor, action, target, detail]
    evidence:  [previous, run, n, id, kind, data, at]

where `at` is in microseconds since 1970 UTC, and `detail` and `data` are strings as stored, not decoded. In Python:

    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    hashlib.sha256(text.encode()).hexdigest() == row["hash"]

There is one chain of audit rows per database, and one of evidence per run. A chain shows every change to its rows
except one: that its last rows were cut off. To detect that, keep `Verdict.last` in another place and look for it later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from holdfast.chains import broken_link
from holdfast.clock import to_datetime
from holdfast.contract.operations import Done, Purge, PutOnRecord, Refused
from holdfast.contract.rows import AuditRow, EvidenceRow
from holdfast.definitions import check_run_id
from holdfast.errors import BadInput, NoSuchRun
from holdfast.ops.port import Port, audited
from holdfast.patience import patient, within
from holdfast.payloads import codec
from holdfast.texts import check_text

_PAGE = 1000
_MOST = 1000


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Something an operator did: the `n`th of all, to a run, a dead letter, a schedule or a kind of rows."""

    n: int
    at: datetime
    actor: str
    action: str
    target: str
    detail: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRecord:
    """Something a run put on record."""

    run_id: str
    n: int
    id: str
    kind: str
    data: Any = field(repr=False)
    at: datetime


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What checking a chain found: so many rows hold, up to the hash `last`; the row `broken_at` does not."""

    ok: bool
    checked: int
    broken_at: int | None = None
    last: str = ""


class AuditTrail:
    """Reads and checks what is on record; nothing changes it, and only `purge_evidence` deletes of it."""

    def __init__(self, port: Port) -> None:
        self._port = port

    @property
    def _call_patience(self) -> float:
        return self._port.patience

    @patient
    async def records(self, *, target: str | None = None, limit: int = 100, after: int = 0) -> list[AuditRecord]:
        """Return what people did (to one target), oldest first; `after` is the `n` of the last of the previous page."""
        if not 1 <= limit <= _MOST:
            raise BadInput(f"limit must be between 1 and {_MOST:,}, not {limit!r}")
        if target is not None:
            check_text(target, "target", printable=False)
        rows = await self._port.store.audit(target, after, limit)
        return [
            AuditRecord(
                n=row.n,
                at=to_datetime(row.at),
                actor=row.actor,
                action=row.action,
                target=row.target,
                detail=codec.readable(row.detail),
            )
            for row in rows
        ]

    async def evidence(self, run_id: str) -> list[EvidenceRecord]:
        """Return what a run put on record, oldest first; also of a run that was purged."""
        return [
            EvidenceRecord(
                run_id=row.run, n=row.n, id=row.id, kind=row.kind, data=codec.readable(row.data), at=to_datetime(row.at)
            )
            async for row in self._pages(run_id)
            if isinstance(row, EvidenceRow)
        ]

    @patient
    async def shown(
        self, run_id: str, action: str, *, by: str, reason: str = "", detail: Mapping[str, object] | None = None
    ) -> None:
        """Put on record that a person was shown something of a run, before it is shown; nothing else is changed.

        Raises:
            NoSuchRun: there is no such run.
        """
        check_run_id(run_id)
        check_text(action, "action", printable=False)
        audit = audited(self._port, by, action, **(detail or {}), reason=reason or None)
        outcome = await self._port.apply(PutOnRecord(target=run_id, at=self._port.clock.now(), audit=audit))
        if isinstance(outcome, Refused):
            raise NoSuchRun(run_id)

    @patient
    async def purge_evidence(self, run_id: str, *, by: str, reason: str) -> int:
        """Delete all that a run put on record, and return how many items that were.

        Retention never does. That it was done, by whom and why, stays in the audit trail.

        Raises:
            BadInput: the run is open, and puts more on record.
        """
        audit = audited(self._port, by, "evidence.purge", reason=reason)
        row = await self._port.store.get(check_run_id(run_id))
        if row is not None and not row.status.is_terminal:
            raise BadInput(f"run {run_id!r} is {row.status}: its evidence can be purged when it has ended")
        now = self._port.clock.now()
        outcome = await self._port.apply(Purge(what="evidence", before=now, at=now, run=run_id, audit=audit))
        assert isinstance(outcome, Done)
        return outcome.count

    async def verify(self) -> Verdict:
        """Check the chain of everything people did."""
        return await self._verify(None)

    async def verify_evidence(self, run_id: str) -> Verdict:
        """Check the chain of what a run put on record; a run that has nothing on record has a chain of no rows."""
        return await self._verify(run_id)

    async def export(self, run_id: str | None = None) -> AsyncIterator[bytes]:
        """Yield everything people did, or what one run put on record, as lines of JSON that others can check.

        Each line is one row with the fields of the hash rule (see this module) and `hash`.
        """
        async for row in self._pages(run_id):
            yield msgspec.json.encode(row) + b"\n"

    async def _verify(self, run_id: str | None) -> Verdict:
        checked, last = 0, ""
        async for row in self._pages(run_id):
            broken = broken_link([row], last, checked)
            if broken is not None:
                return Verdict(ok=False, checked=checked, broken_at=broken, last=last)
            checked, last = checked + 1, row.hash
        return Verdict(ok=True, checked=checked, last=last)

    async def _pages(self, run_id: str | None) -> AsyncIterator[AuditRow | EvidenceRow]:
        store, after = self._port.store, 0
        if run_id is not None:
            check_run_id(run_id)
        while True:
            rows: list[AuditRow] | list[EvidenceRow]
            if run_id is None:
                rows = await within(self._call_patience, store.audit(None, after, _PAGE))
            else:
                rows = await within(self._call_patience, store.evidence(run_id, after, _PAGE))
            for row in rows:
                yield row
            if len(rows) < _PAGE:
                return
            after = rows[-1].n
