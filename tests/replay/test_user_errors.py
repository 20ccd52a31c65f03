"""What user code does wrong, or merely oddly: nothing is swallowed, nothing is lost, and it is said."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import START, answer, assert_deterministic, assert_replays, execution, live, resumed

from holdfast import Context, activity, workflow
from holdfast.errors import StepFailed
from holdfast.replay import entry as entries
from holdfast.replay.turn import Ending


def work(x: int) -> int:
    return x


class Refused(Exception):
    """An error of the application's own."""


@activity(raises=[Refused])
def refuse(x: int) -> int:
    raise Refused(f"refused {x}")


def break_down(x: int) -> int:
    raise KeyError(x)


def explode(x: int) -> int:
    raise Refused(f"unregistered {x}")


@workflow
async def swallows(ctx: Context) -> list:
    seen: list[object] = []
    for name in ("first", "second"):
        try:
            seen.append(await ctx.step(name, work, 1))
            await ctx.sleep(timedelta(hours=1))
            seen.append(await ctx.receive("message", timeout=timedelta(hours=1), default="nothing"))
        except:  # noqa: E722  # the very thing under test
            seen.append("swallowed")
    return seen


def test_a_bare_except_around_verbs_swallows_no_suspension():
    """S1-24 Waiting raises nothing, so there is nothing to swallow."""
    assert live(swallows).result == [1, "nothing", 1, "nothing"]
    assert_deterministic(swallows)


def test_a_bare_except_swallows_no_mismatch():
    """S1-24 S1-37 The code stops where it no longer matches; its own `except` never sees it."""
    seen = []

    @workflow(name="swallows")
    async def changed(ctx: Context) -> list:
        try:
            await ctx.step("other", work, 1)
        except BaseException as error:
            seen.append(error)
            raise
        return []

    turn, run = resumed(live(swallows, stop=2), changed)
    assert turn.outcome.ending is Ending.BLOCKED
    assert seen == []
    run.drop()


def test_a_bare_except_does_not_swallow_continue_as_new():
    @workflow
    async def renews(ctx: Context, x: int) -> str:
        try:
            await ctx.step(work, x)
            ctx.continue_as_new(x + 1)
        except BaseException:
            await ctx.step("after", work, 1)
            return "swallowed"

    recording = live(renews, 1)
    assert recording.outcome.ending is Ending.RENEWED
    assert recording.outcome.payload == '{"x":2}'
    assert "after" not in recording.paths()


def test_errors_are_caught_as_the_same_class_at_the_same_place_live_and_on_replay():
    """S1-14 S1-22 Registered classes come back as themselves, builtins too, all others as StepFailed."""

    @workflow
    async def catches(ctx: Context) -> list:
        seen = []
        for function in (refuse, break_down, explode):
            try:
                await ctx.step(function, 7)
            except Refused as error:
                seen.append(f"refused: {error}")
            except KeyError as error:
                seen.append(f"key: {error}")
            except StepFailed as error:
                seen.append(f"failed: {error.type_name.rpartition('.')[2]}")
            await ctx.step("note", work, len(seen)) if len(seen) == 2 else None
        return seen

    recording = live(catches)
    assert recording.result == ["refused: refused 7", "key: 7", "failed: Refused"]
    assert_replays(recording)


@pytest.mark.parametrize("value", [None, 0, "", [], False, {}, 0.0])
def test_a_falsy_result_is_a_result(value):
    """S1-14 Not run again on replay."""

    def nothing(x: int) -> Any:
        return value

    @workflow
    async def falsy(ctx: Context) -> list:
        first = await ctx.step(nothing, 1)
        await ctx.sleep(timedelta(days=1))
        return [first]

    recording = live(falsy)
    assert recording.result == [value]
    assert_replays(recording)
    turn, run = resumed(recording, falsy, cut=1)
    assert not turn.started
    run.drop()


def test_an_explicit_name_used_twice_is_refused_and_derived_names_are_numbered():
    """B11"""

    @workflow
    async def twice(ctx: Context) -> None:
        await ctx.step("charge", work, 1)
        await ctx.step("charge", work, 2)

    @workflow
    async def derived(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(work, x) for x in range(3)))
        await ctx.sleep(timedelta(1))
        await ctx.sleep(timedelta(1))

    @workflow
    async def scoped(ctx: Context) -> None:
        async def branch(ctx: Context) -> None:
            await ctx.step("charge", work, 1)

        await ctx.join({"a": branch, "b": branch})
        async for it in ctx.loop():
            await it.step("charge", work, 1)
            if it.index == 2:
                break
        await ctx.step("charge", work, 1)

    outcome = live(twice).outcome
    assert outcome.ending is Ending.FAILED
    assert "'charge' is used twice" in outcome.error.message
    assert "test_user_errors.py:" in outcome.error.message
    assert live(derived).paths(entries.StepBegun) == ["work", "work#2", "work#3"]
    assert live(derived).paths(entries.SleepBegun) == ["sleep", "sleep#2"]
    assert live(scoped).outcome.ending is Ending.COMPLETED


