"""A clock that stands still until it is moved."""

from __future__ import annotations

from datetime import datetime, timedelta

from holdfast.clock import Clock, Instant, from_datetime, micros


class JumpingClock(Clock):
    """Time for tests: starts where it is told and only moves when asked."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = from_datetime(start) if start is not None else super().now()

    def now(self) -> Instant:
        return self._now

    def jump_to(self, instant: Instant) -> None:
        """Move to an instant; never back."""
        self._now = max(self._now, instant)

    def advance(self, duration: timedelta) -> None:
        """Move forward."""
        self._now += micros(duration)
