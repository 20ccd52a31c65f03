"""Calls: the declared steps of one run, made as its history has them and handed out in the order in which they end.

A definition may change under a run. So recorded steps are called by name as they were called then, whatever the
definition says now; only later steps follow the definition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

from holdfast.context.api import Context
from holdfast.context.run_context import RunContext
from holdfast.declarative.parts import Part
from holdfast.replay.journal import RecordedStep


class End(NamedTuple):
    """How a step ended."""

    part: Part
    result: Any
    error: BaseException | None


class Calls:
    """See the module's docstring."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._run = ctx if isinstance(ctx, RunContext) else None  # another runtime has a history of its own
        self._ended: asyncio.Queue[tuple[Part, asyncio.Future[Any]]] = asyncio.Queue()
        self._undoings: Counter[str] = Counter()
        self._put_off: list[tuple[Part, Any]] = []
        self.open: dict[str, asyncio.Future[Any]] = {}
        """The steps under way, by name."""
        self.past: dict[str, RecordedStep] = {
            step.name: step for step in (self._run.recorded_steps() if self._run else ())
        }
        """The steps that history has, by name, in order of their calls."""

    @property
    def left(self) -> int:
        """How many facts of the history are yet to come; while there are any, the code may ask for nothing new."""
        return self._run.facts_left if self._run is not None else 0

    def call(self, part: Part, *args: Any, **kwargs: Any) -> Any:
        """Call a step and return what to await."""
        recorded = self.past.get(part.name)
        if recorded is None:
            return self._ctx.step(part.name, part.activity, *args, **kwargs)
        if recorded.ended and not recorded.failed:  # of one that failed, the dead letter says what it was called with
            return self._ctx.step(part.name, part.again)  # it does not run any more, so nothing is copied for it
        return self._ctx.step(part.name, part.again, *args, **kwargs)

    def begin(self, part: Part, *args: Any, **kwargs: Any) -> None:
        """Call a step whose end is awaited with those of others."""
        verb = self.open[part.name] = self.call(part, *args, **kwargs)
        verb.add_done_callback(partial(self._over, part))

    async def next(self) -> End:
        """Wait for the next step to end."""
        try:
            part, verb = await self._ended.get()
        except asyncio.CancelledError:
            for verb in self.open.values():
                verb.cancel()
            raise
        del self.open[part.name]
        error = verb.exception()
        return End(part, None if error is not None else verb.result(), error)

    def _over(self, part: Part, verb: asyncio.Future[Any]) -> None:
        if not verb.cancelled():
            self._ended.put_nowait((part, verb))

    # Undoing.

    def compensate(self, part: Part, value: Any) -> None:
        """Put what undoes a step that has ended on the run's stack, if the step has something to undo it.

        The stack of a run that has gone on since then is as it was recorded, even if the definition has another one.
        """
        if part.compensate is None:
            return
        name, recorded = part.compensate.name, self.past.get(part.name)
        if self._run is not None and self._run.compensation_recorded(name, self._undoings[name] + 1):
            self._register(part, part.undone_by, value)
        elif recorded is not None and recorded.passed:
            return
        elif self.left:
            self._put_off.append((part, value))
        else:
            self.caught_up()
            self._register(part, part.compensate, value)

    def caught_up(self) -> None:
        """Register what could not be while there was more of the history to come.

        Ends that came while a run was pausing are recorded without its code, which meets them all at once.
        """
        if not self.left:
            waiting, self._put_off = self._put_off, []
            for part, value in waiting:
                assert part.compensate is not None
                self._register(part, part.compensate, value)

    def _register(self, part: Part, activity: Any, value: Any) -> None:
        assert part.compensate is not None
        self._undoings[part.compensate.name] += 1
        self._ctx.compensate(part.name, activity, value)
