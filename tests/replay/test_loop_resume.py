"""A loop resumed from its recorded state stands where it stood: time, dice, order, winners and cancellations."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.support.driving import assert_deterministic, assert_replays, live

from holdfast import Context, workflow
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x + 1


def test_time_timers_and_dice_inside_an_iteration_are_the_same_after_resuming_from_its_state():
    """S1-28 The clock stands where the loop's state was recorded, not where the run began."""

    @workflow
    async def daily(ctx: Context) -> list:
        async for it in ctx.loop("loop", state=list[Any](), commit_interval=1, history_every=1, history_keep=1):
            now = it.now().isoformat()
            drawn = await it.step(str, [now, it.random().random(), str(it.uuid()), asyncio.get_running_loop().time()])
            try:
                async with asyncio.timeout(3600):
                    await asyncio.sleep(86_400)
            except TimeoutError:
                pass
            await asyncio.sleep(7200)
            it.state = [*it.state, drawn]
            if it.index == 4:
                break
        return [it.state, ctx.now().isoformat(), ctx.random().random(), str(ctx.uuid())]

    recording = live(daily)
    assert len({str(each) for each in recording.result[0]}) == 5
    assert_replays(recording)


def test_sets_of_tasks_keep_their_order_after_resuming_from_a_state():
    @workflow
    async def sets(ctx: Context) -> list:
        async def one(it: Any, x: int) -> int:
            return await it.step(work, x)

        order = []
        async for it in ctx.loop("loop", commit_interval=1, history_every=1, history_keep=1):
            tasks = {asyncio.create_task(one(it, x)) for x in range(7)}
            for task in tasks:
                order.append(await task)
                await it.step("note", work, order[-1]) if len(order) % 7 == 3 else None
            verbs = {it.step(work, x) for x in range(5)}
            done, _ = await asyncio.wait(verbs)
            await it.step(str, [each.result() for each in done])
            if it.index == 5:
                break
        return []

    assert_deterministic(sets, seeds=range(3))


def test_a_race_with_a_loop_has_the_same_winner_after_resuming():
    """S1-26 A loop that breaks without a step right after its state was recorded must not win earlier on replay."""

    @workflow
    async def racing(ctx: Context) -> str:
        async def looping(ctx: Context) -> int:
            async for it in ctx.loop("loop", state=0, commit_interval=1, history_every=1, history_keep=1):
                if it.state == 4:
                    break
                it.state = await it.step(work, it.state)
            return it.state

        async def stepping(ctx: Context) -> int:
            for x in range(5):
                await ctx.step(work, x)
            return 5

        won = await ctx.race({"loop": looping, "steps": stepping})
        await ctx.sleep(timedelta(hours=1))
        return won.winner

    assert {live(racing, seed=seed).result for seed in range(12)} == {"loop", "steps"}
    assert_deterministic(racing, seeds=range(12))


def test_a_cancellation_that_the_loop_survived_does_not_stop_it_on_replay():
    @workflow
    async def stubborn(ctx: Context) -> int:
        async for it in ctx.loop("loop", state=0, commit_interval=1, history_every=1, history_keep=1):
            try:
                it.state = await it.step(work, it.state)
            except asyncio.CancelledError:
                continue
            if it.state == 9:
                break
        return it.state

    for seed in range(5):
        recording = live(stubborn, seed=seed, messages=["cancel"])
        assert recording.outcome.ending is Ending.CANCELLED
        assert_replays(recording)
