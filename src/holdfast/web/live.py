"""Live views: what a page shows is read again each second while a browser watches it, and sent when it has changed.

One task reads each distinct view, however many browsers watch it. A browser gets the newest state, never a queue of
states. A mounted application is not told when its server starts and stops: a view begins with its first watcher and
ends with the last.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import StoreClosed
from holdfast.web.problems import Problem, problem_of

EVERY = 1.0
"""How many seconds lie between two looks at a view."""
PING = 15.0
LASTS = 15 * 60.0
"""After how many seconds a stream ends: the browser comes back, and its rights are looked at again."""
SLOWEST = 30.0
"""How many seconds a client may take to read what it was sent, before its stream is cut."""
RIGHTS = 0.8
"""How many seconds lie between two looks whether a stream is still allowed."""
MOST_STREAMS = 500
MOST_OF_ONE = 20
MOST_VIEWS = 10
_UNTIL = re.compile(rb'"until":"[^"]*"')

Look = Callable[[], Awaitable[msgspec.Raw]]
"""Looks at a view, and returns it as JSON, as its watchers may see it."""


class Watched(msgspec.Struct, frozen=True):
    """A view that a client asks for: `key` is the same for all that see the same."""

    name: str
    view: str
    key: str
    look: Look
    apart: int = 1
    """How many times longer than the usual second the time between two looks is."""
    tell: Look | None = None
    """Returns the view in the words that are sent, where those are others each second, as "in 38 s": it is asked when
    the view itself is another."""


class _Picture:
    """A view that is watched: the newest picture of it, and who waits for the next."""

    def __init__(self, watched: Watched) -> None:
        self.version = 0
        self.event = b""
        """The newest picture as it is sent: the same bytes to all that watch."""
        self.over = False
        self.watchers: set[asyncio.Event] = set()
        self._watched = watched
        self._digest = b""
        self._task = asyncio.create_task(self._watch(watched), name=f"holdfast live {watched.view[:40]}")

    async def _watch(self, watched: Watched) -> None:
        while not self.over:
            try:
                seen = await watched.look()
                if self._is_another(watched.name, seen):
                    self._found(watched.name, seen if watched.tell is None else await watched.tell())
            except Exception as error:
                self.over = isinstance(error, StoreClosed)
                problem = problem_of(error) or Problem(500, "defect", "the view cannot be shown")
                said = {"code": problem.code, "status": problem.status, "detail": problem.detail}
                name, value = "gone" if problem.status == 404 else "problem", msgspec.Raw(msgspec.json.encode(said))
                if self._is_another(name, value) or self.over:
                    self._found(name, value)
            await asyncio.sleep(EVERY * watched.apart)

    def _is_another(self, event: str, value: msgspec.Raw) -> bool:
        before = self._digest
        self._digest = hashlib.sha256(event.encode() + _without_time(bytes(value))).digest()
        return before != self._digest

    def _found(self, event: str, value: msgspec.Raw) -> None:
        self.version += 1
        self.event = _event(event, self._watched.view, value, self.version)
        for each in self.watchers:
            each.set()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _without_time(text: bytes) -> bytes:
    """Return the JSON of a view without when it was looked at: its first field, or until when figures are."""
    if text.startswith(b'{"by":'):
        return _UNTIL.sub(b"", text, 1)
    return text.partition(b",")[2] if text.startswith(b'{"as_of":') else text


class _Client:
    """Who watches: what wakes its stream, and until when it may go on."""

    def __init__(self, allowed: Callable[[], Awaitable[bool]]) -> None:
        self.news = asyncio.Event()
        self.over = False
        self.spoken = self.checked = asyncio.get_running_loop().time()
        self.end = self.spoken + LASTS
        self._allowed = allowed

    async def check(self) -> None:
        """Look whether it is still allowed, and wake the stream if it has to say something by itself."""
        try:
            self.over = not await self._allowed()
        except Exception:
            self.over = True  # it comes back, and is told why it cannot be known
        self.checked = asyncio.get_running_loop().time()
        if self.over or self.checked >= self.end or self.silent:
            self.news.set()

    @property
    def silent(self) -> bool:
        return asyncio.get_running_loop().time() - self.spoken >= PING


class Hub:
    """The views that are watched, and their watchers."""

    def __init__(self) -> None:
        self._pictures: dict[str, _Picture] = {}
        self._streams = Counter[str]()
        self._clients: set[_Client] = set()
        self._checking: asyncio.Task[None] | None = None

    def stream(self, who: str, views: Sequence[Watched], allowed: Callable[[], Awaitable[bool]]) -> EventStream:
        """Return the answer that sends views as they change, for as long as it is `allowed`, asked each second.

        Raises:
            Problem: 429 for too many streams, 400 for none or too many views.
        """
        if not 1 <= len(views) <= MOST_VIEWS:
            raise Problem(400, "bad-request", f"name 1 to {MOST_VIEWS} views: /live?view=counts", field="view")
        if self._streams.total() >= MOST_STREAMS or self._streams[who] >= MOST_OF_ONE:
            raise Problem(429, "too-many", "too many streams are open", headers={"Retry-After": "5"})
        self._streams[who] += 1  # here, so that many that come at once are counted

        def ended() -> None:
            self._streams[who] -= 1

        return EventStream(lambda: self._events(views, allowed), ended)

    async def _events(self, views: Sequence[Watched], allowed: Callable[[], Awaitable[bool]]) -> AsyncIterator[bytes]:
        loop, client = asyncio.get_running_loop(), _Client(allowed)
        watching = {each.view: self._join(each, client.news) for each in views}
        sent = dict.fromkeys(watching, 0)
        self._clients.add(client)
        if self._checking is None:
            self._checking = asyncio.create_task(self._check(), name="holdfast live rights")
        try:
            await client.check()
            while not client.over and loop.time() < client.end:
                client.news.clear()
                changed = [view for view, picture in watching.items() if picture.version != sent[view]]
                if changed:
                    client.spoken = loop.time()
                    sent |= {view: watching[view].version for view in changed}
                    yield b"".join(watching[view].event for view in changed)
                if any(picture.over for picture in watching.values()):
                    break
                if client.silent:
                    client.spoken = loop.time()
                    yield b": still here\n\n"
                await client.news.wait()
                if loop.time() - client.checked > 2:  # the rights of others take long to be known
                    await client.check()
            yield b"event: bye\ndata: {}\n\n"
        finally:
            self._clients.discard(client)
            for each in views:
                await self._leave(each, client.news)
            if not self._clients and self._checking is not None:
                checking, self._checking = self._checking, None
                checking.cancel()
                await asyncio.gather(checking, return_exceptions=True)

    async def _check(self) -> None:
        """Look at the rights of all that watch, again and again: one clock for them all."""
        while True:
            await asyncio.sleep(min(RIGHTS, EVERY))
            for client in list(self._clients):
                await client.check()

    def _join(self, watched: Watched, news: asyncio.Event) -> _Picture:
        picture = self._pictures.get(watched.key)
        if picture is None or picture.over:
            picture = self._pictures[watched.key] = _Picture(watched)
        picture.watchers.add(news)
        return picture

    async def _leave(self, watched: Watched, news: asyncio.Event) -> None:
        picture = self._pictures.get(watched.key)
        if picture is None:
            return
        picture.watchers.discard(news)
        if not picture.watchers:
            del self._pictures[watched.key]
            await picture.end()


def _event(name: str, view: str, value: msgspec.Raw, version: int) -> bytes:
    # JSON has no line in it that would end the data, so this is all of the framing.
    data = msgspec.json.encode({"view": view, "value": value})
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), version, data)


class EventStream(Response):
    """An answer that goes on until its client leaves."""

    def __init__(self, events: Callable[[], AsyncIterator[bytes]], ended: Callable[[], None]) -> None:
        super().__init__(None, 200, {"X-Accel-Buffering": "no"}, "text/event-stream")
        del self.headers["content-length"]
        self._events = events
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._answer(scope, receive, send)
        finally:
            self._ended()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        tasks = [asyncio.create_task(self._send(send)), asyncio.create_task(_left(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        events = self._events()
        try:
            async for event in events:
                async with asyncio.timeout(SLOWEST):
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            pass  # the answer is not finished, so the server cuts the connection, and a client that lives comes back
        finally:
            await events.aclose()  # type: ignore[attr-defined]  # it is a generator


async def _left(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
