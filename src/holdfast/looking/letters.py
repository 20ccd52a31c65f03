"""Dead letters as they are shown: one by one, and by their cause."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.clock import to_datetime
from holdfast.contract.heads import ERROR_HEAD
from holdfast.contract.rows import LetterRow
from holdfast.contract.waits import meant_error
from holdfast.looking.views import ErrorHead, LetterGroup, LetterView
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


def _error(error: ErrorData) -> ErrorHead:
    kind, message = meant_error(error.type, error.message[:ERROR_HEAD])
    return ErrorHead(type=kind, message=message)


def grouped(letters: Iterable[LetterView]) -> list[LetterGroup]:
    """Return letters, which come newest first, by workflow, step and class of error."""
    groups: dict[tuple[str, str, str], list[LetterView]] = {}
    for letter in letters:
        if not letter.outcome:
            kind = letter.error.type if letter.error is not None else ""
            groups.setdefault((letter.workflow, letter.step or letter.name, kind), []).append(letter)
    found = [
        LetterGroup(
            workflow=workflow,
            step=step,
            error=error,
            count=len(same),
            first=same[-1].at,
            last=same[0].at,
            example=same[0].id,
        )
        for (workflow, step, error), same in groups.items()
    ]
    return sorted(found, key=lambda group: (-group.count, group.workflow, group.step, group.error))
