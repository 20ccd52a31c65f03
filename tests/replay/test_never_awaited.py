"""A verb that was called and never awaited fails the run; what counts as awaited does not, live and on replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from inspect import currentframe
from typing import Any

import pytest
from tests.support.driving import Recording, assert_replays, execution, finished, live, paths

from holdfast import Break, Context, Continue, workflow
from holdfast.definitions import Workflow
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.turn import Ending

HOUR = timedelta(hours=1)


def work(x: int) -> int:
    return x


def fail(x: int) -> int:
    raise KeyError(x)


def line(back: int = 0) -> int:
    frame = currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno + back


def forgets(definition: Workflow[Any, Any], word: str, path: str, seed: int = 0, replayed: bool = True) -> Recording:
    """Drive a run that must fail for a call that it never awaited, live and from every cut of its history."""
    recording = live(definition, seed=seed)
    assert recording.outcome is not None
    assert recording.outcome.ending is Ending.FAILED, recording.outcome
    error = recording.outcome.error
    assert error is not None
    assert error.type == "holdfast.errors.NeverAwaited", error
    assert f"{word} {path!r} was called at {__file__}:" in error.message
    assert "and never awaited" in error.message
    if replayed:
        assert_replays(recording)
    return recording


CALLS: dict[str, tuple[Any, str, str]] = {
    "step": (lambda ctx: ctx.step(work, 1), "step", "work"),
    "sleep": (lambda ctx: ctx.sleep(HOUR), "sleep", "sleep"),
    "receive": (lambda ctx: ctx.receive("m"), "receive", "receive m"),
    "poll": (lambda ctx: ctx.receive("m", timeout=timedelta(0), default=1), "receive", "receive m"),
    "request": (lambda ctx: ctx.receive_request("m"), "receive", "receive m"),
    "send": (lambda ctx: ctx.send("other", "m"), "send", "send m"),
    "publish": (lambda ctx: ctx.publish("m"), "publish", "publish m"),
    "join": (lambda ctx: ctx.join({"a": lambda ctx: ctx.step(work, 1)}), "join", "join"),
    "race": (lambda ctx: ctx.race({"a": lambda ctx: ctx.step(work, 1)}), "race", "race"),
    "loop": (lambda ctx: ctx.loop("turns", lambda ctx, state: Break(1), state=1), "loop", "turns"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kept", [False, True], ids=["thrown away", "kept"])
def test_a_verb_that_was_never_awaited_fails_the_run(call: str, kept: bool):
    """B37 Whether or not it has ended by then, and whether or not its result is kept in a variable."""
    make, word, path = CALLS[call]

    @workflow
    async def hasty(ctx: Context) -> str:
        made = [make(ctx)]
        made.clear() if not kept else None
        return f"done {len(made)}"

    @workflow
    async def later(ctx: Context) -> str:
        made = [make(ctx)]
        for x in range(6):
            await ctx.step("other", work, x) if not x else await ctx.sleep(HOUR)
        return f"done {len(made)}"

    forgets(hasty, word, path)
    for seed in range(3):
        forgets(later, word, path, seed, replayed=call != "poll")  # a replayed poll ends at once


def test_the_error_names_the_line_of_the_call():
    """B37 The line of the call itself, also in a helper, and not where the code went on or returned."""
    lines: list[int] = []

    def charge(ctx: Context) -> None:
        lines.append(line(1))
        ctx.step("charge", work, 1)

    @workflow
    async def helped(ctx: Context) -> str:
        charge(ctx)
        await ctx.step("other", work, 1)
        return "done"

    recording = forgets(helped, "step", "charge")
    assert recording.outcome is not None
    assert recording.outcome.error is not None
    assert f"{__file__}:{lines[0]} and never awaited" in recording.outcome.error.message
    assert "ctx.background" in recording.outcome.error.message


def test_a_branch_or_a_task_that_forgets_fails_the_run():
    """B37 Wherever in the run's code the call was made."""

    @workflow
    async def branches(ctx: Context) -> str:
        async def branch(ctx: Context) -> int:
            ctx.step("forgotten", work, 1)
            return await ctx.step(work, 2)

        await ctx.join({"a": branch})
        return "done"

    @workflow
    async def tasks(ctx: Context) -> str:
        async def task() -> int:
            ctx.step("forgotten", work, 1)
            return await ctx.step(work, 2)

        await asyncio.create_task(task())
        return "done"

    for seed in range(3):
        forgets(branches, "step", "join/a/forgotten", seed)
        forgets(tasks, "step", "forgotten", seed)


