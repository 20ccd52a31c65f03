"""What a Temporal cluster does not offer, refused by name, with the way out, when an engine is made."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.definitions import Activity, Workflow
from holdfast.errors import NotOffered
from holdfast.limits import Limit

DENIED: Mapping[str, str] = {
    "admission": "limits, keys and windows for the runs of a workflow",
    "alerts": "on_change, on_failed, on_blocked and tracing",
    "attributes.ended": "attributes of runs that have ended are changed",
    "audit": "a trail of what callers did",
    "bulk": "acts on many runs",
    "dead_letters": "work given up on is kept",
    "evict": "a run leaves memory when asked to",
    "evidence.kept": "evidence outlives the server's retention",
    "keys": "idempotency keys that runs share",
    "priorities": "runs of a higher priority first",
    "publish": "events by name",
    "queue.pauses": "workflows and queues are paused as a whole",
    "queue.places": "how many attempts of a queue run at once, and ageing",
    "retry.families": "children are reopened with their parent",
    "schedules": "runs started by the calendar",
    "send.duplicate": "send() tells that a message with its id was sent before",
    "send.full": "send() refuses when too many messages wait",
    "shared_limits": "limits that are counted over all workers",
    "step_trail": "each end of a step on record",
    "store": "a database of holdfast's own",
    "transactions": "steps, starts and messages in a transaction of the caller's",
    "unique_key.id": "a run with an id of its own and a unique key",
    "watch": "the changes of a run, one by one",
}
"""The capabilities that `offers` denies, and what each stands for."""

_OPTIONS = {
    "events": ("publish", "send to runs by their id"),
    "durability": ("store", "the server's own settings decide"),
    "dialect": ("store", "leave it out"),
    "store": ("store", "give the address of the server"),
    "retention": ("store", "the namespace's retention decides: temporal operator namespace update --retention"),
    "on_change": ("alerts", "read Temporal's own metrics"),
    "on_failed": ("alerts", "alert on Temporal's own metrics"),
    "on_blocked": ("alerts", "look at runs(status='running') and their memo"),
    "tracing": ("alerts", "give a client with Temporal's own interceptors: client=..."),
    "record_arguments": ("step_trail", "the arguments of every step are in Temporal's history already"),
    "step_trail": ("step_trail", "every step is in Temporal's history already"),
    "storage_retry": ("store", "leave it out"),
    "timer_resolution": ("store", "leave it out"),
    "clock": ("store", "the server has the time; tests use TemporalTestEngine"),
}


def refuse_options(given: Iterable[str]) -> None:
    """Refuse options of an Engine that stand for what is not offered.

    Raises:
        NotOffered: naming the first of them.
    """
    for name in given:
        if name in _OPTIONS:
            capability, instead = _OPTIONS[name]
            raise NotOffered(f"TemporalEngine({name}=...)", capability, instead)


def refuse_limit(limit: Limit) -> None:
    """Refuse a limit that is counted over all workers."""
    if limit.scope != "engine":
        instead = "declare it with scope='engine', which each worker counts for itself"
        raise NotOffered(f"limit {limit.name!r}, counted over all workers,", "shared_limits", instead)


def refuse_activity(activity: Activity[..., Any]) -> None:
    """Refuse an activity with options that are not offered."""
    if activity.settings.transaction:
        instead = "make the step idempotent by step_context().idempotency_key instead"
        raise NotOffered(f"transaction=True of activity {activity.name!r}", "transactions", instead)
    if activity.settings.idempotency_key is not None:
        instead = "let the service that is called tell repeated calls apart by step_context().idempotency_key"
        raise NotOffered(f"idempotency_key of activity {activity.name!r}", "keys", instead)


def refuse_workflow(workflow: Workflow[Any, Any]) -> None:
    """Refuse a workflow that asks for what is not offered."""
    if workflow.flow is not None:
        instead = "bound what its steps do with limits of scope='engine', or start fewer runs"
        raise NotOffered(f"the flow control of workflow {workflow.name!r}", "admission", instead)
    line = _publishes(workflow)
    if line:
        instead = "send to the runs that wait, by their id: ctx.send()"
        raise NotOffered(f"ctx.publish() in workflow {workflow.name!r} (line {line})", "publish", instead)


def _publishes(workflow: Workflow[Any, Any]) -> int:
    """Return the line on which a workflow's own code publishes, 0 if it does not."""
    function = inspect.unwrap(workflow.function)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        ctx = next(iter(inspect.signature(function).parameters), "ctx")
    except (OSError, TypeError, SyntaxError, ValueError):  # no source: refused when it is called
        return 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="publish", value=ast.Name(id=name))) if name == ctx:
                return first + node.lineno - 1
    return 0
