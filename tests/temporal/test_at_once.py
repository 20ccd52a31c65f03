"""What comes in the moment in which a turn is made: looks at the run, messages, a cancel."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, RunCancelled, workflow
from holdfast.errors import HoldfastError

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share
HOUR = timedelta(hours=1)
MANY = 30


async def body(number: int) -> int:
    return number


@workflow
async def collect(ctx: Context, count: int) -> list[int]:
    return [await ctx.receive("item", int, timeout=HOUR) for _ in range(count)]


@workflow
async def drain(ctx: Context, taken: list[int], count: int) -> list[int]:
    taken = [*taken, await ctx.receive("item", int)]
    if len(taken) < count:
        ctx.continue_as_new(taken, count)
    return taken


@workflow
async def give_up(ctx: Context, count: int) -> list[int]:
    """Begin a step with each message, and give it up with the next one but for the last."""
    got: list[int] = []
    waiting: Any = None
    while len(got) < count:
        got.append(await ctx.receive("item", int))
        if waiting is not None:
            waiting.cancel()
        waiting = asyncio.ensure_future(ctx.step(f"step {len(got)}", body, len(got)))
    await waiting
    return got


async def looks(run: Any) -> int:
    """Look at a run again and again, until it has ended; return how often it said where it stands."""
    seen = 0
    while True:
        with suppress(HoldfastError):  # a busy server may not answer in time
            if (await run.status()).is_terminal:
                return seen
            seen += 1
        await asyncio.sleep(0)


@pytest.mark.parametrize("flow", [collect, give_up])
async def test_a_run_that_is_looked_at_all_the_time_goes_on(make_engine, flow):
    """S3-16 A look that comes with a task of Temporal's ends it early, and each task replays the run."""
    engine = await make_engine(flow, max_resident=0)
    runs = [await engine.start(flow, MANY) for _ in range(3)]
    looking = [asyncio.create_task(looks(run)) for run in runs for _ in range(2)]
    for number in range(MANY):
        for run in runs:
            await run.send("item", number)
    for run in runs:
        assert await asyncio.wait_for(run.result(), LONG) == [*range(MANY)]
    assert sum(await asyncio.gather(*looking))


async def test_messages_that_are_there_when_a_run_begins_again_are_taken_by_its_next_lives(make_engine):
    """S3-16 S2-30 G7 All come before the first turn, which takes one of them."""
    client = await make_engine(drain, run_workflows=False)
    run = await client.start(drain, [], 5)
    for number in range(5):
        await run.send("item", number)
    await make_engine(drain)
    assert await asyncio.wait_for(run.result(), LONG) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("looked_at", [False, True])
async def test_a_run_that_is_cancelled_before_its_first_turn_never_enters_its_code(make_engine, looked_at):
    """S3-16 B7"""
    entered: list[str] = []

    @workflow
    async def work(ctx: Context) -> None:
        entered.append(ctx.run_id)
        await ctx.sleep(HOUR)

    client = await make_engine(work, run_workflows=False)
    run = await client.start(work)
    assert await run.cancel()
    await make_engine(work, max_resident=0)
    looking = asyncio.create_task(looks(run)) if looked_at else None
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(run.result(), LONG)
    if looking is not None:
        await looking
    assert entered == []
