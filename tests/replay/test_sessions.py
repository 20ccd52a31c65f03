"""One run as replay sees it: an execution of one workflow, the entries it writes, and how it can come out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.driving import START, answer, execution, live, paths, store

from holdfast import Context, workflow
from holdfast.context.steps import StepVerb
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.execution import Execution
from holdfast.replay.turn import Ending

ELSEWHERE = "a workflow that is not here"


def work(x: int) -> int:
    if x < 0:
        raise ValueError("no")
    return x + 1


@workflow
async def session(ctx: Context, end: str) -> int:
    number = await ctx.step(work, 1)
    ctx.child(ELSEWHERE)
    if end == "failed":
        await ctx.step("refuse", work, -1)
    if end == "renewed":
        ctx.continue_as_new("completed")
    if end == "timer":
        await ctx.sleep(timedelta(seconds=1))
    if end == "message":
        await ctx.receive("word")
    return number


@pytest.mark.parametrize(
    ("end", "ending", "payload", "condition"),
    [
        ("completed", Ending.COMPLETED, "2", None),
        ("failed", Ending.FAILED, None, None),
        ("renewed", Ending.RENEWED, '{"end":"completed"}', None),
        ("timer", None, None, (START + 1_000_000, [])),
        ("message", None, None, (None, ["word"])),
    ],
)
def test_a_session_of_one_workflow_comes_out_completed_failed_renewed_or_suspended(end, ending, payload, condition):
    """S2-1 It keeps nothing: another one that is given the history comes out alike; of other workflows it has names."""
    run = execution(session, end)
    turn = run.begin()
    rows, children = store([], turn), []
    while steps := [verb for verb in turn.started if isinstance(verb, StepVerb)]:
        turn = run.apply(steps[0].location, answer(steps[0]), START)
        rows = store(rows, turn)
        children += [child.run.workflow for child in turn.children]
    assert children == [ELSEWHERE]
    again = execution(session, end)
    outcomes = [turn.outcome, again.begin(rows).outcome]
    if ending is None:
        assert outcomes == [None, None]
        assert _condition(run) == _condition(again) == condition
    else:
        assert [(each.ending, each.payload) for each in outcomes if each is not None] == [(ending, payload)] * 2


def _condition(run: Execution) -> tuple[int | None, list[str]]:
    """Return what a suspended run waits for: when it is due, and the names it would take."""
    return run.next_due(), [name for receive in (run.journal.receivers or {}).values() for name in receive.names]


def test_an_entry_has_an_identity_a_place_and_a_kind_and_a_step_has_an_output_or_an_error():
    """S1-20 S1-31 No two entries of a run have one number; each is written once, by one turn."""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("good", work, 1)
        try:
            await ctx.step("bad", work, -1)
        except ValueError:
            await ctx.step("good again", work, 2)

    recording = live(flow)
    assert len({row.seq for row in recording.rows}) == len(recording.rows)
    assert [row for turn in recording.turns for row in turn[0]] == recording.rows
    names = paths(recording.rows)
    ends = {names[row.seq]: decode_entry(row.kind, row.data) for row in recording.rows if names[row.seq]}
    good, bad, again = (ends[path] for path in ("good", "bad", "good again"))
    assert [type(each) for each in (good, bad, again)] == [
        entries.StepCompleted,
        entries.StepFailure,
        entries.StepCompleted,
    ]
    assert (bytes(good.result), bytes(again.result)) == (b"2", b"3")
    assert (bad.error.type, bad.error.message, hasattr(bad, "result")) == ("ValueError", "no", False)
