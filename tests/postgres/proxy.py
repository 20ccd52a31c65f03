"""A network that misbehaves: a proxy in front of a PostgreSQL server that cuts, delays, swallows, at will."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.postgres.listener import Listener, reset
from tests.postgres.wire import ENCRYPTION_REQUEST, SSL_REQUEST, SYNC, Commit, Frame, Frames, Session
from tests.support.waiting import LONG

Direction = Literal["up", "down"]


class Proxy(Listener):
    """Stands in front of the database at `url`; until a fault is asked for it only passes things on.

    Faults hold for all connections, open ones and new ones, and add up until `heal`. Up is towards the server.

    `injected` counts the faults that really bit: a connection refused or cut, a message withheld or delayed, a commit
    cut. `bites` has the same by name. `connections` counts those ever accepted, `open_connections` those there are now.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.bites: Counter[str] = Counter()
        self.connections = 0
        self._bitten = threading.Condition()
        self._links: set[_Link] = set()
        self._resetting = False
        self._blocked: dict[Direction, str] = {}
        self._delay = 0.0
        self._rate = 0.0
        self._commit_fault: _CommitFault | None = None
        self._changed = asyncio.Event()

    @property
    def injected(self) -> int:
        """How many faults really bit."""
        with self._bitten:
            return self.bites.total()

    @property
    def open_connections(self) -> int:
        """How many connections there are now."""
        return self.on_loop(lambda: len(self._links))

    def wait_injected(self, count: int = 1, timeout: float = LONG) -> None:
        """Block until at least this many faults have bitten."""
        with self._bitten:
            if not self._bitten.wait_for(lambda: self.bites.total() >= count, timeout):
                raise TimeoutError(f"{self.bites.total()} of {count} faults bit within {timeout} s: {dict(self.bites)}")

    def refuse(self) -> None:
        """Refuse new connections, as when no server listens. Open ones stay; nobody can count who is refused."""
        self.on_loop(self.stop_listening)

    def reset_new(self) -> None:
        """Accept new connections and reset them at once."""
        self._change(_resetting=True)

    def cut(self) -> int:
        """Reset all open connections, on both sides, and tell how many there were."""
        return self.on_loop(lambda: sum(link.cut("cut") for link in list(self._links)))

    def black_hole(self) -> None:
        """Forward nothing, in either direction. What is sent meanwhile arrives after `heal`, as after lost packets."""
        self._change(_blocked={"up": "black_hole", "down": "black_hole"})

    def one_way(self, direction: Direction) -> None:
        """Forward in this direction only: "up" lets requests through and no answers."""
        self._change(_blocked={"down" if direction == "up" else "up": "one_way"})

    def delay(self, seconds: float) -> None:
        """Let everything arrive this much later, in both directions."""
        self._change(_delay=seconds)

    def slow(self, bytes_per_second: float) -> None:
        """Forward no more than this many bytes a second, per connection and direction."""
        self._change(_rate=bytes_per_second)

    def cut_before_commit(self, n: int = 1, *, skip: int = 0, autocommit: bool = False) -> None:
        """Cut the connection of each of the next `n` commits, after the next `skip`, before the server gets to see it.

        With `autocommit`, a statement that writes outside of a transaction is a commit too.
        """
        self._change(_commit_fault=_CommitFault("cut_before_commit", n, skip, autocommit))

    def cut_after_commit_sent(
        self, n: int = 1, *, skip: int = 0, autocommit: bool = False, late: float | None = None
    ) -> None:
        """Let the server make each of the next `n` commits, after the next `skip`, and cut before its answer arrives.

        A commit that fails is answered as always, and does not count. With `late`, the client is cut first, and the
        server gets the commit that many seconds later: whoever looks in between finds it not made.
        """
        self._change(_commit_fault=_CommitFault("cut_after_commit_sent", n, skip, autocommit, late))

    def heal(self) -> None:
        """End all faults. Open connections go on with what was withheld; those that were cut stay so."""
        self._change(_resetting=False, _blocked={}, _delay=0.0, _rate=0.0, _commit_fault=None)
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._resetting:
            self._bite("reset_new")
            return
        link = _Link(self, reader, writer)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def _change(self, **settings: Any) -> None:
        def change() -> None:
            for name, value in settings.items():
                setattr(self, name, value)
            self._changed.set()
            self._changed = asyncio.Event()

        self.on_loop(change)

    def _bite(self, name: str) -> None:
        with self._bitten:
            self.bites[name] += 1
            self._bitten.notify_all()

    async def _let_pass(self, direction: Direction, arrived: float) -> None:
        """Return when what arrived at that time may go on."""
        bitten: set[str] = set()
        while True:
            rest = arrived + self._delay - self._loop.time()
            fault = self._blocked.get(direction) or ("delay" if rest > 0 else None)
            if fault is None:
                return
            if fault not in bitten:
                bitten.add(fault)
                self._bite(fault)
            await self._sleep_unless_changed(rest if fault == "delay" else None)

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self._rate:
            self._bite("slow")
        while self._rate and data:
            piece, data = data[: max(1, int(self._rate / 20))], data[max(1, int(self._rate / 20)) :]
            writer.write(piece)
            await self._sleep_unless_changed(len(piece) / self._rate)
        writer.write(data)
        await writer.drain()

    async def _sleep_unless_changed(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            pass

    def _fault_of(self, commit: Commit | None) -> _CommitFault | None:
        """Tell whether this commit is one to be cut."""
        fault = self._commit_fault
        if commit is None or fault is None or (commit == "statement" and not fault.autocommit):
            return None
        if fault.skip > 0:
            fault.skip -= 1
            return None
        if fault.left == 0:
            return None
        fault.left -= 1
        return fault


@dataclass(slots=True)
class _CommitFault:
    name: str
    left: int
    skip: int
    autocommit: bool
    late: float | None = None


@dataclass(slots=True)
class _Withheld:
    """A commit that the server is making, and its answers, which the client does not get unless it fails."""

    fault: _CommitFault
    commit: Commit
    answers: int  # how many ReadyForQuery there will be, the commit's own included
    bytes: bytearray = field(default_factory=bytearray)
    failed: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, frozen=True)
