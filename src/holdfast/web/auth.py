"""Who asks, and what each role may do."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from starlette.requests import Request

from holdfast.errors import BadInput
from holdfast.texts import check_text
from holdfast.web.problems import Problem

Role = Literal["viewer", "reader", "operator", "admin"]
ROLES: tuple[str, ...] = get_args(Role)
"""From the one that may least: each may what those before it may."""


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


class SignIn(ABC):
    """Knows who asks."""

    @abstractmethod
    async def who(self, request: Request) -> Principal | None:
        """Return who asks, None for no one that it knows."""


Authenticate: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
"""A function of the application that the dashboard is mounted into: who asks, None for no one it knows."""


class HostSignIn(SignIn):
    """The gate of an application that the dashboard is mounted into."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def who(self, request: Request) -> Principal | None:
        found: Any = self._authenticate(request)
        who = await found if inspect.isawaitable(found) else found
        if who is not None and not isinstance(who, Principal):
            raise TypeError(f"authenticate must return a Principal or None, not {type(who).__name__}")
        return who


def unauthenticated(detail: str) -> Problem:
    """Return the problem of a request of which it is not known whose it is."""
    return Problem(401, "unauthenticated", detail, headers={"WWW-Authenticate": "Bearer"})
