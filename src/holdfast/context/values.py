"""Values that workflow code passes to verbs and gets from them: ends of iterations, winners, requests, children."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Generic, Protocol, TypedDict, TypeVar

import msgspec

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
S = TypeVar("S")


class _Missing:
    def __repr__(self) -> str:
        return "<no default>"


MISSING: Any = _Missing()


class Continue(msgspec.Struct, Generic[S], frozen=True):
    """What a loop's body returns to go on with a new state."""

    state: S = None  # type: ignore[assignment]  # a loop without state


class Break(msgspec.Struct, Generic[T], frozen=True):
    """What a loop's body returns to end the loop with a value."""

    value: T = None  # type: ignore[assignment]  # a loop without a result


class Winner(msgspec.Struct, Generic[T], frozen=True):
    """The first branch of a race to complete, and its value."""

    winner: str
    value: T


class Request(msgspec.Struct, Generic[T], frozen=True):
    """A message whose sender waits for an answer: give it to `ctx.reply`."""

    payload: T
    id: str


class Child(Awaitable[R_co], Protocol[R_co]):
    """A child run: await it for its result, or keep only its id."""

    id: str


class ChildKeywords(TypedDict, total=False):
    """The options of `ctx.child`, for type checkers."""

    id: str | None
    cancel_with_parent: bool
    priority: int
    attributes: Mapping[str, str | int | float | bool] | None
