"""Sleeps and timers: durable, in order, never early, refused when they make no sense."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.behaviour.instants import a_moment, same
from tests.support.waiting import LONG

from holdfast import Context, RunFailed, Status, workflow
from holdfast.errors import InvalidDuration

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def sleep_a_day(ctx: Context) -> list[str]:
    times = [ctx.now().isoformat()]
    await ctx.sleep(DAY)
    times.append(ctx.now().isoformat())
    return times


async def test_a_sleep_ends_at_its_time_and_not_before(make_engine):
    """S2-21 S1-15 G9 Suspended on a timer with its due time until then, and the run's clock says when it woke."""
    engine = await make_engine(sleep_a_day)
    run = await engine.start(sleep_a_day)
    await engine.advance(DAY - a_moment(engine))
    seen = await run.describe()
    assert seen.status is Status.SUSPENDED
    assert seen.waiting_for == "timer"
    assert same(engine, seen.due_at, seen.created_at + DAY)
    await engine.advance(a_moment(engine))
    assert await run.status() is Status.COMPLETED
    first, second = map(datetime.fromisoformat, await run.result())
    assert same(engine, second - first, DAY)


@restarts
async def test_the_deadline_of_a_sleep_is_fixed_when_it_is_first_met(make_engine):
    """S1-15 S2-27 G9 Half the time passes, the engine restarts, the other half is enough."""
    first = await make_engine(sleep_a_day)
    run = await first.start(sleep_a_day)
    await first.advance(DAY / 2)
    await first.stop()
    second = await make_engine(sleep_a_day, clock=first.jumping)
    await second.settle()
    due = (await second.get(run.id).describe()).due_at
    assert same(second, due, (await second.get(run.id).describe()).created_at + DAY)
    await second.advance(DAY / 2)
    assert await second.get(run.id).status() is Status.COMPLETED


@restarts
async def test_a_deadline_that_was_recorded_outlives_an_edit_of_the_duration(make_engine):
    """S1-15 The run sleeps and waits as long as the code said when it got there, not as long as it says now."""

    def version(duration: timedelta) -> Any:
        @workflow(name="patient")
        async def patient(ctx: Context) -> timedelta:
            start = ctx.now()
            await asyncio.gather(ctx.sleep(duration), ctx.receive("never", timeout=duration * 2, default=None))
            return ctx.now() - start

        return patient

    short, long = version(HOUR), version(DAY)
    first = await make_engine(short)
    run = await first.start(short)
    await first.settle()
    await first.stop()
    second = await make_engine(long, clock=first.jumping)
    assert same(second, await second.get(run.id, long).result(), 2 * HOUR)


@restarts
async def test_a_sleep_that_ended_while_nobody_ran_is_over_at_once_after_the_restart(make_engine):
    """S2-27 S1-16 Timer passed: resume now."""
    first = await make_engine(sleep_a_day)
    run = await first.start(sleep_a_day)
    await first.stop()
    first.jumping.advance(10 * DAY)
    second = await make_engine(sleep_a_day, clock=first.jumping)
    await second.settle()
    assert await second.get(run.id).status() is Status.COMPLETED


async def test_sleep_until_a_moment_wakes_at_that_moment(make_engine):
    """S1-12 Sleep takes a timestamp too, in any time zone."""
    moment = (datetime.now(UTC) + 3 * DAY).astimezone(timezone(5 * HOUR))

    @workflow
    async def until(ctx: Context) -> str:
        await ctx.sleep_until(moment)
        return ctx.now().isoformat()

    engine = await make_engine(until)
    assert same(engine, datetime.fromisoformat(await engine.execute(until)), moment)


async def test_sleep_until_the_past_is_over_at_once(make_engine):
    """C1 A past timestamp waits for nothing and no time passes."""

    @workflow
    async def until(ctx: Context) -> str:
        await ctx.sleep_until(datetime(1999, 1, 1, tzinfo=UTC))
        await ctx.sleep_until(datetime(1969, 1, 1, tzinfo=UTC))
        await ctx.sleep(timedelta(0))
        return "up"

    engine = await make_engine(until)
    before = engine.clock.now()
    assert await engine.execute(until) == "up"
    assert same(engine, engine.clock.now(), before)


