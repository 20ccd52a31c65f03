"""One schema of a PostgreSQL database: looking at it, and trying again when other processes are in the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection

from holdfast.errors import StoreUnreachable
from holdfast.stores.postgres.connections import (
    ANSWER,
    PostgresConnections,
    ReconnectingConnection,
    Work,
    in_pipeline,
)
from holdfast.stores.postgres.errors import AGAIN, UNPREPARED, translate
from holdfast.stores.postgres.statements import PostgresStatements, new_keys
from holdfast.stores.sql.looks import Look

T = TypeVar("T")

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""A transaction that waited for a lock must then see what was committed meanwhile."""

PATIENCE = 10.0
OUTAGE = 4.0
"""For how many seconds to try again while others are always faster, and while there is no server to be reached."""


class Lost(Exception):
    """The connection broke after a commit was sent: whether it happened is not known."""


class Database:
    """The tables of one schema, and the connections by which they are reached."""

    def __init__(self, connections: PostgresConnections, schema: str) -> None:
        self.connections = connections
        self.schema = schema
        self.keys = new_keys()
        self.collisions = 0
        """How often something was done again because another process was faster."""

    def on(self, connection: AsyncConnection[Any]) -> PostgresStatements:
        """Return the statements for one transaction on a connection."""
        return PostgresStatements(connection, self.schema, self.keys)

    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        """Read what is committed; see SQLStore.look."""

        async def work(connection: AsyncConnection[Any]) -> T:
            statements = self.on(connection)
            if not together:
                return await look(statements)
            async with in_pipeline(connection, self.connections.dialect):
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                result = await look(statements)
                await connection.execute("COMMIT")
            return result

        return await self.connections.read(work, None if patient else ANSWER)

    async def ask(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return what one statement finds."""
        return await self.look(lambda db: db.read(name, [values]))

    async def exclusive(self, work: Look[T]) -> T:
        """Write in one transaction while no other process does; see SQLStore.exclusive."""

        async def transaction(connection: AsyncConnection[Any]) -> T:
            statements = self.on(connection)
            async with in_pipeline(connection, self.connections.dialect):
                await connection.execute(BEGIN)
                await statements.lock_out_others()
                result = await work(statements)
                await connection.execute("COMMIT")
            return result

        return await self.insist(self.connections.writer, transaction, answer=None)

    async def insist(
        self,
        connection: ReconnectingConnection,
        work: Work[T],
        *,
        twice: bool = True,
        answer: float | None = ANSWER,
        doubtful: Callable[[], bool] = lambda: False,
    ) -> T:
        """Do something again while another process is in the way, for as long as that is likely to help.

        After a lost connection only what may be done `twice` is: what takes something for a worker may have taken it.
        What is `doubtful` then is asked for first (Lost).
        """
        self.connections.ready_to_write()
        began, pause = time.monotonic(), 0.002
        while True:
            try:
                return await connection.use(work, answer)
            except psycopg.Error as error:
                lost = connection.connection is None
                if lost and doubtful():
                    raise Lost(str(error)) from error
                again = (lost and twice) or isinstance(error, AGAIN + UNPREPARED)
                if not again or time.monotonic() - began > (OUTAGE if lost else PATIENCE):
                    raise translate(error, self.connections.where) from error
                self.collisions += not lost
            except StoreUnreachable:
                if time.monotonic() - began > OUTAGE:
                    raise
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(pause * 2, 0.5)
