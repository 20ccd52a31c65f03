"""Replay in slices: a long history is replayed piece by piece, and comes to the same as at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.support.driving import answer, execution, live, summary, waits

from holdfast import Context, workflow
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x


@workflow
async def long(ctx: Context) -> int:
    async def beside() -> None:
        for _ in range(10):
            await ctx.sleep(timedelta(hours=1))

    task = asyncio.create_task(beside())
    total = 0
    for x in range(20):
        total += await ctx.step(work, x)
    await task
    ctx.log.info("summed up")
    await ctx.receive("never")
    return total


def every(facts: int) -> Callable[[], bool]:
    asked = iter(range(1, 1_000_000))
    return lambda: next(asked) % facts == 0


@pytest.mark.parametrize("facts", [1, 3, 7])
def test_a_history_replayed_in_slices_comes_to_the_same(facts: int):
    """S1-14 Open calls, timers and what the turn asks for: as replayed at once, from every cut."""
    recording = live(long, stop=60)
    sliced = 0
    for cut, rows in enumerate(recording.stored):
        whole, pieces = execution(long), execution(long)
        expected, turn, slices = whole.begin(rows), None, 0
        while turn is None:
            turn = pieces.begin_some(rows, (), None, every(facts))
            slices += 1
        assert summary(turn) == summary(expected), cut
        assert waits(pieces) == waits(whole) == recording.waiting[cut]
        sliced = max(sliced, slices)
        for run in (whole, pieces):
            for verb in list(run.journal.open.values())[:1]:
                if verb.word == "step":
                    run.apply(verb.location, answer(verb), run.loop.now)
        assert waits(pieces) == waits(whole)
        whole.drop()
        pieces.drop()
    assert sliced >= 30 // facts - 1


def test_code_that_does_not_fit_is_noticed_in_the_slice_that_comes_to_it():
    """S1-37 The run is blocked, and nothing more of it is replayed."""

    @workflow(name="long")
    async def other(ctx: Context) -> int:
        async def beside() -> None:
            for _ in range(10):
                await ctx.sleep(timedelta(hours=1))

        asyncio.create_task(beside())  # noqa: RUF006
        for x in range(5):
            await ctx.step(work, x)
        await ctx.step("new", work, 5)
        return 1

    rows = live(long, stop=60).rows
    run, turn, slices = execution(other), None, 0
    while turn is None:
        turn, slices = run.begin_some(rows, (), None, every(2)), slices + 1
    assert turn.outcome is not None
    assert turn.outcome.ending is Ending.BLOCKED
    assert 1 < slices < 15
    run.drop()


def test_a_run_that_is_dropped_between_slices_is_gone():
    rows = live(long, stop=60).rows
    run = execution(long)
    assert run.begin_some(rows, (), None, every(2)) is None
    run.drop()
    assert run.loop.dead
