"""Reopening a run that has ended: retry what failed, resume what was cancelled, do a part again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Flaky, Gate, dead_or_done
from tests.support.waiting import LONG

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.engine.client.reopen import Redo
from holdfast.errors import CannotReopen, RunTimeout, UniqueConflict

HOUR = timedelta(hours=1)
restarts = pytest.mark.parametrize("mode", ["file", "evict"])


async def fails(run: Any, match: str | None = None) -> None:
    with pytest.raises(RunFailed, match=match):
        await run.result()


# Retry.


async def test_retry_goes_on_at_the_failed_step_with_what_was_done_before(make_engine):
    """S0-20 S0-4 B8 The steps before it are not run again; attempt numbers go on, the budget is fresh."""
    body = Flaky("pay")
    attempts: list[int] = []

    @activity(retry=Retry(max_attempts=2, initial_interval=HOUR))
    async def pay(basket: str) -> str:
        attempts.append(step_context().attempt)
        return await body.body("pay") + basket

    @workflow
    async def order(ctx: Context) -> str:
        basket = await ctx.step("pick", body.body, "pick")
        return await ctx.step(pay, basket)

    engine = await make_engine(order)
    run = await engine.start(order)
    await fails(run, "pay is out of order")
    body.failing.clear()
    body.ran.clear()
    await run.retry(by="kim", reason="the bank is back")
    assert await run.result() == "paypick"
    assert body.ran == ["pay"]
    assert attempts == [1, 2, 3]
    seen = await run.describe()
    assert (seen.status, seen.reopened, seen.error) == (Status.COMPLETED, 1, None)
    if engine.offers("audit"):
        (record,) = await engine.audit.records(target=run.id)
        assert (record.action, record.actor, record.detail["reason"]) == ("retry", "kim", "the bank is back")


async def test_retry_that_fails_again_may_be_tried_again(make_engine):
    """S0-20 S0-9 Each time with a fresh budget; what was cut away can still be read."""
    body = Flaky("pay")

    @workflow
    async def order(ctx: Context) -> str:
        return await ctx.step("pay", body.step, "pay")

    engine = await make_engine(order)
    run = await engine.start(order)
    for _ in range(3):
        await fails(run)
        await run.retry()
    await fails(run)
    assert body.ran == ["pay"] * 4
    (step,) = await run.steps()
    assert (step.status, step.attempts) == ("failed", 4)
    assert (await run.describe()).reopened == 3
    told = [item.what for item in await run.timeline()]
    assert told.count("step failed") == 4
    assert told.count("run reopened") == 3


@restarts
async def test_retry_after_the_code_was_fixed(make_engine):
    """S0-20 B8 A bug between two steps: the fixed code goes on after the last thing that was recorded."""
    body = Flaky()

    @workflow(name="order")
    async def buggy(ctx: Context) -> str:
        picked = await ctx.step("pick", body.body, "pick")
        return str({}[picked])

    @workflow(name="order")
    async def fixed(ctx: Context) -> str:
        picked = await ctx.step("pick", body.body, "pick")
        return picked + await ctx.step("pack", body.body, "pack")

    engine = await make_engine(buggy)
    run = await engine.start(buggy, id="r")
    await fails(run, "KeyError")
    await run.retry()
    await fails(run, "KeyError")
    await engine.stop()
    engine = await make_engine(fixed, clock=engine.jumping)
    run = engine.get("r")
    await run.retry()
    assert await run.result() == "pickpack"
    assert body.ran == ["pick", "pack"]


async def test_retry_of_parallel_work_runs_what_failed_and_keeps_what_did_not(make_engine):
    """S0-20 B8 Of five branches two failed; only results recorded after the first failure are made again."""
    body = Flaky("b", "d")

    @workflow
    async def work(ctx: Context) -> dict[str, str]:
        def branch(name: str) -> Callable[[Context], Awaitable[str]]:
            return lambda inner: inner.step("work", body.step, name)

        return await ctx.join("all", {name: branch(name) for name in "abcde"})

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    body.failing.clear()
    body.ran.clear()
    await run.retry()
    assert await run.result() == {name: name for name in "abcde"}
    assert {"b", "d"} <= set(body.ran)
    assert "a" not in body.ran


async def test_retry_in_a_loop_goes_on_in_its_iteration(make_engine):
    """S0-20 The iterations before are not repeated."""
    body = Flaky("lap 2")

    @workflow
    async def work(ctx: Context) -> int:
        async for lap in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
            await lap.step("work", body.step, f"lap {lap.index}")
            lap.state += 1
            if lap.state == 4:
                return lap.state
        return 0

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    body.failing.clear()
    body.ran.clear()
    await run.retry()
    assert await run.result() == 4
    assert body.ran == ["lap 2", "lap 3"]


@pytest.mark.parametrize("how", ["retry", "resume"])
async def test_what_it_had_not_read_when_it_ended_is_there_again(make_engine, how):
    """S0-20 S4-14 G7 An approval sent early, while the run was still at a step that then failed, is not lost."""
    body = Flaky("pay")

    @workflow
    async def order(ctx: Context) -> list[str]:
        await ctx.receive("begin")
        await ctx.step("pay", body.step, "pay")
        await ctx.receive("go")
        return [await ctx.receive("word", str), await ctx.receive("word", str)]

    engine = await make_engine(order)
    if how == "resume":
        body.failing.clear()
    run = await engine.start(order)
    await run.send("word", "a")
    await run.send("word", "b")
    await run.send("begin")
    await engine.settle()
    if how == "resume":
        await run.cancel()
        await engine.settle()
    body.failing.clear()
    await getattr(run, how)()
    await run.send("go")
    assert await run.result() == ["a", "b"]


async def test_retry_of_a_run_that_was_undone_does_it_again_from_the_first_undone_step(make_engine):
    """B8 B17 G11 A compensated step counts as not completed; steps before it stay."""
    body, log = Flaky("ship"), []

    async def undo(name: str) -> None:
        log.append(f"undo {name}")

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.step("greet", body.step, "greet")
        for name in ("reserve", "pay"):
            await ctx.step(name, body.step, name)
            ctx.compensate(undo, name)
        return await ctx.step("ship", body.step, "ship")

    engine = await make_engine(order)
    run = await engine.start(order)
    await fails(run)
    assert log == ["undo pay", "undo reserve"]
    body.failing.clear()
    body.ran.clear()
    await run.retry()
    assert await run.result() == "ship"
    assert body.ran == ["reserve", "pay", "ship"]
    assert log == ["undo pay", "undo reserve"]


async def test_retry_of_a_receive_that_timed_out_waits_again(make_engine):
    """S0-20 B8 Its deadline is set again, from the retry on."""

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.receive("word", str, timeout=HOUR)

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run, "ReceiveTimeout")
    await engine.advance(5 * HOUR)
    await run.retry()
    await engine.advance(HOUR / 2)
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "hello")
    assert await run.result() == "hello"


async def test_time_goes_on_where_the_run_goes_on(make_engine):
    """B8 S1-32 Reopened again and again, evicted and replayed: what was recorded stays true, new deadlines are new."""
    body = Flaky("pay")
    said: list[datetime] = []

    async def note(moment: datetime) -> datetime:
        return moment

    @workflow
    async def work(ctx: Context) -> list[datetime]:
        stamps = [await ctx.step("begun", note, ctx.now())]
        await ctx.receive("never", timeout=HOUR, default=None)
        stamps.append(await ctx.step("waited", note, ctx.now()))
        await ctx.step("pay", body.step, "pay")
        stamps.append(ctx.now())
        await ctx.sleep(HOUR)
        stamps.append(ctx.now())
        async with asyncio.timeout(7200):
            await ctx.receive("never", timeout=HOUR, default=None)
        said.append(ctx.now())
        return stamps

    engine = await make_engine(work, start=datetime(2026, 1, 1, tzinfo=UTC))
    run = await engine.start(work)
    for _ in range(3):
        await fails(run)
        await engine.advance(24 * HOUR)
        await run.retry()
    await fails(run)
    await engine.advance(24 * HOUR)
    body.failing.clear()
    await run.retry()
    begun, waited, paid, slept = await run.result()
    assert begun == datetime(2026, 1, 1, tzinfo=UTC)
    assert waited == begun + HOUR
    assert paid == waited + 4 * 24 * HOUR
    assert slept == paid + HOUR
    assert said == [slept + HOUR]


async def test_retry_of_a_run_that_ran_out_of_time(make_engine):
    """S0-20 A part with a deadline of its own, `asyncio.timeout`, gets all of its time again."""
    body = Flaky("slow")

    @activity(retry=Retry(max_attempts=None, initial_interval=timedelta(minutes=40)))
    async def slow() -> str:
        return await body.body("slow")

    @workflow
    async def work(ctx: Context) -> str:
        async with asyncio.timeout(1800):
            return await ctx.step(slow)

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run, "TimeoutError")
    body.failing.clear()
    await run.retry()
    assert await run.result() == "slow"


async def test_retry_of_a_run_beyond_its_timeout_gives_it_its_time_again(make_engine):
    """S0-20 S3-23 The run's own deadline moves with the retry."""

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(work)
    run = await engine.start(work, timeout=HOUR)
    with pytest.raises(RunFailed) as failure:
        await run.result()
    assert isinstance(failure.value.__cause__, RunTimeout)
    await engine.advance(HOUR)
    await run.retry()
    await engine.advance(HOUR / 2)
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "late")
    assert await run.result() == "late"


