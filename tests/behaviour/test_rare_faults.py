"""Faults that come once in a long while: a start of unknown outcome, a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Status, workflow
from holdfast.contract.operations import Operation, Outcome
from holdfast.errors import StoreError
from holdfast.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


class UnluckyStore(SQLiteStore):
    """A real store that once fails after the commit."""

    failing = False

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().apply(operations)
        if self.failing:
            self.failing = False
            raise StoreError("the outcome is unknown")
        return outcomes

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None


async def test_a_start_of_unknown_outcome_that_parked_at_once_goes_on(make_engine, tmp_path, monkeypatch):
    """G1 G2 G14 The second start is acknowledged as the run that the first one left, so that run must end."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.04)

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(timedelta(hours=1))
        return "done"

    store = UnluckyStore(str(tmp_path / "unlucky.db"))
    engine = await make_engine(work, store=store)
    store.failing = True
    with pytest.raises(StoreError):
        await engine.start(work, id="r")
    run = await engine.start(work, id="r")
    assert await asyncio.wait_for(run.result(), LONG) == "done"


async def test_a_timer_of_any_run_passed_by_a_jump_of_the_clock_fires_within_a_second(make_engine):
    """G9 The machine slept, or its clock was set: nobody tells the engine, which waits on another clock."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    engine.jumping.advance(timedelta(hours=2))
    async with asyncio.timeout(LONG):
        while await run.status() is not Status.COMPLETED:  # noqa: ASYNC110  # result() would tell the engine
            await asyncio.sleep(0.01)
