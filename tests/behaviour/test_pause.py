"""Pause: a run begins nothing more, what is under way ends and is recorded, and it goes on when it may."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.support.acts_cases import Flaky, Gate, moments
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, activity, workflow
from holdfast.errors import BadInput, InvalidDuration

HOUR = timedelta(hours=1)
SOON = timedelta(milliseconds=10)
restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def hears(ctx: Context) -> list[str]:
    return [await ctx.receive("word", str), await ctx.receive("word", str)]


@workflow
async def sleeps(ctx: Context) -> str:
    await ctx.sleep(HOUR)
    return "slept"


async def test_while_a_step_runs_it_ends_and_is_recorded_and_no_other_begins(make_engine):
    """B25 S4-25 The body is not disturbed; its result is in history though the code has not seen it."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        first = await ctx.step("one", gate, "one")
        return first + await ctx.step("two", gate, "two")

    engine = await make_engine(work)
    gate.open("two")
    run = await engine.start(work)
    await gate.entered("one")
    assert await run.pause(by="kim", reason="the bank is down")
    assert await run.status() is Status.PAUSED
    await moments()
    gate.open("one")
    await engine.settle()
    await engine.advance(HOUR)
    assert gate.begun == ["one"]
    assert [(step.name, step.status, step.attempts) for step in await run.steps()] == [("one", "completed", 1)]
    assert await run.resume(by="kim")
    assert await run.result() == "onetwo"
    assert gate.begun == ["one", "two"]
    pause, resume = await engine.audit.records(target=run.id)
    assert (pause.action, pause.actor, pause.detail) == ("pause", "kim", {"reason": "the bank is down"})
    assert (resume.action, resume.actor) == ("resume", "kim")


async def test_while_it_sleeps_the_timer_fires_when_it_is_resumed(make_engine):
    """B25 A timer that came due in the pause is over at once afterwards; one that did not waits for its own time."""
    engine = await make_engine(sleeps)
    short, long = await engine.start(sleeps), await engine.start(sleeps)
    await engine.settle()
    assert await short.pause()
    assert await long.pause()
    await engine.advance(HOUR / 2)
    assert await long.resume()
    await engine.settle()
    assert await long.status() is Status.SUSPENDED
    await engine.advance(HOUR)
    assert await long.status() is Status.COMPLETED
    assert await short.status() is Status.PAUSED
    before = engine.clock.now()
    assert await short.resume()
    assert await short.result() == "slept"
    assert engine.clock.now() == before


async def test_while_it_waits_for_a_retry_the_attempt_waits_too(make_engine):
    """B25 No retry begins in the pause; it begins at once when its time has passed, and its count goes on."""
    calls: list[int] = []

    @activity(retry=Retry(max_attempts=3, initial_interval=HOUR))
    async def body() -> int:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")
        return len(calls)

    @workflow
    async def work(ctx: Context) -> int:
        return await ctx.step(body)

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.pause()
    await engine.advance(5 * HOUR)
    assert len(calls) == 1
    assert [(step.status, step.attempts) for step in await run.steps()] == [("waiting", 1)]
    assert await run.resume()
    await engine.settle()
    assert len(calls) == 2
    assert await run.result() == 3


async def test_messages_of_a_paused_run_wait_in_order(make_engine):
    """B25 S2-12 G7 What is sent in the pause is taken after it, nothing is lost and nothing overtakes."""
    engine = await make_engine(hears)
    run = await engine.start(hears)
    await engine.settle()
    assert await run.pause()
    await run.send("word", "a")
    await run.send("word", "b")
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert await run.resume()
    assert await run.result() == ["a", "b"]


async def test_events_of_a_paused_waiter_wait_with_it(make_engine):
    """B25 An event is given to the run that waits first, paused or not, and kept for it."""
    engine = await make_engine(hears)
    run = await engine.start(hears)
    await engine.settle()
    assert await run.pause()
    await engine.settle()
    for word in ("a", "b"):
        await engine.publish("word", word)
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert await run.resume()
    assert await run.result() == ["a", "b"]


