"""What the end of a turn means: checked against what the workflow declares, and put into the form that is stored."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import codec
from holdfast.clock import Instant
from holdfast.codec import error_to_data
from holdfast.definitions import Workflow
from holdfast.records import End, Status
from holdfast.replay.entry import ChildEnded, encode_entry
from holdfast.replay.turn import Ending, Outcome, Turn


def checked(workflow: Workflow[Any, Any], turn: Turn) -> Turn:
    """Fail a run whose result does not fit what its workflow declares, rather than everybody who asks for it."""
    outcome = turn.outcome
    if outcome is None or outcome.ending is not Ending.COMPLETED:
        return turn
    try:
        codec.decode(outcome.payload or "null", workflow.result_type, f"the result of workflow {workflow.name!r}")
    except Exception as unfit:
        unfit.add_note(f"it is declared to return {workflow.result_type!r}")
        return turn._replace(outcome=Outcome(Ending.FAILED, error=error_to_data(unfit)))
    return turn


def end_of(outcome: Outcome, now: Instant) -> End:
    """Return the end of a run as the store takes it, with what its parent is told."""
    error = codec.encode(outcome.error).decode() if outcome.error is not None else None
    told = ChildEnded(outcome.ending.value, msgspec.Raw(outcome.payload or "null"), outcome.error)
    return End(
        status=Status(outcome.ending.value), at=now, output=outcome.payload, error=error, payload=encode_entry(told)
    )
