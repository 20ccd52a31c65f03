"""Patience: how long a call of a caller may take, whatever the store does meanwhile.

A call asks the store for one thing after another and has one limit for all of it. Near its end an operation that is
still waiting for its turn is withdrawn (StoreBusy: it did not happen). At its end the call is told what is known: that
nothing was changed (StoreBusy), or that an operation was on its way (OutcomeUnknown).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from holdfast.errors import OutcomeUnknown, StoreBusy, StoreError

T = TypeVar("T")
P = ParamSpec("P")

WITHDRAWN_AFTER = 0.8
"""After which part of its patience a call withdraws what is still waiting: the rest is for what is on its way."""


class Impatient(Protocol):
    """What has calls for callers."""

    @property
    def _call_patience(self) -> float:
        """How many seconds each of them may take."""
        ...


S = TypeVar("S", bound=Impatient)


def patient(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Let each call of a method have the patience that its object has."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await within(self._call_patience, method(self, *args, **kwargs))

    return call


async def within(patience: float, coming: Coroutine[Any, Any, T]) -> T:
    """Wait for something that a caller asked for, so many seconds at most; what is part of a call shares its limit.

    Raises:
        StoreBusy: the store did not take or answer it in time; nothing was changed.
        OutcomeUnknown: an operation was on its way at the end.
    """
    task = asyncio.current_task()
    outer = _current.get()
    if task is None or (outer is not None and outer.task is task):
        return await coming
    call = _Call(task, patience)
    before = _current.set(call)
    try:
        async with call.limit:
            return await coming
    except TimeoutError:
        if not call.limit.expired():
            raise
        raise call.too_late() from None
    finally:
        call.timer.cancel()
        _current.reset(before)


@contextmanager
def on_its_way(withdraw: Callable[[], None]) -> Iterator[None]:
    """Note that the call has asked for an operation, and how to withdraw it while that is possible."""
    call = _current.get()
    if call is None or call.task is not asyncio.current_task():
        yield
        return
    call.asked, call.withdraw = True, withdraw
    try:
        yield
    except StoreBusy:
        call.asked = False  # it was not made
        raise
    finally:
        call.withdraw = None


class _Call:
    """One call of a caller, in the task that makes it."""

    __slots__ = ("asked", "limit", "patience", "task", "timer", "withdraw")

    def __init__(self, task: asyncio.Task[Any], patience: float) -> None:
        self.task = task
        self.patience = patience
        self.asked = False
        """Whether it asked for an operation, which was made or may be."""
        self.withdraw: Callable[[], None] | None = None
        self.limit = asyncio.timeout(None)
        self.timer = asyncio.get_running_loop().call_later(patience * WITHDRAWN_AFTER, self._nearly_over)

    def _nearly_over(self) -> None:
        self.limit.reschedule(asyncio.get_running_loop().time() + self.patience * (1 - WITHDRAWN_AFTER))
        if self.withdraw is not None:
            self.withdraw()

    def too_late(self) -> StoreError:
        """Return what the caller is told at the end."""
        waited = f"the store has not answered for {self.patience:g} s"
        if self.asked:
            return OutcomeUnknown(
                f"{waited}: whether this happened is not known; look, or do it again with the same id"
            )
        return StoreBusy(f"{waited}: nothing was changed")


_current: ContextVar[_Call | None] = ContextVar("holdfast call", default=None)
