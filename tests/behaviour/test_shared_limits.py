"""Limits that all workers of a database share: places, steps in line, and what is left when runs and workers go."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.errors import UnknownLimit
from holdfast.limits import Limit

TWO = [Limit(name="service", at_once=2)]
ONE = [Limit(name="service", at_once=1)]


@pytest.fixture
def service() -> Service:
    return Service()


async def used(engine: Any) -> tuple[int, int, int]:
    """Return how many places of the limit are used, are granted, and how many steps wait."""
    [row] = await engine.store.limits()
    return row.used, row.granted, row.waiting


async def waiting(engine: Any, count: int) -> None:
    await eventually(lambda: _waits(engine, count))


async def _waits(engine: Any, count: int) -> bool:
    return (await used(engine))[2] == count


async def test_no_more_than_allowed_run_at_once_over_all_runs(make_engine, service):
    """S4-19 Twenty runs, two places: two are inside, the others are parked, and all get their turn."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=TWO)
    runs = [await engine.start(caller, number) for number in range(20)]
    await waiting(engine, 18)
    await eventually(lambda: (service.inside, engine.bodies) == (2, 2))
    await eventually(lambda: _parked(runs, 18))
    service.go.set()
    assert [await run.result() for run in runs] == list(range(20))
    assert service.most == 2
    assert [name for _, name in service.calls] == list(range(20))
    await eventually(lambda: _is_free(engine))


async def _parked(runs: list[Any], count: int) -> bool:
    return [await run.status() for run in runs].count(Status.SUSPENDED) == count


