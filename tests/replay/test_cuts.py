"""Where an ended run goes on: what is cut away, what is kept, and that what is kept replays."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.replay.test_random_workflows import program
from tests.replay.test_random_workflows import run as run_program
from tests.support.driving import START, Recording, execution, live, waits

from holdfast import Context, workflow
from holdfast.context.api import Break, Continue
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.errors import CannotReopen
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.cuts import Cut, CutFinder, cut_for_rerun, cut_for_resume, cut_for_retry
from holdfast.replay.entry import decode_entry, encode_entry
from holdfast.replay.location import Names, number
from holdfast.replay.turn import Ending

LATER = START + 3_600_000_000
NULL = msgspec.Raw(b"null")
ERROR = error_to_data(ValueError("no"))


def work(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise ValueError(f"no {x}")


class Story:
    """A history written by hand: readable names in, rows out."""

    def __init__(self) -> None:
        self.rows: list[EntryRow] = []
        self._names = Names()

    def at(self, path: str) -> str:
        """Return the key of a path; its new names are recorded."""
        return "/".join(self._key(part) for part in path.split("/"))

    def _key(self, part: str) -> str:
        if part[:1] in "!*@":
            return part
        if part[:1] in "^~":
            return part[0] + number(int(part[1:]))
        name, _, repeat = part.partition("#")
        key = self._names.key(name)
        if key is None:
            key = self._names.add(name)
            self.put("!" + key, entries.Name(name))
        return f"{key}#{number(int(repeat))}" if repeat else key

    def put(self, location: str, entry: entries.Entry) -> int:
        seq = len(self.rows) + 1
        at = max(START + seq, self.rows[-1].at if self.rows else 0)
        self.rows.append(EntryRow(location, seq, entry.kind, at, encode_entry(entry)))
        return seq

    def add(self, path: str, entry: entries.Entry) -> int:
        return self.put(self.at(path), entry)

    def step(self, path: str) -> tuple[int, int]:
        """Record a step that completed at once; return the seqs of call and end."""
        return self.add(path, entries.StepBegun(0)), self.completed(path)

    def completed(self, path: str) -> int:
        return self.add(path, entries.StepCompleted(1, NULL))

    def failed(self, path: str) -> int:
        return self.add(path, entries.StepFailure(1, ERROR))

    def compensation(self, index: int, name: str, undoes: str = "") -> int:
        where, step = self.at(f"compensate {name}"), self.at(undoes) if undoes else ""
        return self.add(f"^{index}", entries.CompensationAdded(where, name, NULL, NULL, step))

    def undo(self, index: int, name: str) -> None:
        self.step(f"^{index}/{name}")

    def ended(self, *failed: str) -> int:
        return self.put("!", entries.Ended("failed", [self.at(path) for path in failed]))


def marked(cut: Cut, rows: list[EntryRow]) -> list[str]:
    """Return the readable places of the marks of a cut, after checking how they are numbered."""
    assert [row.seq for row in cut.entries] == list(range(cut.seq, cut.seq + len(cut.entries)))
    marks = [row for row in cut.entries if row.kind == entries.Reopened.kind]
    assert cut.entries[: len(marks)] == marks
    assert [row.location for row in cut.entries[len(marks) + 1 :]] == list(cut.kept)
    assert {row.kind for row in cut.entries[len(marks) : len(marks) + 1]} <= {entries.Withheld.kind}
    names = Names()
    for row in rows:
        if row.kind == entries.Name.kind:
            names.add(decode_entry(row.kind, row.data).name)
    return [names.path(row.location) if row.location != "!" else "!" for row in marks]


def kept(rows: list[EntryRow], seq: int) -> list[EntryRow]:
    return [row for row in rows if row.seq < seq]


# Retry.


def test_a_failed_run_is_cut_at_the_failure_of_the_step_that_ended_it():
    """S0-20, B8 What was done before stays; the step that failed gets a fresh budget."""
    story = Story()
    story.step("reserve")
    story.add("charge", entries.StepBegun(0))
    story.add("charge", entries.AttemptFailed(1, ERROR, 5))
    story.add("charge", entries.AttemptBegun(2))
    failure = story.add("charge", entries.StepFailure(2, ERROR))
    story.ended("charge")
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, cut.messages, cut.children) == (failure, [], ())
    assert marked(cut, story.rows) == ["charge"]
    assert [(row.at, decode_entry(row.kind, row.data).how) for row in cut.entries] == [(LATER, "retry")]
    assert cut.reason == "the failure of step 'charge'"


def test_the_earliest_of_several_failures_is_the_cut_and_steps_called_before_it_keep_their_results():
    """B8 Results recorded after the cut, of calls made before it, follow it as facts that the code has not seen."""
    story = Story()
    for name in ("a", "b", "c", "open"):
        story.add(name, entries.StepBegun(0))
    story.completed("a")
    first = story.failed("b")
    story.completed("c")
    story.add("late", entries.StepBegun(0))
    story.failed("late")
    story.add("open", entries.Cancelled())
    story.ended("late", "b")
    cut = cut_for_retry(story.rows, LATER)
    assert cut.seq == first
    assert marked(cut, story.rows) == ["b"]
    assert cut.kept == (story.at("c"),)
    assert [row.kind for row in cut.entries] == [
        entries.Reopened.kind, entries.Withheld.kind, entries.StepCompleted.kind,
    ]  # fmt: skip
    assert [tuple(redone) for redone in cut.redone] == [("b", ""), ("open", "it was under way"), ("late", "")]


def test_a_wait_that_ran_out_is_called_again_so_that_its_deadline_is_set_again():
    """S0-20 The same for sends and publishes, which were refused."""
    calls = [
        entries.ReceiveBegun(["approval"], START + 50),
        entries.SleepBegun(START + 50),
        entries.SendBegun("other", "news", 0, "missing"),
        entries.PublishBegun("news", 0, "full"),
        entries.ChildBegun("c", 0, "taken"),
    ]
    ends = [entries.TimerFired(), entries.TimerFired(), entries.SendDone("missing"), entries.SendDone("full")]
    for call, end in zip(calls, [*ends, entries.ChildEnded("taken", error=ERROR)], strict=True):
        story = Story()
        story.step("before")
        begun = story.add("wait", call)
        story.add("wait", end)
        story.ended("wait")
        cut = cut_for_retry(story.rows, LATER)
        assert (cut.seq, marked(cut, story.rows), cut.children) == (begun, ["!"], ())


def test_a_run_that_missed_its_deadline_goes_on_from_before_it():
    """S0-20 With the deadline in its past it would only fail again."""
    story = Story()
    story.step("a")
    story.add("b", entries.StepBegun(0))
    passed = story.add("@", entries.TimerFired())
    story.add("b", entries.Cancelled())
    story.ended()
    assert cut_for_retry(story.rows, LATER).seq == passed


def test_a_failed_child_that_ended_the_run_is_reopened_with_it():
    """S0-20, B8 Its call stays, its end goes."""
    story = Story()
    story.add("kid", entries.ChildBegun("kid-1", 0))
    failure = story.add("kid", entries.ChildEnded("failed", error=ERROR))
    story.ended("kid")
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, cut.children, cut.messages) == (failure, ("kid-1",), [])
    assert marked(cut, story.rows) == ["!"]


def test_ends_of_children_and_messages_that_are_cut_away_reach_the_run_again():
    """B8 Nobody else will ever send them again."""
    story = Story()
    for name in ("good", "bad", "gone", "heard"):
        story.add(name, entries.ChildBegun(f"id-{name}", 0))
    story.add("heard", entries.ChildEnded("completed", msgspec.Raw(b"8")))
    story.add("taken", entries.ChildBegun("id-taken", 0, "taken"))
    story.add("broken", entries.StepBegun(0))
    story.add("receive x", entries.ReceiveBegun(["x"]))
    failure = story.failed("broken")
    own = story.add("receive x", entries.MessageReceived("x", "m1", msgspec.Raw(b"[1]")))
    good = story.add("good", entries.ChildEnded("completed", msgspec.Raw(b"7")))
    story.add("bad", entries.ChildEnded("cancelled"))
    story.add("taken", entries.ChildEnded("taken", error=ERROR))
    story.add("receive y", entries.ReceiveBegun(["y"]))
    event = story.add("receive y", entries.MessageReceived("y", "e1", NULL, "event"))
    story.add("late", entries.ChildBegun("id-late", 0))
    story.add("late", entries.ChildEnded("failed", error=ERROR))
    story.add("gone", entries.Cancelled())
    story.ended("broken")
    cut = cut_for_retry(story.rows, LATER)
    assert cut.seq == failure
    assert cut.messages == [
        Message(0, "message", "x", "m1", "[1]", START + own),
        Message(0, InboxKind.CHILD_ENDED, "id-good", "", story.rows[good - 1].data, START + good),
        Message(0, "event", "y", "e1", "null", START + event),
    ]
    assert (cut.children, cut.unheard) == (("id-bad",), ("id-gone",))


def test_a_run_whose_own_code_raised_is_cut_at_its_end():
    """S0-20 Everything it did stays; put right, the code goes on from there."""
    story = Story()
    story.step("a")
    assert cut_for_retry(story.rows, LATER).seq == len(story.rows) + 1
    end = story.ended()
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, marked(cut, story.rows)) == (end, ["!"])
    empty = cut_for_retry([], LATER)
    assert (empty.seq, marked(empty, [])) == (1, ["!"])


def test_the_marks_of_a_cut_are_not_older_than_what_they_follow():
    story = Story()
    story.step("a")
    cut = cut_for_resume(story.rows, START)
    assert [row.at for row in cut.entries] == [story.rows[-1].at]


# Compensated steps.


def test_a_compensated_step_counts_as_not_completed():
    """B17, B8 The first step that was undone, not the one that failed, is where a retry begins."""
    story = Story()
    story.step("look")
    _, reserved = story.step("reserve")
    story.compensation(0, "release", "reserve")
    story.step("charge")
    story.compensation(1, "refund", "charge")
    story.add("ship", entries.StepBegun(0))
    story.failed("ship")
    story.undo(1, "refund")
    story.undo(0, "release")
    story.ended("ship")
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, marked(cut, story.rows)) == (reserved, ["reserve"])
    assert cut.reason == "step 'reserve', which was undone"


def test_only_compensations_that_ran_count():
    """B17 A crash may leave the first ones alone; what they would undo is still done."""
    story = Story()
    story.step("reserve")
    story.compensation(0, "release", "reserve")
    _, charged = story.step("charge")
    story.compensation(1, "refund", "charge")
    story.add("ship", entries.StepBegun(0))
    story.failed("ship")
    story.undo(1, "refund")
    assert cut_for_resume(story.rows, LATER).seq == charged


def test_of_steps_that_ran_side_by_side_the_compensated_one_runs_again():
    """B17 B8 History says which of them was undone; the other keeps its result, whenever it ended."""
    for first, second in (("b", "a"), ("a", "b")):
        story = Story()
        story.step("before")
        story.add("a", entries.StepBegun(0))
        story.add("b", entries.StepBegun(0))
        ends = {first: story.completed(first), second: story.completed(second)}
        story.compensation(0, "undo a", "a")
        story.undo(0, "undo a")
        story.ended()
        cut = cut_for_retry(story.rows, LATER)
        assert (cut.seq, marked(cut, story.rows)) == (ends["a"], ["a"])
        assert cut.kept == ((story.at("b"),) if first == "a" else ())


def test_compensations_added_together_undo_as_many_steps():
    """B17 `a`, then `b`, then both of their compensations."""
    story = Story()
    story.step("before")
    _, a = story.step("a")
    story.step("b")
    story.compensation(0, "undo b", "b")
    story.compensation(1, "undo a", "a")
    story.undo(1, "undo a")
    story.undo(0, "undo b")
    story.ended()
    assert cut_for_retry(story.rows, LATER).seq == a


def test_a_wait_between_a_step_and_its_compensation_changes_nothing():
    """B17 Waiting is nothing to undo."""
    story = Story()
    _, a = story.step("a")
    story.add("receive x", entries.ReceiveBegun(["x"]))
    story.add("receive x", entries.MessageReceived("x", "m", NULL))
    story.add("@a1", entries.TimerFired())
    story.compensation(0, "undo a", "a")
    story.undo(0, "undo a")
    story.ended()
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, [message.id for message in cut.messages]) == (a, ["m"])


def test_a_compensated_child_is_started_again():
    """B17 A completed child is undone only by a compensation of its parent."""
    story = Story()
    begun = story.add("kid", entries.ChildBegun("kid-1", 0))
    story.add("kid", entries.ChildEnded("completed", NULL))
    story.compensation(0, "undo kid", "kid")
    story.undo(0, "undo kid")
    story.ended()
    cut = cut_for_retry(story.rows, LATER)
    assert (cut.seq, cut.messages, cut.children) == (begun, [], ())


def test_a_compensation_that_undoes_nothing_in_particular_cuts_everything_after_it():
    """B17 It was added before anything was done: what it undoes can only have been done later."""
    story = Story()
    added = story.compensation(0, "undo a")
    story.step("a")
    story.undo(0, "undo a")
    story.ended()
    assert cut_for_retry(story.rows, LATER).seq == added


def test_what_an_earlier_life_did_and_this_one_undid_cannot_be_done_again():
    """B17 The compensations survive continue-as-new, the history they belong to does not."""
    story = Story()
    story.put("!", entries.Renewed())
    story.add("^0", entries.CompensationAdded("", "undo old", NULL, NULL))
    story.step("a")
    story.undo(0, "undo old")
    story.ended()
    with pytest.raises(CannotReopen, match=r"run r-1 continued as new.*start a new run") as caught:
        cut_for_retry(story.rows, LATER, "r-1")
    assert caught.value.run_id == "r-1"


# Resume.


def test_a_cancelled_run_goes_on_from_its_cancel_request():
    """S4-14, B8 Completed steps stay, what was open is done again."""
    story = Story()
    story.step("a")
    story.add("b", entries.StepBegun(0))
    request = story.add("*", entries.CancelRequested())
    story.add("b", entries.Cancelled())
    story.step("cleanup")
    cut = cut_for_resume(story.rows, LATER)
    assert (cut.seq, marked(cut, story.rows), cut.reason) == (request, ["!"], "the cancel request")


def test_a_cancelled_run_that_was_compensated_goes_on_from_the_first_step_undone():
    """S4-14, B17"""
    story = Story()
    _, a = story.step("a")
    story.compensation(0, "undo a", "a")
    story.add("b", entries.StepBegun(0))
    story.add("*", entries.CancelRequested(True))
    story.add("b", entries.Cancelled())
    story.undo(0, "undo a")
    cut = cut_for_resume(story.rows, LATER)
    assert (cut.seq, marked(cut, story.rows)) == (a, ["a"])


def test_a_run_that_was_ended_from_outside_loses_nothing_when_it_is_resumed():
    """S4-14"""
    story = Story()
    story.step("a")
    cut = cut_for_resume(story.rows, LATER)
    assert (cut.seq, marked(cut, story.rows)) == (len(story.rows) + 1, ["!"])


# Rerun.


def test_a_rerun_does_the_named_call_and_all_after_it_again():
    """B8 A step keeps its call, so that its attempts go on counting; other calls are made again."""
    story = Story()
    story.step("a")
    _, again = story.step("work#2")
    nap = story.add("nap", entries.SleepBegun(START))
    story.add("nap", entries.TimerFired())
    _, inner = story.step("outer/~0/inner")
    for path, seq, marks in (("work#2", again, ["work#2"]), ("nap", nap, ["!"])):
        cut = cut_for_rerun(story.rows, path, LATER)
        assert (cut.seq, marked(cut, story.rows)) == (seq, marks)
    cut = cut_for_rerun(story.rows, "outer/~0/inner", LATER)
    assert (cut.seq, cut.reason) == (inner, "step 'outer/~0/inner'")


def test_a_rerun_from_a_step_that_never_ended_calls_it_again():
    """B8"""
    story = Story()
    story.step("a")
    called = story.add("b", entries.StepBegun(0))
    story.add("b", entries.Cancelled())
    assert cut_for_rerun(story.rows, "b", LATER).seq == called
    failed = Story()
    failed.add("a", entries.StepBegun(0))
    failure = failed.failed("a")
    failed.add("cleanup", entries.StepBegun(0))
    failed.ended("a")
    assert cut_for_rerun(failed.rows, "cleanup", LATER).seq == failure


def test_a_rerun_leaves_no_failure_no_cancel_and_no_undone_step_behind():
    """B8, B17 The earliest of them all: what follows would otherwise stop the run again, or build on what is undone."""
    story = Story()
    _, a = story.step("a")
    story.compensation(0, "undo a", "a")
    story.step("b")
    request = story.add("*", entries.CancelRequested(True))
    story.step("cleanup")
    assert cut_for_rerun(story.rows, "cleanup", LATER).seq == request
    story.undo(0, "undo a")
    assert cut_for_rerun(story.rows, "b", LATER).seq == a


def test_an_unknown_path_is_refused_with_those_there_are():
    """B8 At most twenty of them; compensations are no place to begin."""
    story = Story()
    story.step("charge")
    story.undo(0, "refund")
    for n in range(30):
        story.step(f"extra{n}")
    with pytest.raises(CannotReopen) as caught:
        cut_for_rerun(story.rows, "chrage", LATER, "r-1")
    text = str(caught.value)
    assert text.startswith("run r-1 has no call 'chrage'; did you mean 'charge'?; it has: charge, extra0, ")
    assert "extra18 and 11 more" in text
    assert "extra19" not in text
    with pytest.raises(CannotReopen, match="has no call 'undo#0/refund'"):
        cut_for_rerun(story.rows, "undo#0/refund", LATER)
    with pytest.raises(CannotReopen, match="it has: none"):
        cut_for_rerun([], "a", LATER)


# Loops that forget.


def counting(count: int, **options: Any) -> Any:
    @workflow(name="counting")
    async def counts(ctx: Context) -> int:
        before = await ctx.step("before", work, 0)

        async def body(ctx: Context, state: int) -> Any:
            state = await ctx.step(work, state)
            return Break(state) if state >= count else Continue(state)

        return before + await ctx.loop("loop", body, state=0, **options) + await ctx.step("after", work, 1)

    return counts


def test_a_cut_inside_what_a_loop_has_forgotten_is_refused_with_the_earliest_point():
    """S0-20, B8 Nothing is cut that could not be replayed."""
    rows = live(counting(8, commit_interval=2, history_every=2, history_keep=1)).rows
    state = next(row for row in rows if row.kind == entries.LoopCheckpoint.kind)
    begun = next(row for row in rows if row.kind == entries.LoopBegun.kind)
    checkpoint = decode_entry(state.kind, state.data)
    assert (checkpoint.iteration, checkpoint.trimmed) == (6, 5)
    with pytest.raises(CannotReopen) as caught:
        cut_for_rerun(rows, "loop/~5/work", LATER, "r-1")
    text = str(caught.value)
    assert "loop 'loop' has forgotten its iterations before 5" in text
    assert f"its iteration 6 (entry {state.seq + 1})" in text
    assert f"the beginning of the loop (entry {begun.seq})" in text
    assert cut_for_rerun(rows, "loop/~6/work", LATER).seq > state.seq


def test_a_loop_that_is_cut_away_as_a_whole_may_have_forgotten_what_it_likes():
    """B8 From before the loop, or from its beginning, everything there was is there."""
    flow = counting(8, commit_interval=2, history_every=2, history_keep=1)
    rows = live(flow).rows
    begun = next(row for row in rows if row.kind == entries.LoopBegun.kind)
    assert cut_for_rerun(rows, "loop", LATER).seq == begun.seq
    cut = cut_for_rerun(rows, "before", LATER)
    run = execution(flow)
    turn = run.begin([*kept(rows, cut.seq), *cut.entries])
    assert (turn.outcome, [verb.location for verb in turn.started]) == (None, ["a0"])
    run.drop()


def test_a_cut_after_the_beginning_of_a_loop_but_before_anything_forgotten_is_allowed():
    """B8 Entries that are missing leave a gap; before the first of them a history is complete."""
    story = Story()
    story.add("beside", entries.StepBegun(0))
    story.add("loop", entries.LoopBegun())
    done = story.completed("beside")
    forgotten = story.add("loop/~0/work", entries.StepBegun(0))
    story.completed("loop/~0/work")
    state = story.add("loop/!", entries.LoopCheckpoint(1, 1, NULL))
    rows = [row for row in story.rows if not forgotten <= row.seq < state]
    assert cut_for_rerun(rows, "beside", LATER).seq == done
    CutFinder(rows, "").check(forgotten)
    for seq in range(forgotten + 1, state + 1):
        with pytest.raises(CannotReopen):
            CutFinder(rows, "").check(seq)
    CutFinder(rows, "").check(state + 1)


def test_a_state_that_forgot_nothing_is_no_obstacle():
    """B8 The iterations are all there to be replayed."""
    rows = live(counting(8, commit_interval=1, history_every=100)).rows
    assert cut_for_rerun(rows, "loop/~2/work", LATER).seq < max(row.seq for row in rows)


# Every cut that is allowed replays.


@workflow
async def gathering(ctx: Context) -> list:
    async def chain(name: str) -> int:
        return await ctx.step(f"{name}2", work, await ctx.step(f"{name}1", work, 1))

    first = await asyncio.gather(chain("a"), chain("b"), ctx.step(work, 5), ctx.sleep(timedelta(seconds=1)))
    async with asyncio.TaskGroup() as group:
        group.create_task(chain("c"))
        group.create_task(chain("d"))
    return [*first, ctx.patched("new") and await ctx.step(work, 6)]


@workflow
async def joining(ctx: Context) -> str:
    async def stepping(ctx: Context) -> int:
        return await ctx.step(work, await ctx.step(work, 0))

    async def failing(ctx: Context) -> int:
        await ctx.step(fail, 1)
        return 0

    async def waiting(ctx: Context) -> Any:
        return await ctx.receive("x", int, timeout=timedelta(seconds=2), default=0)

    await ctx.join("all", {"a": stepping, "b": waiting, "c": stepping})
    won = await ctx.race("first", {"a": stepping, "b": waiting, "c": failing})
    return won.winner


@workflow
async def talking(ctx: Context) -> list:
    child: Any = ctx.child("other", id="kid", x=1)
    await ctx.send("somebody", "hello", 1)
    first = await ctx.receive(["x", "y"])
    try:
        async with asyncio.timeout(1):
            await ctx.receive("never")
    except TimeoutError:
        await ctx.step(work, 1)
    return [first, await ctx.receive("x", int, timeout=timedelta(hours=1), default=None), await child]


@workflow
async def nesting(ctx: Context) -> list:
    async def innermost(ctx: Context, state: int) -> Any:
        state = await ctx.step(work, state)
        return Continue(state) if state < 5 else Break(state)

    async def inner(ctx: Context, state: int) -> Any:
        await ctx.step("in", work, state)
        if state % 2:
            await ctx.loop("deep", innermost, state=0, commit_interval=1, history_every=2, history_keep=2)
        return Continue(state + 1) if state < 4 else Break(state)

    async def beside(ctx: Context) -> int:
        return sum([await ctx.step(work, x) for x in range(6)])

    async def looping(ctx: Context) -> list:
        async for it in ctx.loop("outer", state=list[Any](), commit_interval=1, history_every=3, history_keep=2):
            options = {"commit_interval": 2, "history_every": 2, "history_keep": 1}
            it.state = [*it.state, await it.loop("inner", inner, state=0, **options)]
            if it.index == 6:
                break
        return it.state

    await ctx.step("begin", work, 0)
    both = await ctx.join("both", {"loop": looping, "beside": beside})
    return [both["loop"], await ctx.step("end", work, 0)]


@workflow
async def undoing(ctx: Context) -> None:
    async def undoable(x: int) -> None:
        await ctx.step(f"do{x}", work, x)
        ctx.compensate(work, x)

    await ctx.step("look", work, 0)
    await asyncio.gather(undoable(1), undoable(2))
    await undoable(3)
    await ctx.step(fail, 4)


def assert_every_cut_replays(recording: Recording) -> Counter[str]:
    """Cut a history at every entry; where that is allowed it must replay, and stand where the run once stood."""
    rows, told = recording.rows, Counter[str]()
    stood = {
        (stored[-1].seq + 1 if stored else 1): waiting
        for stored, waiting in zip(recording.stored[:-1], recording.waiting[:-1], strict=True)
    }
    for seq in range(1, rows[-1].seq + 2):
        run = execution(recording.workflow, *recording.args)
        before = kept(rows, seq)
        at = max((row.at for row in before), default=START)
        mark = EntryRow("!", seq, entries.Reopened.kind, at, encode_entry(entries.Reopened("rerun")))
        turn = run.begin([*before, mark])
        waiting = waits(run)
        run.drop()
        blocked = turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED
        try:
            CutFinder(rows, "").check(seq)
        except CannotReopen:
            told["refused, would block" if blocked else "refused"] += 1
            continue
        told["allowed"] += 1
        assert not blocked, (seq, turn.outcome)
        if seq in stood:
            told["stood there"] += 1
            assert waiting == stood[seq], seq
            # A loop may record its state again, where the one of then was replaced by a later one.
            assert {row.kind for row in turn.entries} <= {entries.LoopCheckpoint.kind}, (seq, turn.entries)
    return told


@pytest.mark.parametrize("flow", [gathering, joining, talking, undoing], ids=lambda flow: flow.name)
def test_a_history_that_forgot_nothing_replays_from_every_cut(flow):
    """B8, S0-20 Any prefix is what a crash there would have left."""
    for seed in range(8):
        told = assert_every_cut_replays(live(flow, seed=seed, messages=[("x", 1), ("y", 2), ("x", 3)]))
        assert told["refused"] + told["refused, would block"] == 0
        assert told["stood there"] > 3


def test_a_history_with_loops_that_forgot_replays_from_every_cut_that_is_allowed():
    """B8, S0-20 And the refused ones are refused for a reason."""
    total = Counter[str]()
    for seed in range(4):
        total += assert_every_cut_replays(live(nesting, seed=seed))
    assert total["allowed"] > 50
    assert total["stood there"] > 8
    assert total["refused, would block"] > 50


@pytest.mark.parametrize("seed", range(40))
def test_a_random_workflow_replays_from_every_cut_that_is_allowed(seed):
    """B8 Verbs and asyncio in any nesting, with loops that forget."""
    dice = random.Random(seed)
    tree = program(dice, 3)

    @workflow(name="random")
    async def drawn(ctx: Context) -> int:
        return await run_program(ctx, tree)

    recording = live(drawn, seed=seed, messages=[("number", dice.randrange(9)) for _ in range(4)], stop=60)
    if recording.rows:
        assert_every_cut_replays(recording)


def test_a_run_that_was_undone_begins_again_at_the_first_step_of_it():
    """B17, B8 Both of two steps that ran side by side, and nothing before them."""
    for seed in range(6):
        rows = live(undoing, seed=seed).rows
        cut = cut_for_retry(rows, LATER)
        assert marked(cut, rows) == ["do1", "do2"]
        run = execution(undoing)
        turn = run.begin([*kept(rows, cut.seq), *cut.entries])
        assert (turn.outcome, sorted(verb.location for verb in turn.started)) == (None, ["a1", "a2"])
        run.drop()


def test_a_retried_run_completes_with_what_it_had():
    """S0-20, B8 The failed step is begun again, at its location; the others are not."""

    @workflow(name="order")
    async def order(ctx: Context) -> list:
        a, b = await asyncio.gather(ctx.step("a", work, 1), ctx.step("b", fail, 1))
        return [a, b]

    recording = live(order, seed=3)
    assert recording.outcome is not None
    assert recording.outcome.ending is Ending.FAILED
    rows = recording.rows
    failure = next(row for row in rows if row.kind == entries.StepFailure.kind)
    cut = cut_for_retry(rows, LATER)
    assert (cut.seq, cut.entries[0].location) == (failure.seq, failure.location)
    run = execution(order)
    turn = run.begin([*kept(rows, cut.seq), *cut.entries])
    assert turn.outcome is None
    for verb in list(turn.started):
        turn = run.apply(verb.location, entries.StepCompleted(2, msgspec.Raw(b"9")), LATER)
    assert turn.outcome is not None
    assert turn.outcome.ending is Ending.COMPLETED
    run.drop()
