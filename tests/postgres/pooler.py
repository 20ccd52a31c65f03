"""Transaction poolers: what a database looks like through PgBouncer, where session state does not last."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from psycopg.conninfo import conninfo_to_dict
from tests.postgres.listener import Listener, reset
from tests.postgres.servers import free_port, short_place, unprivileged
from tests.postgres.wire import (
    CANCEL_REQUEST,
    ENCRYPTION_REQUEST,
    SSL_REQUEST,
    Frame,
    Frames,
    Session,
    fatal,
    message,
    startup,
)

# What PgBouncer takes from a client that connects; it refuses anything else, `options` above all.
STARTUP_PARAMETERS = frozenset(
    {"user", "database", "application_name", "client_encoding", "datestyle", "timezone", "standard_conforming_strings"}
)


class Pooler(Listener):
    """Lends each client a server connection for one transaction at a time, another one each time if it can.

    Like PgBouncer in transaction mode before 1.21: prepared statements, settings, temporary tables, advisory locks of a
    session and LISTEN belong to the server connection and not to the client, nothing resets them, and a client that
    goes away within a transaction takes its server connection with it.

    `switches` counts how often a client was lent another server connection than the time before. Startup parameters
    that are `ignored` are passed over, as PgBouncer's `ignore_startup_parameters` does; it refuses what it knows not.
    """

    def __init__(self, url: str, size: int = 2, ignored: Collection[str] = ()) -> None:
        super().__init__(url)
        self.switches = 0
        self._size = size
        self._accepted = STARTUP_PARAMETERS.union(ignored)
        self._pools: dict[tuple[str, str], _Pool] = {}
        self._clients: dict[bytes, _Client] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = _frames(reader, Frames(opening=True))
        async for frame in frames:
            if frame.code in (SSL_REQUEST, ENCRYPTION_REQUEST):
                writer.write(b"N")
            elif frame.code == CANCEL_REQUEST:
                await self._cancel(frame.body[4:])
                await _say_last(writer, b"")
                return
            else:
                await self._welcome(frame, writer, frames)
                return

    async def _welcome(self, frame: Frame, writer: asyncio.StreamWriter, frames: AsyncIterator[Frame]) -> None:
        words = frame.body[4:].decode().rstrip("\0").split("\0")
        parameters = dict(zip(words[::2], words[1::2], strict=False))
        unknown = [name for name in parameters if name.lower() not in self._accepted]
        if unknown:
            await _say_last(writer, fatal("08P01", f"unsupported startup parameter: {unknown[0]}"))
            return
        key = (parameters["user"], parameters.get("database", parameters["user"]))
        pool = self._pools.setdefault(key, _Pool(self, *key, self._size))
        client = _Client(self, pool, writer)
        try:
            await client.run(frames)
        except _Refused as refusal:
            await _say_last(writer, refusal.answer)
        finally:
            client.leave()

    async def _cancel(self, key: bytes) -> None:
        """Pass on a request to cancel, to the server connection that the client has at the moment, if any."""
        client = self._clients.get(key)
        if client is not None and client.lent is not None:
            _, writer = await self.connect()
            writer.write(message(b"", CANCEL_REQUEST.to_bytes(4) + client.lent.key))
            await writer.drain()
            writer.close()
            await writer.wait_closed()


class _Refused(Exception):
    """The server did not let us in."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(answer)
        self.answer = answer


