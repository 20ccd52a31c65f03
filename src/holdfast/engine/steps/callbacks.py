"""The callbacks of activities: called with the outcome of an attempt, before the code or the next attempt goes on.

The outcome is made durable first, as a mark that the code does not see. Then the callbacks are called and awaited, and
only then is the outcome recorded as a fact. If the process dies in between, the worker that continues the run finds the
mark and calls them again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.bodies.context import StepContext
from holdfast.bodies.executor import Executor
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import EntryRow
from holdfast.engine.runs.aside import Telling
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import FINISHING, Resident
from holdfast.errors import HoldfastError, StepSkipped
from holdfast.payloads.codec import qualified_name
from holdfast.replay import entry as entries
from holdfast.replay.entry import UNCOUNTED
from holdfast.replay.loop import is_done

_SKIPPED = qualified_name(StepSkipped)
_ENDING = 1.0
"""For how many seconds an engine is given the time to stop before a callback that was cancelled counts as told."""

Call = tuple[Callable[..., object], tuple[Any, ...]]


class StepCallbacks:
    """What the activities of all runs in memory are being told."""

    def __init__(self, runs: Runs, executor: Executor, context: Callable[[Resident, StepVerb], StepContext]) -> None:
        self._runs = runs
        self._executor = executor
        self._context = context

    def hold(self, resident: Resident, verb: StepVerb, entry: entries.Entry, then: Callable[[], None]) -> bool:
        """Keep what came of an attempt until its callbacks were told, then go on with `then`; False if it has none."""
        if not verb.activity.watched:
            return False
        calls = self._calls(resident, verb, entry)
        if not calls:
            return False
        resident.active.add(verb.location)  # not to be let go before that
        resident.tell(verb.location, Telling(verb, deque(calls), then))
        self._runs.note(resident, (verb.location, entries.EndKept.of(entry)))
        return True

    def again(self, resident: Resident, verb: StepVerb, entry: entries.Entry, then: Callable[[], None]) -> None:
        """Tell what history has kept, perhaps once more, after the next commit of the run."""
        telling = Telling(verb, deque(self._calls(resident, verb, entry)), then)
        telling.durable = True
        resident.tell(verb.location, telling)

    def begin(self, resident: Resident, rows: Sequence[EntryRow]) -> None:
        """Call the callbacks of what is durable, these entries now included."""
        durable = {row.location for row in rows if row.kind == entries.EndKept.kind}
        for location, telling in list(resident.telling.items()):
            if not telling.begun and (telling.durable or location in durable):
                telling.begun = True
                self._go_on(resident, telling)

    def drop(self, resident: Resident) -> None:
        """Stop what is being told of a run that leaves this worker; the next one tells it again."""
        for telling in resident.telling.values():
            if telling.task is not None:
                self._executor.forsake(telling.task, "the run left this worker")
        resident.telling.clear()

    def _go_on(self, resident: Resident, telling: Telling) -> None:
        observers = self._runs.reporter.observers
        while telling.calls:
            callback, args = telling.calls.popleft()
            left = observers.call(callback, resident.id, *args)
            if left is not None:
                loop = self._executor.loop
                telling.task = loop.create_task(left, context=self._executor.context.copy())
                telling.task.add_done_callback(partial(self._called, resident, telling))
                return
        self._told(resident, telling)

    def _called(self, resident: Resident, telling: Telling, task: asyncio.Task[None]) -> None:
        if task.cancelled() and resident.telling.get(telling.verb.location) is telling:
            # Not by this engine. If all tasks are cancelled because the program ends, the engine stops soon, and the
            # next one tells it again.
            self._executor.loop.call_later(_ENDING, self._go_on, resident, telling)
        elif not task.cancelled():
            self._go_on(resident, telling)

    def _told(self, resident: Resident, telling: Telling) -> None:
        verb = telling.verb
        if resident.phase >= FINISHING or resident.telling.get(verb.location) is not telling:
            return
        del resident.telling[verb.location]
        resident.active.discard(verb.location)
        if not is_done(verb):
            telling.then()
        self._runs.pauses.check(resident)

    def _calls(self, resident: Resident, verb: StepVerb, entry: Any) -> list[Call]:
        """Return which callbacks are to be told of an entry, and what."""
        settings, context = verb.activity.settings, resident.take_context(verb.location)
        if context is None:
            context = self._context(resident, verb)
            with suppress(Exception):  # the app is asked again, and heard, when the next attempt begins
                context.app = dict(self._runs.app()) if self._runs.app is not None else {}
        told: list[tuple[Callable[..., object] | None, Any]] = []
        if isinstance(entry, entries.StepCompleted) and settings.on_success is not None:
            with suppress(HoldfastError):  # it does not fit the code that there is now, which blocks the run
                told = [(settings.on_success, verb.activity.decode(bytes(entry.result)))]
        elif isinstance(entry, entries.AttemptFailed):
            told = [(settings.on_failure, entry.error)]
        elif isinstance(entry, entries.StepFailure):
            # Of one that was skipped too often no attempt failed: none was made.
            told = [(settings.on_failure, entry.error)] if entry.error.type != _SKIPPED else []
            told.append((settings.on_failed, entry.error))
        elif isinstance(entry, entries.AttemptSkipped) and not entry.reason.startswith(UNCOUNTED):
            told = [(settings.on_skipped, entry.reason)]
        return [(callback, (context, what)) for callback, what in told if callback is not None]