def test_a_step_that_lost_a_wait_is_run_recorded_and_given_up_at_the_end():
    """A verb takes its place when it is called; what is still open when the code returns is cancelled, on record."""

    @workflow
    async def careless(ctx: Context) -> str:
        lost: Any = ctx.step("forgotten", work, 1)
        await ctx.step("awaited", work, 2)
        return "done" if not lost.done() else "both"

    run = execution(careless)
    forgotten, awaited = run.begin().started
    turn = run.apply(awaited.location, answer(awaited), START)
    assert turn.outcome.ending is Ending.COMPLETED
    assert [verb.location for verb in turn.abandoned] == [forgotten.location]
    assert [row.kind for row in turn.entries] == [entries.StepCompleted.kind, entries.Cancelled.kind]
    assert forgotten.done()
    late = run.apply(forgotten.location, answer(forgotten), START)
    assert (late.entries, late.outcome) == ([], None)
    assert run.next_due() is None
    run.drop()


def test_a_late_fact_for_a_call_that_was_given_up_is_not_recorded():
    @workflow
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(1):
                await ctx.step(work, 1)
        except TimeoutError:
            await ctx.receive("never")
        return ""

    run = execution(impatient)
    (verb,) = run.begin().started
    turn = run.fire(START + 2_000_000)
    assert turn.abandoned == [verb]
    assert run.apply(verb.location, answer(verb), START + 3_000_000).entries == []
    run.drop()


def test_a_task_left_running_and_an_error_nobody_looked_at_are_reported():
    @workflow
    async def careless(ctx: Any) -> str:
        async def background() -> None:
            await ctx.receive("never")

        async def failing() -> None:
            raise LookupError("unseen")

        tasks = [asyncio.create_task(background(), name="background"), asyncio.create_task(failing(), name="failing")]
        for _ in range(40):
            asyncio.create_task(asyncio.sleep(0))  # noqa: RUF006  # enough of them to have the done ones pruned
        asyncio.create_task(failing(), name="lost")  # noqa: RUF006
        failed = ctx.step(break_down, 1)
        await ctx.step(work, 1)
        await asyncio.wait([failed])
        del failed
        await ctx.step("last", work, len(tasks))
        return "done"

    recording = live(careless)
    assert recording.result == "done"
    said = "\n".join(recording.logs)
    assert "the workflow ended while background (test_user_errors.py:" in said
    assert "the workflow never awaited failing: LookupError('unseen')" in said
    assert "the workflow never awaited lost: LookupError('unseen')" in said
    assert "the workflow never awaited step: KeyError(1)" in said


def test_a_cancellation_swallowed_in_a_loop_ends_the_run_once_it_is_handled():
    """B7 The step called while handling it runs; the wait after that never begins; replay does the same."""

    @workflow
    async def stubborn(ctx: Context) -> None:
        while True:
            try:
                await ctx.receive("stop", timeout=timedelta(hours=1))
                return
            except asyncio.CancelledError:
                await ctx.step(work, 1)
            except TimeoutError:
                continue

    recording = live(stubborn, messages=["cancel", "cancel"], stop=8)
    assert recording.outcome is not None
    assert recording.outcome.ending is Ending.CANCELLED
    assert "work" in recording.paths()
    assert recording.paths().count("cancel") == 1
    assert_replays(recording)


def test_a_workflow_that_cancels_itself_or_exits_fails_and_spares_other_runs():
    @workflow
    async def cancels(ctx: Context) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await ctx.step(work, 1)

    @workflow
    async def exits(ctx: Context) -> None:
        async def other() -> None:
            raise AssertionError("the rest of an ended run must not run as part of another")

        await ctx.step(work, 1)
        for _ in range(3):
            asyncio.create_task(other())  # noqa: RUF006
        raise SystemExit(3)

    assert live(cancels).outcome.ending is Ending.FAILED
    run = execution(exits)
    (verb,) = run.begin().started
    turn = run.apply(verb.location, answer(verb), START)
    assert turn.outcome.ending is Ending.FAILED
    assert turn.outcome.error.type.endswith("SystemExit")
    assert len(run.loop._ready) == 0
    run.drop()


def test_a_callback_that_raises_blocks_the_run_and_names_its_line():
    """Asyncio would only log it; here nothing is lost and the code can be put right."""

    @workflow
    async def callbacks(ctx: Any) -> None:
        def shout(done: object) -> None:
            raise ZeroDivisionError("in a callback")

        verb = ctx.step(work, 1)
        verb.add_done_callback(shout)
        await verb

    outcome = live(callbacks).outcome
    assert outcome.ending is Ending.BLOCKED
    assert "ZeroDivisionError: in a callback at test_user_errors.py:" in outcome.error.message


def test_a_result_that_cannot_be_stored_fails_the_run():
    @workflow
    async def unfit(ctx: Context) -> Any:
        return object()

    outcome = live(unfit).outcome
    assert outcome.ending is Ending.FAILED
    assert "the result of workflow 'unfit'" in outcome.error.message


def test_a_context_outside_its_workflow_is_refused():
    kept: list[Context] = []

    @workflow
    async def leaks(ctx: Context) -> None:
        kept.append(ctx)
        await ctx.receive("never")

    run = execution(leaks)
    run.begin()
    with pytest.raises(Exception, match="a Context works only in workflow code"):
        kept[0].step(work, 1)
    run.drop()


def test_a_future_of_another_run_is_refused():
    shared: list[Any] = []

    @workflow
    async def owner(ctx: Context) -> None:
        shared.append(asyncio.get_running_loop().create_future())
        await ctx.receive("never")

    @workflow
    async def thief(ctx: Context) -> None:
        shared[0].add_done_callback(print)
        shared[0].set_result(1)

    first = execution(owner)
    first.begin()
    outcome = live(thief).outcome
    assert outcome.ending is Ending.FAILED
    assert "runs share nothing but messages" in outcome.error.message
    first.drop()
