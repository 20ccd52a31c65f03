"""Join and race through an engine: real steps, real cancellation, the same winner after a restart."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, JoinError, Retry, activity, workflow
from holdfast.errors import RaceError, RunFailed
from holdfast.replay import entry as entries
from holdfast.testing import record

ONCE = Retry(max_attempts=1)


async def echo(value: Any) -> Any:
    return value


@activity(retry=ONCE)
async def fail(reason: str) -> None:
    raise ValueError(reason)


async def test_join_runs_branches_at_once_and_returns_results_by_name(make_engine):
    """S1-25 S1-46 Both steps are under way together: each waits for the other."""
    started: set[str] = set()
    both = asyncio.Event()

    async def meet(name: str) -> str:
        started.add(name)
        if len(started) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), LONG)
        return name.upper()

    @workflow
    async def meeting(ctx: Context) -> dict[str, str]:
        def branch(name: str) -> Any:
            async def run(ctx: Context) -> str:
                return await ctx.step(meet, name)

            return run

        return await ctx.join("meeting", {"a": branch("a"), "b": branch("b")})

    engine = await make_engine(meeting)
    assert await engine.execute(meeting) == {"a": "A", "b": "B"}


async def test_join_waits_for_all_even_after_a_failure_and_carries_every_error(make_engine):
    """S1-25"""
    finished: list[str] = []

    async def slow() -> None:
        finished.append("slow")

    @workflow
    async def joins(ctx: Context) -> dict[str, str]:
        async def failing(ctx: Context) -> None:
            await ctx.step(fail, "first")

        async def also_failing(ctx: Context) -> None:
            await ctx.sleep(timedelta(hours=1))
            await ctx.step(fail, "second")

        async def completing(ctx: Context) -> None:
            await ctx.sleep(timedelta(hours=2))
            await ctx.step(slow)

        try:
            await ctx.join("all", {"x": failing, "y": also_failing, "z": completing})
        except JoinError as error:
            return {name: f"{type(each).__name__} {each}" for name, each in error.errors.items()}
        return {}

    engine = await make_engine(joins)
    run = await engine.start(joins)
    assert await run.result() == {"x": "ValueError first", "y": "ValueError second"}
    assert finished == ["slow"]
    ended = [
        entries.decode_entry(row.kind, row.data).status
        for row in (await record(run)).entries
        if row.kind == entries.BranchEnded.kind
    ]
    assert sorted(ended) == ["completed", "failed", "failed"]


async def test_an_uncaught_join_error_fails_the_run_with_the_names_of_the_branches(make_engine):
    """S1-25"""

    @workflow
    async def joins(ctx: Context) -> None:
        async def failing(ctx: Context) -> None:
            await ctx.step(fail, "broken")

        await ctx.join("all", {"x": failing, "y": failing})

    engine = await make_engine(joins)
    run = await engine.start(joins)
    with pytest.raises(RunFailed, match=r"2 of 2 branches failed: x: ValueError: broken; y: ValueError: broken"):
        await run.result()


async def test_the_first_to_complete_wins_and_the_losers_body_is_cancelled(make_engine):
    """S1-26 The loser's step is told to stop, and the history says so."""
    stopped: list[str] = []
    release = asyncio.Event()

    async def hang() -> None:
        try:
            release.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("hang")
            raise

    async def quick() -> str:
        await release.wait()
        return "quick"

    @workflow
    async def races(ctx: Context) -> list[Any]:
        async def slow(ctx: Context) -> None:
            await ctx.step(hang)

        async def fast(ctx: Context) -> str:
            return await ctx.step(quick)

        won = await ctx.race("fastest", {"slow": slow, "fast": fast})
        await ctx.sleep(timedelta(days=1))
        return [won.winner, won.value]

    engine = await make_engine(races)
    run = await engine.start(races)
    assert await run.result() == ["fast", "quick"]
    assert stopped == ["hang"]
    kinds = [row.kind for row in (await record(run)).entries]
    assert kinds.count(entries.Cancelled.kind) == 1
    assert kinds.count(entries.RaceWon.kind) == 1


async def test_a_race_against_a_timer_and_a_message(make_engine):
    """S1-26 S1-46 Races over waits; nested in a loop."""

    @workflow
    async def reminders(ctx: Context) -> list[Any]:
        async def answer(ctx: Context) -> Any:
            return await ctx.receive("answer")

        async def patience(ctx: Context) -> str:
            await ctx.sleep(timedelta(days=1))
            return "remind"

        async for it in ctx.loop("ask", state=list[Any](), commit_interval=1, history_every=1, history_keep=1):
            won = await it.race({"answer": answer, "patience": patience})
            it.state = [*it.state, won.value]
            if won.winner == "answer":
                break
        return it.state

    engine = await make_engine(reminders)
    run = await engine.start(reminders)
    await engine.advance(timedelta(days=2, hours=1))
    await run.send("answer", "yes")
    assert await run.result() == ["remind", "remind", "yes"]


async def test_a_race_that_all_lose_raises_every_error(make_engine):
    """S1-26"""

    @workflow
    async def races(ctx: Context) -> list[str]:
        async def failing(ctx: Context) -> None:
            await ctx.step(fail, "no")

        try:
            await ctx.race({"a": failing, "b": failing})
        except RaceError as error:
            return sorted(error.errors)
        return []

    engine = await make_engine(races)
    assert await engine.execute(races) == ["a", "b"]


async def test_retries_inside_branches_do_not_disturb_the_others(make_engine):
    """S1-25 S1-22 A branch waiting for its retry keeps running; its attempts are its own."""
    attempts: dict[str, int] = {}

    @activity(retry=Retry(max_attempts=4, initial_interval=timedelta(minutes=1)))
    async def flaky(name: str) -> int:
        attempts[name] = attempts.get(name, 0) + 1
        if attempts[name] < 3:
            raise OSError("not yet")
        return attempts[name]

    @workflow
    async def joins(ctx: Context) -> dict[str, int]:
        def branch(name: str) -> Any:
            async def run(ctx: Context) -> int:
                return await ctx.step(flaky, name)

            return run

        return await ctx.join({"a": branch("a"), "b": branch("b"), "c": branch("c")})

    engine = await make_engine(joins)
    assert await engine.execute(joins) == {"a": 3, "b": 3, "c": 3}


async def test_a_step_finishing_just_as_the_run_ends_harms_nothing(make_engine):
    """A run ends once, whatever comes in while its end is being written."""

    @workflow
    async def hasty(ctx: Context) -> str:
        given_up: Any = ctx.step("given up", echo, 1)
        await ctx.step("awaited", echo, 2)
        given_up.done()
        return "done"

    engine = await make_engine(hasty)
    runs = [await engine.start(hasty) for _ in range(20)]
    assert [await run.result() for run in runs] == ["done"] * 20
