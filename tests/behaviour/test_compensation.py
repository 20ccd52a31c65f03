"""Sagas: what a run did is undone when it fails, in reverse, each thing once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import (
    Context,
    Retry,
    Rollback,
    RunBlocked,
    RunCancelled,
    RunFailed,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.errors import Critical, RunTimeout
from holdfast.replay import entry as entries

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
log: list[Any] = []


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


async def do(what: object) -> object:
    log.append(what)
    return what


async def undo(what: object) -> None:
    log.append(f"undo {what}")


@activity(retry=Retry.never)
async def fail() -> None:
    raise ValueError("it went wrong")


@activity(retry=Retry(max_attempts=3))
async def cannot(what: object) -> None:
    log.append(f"try to undo {what}")
    raise ConnectionError("nobody answers")


async def fails(run: Any, error: type[BaseException] = ValueError) -> Any:
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert type(failed.value.__cause__) is error
    return await run.describe()


# Failing.


@workflow
async def trip(ctx: Context) -> None:
    for what in ("flight", "hotel", "car"):
        await ctx.step(do, what)
        ctx.compensate(undo, what)
    await ctx.step(fail)
    ctx.compensate(undo, "the failed step")


async def test_a_run_that_fails_is_undone_in_reverse_and_says_how_that_went(make_engine):
    """S0-55 S4-21 B17 G11 The failed step itself is not undone; the error is that of the run."""
    engine = await make_engine(trip)
    run = await engine.start(trip)
    ended = await fails(run)
    assert log == ["flight", "hotel", "car", "undo car", "undo hotel", "undo flight"]
    undone = {"name": "undo", "status": "completed", "attempts": 1, "error": None}
    assert ended.compensation == [undone] * 3
    steps = [step for step in await run.steps() if step.compensation]
    assert [(step.name, step.path, step.status) for step in steps] == [
        ("undo", f"undo#{n}/undo", "completed") for n in (2, 1, 0)
    ]


async def test_those_who_watch_are_told_of_each_compensation(make_engine):
    """S4-22 Started, completed and failed are types of their own; the run is `compensating` meanwhile."""
    statuses: list[Status] = []

    async def look() -> None:
        statuses.append(await engine.get(step_context().run_id).status())

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(look)
        ctx.compensate(cannot, 1)
        raise ValueError("it went wrong")

    engine = await make_engine(work)
    seen: list[tuple[str, str]] = []
    engine.subscribe(lambda change: seen.append((change.type, change.step)))
    await fails(await engine.start(work))
    told = [each for each in seen if each[0].startswith("compensation.")]
    assert told == [
        *[("compensation.started", "undo#1/cannot")] * 3,
        ("compensation.failed", "undo#1/cannot"),
        ("compensation.started", "undo#0/look"),
        ("compensation.completed", "undo#0/look"),
    ]
    assert ("run.compensating", "") in seen
    assert statuses == [Status.COMPENSATING]


async def test_a_compensation_that_fails_is_retried_then_recorded_and_stops_no_other(make_engine):
    """B17 G11 S4-21 By its own policy, with its delays; then it is a dead letter and the earlier ones run."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        ctx.compensate(undo, 1)
        ctx.compensate(cannot, 2)
        ctx.compensate(undo, 3)
        await ctx.step(fail)

    engine = await make_engine(work)
    run = await engine.start(work)
    ended = await fails(run)
    assert log == [1, "undo 3", *["try to undo 2"] * 3, "undo 1"]
    assert [each["status"] for each in ended.compensation] == ["completed", "failed", "completed"]
    failed = ended.compensation[1]
    assert (failed["name"], failed["attempts"], failed["error"]) == ("cannot", 3, "ConnectionError: nobody answers")
    if engine.offers("dead_letters"):
        letters = await engine.dead_letters.list()
        assert sorted((letter.activity, letter.attempts) for letter in letters) == [("cannot", 3), ("fail", 1)]


async def test_one_stack_for_join_race_loop_and_children(make_engine):
    """B17 G11 In the order of registration, whatever scope it was in; trimmed iterations and lost branches count too.

    A child that completed is undone by what its parent registers, and by nothing else.
    """

    @workflow
    async def child(ctx: Context) -> str:
        await ctx.step(do, "child")
        ctx.compensate(undo, "never: the child completed")
        return "c"

    @workflow
    async def work(ctx: Context) -> None:
        async def branch(inner: Context, what: str, delay: timedelta) -> None:
            await inner.sleep(delay)
            await inner.step(do, what)
            inner.compensate(undo, what)
            await inner.sleep(delay)

        both = {"slow": lambda c: branch(c, "slow", MINUTE), "quick": lambda c: branch(c, "quick", SECOND)}
        await ctx.join(both)
        await ctx.race({"lost": lambda c: branch(c, "lost", 10 * SECOND), "won": lambda c: c.sleep(15 * SECOND)})
        async for lap in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
            await lap.step(do, lap.index)
            lap.compensate(undo, lap.index)
            if lap.index == 3:
                break
        ctx.compensate(undo, await ctx.child(child))
        await ctx.step(fail)

    engine = await make_engine(work, child)
    run = await engine.start(work)
    await fails(run)
    done = ["quick", "slow", "lost", 0, 1, 2, 3]
    assert log[:8] == [*done, "child"]
    assert log[8:] == ["undo c", *(f"undo {what}" for what in reversed(done))]
    kept = [fact for fact in await run.history() if isinstance(fact.entry, entries.StepBegun)]
    assert "laps/~0/do" not in [fact.path for fact in kept], "the loop must have forgotten its first iterations"


