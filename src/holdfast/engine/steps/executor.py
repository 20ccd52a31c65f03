"""Step bodies: started, timed, signalled, and their results encoded. Nothing here knows the store."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import count
from typing import Any, Literal, Protocol

from holdfast.clock import micros
from holdfast.definitions import Activity
from holdfast.engine.steps import eager
from holdfast.engine.steps.child_process import IsolatedBody, importable
from holdfast.engine.steps.context import STEP, StepContext
from holdfast.engine.steps.places import WaitingRoom
from holdfast.engine.steps.threads import ThreadPool
from holdfast.errors import HeartbeatTimeout, NotSerializable, RetryAfter, StepFailed, StepTimeout
from holdfast.limits import Limits
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData

_logger = logging.getLogger("holdfast.engine")
MAX_ABANDONED_THREADS = 32

Done = Callable[["Attempt", bytes | None, "BaseException | ErrorData | None"], None]
Kind = Literal["async", "thread", "process"]
Around = Callable[[StepContext], AbstractContextManager[Any]]


class Inside(Protocol):
    """What a sync body runs inside of (a transaction), and who is told what came of that."""

    def run(self, attempt: Attempt, body: Callable[[], Any]) -> Any:
        """Run the body, in its thread, and return what came of it."""
        ...

    def ended(self, attempt: Attempt, outcome: Any) -> None:
        """Take what `run` returned, on the event loop, instead of the attempt's `done`."""
        ...


