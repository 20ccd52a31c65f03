"""Where an error came from: the calls that ended a failed run are recorded with its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import START, execution, finished, live, resumed

from holdfast import ChildFailed, Context, workflow
from holdfast.contract.rows import InboxKind, Message
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry, encode_entry
from holdfast.replay.failures import Origin, located, origins
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x


def fail(x: int) -> None:
    raise ValueError(f"no {x}")


def failed(recording: Any) -> list[str]:
    """Return the paths that the end of a run names, as stored."""
    row = recording.rows[-1]
    assert (row.kind, row.location) == (entries.Ended.kind, "!")
    ended = decode_entry(row.kind, row.data)
    assert ended.status == "failed"
    assert tuple(ended.failed) == recording.outcome.failed
    run = execution(recording.workflow, *recording.args)
    run.begin(recording.rows)
    return [run.journal.names.path(location) for location in ended.failed]


async def plain(ctx: Context) -> None:
    await ctx.step(work, 1)
    await ctx.step(fail, 1)


async def wrapped(ctx: Context) -> None:
    try:
        await ctx.step(fail, 1)
    except ValueError as error:
        raise RuntimeError("worse") from error


async def while_handling(ctx: Context) -> None:
    try:
        await ctx.step(fail, 1)
    except ValueError:
        await ctx.step("again", fail, 2)


async def suppressed(ctx: Context) -> None:
    try:
        await ctx.step(fail, 1)
    except ValueError:
        raise RuntimeError("unrelated") from None


async def grouped(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.step("a", fail, 1))  # type: ignore[arg-type]


async def joined(ctx: Context) -> None:
    async def branch(ctx: Context) -> None:
        await ctx.step(fail, 1)

    await ctx.join("both", {"x": branch, "y": branch})


async def timed_out(ctx: Context) -> None:
    await ctx.receive("never", timeout=timedelta(seconds=1))


async def by_itself(ctx: Context) -> None:
    await ctx.step(work, 1)
    raise ValueError("the code's own")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (plain, ["fail"]),
        (wrapped, ["fail"]),
        (while_handling, ["again", "fail"]),
        (suppressed, []),
        (grouped, ["a"]),
        (joined, ["both/x/fail", "both/y/fail"]),
        (timed_out, ["receive never"]),
        (by_itself, []),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_end_of_a_failed_run_names_the_calls_it_came_from(function, expected):
    """B8: what a retry has to run again"""
    recording = live(workflow(function))
    assert recording.outcome.ending is Ending.FAILED
    assert sorted(failed(recording)) == sorted(expected)
    turn, _ = resumed(recording, recording.workflow)
    assert (turn.entries, turn.outcome) == ([], recording.outcome)


def test_the_attempts_of_the_step_that_failed_are_told():
    """S0-9 S4-23 A dead letter says how often the work was tried."""
    flow = workflow(plain)
    run = execution(flow)
    first = run.begin()
    turn = run.apply(first.started[0].location, entries.StepCompleted(1, b"1"), START)
    verb = turn.started[0]
    verb.attempt = 3
    turn = run.apply(verb.location, entries.StepFailure(3, error_to_data(ValueError("no"))), START)
    assert (turn.outcome.failed, turn.outcome.origin.attempts) == ((verb.location,), 3)


def test_a_failed_child_is_named_even_when_its_failure_came_as_a_value():
    """B8, B18"""

    @workflow
    async def parent(ctx: Context) -> None:
        failure: object = await ctx.child("kid", propagate=False)
        assert isinstance(failure, ChildFailed)
        raise failure

    run = execution(parent)
    child = run.begin().children[0].run
    ended = encode_entry(entries.ChildEnded("failed", error=error_to_data(ValueError("no"))))
    turn = run.deliver([Message(1, InboxKind.CHILD_ENDED, child.id, "", ended, START)], START)
    assert [run.journal.names.path(location) for location in turn.outcome.failed] == ["kid"]


def test_a_completed_or_cancelled_run_records_no_end():
    """B8"""

    @workflow
    async def waiting(ctx: Context) -> None:
        await ctx.receive("go")

    for message in (("go", 1), "cancel"):
        recording = live(waiting, messages=[message])
        assert recording.outcome.ending is not Ending.FAILED
        assert not [row for row in recording.rows if row.kind == entries.Ended.kind]


def test_an_end_that_a_reopened_run_left_behind_does_not_hide_the_next_one():
    """B8"""
    flow = workflow(plain)
    recording = live(flow)
    before = recording.rows[:-2]  # without the failure and the end
    old = recording.rows[-1]._replace(seq=before[-1].seq + 1, data=encode_entry(entries.Ended("failed", ["a9"])))
    turn, stored = finished(flow, [*before, old])
    assert turn.outcome.ending is Ending.FAILED
    ends = [decode_entry(row.kind, row.data).failed for row in stored if row.kind == entries.Ended.kind]
    assert ends == [["a9"], list(recording.outcome.failed)]


def test_circles_of_errors_and_errors_that_take_no_attributes_do_no_harm():
    """B8 The calls that an error came from are found, or none."""

    class Slim(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError("frozen")

    first, second = located(ValueError(1), "a1"), located(ValueError(2), "a2", 4)
    first.__cause__, second.__cause__ = second, first
    assert origins(first) == {"a1": Origin(0), "a2": Origin(4)}
    assert origins(located(Slim(), "a1")) == {}
