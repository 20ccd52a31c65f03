"""Cancel: asked from outside, felt at the run's awaits, with time to clean up and no more."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import (
    Context,
    JoinError,
    NoSuchRun,
    Retry,
    RunCancelled,
    RunTerminal,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.errors import InvalidId

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def sleeper(ctx: Context) -> str:
    await ctx.sleep(DAY)
    return "slept"


@workflow
async def waiter(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow
async def napper(ctx: Context) -> None:
    await asyncio.sleep(86_400)


@workflow
async def quick(ctx: Context) -> str:
    return "done"


@pytest.mark.parametrize("which", [sleeper, waiter, napper], ids=lambda which: which.name)
async def test_a_waiting_run_is_cancelled(make_engine, which):
    """S2-6 B7 S2-9 True, then cancelled: whatever it waits for; its end is in the record."""
    engine = await make_engine(which)
    run = await engine.start(which)
    await engine.settle()
    assert await run.cancel() is True
    await engine.settle()
    seen = await run.describe()
    assert seen.status is Status.CANCELLED
    assert seen.ended_at is not None
    assert seen.due_at is None
    with pytest.raises(RunCancelled, match=run.id):
        await run.result()


async def test_a_run_that_has_ended_is_not_cancelled(make_engine):
    """S2-6 B7 G6 False for completed, failed and cancelled; nothing changes."""

    @workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("no")

    engine = await make_engine(quick, broken, sleeper)
    runs = [await engine.start(quick), await engine.start(broken), await engine.start(sleeper)]
    await engine.settle()
    await runs[2].cancel()
    await engine.settle()
    before = [await run.describe() for run in runs]
    assert [run.status for run in before] == [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
    assert [await run.cancel() for run in runs] == [False, False, False]
    await engine.settle()
    assert [await run.describe() for run in runs] == before


async def test_cancelling_an_unknown_run_is_an_error(make_engine):
    """S2-6 GUARANTEES 6.11 NoSuchRun, or InvalidId for what cannot be one."""
    engine = await make_engine(quick)
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").cancel()
    with pytest.raises(InvalidId):
        await engine.get("no/body").cancel()


async def test_cancelling_twice_is_cancelling_once(make_engine):
    """B7 S2-6 The second request finds the first; the code is told once."""
    told: list[str] = []

    async def cleanup() -> None:
        told.append("cleanup")

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            await ctx.sleep(MINUTE / 2)
            await ctx.step(cleanup)
            raise

    engine = await make_engine(careful)
    run = await engine.start(careful)
    await engine.settle()
    assert await asyncio.gather(run.cancel(), run.cancel()) == [True, True]
    await engine.settle()
    assert await run.cancel() is True
    await engine.advance(MINUTE)
    assert await run.status() is Status.CANCELLED
    assert told == ["cleanup"]


async def test_a_step_in_flight_gets_the_signal_and_its_result_is_not_taken(make_engine):
    """B7 S0-25 S0-34 The async body is cancelled, the sync body sees its signal; the run ends without them."""
    seen: list[str] = []
    started = asyncio.Event()
    running, stopped = threading.Event(), threading.Event()

    async def patient() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(f"async {step_context().signal.aborted} {step_context().signal.reason}")
            raise
        return "late"

    def blocking() -> str:
        running.set()
        if step_context().signal.wait(10):
            seen.append("sync")
        stopped.set()
        return "late"

    @workflow
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.step(patient), ctx.step(blocking)))

    engine = await make_engine(both)
    run = await engine.start(both)
    await started.wait()
    assert await asyncio.to_thread(running.wait, LONG)
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert await asyncio.to_thread(stopped.wait, LONG)
    assert sorted(seen) == ["async True cancelled", "sync"]
    assert [entry.kind for entry in await run.history() if entry.kind == "step completed"] == []


async def test_cleanup_steps_run_and_are_recorded(make_engine):
    """B7 `except CancelledError` and `finally` may use steps, sleeps and sends; status is cancelling meanwhile."""
    done: list[str] = []
    may_finish = asyncio.Event()

    async def undo(what: str) -> str:
        await may_finish.wait()
        done.append(what)
        return what

    @workflow
    async def careful(ctx: Context, friend: str) -> None:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            await ctx.step("undo", undo, "first")
            await ctx.send(friend, "word", "cancelled")
            raise
        finally:
            await ctx.step("last", undo, "second")

    engine = await make_engine(careful, waiter)
    friend = await engine.start(waiter)
    run = await engine.start(careful, friend.id)
    await engine.settle()
    assert await run.cancel()
    assert await run.status() is Status.CANCELLING
    may_finish.set()
    with pytest.raises(RunCancelled):
        await run.result()
    assert done == ["first", "second"]
    assert await friend.result() == "cancelled"
    facts = [(entry.path, entry.kind) for entry in await run.history()]
    assert ("undo", "step completed") in facts
    assert ("last", "step completed") in facts
    assert ("cancel", "cancel") in facts


async def test_cleanup_also_runs_when_nothing_was_recorded_yet(make_engine):
    """B7 A run whose only wait is an asyncio timer has no history; it still may clean up."""
    done: list[str] = []

    async def undo() -> None:
        done.append("undone")

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await asyncio.sleep(86_400)
        finally:
            await ctx.step(undo)

    engine = await make_engine(careful)
    run = await engine.start(careful)
    await engine.settle()
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert done == ["undone"]


async def test_a_run_that_returns_after_the_cancel_is_cancelled_all_the_same(make_engine):
    """B7 Swallowing the cancel and returning a value does not make the run completed."""

    @workflow
    async def calm(ctx: Context) -> str:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            return "never mind"
        return "slept"

    @workflow
    async def angry(ctx: Context) -> str:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            raise ValueError("how dare you") from None
        return "slept"

    engine = await make_engine(calm, angry)
    for which in (calm, angry):
        run = await engine.start(which)
        await engine.settle()
        assert await run.cancel()
        await engine.settle()
        assert await run.status() is Status.CANCELLED
        assert (await run.describe()).output is None


async def test_cleanup_that_takes_too_long_is_cut_off(make_engine):
    """B7 After cancel_grace the run is cancelled regardless; cleanup beyond it is not done."""
    done: list[str] = []

    async def undo() -> None:
        done.append("undone")

    @workflow
    async def slow(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.sleep(HOUR)
            await ctx.step(undo)

    engine = await make_engine(slow, cancel_grace=timedelta(minutes=5))
    run = await engine.start(slow)
    await engine.settle()
    assert await run.cancel()
    await engine.advance(timedelta(minutes=4, seconds=59))
    assert await run.status() is Status.CANCELLING
    await engine.advance(timedelta(seconds=1))
    assert await run.status() is Status.CANCELLED
    await engine.advance(DAY)
    assert done == []


async def test_a_cleanup_step_that_hangs_is_cut_off(make_engine):
    """B7 Also a body that never returns: the run ends at the grace, the body is told, its result refused."""
    hanging = asyncio.Event()
    let_go = asyncio.Event()
    told: list[bool] = []

    async def hang() -> None:
        hanging.set()
        try:
            await let_go.wait()
        except asyncio.CancelledError:
            told.append(step_context().signal.aborted)
            raise

    @workflow
    async def slow(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.step(hang)

    engine = await make_engine(slow, cancel_grace=MINUTE)
    run = await engine.start(slow)
    await engine.settle()
    assert await run.cancel()
    await hanging.wait()
    engine.jumping.advance(MINUTE)
    with pytest.raises(RunCancelled):
        await run.result(timedelta(seconds=LONG))
    assert told == [True]


async def test_a_run_that_swallows_every_cancel_is_not_immortal(make_engine):
    """B7 GUARANTEES 2 while True / except CancelledError: it ends with its grace."""

    @workflow
    async def immortal(ctx: Context) -> None:
        while True:
            try:
                await ctx.sleep(MINUTE / 4)
            except asyncio.CancelledError:
                pass

    @workflow
    async def worse(ctx: Context) -> None:
        while True:
            try:
                await ctx.receive("never")
            except BaseException:
                pass

    engine = await make_engine(immortal, worse)
    runs = [await engine.start(immortal), await engine.start(worse)]
    await engine.advance(MINUTE)
    for run in runs:
        assert await run.cancel()
    await engine.advance(MINUTE)
    for run in runs:
        assert await run.status() is Status.CANCELLED


@restarts
async def test_a_run_that_is_not_in_memory_is_cancelled_by_another_engine(make_engine):
    """B7 S2-6 C2 The engine that ran it is gone; True, cancelling, and the next worker finishes it."""
    done: list[str] = []

    async def undo() -> None:
        done.append("undone")

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.step(undo)

    first = await make_engine(careful)
    run = await first.start(careful)
    await first.settle()
    await first.stop()
    client = await make_engine(careful, clock=first.jumping, run_workflows=False)
    assert await client.get(run.id).cancel() is True
    assert await client.get(run.id).status() is Status.CANCELLING
    assert await client.get(run.id).cancel() is True
    await client.stop()
    second = await make_engine(careful, clock=first.jumping)
    with pytest.raises(RunCancelled):
        await second.get(run.id).result()
    assert done == ["undone"]


@restarts
async def test_a_run_cancelled_before_it_ever_ran_never_runs(make_engine):
    """B7 S0-35 Started by a client, cancelled by it, claimed later: its code is not entered."""
    entered: list[str] = []

    @workflow
    async def work(ctx: Context) -> None:
        entered.append(ctx.run_id)
        await ctx.sleep(HOUR)

    client = await make_engine(work, run_workflows=False)
    run = await client.start(work)
    assert await run.status() is Status.PENDING
    assert await run.cancel() is True
    worker = await make_engine(work, clock=client.jumping)
    await worker.settle()
    assert await worker.get(run.id).status() is Status.CANCELLED
    assert entered == []


@restarts
async def test_a_restart_in_the_middle_of_cleanup_goes_on_cleaning_up(make_engine):
    """B7 G3 The cancel is a recorded fact: what was undone is not undone again, the rest is."""
    done: list[str] = []

    async def undo(what: str) -> None:
        done.append(what)

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.step("one", undo, "one")
            await ctx.sleep(MINUTE)
            await ctx.step("two", undo, "two")

    first = await make_engine(careful, cancel_grace=HOUR)
    run = await first.start(careful)
    await first.settle()
    await run.cancel()
    await first.settle()
    assert done == ["one"]
    await first.stop()
    second = await make_engine(careful, clock=first.jumping, cancel_grace=HOUR)
    with pytest.raises(RunCancelled):
        await second.get(run.id).result()
    assert done == ["one", "two"]


@restarts
async def test_the_grace_counts_from_the_request_and_not_from_the_restart(make_engine):
    """B7 A run that was cancelled long before anybody looked gets no second grace after a restart in its cleanup."""

    @workflow
    async def slow(ctx: Context) -> None:
        try:
            await ctx.sleep(DAY)
        finally:
            await ctx.sleep(DAY)

    first = await make_engine(slow, cancel_grace=MINUTE)
    run = await first.start(slow)
    await first.settle()
    await run.cancel()
    await first.advance(MINUTE / 2)
    await first.stop()
    first.jumping.advance(HOUR)
    second = await make_engine(slow, clock=first.jumping, cancel_grace=MINUTE)
    await second.settle()
    assert await second.get(run.id).status() is Status.CANCELLED


async def test_gather_and_task_groups_pass_the_cancel_to_every_branch(make_engine):
    """B7 Each branch sees CancelledError and may clean up."""
    done: list[str] = []

    async def undo(what: str) -> None:
        done.append(what)

    @workflow
    async def grouped(ctx: Context, how: str) -> None:
        async def branch(name: str) -> None:
            try:
                await ctx.receive(f"never {name}")
            finally:
                await ctx.step(f"undo {name}", undo, f"{how} {name}")

        if how == "gather":
            await asyncio.gather(branch("a"), branch("b"))
        else:
            async with asyncio.TaskGroup() as group:
                group.create_task(branch("a"))
                group.create_task(branch("b"))

    engine = await make_engine(grouped)
    for how in ("gather", "group"):
        run = await engine.start(grouped, how)
        await engine.settle()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert sorted(done)[2:] == ["group a", "group b"]


async def test_join_and_race_pass_the_cancel_to_every_branch(make_engine):
    """B7 S1-25 S1-26 The verbs wait for the cleanup of their branches."""
    done: list[str] = []

    async def undo(what: str) -> None:
        done.append(what)

    @workflow
    async def branched(ctx: Context, how: str) -> None:
        async def branch(inner: Context) -> None:
            try:
                await inner.sleep(DAY)
            finally:
                await inner.step(undo, how)

        branches = {"a": branch, "b": branch}
        await (ctx.join(branches) if how == "join" else ctx.race(branches))

    engine = await make_engine(branched)
    for how in ("join", "race"):
        run = await engine.start(branched, how)
        await engine.settle()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert done == ["join", "join", "race", "race"]


async def test_a_cancel_inside_a_durable_loop_ends_it(make_engine):
    """B7 S1-27 Both forms of the loop."""

    @workflow
    async def spin(ctx: Context, how: str) -> None:
        if how == "for":
            async for it in ctx.loop("spin", state=0):
                it.state += 1
                await it.sleep(HOUR)
        else:

            async def body(inner: Context) -> None:
                await inner.sleep(HOUR)

            await ctx.loop("spin", body)

    engine = await make_engine(spin)
    runs = [await engine.start(spin, how) for how in ("for", "await")]
    await engine.advance(50 * HOUR)
    for run in runs:
        assert await run.cancel()
    await engine.settle()
    assert [await run.status() for run in runs] == [Status.CANCELLED, Status.CANCELLED]


async def test_no_retry_starts_after_the_cancel(make_engine):
    """B7 S4-13 A step waiting for its next attempt is given up with the run."""
    attempts: list[int] = []

    @activity(retry=Retry(max_attempts=10, initial_interval=HOUR))
    async def flaky() -> None:
        attempts.append(step_context().attempt)
        raise ConnectionError("again")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(flaky)

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert attempts == [1]
    assert "retry" in (await run.describe()).waiting_for
    await run.cancel()
    await engine.advance(DAY)
    assert await run.status() is Status.CANCELLED
    assert attempts == [1]


async def test_cancel_and_completion_have_one_winner(make_engine):
    """S2-30 G6 GUARANTEES 2 Whoever commits first: True goes with cancelled, False with completed, always."""
    engine = await make_engine(waiter)
    runs = [await engine.start(waiter) for _ in range(30)]
    await engine.settle()

    async def send(run: Any) -> bool:
        try:
            await run.send("word", "x")
        except RunTerminal:
            return False
        return True

    for number, run in enumerate(runs):
        first, second = (run.cancel(), send(run)) if number % 2 else (send(run), run.cancel())
        await asyncio.gather(first, second)
    await engine.settle()
    statuses = [await run.status() for run in runs]
    assert set(statuses) <= {Status.CANCELLED, Status.COMPLETED}
    for run, status in zip(runs, statuses, strict=True):
        assert await run.cancel() is False
        assert await run.status() is status


async def test_a_timer_that_is_due_with_the_cancel_does_not_wake_a_cancelled_run(make_engine):
    """S2-30 Timer against cancel: the run ends once, cancelled, and stays so when its timer's time comes."""
    engine = await make_engine(sleeper)
    run = await engine.start(sleeper)
    await engine.settle()
    await run.cancel()
    await engine.advance(2 * DAY)
    assert await run.status() is Status.CANCELLED