async def test_a_paused_parent_hears_its_child_later_and_a_paused_child_keeps_it_waiting(make_engine):
    """B25 G10 A pause concerns one run; children are paused by themselves."""
    body = Flaky()

    @workflow
    async def child(ctx: Context) -> str:
        return await ctx.receive("word", str)

    @workflow
    async def parent(ctx: Context) -> str:
        heard = await ctx.child(child, id="kid")
        return await ctx.step("after", body.body, heard)

    engine = await make_engine(parent, child)
    run = await engine.start(parent)
    await engine.settle()
    kid = engine.get("kid")
    assert await kid.pause()
    await kid.send("word", "hello")
    await engine.settle()
    assert await run.status() is Status.SUSPENDED
    assert await run.pause()
    assert await kid.resume()
    await engine.settle()
    assert await kid.status() is Status.COMPLETED
    assert await run.status() is Status.PAUSED
    assert body.ran == []
    assert await run.resume()
    assert await run.result() == "hello"


async def test_while_it_undoes_the_next_compensation_waits(make_engine):
    """B25 B17 G11 A pause between two compensations; none is lost or repeated, the order stays."""
    gate, body = Gate(), Flaky()

    @workflow
    async def work(ctx: Context) -> None:
        for name in ("a", "b", "c"):
            await ctx.step(name, body.body, name)
            ctx.compensate(undo, name)
        raise ValueError("no")

    async def undo(name: str) -> None:
        await gate(name)

    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("c")
    assert await run.status() is Status.COMPENSATING
    assert await run.pause()
    await moments()
    gate.open("a", "b", "c")
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert gate.begun == ["c"]
    assert await run.resume()
    with pytest.raises(RunFailed, match="no"):
        await run.result()
    assert gate.begun == ["c", "b", "a"]
    assert [undone["status"] for undone in (await run.describe()).compensation or ()] == ["completed"] * 3


async def test_before_it_begins_it_does_not_begin(make_engine):
    """B25 S4-25 Resumed before its time it begins then; after its time, at once."""
    engine = await make_engine(hears)
    early, late = await engine.start(hears, delay=2 * HOUR), await engine.start(hears, delay=HOUR)
    assert await early.pause()
    assert await late.pause()
    await engine.advance(HOUR)
    assert await early.resume()
    await engine.advance(HOUR / 2)
    assert [await run.status() for run in (early, late)] == [Status.PENDING, Status.PAUSED]
    assert await late.resume()
    await engine.settle()
    assert await late.status() is Status.SUSPENDED
    await engine.advance(HOUR / 2)
    assert await early.status() is Status.SUSPENDED


@pytest.mark.parametrize("how", ["until", "duration"])
async def test_a_timed_pause_ends_by_itself(make_engine, how):
    """S4-30 S4-25 The paused run carries its next time, and is found by it like any due run."""
    engine = await make_engine(hears, start=datetime(2026, 1, 1, tzinfo=UTC))
    run = await engine.start(hears)
    await engine.settle()
    end = datetime(2026, 1, 1, 3, tzinfo=UTC)
    assert await run.pause(**({"until": end} if how == "until" else {"duration": 3 * HOUR}))
    await run.send("word", "a")
    await engine.settle()
    seen = await run.describe()
    assert (seen.status, seen.due_at) == (Status.PAUSED, end)
    await engine.advance(2 * HOUR)
    assert await run.status() is Status.PAUSED
    await engine.advance(HOUR)
    assert (await run.describe()).waiting_for == "message word"
    assert [entry.kind for entry in await run.history()].count("message") == 1


@restarts
async def test_a_timed_pause_ends_whichever_engine_is_there_then(make_engine):
    """S4-30 S4-25 It is a due time in the store, not a timer of a process."""
    engine = await make_engine(hears)
    run = await engine.start(hears, id="r")
    await engine.settle()
    assert await run.pause(duration=3 * HOUR)
    await engine.stop()
    engine = await make_engine(hears, clock=engine.jumping)
    await engine.advance(2 * HOUR)
    assert await engine.get("r").status() is Status.PAUSED
    await engine.stop()
    engine.jumping.advance(5 * HOUR)
    engine = await make_engine(hears, clock=engine.jumping)
    await engine.settle()
    assert await engine.get("r").status() is Status.SUSPENDED