BAD_SLEEPS: list[tuple[Any, str]] = [
    (timedelta(seconds=-1), "negative"),
    (float("nan"), "timedelta"),
    (float("inf"), "timedelta"),
    (3600, "timedelta\\(seconds=3600\\)"),
    ("1h", "timedelta"),
    (timedelta.max, "calendar|9999"),
    (timedelta(days=365 * 8000), "9999"),
    (None, "timedelta"),
]


@pytest.mark.parametrize(("duration", "what"), BAD_SLEEPS)
async def test_a_sleep_that_makes_no_sense_is_refused_at_the_call(make_engine, duration, what):
    """GUARANTEES 6.16 InvalidDuration with the field; the worker lives on."""

    @workflow
    async def bad(ctx: Context) -> None:
        await ctx.sleep(duration)

    engine = await make_engine(bad, sleep_a_day)
    with pytest.raises(RunFailed, match=what) as caught:
        await engine.execute(bad)
    assert isinstance(caught.value.__cause__, InvalidDuration)
    assert "duration" in str(caught.value.__cause__) or "sleep" in str(caught.value.__cause__)
    assert len(await engine.execute(sleep_a_day)) == 2


BAD_MOMENTS: list[Any] = [
    (datetime(2030, 1, 1), "time zone"),  # noqa: DTZ001  # that it is naive is the point
    (DAY, "datetime"),
    (1_900_000_000, "datetime"),
    (None, "datetime"),
]


@pytest.mark.parametrize(("moment", "what"), BAD_MOMENTS)
async def test_a_moment_that_makes_no_sense_is_refused_at_the_call(make_engine, moment, what):
    """GUARANTEES 6.5 6.16 A naive datetime or something else is InvalidDuration, not an AttributeError."""

    @workflow
    async def bad(ctx: Context) -> None:
        await ctx.sleep_until(moment)

    engine = await make_engine(bad)
    with pytest.raises(RunFailed, match=what) as caught:
        await engine.execute(bad)
    assert isinstance(caught.value.__cause__, InvalidDuration)


@pytest.mark.parametrize("seconds", [1e11, 1e13, 1e300, float("inf")])
async def test_an_endless_asyncio_timer_harms_nobody(make_engine, seconds):
    """GUARANTEES 6.16 B21 asyncio.timeout(1e13) is a way to say never; the run and its neighbours go on."""

    @workflow
    async def patient(ctx: Context) -> str:
        async with asyncio.timeout(seconds):
            return await ctx.receive("word", str)

    engine = await make_engine(patient, sleep_a_day)
    run = await engine.start(patient)
    neighbour = await engine.start(sleep_a_day)
    await engine.settle()
    assert (await run.describe()).status is Status.SUSPENDED
    await run.send("word", "at last")
    await engine.settle()
    assert await run.result(timedelta(seconds=LONG)) == "at last"
    assert len(await neighbour.result(timedelta(seconds=LONG))) == 2


async def test_a_refused_sleep_may_be_caught_and_leaves_nothing_behind(make_engine):
    """GUARANTEES 6.16 The call is refused before it takes its place in the history."""

    @workflow
    async def careful(ctx: Context) -> str:
        try:
            await ctx.sleep(timedelta(seconds=-5))
        except InvalidDuration:
            await ctx.sleep(HOUR)
        await ctx.sleep(HOUR)
        return "slept"

    engine = await make_engine(careful)
    run = await engine.start(careful)
    assert await run.result() == "slept"
    assert [entry.path for entry in await run.history()] == ["sleep", "sleep", "sleep#2", "sleep#2"]


