"""Step bodies: started, timed, signalled, and their results encoded. Nothing here knows the store."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from holdfast import codec
from holdfast.clock import micros
from holdfast.codec import ErrorData
from holdfast.context.steps import StepVerb
from holdfast.definitions import Activity
from holdfast.engine.isolated import IsolatedBody, importable
from holdfast.engine.step_context import STEP, StepContext
from holdfast.engine.threads import ThreadPool
from holdfast.errors import HeartbeatTimeout, StepFailed, StepTimeout

_logger = logging.getLogger("holdfast.engine")
MAX_ABANDONED_THREADS = 32
SUSPECT_AFTER = 2

Done = Callable[["Attempt", bytes | None, "BaseException | ErrorData | None"], None]


class Attempt:
    """One attempt of one step, from its start to its one report."""

    __slots__ = (
        "_body",
        "_deadline",
        "_executor",
        "_heartbeat",
        "_last_beat",
        "context",
        "done",
        "finished",
        "isolated",
        "kind",
        "number",
        "owner",
        "verb",
    )

    def __init__(self, executor: Executor, verb: StepVerb, owner: Any, context: StepContext, done: Done) -> None:
        self._executor = executor
        self.verb = verb
        self.owner = owner
        self.number = verb.attempt
        self.context = context
        self.done = done
        self.finished = False
        self.isolated = False
        self.kind = "async"
        self._body: Any = None
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._last_beat = 0.0

    def start(self) -> None:
        """Run the body."""
        settings = self.verb.activity.settings
        loop = self._executor.loop
        if settings.timeout:
            self._deadline = loop.call_later(micros(settings.timeout) / 1e6, self._timed_out)
        if settings.heartbeat_timeout:
            self.context.beat = lambda: loop.call_soon_threadsafe(self._beat)
            self._beat()
            self._watch_heartbeat()
        try:
            self._start_body()
        except Exception as error:
            loop.call_soon(self.finish, None, error)

    def stop(self, reason: str) -> None:
        """Give the attempt up without a report: signal the body, cancel or kill it, never wait for it."""
        if self.finished:
            return
        self.finished = True
        self._release()
        self.context.signal.fire(reason)
        if self.kind == "async" and self._body is not None:
            self._body.cancel(reason)
        elif self.kind == "thread" and self._body is not None:
            self._executor.threads.abandon(self._body)
        elif self.kind == "process" and self._body is not None:
            self._body.kill()

    def finish(self, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        """Report the end, once; whatever comes later is discarded."""
        if self.finished:
            return
        self.finished = True
        self._release()
        self.done(self, result, error)

    def _start_body(self) -> None:
        verb, executor = self.verb, self._executor
        activity = executor.substitutes.get(verb.activity.function, verb.activity)
        args, kwargs = verb.arguments()
        if activity.settings.isolate or self.isolated:
            self.kind = "process"
            self._body = IsolatedBody(activity.function, args, kwargs, self.finish)
            return
        context = contextvars.copy_context()
        context.run(STEP.set, self.context)
        if activity.is_async:
            self._run_async(activity.function(*args, **kwargs), context)
            return
        if executor.threads.abandoned > MAX_ABANDONED_THREADS:
            raise StepFailed("WorkerUnhealthy", f"{executor.threads.abandoned} threads never came back from their steps")
        self.kind = "thread"
        self._body = executor.threads.submit(
            lambda: activity.function(*args, **kwargs),
            context,
            lambda result, error: executor.loop.call_soon_threadsafe(self._thread_ended, result, error, context),
        )

    def _run_async(self, coro: Coroutine[Any, Any, Any], context: contextvars.Context) -> None:
        self.kind = "async"
        self._body = self._executor.loop.create_task(_guarded(coro), context=context)
        self._body.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        if self.finished:
            if not task.cancelled():
                task.exception()
            return
        if task.cancelled():
            self.finish(None, StepFailed("CancelledError", "the body was cancelled from within"))
        elif (error := task.exception()) is not None:
            self.finish(None, error)
        else:
            self._encoded(task.result())

    def _thread_ended(self, result: Any, error: BaseException | None, context: contextvars.Context) -> None:
        if self.finished:
            return
        if error is not None:
            self.finish(None, StepFailed("SystemExit", str(error)) if isinstance(error, SystemExit) else error)
        elif inspect.isawaitable(result):
            self._run_async(_await(result), context)
        else:
            self._encoded(result)

    def _encoded(self, result: Any) -> None:
        try:
            data = codec.encode(result, f"the result of step {self.context.step!r}")
        except Exception as error:
            self.finish(None, error)
        else:
            self.finish(data, None)

    def _timed_out(self) -> None:
        self._give_up(StepTimeout(f"step {self.context.step!r} did not finish within {self.verb.activity.settings.timeout}"))

    def _give_up(self, error: StepTimeout) -> None:
        if not self.finished:
            self.stop("timeout")
            self.done(self, None, error)

    def _beat(self) -> None:
        self._last_beat = self._executor.loop.time()

    def _watch_heartbeat(self) -> None:
        allowed = micros(self.verb.activity.settings.heartbeat_timeout) / 1e6  # type: ignore[arg-type]  # set when watching
        loop = self._executor.loop
        if self.finished:
            return
        if loop.time() >= self._last_beat + allowed:
            self._give_up(HeartbeatTimeout(f"step {self.context.step!r} sent no heartbeat for {allowed:g} s"))
            return
        self._heartbeat = loop.call_at(self._last_beat + allowed, self._watch_heartbeat)

    def _release(self) -> None:
        for timer in (self._deadline, self._heartbeat):
            if timer is not None:
                timer.cancel()
        self._executor.released(self)


class Executor:
    """Runs attempts, as many at once as allowed; suspects one at a time.

    A suspect is a step that was lost twice with its process. Where its function can be imported it runs in a child
    process, so that its crash is seen for what it is; otherwise it runs here, alone among suspects.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, max_steps: int, max_threads: int) -> None:
        self.loop = loop
        self.threads = ThreadPool(max_threads)
        self.substitutes: dict[Any, Activity[..., Any]] = {}
        """Stand-ins for functions, for tests."""
        self._max = max_steps
        self._running: set[Attempt] = set()
        self._waiting: deque[Attempt] = deque()
        self._suspect: Attempt | None = None
        self._suspects: deque[Attempt] = deque()

    @property
    def active(self) -> int:
        """How many attempts are running or waiting for a place."""
        return len(self._running) + len(self._waiting) + len(self._suspects)

    def running(self) -> list[Attempt]:
        """Return the attempts under way."""
        return [*self._running, *self._waiting, *self._suspects]

    def run(self, verb: StepVerb, owner: Any, context: StepContext, done: Done) -> Attempt:
        """Start an attempt as soon as there is room for it."""
        attempt = Attempt(self, verb, owner, context, done)
        if verb.crashes >= SUSPECT_AFTER:
            attempt.isolated = not verb.in_process and importable(verb.activity.function) is not None
            self._suspects.append(attempt)
        else:
            self._waiting.append(attempt)
        self._fill()
        return attempt

    def released(self, attempt: Attempt) -> None:
        """Take back an attempt's place."""
        if attempt in self._running:
            self._running.discard(attempt)
            if self._suspect is attempt:
                self._suspect = None
            self._fill()
            return
        for queue in (self._waiting, self._suspects):
            if attempt in queue:
                queue.remove(attempt)

    def _fill(self) -> None:
        while self._waiting and len(self._running) < self._max:
            self._begin(self._waiting.popleft())
        if self._suspects and self._suspect is None and len(self._running) < self._max:
            self._suspect = self._suspects.popleft()
            self._begin(self._suspect)

    def _begin(self, attempt: Attempt) -> None:
        self._running.add(attempt)
        attempt.start()

    def close(self) -> None:
        """Give up everything."""
        self._waiting.clear()
        self._suspects.clear()
        for attempt in list(self._running):
            attempt.stop("the worker stops")
        self.threads.close()


async def _guarded(coro: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coro
    except SystemExit as exit_:
        raise StepFailed("SystemExit", str(exit_)) from None


async def _await(awaitable: Any) -> Any:
    return await awaitable