class _Client:
    """A client's session, which has a server connection only while it is in a transaction."""

    _numbers = itertools.count(1)

    def __init__(self, pooler: Pooler, pool: _Pool, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.session = Session()
        self.lent: _Backend | None = None
        self._last: _Backend | None = None
        self._pooler = pooler
        self._pool = pool
        self._key = next(self._numbers).to_bytes(4) + os.urandom(4)

    async def run(self, frames: AsyncIterator[Frame]) -> None:
        """Greet the client as a server does, and serve its transactions until it leaves."""
        backend = await self._pool.lend(None)
        self._pool.give_back(backend)
        self._pooler._clients[self._key] = self
        self.writer.write(message(b"R", bytes(4)) + backend.settings + message(b"K", self._key) + message(b"Z", b"I"))
        async for frame in frames:
            if frame.type == b"X":
                return
            if self.lent is None:
                await self._borrow()
            assert self.lent is not None
            self.session.asked(frame)
            self.lent.writer.write(frame.whole)
            await self.lent.writer.drain()

    def answered(self, frame: Frame) -> None:
        """Pass on an answer of the server; the one that ends a transaction ends the loan."""
        self.writer.write(frame.whole)
        idle = self.session.answered(frame) and frame.body == b"I" and not self.session.waits_for_server
        if idle and self.lent is not None:
            self._pool.give_back(self.lent)
            self.lent = None

    def leave(self) -> None:
        """Forget the client; a server connection that it leaves within a transaction is of no use to others."""
        self._pooler._clients.pop(self._key, None)
        if self.lent is not None:
            self.lent.close()
            self._pool.give_back(self.lent)
            self.lent = None

    async def _borrow(self) -> None:
        backend = await self._pool.lend(self._last)
        if self._last is not None and backend is not self._last:
            self._pooler.switches += 1
        self.lent = self._last = backend
        backend.client = self


class _Pool:
    """The server connections to one database; at most `size`, lent in turn."""

    def __init__(self, pooler: Pooler, user: str, database: str, size: int) -> None:
        self._pooler = pooler
        self._parameters = {"user": user, "database": database, "client_encoding": "UTF8"}
        self._places = asyncio.Semaphore(size)
        self._size = size
        self._lent = 0
        self._free: list[_Backend] = []

    async def lend(self, not_this: _Backend | None) -> _Backend:
        """Give a free connection, if possible not the one given, when there is one."""
        await self._places.acquire()
        try:
            self._lent += 1
            self._free = [backend for backend in self._free if not backend.closed]
            others = [backend for backend in self._free if backend is not not_this]
            room = self._lent + len(self._free) <= self._size
            if others or (self._free and not room):
                backend = (others or self._free)[0]
                self._free.remove(backend)
                return backend
            return await _Backend.connect(self._pooler, self._parameters)
        except BaseException:
            self._lent -= 1
            self._places.release()
            raise

    def give_back(self, backend: _Backend) -> None:
        """Take a connection back; the one that was idle longest is lent first."""
        backend.client = None
        self._lent -= 1
        if not backend.closed:
            self._free.append(backend)
        self._places.release()


class _Backend:
    """A connection to the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.client: _Client | None = None
        self.closed = False
        self.settings = b""
        self.key = b""

    @classmethod
    async def connect(cls, pooler: Pooler, parameters: dict[str, str]) -> _Backend:
        """Open a session with the server, and read on as long as it lives."""
        try:
            reader, writer = await pooler.connect()
        except OSError as error:
            raise _Refused(fatal("08006", f"cannot connect to the server: {error}")) from None
        backend = cls(writer)
        try:
            await backend._open(pooler, reader, parameters)
        except BaseException as error:
            reset(writer)
            if isinstance(error, OSError):
                raise _Refused(fatal("08006", f"the server closed the connection: {error}")) from None
            raise
        return backend

    def close(self) -> None:
        """Break the connection off; the server rolls back what is open."""
        self.closed = True
        reset(self.writer)

    async def _open(self, pooler: Pooler, reader: asyncio.StreamReader, parameters: dict[str, str]) -> None:
        self.writer.write(startup(parameters))
        frames = _frames(reader, Frames())
        async for frame in frames:
            if frame.type == b"E":
                raise _Refused(frame.whole)
            if frame.type == b"S":
                self.settings += frame.whole
            if frame.type == b"K":
                self.key = frame.body
            if frame.type == b"Z":
                pooler.spawn(self._listen, frames)
                return
        raise ConnectionError("no answer")

    async def _listen(self, frames: AsyncIterator[Frame]) -> None:
        try:
            async for frame in frames:
                # What the server says to nobody in particular is lost, notifications too.
                if self.client is not None:
                    self.client.answered(frame)
        except ConnectionError:
            pass
        finally:
            self.close()
            if self.client is not None:
                self.client.writer.close()


async def _frames(reader: asyncio.StreamReader, frames: Frames) -> AsyncIterator[Frame]:
    while data := await reader.read(1 << 16):
        for frame in frames.feed(data):
            yield frame


async def _say_last(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer)
    writer.close()
    await writer.wait_closed()


class PgBouncer:
    """The real one, in transaction mode, where the machine has it; it does not tell how often it switches."""

    def __init__(self, url: str, size: int = 2) -> None:
        target = conninfo_to_dict(url)
        self._database = target.get("dbname", "postgres")
        self._port = free_port()
        self._size = size
        self._settings = _SETTINGS.format(
            host=target["host"], target_port=target.get("port") or 5432, port=self._port, size=size
        )
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pgbouncer-", dir=short_place()))
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def is_installed() -> bool:
        """Tell whether the program is there."""
        return shutil.which("pgbouncer") is not None

    @property
    def url(self) -> str:
        """The address that clients use instead of the database's own."""
        return f"postgresql://postgres@127.0.0.1:{self._port}/{self._database}"

    def __enter__(self) -> Self:
        settings = self._folder / "pgbouncer.ini"
        settings.write_text(self._settings)
        settings.chmod(0o644)
        self._folder.chmod(0o711)
        command = [shutil.which("pgbouncer") or "pgbouncer", "-q", str(settings)]
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]  # a killed test leaves nothing behind
        with (self._folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **unprivileged()
            )
        give_up = time.monotonic() + 10
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > give_up:
                said = (self._folder / "log").read_text()
                self.__exit__(None, None, None)
                raise RuntimeError(f"pgbouncer does not start: {said}")
            time.sleep(0.02)
        self._open_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._folder)

    def _open_all(self) -> None:
        """Have as many transactions at once as it has server connections: it opens one only when none is free."""
        with contextlib.ExitStack() as stack:
            for _ in range(self._size):
                stack.enter_context(psycopg.connect(self.url)).execute("SELECT 1")

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False


_SETTINGS = """
[databases]
* = host={host} port={target_port} user=postgres

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {size}
server_round_robin = 1
max_client_conn = 200
"""
