"""Clocks that a test moves, while their time passes as that of the machine does."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.stores.sqlite.store import SQLiteStore


class MovedClock(Clock):
    """The time of this machine, moved."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead
        self.back = 0
        """By how much it was set back altogether."""

    def now(self) -> int:
        return super().now() + self.ahead

    def jump(self, by: int) -> None:
        """Set it forward, or back."""
        self.ahead += by
        self.back += max(-by, 0)


class BootClock(MovedClock):
    """The time since boot of a machine, moved: all of its processes read the same."""

    same_for_all = True


class BootedStore(SQLiteStore):
    """A file on a machine whose time since boot is the test's."""

    since_boot: Clock

    @property
    def lease_clock(self) -> Clock:
        return self.since_boot
