"""Connections to a PostgreSQL server that reconnect by themselves, and the server's clock."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, BaseConnection, Connection, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast.clock import Clock, Instant
from holdfast.errors import ReadOnly, StoreClosed
from holdfast.stores.postgres.address import Dialect
from holdfast.stores.postgres.errors import UNPREPARED, is_lost, refuses_options, translate
from holdfast.system import boot_time

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


ANSWER = 30.0
"""After how many seconds without an answer a connection that never said it broke is taken for broken."""


class DatabaseClock(Clock):
    """The database's time as it was told last, gone on since: never ahead of it, whatever this machine's clock says."""

    def __init__(self) -> None:
        self._offset = super().now() - boot_time()
        self._told = 0

    def now(self) -> Instant:
        return boot_time() + self._offset

    @property
    def stale(self) -> bool:
        """Whether it was not told for a minute."""
        return boot_time() - self._told > 60_000_000

    def told(self, instant: Instant, asked: int) -> None:
        """Take in what the database said its time is, between the moment it was asked and now."""
        self._told = boot_time()
        first = not -60_000_000 < self._offset - (instant - self._told) < 60_000_000
        # Any offset between these fits; the one there is stays if it does, so that a slow answer moves nothing back.
        least, most = instant - self._told, instant - asked
        self._offset = least if first else min(max(self._offset, least), most)


class NoAnswer(psycopg.OperationalError):
    """A statement took longer than it may, and its connection was given up."""


class ReconnectingConnection:
    """One connection that is opened when it is needed, used by one at a time, and opened again after it broke."""

    def __init__(self, connections: PostgresConnections) -> None:
        self._connections = connections
        self._lock = asyncio.Lock()
        self._failures = 0
        self._prepare = True
        self.connection: AsyncConnection[Any] | None = None
        self.opened = 0.0
        """When the present connection was made, by the monotonic clock."""
        self.broken_before = False
        """Whether there was another one before it."""

    async def use(self, work: Work[T], answer: float | None = ANSWER) -> T:
        """Do something with the connection, which must not take longer than `answer` seconds.

        Raises:
            psycopg.Error: what the server said; a connection that is of no use any more is given up.
            StoreUnreachable: there is no connection to be had.
        """
        async with self._lock:
            connection = await self._connected()
            try:
                async with asyncio.timeout(answer):
                    return await work(connection)
            except TimeoutError as error:
                await self.drop()
                raise NoAnswer(f"no answer within {answer} s") from error
            except asyncio.CancelledError:
                await self.drop()  # what is still on its way is not known
                raise
            except psycopg.Error as error:
                if is_lost(error, connection):
                    await self.drop()
                    task = asyncio.current_task()
                    if task is not None and task.cancelling():
                        raise asyncio.CancelledError from error  # the driver has swallowed it
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
        self._connections.ready()
        if self.connection is not None and not self.connection.closed:
            return self.connection
        if self._failures:
            # Processes that lost the server come back at different moments.
            await asyncio.sleep(random.uniform(0, min(2.0, 0.02 * 2**self._failures)))
        try:
            connection = await self._connections.connect()
        except psycopg.Error as error:
            self._failures = min(self._failures + 1, 10)
            raise translate(error, self._connections.where) from error
        if self._connections.refusal:  # the store was closed meanwhile
            await connection.close()
            self._connections.ready()
        prepare = self._prepare and self._connections.dialect is Dialect.DIRECT
        connection.prepare_threshold = _PREPARE_AFTER if prepare else None
        self.broken_before = self.broken_before or self.opened > 0
        self._failures, self.opened = 0, time.monotonic()
        self.connection = connection
        return connection


class PostgresConnections:
    """The connections of one open store: commits, everything else, what others do, and leases."""

    def __init__(self, conninfo: str, where: str, dialect: Dialect, durability: str) -> None:
        self._given = conninfo_to_dict(conninfo)
        self._durability = durability
        self.where = where
        self.dialect = dialect
        self.clock = DatabaseClock()
        self.look_only = False
        """Whether nothing may be written."""
        self.refusal = f"{where}: the store is not open"
        self._process = 0
        self._renewing = threading.Lock()
        self._renewer: Connection[Any] | None = None

    def open(self) -> None:
        """Allow connections to be made; they belong to this process and this event loop."""
        self._process = os.getpid()
        self.refusal = ""
        self.writer, self.reader = ReconnectingConnection(self), ReconnectingConnection(self)

    def cut(self) -> None:
        """End every connection, also those on which an answer is awaited."""
        for connection in (self.writer.connection, self.reader.connection, self._renewer):
            cut(connection)

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
            raise StoreClosed(f"{self.where}: the store was inherited through a fork; open a new one in this process")

    def ready_to_write(self) -> None:
        """Refuse a store that was opened to look, too."""
        self.ready()
        if self.look_only:
            raise ReadOnly(f"{self.where}: was opened only to look, which changes nothing")

    @property
    def conninfo(self) -> str:
        """What libpq is told."""
        wanted: dict[str, Any] = {**_DEFAULTS, **self._given, "client_encoding": "UTF8"}
        if self.dialect is Dialect.DIRECT:  # a pooler does not let options pass, and has sessions of its own
            level = "on" if self._durability == "power" else "off"
            # Compiling a claim, which the planner thinks worth it, takes a thousand times as long as running it.
            ours = f"-c synchronous_commit={level} -c jit=off -c default_transaction_isolation=read\\ committed"
            if self.look_only:
                ours += " -c default_transaction_read_only=on"
            wanted["options"] = f"{wanted.get('options') or ''} {ours}".strip()
        return make_conninfo(**wanted)

    async def connect(self) -> AsyncConnection[Any]:
        """Return one more connection.

        Raises:
            psycopg.Error: the server refused or could not be reached.
        """
        self.ready()
        try:
            connection = await _Connection.connect(self.conninfo, autocommit=True)
        except psycopg.Error as error:
            if self.dialect is Dialect.POOLER or not refuses_options(error):
                raise
            self._is_pooled()
            return await _Connection.connect(self.conninfo, autocommit=True)
        if self.dialect is Dialect.DIRECT:
            # A pooler makes up the number it greets with. It must be known before anything is prepared: sessions that
            # are shared would take one connection's statement for another's.
            try:
                cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
                [(session,)] = await cursor.fetchall()
            except BaseException:
                await connection.close()
                raise
            if session != connection.info.backend_pid:
                self._is_pooled()
        return connection

    def connect_blocking(self) -> Connection[Any]:
        """Return one more connection, for a thread."""
        self.ready()
        try:
            connection = Connection.connect(self.conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise translate(error, self.where) from error
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        return connection

    def _is_pooled(self) -> None:
        """Go on as behind a pooler, for that is where the address leads."""
        self.dialect = Dialect.POOLER
        _logger.warning("%s is a pooler: going on as with dialect='pooler'; say so to silence this", self.where)

    async def read(self, work: Work[T], answer: float | None = ANSWER) -> T:
        """Do something that may be done twice: once more, on a new connection, if the one there was has broken.

        What a new connection had no answer to is not asked again: it is not the connection that is slow.
        """
        begun = time.monotonic()
        try:
            return await self.reader.use(work, answer)
        except psycopg.Error as error:
            new = self.reader.opened >= begun
            lost = self.reader.connection is None and not (new and isinstance(error, NoAnswer))
            if not lost and not isinstance(error, UNPREPARED):
                raise translate(error, self.where) from error
        try:
            return await self.reader.use(work, answer)
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    def renew(self, work: Callable[[Connection[Any]], T]) -> T:
        """Do something on the connection for leases, from a thread of its own."""
        self.ready_to_write()
        with self._renewing:
            self.ready()
            if self._renewer is None or self._renewer.closed:
                self._renewer = self.connect_blocking()
            # A server that fell silent must not keep a lease from lapsing unnoticed.
            limit = threading.Timer(ANSWER, cut, (self._renewer,))
            limit.daemon = True
            limit.start()
            try:
                return work(self._renewer)
            except psycopg.Error as error:
                self._renewer.close()
                self._renewer = None
                raise translate(error, self.where) from error
            finally:
                limit.cancel()


class _Connection(AsyncConnection[Any]):
    """A connection that is given up at once when what waits for an answer is cancelled."""

    async def _try_cancel(self, *, timeout: float = 5.0) -> None:
        # The driver would ask the server to stop, and wait ten seconds for one that is silent.
        cut(self)


def cut(connection: BaseConnection[Any] | None) -> None:
    """End a connection, from any thread, also while an answer is awaited on it; the server need not answer."""
    if connection is None or connection.closed:
        return
    with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def in_pipeline(connection: AsyncConnection[Any], dialect: Dialect) -> AbstractAsyncContextManager[object]:
    """Let statements be sent together, where that works."""
    return connection.pipeline() if dialect is Dialect.DIRECT else nullcontext()
