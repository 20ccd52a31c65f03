"""Workflows for type checkers, where options follow the arguments: typed by their positional arguments.

A checker cannot distinguish options from arguments passed by name, so it checks only positional arguments. It does not
accept a function without the decorator as a workflow.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

R_co = TypeVar("R_co", covariant=True)
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
C_contra = TypeVar("C_contra", contravariant=True)
D_contra = TypeVar("D_contra", contravariant=True)


class Marked(Protocol):
    """What has the mark of a workflow."""

    @property
    def __holdfast_workflow__(self) -> bool: ...


class Takes0(Marked, Protocol[R_co]):
    """A workflow that needs nothing."""

    def __call__(self, ctx: Any, /) -> Awaitable[R_co]: ...


class Takes1(Marked, Protocol[A_contra, R_co]):
    """A workflow that can be called with one argument."""

    def __call__(self, ctx: Any, a: A_contra, /) -> Awaitable[R_co]: ...


class Takes2(Marked, Protocol[A_contra, B_contra, R_co]):
    """A workflow that can be called with two arguments."""

    def __call__(self, ctx: Any, a: A_contra, b: B_contra, /) -> Awaitable[R_co]: ...


class Takes3(Marked, Protocol[A_contra, B_contra, C_contra, R_co]):
    """A workflow that can be called with three arguments."""

    def __call__(self, ctx: Any, a: A_contra, b: B_contra, c: C_contra, /) -> Awaitable[R_co]: ...


class Takes4(Marked, Protocol[A_contra, B_contra, C_contra, D_contra, R_co]):
    """A workflow that can be called with four arguments."""

    def __call__(self, ctx: Any, a: A_contra, b: B_contra, c: C_contra, d: D_contra, /) -> Awaitable[R_co]: ...


class TakesMore(Marked, Protocol[R_co]):
    """A workflow that can be called with more arguments, of which no more is known."""

    def __call__(self, ctx: Any, /, *args: Any, **kwargs: Any) -> Awaitable[R_co]: ...
