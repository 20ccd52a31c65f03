"""Attempts that another worker runs: the record that it gets, and the record of the end that it returns."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from holdfast.bodies.admission import asking
from holdfast.bodies.child_process import write_arguments
from holdfast.clock import Instant, micros
from holdfast.context.steps import StepVerb
from holdfast.contract.turns import NewTask
from holdfast.engine.steps.limits.keys import made_key
from holdfast.payloads.codec import ErrorData

_MOST_PRIORITY = 2**31 - 1
_encode = msgspec.json.Encoder().encode


class TaskCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the worker that runs an attempt has to know, beside the run and the activity.

    `key` is what names the work to the outside world, `own_key` the one that the activity made, if it did. How long the
    attempt may take is for the run that called the step to say; all else is for the worker's own definition.
    """

    step: str
    arguments: msgspec.Raw
    key: str
    called_at: Instant
    own_key: str | None = None
    timeout: int | None = None
    heartbeat_timeout: int | None = None
    suspect: bool = False
    in_process: bool = False


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an attempt: a result, an error, a condition that said not now, or nothing (`lost` says how)."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorData | None = None
    isolated: bool = False
    """Whether it ran in a child process because it was a suspect."""
    skip: str | msgspec.UnsetType = msgspec.UNSET
    retry_in: int = 0
    lost: str = ""

    def encoded(self) -> str:
        """Return it as it stands in a run's inbox."""
        return _encode(self).decode()


read_call = msgspec.json.Decoder(TaskCall).decode
read_end = msgspec.json.Decoder(TaskEnd).decode


def new_task(verb: StepVerb) -> NewTask:
    """Return the attempt of a step that is being counted, for the worker that serves its queue.

    Raises:
        NotSerializable, DefinitionError: its arguments cannot reach another worker.
        Exception: what the activity's idempotency_key or limit_key raised.
    """
    settings, step = verb.activity.settings, verb.journal.names.path(verb.location)
    key: object = None
    if settings.idempotency_key is not None:
        with asking("idempotency_key", settings):
            key = settings.idempotency_key(*verb.args, **verb.kwargs)
    own_key = str(key) if key is not None else None
    arguments = write_arguments(verb.activity.function, verb.args, verb.kwargs, step, "the worker that runs it")
    call = TaskCall(
        step=step,
        arguments=msgspec.Raw(arguments),
        key=verb.idempotency_key(own_key),
        called_at=verb.called_at,
        own_key=own_key,
        timeout=_micros(settings.timeout),
        heartbeat_timeout=_micros(settings.heartbeat_timeout),
        suspect=verb.suspect,
        in_process=verb.in_process,
    )
    return NewTask(
        location=verb.location,
        attempt=verb.attempt,
        queue=settings.queue or "",
        activity=settings.name,
        payload=_encode(call).decode(),
        priority=max(-_MOST_PRIORITY, min(settings.priority, _MOST_PRIORITY)),
        limit_key=made_key(verb),
    )


def _micros(duration: timedelta | None) -> int | None:
    return micros(duration) if duration is not None else None
