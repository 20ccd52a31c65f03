"""The one place that reads the time.

Inside the engine an instant is an `Instant`: whole microseconds since 1970-01-01 UTC. Users see aware datetimes.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta

from holdfast.errors import InvalidDuration

Instant = int

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_YEAR_2025 = (datetime(2025, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND
FAR_FUTURE: Instant = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND


class Clock:
    """Wall-clock time of this machine."""

    same_for_all: bool = False
    """Whether all workers of a database read this very clock, and it is never set back but by a boot."""

    def now(self) -> Instant:
        """Return the present instant."""
        return time.time_ns() // 1000


def to_datetime(instant: Instant) -> datetime:
    """Return the aware UTC datetime of an instant."""
    return _EPOCH + timedelta(microseconds=instant)


def from_datetime(moment: datetime, field: str = "instant") -> Instant:
    """Return the instant of an aware datetime.

    Raises:
        InvalidDuration: the datetime has no time zone.
    """
    if not isinstance(moment, datetime):
        raise InvalidDuration(f"{field} must be an aware datetime, not {moment!r}")
    if moment.tzinfo is None:
        raise InvalidDuration(f"{field}: {moment!r} has no time zone; use datetime.now(UTC) or .replace(tzinfo=...)")
    return (moment - _EPOCH) // _MICROSECOND


def micros(duration: timedelta, field: str = "duration") -> int:
    """Return a duration in whole microseconds, refusing what cannot be waited for.

    Raises:
        InvalidDuration: not a timedelta, negative, or beyond the year 9999.
    """
    if not isinstance(duration, timedelta):
        raise InvalidDuration(
            f"{field} must be a timedelta, not {duration!r}; write timedelta(seconds={duration!r})"
            if isinstance(duration, int | float)
            else f"{field} must be a timedelta, not {type(duration).__name__}"
        )
    value = duration // _MICROSECOND
    if value < 0:
        raise InvalidDuration(f"{field} is negative: {duration!r}")
    if value > FAR_FUTURE:
        raise InvalidDuration(f"{field} is too long: {duration!r}")
    return value


def new_id() -> str:
    """Return a new random id that sorts by time of creation (the layout of UUID version 7)."""
    stamp = time.time_ns() // 1_000_000
    noise = _random_bits(74)
    value = stamp << 80 | 0x7 << 76 | (noise >> 62) << 64 | 0x2 << 62 | noise & ((1 << 62) - 1)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _random_bits(count: int) -> int:
    """Return a random number of so many bits; as `secrets.randbits`, whose import takes every command 5 ms."""
    return int.from_bytes(os.urandom((count + 7) // 8)) >> (-count % 8)


def old_id(age: timedelta) -> str:
    """Return what sorts after every id that was made so long ago or earlier."""
    stamp = time.time_ns() // 1_000_000 - age // timedelta(milliseconds=1)
    text = f"{stamp:012x}"
    return f"{text[:8]}-{text[8:]}-"


def new_number() -> int:
    """Return a number of 63 bits that rises with time and that no other process makes, but for rare accidents."""
    return (time.time_ns() // 1000 - _YEAR_2025) << 12 | _random_bits(12)


def new_seed() -> int:
    """Return a random number for a run's own randomness."""
    return _random_bits(48)
