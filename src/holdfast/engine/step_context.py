"""How a step's body reaches its own step: attempt, idempotency key, cancellation, heartbeat, log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar

from holdfast.errors import HoldfastError

STEP: ContextVar[StepContext] = ContextVar("holdfast_step")
_logger = logging.getLogger("holdfast.step")


class CancelSignal:
    """Tells a body that nobody waits for it any more: poll `aborted`, listen, or wait for it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self.reason = ""

    @property
    def aborted(self) -> bool:
        """Whether the step timed out or was cancelled."""
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Block a sync body until the signal fires or the time is over; returns `aborted`."""
        return self._event.wait(seconds)

    def listen(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once when the signal fires (at once if it has); returns a function that stops listening."""
        if self.aborted:
            callback()
            return lambda: None
        self._listeners.append(callback)
        return lambda: self._listeners.remove(callback) if callback in self._listeners else None

    def fire(self, reason: str) -> None:
        """Fire, once."""
        if self.aborted:
            return
        self.reason = reason
        self._event.set()
        for callback in self._listeners:
            try:
                callback()
            except Exception:
                _logger.exception("a listener of a cancel signal failed")


class StepContext:
    """One attempt of one step, as its body sees it."""

    def __init__(self, run_id: str, workflow: str, step: str, attempt: int, key: str) -> None:
        self.run_id = run_id
        self.workflow = workflow
        self.step = step
        self.attempt = attempt
        self.idempotency_key = key
        self.signal = CancelSignal()
        self.beat: Callable[[], None] = lambda: None

    def heartbeat(self) -> None:
        """Report progress; without it an activity with a heartbeat_timeout is given up."""
        self.beat()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that carries run, step and attempt."""
        extra = {"run_id": self.run_id, "step": self.step, "attempt": self.attempt}
        return logging.LoggerAdapter(_logger, extra)


def step_context() -> StepContext:
    """Return the context of the step whose body is running.

    Raises:
        HoldfastError: called outside a step.
    """
    context = STEP.get(None)
    if context is None:
        raise HoldfastError("step_context() works only inside a step's body")
    return context