async def _is_free(engine: Any) -> bool:
    return await used(engine) == (0, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_two_engines_share_a_limit(make_engine, service):
    """S4-19 S0-60 "2 at once" are two, however many workers there are."""
    caller = calling(service.stay)
    service.engine = first = await make_engine(caller, limits=TWO, start=START)
    second = await make_engine(caller, limits=TWO, clock=first.jumping)
    runs = [await engine.start(caller, number) for number in range(6) for engine in (first, second)]
    await waiting(first, 10)
    await eventually(lambda: service.inside == 2)
    service.go.set()
    for run in runs:
        await asyncio.wait_for(run.result(), LONG)
    assert service.most == 2
    await eventually(lambda: _is_free(first))


async def test_a_step_that_waits_keeps_its_attempt_number_and_says_what_it_waits_for(make_engine, service):
    """B1 B10 S4-19 Neither an attempt nor a skip is counted."""
    numbers: list[int] = []

    async def stay(name: int) -> int:
        numbers.append(step_context().attempt)
        return await service.stay(name)

    caller = calling(stay, retry=Retry.never, max_skips=0)
    service.engine = engine = await make_engine(caller, limits=ONE)
    first = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    second = await engine.start(caller, 2)
    await eventually(lambda: _parked([second], 1))
    (step,) = await second.steps()
    assert (step.status, step.attempts, step.skips) == ("skipped", 0, 0)
    assert "limit service" in (await engine.store.get(second.id)).wait
    service.go.set()
    assert [await first.result(), await second.result()] == [1, 2]
    assert numbers == [1, 1]
    (step,) = await second.steps()
    assert (step.attempts, step.failures, step.skips) == (1, 0, 0)


async def test_steps_in_a_row_share_with_others(make_engine, service):
    """S4-19 A step that leaves and wants to enter again comes after those that wait: two runs take turns."""
    calls: list[tuple[str, int]] = []
    go = asyncio.Event()

    @activity(limit="service")
    async def call(name: str, number: int) -> None:
        await go.wait()
        calls.append((name, number))

    @workflow
    async def several(ctx: Context, name: str) -> None:
        for number in range(4):
            await ctx.step(call, name, number)

    engine = await make_engine(several, limits=ONE)
    runs = [await engine.start(several, "a"), await engine.start(several, "b")]
    await waiting(engine, 1)
    go.set()
    for run in runs:
        await run.result()
    assert calls == [(name, number) for number in range(4) for name in "ab"]


async def test_who_waits_is_served_by_priority(make_engine, service):
    """S0-24 S4-19 B22"""
    low, high = calling(service.stay), calling(service.stay, priority=9)
    high.name = "high"
    service.engine = engine = await make_engine(low, high, limits=ONE)
    runs = []
    for number in range(4):
        runs.append(await engine.start(low, number))
        await waiting(engine, number)
    runs.append(await engine.start(high, 99))
    await waiting(engine, 4)
    service.go.set()
    for run in runs:
        await run.result()
    assert [name for _, name in service.calls] == [0, 99, 1, 2, 3]


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause"])
async def test_a_step_that_waits_can_be_stopped_and_leaves_nothing_behind(make_engine, service, how):
    """S4-19 B7 B25 The one that waited never runs; the one behind it does."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=ONE)
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    stopped = await engine.start(caller, 2)
    await waiting(engine, 1)
    last = await engine.start(caller, 3)
    await waiting(engine, 2)
    await getattr(stopped, how)()
    wanted = Status.PAUSED if how == "pause" else Status.CANCELLED
    await waiting(engine, 1)
    service.go.set()
    assert [await inside.result(), await last.result()] == [1, 3]
    assert await stopped.status() is wanted
    assert [name for _, name in service.calls] == [1, 3]
    if how == "pause":
        await stopped.resume()
        assert await stopped.result() == 2
    await eventually(lambda: _is_free(engine))


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_one_that_is_stopped_inside_gives_its_place_to_the_next(make_engine, service, how):
    """S4-19 B7"""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=ONE)
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    following = await engine.start(caller, 2)
    await waiting(engine, 1)
    await getattr(inside, how)()
    await eventually(lambda: len(service.calls) == 2)
    service.go.set()
    assert await following.result() == 2
    with pytest.raises(RunCancelled):
        await inside.result()
    assert service.most == 1
    await eventually(lambda: _is_free(engine))


@pytest.mark.parametrize("ending", ["fails", "times out"])
async def test_a_step_that_ends_badly_gives_its_place_back(make_engine, service, ending):
    """S4-19"""

    async def fail(name: int) -> int:
        if name == 1:
            if ending == "times out":
                await asyncio.sleep(60)
            raise ValueError("no")
        return name

    caller = calling(fail, retry=Retry.never, timeout=timedelta(seconds=1))
    engine = await make_engine(caller, limits=ONE)
    runs = [await engine.start(caller, number) for number in (1, 2, 3)]
    with pytest.raises(RunFailed):
        await runs[0].result()
    assert [await run.result() for run in runs[1:]] == [2, 3]
    await eventually(lambda: _is_free(engine))


def _given_up_once(body: Any) -> Any:
    """Return a workflow that gives the body of its first run up after a moment, and that of no other."""
    hasty = activity(name="call", limit="service", retry=Retry.never, timeout=timedelta(milliseconds=50))(body)
    patient = hasty.options(timeout=None)

    @workflow
    async def caller(ctx: Context, name: int) -> Any:
        return await ctx.step(hasty if name == 1 else patient, name)

    return caller


async def test_a_thread_that_was_given_up_keeps_its_place_until_it_returns(make_engine, service):
    """S4-19 Its attempt has timed out; what it does to the service goes on."""
    inside = 0
    most = 0
    go = threading.Event()

    def call(name: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        if name == 1:
            go.wait()
        inside -= 1
        return name

    caller = _given_up_once(call)
    engine = await make_engine(caller, limits=ONE)
    while not inside:  # on a busy machine a body may time out before its thread begins
        first = await engine.start(caller, 1)
        with pytest.raises(RunFailed):
            await first.result()
    second = await engine.start(caller, 2)
    await waiting(engine, 1)
    assert (await used(engine))[0] == 1
    go.set()
    assert await second.result() == 2
    assert most == 1
    await eventually(lambda: _is_free(engine))


async def test_a_body_that_was_given_up_before_its_thread_came_to_it_keeps_no_place(make_engine, service):
    """S4-19 It never begins, so nothing would ever give its place back."""
    called: list[int] = []
    caller = _given_up_once(called.append)
    engine = await make_engine(caller, limits=ONE)
    with engine._working().executor.threads._ready:  # no thread takes a body as long as this one has the lock
        first = await engine.start(caller, 1)
        with pytest.raises(RunFailed):
            await first.result()
    await eventually(lambda: _is_free(engine))
    await (await engine.start(caller, 2)).result()
    assert called == [2]


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_a_worker_asks_only_when_it_has_room_itself(make_engine, service):
    """S4-19 One that is busy with other steps takes no place from the others."""
    occupied = asyncio.Event()

    async def occupy() -> None:
        await occupied.wait()

    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.step(occupy)

    caller = calling(service.stay)
    service.engine = first = await make_engine(caller, busy, limits=ONE, max_steps=1, start=START)
    blocker = await first.start(busy)
    await eventually(lambda: first.bodies == 1)
    own = await first.start(caller, 1)
    await eventually(lambda: first.bodies == 2)
    second = await make_engine(caller, limits=ONE, clock=first.jumping)
    assert await used(first) == (0, 0, 0)
    other = await second.start(caller, 2)
    await eventually(lambda: service.inside == 1)
    assert [name for _, name in service.calls] == [2]
    occupied.set()
    await blocker.result()
    service.go.set()
    assert [await own.result(), await other.result()] == [1, 2]
    assert service.most == 1


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_the_places_of_an_engine_are_free_when_it_has_stopped(make_engine, service):
    """S4-19 Those that waited or were inside go on with the next engine, by the same attempt number."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=ONE, stop_grace=timedelta(0))
    for number in range(4):
        await engine.start(caller, number, id=f"r-{number}")
    await waiting(engine, 3)
    await engine.stop()
    service.go.set()
    await engine.open()
    assert [await engine.get(f"r-{number}").result() for number in range(4)] == list(range(4))
    await eventually(lambda: _is_free(engine))


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_a_limit_that_no_engine_declares_fails_the_step_by_name(make_engine, service):
    """S4-19 Nothing is lost: once it is declared the run can be retried."""
    caller = calling(service.call)
    service.engine = engine = await make_engine(caller, start=START)
    run = await engine.start(caller, 1)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, UnknownLimit)
    assert "Limit(name='service'" in str(caught.value.__cause__)
    assert service.calls == []
    await make_engine(caller, clock=engine.jumping, limits=ONE)
    assert await run.retry()
    assert await run.result() == 1
    assert [name for _, name in service.calls] == [1]


