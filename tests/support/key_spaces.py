"""Key spaces that fail when they are told to, and the workflow that tests run on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.errors import OutcomeUnknown, StoreError
from holdfast.kv import MemoryDriver
from holdfast.kv.driver import Expected


class Killed(BaseException):
    """What stands for the death of the process."""


class OddDriver(MemoryDriver):
    """A key space in memory whose batches fail, whose answers are lost, or whose process is killed, as it is told.

    `then` has, by the number of a batch from now on, what happens: `fail`, `lose` before or `lost` after it is written,
    `kill` before or `killed` after.
    """

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.happened: list[str] = []
        self.then: dict[int, str] = {}

    def do(self, what: str, after: int = 0) -> None:
        """Let something happen to the batch that comes after so many others."""
        self.then[self.batches + after] = what

    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        what = self.then.pop(self.batches, "")
        self.batches += 1
        if what:
            self.happened.append(what)
        if what == "fail":
            raise StoreError("no batch today")
        if what == "lose":
            raise OutcomeUnknown("the answer was lost")
        if what == "kill":
            raise Killed
        super().batch(puts, deletes, expect)
        if what == "lost":
            raise OutcomeUnknown("the answer was lost")
        if what == "killed":
            raise Killed

    def stored(self) -> dict[bytes, bytes]:
        """Return everything that is stored."""
        return dict(self.list(b""))
