"""Finding the position of an instant in a table whose rows were added in order of time: by probes, without an index."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from holdfast.clock import Instant

SLACK = 600 * 1_000_000
"""How far apart the clocks of processes may be that add rows: what was added later is not older by more than this."""


class Mark(NamedTuple):
    """A row: its key, and the instant at which it was added."""

    key: int
    at: Instant


Around = Callable[[Sequence[int]], Awaitable[list[tuple[int, Mark | None, Mark | None]]]]
"""Return some keys in their order, each with the last row below it and the first at or above it."""
_AT_ONCE = 15
"""How many keys are probed in one look: a server is asked four or five times then, and not twenty."""


async def before_instant(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key such that no row below it was added at or after an instant; `ends` are the first and last key."""
    return await _boundary(around, ends, instant - SLACK)


async def after_instant(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key such that no row at or above it was added before an instant."""
    return await _boundary(around, ends, instant + SLACK)


async def _boundary(around: Around, ends: tuple[int, int], instant: Instant) -> int:
    """Return a key below which a row is older than an instant, and at which one is not.

    Each probe looks at the two rows around a key, so that a stretch of keys without rows costs one probe. Where clocks
    differ probes may say otherwise than each other: what the last of them says that a row is older holds.
    """
    low, high = ends[0], ends[1] + 1
    while low < high:
        for key, below, above in await around(_places(low, high)):
            if above is not None and above.at < instant:
                low = max(low, above.key + 1)
            elif below is not None and below.at >= instant:
                high = min(high, below.key)
            elif low <= key <= high:
                return key
    return low


def _places(low: int, high: int) -> list[int]:
    """Return keys that part what lies between two keys into equal parts."""
    many = min(_AT_ONCE, high - low)
    return sorted({low + (high - low) * n // (many + 1) for n in range(1, many + 1)})
