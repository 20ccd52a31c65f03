"""What the tests of acting on runs share: an engine that dies in the middle of a commit, and bodies that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.support.waiting import eventually

from holdfast import Retry, activity
from holdfast.contract.operations import Operation, Outcome
from holdfast.errors import StoreError
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import TestEngine


class MortalStore(SQLiteStore):
    """A real store of a process that dies: nothing it does afterwards reaches the database.

    It dies when told to, or before or after its n-th commit; after a commit, nobody hears of it.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.died = asyncio.Event()
        self.commits = 0
        self.dies_at = -1
        self.moment = "before"

    @property
    def dead(self) -> bool:
        """Whether nothing is written any more."""
        return self.died.is_set()

    async def died_during(self, task: asyncio.Task[Any]) -> None:
        """Wait until it is dead, or the task is done."""
        await eventually(lambda: self.dead or task.done())

    def _breathe(self) -> None:
        if self.dead:
            raise StoreError("this process is dead")

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        self._breathe()
        self.commits += 1
        if self.commits == self.dies_at and self.moment == "before":
            self.died.set()
        self._breathe()
        outcomes = await super().apply(operations)
        if self.commits == self.dies_at:
            self.died.set()
        self._breathe()
        return outcomes

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None  # every commit takes the way above

    async def claim(self, *args: Any, **kwargs: Any) -> Any:
        self._breathe()
        return await super().claim(*args, **kwargs)

    async def leave(self, worker: str) -> None:
        self._breathe()
        await super().leave(worker)


async def crash(engine: TestEngine) -> None:
    """Let an engine on a MortalStore die; what it had in memory is gone, its lock is free."""
    assert isinstance(engine.store, MortalStore)
    engine.store.died.set()
    await engine.stop()


class Gate:
    """A step body that says that it began and ends when it may."""

    __name__ = "gate"

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._may_end: dict[str, asyncio.Event] = {}

    async def __call__(self, name: str) -> str:
        self.begun.append(name)
        await self._event(name).wait()
        return name

    def open(self, *names: str) -> None:
        """Let bodies end."""
        for name in names:
            self._event(name).set()

    async def entered(self, name: str, times: int = 1) -> None:
        """Wait until a body has begun so often."""
        await eventually(lambda: self.begun.count(name) >= times)

    def _event(self, name: str) -> asyncio.Event:
        return self._may_end.setdefault(name, asyncio.Event())


class Flaky:
    """A step body that fails while it is told to, and says what it was called with."""

    __name__ = "flaky"

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.ran: list[str] = []
        self.step = activity(retry=Retry.never)(self.body)

    async def body(self, name: str) -> str:
        self.ran.append(name)
        if name in self.failing:
            raise ValueError(f"{name} is out of order")
        return name


async def moments(count: int = 10) -> None:
    """Let other tasks run, where there is nothing to wait for: something must not happen."""
    for _ in range(count):
        await asyncio.sleep(0.001)
