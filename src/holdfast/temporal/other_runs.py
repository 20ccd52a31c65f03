"""What an execution does to other runs: children that it starts, messages that it sends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
)

from holdfast.temporal.sdk import now
from holdfast.temporal.wire import ACTS, Carry, ChildToStart, Happening, Sending, raw, unpacked


def begin_child(run: Any, child: ChildToStart) -> Coroutine[Any, Any, Happening | None]:
    """Start a child of an execution, and follow it for what it cannot tell by itself."""

    def closed(handle: Any) -> None:
        if _ended_untold(handle) and run.carry.children.pop(child.id, None) is not None:
            run.mail("child_ended", child.id, "", '["cancelled"]')

    def started(handle: Any) -> None:
        run.carry.children[child.id] = child.with_parent
        handle.add_done_callback(closed)

    return _start_child(child, run.run_id, run.carry.rules.task_timeout, started)


async def _start_child(
    child: ChildToStart, parent: str, task_timeout: timedelta, started: Callable[[Any], None]
) -> Happening | None:
    """Start a child; return what the next turn has to know of that, if anything."""
    try:
        handle = await workflow.start_child_workflow(
            child.workflow,
            args=[raw(child.input), raw(child.carry)],
            id=child.id,
            task_queue=child.queue or None,
            task_timeout=task_timeout,
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            memo={"digest": str(unpacked(raw(child.carry), Carry).digest), "parent": parent},
        )
    except WorkflowAlreadyStartedError:
        return Happening("refused", now(), child.location, data="taken")
    started(handle)
    return None


def _ended_untold(child: Any) -> bool:
    """Whether a child that has closed could not tell: terminated, or cancelled before its first task.

    What ends otherwise tells by a signal before it closes.
    """
    failed = None if child.cancelled() else child.exception()
    return isinstance(failed, ChildWorkflowError) and isinstance(failed.cause, TerminatedError | CancelledError)


def cancel_children(children: Mapping[str, bool]) -> list[Sending]:
    """Return what tells those children that are cancelled with a run: before it closes, or it would be lost."""
    return [Sending(f"!{child}", child, ACTS + "cancel", "", "{}") for child, follows in children.items() if follows]


async def send_cancel(sending: Sending) -> None:
    """Tell a child that it is cancelled."""
    await workflow.get_external_workflow_handle(sending.target).signal(sending.name, raw(sending.payload))


async def send(sending: Sending, waiting: Mapping[str, ChildToStart | Sending]) -> Happening:
    """Send a message, not before the run that it is for was started."""

    def starts() -> bool:
        return any(isinstance(each, ChildToStart) and each.id == sending.target for each in waiting.values())

    await workflow.wait_condition(lambda: not starts())
    handle = workflow.get_external_workflow_handle(sending.target)
    try:
        await handle.signal(sending.name, raw(sending.payload, id=sending.id))
    except ApplicationError:
        return Happening("sent", now(), sending.location, data="missing")
    return Happening("sent", now(), sending.location)
