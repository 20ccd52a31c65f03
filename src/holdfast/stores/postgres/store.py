"""The PostgreSQL store: one database, any number of workers on any number of machines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from holdfast.clock import Instant
from holdfast.contract.figures import Figure
from holdfast.contract.operations import Delivered, Fenced, Operation, Outcome, SendMessage, Transact
from holdfast.contract.rows import Claim, TakenOver, Task
from holdfast.contract.turns import Lane, StartRun
from holdfast.errors import StoreError
from holdfast.stores.liveness import Fate
from holdfast.stores.postgres.address import Dialect, address_of, dialect_of
from holdfast.stores.postgres.caller_transactions import Outbox, enclose
from holdfast.stores.postgres.claims import PostgresClaims
from holdfast.stores.postgres.commits import Commits
from holdfast.stores.postgres.connections import PostgresConnections
from holdfast.stores.postgres.database import Database
from holdfast.stores.postgres.errors import translate
from holdfast.stores.postgres.hints import Hints
from holdfast.stores.postgres.schema import check_schema, prepare_schema
from holdfast.stores.postgres.statements import sql
from holdfast.stores.postgres.transactions import PostgresTransactions
from holdfast.stores.postgres.workers import PostgresWorkers
from holdfast.stores.sql.figures import rows_of
from holdfast.stores.sql.looks import Look
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.store import SQLStore
from holdfast.system import boot_time

T = TypeVar("T")

_logger = logging.getLogger("holdfast.store")


class PostgresStore(SQLStore):
    """Runs in a schema of a PostgreSQL database.

    Args:
        url: `postgresql://user@host/database`, as libpq has it; `?schema=name` says where the tables are.
        durability: `power` waits for every commit to be on the disk, `process` does not (`synchronous_commit`).
        dialect: `pooler` where a pooler stands before the server (see Dialect).
    """

    kind = "postgres"

    def __init__(self, url: str, *, durability: str = "power", dialect: str | None = None) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f"durability is 'power' or 'process', not {durability!r}")
        self._given = url, durability, dialect
        conninfo, self.schema, shown = address_of(url)
        self.name = shown.rpartition("/")[2]
        self.durability = durability
        self._connections = PostgresConnections(conninfo, shown, dialect_of(dialect), durability)
        self.clock = self._clock = self._connections.clock
        self._database = Database(self._connections, self.schema)
        self._hints = Hints(self._connections, f"holdfast_{self.schema}", self._heard)
        self.commits = Commits(self._database, self._clock)
        self._claims = PostgresClaims(self._database)
        self._workers = PostgresWorkers(self._database)
        self._outbox = Outbox(self._database, self.apply)
        self._transactions = PostgresTransactions(self._connections, self.schema)
        self._opening = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self.is_open = False

    @property
    def dialect(self) -> Dialect:
        """What stands between this store and its server, as far as is known."""
        return self._connections.dialect

    async def open(self, *, look_only: bool = False) -> None:
        async with self._opening:
            if not self.is_open:
                self._connections.look_only = look_only
                await self._open()

    async def _open(self) -> None:
        self._connections.open()
        self._transactions = PostgresTransactions(self._connections, self.schema)
        looks = self._connections.look_only
        first = self._connections.reader if looks else self._connections.writer
        try:
            await first.use(self._prepare)
        except psycopg.Error as error:
            await self._connections.close()
            raise translate(error, self._connections.where) from error
        except BaseException:
            await self._connections.close()
            raise
        if looks:
            self._hints.start_when_asked()
        else:
            self._hints.start()
        self.is_open = True

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        prepare = check_schema if self._connections.look_only else prepare_schema
        await prepare(connection, self.schema, self._connections.where)
        await self._ask_clock(connection)
        [(level,)] = await (await connection.execute("SHOW synchronous_commit")).fetchall()
        if level == "off" and self.durability == "power":
            self.durability = "process"
            _logger.warning(
                "%s: synchronous_commit is off for this role and cannot be set here, so what is acknowledged survives "
                "the death of processes only; ALTER ROLE ... SET synchronous_commit = on",
                self._connections.where,
            )

    async def _ask_clock(self, connection: AsyncConnection[Any]) -> None:
        asked = boot_time()
        [(now,)] = await (await connection.execute(sql(self.schema)["clock"])).fetchall()
        self._clock.told(now, asked)

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        last = [task for task in (self._hints.pending, self._asking) if task is not None]
        last.append(asyncio.get_running_loop().create_task(self._last_words(), name="holdfast last words"))
        _, silent = await asyncio.wait(last, timeout=1)
        if silent:
            self._connections.cut()
            for task in silent:
                task.cancel()
            await asyncio.wait(silent, timeout=1)
        await self._hints.stop()
        self._transactions.close()
        await self._connections.close()

    async def _last_words(self) -> None:
        if self._connections.look_only:
            return
        with suppress(psycopg.Error, StoreError):
            await self._connections.writer.use(self.commits.forget_tokens)

    def another(self) -> PostgresStore:
        url, durability, dialect = self._given
        return PostgresStore(url, durability=durability, dialect=dialect)

    # Looking and committing.

    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        return await self._database.look(look, together=together, patient=patient)

    async def exclusive(self, work: Look[T]) -> T:
        return await self._database.exclusive(work)

    def changed(self) -> bool:
        self._connections.ready()
        if self._clock.stale and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._set_clock(), name="holdfast clock")
        return self._hints.heard()

    def _heard(self) -> None:
        if self.when_changed is not None:
            asyncio.get_running_loop().call_soon(self.when_changed)

    async def _set_clock(self) -> None:
        with suppress(StoreError):
            await self._connections.read(self._ask_clock)

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes, only_facts = await self.commits.apply(operations)
        if not only_facts:
            self._hints.give()
        return outcomes

    # What callers commit.

    async def enclose(self, connection: object, operation: StartRun | SendMessage) -> Outcome:
        self._connections.ready_to_write()
        return await enclose(connection, self.schema, self._database.keys, operation)

    async def relay(self) -> int:
        return await self._outbox.deliver()

    async def undelivered(self, statements: Statements) -> bool:
        return bool(await statements.read("read_outbox", [(0, 1)]))

    def transact(
        self,
        attempt: Transact,
        body: Callable[[Any], str],
        now: Callable[[], Instant],
        expired: Callable[[], None],
    ) -> Delivered | Fenced:
        self._connections.ready_to_write()
        return self._transactions.run(attempt, body, now, expired)

    # Claims.

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
        return await self._claims.runs(worker, now, limit, workflows, stuck=stuck, oldest=oldest)

    async def claim_waiting(
        self, worker: str, now: Instant, limit: int, lanes: Mapping[str, Lane], *, full: bool = False
    ) -> list[Claim]:
        return await self._claims.waiting(worker, now, limit, lanes, full)

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
        return await self._claims.tasks(worker, limit, queues, activities, at_once or {}, oldest)

    async def due(self, worker: str, now: Instant) -> list[int]:
        return await self._claims.own_due(worker, now)

    async def next_due(self, workflows: Sequence[str] | None = None) -> Instant | None:
        return await self._claims.next_due(workflows)

    # Workers.

    async def join(self, worker: str, lease: timedelta, about: str = "{}") -> None:
        await self._workers.join(worker, lease, about)

    def renew(self, worker: str, load: str = "{}") -> bool:
        return self._workers.renew(worker, load)

    async def leave(self, worker: str) -> None:
        await self._workers.leave(worker)
        self._hints.give()

    async def add_figures(self, figures: Sequence[Figure]) -> None:
        rows = rows_of(figures)

        async def work(connection: AsyncConnection[Any]) -> None:
            await self._database.on(connection).write("add_figures", rows)

        await self._database.insist(self._connections.writer, work, twice=False)

    async def take_over(self, now: Instant) -> list[TakenOver]:
        dead = await self._workers.take_over(now)
        if dead:
            self._hints.give()
        return dead

    async def fates(self) -> dict[str, Fate]:
        return await self._workers.fates()
