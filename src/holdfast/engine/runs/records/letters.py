"""Dead letters of work: the arguments of the failed step, and how often it was tried."""

from __future__ import annotations

from holdfast.bodies.judging import convicted
from holdfast.clock import new_id
from holdfast.context.steps import FailedCall, StepVerb, arguments_of
from holdfast.contract.turns import NewLetter
from holdfast.definitions import HOOK_NAMES
from holdfast.errors import KeyConflict, StepSkipped
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, qualified_name
from holdfast.replay.entry import StepFailure
from holdfast.replay.location import is_undoing
from holdfast.replay.turn import Outcome

_NOT_TRIED = frozenset({qualified_name(StepSkipped), qualified_name(KeyConflict)})
"""Failures for which no body ran."""


def letter_of_run(outcome: Outcome, step: str) -> NewLetter:
    """Return the letter of a run that failed, `step` being the path of the call that it failed by."""
    call, error = outcome.origin.call, codec.encode(outcome.error).decode()
    if not isinstance(call, FailedCall):
        return NewLetter(id=new_id(), step=step, attempts=outcome.origin.attempts, error=error)
    return _letter(call, step, outcome.origin.attempts, error)


def letter_of_step(verb: StepVerb, failure: StepFailure) -> NewLetter:
    """Return the letter of a compensation, or of a step that the code does not wait for, that failed."""
    step, error = verb.journal.names.path(verb.location), codec.encode(failure.error).decode()
    call = FailedCall(
        verb.activity, verb.args, verb.kwargs, verb.failures, verb.crashes, verb.outlived, failure.error.type
    )
    return _letter(call, step, failure.attempt, error, compensation=is_undoing(verb.location))


def letter_of_hook(place: str, status: str, attempts: int, error: ErrorData) -> NewLetter:
    """Return the letter of a hook that is not called any more, since its run was terminated."""
    said = codec.encode(error).decode()
    return NewLetter(id=new_id(), step=f"{place}/{HOOK_NAMES[status]}", attempts=attempts, error=said)


def _letter(call: FailedCall, step: str, attempts: int, error: str, *, compensation: bool = False) -> NewLetter:
    return NewLetter(
        id=new_id(),
        step=step,
        attempts=attempts,
        error=error,
        failures=call.failures + (not convicted(call) and call.error not in _NOT_TRIED),
        arguments=arguments_of(call.activity.function, call.args, call.kwargs),
        compensation=compensation,
        idempotent=call.activity.settings.idempotent,
    )
