"""A browser that listens to live views."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.support.asgi import Browser
from tests.support.waiting import eventually


class Stream:
    """What a browser hears: each event as its name and its data."""

    def __init__(self) -> None:
        self.status = 0
        self.events: list[tuple[str, Any]] = []
        self.raw = b""
        self.over = False

    async def hears(self, wanted) -> Any:
        """Wait for an event, and return its data."""
        await eventually(lambda: any(wanted(name, data) for name, data in self.events))
        return next(data for name, data in reversed(self.events) if wanted(name, data))


@asynccontextmanager
async def listening(page: Browser, path: str, **headers: str):
    stream, leave = Stream(), asyncio.Event()

    async def receive():
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        stream.status = message.get("status", stream.status)
        stream.raw += message.get("body", b"")
        *whole, rest = stream.raw.split(b"\n\n")
        stream.raw = rest
        for event in whole:
            lines = dict(line.split(b": ", 1) for line in event.splitlines() if not line.startswith(b":"))
            if lines:
                stream.events.append((lines[b"event"].decode(), msgspec.json.decode(lines[b"data"])))
        stream.over = message["type"] == "http.response.body" and not message.get("more_body")

    pairs = [(name.encode(), value.encode()) for name, value in (page.headers | headers).items()]
    task = asyncio.create_task(page.app(page.scope("GET", path, pairs), receive, send))
    try:
        yield stream
    finally:
        leave.set()
        await task
