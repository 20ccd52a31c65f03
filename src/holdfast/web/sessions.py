"""Sessions of browsers: a token is exchanged once for a cookie that no script can read.

Only hashes of tokens and cookies are kept, in the memory of the server.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque

import msgspec
from starlette.requests import Request

from holdfast.web.auth import Principal, SignIn, unauthenticated
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


class SessionSignIn(SignIn):
    """Lets browsers in that bring a token which this server made, each once."""

    def __init__(self) -> None:
        self._tokens: dict[bytes, Principal] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._failures: dict[str, deque[float]] = {}

    def one_time_token(self, who: Principal) -> str:
        """Return a token that opens one session."""
        token = f"hf_{secrets.token_urlsafe(32)}"
        self._tokens[_hash(token)] = who
        return token

    async def who(self, request: Request) -> Principal | None:
        session = self._sessions.get(_hash(request.cookies.get(_name(request), "")))
        return session.who if session is not None and session.until > time.monotonic() else None

    def open(self, token: str, address: str, request: Request, https: bool, root: str) -> str:
        """Return the cookie of a new session.

        Raises:
            Problem: 401 for a token that this server did not make or that was used, 429 after too many of those.
        """
        now = time.monotonic()
        failures = self._failures.setdefault(address, deque())
        while failures and now - failures[0] > _MINUTE:
            failures.popleft()
        if len(failures) >= MOST_FAILURES:
            wait = str(round(_MINUTE - (now - failures[0])) + 1)
            raise Problem(429, "too-many", "too many wrong tokens; wait a minute", headers={"Retry-After": wait})
        who = self._tokens.pop(_hash(token), None)
        if who is None:
            failures.append(now)
            self._forget(now)
            raise unauthenticated("this token opens no session: it was used, or this server did not make it")
        self._forget(now)
        secret = secrets.token_urlsafe(32)
        self._sessions[_hash(secret)] = _Session(who, now + LASTS)
        return _cookie(request, secret, LASTS, https, root)

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
