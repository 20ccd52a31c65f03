"""Durable workflows in plain Python: write a long-running process as an async function; it survives any crash."""

from holdfast.context.api import Break, Context, Continue, Winner
from holdfast.definitions import activity, workflow
from holdfast.engine.engine import Engine
from holdfast.engine.handle import Run, RunHandle
from holdfast.engine.settings import Settings
from holdfast.engine.step_context import StepContext, step_context
from holdfast.errors import (
    ChildFailed,
    Critical,
    HoldfastError,
    JoinError,
    NonRetryable,
    NoSuchRun,
    RaceError,
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
from holdfast.policy import Retry
from holdfast.records import Status

__all__ = [
    "Break",
    "ChildFailed",
    "Context",
    "Continue",
    "Critical",
    "Engine",
    "HoldfastError",
    "JoinError",
    "NoSuchRun",
    "NonRetryable",
    "RaceError",
    "ReceiveTimeout",
    "Retry",
    "Rollback",
    "Run",
    "RunBlocked",
    "RunCancelled",
    "RunConflict",
    "RunFailed",
    "RunHandle",
    "RunTerminal",
    "Settings",
    "Status",
    "StepContext",
    "StepFailed",
    "StepTimeout",
    "Winner",
    "activity",
    "step_context",
    "workflow",
]
