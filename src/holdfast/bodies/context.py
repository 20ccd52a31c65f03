"""How a step's body reaches its own step: attempt, idempotency key, cancellation, heartbeat, log."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from holdfast.clock import Clock, to_datetime
from holdfast.errors import HoldfastError
from holdfast.payloads import codec

if TYPE_CHECKING:
    from holdfast.context.steps import StepVerb

_NOTHING_SAID: Mapping[str, Any] = MappingProxyType({})
STEP: ContextVar[StepContext] = ContextVar("holdfast_step")
_logger = logging.getLogger("holdfast.step")
_MAKING_SIGNALS = threading.Lock()
"""Taken by the first that asks for a signal: a body in its thread, or the worker that gives it up."""
REPORT_EVERY = 1.0
"""How many seconds lie at least between two reports of progress that are recorded."""


class CancelSignal:
    """Tells a body that its run does not wait for it any more: poll `aborted`, listen, or wait for it.

    An async body is cancelled besides, and a body in a child process is simply killed.
    """

    __slots__ = ("_listeners", "_lock", "aborted", "reason")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self.aborted: bool = False
        """Whether the step timed out or was cancelled."""
        self.reason: str = ""
        """Why it fired, empty until then."""

    def wait(self, seconds: float | None = None) -> bool:
        """Block a sync body until the signal fires or the time is over; returns `aborted`."""
        event = threading.Event()
        forget = self.listen(event.set)
        event.wait(seconds)
        forget()
        return self.aborted

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the signal fires (at once if it has); returns a function that stops listening.

        The callback runs on the worker's event loop, so it must be quick.
        """
        with self._lock:
            fired = self.aborted
            if not fired:
                self._listeners.append(callback)
        if fired:
            callback()
        return lambda: self._forget(callback)

    def fire(self, reason: str) -> None:
        """Fire, once."""
        with self._lock:
            if self.aborted:
                return
            self.reason = reason
            self.aborted = True
            listeners, self._listeners = self._listeners, []
        for callback in listeners:
            try:
                callback()
            except Exception:
                _logger.exception("a listener of a cancel signal failed")

    def _forget(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if callback in self._listeners:
                self._listeners.remove(callback)


class StepContext:
    """One attempt of one step, as its body sees it.

    Made for every attempt. Most bodies never look at it, so what is rare is created when a body asks.
    """

    app: Mapping[str, Any] = _NOTHING_SAID
    """What `Engine(context=...)` said when this attempt, or its condition, was about to begin."""
    transaction: Any = None
    """The connection of an activity with transaction=True, while its body runs."""
    _signal: CancelSignal | None = None
    _reported = -REPORT_EVERY

    def __init__(
        self,
        run_id: str,
        workflow: str,
        attempt: int,
        verb: StepVerb | None = None,
        clock: Clock | None = None,
        report: Report | None = None,
    ) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.attempt = attempt
        self.verb = verb
        self.clock = clock
        self.beat: Callable[[], None] = _nothing
        self.report: Report = report or _no_report

    @property
    def signal(self) -> CancelSignal:
        """Tells the body that its run does not wait for it any more."""
        return self._signal or self._make_signal()

    def _make_signal(self) -> CancelSignal:
        with _MAKING_SIGNALS:
            made = self._signal = self._signal or CancelSignal()
        return made

    @property
    def connection(self) -> Any:
        """The database connection in whose transaction a step of an activity with `transaction=True` is recorded.

        Write your own tables with it; holdfast commits when the body returns, and rolls back when it raises.
        """
        if self.transaction is not None:
            return self.transaction
        if "connection" in self.app:
            return self.app["connection"]
        raise HoldfastError("only the body of an activity with transaction=True has a connection, while it runs")

    @property
    def input(self) -> Any:
        """What the step was called with: its argument, or a tuple of them. Not known in a child process."""
        verb = self.verb
        if verb is None:
            return None
        return verb.args[0] if len(verb.args) == 1 and not verb.kwargs else verb.args

    @property
    def pending_since(self) -> datetime | None:
        """When the step was called. Not known in a child process."""
        return to_datetime(self.verb.called_at) if self.verb is not None else None

    @property
    def now(self) -> datetime | None:
        """The engine's time. Not known in a child process."""
        return to_datetime(self.clock.now()) if self.clock is not None else None

    def __getattr__(self, name: str) -> Any:
        # Only asked for what is not there: the keys of the app's own context.
        app = self.__dict__.get("app", _NOTHING_SAID)
        if name in app:
            return app[name]
        known = f"; it says {', '.join(sorted(app))}" if app else ""
        raise AttributeError(f"a step's context has no {name!r}, nor does Engine(context=...) provide it{known}")

    @functools.cached_property
    def step(self) -> str:
        """The path of the step in its run."""
        return self.verb.journal.names.path(self.verb.location) if self.verb is not None else ""

    @functools.cached_property
    def idempotency_key(self) -> str:
        """What to hand to services that can tell a repeated call: run and step, unless the activity makes its own.

        It is the same for every attempt, and when the step is made again after a retry or rerun. Another one is given
        to a step that was undone by its compensation and is done again (`~2`, `~3` at the end), to what then undoes it,
        and in a later life of the run (continue-as-new), where the same step is another one.
        """
        return self.verb.idempotency_key() if self.verb is not None else f"{self.run_id}:{self.step}"

    def heartbeat(self, progress: object = None) -> Heartbeat:
        """Report progress; without it an activity with a heartbeat_timeout is given up.

        When it last did, and what it said (anything JSON carries), is recorded at most once a second and shown by
        `run.steps()`. Awaited, it is recorded in any case, and durable when that returns.
        """
        self.beat()
        made = Heartbeat(self, progress)
        now = time.monotonic()
        if now - self._reported >= REPORT_EVERY:
            self._reported = now
            made.report()
        return made

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries run, step and attempt."""
        extra = {"run_id": self.run_id, "step": self.step, "attempt": self.attempt}
        return logging.LoggerAdapter(_logger, extra)


class Heartbeat:
    """Progress that a body reported; a body on the event loop may await that it is durable."""

    __slots__ = ("_asked", "_context", "_durable", "_error", "_progress", "_waiting")

    def __init__(self, context: StepContext, progress: object) -> None:
        self._context = context
        self._progress = progress
        self._asked = self._durable = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def report(self) -> None:
        """Ask for it to be recorded."""
        self._asked = True
        context = self._context
        said = codec.encode(self._progress, f"the progress of step {context.step!r}").decode()
        context.report(context, said, self._told)

    def _told(self, outcome: object) -> None:
        self._durable = True
        self._error = outcome if isinstance(outcome, Exception) else None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def __await__(self) -> Generator[Any, None, None]:
        if not self._asked:
            self.report()
        if not self._durable:
            self._waiting = asyncio.get_running_loop().create_future()
            yield from self._waiting
        if self._error is not None:
            raise self._error


Report = Callable[["StepContext", str, Callable[[object], None]], None]
"""Records progress, and tells what came of that, on the event loop."""


def _no_report(context: StepContext, progress: str, told: Callable[[object], None]) -> None:
    """In a child process, progress only keeps the step alive."""
    told(None)


def _nothing() -> None:
    """Heartbeats matter only to activities with a heartbeat_timeout."""


def step_context() -> StepContext:
    """Return the context of the step whose body is running.

    Raises:
        HoldfastError: called outside a step.
    """
    context = STEP.get(None)
    if context is None:
        raise HoldfastError("step_context() works only inside a step's body")
    return context