def test_continuing_as_new_is_judged_too():
    """B37 The next life would not know of the call."""

    @workflow
    async def renews(ctx: Context, life: int = 0) -> str:
        ctx.step("forgotten", work, 1)
        await ctx.step(work, 2)
        ctx.continue_as_new(life + 1)

    forgets(renews, "step", "forgotten")


# What counts as awaited.


async def wait_first(ctx: Context) -> Any:
    done, _pending = await asyncio.wait([ctx.step(work, 1), ctx.step(work, 2)], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]
    return len(done)


async def wait_in_time(ctx: Context) -> Any:
    done, _pending = await asyncio.wait([ctx.receive("never"), ctx.sleep(HOUR * 9)], timeout=60)  # type: ignore[type-var]
    return len(done)


async def as_completed_first(ctx: Context) -> Any:
    for first in asyncio.as_completed([ctx.step(work, x) for x in range(3)]):
        await first
        break
    return None


async def race_losers(ctx: Context) -> Any:
    async def slow(ctx: Context) -> int:
        early, late = ctx.step("early", work, 1), ctx.sleep(HOUR)
        await ctx.receive("never")
        await late
        return await early

    async def fast(ctx: Context) -> int:
        return await ctx.step(work, 2)

    return (await ctx.race({"slow": slow, "fast": fast})).winner


async def failed_branch(ctx: Context) -> Any:
    async def broken(ctx: Context) -> int:
        early = ctx.step("early", work, 1)
        await ctx.step(fail, 1)
        return await early

    try:
        await ctx.join({"broken": broken})
    except Exception as error:
        return type(error).__name__


async def early_receive_polled(ctx: Context) -> Any:
    stop: Any = ctx.receive("stop")
    rounds = 0
    while not stop.done() and rounds < 3:
        rounds += 1
        await ctx.step(work, rounds)
    return rounds


async def result_asked(ctx: Context) -> Any:
    early: Any = ctx.step(work, 1)
    try:
        early.result()
    except asyncio.InvalidStateError:
        return "not yet"


async def exception_asked(ctx: Context) -> Any:
    early: Any = ctx.step(work, 1)
    await ctx.sleep(HOUR)
    return early.exception() if early.done() else None


async def cancelled(ctx: Context) -> Any:
    early: Any = ctx.step(work, 1)
    await ctx.step("other", work, 2)
    early.cancel()
    return None


async def timed_out(ctx: Context) -> Any:
    try:
        await asyncio.wait_for(ctx.receive("never"), 5)
    except TimeoutError:
        return "late"


async def never_in_time(ctx: Context) -> Any:
    async def body(ctx: Context, state: int) -> Any:
        return Continue(await ctx.step(work, state))

    for never in (ctx.loop("loop", body, state=1), ctx.step(work, 1), ctx.join({"a": lambda ctx: ctx.step(work, 1)})):
        try:
            await asyncio.wait_for(never, 0)
        except TimeoutError:
            pass
    return None


async def shielded(ctx: Context) -> Any:
    early = ctx.step(work, 1)
    try:
        await asyncio.wait_for(asyncio.shield(early), 0)
    except TimeoutError:
        return "late"


async def called_back(ctx: Context) -> Any:
    seen: list[int] = []
    early: Any = ctx.step(work, 1)
    early.add_done_callback(lambda verb: seen.append(verb.result()))
    while not seen:
        await ctx.sleep(HOUR)
    return seen


async def gathered_and_left(ctx: Context) -> Any:
    both = asyncio.gather(ctx.step(work, 1), ctx.sleep(HOUR * 100))
    await ctx.step("other", work, 2)
    both.cancel()
    return None


async def awaited_after_its_end(ctx: Context) -> Any:
    early = [ctx.step(work, x) for x in range(4)]
    await ctx.sleep(HOUR)
    return [await each for each in reversed(early)]


async def gathered_after_its_end(ctx: Context) -> Any:
    early = [ctx.step(work, x) for x in range(4)]
    await ctx.sleep(HOUR)
    return await asyncio.gather(*early)


async def yielded_from(ctx: Context) -> Any:
    early: Any = ctx.join({"a": lambda ctx: ctx.step(work, 1)})
    await ctx.sleep(HOUR)
    return [each async for each in _one(early)]


async def _one(awaitable: Any) -> Any:
    yield await awaitable


async def left_to_a_task(ctx: Context) -> Any:
    async def behind() -> None:
        early = ctx.step("early", work, 1)
        await ctx.receive("never")
        await early

    asyncio.create_task(behind())  # noqa: RUF006
    asyncio.create_task(ctx.step("given", work, 2))  # type: ignore[arg-type]  # noqa: RUF006
    await ctx.step(work, 3)
    return None


