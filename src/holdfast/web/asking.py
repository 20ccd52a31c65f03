"""How a server is asked: one request a question, by the standard library alone, and its problems as errors."""

from __future__ import annotations

import asyncio
import http.client
from datetime import datetime
from ipaddress import ip_address
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode, urlsplit

import msgspec

from holdfast import __version__, errors
from holdfast.looking.query import BadCursor

T = TypeVar("T")

PATIENCE = 75.0
"""How many seconds an answer may take: the longest waits on the server are a minute."""


class _Items(msgspec.Struct, Generic[T], frozen=True):
    items: list[T]


class Asking:
    """Asks the dashboard at an address, with a token.

    Raises:
        BadInput: it is no address, or the token would go to another machine in the clear.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.BadInput("the address of a server must begin with https:// or http:// and name a host")
        self._https = parts.scheme == "https"
        if not self._https and not _is_here(parts.hostname):
            raise errors.BadInput(
                f"a token is not sent in the clear: say https://{parts.hostname}, or reach the server by ssh -L"
            )
        self._host = parts.netloc.rpartition("@")[2]
        self._root = parts.path.rstrip("/") + "/api/v1"
        self._token = token

    async def _get(self, path: str, kind: type[T], **query: Any) -> T:
        return await self._send("GET", path, kind, None, **query)

    async def _items(self, path: str, kind: type[T], **query: Any) -> list[T]:
        found: _Items[T] = await self._get(path, _Items[kind], **query)  # type: ignore[valid-type]  # a class
        return found.items

    async def _send(self, method: str, path: str, kind: type[T], body: Any, **query: Any) -> T:
        content = msgspec.json.encode(body) if body is not None else None
        status, answer = await self._asked(method, self._target(path, query), content)
        if status >= 400:
            error, code = _error_of(status, answer)
            raise error if code != "no-such-path" else await self._of_another_version(f"has no {method} {path}")
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError:
            raise await self._of_another_version(
                f"answers {method} {path} in a way that this version cannot read"
            ) from None

    async def _asked(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        """Return what is answered; a server that is asked too often is asked again when it says, for a while."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            status, answer, wait = await asyncio.to_thread(self._exchange, method, target, body)
            if status != 429 or b"/problems/too-many" not in answer or loop.time() + wait > end:
                return status, answer
            await asyncio.sleep(wait)

    async def _of_another_version(self, said: str) -> errors.StoreError:
        """Return the error of a server that does not know what this version of holdfast asks."""
        status, answer = await self._asked("GET", f"{self._root}/", None)
        try:
            theirs = msgspec.json.decode(answer, type=dict[str, Any]).get("version") if status == 200 else None
        except msgspec.MsgspecError:
            theirs = None
        there = f"holdfast {theirs}" if isinstance(theirs, str) else "another version of holdfast"
        return errors.StoreError(
            f"the server {self._host} is {there} and {said}; "
            f"this is holdfast {__version__}: use the same version on both"
        )

    def _target(self, path: str, query: dict[str, Any]) -> str:
        given = {name: _written(value) for name, value in query.items() if value is not None}
        return f"{self._root}{path}{f'?{urlencode(given, doseq=True)}' if given else ''}"

    def _exchange(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes, float]:
        """Return the status of an answer, itself, and in how many seconds it may be asked again."""
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, timeout=PATIENCE)
        try:
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request(method, target, body, headers)
            reply = connection.getresponse()
            wait = reply.headers.get("Retry-After", "1")
            return reply.status, reply.read(), float(wait) if wait.isdigit() else 1.0
        except (OSError, http.client.HTTPException) as error:
            raise errors.StoreUnreachable(f"the server {self._host} cannot be reached: {error}") from error
        finally:
            connection.close()


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _written(value: Any) -> str | list[str]:
    if isinstance(value, list | tuple):
        return [str(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error_of(status: int, answer: bytes) -> tuple[Exception, str]:
    """Return the error that a problem stands for, as a desk on the database itself would raise it, and its code."""
    try:
        problem = msgspec.json.decode(answer, type=dict[str, Any])
    except msgspec.MsgspecError:
        return errors.StoreUnreachable(f"what answers there is no dashboard of holdfast (status {status})"), ""
    detail, code = str(problem.get("detail", "")), str(problem.get("type", "")).rpartition("/")[2]
    if status in (401, 403, 421):
        return errors.AuthFailed(detail), code
    if code == "timed-out":
        return TimeoutError(detail), code
    kind = BadCursor if code == "bad-cursor" else getattr(errors, str(problem.get("error")), None)
    if not (isinstance(kind, type) and issubclass(kind, errors.HoldfastError)):
        kind = errors.BadInput if status in (400, 404, 405, 409, 413, 415, 422) else errors.StoreError
    made = kind.__new__(kind)
    Exception.__init__(made, detail)
    made.__dict__["run_id"] = problem.get("run_id", "")
    return made, code
