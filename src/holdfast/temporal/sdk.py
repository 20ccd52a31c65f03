"""Around the interpreter: the process it is in, the SDK's time and errors, the search attribute of runs."""

from __future__ import annotations

import asyncio
import builtins
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Protocol
from urllib.parse import quote, unquote

import msgspec
from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    TimeoutError,
    TimeoutType,
)

from holdfast.temporal.wire import RunEnded, raw

TAGS = SearchAttributeKey.for_keyword_list("HoldfastTags")
AGAIN = 1.0
"""After how many seconds a timer rings again, at the earliest, that rang too early: see `_too_early`."""
_SAFE = " !#$&()*+,-./:;<=>?@[]^_`{|}~"


class Process(Protocol):
    """The process that an execution is in, as far as it has to know."""

    @property
    def tagging(self) -> bool:
        """Whether the namespace has the search attribute for a run's own attributes."""
        ...

    def entered(self, key: str, interpreter: Any) -> None:
        """Note an execution that is in memory."""
        ...

    def left(self, key: str) -> None:
        """Forget an execution that ended, or was evicted."""
        ...

    @property
    def stands_still(self) -> bool:
        """Whether runs have a time of their own, which stands still until it is moved: in tests."""
        ...

    def time_of(self, at: int) -> int:
        """Return the time of runs at a time of the server's: the same one, but in tests."""
        ...

    def stop(self, key: str, path: str) -> None:
        """Tell a body that its step was given up."""
        ...

    def said_end(self, run_id: str, ended: Any) -> None:
        """Hear how a run ended."""
        ...


class Unmet:
    """What the last turn took and a replay, which hears of its answer sooner, has yet to meet."""

    def __init__(self) -> None:
        self.count = 0
        """How many happenings."""
        self.consumed: set[int] = set()
        """The inbox rows among them that were consumed."""


class Alarms:
    """When an execution is to be woken: one timer of Temporal's for what is due next.

    No timer is cancelled. Temporal forgets a timer that is started and cancelled in one task of an execution, and a
    query that comes at the same moment decides, unrecorded, whether two turns share a task: a replay would find another
    history, and the run could never go on. So whether a timer is started follows from answers alone, and one that
    rings too early makes a turn in which nothing is due.
    """

    def __init__(self, ring: Callable[[int], None]) -> None:
        self.due: int | None = None
        """What is due next."""
        self.unmet = Unmet()
        self._ring = ring
        self._set: list[int] = []
        """Times that were set, and had not come by the time of the last turn."""
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, due: int | None, at: int | None) -> None:
        """Ring when it is due; the turn that says so has done what was due at its own time.

        Without that time only one timer is kept, and the one before it cancelled: in executions that began before
        version 5 of the interpreter.
        """
        if at is None:
            if due != self.due:
                self.stop()
                self._timer = self._start(due) if due is not None else None
            self.due = due
            return
        self.due = due
        self._set = [each for each in self._set if each > at]
        if due is not None and not any(each <= due for each in self._set):
            self._set.append(due)
            self._start(due)

    def stop(self) -> None:
        """Cancel the one timer that is kept of an execution of before version 5."""
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, due: int, least: float = 0.001) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(max((due - now()) / 1e6, least), self._rang, due)

    def _rang(self, at: int) -> None:
        if _too_early(at):
            self._timer = self._start(at, AGAIN)
            return
        self._timer = None
        if self.due is not None and self.due <= at:
            self.due = None
        self._ring(at)


def tags(attributes: dict[str, str]) -> list[str]:
    """Return searchable attributes as the words of one search attribute of Temporal's.

    A development server finds no word with a quotation mark or a backslash, so a text is not written as in JSON.
    """
    return [f"{name}={_word(value)}" for name, value in sorted(attributes.items())]


def _word(value: str) -> str:
    return ":" + quote(msgspec.json.decode(value), safe=_SAFE) if value.startswith('"') else value


def attribute_of(tag: str) -> tuple[str, str]:
    """Return the name and the value, as JSON, that a word stands for."""
    name, _, word = tag.partition("=")
    return name, msgspec.json.encode(unquote(word[1:])).decode() if word.startswith(":") else word


def tagged(attributes: Mapping[str, str], wanted: bool) -> TypedSearchAttributes | None:
    """Return what a run is started with so that it is found by its attributes, None if there is nothing to find."""
    if not attributes or not wanted:
        return None
    return TypedSearchAttributes([SearchAttributePair(TAGS, tags(dict(attributes)))])


def now() -> int:
    """Return the time that Temporal's history says it is."""
    return _process().time_of(workflow.time_ns() // 1000)


def _process() -> Process:
    process: Process = workflow.instance().interpreter.turns
    return process


def _too_early(at: int) -> bool:
    """Whether the server's time came to a time and that of runs did not: only where that stands still."""
    return _process().stands_still and now() < at


def end_of(error: BaseException) -> str:
    """Return what became of an attempt that Temporal says failed, as a TaskEnd."""
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError) and cause.details:
        return msgspec.json.encode(cause.details[0]).decode()
    if isinstance(cause, TimeoutError) and cause.type is TimeoutType.START_TO_CLOSE:
        told = {"type": "StepTimeout", "message": f"the attempt was given up by the server: {cause}", "bases": []}
        return msgspec.json.encode({"error": told}).decode()
    if isinstance(cause, TimeoutError):
        return '{"lost":"crash"}'  # a worker that only hung cannot be told from a dead one
    if isinstance(cause, CancelledError | TerminatedError | ChildWorkflowError):
        return '{"lost":"handed back"}'
    return msgspec.json.encode({"error": {"type": "ServerError", "message": str(cause), "bases": []}}).decode()


def failure_of(ended: RunEnded) -> ApplicationError:
    """Return what Temporal is told of a run that failed, or was cancelled as a child."""
    error = msgspec.json.decode(ended.error or '{"type":"RunCancelled","message":"the run was cancelled"}')
    details = [raw(ended.error or "null"), raw(ended.compensation or "null"), ended.failed_step, ended.status]
    return ApplicationError(error["message"], *details, type=error["type"], non_retryable=True)


def seed_of(run_id: str) -> int:
    """Return a seed for the random numbers of a run that was started without one."""
    return int.from_bytes(hashlib.blake2b(run_id.encode(), digest_size=6).digest(), "big")


async def stopped_before(at: int, stopped: Callable[[], bool], least: float = 0) -> bool:
    """Wait for a time; return whether what waits was stopped before, or cancelled by the server."""
    try:
        await workflow.wait_condition(
            stopped, timeout=max(timedelta(microseconds=at - now()), timedelta(seconds=least))
        )
    except builtins.TimeoutError:
        return await stopped_before(at, stopped, AGAIN) if _too_early(at) else False
    except asyncio.CancelledError:
        if workflow.cancellation_reason() is None:
            raise  # evicted from memory: that is no cancel
    return True


async def quietly(coming: Coroutine[Any, Any, None]) -> None:
    """Await something whose target may be gone, which is no concern of this run."""
    try:
        await coming
    except ApplicationError:
        return
