"""A time limit that a test cannot swallow.

pytest-timeout raises its failure inside whatever runs when the time is up. In an asyncio test that is some task or
callback, whose exceptions asyncio keeps or only logs: the test hangs on. A SystemExit it lets through.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from types import FrameType

import pytest

AGAIN = 60.0
"""After how many more seconds, at most, a test or its tear-down that went on regardless is told again."""
LAST = 3
"""How often it is told; then the process ends."""


class TookTooLong(pytest.fail.Exception, SystemExit):  # type: ignore[name-defined,misc]  # pytest hides its class
    """A failure that leaves an event loop at once."""


class TimeLimit:
    """The limit of one test."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._told = 0

    def start(self) -> None:
        """Count from now."""
        signal.signal(signal.SIGALRM, self._tell)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, min(AGAIN, 5 * self._seconds))

    def cancel(self) -> None:
        """Count no more."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self._told += 1
        if self._told >= LAST:
            faulthandler.dump_traceback(sys.__stderr__ or 2)
            os._exit(1)
        raise TookTooLong(f"took longer than {self._seconds:.0f} seconds")
