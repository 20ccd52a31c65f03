"""The trail of all steps, if `step_trail` is set: one item of evidence for each end of a step, in its commit.

The history is for replay, and loops and continue-as-new shorten it; the trail is kept apart, and nothing shortens it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from holdfast.clock import new_id
from holdfast.contract.rows import EntryRow
from holdfast.contract.turns import Evidence
from holdfast.engine.runs.resident import Resident
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry

COMPLETED, FAILED = "step.completed", "step.failed"
_ENDS = {
    entries.StepCompleted.kind: COMPLETED,
    entries.ResultKept.kind: COMPLETED,
    entries.StepFailure.kind: FAILED,
}


def trail_of(resident: Resident, rows: Iterable[EntryRow]) -> list[Evidence]:
    """Return what entries add to the trail of a run: of a result only its hash, for a trail is kept for ever."""
    journal = resident.execution.journal
    if not journal.run.step_trail:
        return []
    trail: list[Evidence] = []
    for row in rows:
        kind = _ENDS.get(row.kind)
        if kind is None:
            continue
        end = decode_entry(row.kind, row.data)
        said: dict[str, object] = {"step": journal.names.path(row.location), "attempt": end.attempt}
        if kind == FAILED:
            said["error"] = end.error.brief()
        else:
            said["result"] = f"sha256:{hashlib.sha256(bytes(end.result)).hexdigest()}"
        trail.append(Evidence(id=new_id(), kind=kind, data=codec.encode(said).decode(), at=row.at))
    return trail
