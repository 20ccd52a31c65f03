"""Shared limits and clocks: the time since boot begins again, the clock on the wall is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.limit_cases import Service, calling
from tests.support.moved_clocks import BootClock, BootedStore, MovedClock
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, Retry, activity, workflow
from holdfast.clock import Clock, to_datetime
from holdfast.contract.turns import CommitTurn
from holdfast.engine.runs import departures
from holdfast.errors import StoreBusy
from holdfast.limits import Limit
from holdfast.testing.faults import Faults

HOUR, SECOND = 3_600_000_000, 1_000_000


class Machine:
    """A machine with a clock on the wall and a time since boot, and engines on one file of it."""

    def __init__(self, stack: AsyncExitStack, path: Path) -> None:
        self._stack = stack
        self._path = path
        self.wall = MovedClock()
        self.since_boot = BootClock(-Clock().now() + 1000 * HOUR)

    async def engine(self, *workflows: Any, **options: Any) -> Engine:
        store = BootedStore(self._path, durability="process")
        store.clock, store.since_boot = self.wall, self.since_boot
        self.faults = Faults(store)
        return await self._stack.enter_async_context(Engine(store=store, workflows=workflows, **options))

    def boot(self) -> None:
        self.since_boot.ahead = -Clock().now() + 1_000_000


@pytest.fixture
async def machine(path: Path) -> AsyncIterator[Machine]:
    async with AsyncExitStack() as stack:
        yield Machine(stack, path)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.mark.parametrize("burst", [None, 1])
@pytest.mark.parametrize("up", [1000 * HOUR, 55 * SECOND])
async def test_a_line_moves_on_after_the_machine_was_booted(machine, service, up, burst):
    """S4-19 The first in line was told when it may begin, in the time of the last boot; that may have been short."""
    machine.since_boot.ahead = -Clock().now() + up
    caller = calling(service.call)
    limits = [Limit(name="service", rate=1, per=timedelta(seconds=1), burst=burst)]
    service.engine = engine = await machine.engine(caller, limits=limits)
    for number in range(3):
        await engine.start(caller, number, id=str(number))
    await eventually(lambda: _wait(engine))
    await engine.stop()
    machine.boot()
    service.engine = engine = await machine.engine(caller, limits=limits)
    assert [await asyncio.wait_for(engine.get(str(number)).result(), LONG) for number in range(3)] == [0, 1, 2]
    assert machine.since_boot.now() < 50 * SECOND


async def test_a_line_moves_on_after_a_boot_though_another_worker_was_there_first(machine, service):
    """S4-19 What was told before a short boot is told again at once, whoever else is at work already."""
    machine.since_boot.ahead = -Clock().now() + 55 * SECOND
    caller = calling(service.call)
    limits = [Limit(name="service", rate=1, per=timedelta(seconds=1))]
    service.engine = engine = await machine.engine(caller, limits=limits)
    for number in range(3):
        await engine.start(caller, number, id=str(number))
    await eventually(lambda: _wait(engine))
    await engine.stop()
    machine.boot()
    await machine.engine()
    service.engine = engine = await machine.engine(caller, limits=limits)
    assert [await asyncio.wait_for(engine.get(str(number)).result(), LONG) for number in range(3)] == [0, 1, 2]
    assert machine.since_boot.now() < 50 * SECOND


async def test_a_step_that_has_its_turn_goes_on_after_a_boot_and_a_commit_that_failed(machine, service, monkeypatch):
    """S4-19 The turn was given in the time of the last boot; the commit that asks again fails, and the run is claimed
    again."""
    monkeypatch.setattr(departures, "_FIRST_PAUSE", 0.005)
    caller = calling(service.stay)
    limits = [Limit(name="service", at_once=1)]
    service.engine = engine = await machine.engine(caller, limits=limits)
    for number in range(2):
        await engine.start(caller, number, id=str(number))
    await eventually(lambda: _waits(engine, 1))
    # The commit that gives the place to the next is the last that reaches the database.
    faults = machine.faults
    killed = faults.call(faults.die, moment="after", only=lambda _: any(map(_gives_back, faults.batches[-1])))
    service.go.set()
    await killed.happened()
    await engine.stop(grace=timedelta(0))
    machine.boot()
    engine = service.engine = await machine.engine(caller, limits=limits)
    failed = machine.faults.fail(only=lambda operations: any(map(_asks, operations)))
    await failed.happened()
    assert [await asyncio.wait_for(engine.get(str(number)).result(), LONG) for number in range(2)] == [0, 1]


@pytest.mark.parametrize("resident", [0, 1000])
async def test_a_line_moves_on_when_the_clock_on_the_wall_is_set_back(machine, service, resident):
    """S4-19 The first in line was told by the clock on the wall when it may begin; limits go by the time since boot."""
    caller = calling(service.call)
    limits = [Limit(name="service", rate=1, per=timedelta(seconds=1))]
    service.engine = engine = await machine.engine(caller, limits=limits, max_resident=resident)
    for number in range(4):
        await engine.start(caller, number, id=str(number))
    await eventually(lambda: _waits(engine, 3))
    machine.wall.jump(-HOUR)
    machine.since_boot.jump(11 * SECOND)
    assert [await asyncio.wait_for(engine.get(str(number)).result(), LONG) for number in range(4)] == [0, 1, 2, 3]


async def test_a_commit_that_is_tried_again_for_minutes_does_not_take_back_what_began_meanwhile(machine, service):
    """S4-19 It would say that it is two hours ago, which is how the first commit after a boot looks."""
    call = activity(name="call", limit="service")(service.call)

    @workflow
    async def caller(ctx: Context, number: int) -> None:
        await ctx.step(service.stay, number)
        await ctx.step(call, number)

    limits = [Limit(name="service", rate=2, per=timedelta(hours=1))]
    patient = Retry(max_attempts=None, initial_interval=timedelta(milliseconds=5), coefficient=1.0)
    service.engine = first = await machine.engine(caller, limits=limits, storage_retry=patient)
    busy = machine.faults.fail(None, only=lambda operations: any(map(_asks, operations)), error=StoreBusy("busy"))
    await first.start(caller, 0)
    await eventually(lambda: service.inside == 1)
    service.go.set()
    await busy.happened()
    second = await machine.engine(caller, limits=limits)
    machine.since_boot.jump(2 * HOUR)
    for number in (1, 2):
        await asyncio.wait_for(second.execute(caller, number), LONG)
    busy.heal()
    await eventually(lambda: _waits(second, 1))
    [limit] = await second.limits()
    assert limit.next_turn > to_datetime(machine.wall.now() + HOUR // 2)


async def test_a_place_that_was_given_before_a_boot_is_not_kept_for_a_run_that_cannot_go_on(machine, service):
    """S4-19 The worker dies when a step has got its turn, the machine is booted, and no worker has the run's code."""
    caller, call = calling(service.stay), activity(limit="service")(service.call)

    @workflow
    async def other(ctx: Context) -> Any:
        return await ctx.step(call, 7)

    limits = [Limit(name="service", at_once=1)]
    service.engine = engine = await machine.engine(caller, other, limits=limits)
    for number in range(2):
        await engine.start(caller, number, id=str(number))
    await eventually(lambda: _waits(engine, 1))
    faults = machine.faults
    killed = faults.call(faults.die, moment="after", only=lambda _: any(map(_gives_back, faults.batches[-1])))
    service.go.set()
    await killed.happened()
    await engine.stop(grace=timedelta(0))
    machine.boot()
    engine = service.engine = await machine.engine(other, limits=limits)
    run = await engine.start(other)
    machine.since_boot.jump(11 * SECOND)
    assert await asyncio.wait_for(run.result(), LONG) == 7


def _gives_back(operation: Any) -> bool:
    return isinstance(operation, CommitTurn) and operation.effects is not None and bool(operation.effects.exits)


def _asks(operation: Any) -> bool:
    return isinstance(operation, CommitTurn) and operation.effects is not None and bool(operation.effects.enters)


async def _wait(engine: Any) -> bool:
    """Whether any step waits: on a busy machine the second one may have begun by now."""
    [limit] = await engine.limits()
    return bool(limit.waiting)


async def _waits(engine: Any, count: int) -> bool:
    [limit] = await engine.limits()
    return limit.waiting == count
