"""A driver that keeps everything in memory: for tests, and for hosts that write the bytes elsewhere themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal

from holdfast.errors import NotAsExpected
from holdfast.kv.driver import Driver, Expected, Pair, check_sizes

_FEW = 50
"""So many keys are put into their places one by one; of more, all are sorted again."""


class SortedKeys:
    """A mapping of bytes whose keys can be listed in order; a batch changes it all at once.

    Keys are put in order when they are listed, not when they come: a large key space is written often and listed once.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self._order: list[bytes] | None = []
        """The keys in order, as of when they were last listed; None if too many have come and gone since."""
        self._moved: set[bytes] = set()
        """Keys that came or went since."""

    def list(self, prefix: bytes) -> list[Pair]:
        """Return what begins with a prefix, in order."""
        order, found = self._ordered(), []
        if not prefix:
            return [(key, self.values[key]) for key in order]
        for place in range(bisect_left(order, prefix), len(order)):
            key = order[place]
            if not key.startswith(prefix):
                break
            found.append((key, self.values[key]))
        return found

    def _ordered(self) -> Sequence[bytes]:
        if self._order is None:
            self._order = sorted(self.values)
        for key in self._moved:
            place = bisect_left(self._order, key)
            there = place < len(self._order) and self._order[place] == key
            if key in self.values and not there:
                self._order.insert(place, key)
            elif key not in self.values and there:
                del self._order[place]
        self._moved.clear()
        return self._order

    def check(self, expect: Expected | None) -> None:
        """Raise NotAsExpected unless each of these keys has that value."""
        for key, value in (expect or {}).items():
            if self.values.get(key) != value:
                raise NotAsExpected(f"key {key!r} has another value than the batch expects: another driver wrote it")

    def apply(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        """Put and delete."""
        gone = [key for key in deletes if self.values.pop(key, None) is not None]
        if self._order is not None:
            self._moved.update(gone, puts.keys() - self.values.keys())
            if len(self._moved) > _FEW:
                self._order = None
                self._moved.clear()
        self.values.update(puts)


class MemoryDriver(Driver):
    """One key space in memory; it is gone with the process."""

    compares = True
    durability: Literal["disk", "process"] = "process"

    def __init__(self) -> None:
        self._keys = SortedKeys()
        self._alarm: datetime | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._keys.values.get(key)

    def list(self, prefix: bytes) -> Sequence[Pair]:
        return self._keys.list(prefix)

    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        check_sizes(self, puts, deletes)
        self._keys.check(expect)
        self._keys.apply(puts, deletes)

    def set_alarm(self, at: datetime) -> None:
        self._alarm = at

    def clear_alarm(self) -> None:
        self._alarm = None

    def get_alarm(self) -> datetime | None:
        return self._alarm