async def test_several_limits_do_not_concern_each_other(make_engine, service):
    """S4-19"""
    other = Service()
    caller, another = calling(service.stay), calling(other.stay, limit="other")
    another.name = "another"
    service.engine = other.engine = engine = await make_engine(
        caller, another, limits=[*ONE, Limit(name="other", at_once=3)]
    )
    runs = [await engine.start(kind, number) for number in range(4) for kind in (caller, another)]
    await eventually(lambda: (service.inside, other.inside) == (1, 3))
    service.go.set()
    other.go.set()
    for run in runs:
        await run.result()
    assert (service.most, other.most) == (1, 3)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_only_a_body_of_a_worker_that_was_declared_dead_runs_above_its_limit(make_engine):
    """S4-19 B24 G5 Its thread cannot be stopped, and its place is another's: beside it there is never more than one."""
    gone, others = threading.Event(), threading.Event()
    begun: list[int] = []
    inside = [0, 0]
    """How many of the others there are, and how many there were at most."""
    lock = threading.Lock()

    def body(number: int) -> int:
        with lock:
            begun.append(number)
            first = len(begun) == 1
            if not first:
                inside[0] += 1
                inside[1] = max(inside)
        (gone if first else others).wait(LONG)
        with lock:
            inside[0] -= not first
        return number

    caller = calling(body)
    hung = await make_engine(caller, limits=ONE, lease=timedelta(seconds=3))
    run = await hung.start(caller, 0)
    await eventually(lambda: begun == [0])
    other = await make_engine(caller, limits=ONE, clock=hung.jumping)
    more = [await other.start(caller, number) for number in range(1, 4)]
    await waiting(other, 3)
    assert begun == [0]
    await other.store.leave(hung.worker_id)  # as if others had declared it dead
    await eventually(lambda: inside[0] == 1)
    others.set()
    assert sorted([await asyncio.wait_for(each.result(), LONG) for each in (run, *more)]) == [0, 1, 2, 3]
    assert (len(begun), inside[1]) == (5, 1)
    gone.set()
    await eventually(lambda: _is_free(other))
