"""How the parts of an engine reach its store: one operation at a time; then the runs it concerns are woken."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.changes import Change
from holdfast.clock import Clock
from holdfast.contract.moves import FROM
from holdfast.contract.operations import Delivered, Operation, Outcome, Purge, Refused, SendMessage
from holdfast.contract.rows import AWAY, RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import PublishEvent, StartRun
from holdfast.determinism.guard import refuse_in_workflow_code
from holdfast.engine.views.observers import Observers
from holdfast.engine.worker.committer import Done, resolving, soon
from holdfast.errors import BadInput, HoldfastError, Moved, NoSuchRun, StoreClosed
from holdfast.patience import Outcomes

if TYPE_CHECKING:
    from holdfast.engine.worker.worker import Worker


class Link:
    """An engine's store, clock and worker; what `ops` calls a Port."""

    def __init__(self, store: Store, clock: Clock, observers: Observers, actor: str, patience: float) -> None:
        self.store = store
        self.clock = clock
        self.actor = actor
        self.patience = patience
        """How many seconds a call of a caller may take."""
        self._outcomes = Outcomes(patience)
        self.observers = observers
        self.current: Worker | None = None
        """The worker, while the engine is open."""
        self._process = os.getpid()

    def opened(self, worker: Worker) -> None:
        """Note that the engine is open in this process."""
        self.current = worker
        self._process = os.getpid()
        self._outcomes = Outcomes(self.patience)  # the one before may belong to another event loop

    @property
    def worker(self) -> Worker:
        """The worker of an engine that may be used here and now."""
        self.check_usable()
        assert self.current is not None
        return self.current

    def check_usable(self) -> None:
        """Check that the engine may be used here and now.

        Raises:
            HoldfastError: it is not open, or workflow code uses it.
            StoreClosed: it was opened by the process that this one was forked from.
        """
        if self.current is None:
            raise HoldfastError("the engine is not open; use `async with Engine(...) as engine:`")
        self.refuse_inherited()
        refuse_in_workflow_code("the engine is used in workflow code", "use ctx.child, ctx.send or a step")

    def refuse_inherited(self) -> None:
        """Refuse an engine that was opened by the process that this one was forked from.

        Raises:
            StoreClosed: naming the way out.
        """
        if self.current is not None and os.getpid() != self._process:
            raise inherited()

    async def row(self, run_id: str) -> RunRow:
        """Return a run as the store has it.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        row = await self.store.get(run_id)
        if row is None:
            raise NoSuchRun(run_id)
        return row

    async def row_here(self, run_id: str) -> RunRow:
        """Return a run that has not moved to another runtime.

        Raises:
            NoSuchRun: there is no such run (any more).
            Moved: it goes on in another runtime, or is on its way there.
        """
        row = await self.row(run_id)
        if row.status in AWAY:
            raise moved(row)
        return row

    async def _refuse_away(self, operation: Operation, outcome: Outcome) -> Outcome:
        if isinstance(outcome, Refused) and outcome.status in AWAY:
            await self.row_here(getattr(operation, "target", ""))
        return outcome

    async def apply(self, operation: Operation) -> Outcome:
        """Make one operation durable and let this engine see what came of it."""
        worker = self.worker
        outcome = await self.settle(worker, operation, partial(worker.committer.submit, operation))
        if not isinstance(operation, Purge):
            worker.look(may_have_ended=not isinstance(operation, PublishEvent))
        return await self._refuse_away(operation, outcome)

    async def deliver(self, operation: Operation) -> Outcome:
        """Put a row into a run's inbox; a run in memory here is handed it at once.

        A run that no worker has may have been changed instead: then this engine looks what there is to do.
        """
        worker = self.worker

        def ask(done: Done) -> None:
            def told(outcome: Outcome | Exception) -> None:
                if isinstance(outcome, Delivered):
                    worker.delivered(outcome)
                if not isinstance(operation, SendMessage):
                    worker.look(may_have_ended=True)
                done(outcome)

            with worker.committer.together():
                worker.committer.submit(operation, told)
                if isinstance(operation, SendMessage) and not operation.deduplicate:
                    worker.runner.mail.early(operation.target, operation.row(0))

        return await self._refuse_away(operation, await self.settle(worker, operation, partial(soon, ask)))

    async def enclose(self, connection: object, operation: SendMessage | StartRun) -> Outcome:
        """Make one operation part of the transaction that is open on a caller's connection.

        Raises:
            BadInput: there is no connection, so the caller's transaction would not have it.
        """
        if connection is None:
            raise BadInput(
                "connection=None names no transaction, and this would happen outside the one that was meant: "
                "pass a connection of psycopg, or leave connection out"
            )
        return await self._refuse_away(operation, await self.store.enclose(connection, operation))

    def settle(self, worker: Worker, what: object, begin: Callable[[Done], None]) -> Coroutine[Any, Any, Outcome]:
        """Ask for an operation, or the start of a run, and wait for its outcome as long as a call may take."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        begin(resolving(future))
        return self._outcomes.wait(future, worker.committer.withdraw, what)

    def notify(self, change: Change) -> None:
        """Tell the observers."""
        self.observers.notify(change)


def moved(row: RunRow) -> Moved:
    """Return what is raised where a run is called that has moved to another runtime."""
    if row.status is Status.MOVED:
        return Moved(row.id, row.wait)
    if row.wait.startswith(FROM):
        return Moved(row.id, row.wait.removeprefix(FROM), "is on its way here from {}: call again when it has arrived")
    return Moved(row.id, row.wait, "is being moved to {}: call it there")


def inherited() -> StoreClosed:
    """Return what is raised where an engine of another process is used."""
    return StoreClosed(
        "this engine was inherited through a fork (gunicorn --preload, uWSGI, multiprocessing) and lives on in the "
        "other process only: open one after the fork, in each process, for example in post_worker_init of "
        "gunicorn.conf.py or in a function with uWSGI's @postfork"
    )


class Linked:
    """What has calls for callers and reaches the store by a link."""

    _link: Link

    @property
    def _call_patience(self) -> float:
        return self._link.patience