async def test_timers_fire_in_the_order_of_their_due_times(make_engine):
    """S2-21 G9 Whatever the order of the calls, and equal times in the order of the calls."""

    @workflow
    async def many(ctx: Context) -> list[int]:
        order: list[int] = []

        async def one(hours: int, mark: int) -> None:
            await ctx.sleep(hours * HOUR)
            order.append(mark)

        await asyncio.gather(one(5, 50), one(1, 10), one(3, 30), one(1, 11), one(2, 20), one(5, 51))
        return order

    engine = await make_engine(many)
    assert await engine.execute(many) == [10, 11, 20, 30, 50, 51]


async def test_all_timers_that_fell_due_together_fire_in_order(make_engine):
    """S2-27 Time jumps over several due times at once; the code still sees them one by one, earliest first."""

    @workflow
    async def many(ctx: Context) -> list[int]:
        order: list[int] = []

        async def one(hours: int) -> None:
            await ctx.sleep(hours * HOUR)
            order.append(hours)

        await asyncio.gather(*(one(hours) for hours in (4, 2, 3, 1)))
        return order

    engine = await make_engine(many)
    run = await engine.start(many)
    await engine.settle()
    engine.jumping.advance(DAY)
    assert await run.result() == [1, 2, 3, 4]


async def test_a_hundred_timers_due_at_once_all_fire(make_engine):
    """S2-21 G9 A hundred runs due in the same instant, and a hundred timers of one run."""

    @workflow
    async def one(ctx: Context, number: int) -> int:
        await ctx.sleep(DAY)
        return number

    @workflow
    async def hundred(ctx: Context) -> int:
        await asyncio.gather(*(ctx.sleep(DAY) for _ in range(100)))
        return 100

    engine = await make_engine(one, hundred)
    runs = [await engine.start(one, number) for number in range(100)]
    big = await engine.start(hundred)
    await engine.advance(DAY)
    assert [await run.status() for run in runs] == [Status.COMPLETED] * 100
    assert [await run.result() for run in runs] == list(range(100))
    assert await big.result() == 100


async def test_asyncio_sleep_is_a_durable_timer(make_engine):
    """S2-21 S1-15 Ordinary asyncio.sleep in workflow code waits in the store, not in memory."""

    @workflow
    async def nap(ctx: Context) -> list[str]:
        times = [ctx.now().isoformat()]
        await asyncio.sleep(86_400)
        times.append(ctx.now().isoformat())
        return times

    engine = await make_engine(nap)
    run = await engine.start(nap)
    await engine.settle()
    assert same(engine, (await run.describe()).due_at, (await run.describe()).created_at + DAY)
    first, second = map(datetime.fromisoformat, await run.result())
    assert same(engine, second - first, DAY)


@restarts
async def test_asyncio_timers_survive_a_restart_with_their_deadlines(make_engine):
    """S1-15 S2-27 asyncio.sleep and asyncio.timeout keep their deadline through a stop in between."""

    @workflow
    async def timed(ctx: Context) -> list[timedelta]:
        await ctx.sleep(HOUR)
        start = ctx.now()
        log: list[timedelta] = []
        try:
            async with asyncio.timeout(7200):
                await ctx.receive("never")
        except TimeoutError:
            log.append(ctx.now() - start)
        await asyncio.sleep(7200)
        log.append(ctx.now() - start)
        return log

    engine = await make_engine(timed)
    run = await engine.start(timed, id="timed")
    for _ in range(4):
        await engine.advance(HOUR)
        await engine.stop()
        engine = await make_engine(timed, clock=engine.jumping)
        run = engine.get("timed", timed)
    await engine.advance(HOUR)
    assert await run.status() is Status.COMPLETED
    first, second = await run.result()
    assert same(engine, first, 2 * HOUR)
    assert same(engine, second, 4 * HOUR)


