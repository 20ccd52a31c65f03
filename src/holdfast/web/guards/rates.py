"""How often a principal may ask: as many at once as a page needs, and so many a second after that."""

from __future__ import annotations

from math import ceil
from time import monotonic

import msgspec

from holdfast.errors import BadInput
from holdfast.web.guards.requests import SAFE
from holdfast.web.problems import Problem

_CLOSE = 1e-6
"""Sums of fractions of a second are not exact."""
_MOST_KNOWN = 10_000
"""Of how many principals it is kept how often they asked; those who did not ask for the longest time are forgotten."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """How many requests a second each principal may make: those that look, and those that act.

    As many again as `burst` seconds of it may come at once, after a while without any.
    """

    reads: float = 50
    writes: float = 10
    burst: float = 2

    def __post_init__(self) -> None:
        if not (self.reads > 0 and self.writes > 0 and self.burst > 0):
            raise BadInput("rates are numbers above 0; None for as many as come")


class Pace:
    """Counts the requests of each principal.

    Each has a jar that fills by its rate, up to its burst; a request takes one out. What is left is kept as the time at
    which the jar is full again, so that a jar that was not touched for a while needs nothing.
    """

    def __init__(self, rates: Rates | None) -> None:
        self._rates = rates
        self._full_at: dict[tuple[str, bool], float] = {}

    def take(self, who: str, method: str) -> None:
        """Count a request of a principal.

        Raises:
            Problem: 429, it is one too many; it says when there is room again.
        """
        if self._rates is None:
            return
        now, acts = monotonic(), method not in SAFE
        rate = self._rates.writes if acts else self._rates.reads
        full_at = max(self._full_at.pop((who, acts), 0.0), now)
        over = full_at + 1 / rate - now - self._rates.burst
        self._full_at[who, acts] = full_at if over > _CLOSE else full_at + 1 / rate
        if len(self._full_at) > _MOST_KNOWN:
            del self._full_at[next(iter(self._full_at))]
        if over > _CLOSE:
            said = f"{who!r} may {'act' if acts else 'ask'} {rate:g} times a second here; wait {ceil(over)} s"
            raise Problem(429, "too-many", said, headers={"Retry-After": str(ceil(over))})