class Work(Protocol):
    """What an attempt is of: a step of a run that is here, or one that another worker's run called."""

    activity: Activity[..., Any]
    attempt: int
    in_process: bool

    @property
    def suspect(self) -> bool:
        """Whether it was lost with its worker so often that it may be the reason."""
        ...

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return arguments for a body to keep and change as it likes."""
        ...


class Attempt:
    """One attempt of one step, from its start to its one report."""

    finished = False
    isolated = False
    """Whether it runs in a child process because it is a suspect."""
    admit: Callable[[], bool] | None = None
    """Asked when it has a place and is about to begin: whether it still may."""
    inside: Inside | None = None
    """What the body runs inside of; it also limits its time."""
    late: Callable[[bytes], None] | None = None
    """Takes the result of a thread that came back after its attempt was given up."""
    at_once = False
    """Whether an async body may begin in this very moment, and not in the next round of the event loop."""
    _body: Any = None
    _deadline: asyncio.TimerHandle | None = None
    _heartbeat: asyncio.TimerHandle | None = None
    _last_beat = 0.0

    def __init__(self, executor: Executor, verb: Work, owner: Any, context: StepContext, done: Done) -> None:
        self._executor = executor
        self.verb = verb
        self.owner = owner
        self.number = verb.attempt
        self.context = context
        self.done = done
        self.activity: Activity[..., Any] = executor.stand_in(verb.activity)
        self.kind = _kind(self.activity)
        settings = verb.activity.settings
        self.priority = settings.priority
        self.limit = settings.limit

    def isolate(self) -> None:
        """Run a suspect in a child process, if its function can be found there."""
        if self.kind != "process" and not self.inside and importable(self.activity.function, main=False) is not None:
            self.isolated = True
            self.kind = "process"

    def start(self) -> None:
        """Run the body."""
        settings = self.verb.activity.settings
        loop = self._executor.loop
        if settings.timeout and self.inside is None:
            self._deadline = loop.call_later(micros(settings.timeout) / 1e6, self._timed_out)
        if settings.heartbeat_timeout:
            self.context.beat = self._beat
            if self.kind != "process":
                self._body_begun()
        try:
            self._start_body()
        except Exception as error:
            loop.call_soon(self.finish, None, error)

    def stop(self, reason: str) -> None:
        """Give the attempt up without a report: signal the body, cancel or kill it, never wait for it."""
        if self.finished:
            return
        self.finished = True
        self.context.signal.fire(reason)
        if self._body is not None:
            if self.kind == "async":
                self._executor.forsake(self._body, reason)
            elif self.kind == "thread":
                self._executor.threads.abandon(self._body)
            else:
                self._body.kill()
        self._release()

    def finish(self, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        """Report the end, once; whatever comes later is discarded."""
        if self.finished:
            return
        self.finished = True
        if _asks_to_wait(error):
            # Known to the limit before the place is given to somebody else.
            self.done(self, result, error)
            self._release()
        else:
            self._release()
            self.done(self, result, error)

    def _start_body(self) -> None:
        function, loop = self.activity.function, self._executor.loop
        args, kwargs = self.verb.arguments()
        if self.kind == "process":
            self._body = IsolatedBody(function, args, kwargs, self.context, self._body_begun, self.finish)
            return
        context = self._executor.context.copy()
        context.run(STEP.set, self.context)
        if self.kind == "async":
            self._run_async(_called(function, args, kwargs, self._executor.around, self.context), context)
            return

        def report(result: Any, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(self._thread_ended, result, error, context)
            except RuntimeError:  # the loop is closed: nobody waits any more
                _discard(result)

        body = partial(function, *args, **kwargs)
        if self._executor.around is not None:
            body = partial(_around, self._executor.around, self.context, body)
        if self.inside is not None:
            body = partial(self.inside.run, self, body)
        self._body = self._executor.threads.submit(body, context, report)

    def _run_async(self, coro: Coroutine[Any, Any, Any], context: contextvars.Context) -> None:
        loop = self._executor.loop
        task = eager.start(loop, coro, context) if self.at_once else loop.create_task(coro, context=context)
        self._body = task
        if task.done():
            self._task_ended(task)
        else:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if self.finished:
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            self.finish(None, StepFailed("CancelledError", "the body was cancelled from within"))
        elif (error := task.exception()) is not None:
            self.finish(None, error)
        else:
            self._encode(task.result())

    def _thread_ended(self, result: Any, error: BaseException | None, context: contextvars.Context) -> None:
        if self.finished:
            if error is None and self.late is not None:
                self._keep(result)
            _discard(result)
        elif error is not None:
            self.finish(None, error)
        elif self.inside is not None:
            self.finished = True
            self._release()
            self.inside.ended(self, result)
        elif inspect.isawaitable(result):
            self._executor.left_thread(self)
            self._run_async(_awaited(result), context)
        elif isinstance(result, _Entered):
            self._executor.left_thread(self)
            self._run_async(_awaited_inside(result), context)
        else:
            self._encode(result)

    def _encode(self, result: Any) -> None:
        if isinstance(result, _Exited):
            self.finish(None, result.error)
            return
        try:
            data = codec.encode(result)
        except Exception:
            self.finish(None, self._refusal(result))
        else:
            self.finish(data, None)

    def _keep(self, result: Any) -> None:
        assert self.late is not None
        try:
            data = codec.encode(result)
        except Exception:
            return  # nobody waits for it, and nobody could have it
        self.late(data)

    def _refusal(self, result: Any) -> Exception:
        """Return what is wrong with a result, in words that name the step."""
        where = f"the result of step {self.context.step!r}"
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            return NotSerializable(f"a generator at $ in {where}: its body must return the items, as a list")
        try:
            codec.encode(result, where)
        except Exception as error:
            return error
        return NotSerializable(f"a value that encodes only sometimes at $ in {where}")

    def _timed_out(self) -> None:
        allowed = self.verb.activity.settings.timeout
        self.give_up(StepTimeout(f"step {self.context.step!r} did not finish within {allowed}"))

    def give_up(self, error: StepTimeout) -> None:
        """End the attempt with an error, whatever its body still does."""
        if not self.finished:
            self.stop("timeout")
            self.done(self, None, error)

    def _beat(self) -> None:
        # Called from any thread; storing a float is atomic.
        self._last_beat = self._executor.loop.time()

    def _body_begun(self) -> None:
        """Expect heartbeats from now on: a child process takes its time to start."""
        allowed = self.verb.activity.settings.heartbeat_timeout
        if allowed and not self.finished:
            self._beat()
            self._watch_heartbeat(micros(allowed) / 1e6)

    def _watch_heartbeat(self, allowed: float) -> None:
        loop = self._executor.loop
        if loop.time() >= self._last_beat + allowed:
            self.give_up(HeartbeatTimeout(f"step {self.context.step!r} sent no heartbeat for {allowed:g} s"))
        else:
            self._heartbeat = loop.call_at(self._last_beat + allowed, self._watch_heartbeat, allowed)

    def _release(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._executor.released(self)


class Executor:
    """Runs attempts, as many at once as allowed; suspects one at a time.

    A suspect is a step that was lost twice with its process. Where its function can be imported it runs in a child
    process, so that its crash is seen for what it is; otherwise it runs here, alone among suspects.

    While more than 32 threads never came back from bodies that were given up, no further sync body starts: they wait
    until threads return, since each would probably be lost like those before it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, max_steps: int, max_threads: int, limits: Limits | None = None
    ) -> None:
        self.loop = loop
        self._limits = limits or Limits()
        self._limited: dict[str, WaitingRoom] = {}
        self._numbers = count()
        """In which order attempts came, whatever their kind."""
        self.context = contextvars.copy_context()
        """What every body starts from a copy of: the context in which the engine was opened."""
        self.threads = ThreadPool(self._thread_returned)
        self.around: Around | None = None
        """What is entered around every body that runs in this process (a span of a trace)."""
        self.substitutes: dict[Any, Activity[..., Any]] = {}
        """Stand-ins for functions, for tests."""
        self._max = max_steps
        self._rooms: dict[Kind, _Room] = {
            "async": _Room(max_steps, self._numbers),
            "thread": _Room(max_threads, self._numbers),
            "process": _Room(max_threads, self._numbers),
        }
        self._running: set[Attempt] = set()
        self._suspect: Attempt | None = None
        self._suspects: deque[Attempt] = deque()
        self._queued = 0
        """How many attempts wait for a place, suspects included."""
        self._forsaken: set[asyncio.Task[Any]] = set()
        self._unhealthy = False

    def stand_in(self, activity: Activity[..., Any]) -> Activity[..., Any]:
        """Return what runs in place of an activity: itself, outside tests."""
        if not self.substitutes:
            return activity
        try:
            return self.substitutes.get(activity.function, activity)
        except TypeError:  # a callable object that cannot be hashed
            return activity

    @property
    def active(self) -> int:
        """How many attempts are running or waiting for a place."""
        return len(self._running) + self._queued

    @property
    def abandoned(self) -> int:
        """How many bodies go on though they were given up: threads that never came back, tasks that will not end."""
        return self.threads.abandoned + len(self._forsaken)

    @property
    def healthy(self) -> bool:
        """Whether sync bodies can be started."""
        return self.threads.abandoned <= MAX_ABANDONED_THREADS

    def runs(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is under way, and not waiting for a place."""
        return attempt in self._running

    def free(self, activity: Activity[..., Any]) -> int:
        """Return how many more attempts of an activity could begin at once."""
        kind, limit = _kind(self.stand_in(activity)), activity.settings.limit
        room = self._rooms[kind]
        if kind == "thread" and not self.healthy:
            return 0
        free = max(min(self._max - self.active, room.size - room.taken - len(room.waiting)), 0)
        if free and limit is not None:
            free = int(self._limits.enter(limit))  # whether there is a place: it is given back at once
            if free:
                self._limits.leave(limit)
        return free

    def running(self) -> list[Attempt]:
        """Return the attempts under way."""
        waiting = (attempt for room in self._rooms.values() for attempt in room.waiting)
        limited = (attempt for room in self._limited.values() for attempt in room)
        return [*self._running, *waiting, *limited, *self._suspects]

    def run(
        self,
        attempt: Attempt,
        admit: Callable[[Attempt], bool] | None = None,
        inside: Inside | None = None,
        alone: bool = False,
    ) -> None:
        """Start an attempt as soon as there is room for it, if `admit` then still says so.

        `alone` tells that no other is to begin with it, which the end of this one could forestall.
        """
        verb = attempt.verb
        if attempt.kind == "thread":
            attempt.inside = inside
        if admit is not None:
            attempt.admit = partial(admit, attempt)
        if verb.suspect:
            if not verb.in_process:
                attempt.isolate()
            self._suspects.append(attempt)
        elif attempt.limit is not None and not self._limits.enter(attempt.limit):
            self._limited.setdefault(attempt.limit, WaitingRoom(self._numbers)).put(attempt)
        elif not self._queued and self._has_room(attempt.kind):
            # Not before one that was given up has had the time to end.
            attempt.at_once = alone and not self._forsaken
            self._begin(attempt)
            return
        else:
            self._rooms[attempt.kind].waiting.put(attempt)
        self._queued += 1
        self._fill()

    def isolates(self, verb: Work) -> bool:
        """Tell whether an attempt of this step runs in a child process, so that the worker's death is not its doing."""
        if verb.activity.settings.isolate is not None:
            return True
        if verb.activity.settings.transaction:
            return False
        return verb.suspect and not verb.in_process and importable(verb.activity.function, main=False) is not None

    def released(self, attempt: Attempt) -> None:
        """Take back an attempt's place."""
        room = self._rooms[attempt.kind]
        if attempt in self._running:
            self._running.discard(attempt)
            room.taken -= 1
            if self._suspect is attempt:
                self._suspect = None
            else:
                self._leave_limit(attempt)
            self._fill()
        elif room.waiting.leave(attempt):
            self._queued -= 1
            self._leave_limit(attempt)
            self._fill()
        elif attempt in self._suspects:
            self._suspects.remove(attempt)
            self._queued -= 1
        elif attempt.limit is not None and attempt.limit in self._limited:
            self._queued -= self._limited[attempt.limit].leave(attempt)

    def _leave_limit(self, attempt: Attempt) -> None:
        """Give the place of a limit to whoever waits for it."""
        if attempt.limit is None:
            return
        self._limits.leave(attempt.limit)
        waiting = self._limited.get(attempt.limit)
        if waiting and self._limits.enter(attempt.limit):
            following = waiting.take()
            self._rooms[following.kind].waiting.put(following)

    def left_thread(self, attempt: Attempt) -> None:
        """A sync body returned a coroutine, which goes on without its thread."""
        self._rooms[attempt.kind].taken -= 1
        attempt.kind = "async"
        self._rooms[attempt.kind].taken += 1
        self._fill()

    def forsake(self, task: asyncio.Task[Any], reason: str) -> None:
        """Cancel a body and forget it, whatever it makes of that."""
        if task.cancel(reason):
            self._forsaken.add(task)
            task.add_done_callback(self._forsaken.discard)

    def close(self) -> None:
        """Give up everything."""
        self._suspects.clear()
        for room in self._rooms.values():
            room.waiting.clear()
        self._limited.clear()
        self._queued = 0
        for attempt in list(self._running):
            attempt.stop("the worker stops")
        for task in self._forsaken:
            task.cancel()
        self.threads.close()

    def _fill(self) -> None:
        if not self._queued:
            return
        while free := [room for kind, room in self._rooms.items() if room.waiting and self._has_room(kind)]:
            self._queued -= 1
            self._begin(min(free, key=_next_of).waiting.take())
        while self._suspects and self._suspect is None and self._has_room(self._suspects[0].kind):
            self._queued -= 1
            self._suspect = self._suspects.popleft()
            self._begin(self._suspect)

    def _has_room(self, kind: Kind) -> bool:
        room = self._rooms[kind]
        if len(self._running) >= self._max or room.taken >= room.size:
            return False
        return kind != "thread" or self._take_threads()

    def _take_threads(self) -> bool:
        if self.healthy:
            self._unhealthy = False
        elif not self._unhealthy:
            self._unhealthy = True
            _logger.error(
                "%d threads never came back from sync steps that timed out or were cancelled; sync steps wait until "
                "some do: let such bodies watch step_context().signal, or use isolate='process'",
                self.threads.abandoned,
            )
        return self.healthy

    def _begin(self, attempt: Attempt) -> None:
        if attempt.admit is not None and not attempt.admit():
            if attempt is self._suspect:
                self._suspect = None
            else:
                self._leave_limit(attempt)
            return
        self._running.add(attempt)
        self._rooms[attempt.kind].taken += 1
        attempt.start()

    def _thread_returned(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._fill)
        except RuntimeError:  # the loop is closed: nothing waits any more
            pass


class _Room:
    """How many attempts of one kind may run, how many do, and who waits."""

    __slots__ = ("size", "taken", "waiting")

    def __init__(self, size: int, numbers: Iterator[int]) -> None:
        self.size = size
        self.taken = 0
        self.waiting = WaitingRoom(numbers)


def _kind(activity: Activity[..., Any]) -> Kind:
    if activity.settings.isolate:
        return "process"
    return "async" if activity.is_async else "thread"


def _next_of(room: _Room) -> tuple[int, int]:
    return room.waiting.first()


class _Exited:
    """A body called sys.exit(); a task would let that end the whole worker."""

    __slots__ = ("error",)

    def __init__(self, error: SystemExit) -> None:
        self.error = error


def _asks_to_wait(error: BaseException | ErrorData | None) -> bool:
    return isinstance(error, RetryAfter) or (isinstance(error, ErrorData) and "RetryAfter" in error.bases)


async def _called(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    around: Around | None,
    context: StepContext,
) -> Any:
    try:
        if around is not None:
            with around(context):
                result = function(*args, **kwargs)
                return await result if inspect.isawaitable(result) else result
        result = function(*args, **kwargs)
        return await result if inspect.isawaitable(result) else result
    except SystemExit as exit_:
        return _Exited(exit_)


class _Entered:
    """Something to await that a function returned, and what was entered around that function and is not left yet."""

    __slots__ = ("awaitable", "left")

    def __init__(self, awaitable: Any, left: ExitStack) -> None:
        self.awaitable = awaitable
        self.left = left


def _around(around: Around, context: StepContext, body: Callable[[], Any]) -> Any:
    with ExitStack() as stack:
        stack.enter_context(around(context))
        result = body()
        return _Entered(result, stack.pop_all()) if inspect.isawaitable(result) else result


async def _awaited_inside(entered: _Entered) -> Any:
    with entered.left:
        return await _awaited(entered.awaitable)


async def _awaited(awaitable: Any) -> Any:
    try:
        return await awaitable
    except SystemExit as exit_:
        return _Exited(exit_)


def _discard(result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()
