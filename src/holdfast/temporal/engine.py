"""The engine on Temporal: the same definitions, verbs, handles and errors, on a cluster that keeps its runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from temporalio.client import Client
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, micros
from holdfast.definitions import DEFAULT_QUEUE, Queue, Registry, Workflow, check_plain, check_queue, check_run_id
from holdfast.determinism.guard import guard
from holdfast.engine.client.filters import run_filter
from holdfast.engine.runtime import Runtime, check_capability
from holdfast.engine.settings import Settings
from holdfast.engine.views.run import Run
from holdfast.engine.worker.committer import from_callback
from holdfast.errors import BadInput, HoldfastError, NoSuchRun, NotOffered
from holdfast.limits import Limit, Limits
from holdfast.temporal.attempts import TemporalBodies
from holdfast.temporal.client.connecting import ServerAddress, address_of, check_server, connected
from holdfast.temporal.client.evidence import TemporalEvidence
from holdfast.temporal.client.lists import RunLists
from holdfast.temporal.client.port import TemporalPort
from holdfast.temporal.client.schedules import TemporalSchedules
from holdfast.temporal.client.starting import TemporalStarter
from holdfast.temporal.known import Known
from holdfast.temporal.refusals import (
    DENIED,
    refuse_activity,
    refuse_limit,
    refuse_member,
    refuse_options,
    refuse_workflow,
)
from holdfast.temporal.turns import Turns, interpreter_class
from holdfast.temporal.wire import RunRules

_STICKY = timedelta(seconds=10)
_MOST_WAITING = 1_000
_TASKS = 200


class TemporalEngine(Runtime):
    """Durable workflows on a Temporal cluster.

        async with TemporalEngine("temporal://localhost:7233/default", workflows=[fulfil]) as engine:
            run = await engine.start(fulfil, order, id="order-7")
            receipt = await run.result()

    Definitions, handles and errors are those of Engine. What a cluster does not offer is refused by name (NotOffered),
    most of it when the engine is made; `offers` tells. Several engines, in many processes, may serve a namespace.

    Args:
        address: `temporal://host:port/namespace`.
        workflows, activities, errors, limits, context, queues, run_workflows: as those of Engine. A step runs in any
            process that serves its queue, so its function must be found by name: at the top of a module, referred to by
            the workflow or given with `activities`.
        client: a client of temporalio to use instead of connecting to `address`: with TLS, an API key, a codec.
        tags: whether runs are found by their attributes, for which the namespace needs the search attribute
            HoldfastTags, a KeywordList.
        history_limit: after how many events of Temporal's history a run goes on in another execution.
        settings: fields of Settings by name: lease, cancel_grace, stop_grace, max_resident, max_steps, max_threads,
            call_patience, development.
    """

    def __init__(
        self,
        address: str = "temporal://localhost:7233/default",
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        activities: Iterable[Callable[..., Any]] = (),
        errors: Iterable[type[BaseException]] = (),
        limits: Iterable[Limit] = (),
        context: Callable[[], Mapping[str, Any]] | None = None,
        queues: Iterable[str | Queue] = (DEFAULT_QUEUE,),
        run_workflows: bool = True,
        actor: str = "engine",
        client: Client | None = None,
        tags: bool = True,
        history_limit: int = 8_000,
        **settings: Any,
    ) -> None:
        refuse_options(settings)
        self.address: ServerAddress = address_of(address)
        self.settings: Settings = Settings.given(settings)
        self.registry: Registry = Registry(workflows, errors, activities)
        for workflow in self.registry.all():
            refuse_workflow(workflow)
        self._known = Known(self.registry)
        for activity in self._known.all():
            refuse_activity(activity)
        limits = tuple(limits)
        for limit in limits:
            refuse_limit(limit)
        check_plain(context, "context")
        if history_limit < 10:
            raise BadInput(f"history_limit must be at least 10 events, not {history_limit!r}")
        self._limits = Limits(limits)
        self._declared = limits
        self._context = context
        self._queues = [_queue(queue) for queue in queues]
        self._run_workflows = run_workflows
        self._given_client = client
        self._tags = tags
        self._history_limit = history_limit
        self.clock: Clock = Clock()
        self._port: TemporalPort | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._running: list[Worker] = []
        self._threads: ThreadPoolExecutor | None = None
        self._executor: Executor | None = None
        self._turns: Turns | None = None
        self._stopping = asyncio.Lock()
        self._local_functions = False
        self._sticky = _STICKY

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def offers(self, capability: str) -> bool:
        """Tell whether this runtime has a capability, one of `holdfast.runtime.CAPABILITIES`.

        Raises:
            BadInput: there is no capability of that name.
        """
        return check_capability(capability) not in DENIED

    async def open(self) -> None:
        """Connect to the server, and begin to advance runs.

        Raises:
            StoreUnreachable: no server answers.
            CannotOpen: it has no such namespace, or that lacks the search attribute.
            UnsupportedServer: it is too old.
        """
        if self._port is not None:
            raise HoldfastError("the engine is open already")
        client = self._given_client or await connected(self.address)
        await self._check(client)
        if self.settings.development:
            guard.install()
        self._port = self._new_port(client)
        self._starting = TemporalStarter(self._port, self._rules(), self._tags, self.task_queue)
        if self._run_workflows:
            self._work(client)

    async def _check(self, client: Client) -> None:
        await check_server(client, self.address, self._tags)

    def _new_port(self, client: Client) -> TemporalPort:
        return TemporalPort(client, self.registry, self.clock, self.settings.call_patience.total_seconds())

    def _rules(self) -> RunRules:
        settings = self.settings
        return RunRules(
            history_limit=self._history_limit, grace=micros(settings.cancel_grace), lease=micros(settings.lease)
        )

    def _work(self, client: Client) -> None:
        assert self._port is not None
        settings = self.settings
        turns = self._turns = Turns(self.registry, self._known, self._tags, settings.development, self.task_queue)
        turns.local_functions = self._local_functions
        turns.propagate = settings.propagate_child_failures
        turns.on_blocked, self._port.on_terminated = self._port.blocked, turns.terminated
        loop = asyncio.get_running_loop()
        self._executor = executor = Executor(loop, settings.max_steps, settings.max_threads, self._limits)
        turns.on_given_up = lambda run_id, path: self._limits.forget(hash(run_id), path)
        lease = settings.lease.total_seconds()
        bodies = TemporalBodies(turns, executor, self._limits, self.clock, lease, self._context)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="holdfast-temporal")
        interpreter = interpreter_class(turns)
        for queue in self._queues:
            worker = Worker(
                client,
                task_queue=self.task_queue(queue),
                workflows=[interpreter],
                activities=[turns.activity(), bodies.activity()],
                workflow_runner=UnsandboxedWorkflowRunner(),
                workflow_task_executor=self._threads,
                max_cached_workflows=settings.max_resident,
                max_concurrent_workflow_tasks=_TASKS if settings.max_resident else 1,
                max_concurrent_activities=settings.max_steps + self._may_wait,
                max_concurrent_local_activities=1_000,
                workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
                activity_task_poller_behavior=PollerBehaviorAutoscaling(),
                sticky_queue_schedule_to_start_timeout=min(settings.lease, self._sticky),
                graceful_shutdown_timeout=settings.stop_grace,
                max_heartbeat_throttle_interval=settings.lease / 3,
                default_heartbeat_throttle_interval=settings.lease / 3,
            )
            self._running.append(worker)
            self._workers.append(asyncio.create_task(worker.run()))

    @property
    def _may_wait(self) -> int:
        """How many attempts are taken beside those that run: one that waits for a limit keeps no place from others."""
        return _MOST_WAITING if any(limit.at_once is not None for limit in self._declared) else 0

    async def stop(self, *, grace: timedelta | None = None) -> None:
        """Stop in order: bodies may finish for `stop_grace`, the rest goes on with the next engine."""
        async with self._stopping:  # a second one waits for the first
            if self._port is not None:
                self._port.close()
            running, self._running = self._running, []
            workers, self._workers = self._workers, []
            await asyncio.gather(*(worker.shutdown() for worker in running))
            await asyncio.gather(*workers, return_exceptions=True)
            if self._executor is not None:
                for attempt in self._executor.running():
                    attempt.stop("the worker stops")
                self._executor.close()
                self._executor = None
            if self._turns is not None:
                await from_callback(self._turns.close)
                self._turns = None
            if self._threads is not None:
                await asyncio.to_thread(self._threads.shutdown)
                self._threads = None
            self._port = None

    if not TYPE_CHECKING:  # type checkers know that these are not there

        def __getattr__(self, name: str) -> Any:
            raise refuse_member(name)

    def task_queue(self, queue: str) -> str:
        """Return the task queue of Temporal's for a queue of holdfast's."""
        return f"holdfast.{queue}"

    # Talking to runs.

    @property
    def _call_patience(self) -> float:
        return self.settings.call_patience.total_seconds()

    @property
    def _client(self) -> TemporalPort:  # type: ignore[override]  # there is one while the engine is open
        if self._port is None:
            raise HoldfastError("the engine is not open; use `async with TemporalEngine(...) as engine:`")
        return self._port

    @property
    def _starter(self) -> TemporalStarter:  # type: ignore[override]
        assert self._client is not None
        return self._starting

    async def start_for(self, *args: Any, **kwargs: Any) -> tuple[str, bool]:
        """Refuse: there is no trail of what callers did."""
        raise NotOffered("start_for()", "audit", "use start(actor=...)")

    async def find(self, run_id: str) -> Run | None:
        """Return a run as it stands now, None if there is none with that id (any more)."""
        try:
            return await self._client.describe(check_run_id(run_id))
        except NoSuchRun:
            return None

    async def runs(self, /, *, limit: int = 100, before: Run | None = None, **which: Any) -> list[Run]:
        """Return runs, newest first, as the server's visibility has them: a moment later than they are.

        They can be chosen as those of Engine, attributes only if the engine has `tags`. An open run whose workers do
        not answer is `running`.
        """
        return await self._lists.runs(run_filter(which, limit, before.key if before is not None else None))

    async def stats(self) -> dict[str, int]:
        """Return how many runs have ended how; all open ones are counted as `running`."""
        return await self._lists.stats()

    @property
    def _lists(self) -> RunLists:
        return RunLists(self._client, self._tags)

    @property
    def schedules(self) -> TemporalSchedules:
        """Runs started by the calendar: put, pause, resume, trigger, backfill, delete."""
        return TemporalSchedules(self._client, self.registry, self._starter, self._rules(), self.task_queue)

    @property
    def audit(self) -> TemporalEvidence:
        """What runs put on record: `evidence`, `verify_evidence`; there is no trail of what callers did."""
        return TemporalEvidence(self._client)

    async def publish(
        self,
        name: str | object,
        payload: object = None,
        *,
        id: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> int:
        """Refuse: runs on Temporal share no queue of events.

        Raises:
            NotOffered: always.
        """
        raise NotOffered("publish()", "publish", "send to the runs that wait, by their id: run.send()")


def _queue(queue: str | Queue) -> str:
    if isinstance(queue, Queue):
        if queue.at_once is not None or queue.ageing:
            what = f"at_once or ageing of queue {queue.name!r}"
            raise NotOffered(what, "queue.places", "give its name only, and bound the workers: max_steps")
        return queue.name
    return check_queue(queue, "a queue's name")
