"""What the end of an attempt, as reported by the worker that ran it, means for its step."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.bodies.judging import convicted, conviction, judge, misfit, raised_by, skipped_too_often
from holdfast.clock import Instant
from holdfast.context.steps import StepVerb
from holdfast.engine.steps.queue.wire import TaskEnd
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.entry import UNCOUNTED


class AfterAttempt(NamedTuple):
    """What is recorded of an attempt: a fact that ends the step, or a mark after which it is tried again."""

    fact: entries.Entry | None = None
    mark: entries.Entry | None = None
    retry_at: Instant | None = None
    """When it is tried again; None: at once."""


def end_of_attempt(
    verb: StepVerb, end: TaskEnd, now: Instant, errors: Mapping[str, type[BaseException]]
) -> AfterAttempt:
    """Judge an attempt by what its worker says of it, and count it."""
    if end.lost or end.isolated:
        return _lost(verb, end)
    if isinstance(end.skip, str):
        return _skipped(verb, end.skip, now + end.retry_in)
    if isinstance(end.result, msgspec.Raw):
        try:
            verb.decoded(bytes(end.result))
        except Exception as unfit:
            error = error_to_data(misfit(verb, unfit), retryable=False)
            return AfterAttempt(entries.StepFailure(verb.attempt, error))
        return AfterAttempt(entries.StepCompleted(verb.attempt, end.result))
    assert end.error is not None
    data, raised = raised_by(end.error, verb.activity, errors)
    judged = judge(verb, data, raised, now, random.random)
    if isinstance(judged.entry, entries.StepFailure):
        return AfterAttempt(judged.entry)
    verb.failures += not judged.postponed
    verb.settled, verb.retry_at, verb.last = True, judged.entry.retry_at, judged.entry
    return AfterAttempt(mark=judged.entry, retry_at=judged.entry.retry_at)


def _skipped(verb: StepVerb, reason: str, check_at: Instant) -> AfterAttempt:
    verb.skips += not reason.startswith(UNCOUNTED)
    failure = skipped_too_often(verb, reason)
    if failure is not None:
        return AfterAttempt(failure)
    verb.skipped, verb.retry_at = True, check_at
    verb.last = entries.AttemptSkipped(reason, check_at)
    return AfterAttempt(mark=verb.last, retry_at=check_at)


def _lost(verb: StepVerb, end: TaskEnd) -> AfterAttempt:
    why = end.lost
    if end.isolated:
        crashed = end.error is not None and "StepCrashed" in end.error.bases
        why, verb.in_process = ("crash", False) if crashed else ("cleared", True)
    verb.settled = True
    verb.crashes += why == "crash"
    loss = entries.AttemptLost(verb.attempt, why)
    return AfterAttempt(conviction(verb), loss) if convicted(verb) else AfterAttempt(mark=loss)
