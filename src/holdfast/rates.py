"""Rates: the time from which the next attempt may begin, as a function of those that began before."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant

MOST_RATE = 1000
"""How many begins a rate without burst may count: their instants are kept."""


SKEW = 60_000_000
"""By how many microseconds a commit may be late; a begin further ahead than that was in another boot."""


def turn_of(begins: Sequence[Instant], now: Instant, rate: int, per: int, burst: int | None, ahead: int = 0) -> Instant:
    """Return from when an attempt may begin, now at the earliest, if `ahead` others begin before it.

    Without burst `begins` are the last instants at which attempts began, at most `rate` of them; with burst the
    instant at which all tokens are there again, and that of the last begin.
    """
    if burst is not None:
        interval = -(-per // rate)
        full = max(_full(begins, now, interval * burst), now) + interval * ahead
        return max(now, full - interval * (burst - 1))
    place = len(begins) + ahead - rate
    if place < 0:
        return now
    if place >= len(begins):
        return now + per
    return max(now, _seen(begins[place], now) + per)


def after_begin(begins: Sequence[Instant], now: Instant, rate: int, per: int, burst: int | None) -> list[Instant]:
    """Return what to keep once an attempt began now."""
    if burst is not None:
        interval = -(-per // rate)
        return [max(_full(begins, now, interval * burst), now) + interval, now]
    kept = [_seen(begin, now) for begin in begins]
    return [*kept, max([now, *kept[-1:]])][-rate:]


def idle_from(begins: Sequence[Instant], per: int, burst: int | None) -> Instant:
    """Return from when nothing of what is kept matters any more."""
    if not begins:
        return 0
    return begins[0] if burst is not None else begins[-1] + per


def _seen(begin: Instant, now: Instant) -> Instant:
    """Return when an attempt began: one that lies ahead began in another boot, or in a commit that came first."""
    return begin if begin <= now + SKEW else now


def _full(begins: Sequence[Instant], now: Instant, most: int) -> Instant:
    """Return when all tokens are there again: at most so long after the last begin, whatever the numbers were then."""
    return min(begins[0], begins[-1] + most) if begins else now
