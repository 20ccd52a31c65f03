"""Due times of runs in memory: exact, or kept together by a resolution."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.waiting import eventually

from holdfast import Context, workflow
from holdfast.contract.turns import CommitTurn
from holdfast.engine.settings import Settings
from holdfast.engine.worker.timers import Timers
from holdfast.errors import BadInput
from holdfast.testing import JumpingClock, TestEngine

MINUTE = timedelta(minutes=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("resolution", "due", "kept"), [(0, 7, 7), (100, 100, 100), (100, 101, 200), (100, 199, 200), (100, 200, 200)]
)
def test_a_due_time_is_kept_at_the_end_of_its_span(resolution, due, kept):
    """S2-21 S2-35"""
    assert Timers(JumpingClock(), lambda runs: None, resolution).kept(due) == kept


async def test_timers_of_one_span_fire_together_and_never_early():
    """S2-21 S2-35 timer_resolution: two sleeps of the same minute end at its end."""
    ended: list[float] = []

    @workflow
    async def nap(ctx: Context, seconds: int) -> float:
        await ctx.sleep(timedelta(seconds=seconds))
        return ctx.now().timestamp()

    for resolution, expected in ((timedelta(0), {10.0, 50.0, 70.0}), (MINUTE, {60.0, 120.0})):
        async with TestEngine(workflows=[nap], start=START, timer_resolution=resolution) as engine:
            begin = START.timestamp()
            runs = [await engine.start(nap, seconds) for seconds in (10, 50, 70)]
            ended = [await run.result() - begin for run in runs]
            assert {round(each, 3) for each in ended} == expected


def test_a_resolution_is_a_duration():
    with pytest.raises(BadInput, match="timer_resolution"):
        Settings(timer_resolution=timedelta(seconds=-1))


async def test_a_look_at_the_store_asks_for_nothing_of_runs_that_end():
    """Thousands may wake at once: in the store they are due until their ends are written."""

    @workflow
    async def nap(ctx: Context) -> None:
        await ctx.sleep(MINUTE)

    async with TestEngine(workflows=[nap]) as engine:
        runs = [await engine.start(nap) for _ in range(20)]
        await engine.settle()
        ends = engine.faults.hold(only=CommitTurn)
        waking = asyncio.create_task(engine.advance(MINUTE))
        await ends.happened()
        looks, inboxes = engine.faults.watch("due"), engine.faults.watch("inboxes")
        worker = engine._working()
        worker.look()
        await eventually(lambda: looks and not worker._background.busy("look"))
        assert inboxes == []
        ends.release()
        await waking
        assert [await run.status() for run in runs] == ["completed"] * 20