async def cancelled_task(ctx: Context) -> Any:
    async def behind() -> None:
        early = ctx.step("early", work, 1)
        await ctx.receive("never")
        await early

    tasks = [asyncio.create_task(behind()) for _ in range(20)]
    await ctx.sleep(HOUR)
    for task in tasks:
        task.cancel()
    await ctx.sleep(HOUR)
    for _ in range(20):
        await asyncio.create_task(asyncio.sleep(0))  # enough of them to have the done ones pruned
    return None


async def child_on_its_own(ctx: Context) -> Any:
    ctx.child("other", x=1)
    return None


LOSERS = {
    each.__name__: each
    for each in (
        wait_first,
        wait_in_time,
        as_completed_first,
        race_losers,
        failed_branch,
        early_receive_polled,
        result_asked,
        exception_asked,
        cancelled,
        timed_out,
        never_in_time,
        shielded,
        called_back,
        gathered_and_left,
        awaited_after_its_end,
        gathered_after_its_end,
        yielded_from,
        left_to_a_task,
        cancelled_task,
        child_on_its_own,
    )
}


@pytest.mark.parametrize("name", LOSERS)
def test_what_counts_as_awaited_is_not_meant(name: str):
    """B37 B18 Losers, polls, callbacks, cancels, tasks left over and children: the run completes, in any order."""
    definition: Workflow[Any, Any] = Workflow(LOSERS[name], name, "1", False)
    for seed in range(5):
        recording = live(definition, seed=seed)
        assert recording.outcome is not None
        assert recording.outcome.ending is Ending.COMPLETED, (seed, recording.outcome)
        assert_replays(recording)


def test_code_that_raises_or_is_cancelled_is_not_judged():
    """B37 Its own error is what counts."""

    @workflow
    async def raises(ctx: Context) -> str:
        ctx.step("forgotten", work, 1)
        await ctx.step(work, 2)
        raise LookupError("own")

    @workflow
    async def stops(ctx: Context) -> str:
        ctx.step("forgotten", work, 1)
        await ctx.receive("never")
        return ""

    failed = live(raises).outcome
    assert failed is not None
    assert failed.error is not None
    assert failed.error.type == "LookupError"
    stopped = live(stops, messages=["cancel"]).outcome
    assert stopped is not None
    assert stopped.ending is Ending.CANCELLED


# Loops.


def looping(forgotten_in: int, verb: Any) -> Workflow[Any, Any]:
    @workflow
    async def loops(ctx: Context) -> str:
        ctx.compensate(work, 0)
        async for it in ctx.loop("loop", commit_interval=4, history_every=4, history_keep=1):
            if it.index == forgotten_in:
                verb(it)
            await it.step(work, it.index)
            if it.index == 9:
                break
        return "done"

    return loops


@pytest.mark.parametrize("verb", [lambda it: it.step("forgotten", work, 1), lambda it: it.sleep(HOUR * 99)])
def test_a_loop_fails_where_it_would_record_its_state_without_it(verb: Any):
    """B37 Ended or open: not after the iterations were forgotten, but at the next state; undoing replays alike."""
    for seed in range(4):
        recording = live(looping(2, verb), seed=seed)
        assert recording.outcome is not None
        assert recording.outcome.error is not None
        assert recording.outcome.error.type == "holdfast.errors.NeverAwaited"
        assert "loop/~2/" in recording.outcome.error.message
        assert [one["name"] for one in recording.outcome.compensation or ()] == ["work"]
        assert not any(row.kind == entries.LoopCheckpoint.kind for row in recording.rows)
        assert_replays(recording)


def test_a_verb_from_before_the_loop_may_be_awaited_after_it():
    """B37 Only what the forgotten iterations called is judged at a state."""

    @workflow
    async def around(ctx: Context) -> int:
        early, stop = ctx.step("early", work, 7), ctx.receive("stop", timeout=HOUR, default=0)
        async for it in ctx.loop("loop", commit_interval=2, history_every=2, history_keep=1):
            await it.step(work, it.index)
            if it.index == 9:
                break
        return await early + await stop

    for seed in range(4):
        recording = live(around, seed=seed)
        assert recording.result == 7
        assert any(row.kind == entries.LoopCheckpoint.kind for row in recording.rows)
        assert_replays(recording)


