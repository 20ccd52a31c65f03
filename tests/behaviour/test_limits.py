"""Limits of one engine: how many steps that share a resource run at once in it, and how often they start."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, S, Service, calling
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, Retry, RunCancelled, RunFailed, Status, activity, workflow
from holdfast.errors import BadInput, InvalidDuration
from holdfast.limits import Limit, Limits
from holdfast.replay.entry import AttemptSkipped

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def service() -> Service:
    return Service()


# How many at once.


async def test_no_more_than_allowed_run_at_once_over_all_runs(make_engine, service):
    """S4-19 Twenty runs, three places: three are inside, and all get their turn."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=[Limit(scope="engine", name="service", at_once=3)])
    runs = [await engine.start(caller, number) for number in range(20)]
    await eventually(lambda: engine.bodies == 20)
    assert service.inside == 3
    service.go.set()
    assert [await run.result() for run in runs] == list(range(20))
    assert service.most <= 3


async def test_a_step_that_waits_for_a_limit_keeps_no_place_from_others(make_engine, service):
    """S4-19 With two places for steps in all, and one used under the limit, another activity still runs."""
    caller = calling(service.stay)

    async def work() -> str:
        return "done"

    @workflow
    async def unlimited(ctx: Context) -> str:
        return await ctx.step(work)

    service.engine = engine = await make_engine(
        caller, unlimited, max_steps=2, limits=[Limit(scope="engine", name="service", at_once=1)]
    )
    runs = [await engine.start(caller, number) for number in range(5)]
    await eventually(lambda: service.inside == 1)
    assert await engine.execute(unlimited) == "done"
    service.go.set()
    for run in runs:
        await run.result()
    assert service.most == 1


async def test_who_waits_for_a_limit_is_served_by_priority(make_engine, service):
    """S0-24 S4-19 B22"""
    low, high = calling(service.stay), calling(service.stay, priority=9)
    high.name = "high"
    service.engine = engine = await make_engine(low, high, limits=[Limit(scope="engine", name="service", at_once=1)])
    runs = [await engine.start(low, number) for number in range(5)]
    await eventually(lambda: engine.bodies == 5)
    runs.append(await engine.start(high, 99))
    await eventually(lambda: engine.bodies == 6)
    service.go.set()
    for run in runs:
        await run.result()
    assert [name for _, name in service.calls] == [0, 99, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_each_engine_has_a_limit_of_its_own(make_engine, service):
    """S4-19 S0-60 Two engines on one file let in twice as many; a limit for all of them belongs to the service."""
    caller = calling(service.stay)
    options: dict[str, Any] = {"limits": [Limit(scope="engine", name="service", at_once=2)], "start": START}
    service.engine = first = await make_engine(caller, **options)
    second = await make_engine(caller, limits=options["limits"], clock=first.jumping)
    runs = [await engine.start(caller, number) for number in range(6) for engine in (first, second)]
    await eventually(lambda: service.inside == 4)
    service.go.set()
    results = [await asyncio.wait_for(run.result(), LONG) for run in runs]
    assert Counter(results) == Counter(dict.fromkeys(range(6), 2))
    assert service.most == 4


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause"])
async def test_a_step_that_waits_for_a_limit_can_be_stopped_and_leaves_no_place_behind(make_engine, service, how):
    """S4-19 B7 B25 The one who waited never runs; whoever comes after it gets in."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=[Limit(scope="engine", name="service", at_once=1)])
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    stopped = await engine.start(caller, 2)
    await eventually(lambda: engine.bodies == 2)
    last = await engine.start(caller, 3)
    await eventually(lambda: engine.bodies == 3)
    await getattr(stopped, how)()
    wanted = Status.PAUSED if how == "pause" else Status.CANCELLED
    await eventually(lambda: engine.bodies == 2)
    service.go.set()
    assert [await inside.result(), await last.result()] == [1, 3]
    assert await stopped.status() is wanted
    assert [name for _, name in service.calls] == [1, 3]
    if how == "pause":
        await stopped.resume()
        assert await stopped.result() == 2
    assert engine._limits._running == {"service": 0}


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_one_who_is_stopped_inside_gives_its_place_to_the_next(make_engine, service, how):
    """S4-19 B7"""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, limits=[Limit(scope="engine", name="service", at_once=1)])
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    following = await engine.start(caller, 2)
    await eventually(lambda: engine.bodies == 2)
    await getattr(inside, how)()
    await eventually(lambda: len(service.calls) == 2)
    service.go.set()
    assert await following.result() == 2
    with pytest.raises(RunCancelled):
        await inside.result()
    assert service.most == 1
    assert engine._limits._running == {"service": 0}


@pytest.mark.parametrize("ending", ["fails", "times out"])
async def test_a_step_that_ends_badly_gives_its_place_back(make_engine, service, ending):
    """S4-19"""

    async def fail(name: int) -> int:
        if name == 1:
            if ending == "times out":
                await asyncio.sleep(60)
            raise ValueError("no")
        return name

    caller = calling(fail, retry=Retry.never, timeout=timedelta(milliseconds=50))
    engine = await make_engine(caller, limits=[Limit(scope="engine", name="service", at_once=1)])
    runs = [await engine.start(caller, number) for number in (1, 2, 3)]
    with pytest.raises(RunFailed):
        await runs[0].result()
    assert [await run.result() for run in runs[1:]] == [2, 3]


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_the_places_of_a_limit_are_free_again_when_an_engine_is_opened_again(make_engine, service):
    """S4-19 Those who waited or were inside when it stopped go on with the next opening."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(
        caller, limits=[Limit(scope="engine", name="service", at_once=1)], stop_grace=timedelta(0), max_steps=1
    )
    for number in range(4):
        await engine.start(caller, number, id=f"r-{number}")
    await eventually(lambda: engine.bodies == 4)
    await engine.stop()
    service.go.set()
    await engine.open()
    assert [await engine.get(f"r-{number}").result() for number in range(4)] == list(range(4))
    assert engine._limits._running == {"service": 0}


