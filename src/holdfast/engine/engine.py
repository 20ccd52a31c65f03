"""The engine: start runs, find them, act on many, and advance them in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from holdfast.bodies.context import StepContext
from holdfast.changes import Change
from holdfast.clock import Clock, micros
from holdfast.contract.rows import RunStanding
from holdfast.contract.store import Store
from holdfast.definitions import DEFAULT_QUEUE, Queue, Registry, Workflow, check_plain, check_run_id
from holdfast.determinism.guard import guard
from holdfast.engine.client.client import Client
from holdfast.engine.client.filters import check_limit, run_filter
from holdfast.engine.client.in_thread import InThread
from holdfast.engine.client.lifespan import Lifespan, LifespanReport
from holdfast.engine.client.limits import HasLimits
from holdfast.engine.client.link import Link
from holdfast.engine.client.looking import Looking
from holdfast.engine.client.messages import Messaging
from holdfast.engine.client.operate import Action, BulkReport, RecoveryReport, RunControl, check_bulk
from holdfast.engine.client.start import RunStarter
from holdfast.engine.client.waiting import NewsWaiters, ResultWaiters, engine_stopped
from holdfast.engine.ctrl_c import interrupts_held
from holdfast.engine.runs.ends import Rules
from holdfast.engine.runtime import Runtime, check_capability
from holdfast.engine.settings import Settings
from holdfast.engine.shielded import Stopping, Unbroken
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.health import Health, HealthProbe
from holdfast.engine.views.observers import Observers, ToTell, Watch
from holdfast.engine.views.run import Run, run_of
from holdfast.engine.worker.garbage import collecting
from holdfast.engine.worker.maintenance import Maintenance
from holdfast.errors import BadInput, StoreCorrupt, StoreError, StoreReplaced
from holdfast.events import Event, Events
from holdfast.limits import Limit, Limits
from holdfast.ops.audit import AuditTrail
from holdfast.ops.dead_letters import DeadLetters
from holdfast.ops.flow import FlowControl
from holdfast.ops.port import check_expected, check_names
from holdfast.ops.retention import Retention, Sweeper
from holdfast.patience import patient
from holdfast.replay.location import check_name
from holdfast.schedules.service import Schedules
from holdfast.stores import open_store
from holdfast.texts import check_text

if TYPE_CHECKING:
    from holdfast.engine.views.messages import Unread
    from holdfast.engine.worker.worker import Worker
    from holdfast.ops.purging import Purging
    from holdfast.ops.tokens import Tokens
    from holdfast.transfer.backup import Backup

R = TypeVar("R")
T = TypeVar("T")


class Engine(Looking, Runtime, HasLimits):
    """Durable workflows on one database.

        async with Engine("sqlite:///shop.db", workflows=[fulfil]) as engine:
            run = await engine.start(fulfil, order, id="order-7")
            receipt = await run.result()

    Leaving the block stops the engine in order: bodies may finish, the rest is handed back, and every run continues on
    the next engine on that database. Several engines, in one process or many, may share a database.

    Args:
        database: `sqlite:///path`, a path, `:memory:`, `postgresql://user@host/database`, or a key-value store
            (`kv+dir:///path`); as in SQLAlchemy, it may name a driver (`postgresql+psycopg://`), which is ignored.
        workflows: the definitions this engine can run.
        activities: functions that compensations of runs may name although the workflow's code no longer does, and
            those that this engine runs for the queues it serves although none of its workflows refers to them.
        errors: exception classes that steps may raise into workflows as themselves.
        events: how events of some names are delivered, see Event; other names use the defaults.
        limits: how many steps of activities that share a resource run at once, and how often; see Limit.
        context: a function that is called before each attempt of a step and each condition; it returns a mapping,
            whose keys are attributes of the step's context, `ctx.is_connected`.
        durability: `power` (the default: acknowledged work survives power loss) or `process`.
        dialect: what is between this process and a PostgreSQL server: nothing (`direct`) or a `pooler`.
        queues: the queues this engine serves: it advances runs, and runs attempts, that wait there, of the workflows
            and activities it knows. A Queue adds to a name how many run at once, and ageing.
        run_workflows: False makes a client that starts and talks to runs but leaves them to other engines.
        on_change: plain functions that are called with every Change this engine makes; their errors are only logged.
        on_failed, on_blocked: for alerts: plain functions that are called for each run that this engine's commit failed
            or blocked, once that is durable, with the Change `run.failed` or `run.blocked` and its `error` as data.
        tracing: a context entered around every step's body, see `holdfast.ops.tracing.Tracing`.
        retention: what is deleted when, see Retention; None keeps everything.
        actor: the actor in the audit trail when a call has no `by`.
        settings: see Settings; any of its fields may also be given by name.
    """

    _client: Client

    def __init__(
        self,
        database: str | os.PathLike[str] = "sqlite:///holdfast.db",
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        activities: Iterable[Callable[..., Any]] = (),
        errors: Iterable[type[BaseException]] = (),
        events: Iterable[Event] = (),
        limits: Iterable[Limit] = (),
        context: Callable[[], Mapping[str, Any]] | None = None,
        durability: str = "power",
        dialect: str | None = None,
        queues: Iterable[str | Queue] = (DEFAULT_QUEUE,),
        run_workflows: bool = True,
        on_change: ToTell = (),
        on_failed: ToTell = (),
        on_blocked: ToTell = (),
        tracing: Any = None,
        retention: Retention | None = Retention(),  # noqa: B008  # frozen
        actor: str = "engine",
        clock: Clock | None = None,
        store: Store | None = None,
        **settings: Any,
    ) -> None:
        self.settings: Settings = Settings.given(settings)
        check_text(actor, "actor")
        self.registry: Registry = Registry(workflows, errors, activities)
        self._queues = Queues(queues, self.registry)
        self.store: Store = store if store is not None else open_store(database, durability, dialect)
        self.clock: Clock = clock or self.store.clock
        self._events = Events(events)
        self._limits = Limits(limits)
        check_plain(context, "context")
        self._context = context
        self._observers = Observers(self.clock, on_change, on_failed, on_blocked)
        self._tracing = tracing
        self._run_workflows = run_workflows
        self._news = NewsWaiters()
        self._results = ResultWaiters(self.store, self._in_memory)
        self._link = Link(self.store, self.clock, self._observers, actor, self.settings.call_patience.total_seconds())
        self._probe = HealthProbe(self.store, self.clock, self.settings.lease, lambda: self._link.current)
        rules = Rules.of(self._events)
        self._control = RunControl(self._link, self.registry, rules)
        self._starter = RunStarter(self._link, self.registry, self._queues, rules, run_workflows)
        messaging = Messaging(self._link, self._events)
        self._client = Client(
            self._link, self.registry, self._control, messaging, self._results, self._news, self._patiently
        )
        """What the handles use."""
        self.dead_letters: DeadLetters = DeadLetters(self._link, self._events, self._control.reopener.replay)
        """Work and events given up on: list, acknowledge, replay, purge."""
        self.audit: AuditTrail = AuditTrail(self._link)
        """What people did, and what runs put on record: list, verify, export."""
        self.schedules: Schedules = Schedules(self._link, self.registry, self._events, self._schedules_changed)
        """Runs started by the calendar: put, pause, resume, trigger, backfill, delete."""
        self._deadline: float | None = None
        self._sweeper = Sweeper(self._link, retention, self._events, self._look) if retention is not None else None
        self._maintenance: Maintenance | None = None
        self._stopping = Stopping()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def open(self) -> None:
        """Open the database, recover what dead workers left behind, and begin to advance runs."""
        self._link.refuse_inherited()
        self._stopping.check(self._link.current is not None)
        # Not before: a program that only declares workflows, or makes an engine, has no use for it yet.
        from holdfast.engine.worker.worker import Listeners, Worker

        if self.settings.development:
            guard.install()
        worker: Worker | None = None
        try:
            await Unbroken(self.store.open).finished()
            worker = Worker(
                self.store,
                self.registry,
                self.settings,
                self.clock,
                Listeners(
                    self._run_ended, self._news.wake, self._others_may_have_ended, self._store_broken, self._ticked
                ),
                self._events,
                self._observers,
                self._limits,
                self._queues,
                self.store.lease_clock if self.clock is self.store.clock else self.clock,
                self._context,
                self._deadline,
                self._around if self._tracing is not None else None,
            )
            self._link.opened(worker)
            self._begin_maintenance()
            await worker.start(self._run_workflows)
            collecting.opened()
        except BaseException:
            self._link.current = None
            await Unbroken(partial(self._end, worker)).finished()
            raise

    def _begin_maintenance(self) -> None:
        if self._run_workflows:
            if self._sweeper is not None:
                self._sweeper.begin()
            self._maintenance = Maintenance(self.clock, self.schedules.ticker, self._sweeper)
            self._maintenance.start()

    def _ticked(self) -> None:
        if self._maintenance is not None:
            self._maintenance.poll()

    async def run(
        self, lifespan: timedelta = timedelta(seconds=25), *, buffer: timedelta = timedelta(milliseconds=500)
    ) -> LifespanReport:
        """Open, work for a bounded time and stop, for background jobs with a time limit.

        It takes no new work from `buffer` before the end of `lifespan`, and begins no step whose timeout is longer than
        the time left; such steps stay for the next engine. Several engines may work on one database at a time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (micros(lifespan, "lifespan") - micros(buffer, "buffer")) / 1e6
        report = Lifespan()
        if self._link.current is None:
            self._deadline = deadline
        unsubscribe = self.subscribe(report.note)
        try:
            await self.open()
            try:
                await asyncio.sleep(max(deadline - loop.time(), 0))
            finally:
                left = await self._stop(buffer / 2, count=True)
            return report.over(left)
        finally:
            self._deadline = None
            unsubscribe()

    async def stop(self, *, grace: timedelta | None = None) -> None:
        """Stop in order, waiting at most `grace` (or `stop_grace`) for step bodies.

        A stop is always completed. If the task that waits for it is cancelled, it waits for bodies no longer, hands the
        rest back, and then the cancel is raised. Called again, it waits for the stop that is under way.
        """
        await self._stop(grace)

    async def _stop(self, grace: timedelta | None, count: bool = False) -> dict[str, int]:
        """Stop, and return how many runs there were of each status at the very end, if that is asked for."""
        worker, self._link.current = self._link.current, None
        if worker is not None:
            collecting.closed()
            self._probe.stop()
            if self._maintenance is not None:
                self._maintenance.begin_to_stop()
            worker.begin_to_stop(grace)
            self._stopping.begin(partial(self._end, worker, {} if count else None), worker.hurry)
        try:
            with interrupts_held(self._stopping.hurry):
                return await self._stopping.finished()
        finally:
            self._fail_waiters(engine_stopped)
            self._observers.stop()

    async def _end(self, worker: Worker | None, left: dict[str, int] | None = None) -> dict[str, int]:
        """Do what a stop does; done again after an interrupt, it goes on where it was left."""
        try:
            if self._maintenance is not None:
                await self._maintenance.stop()
                self._maintenance = None
            if worker is not None:
                await worker.stop()
            if left is not None and not left:
                left.update(await self.stats())
        except Exception:
            await self._close(worker)
            raise
        await self._close(worker)  # not after an interrupt: the worker has yet to leave
        return left or {}

    async def _close(self, worker: Worker | None) -> None:
        await self.store.close()
        if worker is not None:
            await worker.end_commits()

    def in_thread(self) -> InThread[Self]:
        """Open this engine on its own thread, for code that is not async.

            with engine.in_thread() as call:
                run = call(engine.start(fulfil, order))
                receipt = call(run.result())

        A server that forks its workers opens it in each of them, `call.open()`, and closes it there, `call.close()`.
        """
        return InThread(self)

    @property
    def flow(self) -> FlowControl:
        """Workflows and queues as a whole: pause, resume, see what is held back."""
        return FlowControl(self._link, self._pauses_changed, self._queues.at_once)

    @property
    def purging(self) -> Purging:
        """Deleting old records by hand, whatever the retention."""
        from holdfast.ops.purging import Purging

        return Purging(self._link, self._events)

    @property
    def tokens(self) -> Tokens:
        """Tokens of the HTTP API: create, revoke."""
        from holdfast.ops.tokens import Tokens

        return Tokens(self._link)

    def offers(self, capability: str) -> bool:
        """Return whether this runtime has a capability: on a database, all of them.

        Raises:
            BadInput: there is no capability of that name.
        """
        return check_capability(capability) != ""

    # Looking.

    @patient
    async def runs(self, /, *, limit: int = 100, before: Run | None = None, **which: Any) -> list[Run]:
        """Return runs, newest first; `before` is the last run of the previous page.

        Filter them by workflow, status, parent, actor, tenant, unique_key, attributes (a mapping, all of which must be
        equal), created_from and created_until.
        """
        rows = await self.store.runs(run_filter(which, limit, before.key if before is not None else None))
        return [run_of(row) for row in rows]

    async def health(self, *, timeout: timedelta = timedelta(seconds=2)) -> Health:
        """Return the state of this engine, for a probe: within `timeout`, even if the store is silent or not open."""
        return await self._probe.health(timeout)

    def watch(self, run_id: str = "", *, types: Iterable[str] = ()) -> Watch:
        """Return an iterator over the changes that this engine makes from now on (to one run, of some types).

        To follow what other engines do to a run, use `RunHandle.watch`.
        """
        return self._observers.watch(check_run_id(run_id) if run_id else "", types)

    def subscribe(self, callback: Callable[[Change], None], run_id: str = "") -> Callable[[], None]:
        """Call a function for every change that this engine makes (to one run); return a function that ends this."""
        return self._observers.subscribe(callback, check_run_id(run_id) if run_id else "")

    # Messages and events.

    async def publish(
        self,
        name: str | object,
        payload: object = None,
        *,
        id: str | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> int:
        """Publish an event by name to the runs that wait for it; return how many runs were given it (0: it is queued).

        The Event of that name decides how it is delivered. A second event with the same `id` is not published again.
        An object that is not a name is published under the name of its class. With `by`, the actor, it is in the audit
        trail.

        Raises:
            QueueFull: too many events wait under that name already.
        """
        return await self._client.messaging.publish(name, payload, id, by, reason)

    @patient
    async def queued_events(self, name: str | None = None, *, limit: int = 100, after: int = 0) -> list[Unread]:
        """Return the events (of a name) that wait for a run to receive them, oldest first, with their content.

        With a name, `after` is the `number` of the last event of the previous page.
        """
        if name is not None:
            check_name(name, "event name")
        elif after:
            raise BadInput("queued_events(after=...) needs the name whose next page is wanted")
        check_limit(limit)
        from holdfast.engine.views.messages import queued

        return queued(await self.store.events(name, after, limit))

    # Acting on runs.

    async def bulk(
        self,
        action: Action,
        *,
        dry_run: bool = False,
        expect: int | None = None,
        steps: Collection[str] = (),
        limit: int = 1000,
        by: str | None = None,
        reason: str = "",
        **which: Any,
    ) -> BulkReport:
        """Cancel, terminate, pause, resume or retry the runs that `runs(**which)` finds, at most `limit`.

        With `dry_run` they are only listed. It acts on more than one run only if `expect` is the number that a dry run
        found. A failure on one run is reported and does not stop the others. A retry skips (`skipped`) what is not
        known to be safe to do again, unless it is `idempotent` or among the names of `steps`.
        """
        check_bulk(action, by, reason, which)
        check_names(steps, "steps")
        found = [run.id for run in await self.runs(limit=limit, **which)]
        if dry_run:
            return BulkReport(found)
        check_expected(len(found), expect, "runs")
        return await self._control.bulk(action, found, by, reason, steps)

    async def sweep(self) -> dict[str, int]:
        """Delete now what Retention says is old enough; return how many of each kind. An engine also does it by itself.

        Raises:
            BadInput: the engine keeps everything (retention=None).
        """
        if self._sweeper is None:
            raise BadInput("this engine has retention=None and keeps everything; give it a Retention")
        return await self._sweeper.sweep()

    async def _look(self, run_id: str) -> Run | None:
        row = await self.store.get(run_id)
        return run_of(row) if row is not None else None

    async def backup(self, path: str | os.PathLike[str], **options: Any) -> Backup:
        """Write everything acknowledged so far to a file while runs continue; `holdfast restore` restores it.

        The options and errors are those of `holdfast.transfer.backup.back_up`.
        """
        self._link.check_usable()
        from holdfast.transfer.backup import back_up

        return await back_up(self.store, path, **options)

    @patient
    async def recover(self) -> RecoveryReport:
        """Take over from dead workers, and try every blocked run whose code has changed.

        An engine does both by itself when it opens, and the first every second.
        """
        return await self._control.recover_all()

    # Waiting.

    async def _patiently(self, coming: Coroutine[Any, Any, T]) -> T:
        """Wait for something that runs bring about; a clock that jumps does so meanwhile."""
        return await coming

    def _run_ended(self, run_id: str, standing: RunStanding | None) -> None:
        self._news.wake(run_id)
        self._results.ended(run_id, standing)

    def _in_memory(self, run_id: str) -> bool:
        return self._link.current is not None and run_id in self._link.current.runner.ids

    def _store_broken(self, error: StoreError) -> None:
        """Tell all callers that there will be no news, if the store can never be used again."""
        if isinstance(error, StoreReplaced | StoreCorrupt):
            self._fail_waiters(lambda run_id: error)

    def _fail_waiters(self, error: Callable[[str], Exception]) -> None:
        self._news.fail(error)
        self._results.fail(error)

    def _others_may_have_ended(self) -> None:
        self._news.wake_all()
        self._results.look_again()
        if self._maintenance is not None:
            self._maintenance.other_process_committed()

    def _around(self, step: StepContext) -> Any:
        return self._tracing.attempt(step.run_id, step.workflow, step.step, step.attempt)

    def _schedules_changed(self) -> None:
        if self._maintenance is not None:
            self._maintenance.stale()

    async def _pauses_changed(self) -> None:
        if self._run_workflows:
            await self._link.worker.runs.pauses.look()

    def _working(self) -> Worker:
        return self._link.worker
