"""Connections to a PostgreSQL server that come back by themselves, and the server's clock."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, Connection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.clock import Clock, Instant
from holdfast.errors import StoreClosed, StoreUnreachable
from holdfast.stores.postgres_dialect import Dialect
from holdfast.stores.postgres_errors import UNPREPARED, is_lost, translate

T = TypeVar("T")
Work = Callable[[AsyncConnection[Any]], Awaitable[T]]

_logger = logging.getLogger("holdfast.store")

_PREPARE_AFTER = 2
_DEFAULTS = {
    "connect_timeout": "5",
    "application_name": "holdfast",
    # A server that fell silent (its machine is gone, a cable was cut) is given up after about ten seconds.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class DatabaseClock(Clock):
    """The database's time as it was told last, gone on since: never ahead of it, whatever this machine's clock says."""

    def __init__(self) -> None:
        self._offset = super().now() - time.monotonic_ns() // 1000

    def now(self) -> Instant:
        return time.monotonic_ns() // 1000 + self._offset

    def told(self, instant: Instant) -> None:
        """Take in what the database said its time is, just now or a little earlier."""
        self._offset = instant - time.monotonic_ns() // 1000


class Line:
    """One connection that is opened when it is needed, used by one at a time, and opened again after it broke."""

    def __init__(self, conninfo: str, where: str, dialect: Dialect, ready: Callable[[], None]) -> None:
        self._conninfo = conninfo
        self._where = where
        self._ready = ready
        self._lock = asyncio.Lock()
        self._failures = 0
        self._prepare = dialect.prepare
        self.connection: AsyncConnection[Any] | None = None
        self.opened = 0.0
        """When the present connection was made, by the monotonic clock."""
        self.broken_before = False
        """Whether there was another one before it."""

    async def use(self, work: Work[T]) -> T:
        """Do something with the connection.

        Raises:
            psycopg.Error: what the server said; a connection that is of no use any more is given up.
            StoreUnreachable: there is no connection to be had.
        """
        async with self._lock:
            connection = await self._connected()
            try:
                return await work(connection)
            except psycopg.Error as error:
                if is_lost(error, connection):
                    await self.drop()
                else:
                    if isinstance(error, UNPREPARED):
                        self._prepare = False
                        connection.prepare_threshold = None
                    await self._roll_back(connection)
                raise
            except BaseException:
                await self._roll_back(connection)
                raise

    async def drop(self) -> None:
        """Give the connection up."""
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(psycopg.Error, OSError):
                await connection.close()

    async def _roll_back(self, connection: AsyncConnection[Any]) -> None:
        try:
            await connection.rollback()
        except (psycopg.Error, OSError):
            await self.drop()

    async def _connected(self) -> AsyncConnection[Any]:
        self._ready()
        if self.connection is not None and not self.connection.closed:
            return self.connection
        if self._failures:
            # Everybody who lost the server comes back at a moment of their own.
            await asyncio.sleep(random.uniform(0, min(2.0, 0.02 * 2**self._failures)))
        try:
            connection = await AsyncConnection.connect(self._conninfo, autocommit=True)
        except psycopg.Error as error:
            self._failures = min(self._failures + 1, 10)
            raise translate(error, self._where) from error
        connection.prepare_threshold = _PREPARE_AFTER if self._prepare else None
        self.broken_before = self.broken_before or self.opened > 0
        self._failures, self.opened = 0, time.monotonic()
        self.connection = connection
        return connection


class Connections:
    """The connections of one open store: commits, everything else, what others do, and leases."""

    def __init__(self, conninfo: str, where: str, dialect: Dialect, durability: str) -> None:
        given = conninfo_to_dict(conninfo)
        options = str(given.pop("options", "") or "")
        level = "on" if durability == "power" else "off"
        if dialect.sessions:  # a pooler does not let options pass, and has sessions of its own
            # Compiling a claim, which the planner thinks worth it, takes a thousand times as long as running it.
            options = f"{options} -c synchronous_commit={level} -c jit=off".strip()
        wanted: dict[str, Any] = {**_DEFAULTS, **given, **({"options": options} if options else {})}
        self._conninfo = make_conninfo(**wanted)
        self.where = where
        self.dialect = dialect
        self.clock = DatabaseClock()
        self.refusal = f"{where}: the store is not open"
        self._process = 0
        self._renewing = threading.Lock()
        self._renewer: Connection[Any] | None = None

    def open(self) -> None:
        """Allow connections to be made; they belong to this process and this event loop."""
        self._process = os.getpid()
        self.refusal = ""
        self.writer = Line(self._conninfo, self.where, self.dialect, self.ready)
        self.reader = Line(self._conninfo, self.where, self.dialect, self.ready)

    async def close(self) -> None:
        """Give every connection up."""
        self.refusal = f"{self.where}: the store is closed"
        await self.writer.drop()
        await self.reader.drop()
        # A renewal under way finishes first, on a thread that may wait for it.
        await asyncio.get_running_loop().run_in_executor(None, self._close_renewer)

    def _close_renewer(self) -> None:
        with self._renewing:
            if self._renewer is not None:
                self._renewer.close()
                self._renewer = None

    def ready(self) -> None:
        """Refuse a closed store and one inherited through a fork."""
        if self.refusal:
            raise StoreClosed(self.refusal)
        if os.getpid() != self._process:
            raise StoreClosed(f"{self.where}: the store was inherited through a fork; open one of its own here")

    async def connect(self) -> AsyncConnection[Any]:
        """Return one more connection, for whoever listens."""
        self.ready()
        return await AsyncConnection.connect(self._conninfo, autocommit=True)

    def connect_blocking(self) -> Connection[Any]:
        """Return one more connection, for a thread."""
        self.ready()
        try:
            return Connection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    async def read(self, work: Work[T]) -> T:
        """Do something that may be done twice: once more, on a new connection, if the one there was has broken."""
        try:
            return await self.reader.use(work)
        except psycopg.Error as error:
            if self.reader.connection is not None and not isinstance(error, UNPREPARED):
                raise translate(error, self.where) from error
        try:
            return await self.reader.use(work)
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    def renew(self, work: Callable[[Connection[Any]], T]) -> T:
        """Do something on the connection for leases, from a thread of its own."""
        self.ready()
        with self._renewing:
            self.ready()
            if self._renewer is None or self._renewer.closed:
                self._renewer = self.connect_blocking()
            try:
                return work(self._renewer)
            except psycopg.Error as error:
                self._renewer.close()
                self._renewer = None
                raise translate(error, self.where) from error


class Listener:
    """Hears from other processes that they committed something, as a hint; without it one looks more often."""

    def __init__(self, connections: Connections, channel: str, me: str) -> None:
        self._connections = connections
        self._channel = channel
        self._me = me
        self._task: asyncio.Task[None] | None = None
        self.hears = False
        self.heard = False

    def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.get_running_loop().create_task(self._listen_for_ever(), name="holdfast listener")

    async def stop(self) -> None:
        """Listen no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _listen_for_ever(self) -> None:
        pause, complained = 0.1, 0.0
        while True:
            try:
                async with await self._connections.connect() as connection:
                    await connection.execute(f'LISTEN "{self._channel}"')
                    self.hears = self.heard = True  # whatever was said while nobody listened
                    pause = 0.1
                    async for notification in connection.notifies():
                        self.heard = self.heard or notification.payload != self._me
            except (psycopg.Error, OSError, StoreUnreachable) as error:
                if time.monotonic() - complained > 60:
                    complained = time.monotonic()
                    _logger.warning("%s: not listening at present: %s", self._connections.where, error)
            finally:
                self.hears = False
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 5.0)
