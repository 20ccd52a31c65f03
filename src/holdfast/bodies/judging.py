"""What the end of an attempt means for its step: its result, another try, its failure, or a loss that may convict it.

Pure: no runtime, no store. A runtime passes the outcome of an attempt, and records the entry that it gets back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from holdfast.bodies.admission import is_hopeless
from holdfast.clock import Instant, micros
from holdfast.context.steps import SUSPECT_AFTER, FailedCall, StepVerb
from holdfast.definitions import Activity
from holdfast.errors import StepCrashed, StepSkipped, UndecodablePayload
from holdfast.payloads.codec import ErrorData, error_from_data, error_to_data
from holdfast.payloads.errors import tamed
from holdfast.policy import Retry, asked_delay
from holdfast.replay.entry import AttemptFailed, StepFailure

DOUBTFUL = 10
"""How many times the crash limit an attempt may be lost that had run for long, or while workers die that did not run
it: a step that kills slowly, or beside another that kills, is convicted too."""


class Judgement(NamedTuple):
    """What follows from an attempt that failed."""

    entry: AttemptFailed | StepFailure
    """To be recorded: another attempt follows, or the step has failed for good."""
    postponed: bool = False
    """Whether the body asked for a later attempt itself, which counts as no failure."""
    transient: bool = False
    """Whether the service seems to be down, rather than what was asked of it wrong."""


def raised_by(
    error: BaseException | ErrorData, activity: Activity[..., object], errors: Mapping[str, type[BaseException]]
) -> tuple[ErrorData, BaseException]:
    """Return what an attempt raised, as data and as an exception that may be compared with classes."""
    if type(error) is ErrorData:
        return error, error_from_data(error, {**errors, **activity.errors})
    assert isinstance(error, BaseException)
    return error_to_data(error), tamed(error)


def judge(verb: StepVerb, data: ErrorData, raised: BaseException, now: Instant, draw: Callable[[], float]) -> Judgement:
    """Judge an attempt that raised; `draw` gives the number that spreads the delay before the next one."""
    policy = verb.activity.settings.retry
    wait = asked_delay(raised)
    if wait is not None:
        return Judgement(AttemptFailed(verb.attempt, data, now + wait), postponed=True)
    if data.postpones:  # but does not say for how long: it must not look like one that does, or no attempt counts
        data = msgspec.structs.replace(data, bases=[base for base in data.bases if base != "RetryAfter"])
    failures = verb.failures + 1
    retryable = not is_hopeless(policy, raised, data) and policy.is_retryable(raised)
    if not retryable:
        data = msgspec.structs.replace(data, retryable=False)
    if not retryable or _exhausted(policy, failures):
        return Judgement(StepFailure(verb.attempt, data), transient=retryable)
    retry_at = now + micros(policy.delay(failures, draw()))
    return Judgement(AttemptFailed(verb.attempt, data, retry_at), transient=True)


def _exhausted(policy: Retry, failures: int) -> bool:
    return policy.max_attempts is not None and failures >= policy.max_attempts


def misfit(verb: StepVerb, unfit: Exception) -> Exception:
    """Return what is wrong with a result that does not fit what its activity declares, in words that name the step."""
    if not isinstance(unfit, UndecodablePayload):
        return unfit
    path, declared = verb.journal.names.path(verb.location), verb.activity.result_type
    return UndecodablePayload(f"step {path!r} is declared to return {declared!r}: {unfit}")


def convicted(verb: StepVerb | FailedCall) -> bool:
    """Tell whether a step was lost with its process so often that it fails."""
    limit = verb.activity.settings.retry.crash_limit
    # A limit of one or two says that the step must not run again, whatever killed it.
    doubtful = limit if limit <= SUSPECT_AFTER else limit * DOUBTFUL
    return verb.crashes >= limit or verb.crashes + verb.outlived >= doubtful


def conviction(verb: StepVerb) -> StepFailure:
    """Return the end of a step that was lost too often."""
    path, died = verb.journal.names.path(verb.location), verb.crashes + verb.outlived
    error = StepCrashed(f"step {path!r} crashed during execution: {died} attempts died with their process")
    return StepFailure(verb.attempt, error_to_data(error))


def skipped_too_often(verb: StepVerb, reason: str) -> StepFailure | None:
    """Return the end of a step whose condition said not now more often than it may, None if it may wait on."""
    most = verb.activity.settings.max_skips
    if most is None or verb.skips <= most:
        return None
    path, said = verb.journal.names.path(verb.location), f": {reason}" if reason else ""
    error = StepSkipped(f"step {path!r} was skipped {verb.skips} times, more than max_skips allows{said}")
    return StepFailure(verb.attempt, error_to_data(error))
