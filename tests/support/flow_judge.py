"""Judges of flow control, who look at what bodies wrote down and at recorded begin times, and at nothing else."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

Line = tuple[str, str, str]
"""What (`in`, `out` or `gone`), where, who. A process that is `gone` took its bodies with it: `who` begins with it."""


def most_inside(log: Iterable[Line]) -> Counter[str]:
    """Return how many were at each place at the same time, at the most."""
    inside: dict[str, set[str]] = {}
    most: Counter[str] = Counter()
    gone: set[str] = set()
    for what, where, who in log:
        if what == "gone":
            gone.add(who)
            for there in inside.values():
                there.difference_update([one for one in there if one.startswith(f"{who}/")])
        if who.partition("/")[0] in gone:
            continue
        there = inside.setdefault(where, set())
        if what == "in":
            there.add(who)
            most[where] = max(most[where], len(there))
        else:
            there.discard(who)
    return most


def most_in_any(times: Sequence[int], per: int) -> int:
    """Return how many instants lie in one and the same time of `per`, at the most."""
    ordered = sorted(times)
    return max((place + 1 - bisect_left(ordered, at - per + 1) for place, at in enumerate(ordered)), default=0)
