"""One attempt of one step: its body is started, timed and signalled, and its result encoded.

The ordinary body is a coroutine on the event loop without any option: `start_plain` and `_task_ended` handle it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import CoroutineType
from typing import Any, Literal, Protocol

from holdfast.bodies import eager
from holdfast.bodies.child_process import IsolatedBody, importable
from holdfast.bodies.context import STEP, StepContext
from holdfast.bodies.threads import ThreadPool
from holdfast.clock import micros
from holdfast.definitions import Activity
from holdfast.errors import HeartbeatTimeout, NotSerializable, RetryAfter, StepFailed, StepTimeout
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData

Ended = Callable[["Attempt", bytes | None, "BaseException | ErrorData | None"], None]
Kind = Literal["async", "thread", "process"]
_ENDING = 1.0
"""For how many seconds an engine is given the time to stop before a body that was cancelled counts as failed."""
Around = Callable[[StepContext], AbstractContextManager[Any]]


class Place(Protocol):
    """Where attempts run: the executor, as an attempt sees it."""

    loop: asyncio.AbstractEventLoop
    eager: bool
    context: contextvars.Context
    around: Around | None
    threads: ThreadPool
    substitutes: dict[Any, Activity[..., Any]]

    def stand_in(self, activity: Activity[..., Any]) -> Activity[..., Any]:
        """Return what runs in place of an activity: itself, outside tests."""
        ...

    def released(self, attempt: Attempt) -> None:
        """Take back an attempt's place."""
        ...

    def forsake(self, task: asyncio.Task[Any], reason: str) -> None:
        """Cancel a body and forget it."""
        ...

    def left_thread(self, attempt: Attempt) -> None:
        """A sync body returned a coroutine, which goes on without its thread."""
        ...