async def test_the_last_pause_counts(make_engine):
    """S4-25 S4-30 A pause may be made longer, shorter or endless."""
    engine = await make_engine(hears)
    run = await engine.start(hears)
    await engine.settle()
    assert await run.pause(duration=HOUR)
    assert await run.pause(duration=4 * HOUR)
    await engine.advance(2 * HOUR)
    assert await run.status() is Status.PAUSED
    assert await run.pause()
    await engine.advance(24 * HOUR)
    assert await run.status() is Status.PAUSED
    assert await run.pause(duration=HOUR)
    await engine.advance(HOUR)
    assert await run.status() is Status.SUSPENDED


async def test_what_a_pause_cannot_be_is_refused(make_engine):
    """S4-25 Both ends, a negative one or a naive one: nothing is changed."""
    engine = await make_engine(hears)
    run = await engine.start(hears)
    await engine.settle()
    with pytest.raises(BadInput, match="not both"):
        await run.pause(until=datetime(2030, 1, 1, tzinfo=UTC), duration=HOUR)
    with pytest.raises(InvalidDuration):
        await run.pause(duration=-HOUR)
    with pytest.raises(BadInput):
        await run.pause(until=datetime(2030, 1, 1))  # noqa: DTZ001  # that is the point
    assert await run.status() is Status.SUSPENDED
    assert not engine.offers("audit") or await engine.audit.records() == []


async def test_a_negative_pause_is_called_by_its_name(make_engine):
    """S4-25 The error names the argument."""
    engine = await make_engine(hears)
    run = await engine.start(hears)
    with pytest.raises(InvalidDuration, match="duration"):
        await run.pause(duration=-HOUR)


async def test_a_paused_run_can_be_cancelled_and_cleans_up(make_engine):
    """B25 B7 S4-25 Cancel works from paused: the code is told, its cleanup runs."""
    undone = Flaky()

    @workflow
    async def careful(ctx: Context) -> None:
        try:
            await ctx.receive("word")
        finally:
            await ctx.step("undo", undone.body, "undo")

    engine = await make_engine(careful)
    run = await engine.start(careful)
    await engine.settle()
    assert await run.pause()
    await engine.settle()
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert undone.ran == ["undo"]


async def test_a_run_that_is_just_pausing_can_be_cancelled(make_engine):
    """B25 B7 The body under way is told; the run does not wait for it."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step("one", gate, "one")

    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("one")
    assert await run.pause()
    await moments()
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    assert [step.status for step in await run.steps()] == ["cancelled"]


async def test_a_run_that_is_just_pausing_can_be_resumed(make_engine):
    """B25 S4-25 Its body goes on undisturbed, once."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", gate, "one") + await ctx.step("two", gate, "two")

    engine = await make_engine(work)
    gate.open("two")
    run = await engine.start(work)
    await gate.entered("one")
    assert await run.pause()
    await moments()
    assert await run.resume()
    assert await run.status() is Status.RUNNING
    await moments()
    gate.open("one")
    assert await run.result() == "onetwo"
    assert gate.begun == ["one", "two"]


