"""Patience: how long a call of a caller may take, whatever the store does meanwhile.

A call asks the store for one thing after another and has one time limit for all of it. Near the limit, an operation
that still waits for its turn is withdrawn (StoreBusy: it did not happen). At the limit, the call gets what is known:
that nothing was changed (StoreBusy), or that an operation was on its way (OutcomeUnknown).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine
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


class Outcomes:
    """Operations that callers wait for. One timer serves all: they have the same patience, so the oldest is first."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: deque[tuple[float, asyncio.Future[Any], Callable[[object], None], object]] = deque()
        self._timed = False

    async def wait(self, outcome: asyncio.Future[T], withdraw: Callable[[object], None], what: object) -> T:
        """Wait for an outcome, as part of a call or for as long as a call may take; then `what` is withdrawn.

        Raises:
            StoreBusy, OutcomeUnknown: as `within`.
        """
        call = _current.get()
        if call is not None and call.task is asyncio.current_task():
            return await call.operation(outcome, functools.partial(withdraw, what))
        waiting = self._waiting
        waiting.append((time.monotonic() + self._patience * WITHDRAWN_AFTER, outcome, withdraw, what))
        if not self._timed:
            self._come_back()
        try:
            return await outcome
        finally:
            while waiting and waiting[0][1].done():
                waiting.popleft()

    def _look(self) -> None:
        """Withdraw what has waited long enough, and come back for the next."""
        self._timed = False
        loop = asyncio.get_running_loop()
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= time.monotonic()):
            _, outcome, withdraw, what = self._waiting.popleft()
            if not outcome.done():
                loop.call_later(self._patience * (1 - WITHDRAWN_AFTER), self._too_late, outcome)
                withdraw(what)
        if self._waiting:
            self._come_back()

    def _come_back(self) -> None:
        self._timed = True
        left = self._waiting[0][0] - time.monotonic()
        asyncio.get_running_loop().call_later(max(left, 0.001), self._look)

    def _too_late(self, outcome: asyncio.Future[Any]) -> None:
        if not outcome.done():
            outcome.set_exception(_unknown(self._patience))


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

    async def operation(self, outcome: asyncio.Future[T], withdraw: Callable[[], None]) -> T:
        """Wait for the outcome of an operation that is part of this call."""
        self.asked, self.withdraw = True, withdraw
        try:
            return await outcome
        except StoreBusy:
            self.asked = False  # it was not made
            raise
        finally:
            self.withdraw = None

    def _nearly_over(self) -> None:
        self.limit.reschedule(asyncio.get_running_loop().time() + self.patience * (1 - WITHDRAWN_AFTER))
        if self.withdraw is not None:
            self.withdraw()

    def too_late(self) -> StoreError:
        """Return what the caller is told at the end."""
        if self.asked:
            return _unknown(self.patience)
        return StoreBusy(f"the store has not answered for {self.patience:g} s: nothing was changed")


def _unknown(patience: float) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the store has not answered for {patience:g} s: whether this happened is not known; look, or do it again with "
        "the same id"
    )


_current: ContextVar[_Call | None] = ContextVar("holdfast call", default=None)
