"""Durable loops through an engine: state survives restarts, history does not grow."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Break, Context, Continue, workflow
from holdfast.testing import record


def counted(calls: list[int]) -> Any:
    async def add_one(number: int) -> int:
        calls.append(number)
        return number + 1

    return add_one


async def kept(run: Any, loop: str = "loop") -> list[int]:
    """Return the iterations of a loop that are in the history."""
    recorded = await record(run)
    found = {row.location.split("/")[1] for row in recorded.entries if "/~" in row.location}
    return sorted(int(each[2:]) for each in found)


async def test_the_history_of_a_long_loop_stays_short(make_engine):
    """S1-27 S1-29 Every 10 keep 10: at iteration 40 the first 30 are gone from the store."""
    calls: list[int] = []
    add_one = counted(calls)

    @workflow
    async def count(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Any:
            if state == 40:
                return Break(state)
            return Continue(await ctx.step(add_one, state))

        return await ctx.loop("loop", body, state=0, history_every=10, history_keep=10)

    engine = await make_engine(count)
    run = await engine.start(count)
    assert await run.result() == 40
    assert calls == list(range(40))
    assert await kept(run) == list(range(30, 40))


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_loop_resumes_at_its_last_state_after_a_restart(make_engine):
    """S1-28 Completed iterations are not run again, with and without recorded state in between."""
    calls: list[int] = []
    add_one = counted(calls)

    @workflow
    async def count(ctx: Context) -> int:
        async for it in ctx.loop("loop", state=0, commit_interval=3, history_every=3, history_keep=1):
            it.state = await it.step(add_one, it.state)
            await it.sleep(timedelta(days=1))
            await asyncio.sleep(3600)
            if it.state == 11:
                break
        return it.state + await ctx.step(add_one, 100)

    engine = await make_engine(count)
    run = await engine.start(count, id="c-1")
    began = engine.clock.now()
    for _ in range(4):
        await engine.advance(timedelta(days=2))
        clock = engine.jumping
        await engine.stop()
        engine = await make_engine(count, clock=clock)
    run = engine.get("c-1")
    assert await run.result() == 112
    assert calls == [*range(11), 100]
    assert engine.clock.now() - began >= 11 * timedelta(days=1, hours=1) // timedelta(microseconds=1)


async def test_a_message_taken_in_one_iteration_is_not_taken_again_in_the_next(make_engine):
    """S1-18 C1: a timeout in a later iteration must not replay the message of an earlier one."""

    @workflow
    async def inbox(ctx: Context) -> list[str]:
        async for it in ctx.loop("loop", state=list[Any](), commit_interval=1, history_every=1, history_keep=1):
            message = await it.receive("word", str, timeout=timedelta(minutes=1), default="(nothing)")
            it.state = [*it.state, message]
            if len(it.state) == 4:
                break
        return it.state

    engine = await make_engine(inbox)
    run = await engine.start(inbox)
    await run.send("word", "one")
    await run.send("word", "two")
    await engine.advance(timedelta(minutes=1))
    await run.send("word", "three")
    assert await run.result() == ["one", "two", "(nothing)", "three"]


async def test_a_finished_inner_loop_and_join_before_a_long_sleep_do_not_diverge_on_resume(make_engine):
    """S1-46 C1 The known defect of the engine this is modelled on."""
    calls: list[int] = []
    add_one = counted(calls)

    @workflow
    async def nested(ctx: Context) -> int:
        async def inner(ctx: Context, state: int) -> Any:
            state = await ctx.step(add_one, state)
            return Break(state) if state == 3 else Continue(state)

        async def branch(ctx: Context) -> int:
            return await ctx.loop("inner", inner, state=0, commit_interval=1, history_every=1, history_keep=1)

        async def outer(ctx: Context, state: int) -> Any:
            await ctx.loop("inner", inner, state=0)
            both = await ctx.join("both", {"a": branch, "b": branch})
            won = await ctx.race("either", {"a": branch, "b": branch})
            await ctx.sleep(timedelta(days=30))
            state += sum(both.values()) + won.value
            return Break(state) if state >= 36 else Continue(state)

        return await ctx.loop("outer", outer, state=0, commit_interval=1, history_every=1, history_keep=1)

    engine = await make_engine(nested)
    assert await engine.execute(nested) == 36


async def test_a_loop_of_many_iterations_keeps_a_flat_history_and_dice(make_engine):
    """S1-29 Random numbers and ids belong to their iteration, before and after any restart."""

    @workflow
    async def rolls(ctx: Context) -> list[Any]:
        async for it in ctx.loop("loop", state=list[Any](), commit_interval=2, history_every=2, history_keep=2):
            before = [it.random().random(), str(it.uuid())]
            await it.sleep(timedelta(minutes=1))
            after = [it.random().random(), str(it.uuid())]
            it.state = [*it.state, *before, *after]
            if it.index == 9:
                break
        return it.state

    engine = await make_engine(rolls)
    run = await engine.start(rolls)
    result = await run.result()
    assert len(result) == len(set(result)) == 40
    assert len((await record(run)).entries) < 30
