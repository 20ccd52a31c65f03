"""The interface of every runtime for users' code: start and find runs, publish, ask which capabilities it offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from holdfast.definitions import Workflow, check_run_id
from holdfast.engine.handle import RunHandle
from holdfast.engine.starting import StartsRuns
from holdfast.engine.views.run import Run
from holdfast.errors import BadInput

R = TypeVar("R")

CAPABILITIES: Mapping[str, str] = {
    "admission": "limits, keys and windows for the runs of a workflow",
    "alerts": "on_change, on_failed, on_blocked and tracing",
    "arguments.as_given": "the body of a step gets its arguments as they were given, and not by way of JSON",
    "attributes": "runs have attributes, and are found by them",
    "attributes.ended": "attributes of runs that have ended are changed",
    "audit": "a trail of what callers did",
    "blocked.retried": "an engine that is opened tries blocked runs again",
    "bulk": "acts on many runs",
    "callbacks.durable": "callbacks and hooks are told what is durable, of all ends and on_failed too",
    "cancel": "runs are cancelled, and clean up",
    "cancel.threads": "a cancelled run waits for a body in a thread, and keeps what it returns",
    "children": "runs that runs start and wait for",
    "clock": "a clock of the caller's, which stands still in tests and is moved by hand",
    "clocks.differ": "workers whose clocks differ serve the same runs",
    "code_changes": "code may change under open runs, by holdfast's rules",
    "compensation": "what a run did is undone when it fails",
    "dead_letters": "work given up on is kept",
    "errors.unknown": "errors whose classes the engine was not given are matched by their classes, not only by name",
    "evict": "a run leaves memory when asked to",
    "evidence": "what a run puts on record",
    "evidence.kept": "evidence outlives the server's retention",
    "given_up.elsewhere": "a body is told at once that its step was given up, wherever it runs",
    "health": "an answer for probes",
    "in_thread": "the engine in a thread of its own, for code that is not async",
    "keys": "idempotency keys that runs share",
    "lifespan": "engine.run(): for a bounded time",
    "lists": "runs are listed and counted",
    "loops": "loops whose history does not grow",
    "messages": "messages to runs, by name",
    "mixed_workers": "workers of one queue may know different workflows",
    "pause.scheduled": "a pause holds back attempts that are scheduled already",
    "payloads.large": "payloads above 2 MB",
    "pending_steps": "steps of all open runs that have not ended",
    "priorities": "runs, and steps that wait for a worker, of a higher priority first",
    "progress": "what a body says of its progress is seen in run.steps()",
    "publish": "events by name",
    "queries": "questions to the code of a run",
    "queue.pauses": "workflows and queues are paused as a whole",
    "queue.places": "how many attempts of a queue run at once, and ageing",
    "queue.unserved": "a run says which queue it waits for, and the log that nobody serves it",
    "reopening": "ended runs go on: retry, rerun, resume",
    "replays.sliced": "while a long history is replayed, the worker goes on with all else",
    "requests": "messages whose sender waits for the answer",
    "retry.families": "children are reopened with their parent",
    "schedules": "runs started by the calendar",
    "send.duplicate": "send() tells that a message with its id was sent before",
    "send.ended": "ctx.send() tells a run that has ended from one that is missing",
    "send.full": "send() refuses when too many messages wait",
    "send.together": "messages that are sent at the same time come in the order of the calls",
    "shared_limits": "limits that are counted over all workers",
    "sleeps": "durable sleeps and deadlines",
    "started.here": "a run goes on in the worker that started it, while that has room",
    "step_trail": "each end of a step on record",
    "seen.unattended": "where a run stands is seen while no worker is alive",
    "steps.spread": "steps that wait for a place are counted with a worker, and go to whichever has one first",
    "steps.together": "steps that are called together begin in the order of the calls",
    "steps": "steps, with retries, timeouts and limits",
    "stop.cancelled": "an engine stops in order though the program has cancelled all of its tasks",
    "store": "a database of holdfast's own",
    "transactions": "steps, starts and messages in a transaction of the caller's",
    "unique_key.id": "a run with an id of its own and a unique key",
    "watch": "the changes of a run, one by one",
}
"""What a runtime may offer, and what each stands for."""


class Runtime(StartsRuns, ABC):
    """Where runs are kept and advanced: `Engine` on a database, `TemporalEngine` on a Temporal cluster.

    Code that starts and finds runs may be written for a Runtime, and asks `offers` before it uses what not every one
    has. What is not offered raises NotOffered, with the way out. Acts on one run are methods of its RunHandle.
    """

    @abstractmethod
    def offers(self, capability: str) -> bool:
        """Tell whether this runtime has a capability, one of `holdfast.engine.runtime.CAPABILITIES`.

        Raises:
            BadInput: there is no capability of that name.
        """

    @overload
    def get(self, run_id: str) -> RunHandle[Any]: ...
    @overload
    def get(self, run_id: str, workflow: Workflow[..., R]) -> RunHandle[R]: ...
    def get(self, run_id: str, workflow: Workflow[..., Any] | None = None) -> RunHandle[Any]:
        """Return a handle of a run; with its workflow the result is typed."""
        check_run_id(run_id)
        return RunHandle(self._client, run_id, workflow.result_type if workflow is not None else Any)

    @abstractmethod
    async def find(self, run_id: str) -> Run | None:
        """Return a run as it stands now, None if there is none with that id (any more)."""

    @abstractmethod
    async def runs(self, /, *, limit: int = 100, before: Run | None = None, **which: Any) -> list[Run]:
        """Return runs, newest first; `before` is the last run of the page before."""

    @abstractmethod
    async def publish(
        self,
        name: str | object,
        payload: object = None,
        *,
        id: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> int:
        """Publish an event by name to the runs that wait for it; return how many runs were given it."""


def check_capability(capability: str) -> str:
    """Check that something is the name of a capability.

    Raises:
        BadInput: it is none; the message names them all.
    """
    if capability not in CAPABILITIES:
        raise BadInput(f"{capability!r} is not a capability of a runtime; there are {', '.join(CAPABILITIES)}")
    return capability