# How often.


async def test_a_rate_spreads_the_starts_over_time_and_each_run_parks_once(make_engine, service):
    """S4-19 Two in ten seconds: ten runs start at 0 0 10 10 20 20 30 30 40 40, and wait durably in between."""
    caller = calling(service.call)
    limit = Limit(scope="engine", name="service", rate=2, per=10 * SECOND)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(10)]
    await engine.settle()
    assert service.times == [0, 0]
    assert engine.bodies == 0
    assert Counter([await run.status() for run in runs]) == {Status.COMPLETED: 2, Status.SUSPENDED: 8}
    (step,) = await runs[-1].steps()
    assert (step.status, step.attempts, step.failures, step.next_attempt_at) == ("skipped", 0, 0, START + 40 * SECOND)
    assert [await run.result() for run in runs] == list(range(10))
    assert service.times == [0, 0, 10, 10, 20, 20, 30, 30, 40, 40]
    for run in runs:
        assert sum(isinstance(fact.entry, AttemptSkipped) for fact in await run.history()) <= 1


async def test_waiting_for_a_rate_uses_up_no_attempt_and_no_skip(make_engine, service):
    """B10 S4-19 It is neither a failure nor a condition that said no."""
    caller = calling(service.call, retry=Retry.never, max_skips=0)
    limit = Limit(scope="engine", name="service", rate=1, per=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(4)]
    assert [await run.result() for run in runs] == list(range(4))
    assert service.times == [0, 60, 120, 180]
    for run in runs:
        (step,) = await run.steps()
        assert (step.attempts, step.failures, step.skips) == (1, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_waiting_for_a_rate_survives_a_restart(make_engine, service):
    """S4-19 Each comes back when it was told; nobody is forgotten."""
    caller = calling(service.call)
    limits = [Limit(scope="engine", name="service", rate=1, per=MINUTE)]
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    for number in range(5):
        await engine.start(caller, number, id=f"r-{number}")
    await engine.settle()
    await engine.stop()
    service.engine = second = await make_engine(caller, clock=engine.jumping, limits=limits)
    assert [await second.get(f"r-{number}").result() for number in range(5)] == list(range(5))
    assert service.times == [0, 60, 120, 180, 240]


async def test_a_rate_counts_starts_and_not_steps_that_wait_for_a_place(make_engine, service):
    """S4-19 Those who were let through but waited for a place do not all start in the moment it becomes free."""

    @workflow
    async def occupy(ctx: Context) -> None:
        await ctx.step(service.stay)

    caller = calling(service.call)
    limit = Limit(scope="engine", name="service", rate=1, per=10 * SECOND)
    service.engine = engine = await make_engine(caller, occupy, start=START, max_steps=1, limits=[limit])
    await engine.start(occupy)
    await eventually(lambda: service.inside == 1)
    runs = [await engine.start(caller, number) for number in range(4)]
    await eventually(lambda: engine.bodies == 5)
    for _ in range(4):
        engine.jumping.advance(10 * SECOND)
        await asyncio.sleep(0.05)
    service.go.set()
    service.calls.clear()
    for run in runs:
        await run.result()
    gaps = [later - earlier for earlier, later in zip(service.times, service.times[1:], strict=False)]
    assert min(gaps) >= 10


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_the_turns_of_runs_that_are_gone_are_given_to_others(make_engine, service, how, mode):
    """S4-19 Fifty parked for the next fifty minutes are stopped: a new run does not wait for their turns to pass."""
    if how == "terminate" and mode == "evict":
        pytest.skip("the engine does not have the run, and its turn passes unused")
    caller = calling(service.call)
    limit = Limit(scope="engine", name="service", rate=1, per=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(50)]
    await engine.settle()
    for run in runs[1:]:
        await getattr(run, how)()
    await engine.settle()
    assert await engine.execute(caller, 99) == 99
    assert service.times == [0, 60]


# What is refused.


@pytest.mark.parametrize(
    "options",
    [{"at_once": 0}, {"rate": 0}, {"at_once": True}, {"rate": 1.5}, {"rate": 1, "per": timedelta(0)}, {"name": ""}],
)
def test_a_limit_that_means_nothing_is_refused(options):
    """S4-19"""
    with pytest.raises(BadInput, match=r"limit|Limit"):
        Limit(**{"name": "service", **options})


def test_a_limit_with_a_negative_time_is_refused():
    """S4-19"""
    with pytest.raises(InvalidDuration, match="per of limit 'service'"):
        Limit(scope="engine", name="service", rate=1, per=-SECOND)


def test_limits_of_an_engine_are_a_list_of_limits_with_names_of_their_own():
    """S4-19"""
    with pytest.raises(BadInput, match="two limits are named 'service'"):
        Engine(":memory:", limits=[Limit(name="service"), Limit(scope="engine", name="service", rate=1)])
    with pytest.raises(BadInput, match="list of Limit"):
        Engine(":memory:", limits=["service"])


@pytest.mark.parametrize("limit", ["", 3, Limit(name="service")])
def test_an_activity_names_its_limit(limit):
    """S4-19"""
    with pytest.raises(BadInput, match="must be the name of a Limit"):
        activity(limit=limit)(print)


def test_turns_are_as_far_apart_as_the_rate_says():
    """S4-19 In any window of `per` at most `rate` turns, whenever they are asked for."""
    limits = Limits([Limit(scope="engine", name="service", rate=3, per=SECOND)])
    turns = [limits.turn_of("service", (number, "call"), number * 50_000) for number in range(100)]
    assert turns == sorted(turns)
    for earlier, later in zip(turns, turns[3:], strict=False):
        assert later - earlier >= S


def test_a_step_that_comes_back_has_the_turn_it_was_given():
    """S4-19 And uses it up: the next time it gets a new one."""
    limits = Limits([Limit(scope="engine", name="service", rate=1, per=SECOND)])
    assert limits.turn_of("service", (1, "call"), 0) == 0
    assert limits.turn_of("service", (2, "call"), 0) == S
    assert limits.turn_of("service", (2, "call"), S // 2) == S
    assert limits.turn_of("service", (2, "call"), S) == S
    assert limits.turn_of("service", (2, "call"), S) == 2 * S
