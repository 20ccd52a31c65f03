"""RetryAfter: one step is told to come back later, and all that need the same thing wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunFailed, Status, activity, step_context, workflow
from holdfast.errors import RetryAfter
from holdfast.limits import Limit

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
LIMITS = [Limit(name="service"), Limit(name="other")]


@pytest.fixture
def service() -> Service:
    return Service()


async def waits(engine: Any, count: int) -> bool:
    """Tell whether so many steps wait for the limit."""
    return sum(row.waiting for row in await engine.store.limits()) == count


async def test_one_who_is_told_to_come_back_later_makes_all_of_its_limit_wait(make_engine, service):
    """S4-19 The service is asked once; then everybody waits, durably, without a place, without a failure."""
    caller = calling(service.call, retry=Retry.never)
    service.answers[1] = RetryAfter(MINUTE, "429")
    service.engine = engine = await make_engine(caller, start=START, limits=LIMITS)
    first = await engine.start(caller, 0)
    await engine.settle()
    runs = [first, *[await engine.start(caller, number) for number in range(1, 20)]]
    await engine.settle()
    assert service.times == [0]
    assert engine.bodies == 0
    assert {await run.status() for run in runs} == {Status.SUSPENDED}
    (step,) = await first.steps()
    assert (step.attempts, step.failures, step.next_attempt_at) == (1, 0, START + MINUTE)
    assert [await run.result() for run in runs] == list(range(20))
    assert service.times == [0, *[60] * 20]
    (step,) = await first.steps()
    assert (step.status, step.attempts, step.failures) == ("completed", 2, 0)


async def test_it_may_be_told_so_any_number_of_times(make_engine, service):
    """S4-19 No policy counts it: attempts go on, also when the run was let go in between."""
    caller = calling(service.call, retry=Retry(max_attempts=2, initial_interval=SECOND))
    service.answers = {number: RetryAfter(MINUTE) for number in range(1, 11)}
    service.answers[5] = ConnectionError("once for real")
    service.engine = engine = await make_engine(caller, start=START, limits=LIMITS)
    run = await engine.start(caller, 7)
    assert await run.result() == 7
    (step,) = await run.steps()
    assert (step.attempts, step.failures) == (11, 1)


async def test_a_class_of_one_s_own_that_says_later_is_no_failure_either(make_engine, service):
    """S4-19 A subclass is the same thing, in memory and after replay."""

    class TooManyRequests(RetryAfter):
        pass

    caller = calling(service.call, retry=Retry(max_attempts=2, initial_interval=SECOND))
    service.answers = {1: TooManyRequests(MINUTE), 2: TooManyRequests(MINUTE), 3: ConnectionError("once")}
    service.engine = engine = await make_engine(caller, start=START, limits=LIMITS)
    assert await engine.execute(caller, 7) == 7
    assert service.times == [0, 60, 120, 121]


async def test_without_a_limit_only_the_step_itself_comes_back_later(make_engine, service):
    """S4-19"""
    caller = calling(service.call, limit=None)
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=LIMITS)
    first = await engine.start(caller, 1)
    await engine.settle()
    second = await engine.start(caller, 2)
    await engine.settle()
    assert await second.status() is Status.COMPLETED
    assert await first.result() == 1
    assert service.times == [0, 0, 60]


async def test_other_limits_are_not_concerned(make_engine, service):
    """S4-19 Per key: what one service said holds for its own key only."""
    slow, other = calling(service.call), calling(service.call, limit="other")
    other.name = "other"
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(slow, other, start=START, limits=LIMITS)
    first = await engine.start(slow, 1)
    await engine.settle()
    assert await engine.execute(other, 2) == 2
    assert service.times == [0, 0]
    assert await first.result() == 1


async def test_those_who_wait_for_a_place_of_the_limit_wait_too(make_engine, service):
    """S4-19 Nine stand in the queue when the first is told to come back later: none of them goes on to ask."""

    async def call(name: int) -> int:
        await service.go.wait()
        return await service.call(name)

    caller = calling(call)
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[Limit(name="service", at_once=1)])
    runs = [await engine.start(caller, number) for number in range(10)]
    await eventually(lambda: waits(engine, 9))
    service.go.set()
    await engine.settle()
    assert service.times == [0]
    assert engine.bodies == 0
    assert [await run.result() for run in runs] == list(range(10))
    assert service.times == [0, *[60] * 10]
    await eventually(lambda: waits(engine, 0))
    assert [(row.used, row.granted) for row in await engine.store.limits()] == [(0, 0)]


async def test_after_the_wait_the_rate_is_kept(make_engine, service):
    """S4-19 Those who had their turns while everybody was told to wait do not come all at once."""

    async def call(name: int) -> int:
        await service.go.wait()
        return await service.call(name)

    caller = calling(call)
    limit = Limit(name="service", rate=1, per=10 * SECOND)
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(5)]
    await eventually(lambda: engine.bodies == 1)
    service.go.set()
    assert sorted([await run.result() for run in runs]) == list(range(5))
    gaps = [later - earlier for earlier, later in zip(service.times, service.times[1:], strict=False)]
    assert min(gaps) >= 10
    assert service.times[1] >= 60


async def test_what_it_was_told_survives_a_restart(make_engine, service, mode):
    """S4-19 The step that was told comes back when it was told, in whichever engine."""
    if mode == "memory":
        pytest.skip("nothing is left of it")
    caller = calling(service.call, retry=Retry.never)
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=LIMITS)
    await engine.start(caller, 7, id="r")
    await engine.settle()
    await engine.stop()
    service.engine = second = await make_engine(caller, clock=engine.jumping, limits=LIMITS)
    await second.settle()
    assert service.times == [0]
    assert await second.get("r").result() == 7
    assert service.times == [0, 60]
    (step,) = await second.get("r").steps()
    assert (step.attempts, step.failures) == (2, 0)


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause"])
async def test_one_who_waits_because_of_another_can_be_stopped(make_engine, service, how):
    """S4-19 B7 B25"""
    caller = calling(service.call)
    service.answers[1] = RetryAfter(MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[Limit(name="service", rate=1)])
    first = await engine.start(caller, 1)
    await engine.settle()
    second = await engine.start(caller, 2)
    await engine.settle()
    await getattr(second, how)()
    await engine.settle()
    assert await second.status() is (Status.PAUSED if how == "pause" else Status.CANCELLED)
    assert await first.result() == 1
    if how == "pause":
        await engine.advance(10 * MINUTE)
        await second.resume()
        assert await second.result() == 2
    assert len(service.calls) == (3 if how == "pause" else 2)


def slow_down() -> int:
    """Ask in a child process, which has to come back once."""
    if step_context().attempt == 1:
        raise RetryAfter(MINUTE, "429")
    return step_context().attempt


async def test_a_body_in_a_child_process_may_say_so_too(make_engine):
    """S4-19"""
    isolated = activity(isolate="process", retry=Retry.never)(slow_down)

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(isolated)

    engine = await make_engine(caller, start=START, limits=LIMITS)
    run = await engine.start(caller)
    assert await asyncio.wait_for(run.result(), LONG) == 2
    (step,) = await run.steps()
    assert (step.attempts, step.failures) == (2, 0)


@pytest.mark.parametrize("delay", [-MINUTE, 60, "60", None])
async def test_a_delay_that_is_none_is_refused(make_engine, service, delay):
    """S4-19 It is refused where it is raised, and is then an attempt that failed; the run does not hang."""

    async def call(name: int) -> int:
        raise RetryAfter(delay)

    caller = calling(call, retry=Retry.never)
    engine = await make_engine(caller, limits=LIMITS)
    run = await engine.start(caller)
    with pytest.raises(RunFailed):
        await asyncio.wait_for(run.result(), LONG)
