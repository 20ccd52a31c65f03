"""Changes: what an engine reports to its observers about the entries of a committed turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.changes import Change, step_name
from holdfast.clock import to_datetime
from holdfast.contract.rows import EntryRow, Status
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.location import Names, is_ending, is_undoing

Data = dict[str, Any]


class _Report(NamedTuple):
    """How one kind of entry is told: its type, and for an attempt which one and more about it."""

    type: str
    data: Callable[[Any], Data]
    of_step: bool = True
    status: str = ""


def changes_of(run_id: str, workflow: str, names: Names, rows: Iterable[EntryRow]) -> Iterator[Change]:
    """Yield what to tell about new entries of a run, in their order; entries that are not told yield nothing."""
    reopened = False
    for row in rows:
        report = _REPORTS.get(row.kind)
        if report is None:
            continue
        if row.kind == entries.Reopened.kind:
            if reopened:
                continue  # one mark for each step that runs again, but it is one reopening
            reopened = True
        entry = decode_entry(row.kind, row.data)
        if is_ending(row.location) and row.kind in _FAILURES:
            path, error = names.path(row.location), entry.error
            told = {"callback": step_name(path), "error": f"{error.type}: {error.message}"}
            yield Change(type="callback.error", at=to_datetime(row.at), run_id=run_id, workflow=workflow, data=told)
        yield Change(
            type=_undoing(report.type) if is_undoing(row.location) else report.type,
            at=to_datetime(row.at),
            run_id=run_id,
            workflow=workflow,
            step=names.path(row.location) if report.of_step else "",
            attempt=getattr(entry, "attempt", int(row.kind == entries.StepBegun.kind)),
            status=report.status,
            data=report.data(entry),
        )


def _undoing(type: str) -> str:
    """Return the type for the step of a compensation; its attempts fail and are lost like any other's."""
    return type.replace("step.", "compensation.") if type in _OF_COMPENSATIONS else type


def _nothing(entry: Any) -> Data:
    return {}


_FAILURES = frozenset({entries.AttemptFailed.kind, entries.StepFailure.kind})
_OF_COMPENSATIONS = frozenset({"step.started", "step.completed", "step.failed"})

_REPORTS: dict[int, _Report] = {
    entries.StepBegun.kind: _Report("step.started", _nothing),
    entries.AttemptBegun.kind: _Report("step.started", _nothing),
    entries.StepCompleted.kind: _Report("step.completed", lambda entry: {"result": codec.decode(bytes(entry.result))}),
    entries.StepFailure.kind: _Report("step.failed", lambda entry: {"error": entry.error.brief()}),
    entries.AttemptFailed.kind: _Report(
        "attempt.failed", lambda entry: {"error": entry.error.brief(), "retry_at": to_datetime(entry.retry_at)}
    ),
    entries.AttemptLost.kind: _Report("attempt.lost", lambda entry: {"why": entry.why}),
    entries.AttemptSkipped.kind: _Report(
        "step.skipped", lambda entry: {"reason": entry.reason, "check_at": to_datetime(entry.check_at)}
    ),
    entries.MessageReceived.kind: _Report(
        "message.received",
        lambda entry: {"name": entry.name, "id": entry.id, "source": entry.source or "message"},
        of_step=False,
    ),
    entries.AttributesSet.kind: _Report(
        "attributes.set", lambda entry: {"attributes": codec.decode(bytes(entry.values))}, of_step=False
    ),
    entries.EvidenceAdded.kind: _Report(
        "evidence.added", lambda entry: {"kind": entry.what, "id": entry.id}, of_step=False
    ),
    entries.CancelRequested.kind: _Report(
        "run.cancelling",
        lambda entry: {"compensate": entry.compensate},
        of_step=False,
        status=Status.CANCELLING.value,
    ),
    entries.Reopened.kind: _Report("run.reopened", lambda entry: {"how": entry.how}, of_step=False),
}
