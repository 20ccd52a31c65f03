"""Finding the place of an instant in a table whose rows were added as time went by: by probes, without an index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast.clock import Instant

SLACK = 600 * 1_000_000
"""How far apart the clocks of processes may be that add rows: what was added later is not older by more than this."""


class Mark(NamedTuple):
    """A row: its key, and the instant at which it was added."""

    key: int
    at: Instant


Around = Callable[[int], Awaitable[tuple[Mark | None, Mark | None]]]
"""Return the last row below a key, and the first at or above it."""


async def before_instant(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key such that no row below it was added at or after an instant; `ends` are the first and last key."""
    return await _boundary(around, ends, instant - SLACK)


async def after_instant(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key such that no row at or above it was added before an instant."""
    return await _boundary(around, ends, instant + SLACK)


async def _boundary(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key below which a row is older than an instant, and at which one is not.

    Each probe looks at the two rows around a key, so that a stretch of keys without rows costs one probe.
    """
    low, high = ends[0], ends[1] + 1
    while low < high:
        middle = (low + high) // 2
        below, above = await around(middle)
        if above is not None and above.at < instant:
            low = above.key + 1
        elif below is not None and below.at >= instant:
            high = below.key
        else:
            return middle
    return low