async def test_the_stack_goes_on_into_the_next_life(make_engine):
    """B17 Three lives register, the third fails; everything is undone, the last first."""

    @workflow
    async def work(ctx: Context, life: int) -> None:
        await ctx.step(do, life)
        ctx.compensate(undo, life)
        if life < 2:
            ctx.continue_as_new(life + 1)
        await ctx.step(fail)

    engine = await make_engine(work)
    ended = await fails(await engine.start(work, 0))
    assert log == [0, 1, 2, "undo 2", "undo 1", "undo 0"]
    assert len(ended.compensation) == 3


async def test_an_awaited_compensate_says_that_it_is_not_to_be_awaited(make_engine):
    """B17 It is no verb: it returns at once, and a newcomer is told so."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        await ctx.compensate(undo, 1)  # type: ignore[misc]  # the mistake that this is about

    engine = await make_engine(work)
    with pytest.raises(RunFailed) as failed:
        await engine.execute(work)
    assert str(failed.value.__cause__) == "ctx.compensate(undo, ...) only notes what to undo: write it without `await`"


async def test_a_run_that_completes_or_handles_its_failure_undoes_nothing(make_engine):
    """B17 Only the end of the run counts."""

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step(do, 1)
        ctx.compensate(undo, 1)
        try:
            await ctx.step(fail)
        except ValueError:
            return "handled"
        return "?"

    engine = await make_engine(work)
    run = await engine.start(work)
    assert await run.result() == "handled"
    assert log == [1]
    assert (await run.describe()).compensation is None


# Rolling back on purpose.


@pytest.mark.parametrize("where", ["step", "branch", "workflow"])
async def test_rollback_stops_at_once_and_undoes(make_engine, where):
    """S1-45 Raised by a body (no retry, however many are left), by one in a join, or by the workflow's own code."""

    @activity(retry=Retry(max_attempts=10))
    async def refuse() -> None:
        log.append("refuse")
        raise Rollback("sold out")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        ctx.compensate(undo, 1)
        if where == "step":
            await ctx.step(refuse)
        elif where == "branch":
            await ctx.join({"a": lambda inner: inner.step(refuse), "b": lambda inner: inner.step(do, "b")})
        else:
            log.append("refuse")
            raise Rollback("sold out")

    engine = await make_engine(work)
    run = await engine.start(work)
    with pytest.raises(RunFailed, match="sold out") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, Rollback) or where == "branch"
    assert [each for each in log if each != "b"] == [1, "refuse", "undo 1"]
    assert [each["status"] for each in (await run.describe()).compensation] == ["completed"]


async def test_critical_fails_without_a_retry_and_is_undone_like_any_failure(make_engine):
    """S1-45 Critical and Rollback both pass by the delays."""

    @activity(retry=Retry(max_attempts=10))
    async def refuse() -> None:
        log.append("refuse")
        raise Critical("broken for good")

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(undo, 1)
        await ctx.step(refuse)

    engine = await make_engine(work)
    await fails(await engine.start(work), Critical)
    assert log == ["refuse", "undo 1"]
    if engine.offers("dead_letters"):
        (letter,) = await engine.dead_letters.list()
        assert (letter.activity, letter.attempts) == ("refuse", 1)


# Cancelling.


@workflow
async def waiting(ctx: Context) -> None:
    await ctx.step(do, 1)
    ctx.compensate(undo, 1)
    await ctx.step(do, 2)
    ctx.compensate(undo, 2)
    await ctx.receive("never")


@pytest.mark.parametrize("compensate", [False, True])
async def test_a_cancelled_run_is_undone_only_if_that_is_asked_for(make_engine, compensate):
    """B17 It ends cancelled either way, and says what was undone."""
    engine = await make_engine(waiting)
    run = await engine.start(waiting)
    await engine.settle()
    assert await run.cancel(compensate=compensate)
    with pytest.raises(RunCancelled):
        await run.result()
    assert log == [1, 2, *(["undo 2", "undo 1"] if compensate else [])]
    undone = (await run.describe()).compensation
    assert [each["status"] for each in undone or ()] == ["completed"] * 2 * compensate
    assert not engine.offers("dead_letters") or await engine.dead_letters.list() == []