async def test_two_people_who_retry_at_once_retry_once(make_engine, mode):
    """B8 S2-38 One wins; the other is told that the run is open. Also from two engines, on a file."""
    body = Flaky("pay")

    @workflow
    async def order(ctx: Context) -> str:
        return await ctx.step("pay", body.step, "pay")

    engine = await make_engine(order)
    run = await engine.start(order)
    await fails(run)
    body.failing.clear()
    other = engine if mode == "memory" else await make_engine(order, clock=engine.jumping)
    retries = [each.get(run.id).retry() for each in (engine, other, engine, other)]
    outcomes = await asyncio.gather(*retries, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(Redo) == 1
    assert all(isinstance(outcome, Redo | CannotReopen) for outcome in outcomes)
    assert await asyncio.wait_for(run.result(), LONG) == "pay"
    assert body.ran == ["pay", "pay"]
    assert not engine.offers("audit") or len(await engine.audit.records(target=run.id)) == 1


@pytest.mark.parametrize("verb", ["retry", "rerun", "resume"])
async def test_a_unique_key_that_another_run_has_keeps_a_run_ended(make_engine, verb):
    """B8 S0-18 UniqueConflict names the holder, and nothing is changed; when the key is free the verb works."""
    body = Flaky("pay")

    @workflow
    async def order(ctx: Context) -> None:
        await ctx.step("pay", body.step, "pay")
        await ctx.receive("word")

    engine = await make_engine(order)
    if verb == "resume":
        body.failing.clear()
    run = await engine.start(order, unique_key="k")
    if verb == "resume":
        await engine.settle()
        await run.cancel()
    await engine.settle()
    body.failing.clear()
    holder = await engine.start(order, unique_key="k")
    await engine.settle()
    before = await run.describe(), await run.history(), await engine.audit.records(target=run.id)
    with pytest.raises(UniqueConflict) as conflict:
        await getattr(run, verb)()
    assert conflict.value.run_id == holder.id
    assert before == (await run.describe(), await run.history(), await engine.audit.records(target=run.id))
    await holder.terminate()
    await getattr(run, verb)()
    with pytest.raises(UniqueConflict):
        await engine.start(order, unique_key="k")
    await run.send("word")
    assert await run.result() is None


# Resume.


async def test_resume_of_a_cancelled_run_continues_at_the_first_step_not_completed(make_engine):
    """S4-14 B7 B8 The flag is cleared, completed steps stay, cleanup that ran does not count."""
    body = Flaky()

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.step("pick", body.body, "pick")
        try:
            await ctx.receive("go")
        except asyncio.CancelledError:
            await ctx.step("unpick", body.body, "unpick")
            raise
        return await ctx.step("pack", body.body, "pack")

    engine = await make_engine(order)
    run = await engine.start(order)
    await engine.settle()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert body.ran == ["pick", "unpick"]
    assert await run.resume(by="kim")
    await engine.settle()
    assert await run.status() is Status.SUSPENDED
    await run.send("go")
    assert await run.result() == "pack"
    assert body.ran == ["pick", "unpick", "pack"]
    if engine.offers("audit"):
        assert [record.action for record in await engine.audit.records(target=run.id)] == ["cancel", "resume"]


async def test_a_step_given_up_by_a_cancel_runs_again_after_the_resume(make_engine):
    """S4-14 S4-15 It was not completed."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", gate, "one")

    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("one")
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    gate.open("one")
    assert await run.resume()
    assert await run.result() == "one"
    assert gate.begun == ["one", "one"]


async def test_a_resumed_run_can_be_cancelled_again(make_engine):
    """S4-2 S4-14 Cancelled, resumed, cancelled, resumed: nothing of the first cancel sticks."""

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(work)
    run = await engine.start(work)
    for _ in range(3):
        await engine.settle()
        assert await run.cancel()
        await engine.settle()
        assert await run.status() is Status.CANCELLED
        assert await run.resume()
    await run.send("word", "at last")
    assert await run.result() == "at last"


# Rerun.


class Everything:
    """A workflow with a call of every kind, and what its bodies did."""

    def __init__(self) -> None:
        self.body = body = Flaky()

        @workflow
        async def kid(ctx: Context, number: int) -> int:
            await ctx.step("work", body.body, f"kid {number}")
            return number

        @workflow
        async def everything(ctx: Context) -> list[Any]:
            def branch(name: str) -> Callable[[Context], Awaitable[str]]:
                async def both(inner: Context) -> str:
                    await inner.step("x", body.body, f"{name}.x")
                    return await inner.step("y", body.body, f"{name}.y")

                return both

            done: list[Any] = [await ctx.step("first", body.body, "first")]
            done.append(await ctx.join("both", {"l": branch("l"), "r": branch("r")}))
            async for lap in ctx.loop("laps", state=0):
                await lap.step("lap", body.body, f"lap {lap.index}")
                lap.state += 1
                if lap.state == 3:
                    break
            done.append(await ctx.receive("word", str))
            done.append(await ctx.child(kid, 5))
            await ctx.sleep(HOUR, name="nap")
            done.append(await ctx.step("last", body.body, "last"))
            return done

        self.workflows = [everything, kid]


RERUNS = {
    "first": ["first", "l.x", "r.x", "l.y", "r.y", "lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "both": ["l.x", "r.x", "l.y", "r.y", "lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "both/l/x": ["l.x", "l.y", "r.y", "lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "both/l/y": ["l.y", "lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "laps": ["lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "laps/~0/lap": ["lap 0", "lap 1", "lap 2", "kid 5", "last"],
    "laps/~2/lap": ["lap 2", "kid 5", "last"],
    "receive word": ["kid 5", "last"],
    "kid": ["kid 5", "last"],
    "nap": ["last"],
    "last": ["last"],
}


@pytest.mark.parametrize("path", RERUNS)
async def test_a_run_can_be_rerun_from_every_call(make_engine, path):
    """B8 Join, loop, message, child, sleep: what was called before it ended stays, all that followed is made again."""
    everything = Everything()
    engine = await make_engine(*everything.workflows)
    run = await engine.start(everything.workflows[0])
    await run.send("word", "hello")
    result = await run.result()
    everything.body.ran.clear()
    await engine.advance(HOUR)
    began = engine.clock.now()
    await run.rerun(from_step=path, by="kim")
    assert await run.result() == result
    assert sorted(everything.body.ran) == sorted(RERUNS[path])
    slept = timedelta(microseconds=engine.clock.now() - began)
    assert slept == (timedelta(0) if path == "last" else HOUR)
    times = [entry.at for entry in await run.history()]
    assert times == sorted(times)
    if engine.offers("audit"):
        (record,) = await engine.audit.records(target=run.id)
        assert record.detail["from_step"] == path


async def test_a_completed_run_reopens_by_rerun_alone(make_engine):
    """B8 G6 Of the verbs that reopen, only this one takes a completed run; without a step it does everything again."""
    body = Flaky()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", body.body, "one") + await ctx.step("two", body.body, "two")

    engine = await make_engine(work)
    run = await engine.start(work)
    assert await run.result() == "onetwo"
    with pytest.raises(CannotReopen):
        await run.retry()
    assert not await run.resume()
    await run.rerun()
    assert await run.result() == "onetwo"
    assert body.ran == ["one", "two"] * 2
    assert (await run.describe()).reopened == 1


async def test_a_step_made_again_has_the_same_idempotency_key(make_engine):
    """B8 S3-18 The outside world sees the same key, so that it can tell that it is the same work."""
    keys: list[str] = []

    async def pay() -> None:
        keys.append(step_context().idempotency_key)

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(pay)

    engine = await make_engine(work)
    run = await engine.start(work)
    await run.result()
    await run.rerun(from_step="pay")
    await run.result()
    assert keys[0] == keys[1] == f"{run.id}:pay"


async def test_a_cancelled_and_a_failed_run_can_be_rerun_from_an_earlier_step(make_engine):
    """B8 The cut is the earliest of the named step, the failure and the cancel."""
    body = Flaky("two")

    @workflow
    async def work(ctx: Context) -> str:
        first = await ctx.step("one", body.step, "one")
        await ctx.step("two", body.step, "two")
        return first + await ctx.receive("word", str)

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    body.failing.clear()
    await run.rerun(from_step="one")
    await engine.settle()
    assert body.ran == ["one", "two", "one", "two"]
    await run.cancel()
    await engine.settle()
    await run.rerun(from_step="two")
    await run.send("word", "!")
    assert await run.result() == "one!"
    assert body.ran == ["one", "two", "one", "two", "two"]


async def test_rerun_from_a_call_that_does_not_exist_lists_those_that_do(make_engine):
    """B8 The error helps; nothing is changed."""
    everything = Everything()
    engine = await make_engine(*everything.workflows)
    run = await engine.start(everything.workflows[0])
    await run.send("word", "hello")
    await run.result()
    before = await run.describe()
    with pytest.raises(CannotReopen, match=r"no call 'lats'; did you mean .*'last'.*; it has: first, both"):
        await run.rerun(from_step="lats")
    assert await run.describe() == before
    assert not engine.offers("audit") or await engine.audit.records() == []


async def test_rerun_inside_what_a_loop_has_forgotten_is_refused(make_engine):
    """B8 It cannot go back to facts that are gone; the error says where it can."""
    body = Flaky()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step("before", body.body, "before")
        async for lap in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
            await lap.step("lap", body.body, f"lap {lap.index}")
            lap.state += 1
            if lap.state == 5:
                return

    engine = await make_engine(work)
    run = await engine.start(work)
    await run.result()
    with pytest.raises(CannotReopen):
        await run.rerun(from_step="laps/~0/lap")
    body.ran.clear()
    await run.rerun(from_step="laps/~4/lap")
    await run.result()
    assert body.ran == ["lap 4"]
    body.ran.clear()
    await run.rerun(from_step="before")
    await run.result()
    assert body.ran == ["before", *(f"lap {lap}" for lap in range(5))]


async def test_rerun_of_everything_gives_back_what_was_sent(make_engine):
    """B8 G7 Messages that were consumed are queued again, in their order."""

    @workflow
    async def work(ctx: Context) -> list[str]:
        return [await ctx.receive("word", str), await ctx.receive("word", str)]

    engine = await make_engine(work)
    run = await engine.start(work)
    await run.send("word", "a")
    await run.send("word", "b")
    assert await run.result() == ["a", "b"]
    await run.rerun()
    await engine.settle()
    assert await run.status() is Status.COMPLETED
    assert await run.result() == ["a", "b"]


async def test_rerun_keeps_the_compensations_of_earlier_lives(make_engine):
    """B8 B17 G11 The run begins its last life again, and with it what that began with."""
    body, undone = Flaky(), []

    async def undo() -> None:
        undone.append("undo")

    @workflow
    async def work(ctx: Context, life: int) -> int:
        if life == 0:
            ctx.compensate(undo)
            ctx.continue_as_new(1)
        await ctx.step("pay", body.step, "pay")
        return life

    engine = await make_engine(work)
    run = await engine.start(work, 0)
    assert await run.result() == 1
    body.failing.add("pay")
    await run.rerun()
    await fails(run)
    assert undone == ["undo"]


async def test_rerun_past_a_child_with_an_id_of_its_own_is_refused(make_engine):
    """B8 G10 The id is taken by the child that is there already: the run stays as it is and the error says why."""
    body = Flaky()

    @workflow
    async def kid(ctx: Context) -> str:
        return await ctx.step("work", body.body, "kid")

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step("one", body.body, "one")
        told = await ctx.child(kid, id="kid")
        return told + await ctx.step("two", body.body, "two")

    engine = await make_engine(work, kid)
    run = await engine.start(work)
    assert await run.result() == "kidtwo"
    with pytest.raises(CannotReopen, match="'kid' again, and that id is taken: go on from a later step"):
        await run.rerun(from_step="one")
    assert (await run.describe()).reopened == 0
    await run.rerun(from_step="two")
    assert await run.result() == "kidtwo"
    assert body.ran == ["one", "kid", "two", "two"]


# Crashes.


@restarts
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_worker_that_dies_at_any_commit_after_a_retry_loses_and_repeats_nothing(make_engine, tmp_path, moment):
    """B8 G3 S0-20 The retried run is killed at each of its commits in turn and ends as it should every time."""
    body = Flaky()

    @workflow
    async def order(ctx: Context) -> list[str]:
        done = [await ctx.step("pick", body.step, "pick"), await ctx.receive("word", str)]
        done.append(await ctx.step("pay", body.step, "pay"))
        await ctx.sleep(HOUR)
        return [*done, await ctx.step("ship", body.step, "ship")]

    async def retried(run: Any) -> None:
        await run.retry()
        await run.result()

    died = 0
    for dies_at in range(1, 12):
        body.failing, body.ran = {"pay"}, []
        path = str(tmp_path / f"{moment}{dies_at}.db")
        engine = await make_engine(order, database=path)
        faults = engine.faults
        run = await engine.start(order, id="r")
        await run.send("word", "hello")
        await fails(run)
        body.failing.clear()
        faults.die(dies_at, moment)
        retrying = asyncio.create_task(retried(run))
        await dead_or_done(faults, retrying)
        died += faults.dead
        retrying.cancel()
        await asyncio.wait([retrying])
        if not faults.dead:
            break
        await engine.crash()
        engine = await make_engine(order, database=path, clock=engine.jumping)
        run = engine.get("r")
        if (dies_at, moment) == (1, "before"):
            assert await run.status() is Status.FAILED
            assert await engine.audit.records() == []
            await run.retry()
        assert await run.result() == ["pick", "hello", "pay", "ship"]
        assert body.ran.count("pick") == 1
        assert len(await engine.audit.records(target="r")) == 1
        assert (await run.describe()).reopened == 1
        await engine.stop()
    assert died >= 4, "the worker must have died at each commit of the retry"


async def test_a_run_that_does_it_again_reads_its_messages_in_the_order_they_came(make_engine):
    """G7 B8 What it had taken is queued again before what it had not read."""
    failing, both_sent = [True], asyncio.Event()

    @activity(retry=Retry.never)
    async def pay() -> None:
        await both_sent.wait()
        if failing:
            raise ValueError("no")

    @workflow
    async def work(ctx: Context) -> list[Any]:
        one = await ctx.receive("m")
        await ctx.step(pay)
        return [one, await ctx.receive("m")]

    engine = await make_engine(work)
    run = await engine.start(work)
    await run.send("m", 1)
    await run.send("m", 2)
    both_sent.set()
    await fails(run, "ValueError")
    failing.clear()
    await run.rerun()
    assert await run.result() == [1, 2]


async def test_no_attempt_number_is_given_twice_whatever_is_cut_away(make_engine):
    """G4 A retry, a rerun from a step, one of everything; what a step shows counts over all of them."""
    given: list[tuple[str, int]] = []
    failing = {"two"}

    @activity(retry=Retry(max_attempts=2))
    async def body(name: str) -> None:
        given.append((name, step_context().attempt))
        if name in failing:
            raise ValueError(name)

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step("one", body, "one")
        await asyncio.gather(ctx.step("two", body, "two"), ctx.step("three", body, "three"))
        await ctx.step("four", body, "four")

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    await run.retry()
    await fails(run)
    assert [(step.name, step.attempts, step.failures) for step in await run.steps()][1] == ("two", 4, 4)
    failing.clear()
    await run.retry()
    await run.result()
    failing.add("four")
    await run.rerun(from_step="four")
    await fails(run)
    failing.clear()
    await run.rerun()
    await run.result()
    await run.rerun()
    await run.result()
    assert len(given) == len(set(given))
    numbers = {name: [number for each, number in given if each == name] for name in ("one", "two", "three", "four")}
    assert all(each == list(range(1, len(each) + 1)) for each in numbers.values())
    shown = {step.name: (step.attempts, step.failures) for step in await run.steps()}
    assert shown == {"one": (3, 0), "two": (7, 4), "three": (3, 0), "four": (5, 2)}


async def test_a_step_that_failed_for_good_and_was_retried_shows_every_failure(make_engine):
    """S0-58 G4 Three attempts failed, then somebody retried it: three failures, and four when the next one fails."""
    broken = [True]

    @activity(retry=Retry(max_attempts=3))
    async def body() -> None:
        if broken or step_context().attempt == 4:
            raise ValueError("no")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(body)

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    [shown] = await run.steps()
    assert (shown.attempts, shown.failures) == (3, 3)
    broken.clear()
    await run.retry()
    await run.result()
    [shown] = await run.steps()
    assert (shown.attempts, shown.failures, shown.status) == (5, 4, "completed")
