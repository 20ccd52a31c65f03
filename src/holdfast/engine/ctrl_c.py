"""Ctrl-C while an engine stops: it shortens the stop, and takes effect when the stop is finished.

Python raises a KeyboardInterrupt wherever the main thread happens to be. If a second Ctrl-C raises it after the event
loop took a task from its queue and before it steps the task, the wake-up is lost: `asyncio.run` waits for ever.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupts_held(hurry: Callable[[], None]) -> Iterator[None]:
    """Let an interrupt call `hurry` and wait until the block is left; a second one is raised at once.

    A program that handles the signal in its own way is left alone, and so is a loop in another thread, which no
    interrupt reaches.
    """
    usual: Any = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not _is_usual(usual):
        yield
        return
    loop, came = asyncio.get_running_loop(), list[int]()

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt
        loop.call_soon_threadsafe(hurry)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if came:
            usual(signal.SIGINT, None)


def _is_usual(handler: Any) -> bool:
    """Tell whether a handler is Python's own, or that of asyncio.run."""
    inner = handler.func if isinstance(handler, functools.partial) else handler
    return inner is signal.default_int_handler or getattr(inner, "__name__", "") == "_on_sigint"
