"""Durable workflows in plain Python: write a long-running process as an async function; it survives any crash.

A name is loaded on first use: the command line needs hardly any of them, and answers at once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast import logs, system  # noqa: F401  # what they do is done when they are imported
from holdfast.version import __version__ as __version__

if TYPE_CHECKING:
    from holdfast.bodies.context import step_context
    from holdfast.changes import Change
    from holdfast.context.api import Break, Context, Continue, Winner
    from holdfast.context.current import current_context
    from holdfast.contract.rows import Status
    from holdfast.definitions import NotReady, activity, workflow
    from holdfast.engine.engine import Engine
    from holdfast.engine.handle import RunHandle
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

_PLACES = {
    "Break": "holdfast.context.api",
    "Change": "holdfast.changes",
    "ChildFailed": "holdfast.errors",
    "Context": "holdfast.context.api",
    "Continue": "holdfast.context.api",
    "Engine": "holdfast.engine.engine",
    "Event": "holdfast.events",
    "HoldfastError": "holdfast.errors",
    "JoinError": "holdfast.errors",
    "NoSuchRun": "holdfast.errors",
    "NonRetryable": "holdfast.errors",
    "NotReady": "holdfast.definitions",
    "ReceiveTimeout": "holdfast.errors",
    "Retention": "holdfast.ops.retention",
    "Retry": "holdfast.policy",
    "Rollback": "holdfast.errors",
    "Run": "holdfast.engine.views.run",
    "RunBlocked": "holdfast.errors",
    "RunCancelled": "holdfast.errors",
    "RunConflict": "holdfast.errors",
    "RunFailed": "holdfast.errors",
    "RunHandle": "holdfast.engine.handle",
    "RunTerminal": "holdfast.errors",
    "Status": "holdfast.contract.rows",
    "StepFailed": "holdfast.errors",
    "StepTimeout": "holdfast.errors",
    "Winner": "holdfast.context.api",
    "activity": "holdfast.definitions",
    "current_context": "holdfast.context.current",
    "step_context": "holdfast.bodies.context",
    "valid_name": "holdfast.replay.location",
    "workflow": "holdfast.definitions",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