class _Arrived:
    at: float
    frames: list[Frame]
    end: Literal["", "closed", "reset"] = ""


class _Link:
    """One client's connection and its own to the server."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client_reader, self._client = reader, writer
        self._server: asyncio.StreamWriter | None = None
        self._session = Session()
        self._withheld: _Withheld | None = None
        self._up: asyncio.Queue[_Arrived] = asyncio.Queue(maxsize=16)
        self._down: asyncio.Queue[_Arrived] = asyncio.Queue(maxsize=16)
        self._to_server = bytearray()
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Forward until both sides are done, or one was reset."""
        tasks = [self._start(self._read, self._client_reader, Frames(opening=True), self._up)]
        try:
            await self._proxy._let_pass("up", 0.0)
            server_reader, self._server = await self._proxy.connect()
            tasks.append(self._start(self._read, server_reader, Frames(), self._down))
            tasks.append(self._start(self._write_up, self._server))
            tasks.append(self._start(self._write_down))
            await self._over.wait()
        finally:
            if self._server is not None:
                reset(self._server)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, fault: str | None) -> int:
        """Reset both sides, and count it unless it has been counted."""
        if fault is not None:
            self._proxy._bite(fault)
        for writer in (self._client, self._server):
            if writer is not None:
                reset(writer)
        self._over.set()
        self._proxy._links.discard(self)
        return 1

    def _start(self, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> asyncio.Task[None]:
        """Do one part of the link's work; if it fails the link is over."""

        async def whole() -> None:
            try:
                await work(*arguments)
            except BaseException:
                self._over.set()
                raise

        return self._proxy.spawn(whole)

    async def _read(self, reader: asyncio.StreamReader, frames: Frames, queue: asyncio.Queue[_Arrived]) -> None:
        now = self._proxy._loop.time
        try:
            while data := await reader.read(1 << 16):
                await queue.put(_Arrived(now(), list(frames.feed(data))))
            await queue.put(_Arrived(now(), [], "closed"))
        except ConnectionError:
            await queue.put(_Arrived(now(), [], "reset"))

    async def _taken(self, direction: Direction) -> AsyncIterator[_Arrived]:
        """Give what arrived when it may go on; a reset is passed on as a reset."""
        queue = self._up if direction == "up" else self._down
        while True:
            arrived = await queue.get()
            await self._proxy._let_pass(direction, arrived.at)
            if arrived.end == "reset":
                raise ConnectionResetError
            yield arrived

    async def _write_up(self, server: asyncio.StreamWriter) -> None:
        async for arrived in self._taken("up"):
            for frame in arrived.frames:
                if frame.type == b"" and frame.code in (SSL_REQUEST, ENCRYPTION_REQUEST):
                    await self._down.put(_Arrived(arrived.at, [Frame(b"N", b"", b"N")]))
                else:
                    await self._forward(frame, server)
            await self._flush(server)
            if arrived.end == "closed":
                server.write_eof()
                return

    async def _forward(self, frame: Frame, server: asyncio.StreamWriter) -> None:
        commit = self._session.asked(frame)
        fault = self._proxy._fault_of(commit)
        if commit is not None and fault is not None:
            await self._strike(commit, fault, frame, server)
            return
        self._to_server += frame.whole
        if self._withheld is not None and frame.type == b"S":
            await self._until_settled(self._withheld, server)

    async def _strike(self, commit: Commit, fault: _CommitFault, frame: Frame, server: asyncio.StreamWriter) -> None:
        await self._flush(server)
        if fault.name == "cut_before_commit":
            self.cut(fault.name)
            raise ConnectionResetError
        # A COMMIT of the extended protocol is made when it is executed, and answered when a Sync follows it.
        by_execute = frame.type == b"E"
        self._withheld = _Withheld(fault, commit, len(self._session.open) + by_execute)
        self._to_server += frame.whole
        if fault.late is not None:
            self._proxy._bite(fault.name)
            reset(self._client)
            await asyncio.sleep(fault.late)
            self._to_server += SYNC if by_execute else b""
        if fault.late is not None or not by_execute:
            await self._until_settled(self._withheld, server)

    async def _until_settled(self, withheld: _Withheld, server: asyncio.StreamWriter) -> None:
        """Let the server have what it needs to answer, and no more before it is known what becomes of the client."""
        await self._flush(server)
        await withheld.settled.wait()

    async def _flush(self, server: asyncio.StreamWriter) -> None:
        data, self._to_server = bytes(self._to_server), bytearray()
        await self._proxy._send(server, data)

    async def _write_down(self) -> None:
        async for arrived in self._taken("down"):
            ready = bytearray()
            for frame in arrived.frames:
                self._session.answered(frame)
                ready += frame.whole if self._withheld is None else self._withhold(self._withheld, frame)
            await self._proxy._send(self._client, bytes(ready))
            if arrived.end == "closed":
                self._client.close()
                await self._client.wait_closed()
                self._over.set()

    def _withhold(self, withheld: _Withheld, frame: Frame) -> bytes:
        """Keep an answer from the client: until the commit was made, and then for ever."""
        withheld.bytes += frame.whole
        withheld.failed = withheld.failed or (withheld.answers == 1 and frame.type == b"E")
        made = withheld.answers == 1 and frame.type == b"C" and frame.body == b"COMMIT\0"
        if frame.type == b"Z":
            withheld.answers -= 1
            made = withheld.answers == 0 and withheld.commit == "statement" and not withheld.failed
        if made or (withheld.answers == 0 and withheld.fault.late is not None):
            self.cut(None if withheld.fault.late is not None else withheld.fault.name)
            raise ConnectionResetError
        if withheld.answers > 0:
            return b""
        # Nothing was committed, so there was nothing to cut: the next commit is the one.
        withheld.fault.left += 1
        self._withheld = None
        withheld.settled.set()
        return bytes(withheld.bytes)
