"""The SQLite store: one file (or memory), any number of processes on one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.clock import Clock, Instant, micros
from holdfast.contract.figures import Figure
from holdfast.contract.operations import Committed, Delivered, Fenced, Operation, Outcome, Purge, Transact
from holdfast.contract.rows import Claim, TakenOver, Task
from holdfast.contract.turns import CommitTurn, Lane, PublishEvent
from holdfast.stores.liveness import Fate, WorkerLock, remove_lock, remove_strays
from holdfast.stores.rules import facts
from holdfast.stores.rules.batch import Batch
from holdfast.stores.rules.flow.line import Line
from holdfast.stores.sql.figures import rows_of
from holdfast.stores.sql.looks import Look
from holdfast.stores.sql.statements import at_once
from holdfast.stores.sql.store import SQLStore
from holdfast.stores.sqlite import claims as sqlite_claims
from holdfast.stores.sqlite import workers as sqlite_workers
from holdfast.stores.sqlite.backup import copy_database
from holdfast.stores.sqlite.connections import LookOnlyConnections, SQLiteConnections, single_statement
from holdfast.stores.sqlite.file import MEMORY
from holdfast.stores.sqlite.statements import SQL, PlainStatements, SetStatements
from holdfast.stores.sqlite.transactions import run_in_memory
from holdfast.system import boot_time

T = TypeVar("T")

_FENCE = SQL["fence"]
_APPEND = {1: SQL["append_one"], 2: SQL["append_two"]}


class SQLiteStore(SQLStore):
    """Runs in an SQLite file, or in memory (`:memory:`) for as long as the store is open.

    Args:
        path: the database file; created with mode 0600 when it is missing.
        durability: `power` syncs every commit to the disk, `process` leaves that to the operating system.
        inline_limit: batches of up to so many operations are committed on the event loop's own thread when no other
            commit is in flight and the lock is free; larger ones on a thread, in a constant number of statements.
        patience: how long to wait for a lock held by another process before StoreBusy.
    """

    kind = "sqlite"
    in_memory: bool
    """Whether there is no file that other processes could open."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "power",
        inline_limit: int = 8,
        patience: timedelta = timedelta(seconds=5),
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f"durability is 'power' or 'process', not {durability!r}")
        self.path = os.fspath(path) if os.fspath(path) == MEMORY else os.path.abspath(path)
        self.name = "" if self.path == MEMORY else Path(self.path).stem
        self.in_memory = self.path == MEMORY
        self.durability = durability
        self._inline_limit = inline_limit
        self._patience = patience.total_seconds()
        self._connections: SQLiteConnections = SQLiteConnections(self.path, durability, self._patience)

    @property
    def lease_clock(self) -> Clock:
        return _BootClock()

    async def open(self, *, look_only: bool = False) -> None:
        if not self._connections.is_open and not self.in_memory:
            made = LookOnlyConnections if look_only else SQLiteConnections
            expected, self._connections = self._connections.expected, made(self.path, self.durability, self._patience)
            self._connections.expected = expected
        await self._connections.open()

    async def close(self) -> None:
        if self._connections.is_open:
            await self._connections.close()

    def another(self) -> SQLiteStore:
        beside = SQLiteStore(self.path, durability=self.durability)
        if self._connections.file is not None:
            beside._connections.expected = self._connections.file.stat
        return beside

    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        return await self._connections.read(lambda db: at_once(look(SetStatements(db))))

    async def exclusive(self, work: Look[T]) -> T:
        return await self._connections.write(lambda db: at_once(work(SetStatements(db))))

    async def copy_to(self, path: str, progress: Callable[[int, int], None]) -> tuple[int, int]:
        """Write a copy of the database into an empty file while commits go on; see copy_database."""
        return await copy_database(self._connections, path, progress)

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        connections = self._connections
        connections.ready()
        if len(operations) <= self._inline_limit and connections.idle and not any(map(_large, operations)):
            turn = operations[0] if len(operations) == 1 else None
            try:
                if turn is not None and facts.only_facts(turn) and len(turn.entries) in _APPEND:
                    return connections.commit_here(lambda db: _append(db, turn), single_statement)
                return connections.commit_here(lambda db: at_once(Batch(PlainStatements(db)).apply(operations)))
            except apsw.BusyError:
                pass
        return None

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        connections = self._connections
        outcomes = self.apply_now(operations)
        if outcomes is not None:
            return outcomes
        return await connections.write(lambda db: at_once(facts.apply(SetStatements(db), operations)), brief=True)

    def transact(
        self,
        attempt: Transact,
        body: Callable[[Any], str],
        now: Callable[[], Instant],
        expired: Callable[[], None],
    ) -> Delivered | Fenced:
        connections = self._connections
        connections.ready()
        if connections.loop is not None:
            return run_in_memory(connections.writer, connections.loop, attempt, body, now)
        connections.verify()
        outcome = connections.transactions.run(attempt, body, now, expired)
        connections.verify()
        return outcome

    async def claim(
        self,
        worker: str,
        now: Instant,
        limit: int,
        workflows: Sequence[str],
        *,
        stuck: bool = True,
        oldest: bool = False,
    ) -> list[Claim]:
        if not await self._connections.read(lambda db: sqlite_claims.anything_due(db, now, workflows)):
            return []
        return await self._connections.write(
            lambda db: sqlite_claims.claim(db, worker, now, limit, workflows=workflows, stuck=stuck, oldest=oldest),
            inline=True,
            brief=True,
        )

    async def claim_waiting(
        self, worker: str, now: Instant, limit: int, lanes: Mapping[str, Lane], *, full: bool = False
    ) -> list[Claim]:
        if not full and not await self._connections.read(lambda db: sqlite_claims.any_lane(db, now, lanes)):
            return []
        return await self._connections.write(
            lambda db: at_once(Line(PlainStatements(db), worker, now, lanes).take(limit, full)),
            inline=True,
            brief=True,
        )

    async def claim_tasks(
        self,
        worker: str,
        now: Instant,
        limit: int,
        queues: Sequence[str],
        activities: Sequence[str],
        *,
        at_once: Mapping[str, int] | None = None,
        oldest: bool = False,
    ) -> list[Task]:
        if not await self._connections.read(lambda db: sqlite_claims.any_task(db, queues, activities)):
            return []
        return await self._connections.write(
            lambda db: sqlite_claims.claim_tasks(db, worker, limit, queues, activities, at_once or {}, oldest),
            inline=True,
            brief=True,
        )

    async def due(self, worker: str, now: Instant) -> list[int]:
        return await self._connections.read(lambda db: [key for (key,) in db.execute(SQL["own_due"], (worker, now))])

    async def next_due(self, workflows: Sequence[str] | None = None) -> Instant | None:
        return await self._connections.read(lambda db: sqlite_claims.next_due(db, workflows))

    def changed(self) -> bool:
        return self._connections.changed()

    async def join(self, worker: str, lease: timedelta, about: str = "{}") -> None:
        self._connections.ready()
        lock = None if self.in_memory else WorkerLock(self.path, worker)
        name = Path(lock.path).name if lock is not None and lock.effective else ""
        try:
            await self._connections.write(lambda db: sqlite_workers.join(db, worker, micros(lease), name, about))
        except BaseException:
            if lock is not None:
                lock.remove()
            raise
        self._connections.locks[worker] = lock
        if lock is not None:
            await self._connections.read(lambda db: remove_strays(self.path, lambda: sqlite_workers.locks(db)))

    def renew(self, worker: str, load: str = "{}") -> bool:
        if self.in_memory:
            self._connections.ready()
            return worker in self._connections.locks
        return self._connections.renew(lambda db: sqlite_workers.renew(db, worker, load))

    async def leave(self, worker: str) -> None:
        await self._connections.write(lambda db: sqlite_workers.leave(db, worker))
        lock = self._connections.locks.pop(worker, None)
        if lock is not None:
            lock.remove()

    async def add_figures(self, figures: Sequence[Figure]) -> None:
        rows = rows_of(figures)
        await self._connections.write(lambda db: at_once(SetStatements(db).write("add_figures", rows)), brief=True)

    async def take_over(self, now: Instant) -> list[TakenOver]:
        mine = set(self._connections.locks)
        fates = {worker: fate for worker, fate in (await self.fates()).items() if worker not in mine}
        if not fates:
            return []
        dead = await self._connections.write(lambda db: sqlite_workers.declare_dead(db, fates, now))
        for taken in dead:
            remove_lock(self.path, taken.worker)
        return dead

    async def fates(self) -> dict[str, Fate]:
        self._connections.ready()
        if self.in_memory:
            return {}  # there are no other processes, and no lease is renewed
        return await self._connections.read(lambda db: sqlite_workers.fates(db, Path(self.path).parent))


class _BootClock(Clock):
    """The time since the machine was booted: it is the same for all processes, and is never set."""

    same_for_all = True

    def now(self) -> Instant:
        return boot_time()


def _large(operation: Operation) -> bool:
    """Whether an operation by itself may write many rows."""
    return type(operation) is Purge or (type(operation) is PublishEvent and not operation.rule.single)


def _append(db: apsw.Connection, turn: CommitTurn) -> list[Outcome]:
    """Write the facts of a turn in one statement, which is a transaction by itself and takes the lock at once."""
    values: list[apsw.SQLiteValue] = [turn.key, turn.epoch]
    for entry in turn.entries:
        values += entry
    db.execute(_APPEND[len(turn.entries)], values)
    if not db.changes() and db.execute(_FENCE, (turn.key, turn.epoch)).get is None:
        return [Fenced(turn.key)]
    return [Committed(turn.key)]
