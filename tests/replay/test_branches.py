"""Join and race: named branches that run at once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import assert_deterministic, live, paths, resumed

from holdfast import Context, workflow
from holdfast.errors import JoinError, RaceError
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise ValueError(f"no {x}")


def stepping(times: int, function: Any = work) -> Any:
    async def branch(ctx: Context) -> int:
        x = 0
        for _ in range(times):
            x = await ctx.step(function, x)
        return x

    return branch


def ends(recording: Any) -> dict[str, str]:
    readable = paths(recording.rows)
    rows = [row for row in recording.rows if row.kind == entries.BranchEnded.kind]
    return {readable[row.seq]: decode_entry(row.kind, row.data).status for row in rows}


@workflow
async def joins(ctx: Context) -> dict:
    return await ctx.join("all", {"a": stepping(1), "b": stepping(3), "c": stepping(0)})


@workflow
async def joins_with_failures(ctx: Context) -> list:
    try:
        await ctx.join("all", {"good": stepping(4), "bad": stepping(1, fail), "worse": stepping(2, fail)})
    except JoinError as error:
        await ctx.step("note", str, list(error.errors))
        return [f"{name}: {each}" for name, each in error.errors.items()]
    return []


@workflow
async def races(ctx: Context) -> list:
    won = await ctx.race("fastest", {"a": stepping(2), "b": stepping(2), "c": stepping(1, fail)})
    await ctx.sleep(timedelta(hours=1))
    return [won.winner, won.value]


@workflow
async def races_with_failures(ctx: Context) -> list:
    try:
        await ctx.race({"a": stepping(1, fail), "b": stepping(1, fail)})
    except RaceError as error:
        return sorted(f"{name}: {each}" for name, each in error.errors.items())
    return []


@workflow
async def losers_clean_up(ctx: Context) -> list:
    seen: list[str] = []

    async def loser(ctx: Context) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(50))
                await ctx.step(work, 1)
                await ctx.receive("never")
        finally:
            seen.append("cleaning")
            await ctx.step("clean-up", work, 2)
            seen.append("clean")

    won = await ctx.race({"winner": stepping(3), "loser": loser})
    await ctx.step("after", work, 0)
    await ctx.sleep(timedelta(hours=1))
    return [won.winner, *seen]


@workflow
async def nested(ctx: Context) -> Any:
    async def inner_join(ctx: Context) -> Any:
        return await ctx.join({"x": stepping(2), "race": inner_race})

    async def inner_race(ctx: Context) -> Any:
        won = await ctx.race({"p": stepping(1), "q": stepping(2)})
        return won.winner

    async def outer_race(ctx: Context) -> Any:
        won = await ctx.race({"join": inner_join, "slow": stepping(9)})
        return [won.winner, won.value]

    first = await ctx.join({"a": inner_join, "b": outer_race})
    second = await ctx.join({"a": stepping(1)})
    return [first, second]


ALL = [joins, joins_with_failures, races, races_with_failures, losers_clean_up, nested]


@pytest.mark.parametrize("definition", ALL, ids=lambda definition: definition.name)
def test_branches_replay_alike_from_every_cut(definition):
    """S1-25 S1-26 S1-46 Joins and races, in each other too, give the same results and winners on replay."""
    assert_deterministic(definition, seeds=range(10))


def test_join_returns_results_by_branch_name_in_the_order_given():
    """S1-25 S1-46"""
    for seed in range(4):
        recording = live(joins, seed=seed)
        assert list(recording.result.items()) == [("a", 1), ("b", 3), ("c", 0)]
        assert ends(recording) == {"all/a": "completed", "all/b": "completed", "all/c": "completed"}


def test_join_waits_for_all_branches_even_after_a_failure_and_reports_every_error():
    """S1-25"""
    for seed in range(4):
        recording = live(joins_with_failures, seed=seed)
        assert recording.result == ["bad: no 0", "worse: no 0"]
        assert ends(recording) == {"all/good": "completed", "all/bad": "failed", "all/worse": "failed"}
        assert recording.paths(entries.StepCompleted).count("all/good/work#4") == 1


def test_the_first_branch_to_complete_wins_and_the_losers_are_recorded_as_cancelled():
    """S1-26 The winner is in the history; a branch that fails does not win."""
    winners = set()
    for seed in range(10):
        recording = live(races, seed=seed)
        winner, value = recording.result
        winners.add(winner)
        assert value == 2
        loser = {"a": "b", "b": "a"}[winner]
        assert ends(recording)[f"fastest/{winner}"] == "completed"
        assert ends(recording)[f"fastest/{loser}"] == "cancelled"
        assert ends(recording).get("fastest/c") in ("failed", "cancelled")
        assert any(path.startswith(f"fastest/{loser}/") for path in recording.paths(entries.Cancelled))
        won = [decode_entry(row.kind, row.data).winner for row in recording.rows if row.kind == entries.RaceWon.kind]
        assert won == [winner]
    assert winners == {"a", "b"}


def test_a_race_that_every_branch_loses_raises_all_errors():
    """S1-26"""
    assert live(races_with_failures).result == ["a: no 0", "b: no 0"]


def test_a_losers_clean_up_steps_run():
    assert live(losers_clean_up).result == ["winner", "cleaning", "clean"]


def test_a_cancelled_join_cancels_its_branches_and_lets_them_clean_up():
    @workflow
    async def cancelled(ctx: Context) -> list:
        seen: list[Any] = []

        async def branch(ctx: Context) -> None:
            try:
                await ctx.receive("never")
            finally:
                seen.append(await ctx.step("clean-up", work, len(seen)))

        try:
            async with asyncio.timeout(1):
                await ctx.join({"a": branch, "b": branch})
        except TimeoutError:
            seen.append("timeout")
        return seen

    recording = live(cancelled)
    assert recording.result == [1, 1, "timeout"]
    assert set(ends(recording).values()) == {"cancelled"}
    assert_deterministic(cancelled)


def test_an_empty_join_is_empty_and_an_empty_race_is_refused():
    @workflow
    async def empty(ctx: Context) -> Any:
        assert await ctx.join({}) == {}
        await ctx.race({})

    outcome = live(empty).outcome
    assert outcome.ending is Ending.FAILED
    assert "at least one branch" in outcome.error.message


@pytest.mark.parametrize("verb", ["join", "race"])
def test_the_outer_context_in_a_branch_is_refused_with_the_way_out(verb):
    @workflow
    async def mistaken(ctx: Context) -> Any:
        async def branch(inner: Context) -> int:
            return await ctx.step(work, 1)

        await getattr(ctx, verb)({"a": branch})

    outcome = live(mistaken).outcome
    assert outcome.ending is Ending.FAILED
    assert "in a branch or a loop's body use the ctx it is given" in outcome.error.message


@pytest.mark.parametrize("branches", [[1], {"a": 1}, {"a/b": stepping(1)}, {1: stepping(1)}, "abc", None])
def test_what_is_not_a_mapping_of_names_to_functions_is_refused(branches):
    @workflow
    async def mistaken(ctx: Context) -> Any:
        await ctx.join(branches)

    outcome = live(mistaken).outcome
    assert outcome.ending is Ending.FAILED
    assert outcome.error.type.endswith("BadInput")


def test_a_branch_added_to_a_join_under_way_or_taken_away_is_noticed():
    """S1-37"""

    def joining(*names: str) -> Any:
        @workflow(name="joining")
        async def definition(ctx: Context) -> Any:
            return await ctx.join("all", {name: stepping(2) for name in names})

        return definition

    recording = live(joining("a", "b"), stop=1)
    turn, _ = resumed(recording, joining("a"))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "one without ['b']" in turn.outcome.error.message
    turn, _ = resumed(recording, joining("a", "b", "c"))
    assert turn.outcome.ending is Ending.BLOCKED
    assert "all/c/work" in turn.outcome.error.message
