"""Durable loops: state, trimming, and resuming from any point of any of them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import assert_deterministic, assert_replays, finished, live, resumed

from holdfast import Context, workflow
from holdfast.context.api import Break, Continue
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x + 1


def iterations(recording: Any, loop: str) -> list[int]:
    """Return the iterations of a loop of which something is stored."""
    found = {path.split("/")[1] for path in recording.paths() if path.startswith(f"{loop}/~")}
    return sorted(int(each[1:]) for each in found)


def states(recording: Any) -> list[tuple[int, int, Any]]:
    rows = [row for row in recording.rows if row.kind == entries.LoopCheckpoint.kind]
    marks = [decode_entry(row.kind, row.data) for row in rows]
    return [(mark.iteration, mark.trimmed, bytes(mark.state).decode()) for mark in marks]


def counting(to: int, **options: int) -> Any:
    @workflow
    async def count(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Any:
            if state == to:
                return Break(state * 100)
            return Continue(await ctx.step(work, state))

        return await ctx.loop("loop", body, state=0, **options)

    return count


def iterating(to: int, **options: int) -> Any:
    @workflow
    async def count(ctx: Context) -> int:
        async for it in ctx.loop("loop", state=0, **options):
            if it.state == to:
                break
            it.state = await it.step(work, it.state)
        return it.state * 100

    return count


@pytest.mark.parametrize("form", [counting, iterating])
class TestBothForms:
    def test_at_iteration_20_every_10_keep_10_deletes_0_to_9_and_keeps_10_to_19(self, form):
        """S1-27 S1-29 The document's own example."""
        recording = live(form(20, history_every=10, history_keep=10))
        assert recording.result == 2000
        assert iterations(recording, "loop") == list(range(10, 20))
        assert states(recording) == [(20, 10, "20")]

    def test_nothing_is_trimmed_at_iteration_10(self, form):
        """S1-29 At the first interval everything is within what is kept."""
        assert iterations(live(form(10, history_every=10, history_keep=10)), "loop") == list(range(10))

    def test_an_early_break_keeps_everything(self, form):
        recording = live(form(7, history_every=10, history_keep=10))
        assert iterations(recording, "loop") == list(range(7))
        assert states(recording) == []

    def test_the_state_is_recorded_at_every_commit_interval(self, form):
        """S1-28 A restart resumes at the last recorded state: the iterations before it are not run again."""
        recording = live(form(8, commit_interval=3))
        assert states(recording) == [(6, 0, "6")]
        assert_replays(recording)

    def test_interval_1_keeps_one_iteration(self, form):
        """S1-28 S1-29"""
        recording = live(form(5, commit_interval=1, history_every=1, history_keep=1))
        assert iterations(recording, "loop") == [4]
        assert_replays(recording)

    def test_a_trimmed_range_is_not_deleted_again(self, form):
        recording = live(form(9, commit_interval=3, history_every=3, history_keep=1))
        trims = [trim for turn in recording.turns for trim in turn[5] if "/~" in trim[0]]
        assert trims == [("a0/~a0", "a0/~a2"), ("a0/~a2", "a0/~a5"), ("a0/~a5", "a0/~a8")]

    def test_a_long_loop_replays_alike_from_every_cut(self, form):
        """S1-32"""
        for options in ({}, {"history_every": 7, "history_keep": 3}, {"commit_interval": 4, "history_every": 2}):
            assert_replays(live(form(25, **options)))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_run_that_is_rolled_back_replays_only_the_iterations_that_were_retained(keep):
    """S1-30 What is undone was recorded apart; the code of the other iterations is not entered again."""
    entered: list[int] = []

    @workflow
    async def flow(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Any:
            entered.append(state)
            if state == 5:
                raise ValueError("no more")
            ctx.compensate(work, state)
            return Continue(await ctx.step(work, state))

        await ctx.loop("loop", body, state=0, commit_interval=1, history_every=1, history_keep=keep)

    recording = live(flow)
    assert entered == [0, 1, 2, 3, 4, 5]
    assert iterations(recording, "loop") == list(range(5 - keep, 5))
    for rows in recording.stored[:-1]:
        if not any(row.location[0] == "^" and row.kind == entries.StepBegun.kind for row in rows):
            continue
        entered.clear()
        turn, _ = finished(flow, rows)
        assert set(entered) == {5}
        assert turn.outcome is not None
        assert len(turn.outcome.compensation) == 5


def test_crossing_ten_and_a_hundred_iterations_keeps_the_order():
    """S1-29 Iterations are deleted by number, not by their digits."""
    recording = live(counting(120, history_every=5, history_keep=15))
    assert iterations(recording, "loop") == list(range(105, 120))


def test_siblings_with_similar_names_lose_nothing():
    @workflow
    async def siblings(ctx: Context) -> int:
        async def body(ctx: Context, state: int) -> Any:
            state = await ctx.step(work, state)
            return Break(state) if state == 3 else Continue(state)

        async def long(ctx: Context, state: int) -> Any:
            state = await ctx.step(work, state)
            return Break(state) if state == 12 else Continue(state)

        await ctx.loop(body, state=0)
        await ctx.loop(body, state=0)
        await ctx.loop("loop2", body, state=0)
        return await ctx.loop("looped", long, state=0, history_every=2, history_keep=1)

    recording = live(siblings)
    for name in ("loop", "loop#2", "loop2"):
        assert iterations(recording, name) == [0, 1, 2]
    assert iterations(recording, "looped") == [9, 10, 11]


def test_a_stateless_loop_may_return_nothing_and_a_stateful_one_may_not():
    """S1-27"""

    @workflow
    async def stateless(ctx: Context) -> int:
        async def body(ctx: Context) -> Any:
            if await ctx.step(work, len(seen)) > 3:
                return Break("enough")
            seen.append(1)
            return None

        seen: list[int] = []
        return await ctx.loop("loop", body)

    @workflow
    async def stateful(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Any:
            return None

        await ctx.loop("loop", body, state=0)

    assert live(stateless).result == "enough"
    outcome = live(stateful).outcome
    assert outcome.ending is Ending.FAILED
    assert "must return Continue(state) or Break(value), not None" in outcome.error.message


def test_an_error_in_a_body_leaves_the_loop():
    @workflow
    async def broken(ctx: Context) -> str:
        async def body(ctx: Context, state: int) -> Any:
            if state == 2:
                raise LookupError("at two")
            return Continue(await ctx.step(work, state))

        try:
            await ctx.loop("loop", body, state=0, commit_interval=1)
        except LookupError as error:
            await ctx.sleep(timedelta(hours=1))
            return str(error)
        return ""

    recording = live(broken)
    assert recording.result == "at two"
    assert_replays(recording)


@workflow
async def nested(ctx: Context) -> list:
    """A loop in a join in a race in a loop, with a finished inner loop and join before a long sleep."""

    async def inner(ctx: Context, state: int) -> Any:
        state = await ctx.step(work, state)
        return Break(state) if state >= 6 else Continue(state)

    async def looping(ctx: Context) -> int:
        return await ctx.loop("inner", inner, state=0, commit_interval=2, history_every=2, history_keep=1)

    async def iterating(ctx: Context) -> int:
        async for it in ctx.loop(state=0, commit_interval=1, history_every=2, history_keep=2):
            it.state += await it.step(work, 0)
            await asyncio.sleep(0.3)
            if it.state == 5:
                break
        await asyncio.sleep(0.1)
        return await ctx.step(work, it.state)

    async def joining(ctx: Context) -> Any:
        return await ctx.join("both", {"x": looping, "y": iterating})

    async def sleeping(ctx: Context) -> str:
        await ctx.sleep(timedelta(seconds=4))
        return "too slow"

    async def outer(ctx: Context, state: list) -> Any:
        won = await ctx.race("race", {"join": joining, "sleep": sleeping})
        last = await ctx.loop("last", inner, state=3, commit_interval=1, history_every=1, history_keep=1)
        await ctx.sleep(timedelta(days=1))
        state = [*state, won.winner, last]
        return Break(state) if len(state) == 8 else Continue(state)

    return await ctx.loop("outer", outer, state=[], commit_interval=1, history_every=1, history_keep=1)


def test_loops_in_joins_in_races_in_loops_resume_from_every_cut():
    """S1-46 S1-28 S1-29 A finished inner loop or join before a long sleep does not diverge on resume (C1)."""
    assert_deterministic(nested, seeds=range(8))


def test_a_loop_in_a_branch_trims_while_its_sibling_runs():
    """S1-29 S1-46"""

    @workflow
    async def branches(ctx: Context) -> Any:
        async def looping(ctx: Context) -> int:
            async for it in ctx.loop("loop", state=0, history_every=2, history_keep=1, commit_interval=2):
                it.state = await it.step(work, it.state)
                if it.state == 9:
                    break
            return it.state

        async def other(ctx: Context) -> list:
            return [await ctx.step(work, x) for x in range(9)]

        return await ctx.join({"looping": looping, "other": other})

    for seed in range(5):
        recording = live(branches, seed=seed)
        kept = {path.split("/")[3] for path in recording.paths() if path.startswith("join/looping/loop/~")}
        assert len(kept) <= 2
        assert_replays(recording)


def test_trimming_waits_until_no_task_outside_the_loop_is_alive():
    """A task beside the loop may share what past iterations did, so a replay must not begin after them."""

    @workflow
    async def beside(ctx: Context, tasked: bool) -> int:
        async def helper() -> None:
            await ctx.step("slow", work, 0)
            await ctx.step("slower", work, 0)

        task = asyncio.create_task(helper()) if tasked else None
        async for it in ctx.loop("loop", state=0, history_every=1, history_keep=1, commit_interval=1):
            it.state = await it.step(work, it.state)
            if it.state == 12:
                break
            if it.state == 6 and task:
                await task
        return it.state

    assert iterations(live(beside, False), "loop") == [10, 11]
    for seed in range(6):
        recording = live(beside, True, seed=seed)
        trimmed = [turn[5] != [] for turn in recording.turns]
        done = next(i for i, turn in enumerate(recording.turns) if any(row.data == '["slower"]' for row in turn[0]))
        assert not any(trimmed[:done])
        assert iterations(recording, "loop") == [10, 11]
        assert_replays(recording)


def test_the_outer_context_inside_an_iteration_is_refused_and_after_break_it_is_fine():
    @workflow
    async def inside(ctx: Context) -> None:
        async for _ in ctx.loop("loop"):
            await ctx.step(work, 1)

    @workflow
    async def after(ctx: Context) -> int:
        async for it in ctx.loop("loop", state=0):
            async for inner in it.loop("inner", state=0):
                inner.state += 1
                if await inner.step(work, inner.state) == 4:
                    break
            it.state += await it.step(work, inner.state)
            if it.state > 10:
                break
        return it.state + await ctx.step(work, 1)

    @workflow
    async def beside(ctx: Context) -> int:
        async def helper() -> int:
            return sum([await ctx.step(work, x) for x in range(4)])

        task = asyncio.create_task(helper())
        async for it in ctx.loop("loop", state=0):
            it.state = await it.step(work, it.state)
            if it.state == 5:
                break
        return await task

    @workflow
    async def in_a_body(ctx: Context) -> None:
        async def body(inner: Context, state: int) -> Any:
            await ctx.step(work, 1)
            return Continue(state)

        await ctx.loop("loop", body, state=0)

    outcome = live(inside).outcome
    assert outcome.ending is Ending.FAILED
    assert "call the verbs on `it`, not on the outer ctx" in outcome.error.message
    assert live(after).result == 14
    assert live(beside).result == 10
    assert_deterministic(after)
    assert_deterministic(beside)
    outcome = live(in_a_body).outcome
    assert outcome.ending is Ending.FAILED
    assert "in a branch or a loop's body use the ctx it is given" in outcome.error.message


def test_a_recorded_state_that_no_longer_fits_blocks_the_run():
    @workflow(name="typed")
    async def old(ctx: Context) -> None:
        async def body(ctx: Context, state: int) -> Any:
            return Continue(await ctx.step(work, state))

        await ctx.loop("loop", body, state=0, commit_interval=1)

    @workflow(name="typed")
    async def new(ctx: Context) -> None:
        async def body(ctx: Context, state: list) -> Any:
            return Continue([await ctx.step(work, len(state))])

        await ctx.loop("loop", body, state=[], commit_interval=1)

    turn, _ = resumed(live(old, stop=3), new)
    assert turn.outcome.ending is Ending.BLOCKED
    assert "state of loop 'loop' does not fit" in turn.outcome.error.message
