"""A TCP server in a thread and an event loop of its own, so that the code under test may block."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from psycopg.conninfo import conninfo_to_dict
from tests.postgres.servers import free_port

T = TypeVar("T")


class Listener:
    """Stands in front of the database at `url`, and is reached at its own `url`; subclasses serve a connection."""

    def __init__(self, url: str) -> None:
        target = conninfo_to_dict(url)
        self.host, self.target_port = str(target["host"]), int(target.get("port") or 5432)
        self.user, self.database = str(target.get("user", "postgres")), str(target.get("dbname", "postgres"))
        self.port = 0
        self._failures: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name=type(self).__name__, daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stopping: asyncio.Event
        self._server: asyncio.Server | None = None
        self._reserved: socket.socket | None = None

    @property
    def url(self) -> str:
        """The address that clients use instead of the database's own."""
        return f"postgresql://{self.user}@127.0.0.1:{self.port}/{self.database}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        if self._failures:
            raise self._failures[0]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()
        if error is None and self._failures:
            raise self._failures[0]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends."""
        raise NotImplementedError

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the database itself."""
        if self.host.startswith("/"):
            return await asyncio.open_unix_connection(f"{self.host}/.s.PGSQL.{self.target_port}")
        return await asyncio.open_connection(self.host, self.target_port)

    def on_loop(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the listener's own thread, and give what it returns."""

        async def call() -> T:
            return function(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def listen(self) -> None:
        """Accept connections, at the same port as before."""
        if self._server is None:
            reserved = self._reserved or self._reserve()
            self._reserved = None
            self._server = await asyncio.start_server(self._accept, sock=reserved)

    def stop_listening(self) -> None:
        """Refuse connections. The port stays ours: it is bound, and nobody listens."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._reserved = self._reserve()

    async def _main(self) -> None:
        try:
            self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
            await self.listen()
        except BaseException as failure:
            self._failures.append(failure)
            raise
        finally:
            self._ready.set()
        await self._stopping.wait()
        self.stop_listening()
        if self._reserved is not None:
            self._reserved.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _reserve(self) -> socket.socket:
        while True:
            # With the protocol spelt out asyncio sees that this is TCP, and switches off what delays small packets.
            reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                reserved.bind(("127.0.0.1", self.port or free_port()))
            except OSError:
                reserved.close()
                if self.port:
                    raise
            else:
                self.port = reserved.getsockname()[1]
                return reserved

    def spawn(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        """Do some work beside the rest; a failure other than of a connection is raised when the listener is closed."""

        async def guarded() -> None:
            try:
                await work(*arguments)
            except OSError:  # more than ConnectionError: a server that is away has no Unix socket to be found
                pass
            except Exception as failure:
                self._failures.append(failure)

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.spawn(self.serve, reader, writer).add_done_callback(lambda _: reset(writer))


def reset(writer: asyncio.StreamWriter) -> None:
    """Break a connection off with a TCP reset, dropping what is still to be sent."""
    raw = writer.get_extra_info("socket")
    if raw.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
