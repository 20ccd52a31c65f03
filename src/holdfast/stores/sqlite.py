"""The SQLite store: one file (or memory), any number of processes on one machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import apsw

from holdfast.clock import Instant, micros
from holdfast.commits import CommitTurn, PublishEvent
from holdfast.operations import Committed, Fenced, Operation, Outcome, Purge
from holdfast.records import (
    AuditRow,
    Claim,
    Counts,
    EntryRow,
    EvidenceRow,
    Held,
    History,
    LetterFilter,
    LetterRow,
    Message,
    RunFilter,
    RunRow,
    ScheduleRow,
    Status,
)
from holdfast.stores import sqlite_claims, sqlite_reads, sqlite_workers
from holdfast.stores.base import Store
from holdfast.stores.batch import Batch
from holdfast.stores.sqlite_connections import Connections, alone
from holdfast.stores.sqlite_file import MEMORY
from holdfast.stores.sqlite_statements import SQL, PlainStatements, SetStatements, json_rows
from holdfast.stores.worker_lock import WorkerLock, remove_lock

_FENCE = SQL["fence"]
_APPEND = {1: SQL["append_one"], 2: SQL["append_two"]}


class SQLiteStore(Store):
    """Runs in an SQLite file, or in memory (`:memory:`) for as long as the store is open.

    Args:
        path: the database file; created with mode 0600 when it is missing.
        durability: `power` syncs every commit to the disk, `process` leaves that to the operating system.
        inline_limit: batches of up to so many operations are committed on the event loop's own thread when no other
            commit is in flight and the lock is free; larger ones on a thread, in a constant number of statements.
        patience: how long to wait for a lock held by another process before StoreBusy.
    """

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
        self.durability = durability
        self._inline_limit = inline_limit
        self._patience = patience.total_seconds()
        self._connections = Connections(self.path, durability, self._patience)

    async def open(self) -> None:
        await self._connections.open()

    async def close(self) -> None:
        if self._connections.is_open:
            await self._connections.close()

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        connections = self._connections
        connections.ready()
        if len(operations) <= self._inline_limit and connections.idle and not any(map(_large, operations)):
            turn = _only_facts(operations)
            try:
                if turn is not None:
                    return connections.commit_here(lambda db: _append(db, turn), alone)
                return connections.commit_here(lambda db: Batch(PlainStatements(db)).apply(operations))
            except apsw.BusyError:
                pass
        return None

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        connections = self._connections
        outcomes = self.apply_now(operations)
        if outcomes is not None:
            return outcomes
        return await connections.write(lambda db: Batch(SetStatements(db)).apply(operations))

    async def claim(
        self, worker: str, now: Instant, limit: int, workflows: Sequence[str], poison: str, *, suspects: bool = True
    ) -> list[Claim]:
        if not await self._connections.read(lambda db: sqlite_claims.anything_due(db, now, workflows)):
            return []
        return await self._connections.write(
            lambda db: sqlite_claims.claim(
                db, worker, now, limit, workflows=workflows, poison=poison if suspects else None
            ),
            inline=True,
        )

    async def load(self, keys: Sequence[int]) -> list[History]:
        return await self._connections.read(lambda db: sqlite_reads.load(db, keys))

    async def inboxes(self, after: Mapping[int, int]) -> dict[int, list[Message]]:
        return await self._connections.read(lambda db: sqlite_reads.inboxes(db, after))

    async def due(self, worker: str, now: Instant) -> list[int]:
        return await self._connections.read(lambda db: [key for (key,) in db.execute(SQL["own_due"], (worker, now))])

    async def held(self, worker: str) -> list[Held]:
        return await self._connections.read(
            lambda db: [Held(key, epoch, Status(status)) for key, epoch, status in db.execute(SQL["held"], (worker,))]
        )

    async def next_due(self, workflows: Sequence[str] | None = None) -> Instant | None:
        return await self._connections.read(lambda db: sqlite_claims.next_due(db, workflows))

    def changed(self) -> bool:
        return self._connections.changed()

    async def get(self, run_id: str) -> RunRow | None:
        rows = await self._connections.read(lambda db: db.execute(SQL["get_run"], (run_id,)).fetchall())
        return sqlite_reads.run_row(rows[0]) if rows else None

    async def runs(self, which: RunFilter) -> list[RunRow]:
        return await self._connections.read(lambda db: sqlite_reads.list_runs(db, which))

    async def history(self, key: int, *, archived: bool = False) -> list[EntryRow]:
        statement = "read_archive" if archived else "read_entries"
        return await self._connections.read(lambda db: sqlite_reads.entries(db, key, statement))

    async def letters(self, which: LetterFilter) -> list[LetterRow]:
        return await self._connections.read(lambda db: sqlite_reads.list_letters(db, which))

    async def audit(self, target: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        return await self._connections.read(lambda db: sqlite_reads.audit(db, target, after, limit))

    async def evidence(self, run_id: str, after: int = 0, limit: int = 1000) -> list[EvidenceRow]:
        return await self._connections.read(lambda db: sqlite_reads.evidence(db, run_id, after, limit))

    async def schedules(self, due: Instant | None = None) -> list[ScheduleRow]:
        return await self._connections.read(lambda db: sqlite_reads.schedules(db, due))

    async def replies(self, messages: Sequence[str]) -> dict[str, str]:
        wanted = json_rows(messages)
        return await self._connections.read(lambda db: dict(iter(db.execute(SQL["read_replies"], (wanted,)))))

    async def beats(self, key: int) -> dict[str, tuple[Instant, str]]:
        return await self._connections.read(
            lambda db: {location: (at, detail) for location, at, detail in db.execute(SQL["read_beats"], (key,))}
        )

    async def counts(self) -> Counts:
        return await self._connections.read(sqlite_reads.counts)

    async def join(self, worker: str, lease: timedelta) -> None:
        self._connections.ready()
        lock = None if self.path == MEMORY else WorkerLock(self.path, worker)
        name = Path(lock.path).name if lock is not None and lock.effective else ""
        try:
            await self._connections.write(lambda db: sqlite_workers.join(db, worker, micros(lease), name))
        except BaseException:
            if lock is not None:
                lock.remove()
            raise
        self._connections.locks[worker] = lock

    def renew(self, worker: str) -> bool:
        if self.path == MEMORY:
            self._connections.ready()
            return worker in self._connections.locks
        return self._connections.renew(lambda db: sqlite_workers.renew(db, worker))

    async def leave(self, worker: str) -> None:
        await self._connections.write(lambda db: sqlite_workers.leave(db, worker))
        lock = self._connections.locks.pop(worker, None)
        if lock is not None:
            lock.remove()

    async def take_over(self, now: Instant) -> int:
        folder = Path(self.path).parent
        mine = set(self._connections.locks)
        suspects = await self._connections.read(lambda db: sqlite_workers.suspects(db, folder, mine))
        if not suspects:
            return 0
        dead = await self._connections.write(lambda db: sqlite_workers.declare_dead(db, suspects, now))
        for worker in dead:
            remove_lock(self.path, worker)
        return len(dead)


def _only_facts(operations: Sequence[Operation]) -> CommitTurn | None:
    """Return the turn of a batch that is nothing but one or two new facts of one run: the hot path."""
    if len(operations) != 1:
        return None
    turn = operations[0]
    if type(turn) is not CommitTurn or turn.state or turn.end or turn.renewal or turn.reset_claims:
        return None
    if turn.extras is not None:
        return None
    if turn.trims or turn.sends or turn.children or turn.consumed or len(turn.entries) not in _APPEND:
        return None
    return turn


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
