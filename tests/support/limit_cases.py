"""A service that is scarce, and a workflow that uses it, for the tests of limits."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from holdfast import Context, activity, workflow
from holdfast.clock import Instant

START = datetime(2026, 1, 1, tzinfo=UTC)
S = 1_000_000


class Service:
    """A resource that remembers who used it, when, and how many at once."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.inside = 0
        self.most = 0
        self.calls: list[tuple[float, Any]] = []
        self.go = asyncio.Event()
        self.answers: dict[int, Exception] = {}

    @property
    def times(self) -> list[float]:
        return [at for at, _ in self.calls]

    def clock(self) -> float:
        return (self.engine.clock.now() - from_start()) / S

    async def call(self, name: Any = None) -> Any:
        """Answer at once, or as it was told for the n-th call."""
        self.calls.append((self.clock(), name))
        if (answer := self.answers.get(len(self.calls))) is not None:
            raise answer
        return name

    async def stay(self, name: Any = None) -> Any:
        """Stay until everybody is let go."""
        self.calls.append((self.clock(), name))
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.go.wait()
        finally:
            self.inside -= 1
        return name


def from_start() -> Instant:
    return int(START.timestamp()) * S


def calling(body: Any, **options: Any) -> Any:
    options.setdefault("limit", "service")
    called = activity(name="call", **options)(body)

    @workflow
    async def caller(ctx: Context, name: int = 0) -> Any:
        return await ctx.step(called, name)

    return caller
