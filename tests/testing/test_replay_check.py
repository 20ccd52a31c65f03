"""A test engine that replays after every fact: code that is not deterministic fails its test, and says where."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Break, Context, Continue, Retry, RunFailed, activity, workflow
from holdfast.errors import HistoryMismatch
from holdfast.testing import TestEngine, record, replay

HOUR = timedelta(hours=1)
outside: dict[str, int] = {}


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    outside.clear()


def times_called() -> int:
    """What workflow code must not ask: a number that is another one on replay."""
    outside["called"] = outside.get("called", 0) + 1
    return outside["called"]


async def work(number: int) -> int:
    return number + 1


@workflow
async def other_step(ctx: Context) -> int:
    number = await ctx.step("first", work, 0)
    return await ctx.step("even" if times_called() % 2 else "odd", work, number)


@workflow
async def other_argument(ctx: Context) -> int:
    await ctx.step("first", work, 0)
    return await ctx.step("second", work, times_called())


@workflow
async def other_result(ctx: Context) -> int:
    await ctx.step("only", work, 0)
    return times_called()


@workflow
async def other_timer(ctx: Context) -> None:
    number = await ctx.step("only", work, 0)
    await asyncio.sleep(number * 3600 + times_called())


@workflow
async def other_failure(ctx: Context) -> None:
    await ctx.step("only", work, 0)
    raise ValueError(f"at call {times_called()}")


@pytest.mark.parametrize(
    ("flow", "said"),
    [
        (other_step, "run-7 is not deterministic: after step 'even' it does something else.*at 'even'.*[.]py"),
        (other_argument, "it does something else when it is replayed: .*'second'.*other arguments"),
        (other_result, "after step completed 'only' it completed with 1; replayed, it completed with 2"),
        (other_timer, "after step completed 'only' it waits for a timer at .*; replayed, it waits for a timer at"),
        (other_failure, "it failed with ValueError: at call 1; replayed, it failed with ValueError: at call 2"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
@pytest.mark.parametrize("awaited", ["result", "settle", "advance", "the end of the block"])
async def test_code_that_asks_for_something_else_on_replay_fails_its_test(flow: Any, said: str, awaited: str) -> None:
    with pytest.raises(HistoryMismatch, match=said):
        async with TestEngine(workflows=[flow], replay=True) as engine:
            run = await engine.start(flow, id="run-7")
            if awaited == "result":
                await run.result()
            elif awaited == "settle":
                await engine.settle()
            elif awaited == "advance":
                await engine.advance(HOUR)
            else:
                await eventually(lambda: engine.idle)


async def test_without_the_check_such_code_passes_as_long_as_it_stays_in_memory() -> None:
    async with TestEngine(workflows=[other_step, other_result]) as engine:
        assert await engine.execute(other_step) == 2
        assert await engine.execute(other_result) == 2


@activity(retry=Retry(max_attempts=3))
async def shaky(number: int) -> int:
    outside["attempts"] = outside.get("attempts", 0) + 1
    if outside["attempts"] % 3:
        raise ConnectionError("no answer")
    return number


@workflow
async def child(ctx: Context, number: int) -> int:
    await ctx.sleep(HOUR)
    return await ctx.step(work, number)


@workflow
async def everything(ctx: Context, lives: int = 0) -> list[Any]:
    """Use every kind of verb."""

    async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
        return Break(state) if state == 25 else Continue(await ctx.step(work, state))

    first = await asyncio.gather(ctx.step(shaky, 1), ctx.child(child, 2), ctx.receive("word", str))
    ctx.compensate(work, 5)
    ctx.set_attributes(n=1)
    ctx.evidence("kind", {"n": 1})
    async with asyncio.timeout(1800):
        looped = await ctx.loop("loop", body, state=0, history_every=5, history_keep=5)
    raced = await ctx.race("race", {"nap": lambda ctx: ctx.sleep(HOUR), "work": lambda ctx: ctx.step(work, 1)})
    if lives:
        ctx.continue_as_new(lives - 1)
    return [*first, looped, raced.winner, await ctx.receive("never", timeout=HOUR, default="nothing")]


@pytest.mark.parametrize("max_resident", [1000, 0], ids=["resident", "evicted"])
async def test_code_that_is_deterministic_passes(max_resident: int) -> None:
    async with TestEngine(workflows=[everything, child], replay=True, max_resident=max_resident) as engine:
        run = await engine.start(everything, 1)
        for word in ("first", "second"):
            await run.send("word", word)
        assert await run.result() == [1, 3, "second", 25, "work", "nothing"]
        assert engine.replays > 50


async def test_a_run_that_is_undone_paused_and_retried_passes() -> None:
    @activity(retry=Retry.never)
    async def refuse() -> None:
        if outside.get("fixed"):
            return
        raise ValueError("no")

    @workflow
    async def saga(ctx: Context) -> str:
        await asyncio.gather(*(ctx.step(f"book {number}", work, number) for number in range(3)))
        ctx.compensate("book 1", work, 1)
        await ctx.sleep(HOUR)
        await ctx.step(refuse)
        return "done"

    async with TestEngine(workflows=[saga], replay=True) as engine:
        run = await engine.start(saga)
        await engine.settle()
        await run.pause(duration=HOUR)
        with pytest.raises(RunFailed):
            await run.result()
        outside["fixed"] = 1
        await run.retry()
        assert await run.result() == "done"


async def test_the_history_of_a_later_life_is_replayed_from_where_that_life_began() -> None:
    """Timers of a life count from its beginning, and not from the beginning of the run."""

    @workflow
    async def lives(ctx: Context, left: int) -> str:
        await asyncio.sleep(3600)
        if left:
            ctx.continue_as_new(left - 1)
        return await ctx.receive("word", str)

    async with TestEngine(workflows=[lives]) as engine:
        run = await engine.start(lives, 2)
        await engine.advance(4 * HOUR)
        assert replay(await record(run), lives).status == "waiting"
