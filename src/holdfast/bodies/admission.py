"""Before an attempt begins: the app's context is read, and the activity's condition says whether it may run now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.bodies.context import StepContext
from holdfast.context.steps import StepVerb
from holdfast.definitions import ActivityOptions, NotReady
from holdfast.errors import DefinitionError, NotSerializable, UndecodablePayload
from holdfast.payloads.codec import ErrorData
from holdfast.policy import Retry
from holdfast.replay.loop import is_done

_HOPELESS = (NotSerializable, UndecodablePayload, DefinitionError)
"""Failures that another attempt would only repeat."""


def not_ready(
    context: StepContext, settings: ActivityOptions, app: Callable[[], Mapping[str, Any]] | None
) -> NotReady | None:
    """Return why an attempt may not run now, None if it may; its context is told what the app says.

    Raises:
        BaseException: whatever the app or the condition raise, with a note that says which.
    """
    if app is not None:
        with asking("Engine(context=...)", settings):
            context.app = dict(app())
    if settings.run_when is None:
        return None
    with asking("run_when", settings):
        ready = settings.run_when(context)
        if ready:
            return None
        return ready if isinstance(ready, NotReady) else NotReady()


@contextmanager
def asking(whom: str, settings: ActivityOptions) -> Iterator[None]:
    """Add to what is raised whose doing it was."""
    try:
        yield
    except BaseException as error:
        with suppress(BaseException):  # a note is not worth losing what was raised
            error.add_note(f"raised by {whom} of activity {settings.name!r}")
        raise


def is_hopeless(policy: Retry, raised: BaseException, data: ErrorData) -> bool:
    """Whether another attempt would only repeat a failure, or is refused by name."""
    return isinstance(raised, _HOPELESS) or policy.refuses_by_name(data)


def is_transient(policy: Retry, raised: BaseException, data: ErrorData) -> bool:
    """Whether a failure says that the service is down, rather than that what was asked of it is wrong."""
    return not is_hopeless(policy, raised, data) and policy.is_retryable(raised)


def is_counted(verb: object) -> bool:
    """Whether this is a step whose attempt the commit in flight counts, and that would begin with its answer."""
    if not isinstance(verb, StepVerb) or is_done(verb) or verb.settled or verb.skipped:
        return False
    return verb.activity.queue is None and not verb.activity.settings.transaction
