"""What a life of a run is given: a deadline, options for its children, steps that go on where they were."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import SECOND, START, assert_replays, execution, live, store

from holdfast import Context, activity, workflow
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import EntryRow
from holdfast.contract.turns import NO_OPTIONS, RunOptions
from holdfast.errors import BadInput
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.entry import encode_entry
from holdfast.replay.turn import Ending

ERROR = error_to_data(ValueError("no"))


@activity
def work(x: Any) -> Any:
    return x


@activity
def unbook(x: int) -> int:
    return x


# The run's deadline.


@workflow
async def endless(ctx: Context) -> None:
    ctx.compensate(unbook, 1)
    try:
        while True:
            await asyncio.sleep(4)
            await ctx.step(work, 1)
    finally:
        await ctx.step("clean-up", work, 2)


def test_a_run_is_cut_off_at_its_deadline_cleans_up_and_is_undone():
    """S3-23 S4-21 B17"""
    recording = live(endless, deadline=START + 10 * SECOND)
    assert recording.outcome.ending is Ending.FAILED
    assert recording.outcome.error.type == "holdfast.errors.RunTimeout"
    assert recording.outcome.failed == ("@",)
    assert [each["status"] for each in recording.outcome.compensation] == ["completed"]
    fired = [row for row in recording.rows if row.location == "@"]
    assert [row.at for row in fired] == [START + 10 * SECOND]
    assert "deadline" in recording.paths(entries.TimerFired)
    assert recording.paths(entries.StepBegun)[-2:] == ["clean-up", "undo#0/unbook"]
    for seed in range(4):
        assert_replays(live(endless, deadline=START + 10 * SECOND, seed=seed))


def test_the_timers_of_the_code_are_the_same_with_and_without_a_deadline():
    """B8: a run may be reopened with another deadline, or none"""

    @workflow
    async def flow(ctx: Context) -> None:
        await asyncio.sleep(1)
        await ctx.receive("never")

    recording = live(flow, deadline=START + 10**12)
    cut = next(n for n, rows in enumerate(recording.stored) if any(row.location == "@a1" for row in rows))
    run = execution(flow)
    assert run.begin(recording.stored[cut]).outcome is None
    assert run.next_due() is None


def test_a_run_that_ends_in_time_or_by_another_error_does_not_know_its_deadline():
    """Neither the result nor the error says anything of it."""

    @workflow
    async def quick(ctx: Context, fail: bool) -> int:
        if fail:
            raise TimeoutError("the code's own")
        return int(await ctx.step(work, 1))

    assert live(quick, False, deadline=START + 10**12).result == 1
    assert live(quick, True, deadline=START + 10**12).outcome.error.type == "TimeoutError"


def test_an_error_while_cleaning_up_after_the_deadline_is_the_cause():
    """S3-23"""

    @workflow
    async def clumsy(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            raise KeyError("lost")

    error = live(clumsy, deadline=START + SECOND).outcome.error
    assert (error.type, error.cause.type) == ("holdfast.errors.RunTimeout", "KeyError")


def test_a_cancel_wins_over_the_deadline():
    """B7"""

    @workflow
    async def waiting(ctx: Context) -> None:
        try:
            await ctx.receive("never")
        finally:
            await ctx.sleep(timedelta(seconds=60))

    run = execution(waiting, deadline=START + 10 * SECOND)
    run.begin()
    run.apply("*", entries.CancelRequested(), START + SECOND)
    turn = run.fire(START + 11 * SECOND)
    assert turn.outcome is not None
    assert turn.outcome.ending is Ending.CANCELLED


def test_a_run_that_swallows_its_cancel_does_not_wait_for_its_deadline_but_one_that_waits_for_nothing_does():
    """B7"""

    @workflow
    async def stubborn(ctx: Context) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    run = execution(stubborn, deadline=START + 10 * SECOND)
    assert run.begin().outcome is None
    turn = run.apply("*", entries.CancelRequested(), START + SECOND)
    assert turn.outcome is not None
    assert turn.outcome.ending is Ending.CANCELLED


def test_a_deadline_that_has_passed_already_cuts_off_at_once():
    """G9"""
    run = execution(endless, deadline=START - 1)
    turn = run.begin()
    assert "@" in [row.location for row in turn.entries]


# Children.


def test_what_is_said_about_a_child_is_part_of_its_start():
    """B18, B22"""

    @workflow
    async def parent(ctx: Context) -> None:
        ctx.child("kid")
        ctx.child("kid", cancel_with_parent=True, priority=3, attributes={"a": 1, "b": "x"})
        wrongs: list[Any] = [{"priority": "high"}, {"cancel_with_parent": 1}, {"attributes": {"a": []}}]
        for wrong in wrongs:
            with pytest.raises(BadInput):
                ctx.child("kid", **wrong)

    first, second = execution(parent).begin().children
    assert first.run.options is NO_OPTIONS
    assert second.run.options == RunOptions(cancel_with_parent=True, priority=3, attributes={"a": "1", "b": '"x"'})


def test_a_reopened_run_keeps_the_children_it_has_and_gives_new_ones_other_ids():
    """B8 G10 A derived id names one child only."""

    @workflow
    async def parent(ctx: Context) -> None:
        ctx.child("kid")
        await ctx.receive("go", timeout=timedelta(seconds=1), default=None)
        ctx.child("kid")
        await ctx.receive("never")

    run = execution(parent)
    turn = run.begin()
    assert turn.children[0].run.id == "run-1:1:kid"
    rows = store([], turn)
    reopened = execution(parent, reopens=2)
    turn = reopened.begin(rows)
    assert (turn.outcome, turn.children) == (None, ())
    assert list(reopened.journal.kids) == ["run-1:1:kid"]
    turn = reopened.fire(START + SECOND)
    assert turn.children[0].run.id == "run-1:1:kid=2=r2"


def test_a_child_with_an_id_of_its_own_must_keep_it():
    """G13 G10"""

    def make(id: str) -> Any:
        @workflow
        async def parent(ctx: Context) -> None:
            await ctx.child("kid", id=id)

        return parent

    rows = store([], execution(make("a")).begin())
    turn = execution(make("b")).begin(rows)
    assert turn.outcome is not None
    assert turn.outcome.ending is Ending.BLOCKED


# What a step remembers of its attempts.


def recalled(*marks: entries.Entry) -> StepVerb:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(work, 1)

    rows = store([], execution(flow).begin())
    location = rows[-1].location
    for mark in marks:
        rows.append(EntryRow(location, rows[-1].seq + 1, mark.kind, START, encode_entry(mark)))
    turn = execution(flow).begin(rows)
    assert turn.outcome is None
    (verb,) = list(turn.started)
    assert isinstance(verb, StepVerb)
    return verb


def test_a_reopened_step_has_a_fresh_budget_and_goes_on_counting():
    """B8, S0-20"""
    lost = [entries.AttemptLost(1, "crash"), entries.AttemptBegun(2), entries.AttemptLost(2, "lapse")]
    verb = recalled(
        *lost,
        entries.AttemptSkipped("", START),
        entries.AttemptBegun(3),
        entries.AttemptFailed(3, ERROR, START + 9),
        entries.AttemptBegun(4),
        entries.Reopened("retry"),
    )
    assert (verb.attempt, verb.settled, verb.retry_at) == (4, True, None)
    assert (verb.failures, verb.crashes, verb.lapses, verb.skips) == (0, 0, 0, 0)
    verb = recalled(entries.Reopened("retry"), entries.AttemptBegun(2), entries.AttemptFailed(2, ERROR, START + 9))
    assert (verb.attempt, verb.failures, verb.settled, verb.retry_at) == (2, 1, True, START + 9)


def test_a_skipped_step_waits_without_an_attempt_being_counted_or_settled():
    """B10 S0-27"""
    verb = recalled(entries.AttemptSkipped("offline", START + 5))
    assert (verb.attempt, verb.settled, verb.skipped, verb.skips, verb.retry_at) == (1, False, True, 1, START + 5)
    verb = recalled(entries.AttemptSkipped("offline", START + 5), entries.AttemptBegun(1))
    assert (verb.attempt, verb.settled, verb.skipped, verb.skips, verb.retry_at) == (1, False, False, 1, None)
    verb = recalled(
        entries.AttemptFailed(1, ERROR, START + 3),
        entries.AttemptSkipped("offline", START + 5),
        entries.AttemptSkipped("offline", START + 7),
    )
    assert (verb.attempt, verb.settled, verb.skips, verb.failures, verb.retry_at) == (1, True, 2, 1, START + 7)
