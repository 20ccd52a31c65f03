"""Evidence of runs on Temporal: it belongs to the run, and lasts as long as the namespace keeps the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.clock import to_datetime
from holdfast.errors import NoSuchRun, NotOffered
from holdfast.ops.audit import EvidenceRecord, Verdict
from holdfast.payloads import codec
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.wire import linked


class TemporalEvidence:
    """The part of `Engine.audit` that is about one run; there is no trail of what callers did."""

    def __init__(self, port: TemporalPort) -> None:
        self._port = port

    async def evidence(self, run_id: str) -> list[EvidenceRecord]:
        """Return what a run put on record, oldest first."""
        try:
            carry = await self._port.carry(run_id)
        except NoSuchRun:
            return []
        return [
            EvidenceRecord(run_id=run_id, n=n, id=id, kind=kind, data=codec.readable(data), at=to_datetime(at))
            for n, (id, kind, data, at, _) in enumerate(carry.evidence, 1)
        ]

    async def verify_evidence(self, run_id: str) -> Verdict:
        """Check the chain of what a run put on record."""
        items = (await self._port.carry(run_id)).evidence
        last = ""
        for n, (piece, sound) in enumerate(zip(items, linked([piece[:4] for piece in items]), strict=True)):
            if piece != sound:
                return Verdict(ok=False, checked=n, broken_at=n + 1, last=last)
            last = piece[4]
        return Verdict(ok=True, checked=len(items), last=last)

    if not TYPE_CHECKING:  # type checkers know that there is nothing else

        def __getattr__(self, name: str) -> Any:
            instead = "what happened to a run is in Temporal's history, and who started it in its memo"
            raise NotOffered(f"engine.audit.{name}", "audit", instead)
