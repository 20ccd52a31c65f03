"""A client of an ASGI application that sends exactly the bytes it is told to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import msgspec

SERVER = ("127.0.0.1", 7780)
HOST = "127.0.0.1:7780"


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Browser:
    """Sends requests as a page of the application itself would, and as nothing else unless it is told to."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None, root: str = "", scheme: str = "http"):
        self.app = app
        self.root = root
        self.scheme = scheme
        self.headers = {
            "host": HOST,
            "origin": f"{scheme}://{HOST}",
            "x-holdfast": "1",
            "content-type": "application/json",
            "sec-fetch-site": "same-origin",
            **(headers or {}),
        }

    async def get(self, path: str, **headers: str | None) -> Reply:
        return await self.send("GET", path, headers=headers)

    async def post(self, path: str, value: Any = None, **headers: str | None) -> Reply:
        return await self.send("POST", path, msgspec.json.encode(value or {}), headers=headers)

    async def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str | None] | None = None
    ) -> Reply:
        """Send a request; a header of None is left out, and underscores in names are hyphens."""
        given = self.headers | {name.replace("_", "-").lower(): value for name, value in (headers or {}).items()}
        pairs = [(name.encode(), value.encode("latin-1")) for name, value in given.items() if value is not None]
        return await exchange(self.app, self.scope(method, path, pairs), [body])

    def scope(self, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
        where, _, query = path.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": self.root + unquote(where),
            "raw_path": (self.root + where).encode(),
            "root_path": self.root,
            "query_string": quote(query, safe="%&=+:*.,-_~!\"'()").encode(),
            "headers": headers,
            "server": SERVER,
            "client": ("127.0.0.1", 50_000),
        }


async def exchange(app: Any, scope: dict[str, Any], body: list[bytes]) -> Reply:
    """Hand an application one request, its body in parts, and return what it answers."""
    parts = list(body)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
    return Reply(sent[0]["status"], headers, b"".join(each.get("body", b"") for each in sent[1:]))
