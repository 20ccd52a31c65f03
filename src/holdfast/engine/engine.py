"""The engine: start runs, talk to them, and advance them in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from dataclasses import fields
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from holdfast import codec
from holdfast.clock import Clock, new_id, new_seed
from holdfast.definitions import Registry, Workflow, check_run_id, source_line
from holdfast.engine.committer import resolving
from holdfast.engine.handle import Run, RunHandle, run_of
from holdfast.engine.settings import Settings
from holdfast.engine.worker import Worker
from holdfast.errors import (
    BadInput,
    HoldfastError,
    NoSuchRun,
    RunConflict,
    RunTerminal,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreReplaced,
)
from holdfast.records import (
    Delivered,
    Existing,
    Message,
    NewRun,
    Outcome,
    Refused,
    RequestCancel,
    RunFilter,
    RunRow,
    SendMessage,
    StartRun,
    Status,
    Unblock,
    Unblocked,
)
from holdfast.replay.guards import guard
from holdfast.replay.location import check_name
from holdfast.stores import open_store
from holdfast.stores.base import Store

P = ParamSpec("P")
R = TypeVar("R")


class Engine:
    """Durable workflows on one database.

        async with Engine("sqlite:///shop.db", workflows=[fulfil]) as engine:
            run = await engine.start(fulfil, order, id="order-7")
            receipt = await run.result()

    Leaving the block stops in order: bodies may finish, the rest is handed back, and every run goes on with the next
    engine on that database. Several engines, in one process or many, may share a database.

    Args:
        database: `sqlite:///path`, a path, or `:memory:`.
        workflows: the definitions this engine can run.
        errors: exception classes that steps may raise into workflows as themselves.
        durability: `power` (the default: acknowledged work survives power loss) or `process`.
        run_workflows: False makes a client that starts and talks to runs but leaves them to other engines.
        settings: see Settings; any of its fields may also be given by name.
    """

    def __init__(
        self,
        database: str | os.PathLike[str] = "sqlite:///holdfast.db",
        *,
        workflows: Iterable[Workflow[Any, Any]] = (),
        errors: Iterable[type[BaseException]] = (),
        durability: str = "power",
        run_workflows: bool = True,
        clock: Clock | None = None,
        store: Store | None = None,
        **settings: Any,
    ) -> None:
        try:
            self.settings = Settings(**settings)
        except TypeError as error:
            known = ", ".join(field.name for field in fields(Settings))
            raise BadInput(f"Engine: {str(error).partition(' ')[2]}; the settings are {known}") from None
        self.registry = Registry(workflows, errors)
        self.store = store if store is not None else open_store(os.fspath(database), durability)
        self.clock = clock or Clock()
        self._process = os.getpid()
        self._run_workflows = run_workflows
        self._worker: Worker | None = None
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def open(self) -> None:
        """Open the database, recover what dead workers left behind, and begin to advance runs."""
        if self.settings.development:
            guard.install()
        await self.store.open()
        self._process = os.getpid()
        try:
            self._worker = Worker(self.store, self.registry, self.settings, self.clock, self._run_ended)
            self._worker.looked = self._recheck_waiters
            self._worker.broken = self._store_broken
            await self._worker.start(self._run_workflows)
        except BaseException:
            if self._worker is not None:
                worker, self._worker = self._worker, None
                await worker.abandon()
            await self.store.close()
            raise

    async def stop(self) -> None:
        """Stop in order. Calling it twice is harmless."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            try:
                await worker.stop()
            finally:
                await self.store.close()
        for run_id, waiters in self._waiters.items():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(
                        HoldfastError(
                            f"the engine stopped before run {run_id!r} ended; the run goes on with the next one"
                        )
                    )
        self._waiters.clear()

    # Runs.

    async def start(
        self, workflow: Workflow[P, R] | str, /, *args: Any, id: str | None = None, **kwargs: Any
    ) -> RunHandle[R]:
        """Start a run and return its handle once that is durable.

        With an `id` the start is idempotent: a second start with equal input returns the same run.

        Raises:
            RunConflict: the id belongs to a run with other input or of another workflow.
            BadInput: the arguments do not fit; nothing was stored.
        """
        definition = self.registry.get(workflow) if isinstance(workflow, str) else workflow
        if not isinstance(definition, Workflow):
            raise BadInput(f"start() needs a workflow, not {definition!r}; decorate it with @workflow")
        known = self.registry.get(definition.name, definition.version)
        if known is not definition:
            raise BadInput(
                f"another workflow is registered as {definition.name!r} ({source_line(known)}); "
                f"the one given is at {source_line(definition)}: pass it to Engine(workflows=[...])"
            )
        encoded, digest = definition.encode_input(args, kwargs)
        run_id = check_run_id(id) if id is not None else new_id()
        worker = self._working()
        if id is not None and (row := await self.store.get(run_id)) is not None:
            # Looked up first, so that no code runs for a run that is there; of two starts at once one commit decides.
            return self._existing(run_id, definition, digest, row.workflow, row.digest)
        run = NewRun(
            id=run_id,
            workflow=definition.name,
            version=definition.version,
            input=encoded,
            digest=digest,
            seed=new_seed(),
            at=self.clock.now(),
            owner=worker.id if self._run_workflows else None,
        )
        if self._run_workflows:
            try:
                outcome = await self._start_here(worker, run, definition)
            except StoreError:
                worker.doubt = True
                raise
        else:
            outcome = await worker.committer.apply(StartRun(run=run))
        if isinstance(outcome, Existing):
            return self._existing(run_id, definition, digest, outcome.workflow, outcome.digest)
        return RunHandle(self, run_id, definition.result_type)

    def _existing(
        self, run_id: str, definition: Workflow[P, R], digest: int, workflow: str, recorded: int
    ) -> RunHandle[R]:
        if workflow != definition.name:
            raise RunConflict(run_id, f"exists and is a run of {workflow!r}")
        if recorded != digest:
            raise RunConflict(run_id)
        return RunHandle(self, run_id, definition.result_type)

    async def _start_here(self, worker: Worker, run: NewRun, definition: Workflow[Any, Any]) -> Outcome:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        done = resolving(future)

        def begin() -> None:
            try:
                worker.runner.start(run, definition, done)
            except Exception as error:
                done(error)

        loop.call_soon(begin)
        return await future

    async def execute(self, workflow: Workflow[P, R], /, *args: Any, id: str | None = None, **kwargs: Any) -> R:
        """Start a run and wait for its result."""
        handle = await self.start(workflow, *args, id=id, **kwargs)
        return await handle.result()

    def get(self, run_id: str, workflow: Workflow[P, R] | None = None) -> RunHandle[R]:
        """Return a handle of a run; with its workflow the result is typed."""
        check_run_id(run_id)
        return RunHandle(self, run_id, workflow.result_type if workflow is not None else Any)

    async def runs(
        self,
        *,
        workflow: str | None = None,
        status: Status | str | None = None,
        parent: str | None = None,
        limit: int = 100,
    ) -> list[Run]:
        """Return runs, newest first."""
        if status is not None and status not in list(Status):
            raise BadInput(f"status {status!r} is none of {', '.join(Status)}")
        if not 1 <= limit <= 1000:
            raise BadInput(f"limit must be between 1 and 1,000, not {limit!r}")
        wanted = Status(status) if status is not None else None
        rows = await self.store.runs(RunFilter(workflow=workflow, status=wanted, parent=parent, limit=limit))
        return [run_of(row) for row in rows]

    async def send(self, run_id: str, name: str, payload: object = None) -> None:
        """Send a message to a run; when this returns it is durable and will be delivered exactly once.

        Raises:
            NoSuchRun, RunTerminal: nobody will ever take it; nothing was stored.
        """
        check_run_id(run_id)
        check_name(name, "message name")
        encoded = codec.encode(payload, f"message {name!r}").decode()
        now = self.clock.now()
        operation = SendMessage(target=run_id, name=name, id=new_id(), payload=encoded, at=now)
        message = Message(0, "message", name, operation.id, encoded, now)
        await self._deliver(run_id, operation, message)

    async def cancel(self, run_id: str) -> bool:
        """Ask a run to stop; False if it has ended already.

        CancelledError is raised at its awaits; it may clean up for `cancel_grace`, then it is cancelled regardless.

        Raises:
            NoSuchRun: there is no such run.
        """
        now = self.clock.now()
        operation = RequestCancel(target=check_run_id(run_id), at=now)
        try:
            await self._deliver(run_id, operation, Message(0, "cancel", "", "", "null", now))
        except RunTerminal:
            return False
        return True

    async def recover(self, run_id: str) -> bool:
        """Try a blocked run again with the code there is now; False if it is not blocked."""
        worker = self._working()
        outcome = await worker.committer.apply(Unblock(at=self.clock.now(), target=check_run_id(run_id)))
        worker.wake()
        return isinstance(outcome, Unblocked) and outcome.count > 0

    async def _deliver(self, run_id: str, operation: SendMessage | RequestCancel, message: Message) -> None:
        worker = self._working()
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        tell = resolving(future)

        def done(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, Delivered):
                worker.delivered(outcome, message)
            tell(outcome)

        worker.committer.submit(operation, done)
        outcome = await future
        if isinstance(outcome, Refused):
            if outcome.status is None:
                raise NoSuchRun(run_id)
            raise RunTerminal(run_id, outcome.status)

    # Waiting for ends.

    async def _row(self, run_id: str) -> RunRow:
        row = await self.store.get(run_id)
        if row is None:
            raise NoSuchRun(run_id)
        return row

    async def _ended(self, run_id: str) -> RunRow:
        while True:
            # Listening before looking: an end that comes while the row is read must not be missed.
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.setdefault(run_id, []).append(waiter)
            try:
                row = await self._row(run_id)
                if row.status.terminal or row.status is Status.BLOCKED:
                    return row
                self._working()
                await waiter
            finally:
                waiters = self._waiters.get(run_id, [])
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters:
                    self._waiters.pop(run_id, None)

    def _run_ended(self, run_id: str, status: Status) -> None:
        for waiter in self._waiters.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    def _store_broken(self, error: StoreError) -> None:
        if isinstance(error, StoreReplaced | StoreCorrupt):
            for waiters in self._waiters.values():
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_exception(error)
            self._waiters.clear()

    def _recheck_waiters(self) -> None:
        for run_id in list(self._waiters):
            self._run_ended(run_id, Status.RUNNING)

    def _working(self) -> Worker:
        if self._worker is None:
            raise HoldfastError("the engine is not open; use `async with Engine(...) as engine:`")
        if os.getpid() != self._process:
            raise StoreClosed("this engine was inherited through a fork; open one of its own in this process")
        refuse = getattr(asyncio._get_running_loop(), "refuse", None)
        if refuse is not None:
            refuse("the engine is used in workflow code", "use ctx.child, ctx.send or a step")
        return self._worker