async def test_a_cancelled_run_takes_no_messages_and_leaves_none(make_engine):
    """S2-11 B7 RunTerminal(cancelled) after the end; messages before it are gone with it."""
    engine = await make_engine(sleeper)
    run = await engine.start(sleeper)
    await run.send("word", "unread")
    await run.cancel()
    await engine.settle()
    with pytest.raises(RunTerminal, match="cancelled"):
        await run.send("word", "late")


async def test_cancel_works_on_a_blocked_run_and_ends_it(make_engine):
    """B7 B6 Blocked is not terminal: True, and the run is cancelled rather than blocked for ever."""

    @workflow
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    engine = await make_engine(stuck)
    run = await engine.start(stuck)
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    assert await run.cancel() is True
    await engine.advance(2 * MINUTE)
    assert await run.status() is Status.CANCELLED


async def test_a_join_that_was_cancelled_by_its_own_code_is_not_a_cancelled_run(make_engine):
    """B7 S1-25 Only a request from outside makes a run cancelled; code that cancels its own tasks goes on."""

    @workflow
    async def own(ctx: Context) -> str:
        task = asyncio.create_task(asyncio.wait_for(ctx.receive("never"), 1e6))
        await ctx.sleep(HOUR)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass

        async def give_up(inner: Context) -> None:
            raise asyncio.CancelledError

        try:
            await ctx.join({"a": give_up})
        except JoinError as error:
            return ",".join(error.errors)
        return "?"

    engine = await make_engine(own)
    run = await engine.start(own)
    assert await run.result() == "a"
    assert await run.status() is Status.COMPLETED


