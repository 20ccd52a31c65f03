"""Shared limits over time: rates, keys, what a service says, and a service that is down, on all workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunFailed, activity, workflow
from holdfast.errors import BadInput, DefinitionError, NonRetryable, RetryAfter
from holdfast.limits import Limit

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def service() -> Service:
    return Service()


async def test_a_rate_spreads_the_begins_over_time(make_engine, service):
    """S4-19 Two in ten seconds: ten runs begin at 0 0 10 10 20 20 30 30 40 40, and wait durably in between."""
    caller = calling(service.call, retry=Retry.never, max_skips=0)
    limit = Limit(name="service", rate=2, per=10 * SECOND)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(10)]
    await engine.settle()
    assert service.times == [0, 0]
    assert sorted([await run.result() for run in runs]) == list(range(10))
    assert service.times == [0, 0, 10, 10, 20, 20, 30, 30, 40, 40]
    for run in runs:
        (step,) = await run.steps()
        assert (step.attempts, step.failures, step.skips) == (1, 0, 0)


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_a_rate_is_kept_over_a_restart_and_by_all_engines(make_engine, service):
    """S4-19 "1 a minute" is one, whoever asks, and also after a restart in the same minute."""
    caller = calling(service.call)
    limits = [Limit(name="service", rate=1, per=MINUTE)]
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    assert await engine.execute(caller, 0) == 0
    await engine.stop()
    second = await make_engine(caller, clock=engine.jumping, limits=limits)
    service.engine = third = await make_engine(caller, clock=engine.jumping, limits=limits)
    runs = [await each.start(caller, number) for number in (1, 2) for each in (second, third)]
    for run in runs:
        await asyncio.wait_for(run.result(), LONG)
    assert service.times == [0, 60, 120, 180, 240]


@pytest.mark.parametrize("how", ["cancel", "terminate", "pause"])
async def test_the_turn_of_a_run_that_is_gone_is_given_to_the_next(make_engine, service, how):
    """S4-19 B7 B25"""
    caller = calling(service.call)
    limit = Limit(name="service", rate=1, per=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(20)]
    await engine.settle()
    for run in runs[1:]:
        await getattr(run, how)()
    assert await engine.execute(caller, 99) == 99
    assert service.times == [0, 60]


async def test_each_key_has_a_budget_of_its_own(make_engine, service):
    """S4-19 One tenant waits for its own turns, not for those of others."""

    @activity(limit="service", limit_key=lambda tenant, number: tenant)
    async def call(tenant: str, number: int) -> None:
        await service.call(tenant)

    @workflow
    async def tenants(ctx: Context, tenant: str, number: int) -> None:
        await ctx.step(call, tenant, number)

    limit = Limit(name="service", rate=1, per=MINUTE)
    service.engine = engine = await make_engine(tenants, start=START, limits=[limit])
    runs = [await engine.start(tenants, tenant, number) for number in range(3) for tenant in ("a", "b")]
    for run in runs:
        await run.result()
    by_tenant = {tenant: [at for at, name in service.calls if name == tenant] for tenant in ("a", "b")}
    assert by_tenant == {"a": [0, 60, 120], "b": [0, 60, 120]}


async def test_no_key_has_more_than_its_share_of_the_whole(make_engine):
    """S4-19"""
    inside: list[str] = []
    most: dict[str, int] = {}
    whole: list[int] = []
    go = asyncio.Event()

    @activity(limit="service", limit_key=lambda tenant: tenant)
    async def stay(tenant: str) -> None:
        inside.append(tenant)
        most[tenant] = max(most.get(tenant, 0), inside.count(tenant))
        whole.append(len(inside))
        await go.wait()
        inside.remove(tenant)

    @workflow
    async def tenants(ctx: Context, tenant: str) -> None:
        await ctx.step(stay, tenant)

    engine = await make_engine(tenants, limits=[Limit(name="service", at_once=3, per_key_at_once=2)])
    runs = [await engine.start(tenants, tenant) for tenant in ("a", "a", "a", "a", "b", "b", "c")]
    await eventually(lambda: sorted(inside) == ["a", "a", "b"])
    go.set()
    for run in runs:
        await run.result()
    assert (most["a"], max(whole)) == (2, 3)


@pytest.mark.parametrize("bad", [lambda name: 7, lambda name: None, lambda name: 1 / 0])
async def test_a_key_that_cannot_be_made_fails_the_step_and_takes_no_place(make_engine, service, bad):
    """S4-19"""
    caller = calling(service.call, limit_key=bad, retry=Retry.never)
    service.engine = engine = await make_engine(caller, start=START, limits=[Limit(name="service", at_once=1)])
    run = await engine.start(caller, 1)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, DefinitionError | ZeroDivisionError)
    assert "limit_key" in str(caught.value.__cause__) or "limit_key" in str(caught.value.__cause__.__notes__)
    assert service.calls == []
    assert [(row.used, row.waiting) for row in await engine.store.limits()] == [(0, 0)]


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_what_a_service_said_is_known_to_all_engines_and_after_a_restart(make_engine, service):
    """S4-19 One is told 429; everything under that limit waits, on every worker."""
    caller = calling(service.call, retry=Retry.never)
    limits = [Limit(name="service")]
    service.answers[1] = RetryAfter(MINUTE, "429")
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    await engine.start(caller, 1, id="told")
    await engine.settle()
    await engine.stop()
    service.engine = second = await make_engine(caller, clock=engine.jumping, limits=limits)
    assert await second.execute(caller, 2) == 2
    assert await second.get("told").result() == 1
    assert service.times == [0, 60, 60]


async def test_a_service_that_is_down_is_asked_by_one_while_the_others_wait(make_engine, service):
    """S4-19 Three failures in a row: nothing begins for a minute, then one tries, and when it succeeds all go on."""
    caller = calling(service.call, retry=Retry(max_attempts=50, initial_interval=SECOND, coefficient=1.0))
    limit = Limit(name="service", trip_after=3, cool_down=MINUTE)
    service.answers.update({number: ConnectionError("down") for number in range(1, 5)})
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = []
    for number in range(3):
        runs.append(await engine.start(caller, number))
        await engine.settle()
    assert len(service.calls) == 3
    runs.append(await engine.start(caller, 3))
    await engine.settle()
    assert len(service.calls) == 3, "the circuit is open"
    assert sorted([await run.result() for run in runs]) == [0, 1, 2, 3]
    assert service.times[:5] == [0, 0, 0, 60, 120]


async def test_errors_that_say_nothing_of_the_service_do_not_count(make_engine, service):
    """S4-19"""
    caller = calling(service.call, retry=Retry.never)
    limit = Limit(name="service", trip_after=1, cool_down=MINUTE)
    service.answers[1] = NonRetryable("bad request")
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    run = await engine.start(caller, 1)
    with pytest.raises(RunFailed):
        await run.result()
    assert await engine.execute(caller, 2) == 2
    assert service.times == [0, 0]


@pytest.mark.parametrize("mode", ["memory"])
async def test_being_told_to_come_later_does_not_trip_a_circuit_and_a_timeout_does(make_engine, service):
    """S4-19"""
    answers: list[Any] = [RetryAfter(SECOND, "429"), RetryAfter(SECOND, "429"), "late", "late", None]

    async def call(name: int) -> int:
        service.calls.append((service.clock(), name))
        answer = answers.pop(0)
        if answer == "late":
            await asyncio.Event().wait()
        elif answer is not None:
            raise answer
        return name

    retry = Retry(max_attempts=50, initial_interval=SECOND, coefficient=1.0)
    caller = calling(call, retry=retry, timeout=timedelta(milliseconds=20))
    limit = Limit(name="service", trip_after=2, cool_down=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    assert await engine.execute(caller, 1) == 1
    assert service.times[:4] == [0, 1, 2, 3]
    assert service.times[4] >= 63


@pytest.mark.parametrize("mode", ["file"])
async def test_an_attempt_that_dies_with_its_worker_counts_as_a_failure(make_engine, service):
    """S4-19 A circuit is tripped by crashes."""
    caller = calling(service.stay)
    limits = [Limit(name="service", trip_after=1, cool_down=MINUTE)]
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    await engine.start(caller, 1, id="r")
    await eventually(lambda: service.inside == 1)
    await engine.crash()
    service.go.set()
    service.engine = second = await make_engine(caller, clock=engine.jumping, limits=limits)
    assert await second.get("r").result() == 1
    assert service.times == [0, 60]


@pytest.mark.parametrize(
    "options",
    [
        {"burst": 3}, {"rate": 1, "burst": 0}, {"per_key_at_once": 0}, {"trip_after": 0}, {"at_once": 10**10},
        {"rate": 1001}, {"at_once": -1}, {"scope": "world"}, {"scope": "engine", "per_key_at_once": 1},
        {"scope": "engine", "trip_after": 1}, {"cool_down": MINUTE}, {"at_once": 1, "cool_down": timedelta(0)},
        {"trip_after": 1, "cool_down": -MINUTE}, {"rate": 1, "per": timedelta(days=400_000)},
        {"rate": 1, "per": timedelta(days=36_500), "burst": 11},
    ],
)  # fmt: skip
def test_a_limit_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    """S4-19"""
    with pytest.raises(BadInput, match="service"):
        Limit(**{"name": "service", **options})


def test_a_rate_may_count_over_a_thousand_years() -> None:
    """S4-19 And no longer: the instants that are kept would become too large for their columns, and no run go on."""
    assert Limit(name="service", rate=1, per=timedelta(days=36_500), burst=10).spec.burst == 10


def test_a_time_to_cool_down_without_a_circuit_names_the_way_out() -> None:
    """S4-19"""
    with pytest.raises(BadInput, match=r"cool_down and no trip_after.*give it a trip_after, or leave out"):
        Limit(name="service", at_once=1, cool_down=MINUTE)


def test_a_circuit_cools_down_for_half_a_minute_unless_it_is_told_otherwise() -> None:
    """S4-19"""
    assert Limit(name="service", trip_after=1).spec.cool_down == 30_000_000
    assert Limit(name="service", trip_after=1, cool_down=timedelta(0)).spec.cool_down == 0
    assert Limit(name="service", at_once=1).spec.cool_down == 0


@pytest.mark.parametrize("options", [{"limit": "service", "limit_key": 3}, {"limit_key": lambda: "a"}])
def test_a_limit_key_is_a_function_and_belongs_to_a_limit(options: dict[str, Any]) -> None:
    """S4-19"""
    with pytest.raises((BadInput, DefinitionError), match="limit"):
        activity(**options)(print)
