"""Workflows that wait for events, and what the tests about events ask of an engine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, workflow
from holdfast.replay.entry import MessageReceived

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])
"""For tests with several engines on one file."""


@workflow
async def take(ctx: Context, name: str, count: int = 1) -> list[Any]:
    """Take some messages or events."""
    return [await ctx.receive(name) for _ in range(count)]


@workflow
async def late(ctx: Context, name: str) -> Any:
    """Begin to wait an hour after the start."""
    await ctx.sleep(HOUR)
    return await ctx.receive(name, timeout=SECOND, default="nothing")


async def waiting(engine: Any, workflow: Any, *args: Any, ids: str) -> list[Any]:
    """Start runs that begin to wait one after another, a second apart."""
    runs = []
    for run_id in ids:
        runs.append(await engine.start(workflow, *args, id=run_id))
        await engine.advance(SECOND)
    return runs


async def queued(engine: Any) -> dict[str, int]:
    """Return how many events wait, by name."""
    return {name: count for name, count in (await engine.store.counts()).events.items() if count}


async def received(run: Any) -> list[MessageReceived]:
    """Return what a run took, in order."""
    return [each.entry for each in await run.history() if isinstance(each.entry, MessageReceived)]
