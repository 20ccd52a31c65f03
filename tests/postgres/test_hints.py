"""Hints: how soon a process hears of what another has committed."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.postgres_cases import Open
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, workflow
from holdfast.stores.postgres import hints
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import message, started


async def test_the_first_commit_is_told_at_once(
    store: PostgresStore, another: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7 Only those that follow are collected; a place that goes from worker to worker is waited for."""
    heard = asyncio.Event()
    other = await another()
    run = await started(store)
    await eventually(lambda: not store.changed())
    monkeypatch.setattr(hints, "HINT_EVERY", 3600.0)
    store.when_changed = heard.set
    await eventually(lambda: other._hints.pending is None)
    await other.apply([message(run.id)])
    await asyncio.wait_for(heard.wait(), LONG)
    assert store.changed()


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_worker_looks_when_it_hears_and_not_only_when_it_ticks(database: str) -> None:
    """G7 S3-12"""
    async with Engine(database, workflows=[waits]) as engine, Engine(database, run_workflows=False) as client:
        run = await engine.start(waits)
        working = engine._working()
        await eventually(lambda: working.idle)
        assert working._tick_handle is not None
        working._tick_handle.cancel()
        await client.get(run.id).send("word", "go")
        assert await asyncio.wait_for(run.result(), LONG) == "go"
