"""Stopping in order: bodies may finish, the rest is handed back, and nothing counts as a crash."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, HoldfastError, Retry, Status, activity, step_context, workflow
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def ask(ctx: Context) -> str:
    return await ctx.receive("word", str)


@restarts
async def test_a_body_that_finishes_within_the_grace_is_recorded(make_engine):
    """S2-8 S0-21 G3 stop() waits for it, and the next engine does not run it again."""
    bodies: list[int] = []
    started = asyncio.Event()

    async def work() -> str:
        bodies.append(step_context().attempt)
        started.set()
        await asyncio.sleep(0.05)
        return "done"

    @workflow
    async def one(ctx: Context) -> str:
        word = await ctx.step(work)
        await ctx.sleep(HOUR)
        return word

    first = await make_engine(one, stop_grace=timedelta(seconds=5))
    run = await first.start(one)
    await started.wait()
    await first.stop()
    second = await make_engine(one, clock=first.jumping)
    assert await second.get(run.id).result() == "done"
    assert bodies == [1]


@restarts
async def test_a_body_beyond_the_grace_is_handed_back_and_is_no_crash(make_engine):
    """G4 B1 S0-37 Its attempt has its own number but counts neither as failure nor as crash, however often."""
    attempts: list[int] = []
    told: list[str] = []
    started = asyncio.Event()
    ready = False

    @activity(retry=Retry(max_attempts=1, crash_limit=2))
    async def work() -> str:
        attempts.append(step_context().attempt)
        started.set()
        if not ready:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                told.append(step_context().signal.reason)
                raise
        return "done"

    @workflow
    async def one(ctx: Context) -> str:
        return await ctx.step(work)

    engine = await make_engine(one, stop_grace=timedelta(milliseconds=10))
    run = await engine.start(one, id="r")
    for _ in range(4):
        await asyncio.wait_for(started.wait(), LONG)
        started.clear()
        await engine.stop()
        engine = await make_engine(one, clock=engine.jumping, stop_grace=timedelta(milliseconds=10))
        run = engine.get("r")
    await asyncio.wait_for(started.wait(), LONG)
    ready = True
    await engine.stop()
    engine = await make_engine(one, clock=engine.jumping)
    run = engine.get("r")
    assert await run.result() == "done"
    assert attempts == [1, 2, 3, 4, 5, 6]
    assert told == ["the worker stops"] * 5
    lost = [entry.entry.why for entry in await run.history() if entry.kind == "attempt lost"]
    assert lost == ["handed back"] * 5


@restarts
async def test_a_thread_that_never_comes_back_does_not_hold_up_the_stop(make_engine):
    """S2-8 GUARANTEES 2 Threads are never joined; what they return later is nobody's."""
    release = threading.Event()
    started = threading.Event()
    bodies: list[int] = []

    def block() -> str:
        bodies.append(step_context().attempt)
        started.set()
        release.wait()
        return "late" if step_context().attempt == 1 else "second"

    @workflow
    async def one(ctx: Context) -> str:
        return await ctx.step(block)

    first = await make_engine(one, stop_grace=timedelta(milliseconds=10))
    run = await first.start(one)
    assert await asyncio.to_thread(started.wait, LONG)
    async with asyncio.timeout(LONG):
        await first.stop()
    release.set()
    second = await make_engine(one, clock=first.jumping)
    assert await second.get(run.id).result() == "second"
    assert bodies == [1, 2]


async def test_stopping_twice_and_stopping_an_unopened_engine_are_harmless(make_engine, tmp_path):
    """S2-8 Also two stops at the same time."""
    engine = await make_engine(ask)
    await engine.start(ask)
    await asyncio.gather(engine.stop(), engine.stop())
    await engine.stop()
    await Engine(f"sqlite:///{tmp_path / 'never.db'}", workflows=[ask]).stop()


@restarts
async def test_a_stop_right_after_the_start_loses_nothing(make_engine):
    """G1 GUARANTEES 2 The stop flag is level-triggered: starts that returned are there for the next engine."""
    engine = await make_engine(ask)
    runs = await asyncio.gather(*(engine.start(ask) for _ in range(20)))
    await engine.stop()
    second = await make_engine(ask, clock=engine.jumping)
    for run in runs:
        await second.get(run.id).send("word", run.id)
    assert [await second.get(run.id).result() for run in runs] == [run.id for run in runs]


