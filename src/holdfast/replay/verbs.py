"""Verbs: what workflow code awaits, each resolved by a fact at its location."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput
from holdfast.replay.failures import located
from holdfast.replay.loop import SCOPE

if TYPE_CHECKING:
    from holdfast.replay.journal import Journal


class Verb(asyncio.Future[Any]):
    """What a verb returns: resolved by a fact at its location."""

    __slots__ = ("journal", "location", "number")
    word = "verb"
    attempt = 0
    """Which attempt is under way or was the last; steps count them."""
    counted = True
    """Whether it takes a number of its scope; not what only a replay creates, for it would shift the others."""

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

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __bool__(self) -> bool:
        raise self._forgotten()

    def __format__(self, spec: str) -> str:
        raise self._forgotten()

    def __getattr__(self, name: str) -> Any:
        # asyncio and the inspect module ask futures for names that begin with an underscore, and take no for an answer.
        raise AttributeError(name) if name.startswith("_") else AttributeError(f"{self._forgotten()} before .{name}")

    def _forgotten(self) -> BadInput:
        what = self.journal.names.path(self.location)
        line = self.journal.loop.workflow_line()
        where = f" at {line}" if line else ""
        return BadInput(f"{self.word} {what!r} was not awaited{where}: write `await ctx.{self.word}(...)`")

    def apply(self, entry: Any) -> None:
        """Take the fact this verb waited for."""
        raise NotImplementedError

    def set_exception(self, exception: type | BaseException, /) -> None:
        if isinstance(exception, BaseException):
            located(exception, self.location, self.attempt)
        super().set_exception(exception)

    def forget(self) -> None:
        """Stop waiting: called once, when the fact has come or the code gave up."""

    def cancel(self, msg: Any = None) -> bool:
        journal = self.journal
        if self.done() or journal.loop.dead:
            return super().cancel(msg)
        journal.abandon(self)
        return super().cancel(msg)


class Gate(Verb):
    """A loop that history says went further waits here until replay comes to its recorded state."""

    __slots__ = ()
    word = "loop state"
    counted = False

    def apply(self, entry: Any) -> None:
        self.set_result(entry)

    def cancel(self, msg: Any = None) -> bool:
        # Whatever cancelled the loop in an iteration before this state did not stop it, for the state was recorded.
        return False if not self.journal.loop.dead else super().cancel(msg)