async def test_steps_that_wait_for_a_place_do_not_begin(make_engine):
    """B25 What was counted but has no place to run yet is given back and begins after the pause, as no failure."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> list[str]:
        return list(await asyncio.gather(*(ctx.step(name, gate, name) for name in "abc")))

    engine = await make_engine(work, max_steps=1)
    run = await engine.start(work)
    await gate.entered("a")
    assert await run.pause()
    await moments()
    gate.open(*"abc")
    await engine.settle()
    assert gate.begun == ["a"]
    assert await run.resume()
    assert await run.result() == ["a", "b", "c"]
    assert sorted(gate.begun) == ["a", "b", "c"]
    assert [step.failures for step in await run.steps()] == [0, 0, 0]


@pytest.mark.parametrize("mode", ["file"])
async def test_nothing_begins_after_the_pause_was_acknowledged(make_engine):
    """B25 In the middle of many quick steps; at most the one that was being committed begins."""
    ran: list[int] = []

    async def quick(number: int) -> None:
        ran.append(number)

    @workflow
    async def busy(ctx: Context) -> int:
        for number in range(1000):
            await ctx.step(quick, number)
        return len(ran)

    engine = await make_engine(busy)
    engine.faults.call(lambda: asyncio.sleep(0.05), None, at="due", moment="after")
    run = await engine.start(busy)
    await eventually(lambda: len(ran) > 20)
    assert await run.pause()
    begun = len(ran)
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert len(ran) <= begun + 1


async def test_many_quick_steps_are_paused_in_their_midst_and_none_is_lost(make_engine):
    """B25 Several times over: every step runs once."""
    ran: list[int] = []

    async def quick(number: int) -> None:
        ran.append(number)

    @workflow
    async def busy(ctx: Context) -> int:
        for number in range(150):
            await ctx.step(quick, number)
        return len(ran)

    engine = await make_engine(busy)
    run = await engine.start(busy)
    for wanted in (20, 60, 100):
        await eventually(lambda wanted=wanted: len(ran) > wanted)
        if await run.pause():
            await engine.settle()
            assert await run.status() is Status.PAUSED
            begun = len(ran)
            await engine.advance(HOUR)
            assert len(ran) == begun
            assert await run.resume()
    assert await run.result() == 150
    assert ran == list(range(150))


@restarts
@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_a_paused_run_stays_paused_whatever_becomes_of_its_worker(make_engine, how):
    """B25 S4-25 Also while its last body runs: that is lost with its worker and runs again after the pause."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step("one", gate, "one")

    engine = await make_engine(work, stop_grace=SOON)
    run = await engine.start(work, id="r")
    await gate.entered("one")
    assert await run.pause()
    await moments()
    await (engine.crash() if how == "crash" else engine.stop())
    gate.open("one")
    engine = await make_engine(work, clock=engine.jumping)
    run = engine.get("r")
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert gate.begun == ["one"]
    assert await run.resume()
    assert await run.result() == "one"
    assert gate.begun == ["one", "one"]


@restarts
@pytest.mark.parametrize("how", ["crash", "stop"])
@pytest.mark.parametrize("timed", [False, True], ids=["endless", "timed"])
async def test_a_pause_survives_its_worker_while_a_step_is_under_way(make_engine, how, timed):
    """B25 S4-25 S4-30 Two bodies, of which one has ended and been recorded when the worker goes."""
    gate = Gate()

    @workflow
    async def work(ctx: Context) -> str:
        await asyncio.gather(ctx.step("a", gate, "a"), ctx.step("b", gate, "b"))
        return await ctx.step("after", gate, "after")

    engine = await make_engine(work, stop_grace=SOON)
    run = await engine.start(work, id="r")
    await gate.entered("b")
    assert await run.pause(duration=HOUR if timed else None)
    await moments()
    gate.open("a", "after")

    async def recorded() -> bool:
        return [step.status for step in await run.steps()] == ["completed", "running"]

    await eventually(recorded)
    await (engine.crash() if how == "crash" else engine.stop())
    gate.open("b")
    engine = await make_engine(work, clock=engine.jumping)
    run = engine.get("r")
    await engine.settle()
    assert await run.status() is Status.PAUSED
    assert "after" not in gate.begun
    assert await run.resume() if not timed else await engine.advance(HOUR) is None
    assert await run.result() == "after"
    assert gate.begun == ["a", "b", "b", "after"]


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_pause_and_resume_at_once_from_two_engines_leave_one_of_the_two(make_engine):
    """B25 S2-38 One conditional write decides each; whatever the order, the run is paused or goes on, never both."""
    first = await make_engine(hears)
    second = await make_engine(hears, clock=first.jumping)
    run = await first.start(hears)
    await first.settle()
    for round in range(20):
        acts = [
            first.get(run.id).pause(),
            second.get(run.id).resume(),
            second.get(run.id).pause(),
            first.get(run.id).resume(),
        ]
        await asyncio.gather(*(acts if round % 2 else reversed(acts)))

        async def quiet() -> bool:
            await first.settle()
            await second.settle()
            row = await run.describe()
            return row.status is Status.SUSPENDED or (row.status is Status.PAUSED and row.owner is None)

        await eventually(quiet)
        if await run.status() is Status.PAUSED:
            assert await second.get(run.id).resume()
            await eventually(quiet)
        assert await run.status() is Status.SUSPENDED
    await run.send("word", "a")
    await run.send("word", "b")
    assert await asyncio.wait_for(run.result(), LONG) == ["a", "b"]