@restarts
async def test_an_asyncio_timer_as_the_first_thing_survives_a_restart(make_engine):
    """S1-15 Nothing is recorded before it; the deadline still counts from the start of the run."""

    @workflow
    async def nap(ctx: Context) -> str:
        await asyncio.sleep(7200)
        return ctx.now().isoformat()

    first = await make_engine(nap)
    run = await first.start(nap)
    created = (await run.describe()).created_at
    await first.advance(HOUR)
    await first.stop()
    second = await make_engine(nap, clock=first.jumping)
    assert same(second, datetime.fromisoformat(await second.get(run.id).result()) - created, 2 * HOUR)


async def test_a_timeout_around_a_step_that_is_quick_leaves_no_timer(make_engine):
    """S2-30 A cancelled timer never fires: the run ends without time passing."""

    async def quick() -> str:
        return "done"

    @workflow
    async def timed(ctx: Context) -> str:
        async with asyncio.timeout(3600):
            word = await ctx.step(quick)
        return word

    engine = await make_engine(timed)
    before = engine.clock.now()
    assert await engine.execute(timed) == "done"
    assert same(engine, engine.clock.now(), before)


async def test_an_asyncio_timeout_gives_up_a_sleep_and_the_run_goes_on(make_engine):
    """S2-31 The earlier of two timers wins, and the other one is forgotten."""

    @workflow
    async def timed(ctx: Context) -> list[timedelta]:
        start = ctx.now()
        try:
            async with asyncio.timeout(3600):
                await ctx.sleep(DAY)
        except TimeoutError:
            first = ctx.now() - start
        await ctx.sleep(2 * DAY)
        return [first, ctx.now() - start]

    engine = await make_engine(timed)
    first, second = await engine.execute(timed)
    assert same(engine, first, HOUR)
    assert same(engine, second, 2 * DAY + HOUR)


async def test_asyncio_tools_with_time_work_in_a_workflow(make_engine):
    """DESIGN 3 wait_for, wait with a timeout, Queue and Event are durable because the loop is."""

    @workflow
    async def tools(ctx: Context) -> list[Any]:
        log: list[Any] = []
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def produce() -> None:
            for number in range(3):
                await asyncio.sleep(60)
                queue.put_nowait(number)

        producer = asyncio.create_task(produce())
        for _ in range(3):
            log.append(await asyncio.wait_for(queue.get(), 90))
        try:
            await asyncio.wait_for(queue.get(), 90)
        except TimeoutError:
            log.append("empty")
        await producer
        slow = asyncio.create_task(asyncio.sleep(600, "slow"))
        done, pending = await asyncio.wait([slow], timeout=60)
        log.append((len(done), len(pending)))
        log.append(await slow)
        return log

    engine = await make_engine(tools)
    assert await engine.execute(tools) == [0, 1, 2, "empty", [0, 1], "slow"]


async def test_named_sleeps_stand_under_their_names_in_the_history(make_engine):
    """S1-10 S1-33 The path shows which wait it is."""

    @workflow
    async def named(ctx: Context) -> None:
        await ctx.sleep(HOUR, name="cool down")
        await ctx.sleep_until(ctx.now() + HOUR, name="settle")

    engine = await make_engine(named)
    run = await engine.start(named)
    await run.result()
    assert [(entry.path, entry.kind) for entry in await run.history()] == [
        ("cool down", "sleep"),
        ("cool down", "timer fired"),
        ("settle", "sleep"),
        ("settle", "timer fired"),
    ]


async def test_the_clock_of_a_run_never_goes_back(make_engine):
    """DESIGN 3 max(previous, time of the fact): also across an engine whose wall clock is behind."""
    seen: list[str] = []

    async def note(at: str) -> None:
        seen.append(at)

    @workflow
    async def watch(ctx: Context) -> None:
        for _ in range(3):
            await ctx.receive("tick")
            await ctx.step(note, ctx.now().isoformat())

    engine = await make_engine(watch)
    run = await engine.start(watch)
    for jump in (HOUR, -3 * HOUR, HOUR):
        engine.jumping._now += int(jump.total_seconds() * 1e6)
        await run.send("tick")
        await engine.settle()
    await run.result()
    assert seen == sorted(seen)
