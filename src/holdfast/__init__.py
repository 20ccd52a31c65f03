"""Durable workflows in plain Python: write a long-running process as an async function; it survives any crash."""

from holdfast import logs, system  # noqa: F401  # what they do is done when they are imported
from holdfast.changes import Change
from holdfast.context.api import Break, Context, Continue, Winner
from holdfast.context.current import current_context
from holdfast.contract.rows import Status
from holdfast.definitions import NotReady, activity, workflow
from holdfast.engine.engine import Engine
from holdfast.engine.handle import RunHandle
from holdfast.engine.steps.context import step_context
from holdfast.engine.views.run import Run
from holdfast.errors import (
    ChildFailed,
    HoldfastError,
    JoinError,
    NonRetryable,
    NoSuchRun,
    ReceiveTimeout,
    Rollback,
    RunBlocked,
    RunCancelled,
    RunConflict,
    RunFailed,
    RunTerminal,
    StepFailed,
    StepTimeout,
)
from holdfast.events import Event
from holdfast.ops.retention import Retention
from holdfast.policy import Retry
from holdfast.replay.location import valid_name

__version__ = "0.1.0"

__all__ = [
    "Break",
    "Change",
    "ChildFailed",
    "Context",
    "Continue",
    "Engine",
    "Event",
    "HoldfastError",
    "JoinError",
    "NoSuchRun",
    "NonRetryable",
    "NotReady",
    "ReceiveTimeout",
    "Retention",
    "Retry",
    "Rollback",
    "Run",
    "RunBlocked",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunHandle",
    "RunTerminal",
    "Status",
    "StepFailed",
    "StepTimeout",
    "Winner",
    "activity",
    "current_context",
    "step_context",
    "valid_name",
    "workflow",
]
