"""Sessions of browsers: a token is exchanged for a cookie that no script can read, and the session dies with it.

Only hashes of one-time tokens and cookies are kept, in the memory of the server.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque

import msgspec
from starlette.requests import Request

from holdfast.web.auth import Bearers, Principal, SignIn, bearer_of, unauthenticated
from holdfast.web.problems import Problem

LASTS = 12 * 3600
"""How many seconds a session lasts."""
MOST_FAILURES = 5
"""How often a minute an address may bring a wrong token."""
_MINUTE = 60.0
_MOST_SESSIONS = 1_000
_MOST_ADDRESSES = 10_000


class SessionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token, to be exchanged for a session."""

    token: str


class _Session(msgspec.Struct, frozen=True):
    who: Principal
    until: float
    token: str | None
    """The id of the token of the database that it was opened with; None for one that this server made."""


class SessionSignIn(SignIn):
    """Lets in programs by tokens of the database, and browsers that exchanged one for a session.

    A server on its own machine makes tokens itself, too, each for one session.
    """

    def __init__(self, bearers: Bearers) -> None:
        self._bearers = bearers
        self._tokens: dict[bytes, Principal] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._failures: dict[str, deque[float]] = {}

    def one_time_token(self, who: Principal) -> str:
        """Return a token that opens one session."""
        token = f"hf_{secrets.token_urlsafe(32)}"
        self._tokens[_hash(token)] = who
        return token

    async def who(self, request: Request) -> Principal | None:
        if bearer_of(request):
            return await self._bearers.who(request)
        key = _hash(request.cookies.get(_name(request), ""))
        session = self._sessions.get(key)
        if session is None or session.until <= time.monotonic():
            return None
        if session.token is not None and not await self._bearers.lives(session.token):
            self._sessions.pop(key, None)
            return None
        return session.who

    async def still(self, request: Request) -> bool:
        try:
            return await self.who(request) is not None
        except Problem:
            return False

    async def open(self, token: str, address: str, request: Request, https: bool, root: str) -> str:
        """Return the cookie of a new session.

        Raises:
            Problem: 401 for a token that is none, is over or was used, 429 after too many of those.
        """
        now = time.monotonic()
        failures = self._failures.setdefault(address, deque())
        while failures and now - failures[0] > _MINUTE:
            failures.popleft()
        if len(failures) >= MOST_FAILURES:
            wait = str(round(_MINUTE - (now - failures[0])) + 1)
            raise Problem(429, "too-many", "too many wrong tokens; wait a minute", headers={"Retry-After": wait})
        failures.append(now)  # until it is known to be right, so that many at once are counted, too
        self._forget(now)
        made_here = self._tokens.pop(_hash(token), None)
        try:
            who, id = (made_here, None) if made_here is not None else await self._known(token)
        except Problem:
            raise
        except BaseException:
            failures.remove(now)  # a store that does not answer has not called it wrong
            raise
        failures.remove(now)
        secret = secrets.token_urlsafe(32)
        self._sessions[_hash(secret)] = _Session(who, now + LASTS, id)
        return _cookie(request, secret, LASTS, https, root)

    async def _known(self, token: str) -> tuple[Principal, str]:
        try:
            return await self._bearers.bearer(token)
        except Problem as problem:
            if problem.code != "unauthenticated":
                raise
            raise unauthenticated(
                "this token opens no session: it was used, or is none that this server knows"
            ) from None

    def close(self, request: Request, https: bool, root: str) -> str:
        """Forget the session of a browser, and return the cookie that removes its own."""
        self._sessions.pop(_hash(request.cookies.get(_name(request), "")), None)
        return _cookie(request, "", 0, https, root)

    def _forget(self, now: float) -> None:
        """Forget what is over, and the oldest of what is more than a server needs."""
        for key in [key for key, session in self._sessions.items() if session.until <= now]:
            del self._sessions[key]
        for key in list(self._sessions)[: max(0, len(self._sessions) - _MOST_SESSIONS)]:
            del self._sessions[key]
        for address in list(self._failures)[: max(0, len(self._failures) - _MOST_ADDRESSES)]:
            del self._failures[address]


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _name(request: Request) -> str:
    """Return the name of the cookie: cookies do not know ports, and two dashboards may be open on one machine."""
    if request.scope.get("scheme") == "https":
        return "__Host-holdfast"
    server = request.scope.get("server")
    return f"holdfast-{server[1] if server else ''}"


def _cookie(request: Request, value: str, age: int, https: bool, root: str) -> str:
    path = "/; Secure" if https else f"{root}/"
    return f"{_name(request)}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict"
