"""The deterministic asyncio event loop of one run.

It has no I/O and no thread. Its time is the time of the fact being applied, its futures are resolved by facts, its
timers are durable timers. It implements only what asyncio's own tools need, and refuses everything else with the line
of the workflow that asked for it. It is driven only inside a turn (see `turn`). Between turns its ready queue is empty,
so all runs of a worker share one queue.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, NoReturn

from holdfast.clock import FAR_FUTURE
from holdfast.determinism.guard import WorkflowLoop, await_chain, name_of, user_line
from holdfast.errors import BadInput, BusyLoop, NonDeterministic
from holdfast.payloads.errors import error_repr
from holdfast.replay.location import DEADLINE, Scope, number

MAX_CALLBACKS = 100_000
MAX_FAILURES = 20
_FEW_TASKS = 8
SCOPE: contextvars.ContextVar[Scope] = contextvars.ContextVar("holdfast_scope")
QUERY = Scope("?")
"""Where the handler of a query runs: code here may look, but not act."""
_CLEANUP: contextvars.ContextVar[bool] = contextvars.ContextVar("holdfast_cleanup", default=False)

is_done: Callable[[asyncio.Future[Any]], bool] = asyncio.Future.done
"""Tell whether a verb or a task is done: how the engine asks, for what the code asks it counts as an `await`."""

# Typed loosely: RunLoop is not an AbstractEventLoop, because slots keep a parked run small.
_running_loop: Callable[[], Any] = events._get_running_loop
_set_running_loop: Callable[[Any], None] = events._set_running_loop


class Handle:
    """A callback waiting for its turn."""

    __slots__ = ("args", "callback", "context", "dropped")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = contextvars.copy_context() if context is None else context
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

    __slots__ = ("number", "own_context", "scope", "structural")
    number: int
    own_context: contextvars.Context
    scope: Scope | None
    structural: bool

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class RunLoop(WorkflowLoop):
    """One run's event loop. See the module's docstring."""

    __slots__ = (
        "__weakref__",
        "base",
        "_created",
        "_prune_at",
        "_ready",
        "_timers",
        "dead",
        "ended_alone",
        "extra",
        "failures",
        "heap",
        "home",
        "now",
        "origin",
        "orphans",
        "posed",
        "stopped",
        "tasks",
        "violation",
        "within",
    )

    def __init__(self, ready: deque[Handle], now: int, seed: int = 0) -> None:
        self._ready = ready
        # Asyncio keeps the tasks of all runs in one set: their hashes must differ from run to run, yet within one run
        # order small sets of tasks by creation.
        self.base = (seed << 10) & 0xFFF_FFFF_FFFF_FC00
        self._prune_at = _FEW_TASKS
        self.heap: list[tuple[int, int, Timer]] | None = None
        """The timers by due time, cancelled ones among them."""
        self._timers: dict[str, Timer] | None = None
        self._created = 0
        self.origin = now
        self.now = now
        self.extra = 0
        """How long the run had ended before it was reopened, while replay is before that point: time stood still."""
        self.tasks: list[RunTask] = []
        self.orphans: list[Any] | None = None
        self.failures: list[str] | None = None
        """Errors of tasks and verbs that are gone and that the code never looked at."""
        self.dead = False
        self.violation: Exception | None = None
        self.home: Any = None
        """The Context of the run's root; see `context.current.current_context`."""
        self.posed = False
        """Whether code was told in this turn that this is an AbstractEventLoop, and may have set it as the thread's."""
        self.within: contextvars.Context | None = None
        """The context of the callback that runs: that of its task, if it is one's."""
        self.ended_alone: dict[str, Any] | None = None
        """The calls that ended before the code awaited them, by location; see `verbs.never_awaited`."""
        self.stopped: list[contextvars.Context] | None = None
        """The contexts of tasks that are gone and whose code raised or was cancelled."""

    # What asyncio asks of a loop.

    def get_debug(self) -> bool:
        return False

    @property  # type: ignore[misc]  # what asyncio.set_event_loop asks
    def __class__(self) -> type:
        # Not a subclass: slots keep a parked run small.
        self.posed = True
        return asyncio.AbstractEventLoop

    def get_task_factory(self) -> None:
        return None

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
            if scope is QUERY:
                raise only_looking("asyncio timers")
            location = scope.next_timer() if scope else f"@{number(self.next_number())}"
            due = self.origin + round(min(when * 1e6, FAR_FUTURE)) + self.extra
            self.add_timer(timer, min(due, FAR_FUTURE), location)
        return timer

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Say nothing here: failures that the code never awaited are reported when the run ends."""
        error = context.get("exception")
        if error is None or self.dead:
            return
        if self.failures is None:
            self.failures = []
        if len(self.failures) < MAX_FAILURES:
            future = context.get("task") or context.get("future")
            self.failures.append(f"{name_of(future)}: {error_repr(error)}")

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        structural: bool = False,
        kind: type[RunTask] = RunTask,
        **more: Any,
    ) -> RunTask:
        _refuse_as_completed(self)
        if type(coro) is not CoroutineType or coro.__name__ in _WRAPPERS:
            call, coro = _given(coro)
            if call is not None:
                call.note_awaited()  # the task may be cancelled before it comes to that
                structural = structural or call.word == "loop"  # nothing but the loop runs in it
        if context is None:
            context = contextvars.copy_context()
        scope = context.get(SCOPE)
        if scope is None and (scope := SCOPE.get(None)) is not None:
            context.run(SCOPE.set, scope)  # a context of the user's own making is still in this run
        if scope is QUERY:
            coro.close()
            raise only_looking("asyncio tasks")
        if handling_cancel():
            context.run(_CLEANUP.set, True)
        task = kind.__new__(kind)
        task.number = self.hash_number(scope)
        task.own_context = context
        task.scope = scope
        task.structural = structural
        # Asyncio registers the task by hash inside __init__, so the number comes first.
        task.__init__(coro, loop=self, name=name or f"task-{task.number - self.base}", context=context, **more)  # type: ignore[misc]
        self.tasks.append(task)
        if len(self.tasks) > self._prune_at:
            self._prune_at = max(_FEW_TASKS, 2 * len(self.live_tasks()))
        return task

    def next_number(self) -> int:
        """Return a number no other timer or task of this loop has."""
        self._created += 1
        return self._created

    def hash_number(self, scope: Scope | None) -> int:
        """Return the hash of a new task or verb.

        It counts within the scope, so that a loop resumed from its state gives the tasks of an iteration the numbers
        they had, and sets of them their order.
        """
        if scope is None:
            return self.base + self.next_number()
        scope.made += 1
        return self.base + scope.made

    # Timers.

    def add_timer(self, timer: Timer, due: int, location: str) -> None:
        """Schedule a timer for an instant."""
        timer.due = due
        timer.location = location
        if self.heap is None or self._timers is None:
            self.heap, self._timers = [], {}
        heapq.heappush(self.heap, (due, self.next_number(), timer))
        self._timers[location] = timer

    def next_timer(self) -> Timer | None:
        """Return the earliest timer that is not cancelled."""
        heap = self.heap
        while heap:
            timer = heap[0][2]
            if not timer.dropped:
                return timer
            heapq.heappop(heap)
        return None

    def keeps_time(self) -> bool:
        """Tell whether the code waits for a timer; the run's deadline is not of its making."""
        timers = self._timers or {}
        return len(timers) > (DEADLINE in timers)

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
        if self.heap is None or self._timers is None:
            return
        self._timers.pop(timer.location, None)
        if len(self.heap) > 64 and len(self.heap) > 2 * len(self._timers):
            self.heap = [item for item in self.heap if not item[2].dropped]
            heapq.heapify(self.heap)

    def forget_timers(self) -> None:
        """Drop every timer; the loop is dead."""
        self.heap = self._timers = None

    # Driving.

    def drain(self) -> None:
        """Run callbacks until none is ready.

        Raises:
            BusyLoop: more than 100,000 callbacks without a new fact.
        """
        ready = self._ready
        budget = MAX_CALLBACKS
        try:
            while ready:
                handle = ready.popleft()
                if handle.dropped:
                    continue
                budget -= 1
                if budget < 0:
                    raise BusyLoop("", f"the workflow never waits for anything durable: {self.whereabouts()}")
                self.within = handle.context
                handle.context.run(handle.callback, *handle.args)
        except BaseException:
            ready.clear()  # it is shared: what is left here must not run as part of another run
            raise

    def forget_ready(self) -> bool:
        """Drop callbacks that became ready outside a turn; tell whether there were any."""
        left = bool(self._ready)
        self._ready.clear()
        return left

    def take_new_tasks(self) -> None:
        """Live on after the tasks of the code were closed, for what is to be undone."""
        self.dead = False
        self.failures = None
        self._prune_at = _FEW_TASKS

    def live_tasks(self) -> list[RunTask]:
        """Return the tasks that have not finished, oldest first."""
        stopped = [task.own_context for task in self.tasks if is_done(task) and was_stopped(task)]
        if stopped:
            self.stopped = self.stopped or []
            self.stopped.extend(stopped)
        self.tasks = [task for task in self.tasks if not is_done(task)]
        return self.tasks

    def whereabouts(self) -> str:
        """Say, for each live task, the lines at which it waits."""
        return "; ".join(f"{task.get_name()} at {await_chain(task.get_coro())}" for task in self.live_tasks())

    # Async generators, see `generators`.

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

    def refuse(self, what: str, advice: str = "this is I/O: put it in a step") -> NoReturn:
        """Refuse something a workflow must not do, and remember it even if the code swallows the error."""
        place = self.workflow_line()
        where = f" at {place}" if place else ""
        error = NonDeterministic(f"{what}{where}: {advice}")
        if self.violation is None:
            self.violation = error
        raise error

    def workflow_line(self) -> str:
        """Return the file:line of workflow code that is being run; of its task's start if only libraries are."""
        bottom: Any = sys._getframe(1)
        frame = bottom
        while bottom is not None and bottom.f_code is not _DRAIN:
            bottom = bottom.f_back
        if bottom is None:
            return ""
        place = user_line(frame, stop=bottom)
        if place is not None:
            return f"{place[0]}:{place[1]}"
        task = asyncio.current_task(self) if _running_loop() is self else None
        return await_chain(task.get_coro()) if task is not None else ""


