"""Instants in tests of behaviour: exact where the clock is the test's own, about right where a server has the time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


def a_moment(engine: Any) -> timedelta:
    """Return the shortest time that is told from none: where time goes on by itself, more than a test takes."""
    return timedelta(microseconds=1) if engine.offers("clock") else timedelta(minutes=10)


def same(engine: Any, one: Any, other: Any) -> bool:
    """Whether two instants or durations are the same, as far as that can be told; one of the engine is a number."""
    if engine.offers("clock"):
        return bool(one == other)
    apart = one - other
    return abs(apart if isinstance(apart, timedelta) else timedelta(microseconds=apart)) < a_moment(engine)