async def test_a_workflow_that_raises_cancelled_by_itself_has_failed(make_engine):
    """B7 Nobody asked: failed, and the error says so."""

    @workflow
    async def own(ctx: Context) -> None:
        raise asyncio.CancelledError

    engine = await make_engine(own)
    run = await engine.start(own)
    await engine.settle()
    assert await run.status() is Status.FAILED
    assert "cancelled itself" in (await run.describe()).error.message


async def test_shielded_work_may_finish_within_the_grace(make_engine):
    """B7 asyncio.shield keeps a step going while the run handles its cancel."""
    go_on = asyncio.Event()

    async def work() -> str:
        await go_on.wait()
        return "finished"

    done: list[str] = []

    async def note(what: str) -> None:
        done.append(what)

    @workflow
    async def shielded(ctx: Context) -> None:
        step = ctx.step(work)
        try:
            await asyncio.shield(step)
        except asyncio.CancelledError:
            await ctx.step(note, await step)
            raise

    engine = await make_engine(shielded)
    run = await engine.start(shielded)
    assert await run.cancel()
    go_on.set()
    with pytest.raises(RunCancelled):
        await run.result()
    assert done == ["finished"]


async def test_a_run_that_swallowed_its_cancel_starts_no_other_work(make_engine):
    """B7 Only steps called while handling the cancel may start; a loop that goes on as before does nothing more."""
    bodies: list[int] = []

    async def work(number: int) -> None:
        bodies.append(number)

    @workflow
    async def deaf(ctx: Context) -> None:
        number = 0
        while True:
            number += 1
            try:
                await ctx.sleep(timedelta(seconds=10))
            except asyncio.CancelledError:
                continue
            await ctx.step(work, number)

    engine = await make_engine(deaf)
    run = await engine.start(deaf)
    await engine.advance(timedelta(seconds=25))
    assert bodies == [1, 2]
    assert await run.cancel()
    await engine.advance(HOUR)
    assert await run.status() is Status.CANCELLED
    assert bodies == [1, 2]


@pytest.mark.parametrize("mode", ["file", "evict"])
@pytest.mark.parametrize("how", ["gather", "group", "task"])
async def test_cleanup_may_use_tasks_of_its_own(make_engine, how):
    """B7 S2-6 Verbs return to tasks that are begun while the cancel is being handled."""
    undone: list[str] = []

    async def undo(what: str) -> None:
        undone.append(what)

    @workflow
    async def work(ctx: Context) -> None:
        async def back(what: str) -> None:
            await ctx.step(f"undo {what}", undo, what)

        try:
            await ctx.receive("never")
        finally:
            if how == "gather":
                await asyncio.gather(back("a"), back("b"))
            elif how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(back("a"))
                    group.create_task(back("b"))
            else:
                for what in ("a", "b"):
                    await asyncio.create_task(back(what))

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.cancel()
    await engine.settle()
    assert (undone if engine.offers("steps.together") else sorted(undone)) == ["a", "b"]
    assert await run.status() is Status.CANCELLED
