"""What a Temporal cluster does not offer: refused by name, with the way out, when an engine is made."""

from __future__ import annotations

import ast
import inspect
import logging
import textwrap
from collections.abc import Iterable
from typing import Any

from holdfast.definitions import Activity, Workflow
from holdfast.errors import NotOffered
from holdfast.limits import Limit

_logger = logging.getLogger("holdfast.temporal")
DENIED = frozenset(
    {
        "admission", "alerts", "arguments.as_given", "attributes.ended", "audit", "blocked.retried", "bulk",
        "callbacks.durable", "cancel.threads", "clock", "clocks.differ", "dead_letters", "errors.unknown", "evict",
        "evidence.kept", "given_up.elsewhere", "health", "in_thread", "keys", "lifespan", "mixed_workers",
        "pause.scheduled", "payloads.large", "pending_steps", "priorities", "progress", "publish", "queue.pauses",
        "queue.places", "queue.unserved", "replays.sliced", "retry.families", "seen.unattended", "send.duplicate",
        "send.ended", "send.full", "send.together", "shared_limits", "started.here", "step_trail", "steps.spread",
        "steps.together", "stop.cancelled", "store", "transactions", "unique_key.id", "watch",
    }
)  # fmt: skip
"""The capabilities that `offers` denies."""

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
    "clock": ("clock", "the server has the time; tests use TemporalTestEngine"),
    "start": ("clock", "the server has the time; tests use TemporalTestEngine"),
}

_MEMBERS = {
    "backup": ("store", "back up the database of the Temporal cluster"),
    "crash": ("store", "kill the worker"),
    "bulk": ("bulk", "list runs with engine.runs() and act on each by its handle"),
    "dead_letters": (
        "dead_letters",
        "list failed runs with engine.runs(status='failed'), and retry each by its handle",
    ),
    "faults": ("store", "kill the worker, or the server"),
    "flow": ("queue.pauses", "pause runs by their handles, or stop the workers of a queue"),
    "health": ("health", "ask the server: temporal operator cluster health"),
    "in_thread": ("in_thread", "run the engine in an event loop of your own, in a thread"),
    "jumping": ("clock", "let time pass with engine.advance()"),
    "limits": ("shared_limits", "limits of scope='engine' are counted by each worker"),
    "pending_steps": ("pending_steps", "look at each run: run.steps()"),
    "purging": ("store", "temporal workflow delete"),
    "queued_events": ("publish", "messages that wait are shown by run.messages()"),
    "recover": ("bulk", "recover each blocked run by its handle: run.recover()"),
    "run": ("lifespan", "use `async with TemporalEngine(...)`"),
    "store": ("store", "what is recorded is in Temporal's history: run.history()"),
    "subscribe": ("watch", "wait with run.result(), or read Temporal's own history"),
    "sweep": ("store", "the namespace's retention deletes what is old"),
    "tokens": ("store", "the dashboard of holdfast needs a database: use Temporal's own"),
    "watch": ("watch", "wait with run.result(), or read Temporal's own history"),
}
"""What Engine has and this runtime has not."""


def refuse_member(name: str) -> AttributeError:
    """Refuse what Engine has and this runtime has not; return what is raised for any other name.

    Raises:
        NotOffered: naming it.
    """
    if name in _MEMBERS:
        raise NotOffered(f"engine.{name}", *_MEMBERS[name])
    return AttributeError(f"a TemporalEngine has no attribute {name!r}")


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
    """Refuse an activity with options that are not offered; warn of a key that does less than on a database."""
    if activity.settings.transaction:
        instead = "make the step idempotent by step_context().idempotency_key instead"
        raise NotOffered(f"transaction=True of activity {activity.name!r}", "transactions", instead)
    if activity.settings.idempotency_key is not None:
        _logger.warning(
            "idempotency_key of activity %r: on Temporal runs do not share results by it (offers('keys') is False); "
            "its body has it, for the service that it calls: step_context().idempotency_key",
            activity.name,
        )


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