@restarts
async def test_an_engine_may_be_stopped_as_soon_as_it_is_open(make_engine):
    """S2-8 GUARANTEES 2 Stop lost at start-up: it is not."""
    for _ in range(5):
        engine = await make_engine(ask)
        async with asyncio.timeout(LONG):
            await engine.stop()


@restarts
async def test_a_start_that_races_with_the_stop_is_durable_or_refused(make_engine):
    """G1 S2-8 Either the handle comes back and the run exists, or the caller is told."""
    engine = await make_engine(ask)
    starts = [asyncio.ensure_future(engine.start(ask, id=f"r{number}")) for number in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(LONG):
        await engine.stop()
        ends = await asyncio.gather(*starts, return_exceptions=True)
    assert all(isinstance(end, HoldfastError) or not isinstance(end, BaseException) for end in ends), ends
    second = await make_engine(ask, clock=engine.jumping)
    for end in ends:
        if not isinstance(end, BaseException):
            assert await second.get(end.id).status() in (Status.PENDING, Status.SUSPENDED, Status.RUNNING)


async def test_whoever_waits_for_a_result_is_told_that_the_engine_stopped(tmp_path):
    """S2-8 A HoldfastError, not a cancelled task: the waiting code did not ask to be cancelled."""
    engine = Engine(f"sqlite:///{tmp_path / 'stop.db'}", workflows=[ask], stop_grace=timedelta(milliseconds=10))
    await engine.open()
    run = await engine.start(ask)
    waiting = asyncio.ensure_future(run.result())
    await asyncio.sleep(0.02)
    await engine.stop()
    await asyncio.wait([waiting], timeout=LONG)
    assert waiting.done()
    assert not waiting.cancelled()
    assert isinstance(waiting.exception(), HoldfastError)


async def test_a_stop_leaves_no_task_and_no_thread_behind(tmp_path):
    """S2-8 GUARANTEES 4 No leaked task, no leaked thread."""
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    for mode in (":memory:", f"sqlite:///{tmp_path / 'leak.db'}"):
        async with TestEngine(mode, workflows=[ask]) as engine:
            runs = [await engine.start(ask) for _ in range(5)]
            await runs[0].send("word", "x")
            await runs[0].result()
            await runs[1].cancel()
            await engine.settle()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == tasks
    left = {thread for thread in threading.enumerate() if thread not in threads and thread.is_alive()}
    for thread in left:
        await asyncio.to_thread(thread.join, LONG)
    assert not any(thread.is_alive() for thread in left if thread.name.startswith("holdfast"))


@restarts
async def test_retries_and_timers_of_a_stopped_engine_keep_their_times(make_engine):
    """S0-23 B15 A retry that waits is not lost, not early and not repeated by a stop."""
    attempts: list[Any] = []

    @activity(retry=Retry(max_attempts=3, initial_interval=HOUR, max_interval=None, jitter=0.0))
    async def flaky() -> str:
        attempts.append(step_context().attempt)
        if len(attempts) < 2:
            raise ConnectionError("again")
        return "done"

    @workflow
    async def one(ctx: Context) -> str:
        return await ctx.step(flaky)

    first = await make_engine(one)
    run = await first.start(one)
    await first.settle()
    await first.stop()
    second = await make_engine(one, clock=first.jumping)
    await second.advance(HOUR / 2)
    assert attempts == [1]
    await second.stop()
    third = await make_engine(one, clock=first.jumping)
    await third.advance(HOUR)
    assert attempts == [1, 2]
    assert await third.get(run.id).result() == "done"


async def stop_meanwhile(engine: Any, release: asyncio.Event) -> None:
    """Begin to stop, and let what runs end only then."""
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    release.set()
    await stopping


def two_steps() -> tuple[asyncio.Event, asyncio.Event, list[int], Any]:
    """Return events that the first step has begun and may end, the attempts of the second, and their workflow."""
    begun, release = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    async def first() -> None:
        begun.set()
        await release.wait()

    async def second() -> int:
        attempts.append(step_context().attempt)
        return step_context().attempt

    @workflow
    async def two(ctx: Context) -> int:
        await ctx.step(first)
        return await ctx.step(second)

    return begun, release, attempts, two


@restarts
async def test_a_step_that_becomes_ready_while_the_engine_stops_is_not_counted(make_engine):
    """S2-8 B1 Its call is recorded, its body never began: no engine says that it runs, and it keeps its number."""
    begun, release, attempts, two = two_steps()
    engine = await make_engine(two, stop_grace=timedelta(seconds=LONG))
    run = await engine.start(two)
    await begun.wait()
    await stop_meanwhile(engine, release)
    client = await make_engine(two, clock=engine.jumping, run_workflows=False)
    steps = await client.get(run.id).steps()
    assert [(step.name, step.status, step.attempts) for step in steps] == [
        ("first", "completed", 1),
        ("second", "pending", 0),
    ]
    third = await make_engine(two, clock=engine.jumping)
    assert await third.get(run.id).result() == 1
    assert attempts == [1]
    steps = await third.get(run.id).steps()
    assert [(step.attempts, step.skips) for step in steps] == [(1, 0), (1, 0)]


@restarts
async def test_a_step_whose_commit_is_in_flight_when_the_engine_stops_is_not_counted(make_engine):
    """S2-8 B1 It would have begun with the answer, which comes when the run is handed back already."""
    begun, release, attempts, two = two_steps()
    engine = await make_engine(two)
    run = await engine.start(two)
    await begun.wait()
    held = engine.faults.hold()
    release.set()
    await held.happened()
    residents = engine._working().runner.residents
    stopping = asyncio.ensure_future(engine.stop())
    await eventually(lambda: not residents)
    held.release()
    await stopping
    client = await make_engine(two, clock=engine.jumping, run_workflows=False)
    steps = await client.get(run.id).steps()
    assert [(step.name, step.status, step.attempts) for step in steps] == [
        ("first", "completed", 1),
        ("second", "pending", 0),
    ]
    third = await make_engine(two, clock=engine.jumping)
    assert await third.get(run.id).result() == 1
    assert attempts == [1]


@restarts
@pytest.mark.parametrize("queue", [None, "default"], ids=["own", "queued"])
async def test_steps_that_wait_for_a_place_when_the_engine_stops_are_not_counted(make_engine, queue):
    """S2-8 B1 Nor do they begin any more: the stop waits for what runs, and for nothing else."""
    begun, release = asyncio.Event(), asyncio.Event()
    attempts: list[tuple[int, int]] = []

    @activity(queue=queue)
    async def work(number: int) -> int:
        attempts.append((number, step_context().attempt))
        begun.set()
        await release.wait()
        return number

    @workflow
    async def many(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(work, number) for number in range(4))))

    engine = await make_engine(many, max_steps=1, stop_grace=timedelta(seconds=LONG))
    run = await engine.start(many)
    await begun.wait()
    await stop_meanwhile(engine, release)
    assert len(attempts) == 1
    second = await make_engine(many, clock=engine.jumping)
    assert await second.get(run.id).result() == [0, 1, 2, 3]
    assert sorted(attempts) == [(number, 1) for number in range(4)]


@restarts
async def test_a_retry_that_is_due_while_the_engine_stops_is_not_counted(make_engine):
    """S2-8 B1 It is made by the next engine, with the number it would have had."""
    begun, release = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    @activity(retry=Retry(max_attempts=2, initial_interval=HOUR, max_interval=None, jitter=0.0))
    async def flaky() -> int:
        attempts.append(step_context().attempt)
        if len(attempts) == 1:
            raise ConnectionError("once")
        return step_context().attempt

    async def slow() -> None:
        begun.set()
        await release.wait()

    @workflow
    async def both(ctx: Context) -> int:
        waiting = ctx.step(slow)
        found = await ctx.step(flaky)
        await waiting
        return found

    engine = await make_engine(both, stop_grace=timedelta(seconds=LONG))
    run = await engine.start(both)
    await begun.wait()
    await asyncio.sleep(0.02)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    engine.jumping.jump_to(engine.clock.now() + 2 * 3600 * 1_000_000)
    await asyncio.sleep(0.05)
    release.set()
    await stopping
    second = await make_engine(both, clock=engine.jumping)
    assert await second.get(run.id).result() == 2
    assert attempts == [1, 2]