_DRAIN = RunLoop.drain.__code__


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable


_WRAPPERS = ("_awaiting", "_wrap_awaitable")


def _given(coro: Any) -> tuple[Any, Any]:
    """Return the call that a new task awaits and nothing else, None if there is none, and the task's coroutine.

    Where asyncio insists on a coroutine, in create_task and TaskGroup, the code may give it the call itself.
    """
    if isinstance(coro, asyncio.Future) or hasattr(type(coro), "note_awaited"):
        call, coro = coro, _awaiting(coro)
    else:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        call = frame.f_locals.get("awaitable") if frame is not None and coro.__name__ in _WRAPPERS else None
    return call if hasattr(type(call), "note_awaited") else None, coro


def was_stopped(task: RunTask) -> bool:
    """Tell whether the code of a task that is done raised or was cancelled, without counting as looking at it."""
    return task.cancelled() or task._exception is not None  # asyncio's own


def only_looking(what: str) -> BadInput:
    """Return the error for what the handler of a query must not use."""
    return BadInput(f"the handler of a query only reads the workflow's state: it cannot use {what}")


def handling_cancel() -> bool:
    """Tell whether the running code handles a CancelledError: in `except`, in `finally`, or in a task begun there."""
    if _CLEANUP.get():
        return True
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, asyncio.CancelledError):
            return True
        error = error.__context__
    return False


_ASYNCIO_TASKS = asyncio.tasks.__file__


def _refuse_as_completed(loop: RunLoop) -> None:
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == _ASYNCIO_TASKS:
        name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
        if name.startswith(("as_completed", "_AsCompletedIterator")):
            place = loop.workflow_line()
            where = f" at {place}" if place else ""
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
