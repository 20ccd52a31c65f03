"""Workers on many machines: each has a row, and is alive while its lease lasts or its connection shows it."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from datetime import timedelta
from typing import Any

import psycopg

from holdfast.clock import Instant, micros, old_id
from holdfast.contract.rows import TakenOver
from holdfast.stores.liveness import RECENT_DEATH, Fate
from holdfast.stores.postgres.address import Dialect
from holdfast.stores.postgres.database import Database
from holdfast.stores.postgres.statements import sql
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.statements import Statements
from holdfast.system import boot_time, machine, process_exists

SILENCE = timedelta(seconds=10)
"""For how long a process may keep others from committing without a word, before its transaction is ended."""

_OLD = timedelta(days=1)


class PostgresWorkers:
    """The workers of one database; those that joined through this very store are `mine`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = sql(database.schema)
        self.mine: dict[str, timedelta] = {}

    async def join(self, worker: str, lease: timedelta, about: str) -> None:
        """Announce a worker."""
        self._database.connections.ready()
        await asyncio.get_running_loop().run_in_executor(None, self._join, worker, micros(lease), about)
        self.mine[worker] = lease

    def _join(self, worker: str, lease: int, about: str) -> None:
        def work(connection: psycopg.Connection[Any]) -> None:
            asked = boot_time()
            session, begun, now = self._session(connection)
            values = (worker, lease, session, begun, machine(), os.getpid(), socket.gethostname(), about)
            psycopg.RawCursor(connection).execute(self._sql["join_worker"], values)
            self._database.connections.clock.told(now, asked)

        self._database.connections.renew(work)

    def _session(self, connection: psycopg.Connection[Any]) -> tuple[int, str, Instant]:
        if self._pooled:
            [(now,)] = connection.execute(self._sql["clock"]).fetchall()
            return 0, "", now
        [(session, begun, now)] = connection.execute(self._sql["session"]).fetchall()
        return session, begun, now

    @property
    def _pooled(self) -> bool:
        return self._database.connections.dialect is Dialect.POOLER

    def renew(self, worker: str, load: str) -> bool:
        """Extend a lease; False when the worker was declared dead meanwhile."""

        def work(connection: psycopg.Connection[Any]) -> bool:
            session, begun, _ = self._session(connection)
            asked = boot_time()
            rows = (
                psycopg.RawCursor(connection)
                .execute(self._sql["renew_worker"], (worker, session, begun, load))
                .fetchall()
            )
            for (now,) in rows:
                self._database.connections.clock.told(now, asked)
            if not self._pooled:
                lock = f'"{self._database.schema}".commit_lock'
                psycopg.RawCursor(connection).execute(self._sql["end_silent"], (micros(SILENCE), lock))
            return bool(rows)

        return self._database.connections.renew(work)

    async def leave(self, worker: str) -> None:
        """Hand back what a worker has, and forget it."""

        async def work(statements: Statements) -> None:
            batch = Batch(statements)
            await batch.tasks.lose(worker, "handed back")
            await batch.limits.lose(worker)
            await batch.flush()
            await statements.write("hand_back", [(worker,)])
            await statements.write("delete_worker", [(worker,)])

        await self._database.exclusive(work)
        self.mine.pop(worker, None)

    async def take_over(self, now: Instant) -> list[TakenOver]:
        """Free what dead workers were running; see Store.take_over."""
        fates = {worker: fate for worker, fate in (await self.fates()).items() if worker not in self.mine}
        if self._came_back:
            fates = {worker: fate for worker, fate in fates.items() if fate is Fate.DIED}
        if not fates:
            return []

        async def work(statements: Statements) -> list[TakenOver]:
            batch, dead = Batch(statements), []
            for worker, fate in fates.items():
                if await statements.change("declare_dead", (worker, int(fate is Fate.DIED))):
                    await batch.tasks.lose(worker, fate.lost, now)
                    await batch.limits.lose(worker, now)
                    await batch.flush()
                    runs = [str(run) for (run,) in await statements.read("run_by", [(worker,)])]
                    [(silence,)] = await statements.read("silence", [(worker,)])
                    await statements.write("free_lost", [(worker, now, fate.lost, now - int(silence or 0))])
                    dead.append(TakenOver(worker, fate.lost, runs))
            await statements.write("age_dead", [(RECENT_DEATH,)])
            await statements.write("prune_dead", [()])
            await statements.write("old_tokens", [(old_id(_OLD),)])
            return dead

        return await self._database.exclusive(work)

    @property
    def _came_back(self) -> bool:
        """Whether the server was away just now: other workers had no time yet to say that they are alive."""
        reader = self._database.connections.reader
        longest = max((lease.total_seconds() for lease in self.mine.values()), default=0.0)
        return reader.broken_before and time.monotonic() - reader.opened < longest

    async def fates(self) -> dict[str, Fate]:
        """Return what became of workers that do not seem to be at work; see SQLStore.fates."""

        async def look(statements: Statements) -> dict[str, Fate]:
            fates: dict[str, Fate] = {}
            for worker, pid, lapsed, here in await statements.read("live_leases", [(machine(),)]):
                if here and not process_exists(int(pid or 0)):
                    fates[str(worker)] = Fate.DIED
                elif lapsed and self._pooled:
                    fates[str(worker)] = Fate.LAPSED
                elif lapsed:
                    connected = await statements.read("is_connected", [(worker,)])
                    fates[str(worker)] = Fate.HANGS if connected else Fate.VANISHED
            return fates

        return await self._database.look(look)
