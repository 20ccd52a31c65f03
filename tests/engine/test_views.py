"""What a history looks like to people: its steps, its timeline, and what watchers are told of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
from tests.replay.test_cuts import ERROR, NULL, Story

from holdfast import Break, Context, Continue, Retry, activity, workflow
from holdfast.changes import Change
from holdfast.clock import to_datetime
from holdfast.contract.rows import AuditRow, EntryRow, EvidenceRow, LetterRow, RunRow, Status
from holdfast.engine.views.changes import changes_of
from holdfast.engine.views.steps import Step, steps_of
from holdfast.engine.views.timeline import TimelineItem, timeline
from holdfast.errors import StepCrashed, StepSkipped
from holdfast.payloads.codec import encode, error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.cuts import Cut, cut_for_rerun, cut_for_retry
from holdfast.replay.past import names_of
from holdfast.testing import TestEngine

START = 1_700_000_000_000_000
HOUR = timedelta(hours=1)
TOLD_ERROR = {"type": "ValueError", "message": "no"}


def by_path(rows: list[EntryRow]) -> dict[str, Step]:
    return {step.path: step for step in steps_of("r-1", rows)}


def moment(seq: int) -> Any:
    return to_datetime(START + seq)


# Steps.


async def test_the_steps_of_a_run_tell_how_each_of_them_went():
    """S0-6, S0-58, S1-21, S3-18, S4-4 Attempts, times, last error and result, also of a step that succeeded at last."""
    tries = 0

    @activity(retry=Retry(max_attempts=3, initial_interval=HOUR, coefficient=1))
    async def flaky(x: int) -> dict[str, int]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ValueError(f"try {tries}")
        return {"x": x}

    @activity(retry=Retry(max_attempts=1))
    async def broken() -> None:
        raise LookupError("gone")

    @activity(retry=Retry(max_attempts=9, initial_interval=24 * HOUR))
    async def hopeless() -> None:
        raise OSError("down")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(flaky, 1)
        try:
            await ctx.step(broken)
        except LookupError:
            pass
        try:
            async with asyncio.timeout(3600):
                await ctx.step(hopeless)
        except TimeoutError:
            pass
        await ctx.step("last", str, 5)

    async with TestEngine(workflows=[flow]) as engine:
        begin = engine.jumping.now()
        run = await engine.start(flow, id="r-1")
        await run.result()
        rows = await engine.store.history((await engine._link.row("r-1")).key)
    steps = by_path(rows)
    assert [(step.path, step.status, step.attempts, step.failures) for step in steps.values()] == [
        ("flaky", "completed", 3, 2),
        ("broken", "failed", 1, 1),
        ("hopeless", "cancelled", 1, 1),
        ("last", "completed", 1, 0),
    ]
    first = steps["flaky"]
    hours = [to_datetime(begin) + n * HOUR for n in range(3)]
    assert (first.first_started_at, first.started_at, first.finished_at) == (hours[0], hours[2], hours[2])
    assert (first.last_attempt_at, first.next_attempt_at, first.result) == (hours[2], None, {"x": 1})
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("ValueError", "try 2")
    assert "flaky" in first.error.traceback
    assert (first.idempotency_key, first.name, first.compensation) == ("r-1:flaky", "flaky", False)
    assert steps["last"].error is None
    assert (steps["hopeless"].finished_at, steps["hopeless"].next_attempt_at) == (hours[2] + HOUR, None)


def test_a_step_under_way_says_what_comes_next():
    """S0-7, S0-58, S4-29, S3-23 A failed attempt is there to see before the next one begins."""
    story = Story()
    call = story.add("outer/~0/charge#2", entries.StepBegun(0))
    path = "outer/~0/charge#2"
    [step] = steps_of("r-1", story.rows)
    assert (step.path, step.name, step.status, step.started_at) == (path, "charge", "running", moment(call))
    failed = story.add(path, entries.AttemptFailed(1, ERROR, START + 900))
    [step] = steps_of("r-1", story.rows)
    assert (step.status, step.attempts, step.failures) == ("waiting", 1, 1)
    assert (step.last_attempt_at, step.next_attempt_at, step.error) == (moment(failed), moment(900), ERROR)
    begun = story.add(path, entries.AttemptBegun(2))
    [step] = steps_of("r-1", story.rows)
    assert (step.status, step.attempts, step.started_at) == ("running", 2, moment(begun))
    assert (step.first_started_at, step.last_attempt_at, step.next_attempt_at) == (moment(call), moment(failed), None)
    story.add(path, entries.AttemptLost(2, "crash"))
    [step] = steps_of("r-1", story.rows)
    assert (step.status, step.attempts, step.failures, step.error) == ("pending", 2, 1, ERROR)


def test_a_step_that_crashed_too_often_or_was_never_tried_failed_without_an_attempt_that_did():
    """B34 B1 S0-58 As its dead letter tells: failures are attempts that threw or timed out."""
    crashed = error_to_data(StepCrashed("3 attempts died"))
    story = Story()
    story.add("charge", entries.StepBegun(0))
    story.add("charge", entries.AttemptFailed(1, ERROR, START + 900))
    story.add("charge", entries.AttemptBegun(2))
    story.add("charge", entries.AttemptLost(2, "crash"))
    story.add("charge", entries.StepFailure(2, crashed))
    story.add("skip", entries.StepBegun(0))
    story.add("skip", entries.StepFailure(1, error_to_data(StepSkipped("too often"))))
    story.add("isolated", entries.StepBegun(0))
    story.add("isolated", entries.StepFailure(1, crashed))  # its own process died, which counts as any failure does
    steps = by_path(story.rows)
    assert {path: (step.status, step.failures) for path, step in steps.items()} == {
        "charge": ("failed", 1),
        "skip": ("failed", 0),
        "isolated": ("failed", 1),
    }
    cut = cut_for_rerun(story.rows, "charge", START + 10_000)
    again = by_path([*(row for row in story.rows if row.seq < cut.seq), *cut.entries])
    assert again["charge"].failures == 1


def test_a_skipped_step_has_not_been_attempted():
    """S0-7 Skips are counted apart, and say when the condition is asked again."""
    story = Story()
    story.add("upload", entries.StepBegun(0))
    story.add("upload", entries.AttemptSkipped("offline", START + 500))
    story.add("upload", entries.AttemptSkipped("offline", START + 600))
    [step] = steps_of("r-1", story.rows)
    assert (step.status, step.attempts, step.skips, step.failures) == ("skipped", 0, 2, 0)
    assert (step.started_at, step.first_started_at, step.next_attempt_at) == (None, None, moment(600))
    begun = story.add("upload", entries.AttemptBegun(1))
    done = story.completed("upload")
    [step] = steps_of("r-1", story.rows)
    assert (step.status, step.attempts, step.skips, step.next_attempt_at) == ("completed", 1, 2, None)
    assert (step.first_started_at, step.finished_at) == (moment(begun), moment(done))


def test_a_reopened_step_is_pending_again_and_keeps_its_past():
    """S0-58, B8"""
    story = Story()
    story.add("a", entries.StepBegun(0))
    story.failed("a")
    story.ended("a")
    cut = cut_for_retry(story.rows, START + 100)
    reopened = [*story.rows[: cut.seq - 1], *cut.entries]
    [step] = steps_of("r-1", reopened)
    assert (step.status, step.attempts, step.finished_at) == ("pending", 1, None)
    reopened.append(EntryRow(cut.entries[0].location, cut.seq + 1, entries.AttemptBegun.kind, START + 101, "[2]"))
    [step] = steps_of("r-1", reopened)
    assert (step.status, step.attempts, step.started_at) == ("running", 2, moment(101))


def test_the_steps_of_compensations_are_told_apart():
    """S4-4, B17"""
    story = Story()
    story.step("reserve")
    story.compensation(0, "release")
    story.undo(0, "release")
    steps = steps_of("r-1", story.rows)
    assert [(step.path, step.name, step.compensation) for step in steps] == [
        ("reserve", "reserve", False),
        ("undo#0/release", "release", True),
    ]
    assert steps[1].idempotency_key == "r-1:compensate@release"


# The timeline.


def run_row(**changes: Any) -> RunRow:
    row = RunRow(
        key=1, id="r-1", workflow="order", version="3", status=Status.RUNNING, wait="", due=None, epoch=1, owner=None,
        generation=0, seed=0, digest=0, inbox=0, claims=0, input="{}", output=None, error=None, parent=None,
        created=START, updated=START, ended=None,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def told(rows: list[EntryRow], archived: list[EntryRow] | None = None, **run: Any) -> list[TimelineItem]:
    return timeline(run_row(**run), rows, [], [], [], archived or [])


def brief(items: list[TimelineItem]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(item.what, item.where, item.detail) for item in items]


def test_the_timeline_tells_everything_a_run_did_in_words():
    """S3-17, S3-19, S4-5 Every entry that means something, with names and not with keys."""
    story = Story()
    story.add("charge", entries.StepBegun(0))
    story.add("charge", entries.AttemptFailed(1, ERROR, START + 900))
    story.add("charge", entries.AttemptBegun(2))
    story.add("charge", entries.AttemptLost(2, "crash"))
    story.add("charge", entries.AttemptSkipped("offline", START + 950))
    story.add("charge", entries.StepCompleted(3, msgspec.Raw(b"[1]")))
    story.compensation(0, "refund")
    story.add("nap", entries.SleepBegun(START + 10))
    story.add("nap", entries.TimerFired())
    story.add("receive ok", entries.ReceiveBegun(["ok"], START + 20))
    story.add("receive ok", entries.TimerFired())
    story.add("receive ok#2", entries.ReceiveBegun(["ok"]))
    story.add("receive ok#2", entries.MessageReceived("ok", "m1", msgspec.Raw(b'{"by":"kim"}'), "event"))
    story.add("send news", entries.SendBegun("other", "news", 0))
    story.add("send news", entries.SendDone())
    story.add("publish news", entries.PublishBegun("news", 0, "full"))
    story.add("publish news", entries.SendDone("full"))
    story.add("kid", entries.ChildBegun("kid-1", 0))
    story.add("kid", entries.ChildEnded("failed", error=ERROR))
    story.add("all", entries.RaceBegun(["x", "y"]))
    story.add("all/x", entries.BranchEnded("completed"))
    story.add("all", entries.RaceWon("x"))
    story.add("days", entries.LoopBegun())
    story.add("days/!", entries.LoopCheckpoint(4, 2, msgspec.Raw(b"7")))
    story.add("days", entries.LoopEnded(5))
    story.add("all/x/patched faster", entries.Patched())
    story.put("!", entries.AttributesSet(msgspec.Raw(b'{"tier":"gold"}')))
    story.add("evidence offer", entries.EvidenceAdded("offer", "e-1"))
    story.add("reply", entries.Replied("m1"))
    story.add("@", entries.TimerFired())
    story.add("@a3", entries.TimerFired())
    story.add("*", entries.CancelRequested(True))
    story.add("late", entries.StepBegun(0))
    story.add("late", entries.Cancelled())
    story.add("^0/refund", entries.StepBegun(0))
    story.failed("^0/refund")
    assert brief(told(story.rows)) == [
        ("run started", "", {"workflow": "order", "version": "3"}),
        ("attempt begun", "charge", {"attempt": 1}),
        ("attempt failed", "charge", {"attempt": 1, "error": TOLD_ERROR, "retry_at": moment(900)}),
        ("attempt begun", "charge", {"attempt": 2}),
        ("attempt lost", "charge", {"attempt": 2, "why": "crash"}),
        ("attempt skipped", "charge", {"reason": "offline", "check_at": moment(950)}),
        ("step completed", "charge", {"attempt": 3, "result": [1]}),
        ("compensation added", "", {"name": "refund", "args": None, "kwargs": None}),
        ("sleep begun", "nap", {"until": moment(10)}),
        ("sleep over", "nap", {}),
        ("waiting for a message", "receive ok", {"names": ["ok"], "until": moment(20)}),
        ("no message came in time", "receive ok", {}),
        ("waiting for a message", "receive ok#2", {"names": ["ok"]}),
        (
            "message received",
            "receive ok#2",
            {"name": "ok", "id": "m1", "source": "event", "payload": {"by": "kim"}},
        ),
        ("message sent", "send news", {"target": "other", "name": "news"}),
        ("event published", "publish news", {"name": "news"}),
        ("event refused", "publish news", {"reason": "full"}),
        ("child begun", "kid", {"id": "kid-1"}),
        ("child ended", "kid", {"id": "kid-1", "status": "failed", "error": TOLD_ERROR}),
        ("race begun", "all", {"branches": ["x", "y"]}),
        ("branch ended", "all/x", {"status": "completed"}),
        ("race won", "all", {"winner": "x"}),
        ("loop begun", "days", {}),
        ("loop state", "days", {"iteration": 4, "forgotten": 2, "state": 7}),
        ("loop ended", "days", {"iterations": 5}),
        ("patched", "all/x", {"name": "faster"}),
        ("attributes set", "", {"values": {"tier": "gold"}}),
        ("evidence", "", {"kind": "offer", "id": "e-1"}),
        ("reply", "reply", {"to": "m1"}),
        ("deadline of the run passed", "", {}),
        ("timer fired", "timer#3", {}),
        ("cancel requested", "", {"compensate": True}),
        ("attempt begun", "late", {"attempt": 1}),
        ("given up", "late", {}),
        ("compensation started", "undo#0/refund", {"attempt": 1}),
        ("compensation failed", "undo#0/refund", {"attempt": 1, "error": TOLD_ERROR}),
    ]


async def test_the_timeline_tells_once_that_a_loop_keeps_its_whole_history():
    """S1-29 And what hinders it: another task runs beside it."""

    @workflow
    async def watching(ctx: Context) -> None:
        async def body(inner: Context, round: int) -> Continue[int] | Break[None]:
            await inner.step("look", int)
            return Continue(round + 1) if round < 50 else Break(None)

        beside = asyncio.create_task(asyncio.Event().wait(), name="beside")
        await ctx.loop("days", body, state=0)
        beside.cancel()

    async with TestEngine(workflows=[watching]) as engine:
        run = await engine.start(watching)
        await run.result()
        [item] = [item for item in await run.timeline() if item.what == "loop keeps its history"]
    assert item.where == "days"
    assert "beside runs beside it" in item.detail["hindrance"]


def test_the_timeline_merges_what_others_noted_about_the_run_by_time():
    """S3-19, S4-5 Operators, evidence and dead letters stand among the facts; the end of the run is last."""
    story = Story()
    story.step("a")
    story.add("evidence offer", entries.EvidenceAdded("offer", "e-1"))
    story.ended()
    last = len(story.rows)
    audit = AuditRow(n=1, at=START + 1, actor="kim", action="pause", target="r-1", detail="", previous="", hash="")
    evidence = EvidenceRow(
        run="r-1", n=1, id="e-1", kind="offer", data='{"rent":900}', at=START + last, previous="", hash=""
    )
    letter = LetterRow(
        id="d-1", kind="work", run="r-1", workflow="order", step="a", name="", attempts=3, error=None, payload="",
        target_status="", sent=None, at=START + last, acknowledged=None, outcome="",
    )  # fmt: skip
    ended = run_row(
        status=Status.FAILED,
        ended=START + last,
        error=encode(error_to_data(ValueError("no"))).decode(),
        compensation='[{"name":"undo"}]',
        actor="web",
        begins=START + 1,
    )
    items = timeline(ended, story.rows, [audit], [letter], [evidence], [])
    assert brief(items) == [
        ("run started", "", {"workflow": "order", "version": "3", "actor": "web", "begins": moment(1)}),
        ("pause", "", {"actor": "kim"}),
        ("attempt begun", "a", {"attempt": 1}),
        ("step completed", "a", {"attempt": 1, "result": None}),
        ("evidence", "", {"kind": "offer", "id": "e-1", "data": {"rent": 900}}),
        ("dead letter", "a", {"id": "d-1", "kind": "work", "attempts": 3}),
        ("run failed", "", {"status": "failed", "error": TOLD_ERROR, "compensation": [{"name": "undo"}]}),
    ]
    assert [item.at for item in items] == sorted(item.at for item in items)


def reopened(story: Story, cut: Cut, archived: list[EntryRow]) -> None:
    """Do to a history what a store does."""
    archived += story.rows[cut.seq - 1 :]
    story.rows[cut.seq - 1 :] = cut.entries
    names = names_of(story.rows)
    story._names = names


def test_what_a_reopening_cut_away_is_told_with_the_names_it_had():
    """B8, S4-5 After a reopening the same number may stand for another name; each history keeps its own."""
    story, archived = Story(), list[EntryRow]()
    story.step("a")
    story.add("b", entries.StepBegun(0))
    story.failed("b")
    story.step("apology")
    story.ended("b")
    reopened(story, cut_for_retry(story.rows, START + 100), archived)
    story.completed("b")
    story.step("thanks")
    story.step("more")
    reopened(story, cut_for_rerun(story.rows, "more", START + 200), archived)
    story.completed("more")
    cut_away = {"cut_away": True}
    assert brief(told(story.rows, archived))[4:] == [
        ("step failed", "b", {"attempt": 1, "error": TOLD_ERROR, **cut_away}),
        ("attempt begun", "apology", {"attempt": 1, **cut_away}),
        ("step completed", "apology", {"attempt": 1, "result": None, **cut_away}),
        ("run failed", "", {"failed": ["b"], **cut_away}),
        ("run reopened", "", {"how": "retry", "steps": ["b"]}),
        ("step completed", "b", {"attempt": 1, "result": None}),
        ("attempt begun", "thanks", {"attempt": 1}),
        ("step completed", "thanks", {"attempt": 1, "result": None}),
        ("attempt begun", "more", {"attempt": 1}),
        ("step completed", "more", {"attempt": 1, "result": None, **cut_away}),
        ("run reopened", "", {"how": "rerun", "steps": ["more"]}),
        ("step completed", "more", {"attempt": 1, "result": None}),
    ]


def test_what_two_reruns_cut_away_is_kept_apart_by_the_times_of_the_reopenings():
    """B8, S4-5 A completed run leaves no mark of its end."""
    story, archived = Story(), list[EntryRow]()
    story.step("a")
    story.step("b")
    story.step("old")
    reopened(story, cut_for_rerun(story.rows, "b", START + 100), archived)
    story.completed("b")
    for name in ("new", "newer", "newest"):
        story.step(name)
    reopened(story, cut_for_rerun(story.rows, "newest", START + 200), archived)
    assert [row.seq for row in archived] == sorted(row.seq for row in archived)
    lost = [item.where for item in told(story.rows, archived) if "cut_away" in item.detail]
    assert lost == ["b", "old", "old", "newest"]


def test_reopenings_of_one_instant_are_told_in_the_order_they_happened():
    """B8 Equal times, as a test clock gives them, keep the order of recording; one reopening is one item."""
    story, archived = Story(), list[EntryRow]()
    for name in ("a", "b"):
        story.add(name, entries.StepBegun(0))
    story.failed("a")
    story.failed("b")
    story.ended("a", "b")
    reopened(story, cut_for_retry(story.rows, START), archived)
    story.completed("b")
    story.failed("a")
    story.ended("a")
    reopened(story, cut_for_retry(story.rows, START), archived)
    story.completed("a")
    still = [row._replace(at=START) for row in story.rows]
    items = told(still, [row._replace(at=START) for row in archived])
    assert [(item.what, item.where or item.detail.get("steps")) for item in items][3:] == [
        ("step failed", "a"),
        ("step failed", "b"),
        ("run failed", None),
        ("run reopened", ["a", "b"]),
        ("step completed", "b"),
        ("step failed", "a"),
        ("run failed", None),
        ("run reopened", ["a"]),
        ("step completed", "a"),
    ]


# What watchers are told.


def changes(story: Story) -> list[Change]:
    return list(changes_of("r-1", "order", names_of(story.rows), story.rows))


def test_watchers_are_told_of_every_attempt_and_its_end():
    """S0-46 Started, completed and failed, with attempt numbers."""
    story = Story()
    story.add("charge", entries.StepBegun(0))
    story.add("charge", entries.AttemptFailed(1, ERROR, START + 900))
    story.add("charge", entries.AttemptBegun(2))
    story.add("charge", entries.AttemptLost(2, "crash"))
    story.add("charge", entries.AttemptSkipped("offline", START + 950))
    done = story.add("charge", entries.StepCompleted(3, msgspec.Raw(b"[1]")))
    story.add("ship", entries.StepBegun(0))
    story.failed("ship")
    seen = changes(story)
    assert [(change.type, change.step, change.attempt, change.data) for change in seen] == [
        ("step.started", "charge", 1, {}),
        ("attempt.failed", "charge", 1, {"error": TOLD_ERROR, "retry_at": moment(900)}),
        ("step.started", "charge", 2, {}),
        ("attempt.lost", "charge", 2, {"why": "crash"}),
        ("step.skipped", "charge", 0, {"reason": "offline", "check_at": moment(950)}),
        ("step.completed", "charge", 3, {"result": [1]}),
        ("step.started", "ship", 1, {}),
        ("step.failed", "ship", 1, {"error": TOLD_ERROR}),
    ]
    assert {(change.run_id, change.workflow) for change in seen} == {("r-1", "order")}
    assert seen[5].at == moment(done)


def test_watchers_are_told_of_compensations_by_types_of_their_own():
    """S4-22 compensation.started, .completed and .failed; a failed attempt is one like any other."""
    story = Story()
    story.undo(1, "refund")
    story.add("^0/release", entries.StepBegun(0))
    story.add("^0/release", entries.AttemptFailed(1, ERROR, START + 900))
    story.add("^0/release", entries.AttemptBegun(2))
    story.add("^0/release", entries.StepFailure(2, ERROR))
    assert [(change.type, change.step, change.attempt) for change in changes(story)] == [
        ("compensation.started", "undo#1/refund", 1),
        ("compensation.completed", "undo#1/refund", 1),
        ("compensation.started", "undo#0/release", 1),
        ("attempt.failed", "undo#0/release", 1),
        ("compensation.started", "undo#0/release", 2),
        ("compensation.failed", "undo#0/release", 2),
    ]


def test_watchers_are_told_what_happened_to_the_run():
    """S0-46 Messages, attributes, evidence, a cancel request; a reopening once, however many steps run again."""
    story = Story()
    story.add("receive ok", entries.ReceiveBegun(["ok"]))
    story.add("receive ok", entries.MessageReceived("ok", "m1", NULL))
    story.put("!", entries.AttributesSet(msgspec.Raw(b'{"tier":"gold"}')))
    story.add("evidence offer", entries.EvidenceAdded("offer", "e-1"))
    story.add("*", entries.CancelRequested(True))
    story.add("a", entries.Reopened("retry"))
    story.add("b", entries.Reopened("retry"))
    story.add("nap", entries.SleepBegun(START))
    assert [(change.type, change.step, change.status, change.data) for change in changes(story)] == [
        ("message.received", "", "", {"name": "ok", "id": "m1", "source": "message"}),
        ("attributes.set", "", "", {"attributes": {"tier": "gold"}}),
        ("evidence.added", "", "", {"kind": "offer", "id": "e-1"}),
        ("run.cancelling", "", "cancelling", {"compensate": True}),
        ("run.reopened", "", "", {"how": "retry"}),
    ]


def test_watchers_are_told_of_new_entries_only():
    """S0-46 The names come from the run in memory; nothing stored is read again."""
    story = Story()
    story.step("a")
    names, before = names_of(story.rows), len(story.rows)
    story.rows.append(EntryRow("a0", before + 1, entries.AttemptBegun.kind, START, "[2]"))
    [change] = changes_of("r-1", "order", names, iter(story.rows[before:]))
    assert (change.type, change.step, change.attempt) == ("step.started", "a", 2)
