"""Answers of the server as holdfast's own errors and values: refusals, errors of queries, and how a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError, CancelledError, TerminatedError
from temporalio.service import RPCError, RPCStatusCode

from holdfast import errors
from holdfast.contract.rows import RunStanding, Status
from holdfast.errors import HoldfastError, Moved, NoSuchRun, StepFailed, StoreUnreachable
from holdfast.payloads import codec
from holdfast.payloads.errors import ErrorData, error_from_data
from holdfast.temporal.sdk import attribute_of

ENDED: Mapping[WorkflowExecutionStatus, Status] = {
    WorkflowExecutionStatus.COMPLETED: Status.COMPLETED,
    WorkflowExecutionStatus.FAILED: Status.FAILED,
    WorkflowExecutionStatus.TIMED_OUT: Status.FAILED,
    WorkflowExecutionStatus.CANCELED: Status.CANCELLED,
    WorkflowExecutionStatus.TERMINATED: Status.CANCELLED,
}
"""What a run is whose execution Temporal says was closed, unless it went on in another one."""

_NO_REASON = "Workflow execution terminated"
"""What the SDK says of a run that was terminated without a reason."""


def refused(run_id: str, error: RPCError) -> HoldfastError:
    """Return what is raised when the server refused something, or did not answer."""
    if error.status is RPCStatusCode.NOT_FOUND:
        return NoSuchRun(run_id)
    words = str(error).split("\n", 1)[0][:300]
    if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return StoreUnreachable(
            f"no worker answered for run {run_id!r} in time: is a TemporalEngine open that knows its workflow?"
        )
    return StoreUnreachable(f"the Temporal server did not do what was asked for run {run_id!r}: {words}")


def named_error(run_id: str, words: str, registered: Mapping[str, type[BaseException]]) -> BaseException:
    """Return the error of a query as the class that its words begin with, if that is known here."""
    name, _, message = words.partition(": ")
    if name == Moved.__name__:
        return Moved(run_id, message)
    known = f"{errors.__name__}.{name}" if hasattr(errors, name) else name
    raised = error_from_data(ErrorData(type=known, message=message, args=[message]), registered)
    return raised if isinstance(raised, Exception) and not isinstance(raised, StepFailed) else HoldfastError(words)


def moved_of(run_id: str, memo: Mapping[str, Any]) -> Moved | None:
    """Return what is raised where a run is called that has left for another runtime, by its memo."""
    return Moved(run_id, str(memo["moved"])) if memo.get("moved") else None


def ended_of(cause: BaseException | None) -> tuple[RunStanding, tuple[str | None, str | None]]:
    """Return how a run ended that did not complete, what was undone, and the step that failed."""
    if isinstance(cause, TerminatedError):
        reason = str(cause)
        error = ErrorData(
            type="Terminated", message=reason if reason != _NO_REASON else "the run was terminated", retryable=False
        )
        return RunStanding(Status.CANCELLED, error=codec.encode(error).decode()), (None, None)
    if isinstance(cause, CancelledError):
        return RunStanding(Status.CANCELLED), (None, None)
    if isinstance(cause, ApplicationError) and len(cause.details) >= 4:
        error, undone, step, status = cause.details[:4]
        encoded = msgspec.json.encode(error).decode() if error else None
        compensation = msgspec.json.encode(undone).decode() if undone is not None else None
        return RunStanding(Status(status), error=encoded), (compensation, step or None)
    data = codec.encode(codec.error_to_data(HoldfastError(str(cause)))).decode()
    return RunStanding(Status.FAILED, error=data), (None, None)


def attributes_of(found: WorkflowExecutionDescription) -> str:
    """Return the searchable attributes of a run."""
    tags: Any = found.search_attributes.get("HoldfastTags") or []
    pairs = (attribute_of(str(tag)) for tag in tags)
    return "{" + ",".join(f"{codec.encode(name).decode()}:{value}" for name, value in pairs) + "}"
