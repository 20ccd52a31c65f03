"""What the tests of acting on runs share: bodies that wait, and bodies that fail."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.waiting import eventually

from holdfast import Retry, activity
from holdfast.testing import Faults


async def dead_or_done(faults: Faults, task: asyncio.Future[Any]) -> None:
    """Wait until a store is dead, or what it was used for is done."""
    await eventually(lambda: faults.dead or task.done())


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