@pytest.mark.parametrize("stubborn", ["waits", "sleeps", "in a step"])
async def test_a_run_that_does_not_stop_within_its_grace_is_undone_all_the_same(make_engine, stubborn):
    """B17 B7 Code that goes on after its cancel is cut off when the grace is over; undoing takes the time it takes."""

    @activity(retry=Retry(initial_interval=10 * MINUTE, max_attempts=2))
    async def slow_undo() -> None:
        log.append("slow undo")
        if len(log) == 2:
            raise ConnectionError

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        ctx.compensate(slow_undo)
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            if stubborn == "waits":
                await ctx.receive("never")
            elif stubborn == "sleeps":
                await ctx.sleep(HOUR)
            else:
                await ctx.step(asyncio.sleep, 60)
            log.append("not stopped")

    engine = await make_engine(work, cancel_grace=MINUTE)
    run = await engine.start(work)
    await engine.settle()
    assert await run.cancel(compensate=True)
    if stubborn == "in a step":
        await eventually(lambda: bool(engine.bodies))
        engine.jumping.advance(MINUTE)
    with pytest.raises(RunCancelled):
        await run.result()
    assert log == [1, "slow undo", "slow undo"]


async def test_a_second_cancel_may_ask_to_undo(make_engine):
    """B17 Whoever forgot to say so at first can say it while the run cleans up."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        ctx.compensate(undo, 1)
        try:
            await ctx.receive("never")
        finally:
            await ctx.sleep(SECOND)

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.cancel()
    await engine.settle()
    assert await run.cancel(compensate=True)
    with pytest.raises(RunCancelled):
        await run.result()
    assert log == [1, "undo 1"]


async def test_a_cancel_of_a_run_that_is_being_undone_changes_nothing(make_engine):
    """B17 B32 It is ending already: what was begun is finished, and it ends failed with its own error."""
    gate = asyncio.Event()

    async def slow_undo() -> None:
        log.append("slow")
        await gate.wait()

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(undo, 1)
        ctx.compensate(slow_undo)
        await ctx.step(fail)

    engine = await make_engine(work)
    run = await engine.start(work)
    await eventually(lambda: log == ["slow"])
    assert await run.cancel() is False
    gate.set()
    ended = await fails(run)
    assert log == ["slow", "undo 1"]
    assert [each["status"] for each in ended.compensation] == ["completed"] * 2


async def test_a_terminated_run_is_not_undone(make_engine):
    """B17 None of its code runs, and nothing that it registered."""
    engine = await make_engine(waiting)
    run = await engine.start(waiting)
    await engine.settle()
    assert await run.terminate()
    await engine.settle()
    assert log == [1, 2]


async def test_a_run_that_takes_too_long_is_undone(make_engine):
    """S4-20 S4-21 B17 Its timeout is a failure like another; undoing is not cut off by it."""

    @activity(retry=Retry(initial_interval=HOUR, max_attempts=2))
    async def slow_undo() -> None:
        log.append("slow undo")
        if len(log) == 1:
            raise ConnectionError

    @workflow
    async def work(ctx: Context) -> None:
        ctx.compensate(slow_undo)
        await ctx.receive("never")

    engine = await make_engine(work)
    ended = await fails(await engine.start(work, timeout=MINUTE), RunTimeout)
    assert log == ["slow undo", "slow undo"]
    assert ended.compensation[0]["attempts"] == 2


# Crashes and code changes.


@dataclass
class Booking:
    seat: str
    price: float


async def give_back(booking: Booking) -> None:
    log.append(("give back", booking))


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_undoing_goes_on_where_the_last_engine_stopped(make_engine):
    """B17 G11 S4-28 What was undone stays so; arguments come back as what they were, functions by their names."""
    gate = asyncio.Event()

    async def slow_undo() -> None:
        log.append("slow")
        await gate.wait()

    @workflow
    async def work(ctx: Context) -> None:
        async for lap in ctx.loop("laps", state=0, commit_interval=1, history_every=1, history_keep=1):
            lap.compensate(give_back, Booking(f"12{lap.index}", 99.5))
            await lap.step(do, lap.index)
            if lap.index == 2:
                break
        ctx.compensate(slow_undo)
        ctx.compensate(undo, "last")
        await ctx.step(fail)

    engine = await make_engine(work)
    await engine.start(work, id="w")
    await eventually(lambda: log[-1:] == ["slow"])
    await engine.stop()
    gate.set()
    engine = await make_engine(work, clock=engine.jumping)
    ended = await fails(engine.get("w"))
    back = [("give back", Booking(f"12{n}", 99.5)) for n in (2, 1, 0)]
    assert log == [0, 1, 2, "undo last", "slow", "slow", *back]
    assert [each["attempts"] for each in ended.compensation] == [1, 2, 1, 1, 1]


async def test_a_compensation_that_is_not_found_blocks_until_it_is_given(make_engine, mode):
    """B17 G13 Nothing is skipped: the run says what it needs, and goes on when it has it."""
    found: dict[str, Callable[..., Any]] = {}

    def vanishing() -> Callable[..., Any]:
        async def vanished(what: str) -> None:
            log.append(f"undo {what} at last")

        return vanished

    found["it"] = vanishing()

    @workflow
    async def work(ctx: Context, life: int) -> None:
        if life == 0:
            ctx.compensate(undo, 0)
            ctx.compensate(found["it"], "this")
            ctx.continue_as_new(1)
        await ctx.step(fail)

    engine = await make_engine(work)
    run = await engine.start(work, 0, id="w")
    with pytest.raises(RunBlocked, match=r"'vanished'.*Engine\(activities=\[\.\.\.\]\)"):
        await run.result()
    assert log == []
    if mode == "memory":
        return
    await engine.stop()
    engine = await make_engine(work, clock=engine.jumping, activities=[vanishing()])
    assert await engine.get("w").recover()
    await fails(engine.get("w"))
    assert log == ["undo this at last", "undo 0"]


async def test_the_letter_of_a_failed_compensation_is_kept_though_the_run_is_blocked_next(make_engine):
    """G11 G12 The failure is recorded in the commit that blocks the run, and so is the letter."""

    def vanishing() -> Callable[..., Any]:
        async def vanished() -> None: ...

        return vanished

    found = [vanishing()]

    @workflow
    async def work(ctx: Context, life: int) -> None:
        if life == 0:
            ctx.compensate(found[0])
            ctx.compensate(cannot, 1)
            ctx.continue_as_new(1)
        await ctx.step(fail)

    engine = await make_engine(work)
    run = await engine.start(work, 0)
    with pytest.raises(RunBlocked, match="vanished"):
        await run.result()
    assert [letter.activity for letter in await engine.dead_letters.list()] == ["cannot"]


@pytest.mark.parametrize("mode", ["evict"])
async def test_a_run_claimed_after_its_grace_is_undone_as_it_was_recorded(make_engine):
    """B17 G3 Its timer and its grace were both over when somebody looked; after another stop it still goes on."""
    gate = asyncio.Event()

    async def slow_undo(what: str) -> None:
        log.append(f"slow {what}")
        await gate.wait()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(do, 1)
        ctx.compensate(slow_undo, "first")
        try:
            await ctx.receive("never")
        except asyncio.CancelledError:
            await ctx.sleep(SECOND)
            ctx.compensate(slow_undo, "second")
            await ctx.receive("never")

    engine = await make_engine(work, cancel_grace=MINUTE)
    await engine.start(work, id="w")
    await engine.settle()
    await engine.get("w").cancel(compensate=True)
    await engine.settle()
    engine._jump(engine.clock.now() + 600_000_000)
    await eventually(lambda: len(log) > 1)
    await engine.stop()
    gate.set()
    engine = await make_engine(work, clock=engine.jumping)
    with pytest.raises(RunCancelled):
        await engine.get("w").result()


# Going on after it was undone.


async def test_a_retry_does_again_what_was_undone(make_engine):
    """B17 S4-24 A compensated step counts as not completed, what was never undone stays; it may be undone again."""
    broken = [True]

    @activity(retry=Retry.never)
    async def ship() -> None:
        log.append("ship")
        if broken:
            raise ValueError("it went wrong")

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step(do, "look up")
        await ctx.step(do, "charge")
        ctx.compensate(undo, "charge")
        await ctx.step(ship)
        return "shipped"

    engine = await make_engine(work)
    run = await engine.start(work)
    await fails(run)
    assert log == ["look up", "charge", "ship", "undo charge"]
    log.clear()
    await run.retry()
    ended = await fails(run)
    assert log == ["charge", "ship", "undo charge"]
    assert len(ended.compensation) == 1
    log.clear()
    broken.clear()
    await run.retry()
    assert await run.result() == "shipped"
    assert log == ["charge", "ship"]
    assert (await run.describe()).compensation is None


async def test_a_cancelled_run_that_was_undone_can_be_resumed(make_engine):
    """B17 B8 It does again what was undone, and waits where it waited."""
    engine = await make_engine(waiting)
    run = await engine.start(waiting)
    await engine.settle()
    await run.cancel(compensate=True)
    with pytest.raises(RunCancelled):
        await run.result()
    log.clear()
    assert await run.resume()
    await engine.settle()
    assert await run.status() is Status.SUSPENDED
    assert log == [1, 2]
    await run.send("never")
    await run.result()
