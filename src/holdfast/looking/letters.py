"""Dead letters as they are shown: one by one, and by their cause."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.clock import to_datetime
from holdfast.contract.heads import ERROR_HEAD
from holdfast.contract.house import LetterGroupRow
from holdfast.contract.rows import LetterRow
from holdfast.contract.waits import meant_error
from holdfast.looking.views import ErrorHead, LetterDetail, LetterGroup, LetterView
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData


def letter_view(row: LetterRow) -> LetterView:
    """Return a dead letter without its payload."""
    error = codec.decode(row.error, ErrorData) if row.error is not None else None
    return LetterView(
        id=row.id,
        kind=row.kind,
        run=row.run,
        workflow=row.workflow,
        step=row.step,
        name=row.name,
        attempts=row.attempts,
        at=to_datetime(row.at),
        error=_error(error) if error is not None else None,
        seen=row.acknowledged is not None,
        outcome=row.outcome,
    )


def letter_detail(row: LetterRow) -> LetterDetail:
    """Return a dead letter with what it holds."""
    held = row.payload if row.kind == "event" else row.arguments
    return LetterDetail(
        letter=letter_view(row),
        error=codec.decode(row.error) if row.error is not None else None,
        payload=codec.readable(held or ""),
        target_status=row.target_status,
        sent_at=to_datetime(row.sent) if row.sent is not None else None,
        compensation=row.compensation,
        idempotent=row.idempotent,
    )


def _error(error: ErrorData) -> ErrorHead:
    kind, message = meant_error(error.type, error.message[:ERROR_HEAD])
    return ErrorHead(type=kind, message=message)


def groups_of(rows: Iterable[LetterGroupRow]) -> list[LetterGroup]:
    """Return dead letters by workflow, step and class of error, the most frequent first."""
    groups: dict[tuple[str, str, str], LetterGroup] = {}
    for row in rows:
        kind, _ = meant_error(row.error_type, row.message)
        cause = (row.workflow, row.step or row.name, kind)
        known = groups.get(cause)
        groups[cause] = LetterGroup(
            workflow=row.workflow,
            step=row.step or row.name,
            error=kind,
            count=row.count + (known.count if known is not None else 0),
            first=min(to_datetime(row.first), known.first) if known is not None else to_datetime(row.first),
            last=max(to_datetime(row.last), known.last) if known is not None else to_datetime(row.last),
            example=max(row.newest, known.example) if known is not None else row.newest,
        )
    return sorted(groups.values(), key=lambda group: (-group.count, group.workflow, group.step, group.error))
