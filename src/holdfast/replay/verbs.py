"""Verbs: what workflow code awaits, each resolved by a fact at its location. `context/api.py` has all of them.

A verb that the code never awaits is a mistake, which fails the run. A verb that is awaited while it is open has a
callback, so most are never looked at again. A verb that ends without a callback gets a different class, which notes
what the code does with it from then on.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import BadInput, NeverAwaited
from holdfast.replay.failures import located
from holdfast.replay.loop import SCOPE, RunTask, is_done, was_stopped

if TYPE_CHECKING:
    from holdfast.replay.journal import Journal


CallSite = tuple[CodeType, int, Context | None]
"""Where a call was made: the code of its caller, the instruction in that, and the context of the task that ran it."""


_result_of: Callable[[asyncio.Future[Any]], Any] = asyncio.Future.result


class Expected(Protocol):
    """What the code must await: a verb, the task of a join or race, a loop."""

    word: str
    location: str
    awaited: bool
    """Whether the code awaited it, or did what counts as that."""
    called: CallSite


class Verb(asyncio.Future[Any]):
    """What a verb returns: resolved by a fact at its location."""

    __slots__ = ("awaited", "called", "journal", "location", "number")
    word = "verb"
    on_its_own = False
    """Whether the code need not await it."""
    alone: type[Verb]
    """What it becomes when it ends before the code has awaited it: the same, but that notes what the code does."""
    failed: type[Verb]
    """What it becomes otherwise when it fails."""
    attempt = 0
    """Which attempt is under way or was the last; steps count them."""
    recalled = False
    """Whether history knew this step already."""
    counted = True
    """Whether it takes a number of its scope; not what only a replay creates, for it would shift the others."""

    def __init_subclass__(cls) -> None:
        if not issubclass(cls, _EndedAlone | _RaisesItself):
            cls.alone = type(cls.__name__, (_EndedAlone, cls), {"__slots__": ()})
            cls.failed = type(cls.__name__, (_RaisesItself, cls), {"__slots__": ()})

    def __init__(self, journal: Journal, location: str) -> None:
        scope = SCOPE.get(None) if self.counted else None
        if scope is None:
            self.number = journal.loop.hash_number(None)
        else:
            scope.made += 1
            self.number = journal.loop.base + scope.made
        super().__init__(loop=journal.loop)  # type: ignore[arg-type]  # see RunLoop.create_future
        self.journal = journal
        self.location = location
        self.awaited = False
        frame = sys._getframe(3)  # beyond the function of the verb and the method of the Context
        self.called: CallSite = (frame.f_code, frame.f_lasti, journal.loop.within)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        raise self.not_awaited()

    def __format__(self, spec: str) -> str:
        raise self.not_awaited()

    def __getattr__(self, name: str) -> Any:
        # asyncio and the inspect module ask futures for names that begin with an underscore, and take no for an answer.
        raise AttributeError(name) if name.startswith("_") else AttributeError(f"{self.not_awaited()} before .{name}")

    def not_awaited(self) -> BadInput:
        """Return the error of code that uses this as if it were the result."""
        what = self.journal.names.path(self.location)
        line = self.journal.loop.workflow_line()
        where = f" at {line}" if line else ""
        return BadInput(f"{self.word} {what!r} was not awaited{where}: write `await ctx.{self.word}(...)`")

    def apply(self, entry: Any) -> None:
        """Take the fact this verb waited for."""
        raise NotImplementedError

    def set_exception(self, exception: type | BaseException, /) -> None:
        if isinstance(exception, BaseException):
            located(exception, self.location, self.attempt, self.failed_call(exception))
        if not isinstance(self, _EndedAlone):
            self.__class__ = self.failed
        super().set_exception(exception)

    def failed_call(self, error: BaseException) -> Any:
        """Return what a dead letter tells of a call that fails; not the verb, which would live as long as its error."""
        return None

    def forget(self) -> None:
        """Stop waiting: called once, when the fact has come or the code gave up."""

    def cancel(self, msg: Any = None) -> bool:
        self.note_awaited()
        journal = self.journal
        if is_done(self) or journal.loop.dead:
            return super().cancel(msg)
        journal.abandon(self)
        return super().cancel(msg)

    # What counts as awaiting it, besides that.

    def note_awaited(self) -> None:
        """Note that the code awaited it, or did what counts as that."""
        self.awaited = True
        alone = self.journal.loop.ended_alone
        if alone:
            alone.pop(self.location, None)

    def done(self) -> bool:
        self.note_awaited()
        return is_done(self)

    def result(self) -> Any:
        # Asked by each task that goes on from a verb, too: so it does nothing but that, unless it is too early.
        try:
            return _result_of(self)
        except asyncio.InvalidStateError:
            self.note_awaited()
            raise

    def exception(self) -> BaseException | None:
        self.note_awaited()
        return super().exception()

    def remove_done_callback(self, fn: Callable[[Any], object], /) -> int:
        self.note_awaited()  # it had one
        return super().remove_done_callback(fn)


class _RaisesItself:
    """What raises its error in the frame that asks, not in one of its own.

    A frame that is left by an error keeps all frames below it, the engine's and with them the whole run, and is itself
    kept by the error: only a full garbage collection, which is rare, would free them.
    """

    __slots__ = ()
    result = asyncio.Future.result


class _EndedAlone:
    """What a verb becomes that ends before the code has awaited it: it notes what the code does with it."""

    __slots__ = ()

    def __await__(self: Any) -> Generator[Any, None, Any]:
        self.note_awaited()
        return super().__await__()  # type: ignore[misc,no-any-return]  # of the verb

    __iter__ = __await__

    def result(self: Any) -> Any:
        self.note_awaited()
        return _result_of(self)

    def add_done_callback(self: Any, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.note_awaited()
        super().add_done_callback(fn, context=context)  # type: ignore[misc]


def ended_alone(verb: Verb) -> None:
    """Note that a verb is about to end that the code has not awaited, and see what it does with it from now on."""
    if verb.on_its_own or verb.awaited or verb.journal.compensating:
        return
    verb.__class__ = verb.alone
    loop = verb.journal.loop
    loop.ended_alone = loop.ended_alone or {}
    loop.ended_alone[verb.location] = verb


class CallTask(RunTask):
    """The task of a join or race, as the code gets it to await."""

    __slots__ = ("awaited", "called", "location", "word")
    awaited: bool
    called: CallSite
    location: str
    word: str

    def note_awaited(self) -> None:
        """Note that the code awaited it, or did what counts as that."""
        self.awaited = True
        self.__class__ = _AwaitedTask
        loop: Any = self.get_loop()
        if loop.ended_alone:
            loop.ended_alone.pop(self.location, None)

    def __await__(self) -> Generator[Any, None, Any]:
        self.note_awaited()
        return super().__await__()

    __iter__ = __await__

    def add_done_callback(self, fn: Callable[[Any], object], /, *, context: Context | None = None) -> None:
        self.note_awaited()
        super().add_done_callback(fn, context=context)

    def done(self) -> bool:
        self.note_awaited()
        return is_done(self)

    def result(self) -> Any:
        self.note_awaited()
        return super().result()

    def exception(self) -> BaseException | None:
        self.note_awaited()
        return super().exception()

    def cancel(self, msg: Any | None = None) -> bool:
        self.note_awaited()
        return super().cancel(msg)


class _AwaitedTask(_RaisesItself, CallTask):
    """A call that is a task, once it was awaited while it was open."""

    __slots__ = ()


def expect_await(journal: Journal, call: Any, word: str, location: str) -> None:
    """Expect of the code that it awaits what a verb of the Context, two calls up from here, returns to it."""
    frame = sys._getframe(3)
    call.word, call.location, call.awaited = word, location, False
    call.called = frame.f_code, frame.f_lasti, journal.loop.within
    journal.loop.ended_alone = journal.loop.ended_alone or {}
    journal.loop.ended_alone[location] = call


def never_awaited(
    journal: Journal, within: Context | None = None, *, low: str = "", high: str = "~"
) -> Expected | None:
    """Return a call between two locations that the code never awaited; None if there is none.

    Not meant are calls of tasks that were stopped, by an error or a cancel, or that still run: they may not have come
    to their `await`. `within` is the context of the task that says so itself.
    """
    loop = journal.loop
    calls: Iterable[Any] = [*journal.open.values(), *(loop.ended_alone or {}).values()]
    found = [
        call
        for call in calls
        if low <= call.location < high and not (call.awaited or getattr(call, "_callbacks", None) or _free(call))
    ]
    if not found:
        return None
    excused = {id(context) for context in loop.stopped or ()}
    excused |= {
        id(task.own_context)
        for task in loop.tasks
        if task.own_context is not within and (not is_done(task) or was_stopped(task))
    }
    return next((call for call in found if id(call.called[2]) not in excused), None)


def _free(call: Any) -> bool:
    return isinstance(call, Verb) and call.on_its_own


def error_of(journal: Journal, call: Expected) -> NeverAwaited:
    """Return the error of a run that never awaited a call."""
    path, (code, instruction, _) = journal.names.path(call.location), call.called
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    where = f"{code.co_filename}:{line or code.co_firstlineno}"
    what = call.word if call.word != "receive_request" else "receive"
    advice = f"write `await ctx.{call.word}(...)`"
    if call.word == "step":
        advice += ", or ctx.background(...) for a step that nothing waits for"
    return NeverAwaited(f"{what} {path!r} was called at {where} and never awaited: {advice}")


class Gate(Verb):
    """A loop that history says went further waits here until replay comes to its recorded state."""

    __slots__ = ()
    word = "loop state"
    counted = False
    on_its_own = True

    def apply(self, entry: Any) -> None:
        self.set_result(entry)

    def cancel(self, msg: Any = None) -> bool:
        # Whatever cancelled the loop in an iteration before this state did not stop it, for the state was recorded.
        return False if not self.journal.loop.dead else super().cancel(msg)
