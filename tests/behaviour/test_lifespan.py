"""Bounded time: an engine that works for so long, stops before its time is over, and says what it did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, Retry, Status, activity, step_context, workflow
from holdfast.errors import CannotOpen, HoldfastError, InvalidDuration
from holdfast.limits import Limit
from holdfast.testing.invariants import violations

LIFESPAN = timedelta(seconds=3)
BUFFER = timedelta(seconds=1)
HOUR = timedelta(hours=1)

# Here time is what is tested, so it is real, and long enough for a machine that is busy.


@pytest.fixture
async def make(tmp_path: Path) -> Any:
    """Return a function that makes engines on one file; what must always hold is checked afterwards."""

    def make(*workflows: Any, **options: Any) -> Engine:
        options.setdefault("durability", "process")
        return Engine(f"sqlite:///{tmp_path / 'app.db'}", workflows=workflows, **options)

    yield make
    if (tmp_path / "app.db").exists():
        async with make() as engine:
            assert await violations(engine.store) == []


async def given(make: Callable[..., Engine], definition: Any, many: int = 1) -> None:
    """Start runs without running them."""
    async with make(definition, run_workflows=False) as client:
        for number in range(many):
            await client.start(definition, number, id=f"r-{number}")


async def results(make: Callable[..., Engine], definition: Any, many: int = 1) -> list[Any]:
    """Let an engine without an end do what is left."""
    async with make(definition) as engine:
        return [await asyncio.wait_for(engine.get(f"r-{number}").result(), LONG) for number in range(many)]


def calling(body: Any, **options: Any) -> Any:
    called = activity(name="call", **options)(body)

    @workflow
    async def caller(ctx: Context, number: int = 0) -> Any:
        return await ctx.step(called, number)

    return caller


async def test_it_does_what_there_is_stops_before_its_time_is_over_and_reports(make):
    """S0-21 S0-43 Completed and failed runs, steps, and what is still open."""

    async def work(number: int) -> int:
        if number == 1:
            raise ValueError("no")
        return number

    worked = activity(name="work", retry=Retry.never)(work)

    @workflow
    async def job(ctx: Context, number: int) -> int:
        result = await ctx.step(worked, number)
        if number == 2:
            await ctx.sleep(HOUR)
        return result

    await given(make, job, 5)
    engine = make(job)
    report = await engine.run(lifespan=LIFESPAN, buffer=BUFFER)
    assert (report.completed, report.failed, report.cancelled) == (3, 1, 0)
    assert (report.steps_completed, report.steps_failed) == (4, 1)
    assert report.open_runs == 1
    with pytest.raises(HoldfastError):
        await engine.start(job, 9)  # it is closed


async def test_it_works_until_its_buffer_begins_and_is_gone_before_its_time_is_over(make):
    """S0-43 S0-44 Also when a body has to be given up. (A busy machine may need a second look.)"""

    async def work(number: int) -> None:
        await asyncio.sleep(60)

    caller = calling(work)
    await given(make, caller)
    times = []
    for _ in range(5):
        begun = time.monotonic()
        await make(caller).run(lifespan=LIFESPAN, buffer=BUFFER)
        times.append(time.monotonic() - begun)
        if times[-1] < LIFESPAN.total_seconds():
            break
    assert min(times) >= (LIFESPAN - BUFFER).total_seconds()
    assert times[-1] < LIFESPAN.total_seconds()


async def test_the_defaults_are_those_of_a_background_task():
    """S0-43 25 seconds, of which the last half second is left for stopping."""
    from inspect import signature

    parameters = signature(Engine.run).parameters
    assert parameters["lifespan"].default == timedelta(seconds=25)
    assert parameters["buffer"].default == timedelta(milliseconds=500)


async def test_a_step_that_may_not_finish_in_time_is_not_begun_and_is_done_by_the_next_engine(make):
    """S0-44 Its timeout is longer than what is left; it waits, and uses up no attempt that counts."""
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(step_context().attempt)
        return number

    caller = calling(work, timeout=timedelta(seconds=30), retry=Retry.never)
    await given(make, caller)
    report = await make(caller).run(lifespan=LIFESPAN, buffer=BUFFER)
    assert begun == []
    assert (report.steps_completed, report.open_runs) == (0, 1)
    assert await results(make, caller) == [0]
    assert len(begun) == 1


async def test_a_step_that_can_finish_in_time_is_begun(make):
    """S0-44"""

    async def work(number: int) -> int:
        return number

    caller = calling(work, timeout=timedelta(seconds=1))
    await given(make, caller)
    report = await make(caller).run(lifespan=LIFESPAN, buffer=BUFFER)
    assert (report.completed, report.open_runs) == (1, 0)


async def test_a_step_that_waited_for_its_place_until_it_was_too_late_is_not_begun(make):
    """S0-44 What counts is what is left when it would begin."""
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(2.5)
        return number

    caller = calling(work, timeout=LIFESPAN)
    await given(make, caller, 5)
    report = await make(caller, max_steps=1).run(lifespan=2 * LIFESPAN, buffer=BUFFER)
    assert len(begun) == 1  # the second would begin with 2.5 s left, and may take 3
    assert (report.completed, report.open_runs) == (1, 4)
    assert sorted(await results(make, caller, 5)) == list(range(5))
    assert sorted(begun) == list(range(5))


async def test_a_step_that_waits_for_a_limit_until_it_is_too_late_is_not_begun(make):
    """S0-44 And the place of the limit is free again for the next engine."""
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(2.5)
        return number

    caller = calling(work, timeout=LIFESPAN, limit="one")
    await given(make, caller, 2)
    engine = make(caller, limits=[Limit(name="one", at_once=1)])
    for done in (1, 2):
        assert (await engine.run(lifespan=2 * LIFESPAN, buffer=BUFFER)).completed == 1
        assert len(begun) == done


async def test_a_step_without_a_timeout_is_handed_back_when_time_is_over(make):
    """S0-21 S0-24 S0-43 It is stopped in time, and tried again by the next engine without counting as a failure."""
    attempts: list[int] = []

    async def work(number: int) -> int:
        attempts.append(step_context().attempt)
        if len(attempts) == 1:
            await asyncio.sleep(60)
        return number

    caller = calling(work, retry=Retry.never)
    await given(make, caller)
    report = await make(caller).run(lifespan=LIFESPAN, buffer=BUFFER)
    assert (report.completed, report.open_runs) == (0, 1)
    assert await results(make, caller) == [0]
    assert attempts == [1, 2]


async def test_what_finishes_while_it_stops_is_in_the_report(make):
    """S0-21 S0-43 In-flight work may finish in the buffer; then it is done, and the report says so."""

    stops = float("inf")

    async def work(number: int) -> int:
        await asyncio.sleep(max(stops - time.monotonic(), 0) + 0.1)
        return number

    caller = calling(work)
    await given(make, caller)
    stops = time.monotonic() + 1.5
    report = await make(caller).run(lifespan=timedelta(seconds=4.5), buffer=timedelta(seconds=3))
    assert (report.steps_completed, report.completed, report.open_runs) == (1, 1, 0)


async def test_a_lifespan_shorter_than_its_buffer_begins_nothing(make):
    """S0-43 S0-44 And breaks nothing."""
    begun: list[int] = []

    async def work(number: int) -> int:
        begun.append(number)
        return number

    caller = calling(work)
    await given(make, caller, 3)
    for lifespan in (timedelta(0), timedelta(seconds=0.1)):
        report = await make(caller).run(lifespan=lifespan, buffer=BUFFER)
        assert (report.completed, report.open_runs) == (0, 3)
    assert begun == []
    assert await results(make, caller, 3) == [0, 1, 2]


async def test_work_is_divided_over_several_lifespans(make):
    """S0-43 S0-60 Wake up, do a part, stop: nothing is lost, nothing is done twice."""
    done: list[int] = []

    async def work(number: int) -> int:
        await asyncio.sleep(0.3)
        done.append(number)
        return number

    @workflow
    async def job(ctx: Context, number: int) -> int:
        total = 0
        for part in range(3):
            total += await ctx.step(activity(name="work", timeout=timedelta(seconds=0.5))(work), 10 * number + part)
        return total

    await given(make, job, 4)
    reports = []
    for _ in range(10):
        reports.append(await make(job, max_steps=1).run(lifespan=LIFESPAN, buffer=BUFFER))
        if not reports[-1].open_runs:
            break
    assert sum(report.completed for report in reports) == 4
    assert sum(report.steps_completed for report in reports) == 12
    assert len(reports) > 1
    assert sorted(done) == sorted(10 * number + part for number in range(4) for part in range(3))


async def test_a_foreground_and_a_background_engine_share_the_work_and_no_body_runs_twice(make):
    """S0-60 S0-43 The background one comes and goes beside the foreground one."""
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        await asyncio.sleep(0.002)
        return number

    @workflow
    async def job(ctx: Context, number: int) -> int:
        await ctx.step("one", work, number)
        return await ctx.step("two", work, number)

    async with make(job, max_steps=2) as foreground:
        background = asyncio.create_task(make(job, max_steps=2).run(lifespan=LIFESPAN, buffer=BUFFER))
        runs = [await foreground.start(job, number) for number in range(60)]
        assert [await asyncio.wait_for(run.result(), LONG) for run in runs] == list(range(60))
        report = await background
        assert report.completed <= 60
        assert (await foreground.stats())["completed"] == 60
    assert sorted(bodies) == sorted([*range(60), *range(60)])


async def test_two_bounded_engines_at_once_do_each_run_once(make):
    """S0-60 S0-43"""
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        await asyncio.sleep(0.002)
        return number

    caller = calling(work)
    await given(make, caller, 40)
    engines = [make(caller, max_steps=3) for _ in range(2)]
    reports = await asyncio.gather(*(engine.run(lifespan=LIFESPAN, buffer=BUFFER) for engine in engines))
    assert sorted(bodies) == list(range(40))
    assert sum(report.completed for report in reports) == 40
    assert sum(report.steps_completed for report in reports) == 40


async def test_an_engine_may_be_run_again_and_may_be_opened_afterwards(make):
    """S0-21"""

    async def work(number: int) -> int:
        return number

    caller = calling(work, timeout=timedelta(seconds=30))
    await given(make, caller)
    engine = make(caller)
    short = timedelta(seconds=0.1)
    assert (await engine.run(lifespan=short, buffer=short / 2)).open_runs == 1
    assert (await engine.run(lifespan=short, buffer=short / 2)).open_runs == 1
    async with engine:  # without a deadline
        assert await asyncio.wait_for(engine.get("r-0").result(), LONG) == 0


async def test_it_can_be_cancelled_and_stops_in_order(make):
    """S0-21 The operating system takes its time back early."""
    begun = asyncio.Event()

    async def work(number: int) -> int:
        begun.set()
        if step_context().attempt == 1:
            await asyncio.sleep(60)
        return step_context().attempt

    caller = calling(work)
    await given(make, caller)
    running = asyncio.create_task(make(caller).run(lifespan=timedelta(minutes=1), buffer=BUFFER))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await results(make, caller) == [2]


async def test_a_database_that_cannot_be_opened_is_said_at_once_and_nothing_is_left_behind(tmp_path):
    """S0-43"""
    engine = Engine(f"sqlite:///{tmp_path / 'nowhere' / 'app.db'}")
    for _ in range(2):
        begun = time.monotonic()
        with pytest.raises(CannotOpen):
            await engine.run(lifespan=timedelta(seconds=20))
        assert time.monotonic() - begun < 5
    (tmp_path / "nowhere").mkdir()
    report = await engine.run(lifespan=timedelta(seconds=0.1), buffer=timedelta(seconds=0.05))
    assert report.open_runs == 0


async def test_an_open_engine_is_not_run_and_goes_on(make):
    """S0-21 The mistake is said, and what it was doing is not stopped by it."""

    @workflow
    async def wait(ctx: Context, number: int = 0) -> str:
        return await ctx.receive("word", str)

    async with make(wait) as engine:
        run = await engine.start(wait)
        with pytest.raises(HoldfastError, match="open already"):
            await engine.run(lifespan=LIFESPAN)
        await run.send("word", "still here")
        assert await asyncio.wait_for(run.result(), LONG) == "still here"


@pytest.mark.parametrize("field", ["lifespan", "buffer"])
async def test_a_time_that_is_none_is_refused(make, field):
    """S0-43"""
    for wrong in (-LIFESPAN, 25):
        with pytest.raises(InvalidDuration, match=field):
            await make().run(**{field: wrong})


async def test_retries_and_sleeps_that_come_due_within_the_lifespan_are_done(make):
    """S0-43"""

    async def work(number: int) -> int:
        if step_context().attempt == 1:
            raise ConnectionError
        return step_context().attempt

    caller = calling(work, retry=Retry(max_attempts=2, initial_interval=timedelta(seconds=0.05)))
    await given(make, caller)
    report = await make(caller).run(lifespan=LIFESPAN, buffer=BUFFER)
    assert (report.completed, report.open_runs) == (1, 0)


async def test_a_run_in_waiting_is_left_for_the_next(make):
    """S0-21 S0-60 A message that comes between two lifespans is not lost."""

    @workflow
    async def wait(ctx: Context, number: int = 0) -> str:
        return await ctx.receive("word", str)

    await given(make, wait)
    assert (await make(wait).run(lifespan=LIFESPAN / 2, buffer=BUFFER / 2)).open_runs == 1
    async with make(wait, run_workflows=False) as client:
        assert await client.get("r-0").status() is Status.SUSPENDED
        await client.get("r-0").send("word", "hello")
    assert (await make(wait).run(lifespan=LIFESPAN / 2, buffer=BUFFER / 2)).completed == 1
    assert await results(make, wait) == ["hello"]