class Inside(Protocol):
    """What a sync body runs inside of (a transaction), and what takes the end of that."""

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
    opening: Callable[[], Coroutine[Any, Any, None] | None] | None = None
    """Called when it begins, and awaited before its body does: `on_start`."""
    _opening: asyncio.Task[None] | None = None
    returned = False
    """Whether the thread of a sync body has come back, or never comes to it."""
    gone: Callable[[], None] | None = None
    """Called when a thread comes back whose attempt was given up."""
    _body: Any = None
    _deadline: asyncio.TimerHandle | None = None
    _heartbeat: asyncio.TimerHandle | None = None
    _last_beat = 0.0

    def __init__(self, executor: Place, verb: Any, owner: Any, context: StepContext, done: Ended) -> None:
        self._executor = executor
        self.verb = verb
        self.owner = owner
        self.number = verb.attempt
        self.context = context
        self.done = done
        self.activity: Activity[..., Any] = verb.activity
        if executor.substitutes:
            self.activity = executor.stand_in(verb.activity)
        self.kind: Kind = "async" if self.activity.plain else kind_of(self.activity)
        settings = verb.activity.settings
        self.priority = settings.priority
        self.limit = settings.limit

    def isolate(self) -> None:
        """Run a suspect in a child process, if its function can be found there."""
        if self.kind != "process" and not self.inside and importable(self.activity.function, asked=False) is not None:
            self.isolated = True
            self.kind = "process"

    def start_plain(self) -> None:
        """Run a body on the event loop that no option asks anything of."""
        executor = self._executor
        try:
            verb = self.verb
            args, kwargs = (verb.args, verb.kwargs) if verb.shared else verb.arguments()
            context = executor.context.copy()
            context.run(STEP.set, self.context)
            coro = _called(self.activity.function, args, kwargs, executor.around, self.context)
            if self.at_once and executor.eager:
                task = eager.start_now(executor.loop, coro, context)
            else:
                task = executor.loop.create_task(coro, context=context)
            self._body = task
        except Exception as error:
            executor.loop.call_soon(self.finish, None, error)
            return
        if task.done():
            self._task_ended(task)
        else:
            task.add_done_callback(self._task_ended)

    def start(self) -> None:
        """Run the body, with all that its activity's options ask for."""
        settings = self.verb.activity.settings
        loop = self._executor.loop
        if settings.timeout and self.inside is None:
            self._deadline = loop.call_later(micros(settings.timeout) / 1e6, self._timed_out)
        left = self.opening() if self.opening is not None else None
        if left is None:
            self._go_on()
        else:
            self._opening = loop.create_task(left, context=self._executor.context.copy())
            self._opening.add_done_callback(self._opened)

    def _opened(self, task: asyncio.Task[None]) -> None:
        if self.finished or task.cancelled():
            self._task_failed(task)
        else:
            self._go_on()

    def _go_on(self) -> None:
        settings, loop = self.verb.activity.settings, self._executor.loop
        if settings.heartbeat_timeout:
            self.context.beat = self._beat
            if self.kind != "process":
                self._body_begun()
        try:
            self._start_body()
        except Exception as error:
            loop.call_soon(self.finish, None, error)

    @property
    def begun(self) -> bool:
        """Whether its body was started."""
        return self._body is not None

    @property
    def going(self) -> bool:
        """Whether its body is still under way, though perhaps given up; a child process is killed then."""
        if self._body is None or self.kind == "process":
            return False
        return not (self._body.done() if self.kind == "async" else self.returned)

    def when_gone(self, told: Callable[[], None]) -> None:
        """Tell when a body that is under way has ended."""
        if self.kind == "async":
            self._body.add_done_callback(lambda _: told())
        else:
            self.gone = told

    def stop(self, reason: str) -> None:
        """Give the attempt up without a report: signal the body, cancel or kill it, never wait for it."""
        if self.finished:
            return
        self.finished = True
        self.context.signal.fire(reason)
        if self._opening is not None and not self._opening.done():
            self._executor.forsake(self._opening, reason)
        elif self._body is not None:
            if self.kind == "async":
                self._executor.forsake(self._body, reason)
            elif self.kind == "thread":
                self.returned = self._executor.threads.abandon(self._body)
            else:
                self._body.kill()
        self._release()

    def finish(self, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        """Report the end, once; whatever comes later is discarded."""
        if self.finished:
            return
        self.finished = True
        if _asks_to_wait(error):
            # Known to the limit before the place is given to another step.
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
            except RuntimeError:  # the loop is closed, and the engine gone
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
        try:
            failed = self.finished or task.exception() is not None
        except asyncio.CancelledError:
            failed = True
        if failed:
            self._task_failed(task)
            return
        result = task.result()
        try:
            data = codec.encode(result)
        except Exception:
            self.finish(None, result.error if isinstance(result, _Exited) else self._refusal(result))
            return
        self.finished = True
        if self._deadline is not None or self._heartbeat is not None:
            self._release()
        else:
            self._executor.released(self)
        self.done(self, data, None)

    def _task_failed(self, task: asyncio.Task[Any]) -> None:
        if self.finished:
            if not task.cancelled():
                task.exception()
        elif task.cancelled():
            if task.cancelling():
                # Not by this engine. If all tasks are cancelled because the program ends, the engine stops soon, and
                # hands back the attempt; that is no failure.
                self._release()
                self._executor.loop.call_later(_ENDING, self._cancelled)
            else:
                self._cancelled()
        else:
            self.finish(None, task.exception())

    def _cancelled(self) -> None:
        self.finish(None, StepFailed("CancelledError", "the body was cancelled from within"))

    def _thread_ended(self, result: Any, error: BaseException | None, context: contextvars.Context) -> None:
        self.returned = True
        if self.finished:
            if self.gone is not None:
                self.gone()
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
            return  # no step waits for it, and none could have it
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


def kind_of(activity: Activity[..., Any]) -> Kind:
    """Return where the bodies of an activity run."""
    if activity.settings.isolate:
        return "process"
    return "async" if activity.is_async else "thread"


class _Exited:
    """A body called sys.exit(); a task would let that end the whole worker."""

    __slots__ = ("error",)

    def __init__(self, error: SystemExit) -> None:
        self.error = error


def _asks_to_wait(error: BaseException | ErrorData | None) -> bool:
    return issubclass(type(error), RetryAfter) or (type(error) is ErrorData and error.postpones)


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
        return await result if type(result) is CoroutineType or inspect.isawaitable(result) else result
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
