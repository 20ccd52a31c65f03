"""The deterministic asyncio event loop one run lives in.

It has no I/O and no thread. Its time is the time of the fact being applied, its futures are resolved by facts, its timers
are durable timers. It implements just what asyncio's own tools need; everything else is refused with the line of the
workflow that asked for it. It is driven only inside a turn (see `turn`), between turns its ready queue is empty, so all
runs of a worker share one queue.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from holdfast.errors import BusyLoop, NonDeterministic
from holdfast.replay.guards import user_line
from holdfast.replay.location import Scope

MAX_CALLBACKS = 100_000
SCOPE: contextvars.ContextVar[Scope] = contextvars.ContextVar("holdfast_scope")

_running_loop = events._get_running_loop
_set_running_loop = events._set_running_loop


class Handle:
    """A callback waiting for its turn."""

    __slots__ = ("args", "callback", "context", "dropped")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context or contextvars.copy_context()
        self.dropped = False

    def cancel(self) -> None:
        """Make the callback never run."""
        self.dropped = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        """Tell whether `cancel` was called."""
        return self.dropped


class Timer(Handle):
    """A callback waiting for its instant; `location` is where its firing is recorded."""

    __slots__ = ("due", "location", "loop")

    def __init__(
        self, loop: RunLoop, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        super().__init__(callback, args, context)
        self.loop = loop
        self.due = 0
        self.location = ""

    def when(self) -> float:
        """Return the loop time at which it is due (asyncio's name for it)."""
        return (self.due - self.loop.origin) / 1e6

    def cancel(self) -> None:
        if not self.dropped:
            super().cancel()
            self.loop.forget(self)


def _nothing() -> None:
    return None


class RunTask(asyncio.Task[Any]):
    """A task of a run: hashed by creation number, so that sets of tasks iterate alike on every replay."""

    __slots__ = ("own_context", "scope", "seq", "structural")

    def __hash__(self) -> int:
        return self.seq

    def __eq__(self, other: object) -> bool:
        return self is other


class RunLoop:
    """One run's event loop. See the module's docstring."""

    __slots__ = (
        "__weakref__",
        "_created",
        "_heap",
        "_ready",
        "_timers",
        "dead",
        "now",
        "orphans",
        "origin",
        "tasks",
        "violation",
    )

    def __init__(self, ready: deque[Handle], now: int) -> None:
        self._ready = ready
        self._heap: list[tuple[int, int, Timer]] | None = None
        self._timers: dict[str, Timer] | None = None
        self._created = 0
        self.origin = now
        self.now = now
        self.tasks: list[RunTask] = []
        self.orphans: list[Any] | None = None
        self.dead = False
        self.violation: Exception | None = None

    # What asyncio asks of a loop.

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return _running_loop() is self

    def is_closed(self) -> bool:
        return self.dead

    def time(self) -> float:
        return (self.now - self.origin) / 1e6

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]  # not a subclass: slots keep a parked run small

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, context)
        if self.dead:
            return handle
        if _running_loop() is not self:
            raise RuntimeError("this belongs to another run; runs share nothing but messages")
        self._ready.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        timer = Timer(self, callback, args, context)
        if not self.dead:
            scope = timer.context.get(SCOPE)
            location = scope.next_timer() if scope else f"@{self.next_number()}"
            self.add_timer(timer, self.origin + round(when * 1e6), location)
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing here: failures nobody awaited are reported when the run ends."""

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        structural: bool = False,
        **more: Any,
    ) -> RunTask:
        _refuse_as_completed(self)
        context = context or contextvars.copy_context()
        task = RunTask.__new__(RunTask)
        task.seq = self.next_number()
        task.own_context = context
        task.scope = context.get(SCOPE)
        task.structural = structural
        task.__init__(coro, loop=self, name=name or f"task-{task.seq}", context=context, **more)  # type: ignore[misc]  # asyncio registers the task by hash inside __init__, so seq comes first
        self.tasks.append(task)
        return task

    def next_number(self) -> int:
        """Return a creation number for something that hashes like a task."""
        self._created += 1
        return self._created

    # Timers.

    def add_timer(self, timer: Timer, due: int, location: str) -> None:
        """Schedule a timer for an instant."""
        timer.due = due
        timer.location = location
        if self._heap is None or self._timers is None:
            self._heap, self._timers = [], {}
        heapq.heappush(self._heap, (due, self.next_number(), timer))
        self._timers[location] = timer

    def next_timer(self) -> Timer | None:
        """Return the earliest timer that is not cancelled."""
        heap = self._heap
        while heap:
            timer = heap[0][2]
            if not timer.dropped:
                return timer
            heapq.heappop(heap)
        return None

    def timer_at(self, location: str) -> Timer | None:
        """Return the live timer at a location."""
        return self._timers.get(location) if self._timers else None

    def fire(self, timer: Timer) -> None:
        """Make a timer's callback ready."""
        ready = Handle(timer.callback, timer.args, timer.context)
        timer.cancel()
        self._ready.append(ready)

    def forget(self, timer: Timer) -> None:
        """Drop a cancelled timer, and now and then the dead wood in the heap."""
        if self._heap is None or self._timers is None:
            return
        self._timers.pop(timer.location, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._timers):
            self._heap = [item for item in self._heap if not item[2].dropped]
            heapq.heapify(self._heap)

    # Driving.

    def drain(self) -> None:
        """Run callbacks until none is ready.

        Raises:
            BusyLoop: more than 100,000 callbacks without a new fact.
        """
        ready = self._ready
        budget = MAX_CALLBACKS
        while ready:
            handle = ready.popleft()
            if handle.dropped:
                continue
            budget -= 1
            if budget < 0:
                ready.clear()
                raise BusyLoop("", f"the workflow never waits for anything durable: {self.whereabouts()}")
            handle.context.run(handle.callback, *handle.args)
        tasks = self.tasks
        if len(tasks) > 8 and tasks[-1].done():
            self.tasks = [task for task in tasks if not task.done()]

    def live_tasks(self) -> list[RunTask]:
        """Return the tasks that have not finished, oldest first."""
        self.tasks = [task for task in self.tasks if not task.done()]
        return self.tasks

    def whereabouts(self) -> str:
        """Say, for each live task, the lines at which it waits."""
        return "; ".join(f"{task.get_name()} at {await_chain(task.get_coro())}" for task in self.live_tasks()) or "-"

    # Async generators: adopted by this loop while a turn runs.

    def asyncgen_first(self, agen: Any) -> None:
        """Accept a generator; nothing to do until it is abandoned."""

    def asyncgen_final(self, agen: Any) -> None:
        """Close an abandoned generator as a task of this run, or keep it until the run ends."""
        if self.dead:
            return
        if _running_loop() is self:
            self.create_task(agen.aclose())
        else:
            if self.orphans is None:
                self.orphans = []
            self.orphans.append(agen)

    def refuse(self, what: str) -> NoReturn:
        """Refuse something a workflow must not do, and remember it even if the code swallows the error."""
        place = user_line()
        where = f" at {place[0]}:{place[1]}" if place else ""
        error = NonDeterministic(f"{what}{where}: this is I/O: put it in a step")
        if self.violation is None:
            self.violation = error
        raise error


def await_chain(coro: Any) -> str:
    """Return the file:line at which a coroutine waits, outermost first."""
    lines: list[str] = []
    while coro is not None and len(lines) < 6:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            break
        lines.append(f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)
    return " > ".join(lines) or "?"


_ASYNCIO_TASKS = asyncio.tasks.__file__


def _refuse_as_completed(loop: RunLoop) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == _ASYNCIO_TASKS:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        if name.startswith(("as_completed", "_AsCompletedIterator")):
            place = user_line(frame)
            where = f" at {place[0]}:{place[1]}" if place else ""
            error = NonDeterministic(
                f"as_completed over bare coroutines starts them in random order{where}; "
                "write as_completed([asyncio.create_task(c) for c in ...])"
            )
            if loop.violation is None:
                loop.violation = error
            raise error
        frame = frame.f_back


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: RunLoop, *args: Any, **kwargs: Any) -> NoReturn:
        self.refuse(f"{name}() in workflow code")

    refuse.__name__ = name
    return refuse


for _name in dir(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and not hasattr(RunLoop, _name):
        setattr(RunLoop, _name, _refusal(_name))