def test_a_history_that_an_older_holdfast_let_pass_still_replays():
    """B37 A run under way is not blocked for what was not looked for when it did it: it fails at its next state."""

    def loops(keep: bool) -> Workflow[Any, Any]:
        @workflow(name="loops")
        async def loops(ctx: Context) -> str:
            async for it in ctx.loop("loop", commit_interval=4, history_every=100, history_keep=100):
                if it.index == 2:
                    early: Any = it.step("early", work, 1)
                    early.add_done_callback(repr) if keep else None
                await it.step(work, it.index)
                if it.index == 9:
                    break
            return "done"

        return loops

    recording = live(loops(True))
    assert recording.result == "done"
    [cut, *_] = [at for at, rows in enumerate(recording.stored) if "loop/~5/work" in paths(rows).values()]
    history = [row for row in recording.stored[cut] if row.kind != entries.LoopCheckpoint.kind]
    run = execution(loops(False))
    assert run.begin(history).outcome is None
    run.drop()
    turn, _ = finished(loops(False), history)
    assert turn.outcome is not None
    assert turn.outcome.error is not None
    assert turn.outcome.error.type == "holdfast.errors.NeverAwaited"


# In the background.


def background(failing: bool = False, raising: bool = False) -> Workflow[Any, Any]:
    @workflow
    async def behind(ctx: Context) -> str:
        ctx.compensate(work, 0) if raising else None
        ctx.background("mail", fail if failing else work, 1)
        ctx.background(work, 2)
        await ctx.step("other", work, 3)
        if raising:
            raise LookupError("own")
        return "done"

    return behind


@pytest.mark.parametrize("failing", [False, True])
def test_a_run_ends_after_its_steps_in_the_background(failing: bool):
    """B37 `ctx.background` begins a step and does not wait; its failure does not fail the run."""
    for seed in range(6):
        recording = live(background(failing), seed=seed)
        assert recording.result == "done"
        ends = [row for row in recording.rows if row.kind in entries.STEP_ENDS]
        assert len(ends) == 3
        assert_replays(recording)


def test_a_run_that_fails_ends_after_its_steps_in_the_background_and_then_undoes():
    """B37 B17 What runs in the background has ended before anything is undone."""
    for seed in range(6):
        recording = live(background(raising=True), seed=seed)
        assert recording.outcome is not None
        assert recording.outcome.error is not None
        assert recording.outcome.error.type == "LookupError"
        named = paths(recording.rows)
        steps = [named[row.seq] for row in recording.rows if row.kind in entries.STEP_ENDS]
        assert steps[-1].startswith("undo#")
        assert sorted(steps[:-1]) == ["mail", "other", "work"]
        assert_replays(recording)


def test_a_run_that_continues_as_new_waits_for_the_background_first():
    """B37 The next life would not know of it."""

    @workflow
    async def renews(ctx: Context, life: int = 0) -> str:
        ctx.background(work, 1)
        ctx.continue_as_new(life + 1)

    recording = live(renews)
    assert recording.outcome is not None
    assert recording.outcome.ending is Ending.RENEWED
    assert [row.kind for row in recording.rows].count(entries.StepCompleted.kind) == 1
    assert_replays(recording)


def test_a_cancel_does_not_wait_for_the_background():
    """B37 B7 While the code runs, and when only the background is left."""

    @workflow
    async def waits(ctx: Context) -> str:
        ctx.background(work, 1)
        await ctx.receive("never")
        return ""

    @workflow
    async def ends(ctx: Context) -> str:
        ctx.background(work, 1)
        return "done"

    found = set()
    for definition in (waits, ends):
        for seed in range(4):
            recording = live(definition, seed=seed, messages=["cancel"])
            assert recording.outcome is not None
            found.add(recording.outcome.ending)
            assert_replays(recording)
    assert Ending.CANCELLED in found


def test_what_else_the_code_left_is_stopped_when_only_the_background_is_left():
    """B37 Tasks left over are stopped with a warning, at once and not when the background has ended."""

    @workflow
    async def leaves(ctx: Context) -> str:
        async def behind() -> None:
            await ctx.receive("never")

        asyncio.create_task(behind(), name="behind")  # noqa: RUF006
        ctx.background(work, 1)
        await ctx.step("other", work, 2)
        return "done"

    early = 0
    for seed in range(6):
        recording = live(leaves, seed=seed)
        assert recording.result == "done"
        assert any("while behind" in text for text in recording.logs)
        early += any("receive never" in path for path in recording.paths(entries.Cancelled))
        assert_replays(recording)
    assert early == 6


def test_the_mark_of_a_forgotten_call_is_one_of_the_history():
    """B37 It is what a replay goes by."""
    recording = live(looping(1, lambda it: it.sleep(HOUR * 99)))
    marks = [row for row in recording.rows if row.kind == entries.Forgotten.kind]
    assert [decode_entry(row.kind, row.data) for row in marks] == [entries.Forgotten()]