async def test_steps_that_end_side_by_side_while_a_run_is_paused_lead_on_when_it_is_resumed(make_engine):
    """B25 G3 The code has seen none of the ends: what it asks for because of them is new, and no change of the code."""
    gates: dict[str, asyncio.Event] = {}

    async def body(name: str) -> str:
        await gates.setdefault(name, asyncio.Event()).wait()
        return name

    async def after(name: str) -> str:
        return name

    @workflow
    async def work(ctx: Context) -> dict[str, str]:
        async def branch(inner: Context, name: str) -> str:
            await inner.step(body, name)
            inner.compensate(after, name)
            return await inner.step(after, name)

        return await ctx.join({"a": lambda inner: branch(inner, "a"), "b": lambda inner: branch(inner, "b")})

    engine = await make_engine(work)
    run = await engine.start(work)
    while len(gates) < 2:  # noqa: ASYNC110  # until both bodies have begun
        await asyncio.sleep(0.001)
    assert await run.pause()
    for _ in range(20):
        await asyncio.sleep(0)
    for gate in gates.values():
        gate.set()
    await engine.settle()
    assert await run.status() == "paused"
    assert await run.resume()
    assert await run.result() == {"a": "a", "b": "b"}


async def test_the_entries_of_a_run_whose_steps_ended_while_it_was_paused_keep_the_order_of_time(make_engine):
    """B25 What the code asks for after the first of two ends is asked for when it goes on."""
    gate = Gate()
    gate.open("after")

    @workflow
    async def work(ctx: Context) -> None:
        async def branch(name: str) -> None:
            await ctx.step(name, gate, name)
            await ctx.step(f"after {name}", gate, "after")

        await asyncio.gather(branch("a"), branch("b"))

    engine = await make_engine(work)
    run = await engine.start(work)
    await gate.entered("a")
    await gate.entered("b")
    await run.pause()
    await moments()
    for name in ("a", "b"):
        engine.jumping.advance(HOUR)
        gate.open(name)
        await eventually(partial(_completed, run, name))
    await run.resume()
    await run.result()
    times = [entry.at for entry in await run.history()]
    assert times == sorted(times)


async def _completed(run: Any, name: str) -> bool:
    return any(step.name == name and step.status == "completed" for step in await run.steps())


async def test_a_race_both_of_whose_steps_end_while_it_is_paused_has_one_winner(make_engine):
    """B25 G1 The end that comes second answers nobody when the run goes on, now and on every later replay."""
    gates = {"a": asyncio.Event(), "b": asyncio.Event()}
    begun: list[str] = []

    async def body(name: str) -> str:
        begun.append(name)
        await gates[name].wait()
        return name

    async def first(ctx: Context) -> str:
        return await ctx.step(body, "a")

    async def second(ctx: Context) -> str:
        return await ctx.step(body, "b")

    @workflow
    async def work(ctx: Context) -> str:
        won = await ctx.race({"a": first, "b": second})
        await ctx.receive("go")
        return won.winner

    engine = await make_engine(work)
    run = await engine.start(work, id="race")
    while len(begun) < 2:  # noqa: ASYNC110  # until both bodies have begun
        await asyncio.sleep(0.001)
    assert await run.pause()
    for gate in gates.values():
        for _ in range(20):
            await asyncio.sleep(0.0005)
        gate.set()
    await engine.settle()
    assert await run.resume()
    await engine.settle()
    await run.send("go")
    assert await run.result() == "a"
    assert (await run.describe()).status == "completed"
