"""Principals, who ask, and what each role may do."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request

from holdfast.contract.tokens import ROLES as ROLES
from holdfast.contract.tokens import Role
from holdfast.errors import BadInput
from holdfast.looking.acting.tokens import KnownTokens, TokenView
from holdfast.texts import check_text
from holdfast.web.problems import Problem


class Principal(msgspec.Struct, frozen=True):
    """Who asks: a name for the audit trail, and a role.

    A viewer sees everything but payloads; a reader payloads too; an operator acts on runs, dead letters and schedules;
    an admin terminates, purges, puts schedules and makes tokens, too.
    """

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        check_text(self.name, "name of a principal")
        if self.role not in ROLES:
            raise BadInput(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")

    def may(self, role: str) -> bool:
        """Whether this one may do what a role may."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def need(self, role: str, what: str) -> None:
        """Refuse what needs another role.

        Raises:
            Problem: 403, saying which role it needs.
        """
        if not self.may(role):
            raise Problem(
                403, "forbidden", f"{what} needs the role {role}; {self.name!r} has the role {self.role}", role=role
            )


ANYONE = Principal("anyone", "admin")
"""Who asks a dashboard that is open to all: known by being this very one, whatever an application calls its own."""


class SignIn(ABC):
    """Knows who asks."""

    @abstractmethod
    async def who(self, request: Request) -> Principal | None:
        """Return who asks, None for no one that it knows.

        Raises:
            Problem: 401 for a token that is none, or over; it says why.
        """

    async def still(self, request: Request) -> bool:
        """Whether a request that was let in would be let in now, for one that goes on; asked every second or so."""
        return True


Authenticate: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
"""A function of the application that the dashboard is mounted into: who asks, None for no one it knows."""


class HostSignIn(SignIn):
    """The gate of an application that the dashboard is mounted into, and beside it (with `tokens`) bearers of those."""

    def __init__(self, authenticate: Authenticate, tokens: Bearers | None = None) -> None:
        self._authenticate = authenticate
        self._tokens = tokens

    async def who(self, request: Request) -> Principal | None:
        found: Any = self._authenticate(request)
        who = await found if inspect.isawaitable(found) else found
        if who is not None and not isinstance(who, Principal):
            raise TypeError(f"authenticate must return a Principal or None, not {type(who).__name__}")
        return await self._tokens.who(request) if who is None and self._tokens is not None else who

    async def still(self, request: Request) -> bool:
        token = bearer_of(request)
        return self._tokens is None or not token or await self._tokens.still(request)


class Bearers(SignIn):
    """Knows programs by the tokens of the database that they bring with each request."""

    def __init__(self, tokens: KnownTokens) -> None:
        self._tokens = tokens

    async def who(self, request: Request) -> Principal | None:
        token = bearer_of(request)
        return (await self.bearer(token))[0] if token else None

    async def bearer(self, token: str) -> tuple[Principal, str]:
        """Return whose a token is, and its id.

        Raises:
            Problem: 401, it is none of this database, or is over.
        """
        found = await self._tokens.brought(token)
        if found is None:
            raise unauthenticated("this server knows no such token; make one: holdfast token create", "invalid_token")
        if found.state != "live":
            raise _over(found)
        return Principal(found.name, found.role), found.id  # type: ignore[arg-type]  # Principal checks it

    async def still(self, request: Request) -> bool:
        found = await self._tokens.brought(bearer_of(request))
        return found is not None and found.state == "live"

    async def lives(self, id: str) -> bool:
        """Whether a token may still be used."""
        return await self._tokens.lives(id)


def bearer_of(request: Request) -> str:
    """Return the token that a request brings, an empty text without one."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _over(token: TokenView) -> Problem:
    at = token.revoked_at if token.state == "revoked" else token.expires_at
    when = f"{at:%Y-%m-%d %H:%M} UTC" if at is not None else ""
    said = f"the token {token.id} of {token.name} was revoked on {when}"
    if token.state == "expired":
        said = f"the token {token.id} of {token.name} expired on {when}"
    return unauthenticated(
        f"{said}; make another where the database is (holdfast token create), and set HOLDFAST_TOKEN to it",
        "invalid_token",
        f"token-{token.state}",
    )


def unauthenticated(detail: str, error: str = "", code: str = "unauthenticated") -> Problem:
    """Return the problem of a request of which it is not known whose it is."""
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    return Problem(401, code, detail, headers={"WWW-Authenticate": challenge})
