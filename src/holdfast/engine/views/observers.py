"""Observers: callbacks and iterators that get each change once it is durable. They never change a run."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Self

from holdfast.changes import Change
from holdfast.clock import Clock, Instant, to_datetime
from holdfast.contract.rows import TERMINAL, Status
from holdfast.contract.waits import words_of
from holdfast.definitions import check_plain
from holdfast.engine.views.changes import changes_of
from holdfast.errors import BadInput
from holdfast.payloads import codec
from holdfast.payloads.errors import error_text, loggable
from holdfast.replay.cuts import only_undoes
from holdfast.replay.turn import Ending, Turn
from holdfast.replay.turn import Outcome as TurnOutcome

if TYPE_CHECKING:
    from holdfast.engine.runs.resident import Resident

_logger = logging.getLogger("holdfast.engine")
_MOST_WAITING = 10_000

Callback = Callable[[Change], None]
ToTell = Callback | Iterable[Callback]
"""One callback or several."""

TYPES = frozenset(
    {
        "run.started",
        "run.suspended",
        "run.paused",
        "run.resumed",
        "run.reopened",
        "run.cancelling",
        "run.compensating",
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.blocked",
        "run.skewed",
        "step.started",
        "step.completed",
        "step.failed",
        "step.skipped",
        "step.progress",
        "attempt.failed",
        "attempt.lost",
        "compensation.started",
        "compensation.completed",
        "compensation.failed",
        "message.received",
        "attributes.set",
        "evidence.added",
        "deadletter.added",
        "purged",
        "schedule.skipped",
        "limit.paused",
        "limit.resumed",
        "limit.overridden",
        "limit.restored",
        "workflow.paused",
        "workflow.resumed",
        "queue.paused",
        "queue.resumed",
        "callback.error",
    }
)
"""What an engine tells. Where a run stands, `run.pending` and `run.running` too, is told by `RunHandle.watch`."""


class Observers:
    """The callbacks and watches that an engine tells of changes."""

    def __init__(self, clock: Clock, on_change: ToTell = (), on_failed: ToTell = (), on_blocked: ToTell = ()) -> None:
        self._clock = clock
        self.alerts: dict[str, list[Callback]] = {}
        """By the type of the changes they are told, and no others: they cost a step nothing."""
        for type, alerted in (("run.failed", _several(on_failed)), ("run.blocked", _several(on_blocked))):
            for callback in alerted:
                _check(callback, f"on_{type.removeprefix('run.')}")
                self.alerts.setdefault(type, []).append(callback)
        self.callbacks: dict[str, list[Callback]] = {}
        """By the run whose changes they are told; those under "" are told of every run."""
        self._watches: set[Watch] = set()
        for callback in _several(on_change):
            _check(callback, "on_change")
            self.callbacks.setdefault("", []).append(callback)

    def listen(self, run_id: str, type: str = "") -> bool:
        """Tell whether an observer wants to hear of a run, or of a change of this type."""
        return "" in self.callbacks or run_id in self.callbacks or type in self.alerts

    def _to_tell(self, run_id: str, type: str = "") -> list[Callback]:
        if run_id and not self.alerts and "" not in self.callbacks:
            return [*self.callbacks.get(run_id, ())]
        alerted = self.alerts.get(type, ()) if run_id else ()
        return [*self.callbacks.get("", ()), *(self.callbacks.get(run_id, ()) if run_id else ()), *alerted]

    def subscribe(self, callback: Callback, run_id: str = "") -> Callable[[], None]:
        """Call back for every change (of one run); returns a function that stops it."""
        _check(callback, "callback")
        subscribed = True
        self.callbacks.setdefault(run_id, []).append(callback)

        def unsubscribe() -> None:
            nonlocal subscribed
            if subscribed:
                subscribed = False
                self.callbacks[run_id].remove(callback)
                if not self.callbacks[run_id]:
                    del self.callbacks[run_id]

        return unsubscribe

    def watch(self, run_id: str = "", types: Iterable[str] = ()) -> Watch:
        """Return an iterator over the changes (of one run, of some types) from now on.

        Raises:
            BadInput: a type that no change has.
        """
        watch = Watch(_check_types(types), self._watches.discard)
        watch.unsubscribe = self.subscribe(watch.put, run_id)
        self._watches.add(watch)
        return watch

    def stop(self) -> None:
        """End every watch: there is nothing more to see."""
        for watch in tuple(self._watches):
            watch.close()

    def notify(self, change: Change) -> None:
        """Tell every observer; one that raises is reported to the others."""
        for callback in self._to_tell(change.run_id, change.type):
            try:
                callback(change)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self.report(error, callback, change.run_id, {"change": change.type})

    def call(self, callback: Callable[..., object], run_id: str, *args: Any) -> Coroutine[Any, Any, None] | None:
        """Call a callback of an activity or a workflow; return what is left to await of it, None if nothing is.

        What it raises is only reported.
        """
        try:
            made = callback(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.report(error, callback, run_id)
            return None
        return self._finish(made, callback, run_id) if inspect.isawaitable(made) else None

    async def _finish(self, made: Awaitable[object], callback: Callable[..., object], run_id: str) -> None:
        try:
            await made
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # it was stopped from outside, and is called again where the run goes on
            self.report(error, callback, run_id)

    def report(
        self, error: BaseException, callback: object, run_id: str = "", data: dict[str, object] | None = None
    ) -> None:
        """Log that a callback raised and tell the others; nothing else comes of it."""
        name = getattr(callback, "__qualname__", None) or type(callback).__qualname__
        _logger.error("callback %s failed; nothing is changed by that", name, exc_info=loggable(error))
        told = {"callback": name, "error": error_text(error), **(data or {})}
        failure = Change(type="callback.error", at=to_datetime(self._clock.now()), run_id=run_id, data=told)
        for other in self._to_tell(run_id):
            if other is callback:
                continue
            try:
                other(failure)
            except KeyboardInterrupt:
                raise
            except BaseException as another:
                _logger.error("a callback failed when told of the failure of another", exc_info=loggable(another))


class Reporter:
    """Tells the observers what a worker does to its runs, each thing once, when it is durable."""

    def __init__(self, observers: Observers, clock: Clock) -> None:
        self.observers = observers
        self._clock = clock
        self.listeners = observers.callbacks
        """Whom an engine tells of changes; empty where there is nothing to tell."""

    def tell(
        self,
        type: str,
        resident: Resident,
        data: dict[str, Any] | None = None,
        at: Instant | None = None,
        **fields: Any,
    ) -> None:
        """Tell of something that happened to a run as a whole, now or at an instant."""
        if not self.observers.listen(resident.id, type):
            return
        if type == "run.started":
            at = resident.execution.loop.origin  # the time of its first entries, which were made before the commit
        self.observers.notify(
            Change(
                type=type,
                at=to_datetime(self._clock.now() if at is None else at),
                run_id=resident.id,
                workflow=resident.workflow.name,
                data=data or {},
                **fields,
            )
        )

    def turn(self, resident: Resident, turn: Turn) -> None:
        """Tell of what a committed turn recorded, and of the end it came to."""
        at = turn.entries[-1].at if turn.entries else None
        if not self.observers.listen(resident.id):
            if turn.outcome is not None and self.observers.alerts:
                self._end(resident, turn.outcome, at)
            return
        journal = resident.execution.journal
        for change in changes_of(resident.id, resident.workflow.name, journal.names, turn.entries):
            self.observers.notify(change)
            if change.type == "compensation.failed" or (
                change.type == "step.failed" and change.step.startswith("end#")
            ):
                self.tell("deadletter.added", resident, {"kind": "work", **change.data}, at, step=change.step)
        if turn.decided is not None:
            self._letter(resident, turn.decided, at)
        if turn.outcome is None:
            self._status(resident, at)
        else:
            self._end(resident, turn.outcome, at)

    def _end(self, resident: Resident, outcome: TurnOutcome, at: Instant | None) -> None:
        """Tell how a run ended."""
        if outcome.ending.value in TERMINAL:
            data = {"error": outcome.error.brief()} if outcome.error else {}
            self.tell(f"run.{outcome.ending.value}", resident, data, at, status=outcome.ending.value)
            if resident.execution.journal.run.conclusion is None:
                self._letter(resident, outcome, at)

    def _letter(self, resident: Resident, outcome: TurnOutcome, at: Instant | None) -> None:
        """Tell of the dead letter of a run that fails."""
        if outcome.ending is Ending.FAILED and not only_undoes(resident.execution.journal.before):
            data = {"error": outcome.error.brief()} if outcome.error else {}
            self.tell("deadletter.added", resident, {"kind": "work", **data}, at)

    def _status(self, resident: Resident, at: Instant | None) -> None:
        status, waits, _ = resident.written
        if status in (Status.SUSPENDED, Status.COMPENSATING) and resident.announced != resident.written:
            resident.announce()
            self.tell(f"run.{status}", resident, {"waiting_for": words_of(waits)}, at, status=str(status))

    def progress(self, resident: Resident, location: str, progress: str) -> None:
        """Tell that a step reported progress."""
        path = resident.execution.journal.names.path(location)
        self.tell("step.progress", resident, {"progress": codec.decode(progress)}, step=path)


class Watch:
    """Changes as they happen: `async with engine.watch() as changes: async for change in changes: ...`."""

    def __init__(self, types: frozenset[str], closed: Callable[[Watch], None]) -> None:
        self._types = types
        self._forget = closed
        self._waiting: deque[Change] = deque(maxlen=_MOST_WAITING)
        self._more = asyncio.Event()
        self._closed = False
        self.unsubscribe: Callable[[], None] = lambda: None
        self.dropped: int = 0
        """How many changes were dropped, oldest first, because they were not taken in time."""

    def put(self, change: Change) -> None:
        """Add a change, unless it is of a type that was not asked for."""
        if self._types and change.type not in self._types:
            return
        self.dropped += len(self._waiting) == _MOST_WAITING
        self._waiting.append(change)
        self._more.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._waiting.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching; what was not taken yet can still be."""
        self.unsubscribe()
        self._forget(self)
        self._closed = True
        self._more.set()


def _check_types(types: Iterable[str]) -> frozenset[str]:
    if isinstance(types, str):
        raise BadInput(f"types must be several types, as in [{types!r}], not one")
    wanted = frozenset(types)
    for unknown in sorted(wanted - TYPES, key=str):
        if unknown in ("run.pending", "run.running"):
            raise BadInput(f"an engine does not report {unknown!r}: follow one run with run.watch()")
        from difflib import get_close_matches  # for this error only

        near = get_close_matches(str(unknown), TYPES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(TYPES))}"
        raise BadInput(f"no change is of type {unknown!r}; {hint}")
    return wanted


def _several(callbacks: Any) -> Iterable[Callback]:
    several = isinstance(callbacks, Iterable) and not isinstance(callbacks, str) and not callable(callbacks)
    return callbacks if several else [callbacks]


def _check(callback: object, field: str) -> None:
    if callback is None:
        raise BadInput(f"{field} must be a plain function, not None")
    check_plain(callback, field)
