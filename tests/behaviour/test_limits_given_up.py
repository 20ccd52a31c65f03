"""Limits and steps that are given up at a bad moment: while they ask for a place, or while their bodies go on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import eventually

from holdfast import Context, Retry, Status, StepTimeout, activity, workflow
from holdfast.contract.operations import Operation
from holdfast.contract.turns import CommitTurn
from holdfast.limits import Limit

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)


class Stubborn:
    """A body that goes on though it was cancelled."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def stay(self, name: Any = None) -> Any:
        """Stay until it is let go."""
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                continue
        return name


@pytest.fixture
def stubborn() -> Iterator[Stubborn]:
    body = Stubborn()
    yield body
    body.go.set()


async def used(engine: Any) -> tuple[int, int]:
    """Return how many places of the limit are used or granted, and how many steps wait."""
    [row] = await engine.store.limits()
    return row.used + row.granted, row.waiting


async def _uses(engine: Any, *count: int) -> bool:
    return await used(engine) == count


async def _is(run: Any, status: Status) -> bool:
    return await run.status() is status


def _asks(operations: Sequence[Operation]) -> bool:
    turns = [operation for operation in operations if isinstance(operation, CommitTurn)]
    return any(turn.effects is not None and turn.effects.enters for turn in turns)


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize("free", [True, False])
async def test_a_step_that_is_given_up_while_it_asks_has_no_place_and_waits_in_no_line(make_engine, free: bool):
    """S4-19 The code took the result of another step before it was answered, and the run goes on for long."""
    service, first, quick = Service(), asyncio.Event(), asyncio.Event()
    called = activity(name="call", limit="service")(service.stay)
    given_up = asyncio.Event()

    async def begin() -> None:
        await first.wait()

    async def answer() -> None:
        await quick.wait()

    @workflow
    async def hasty(ctx: Context) -> None:
        answered = asyncio.ensure_future(ctx.step(answer))
        await ctx.step(begin)
        asked = asyncio.ensure_future(ctx.step(called, 1))
        await asyncio.wait({answered, asked}, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        given_up.set()
        await ctx.receive("end")

    caller = calling(service.stay)
    service.engine = engine = await make_engine(hasty, caller, limits=[Limit(name="service", at_once=1)])
    if not free:
        await engine.start(caller, 0)
        await eventually(lambda: service.inside == 1)
    asking = engine.faults.hold(only=_asks)
    run = await engine.start(hasty)
    first.set()
    await asking.happened()
    quick.set()
    await given_up.wait()
    asking.release()
    await eventually(lambda: _is(run, Status.SUSPENDED))  # both commits are made
    await eventually(lambda: _uses(engine, 0 if free else 1, 0))
    assert len(service.calls) == (0 if free else 1)
    service.go.set()
    await run.send("end")
    await run.result()


@pytest.mark.parametrize("mode", ["file"])
async def test_a_step_of_a_run_that_is_paused_while_it_asks_has_no_place(make_engine):
    """S4-19 B25 Another body of the run goes on for long, so that the run is not let go."""
    service, first, quick = Service(), asyncio.Event(), asyncio.Event()
    called = activity(name="call", limit="service")(service.call)

    async def begin() -> None:
        await first.wait()

    async def answer() -> None:
        await quick.wait()

    @workflow
    async def patient(ctx: Context) -> None:
        answered = asyncio.ensure_future(ctx.step(answer))
        await ctx.step(begin)
        await asyncio.gather(answered, ctx.step(called, 1))

    service.engine = engine = await make_engine(patient, limits=[Limit(name="service", at_once=1)])
    other = await make_engine(clock=engine.jumping)
    asking = engine.faults.hold(only=_asks)
    run = await engine.start(patient)
    first.set()
    await asking.happened()
    assert await other.get(run.id).pause()
    [resident] = engine._in_hand().values()
    await eventually(lambda: resident.phase)
    asking.release()
    await eventually(lambda: not resident.commits)
    await eventually(lambda: _uses(engine, 0, 0))
    assert engine.bodies == 1
    quick.set()
    await eventually(lambda: _is(run, Status.PAUSED))
    assert service.calls == []
    await run.resume()
    await run.result()
    assert len(service.calls) == 1


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_body_that_times_out_after_it_was_given_up_gives_its_place_back_once(make_engine, stubborn):
    """S4-19 It goes on, and has its place until it is gone: then it leaves that one, and not another's."""
    service, quick = Service(), asyncio.Event()
    slow = activity(name="slow", limit="service", timeout=HOUR)(stubborn.stay)

    async def answer() -> None:
        await quick.wait()

    @workflow
    async def hasty(ctx: Context) -> str:
        won = await ctx.race({"slow": lambda inner: inner.step(slow), "quick": lambda inner: inner.step(answer)})
        return won.winner

    caller = calling(service.stay)
    service.engine = engine = await make_engine(hasty, caller, limits=[Limit(name="service", at_once=2)])
    run = await engine.start(hasty)
    await eventually(lambda: engine.bodies == 2)
    [attempt] = [each for each in engine._working().executor.under_way if each.activity.settings.limit]
    ending = engine.faults.hold(only=CommitTurn)
    quick.set()
    await ending.happened()
    attempt.give_up(StepTimeout("late"))
    ending.release()
    assert await run.result() == "quick"
    others = [await engine.start(caller, number) for number in range(3)]
    await eventually(lambda: _uses(engine, 2, 2))
    stubborn.go.set()
    await eventually(lambda: service.inside == 2)
    await engine.advance(SECOND)
    assert (service.most, await used(engine)) == (2, (2, 1))
    assert engine._working().runner.attempts.limited.correction().places[0].most == 2
    service.go.set()
    assert [await other.result() for other in others] == [0, 1, 2]
    await eventually(lambda: _uses(engine, 0, 0))


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_body_that_timed_out_as_a_try_does_not_end_a_later_try(make_engine, stubborn):
    """S4-19 The service is tried by one at a time, though the first one that tried comes back while another does."""
    service = Service()

    async def call(name: int) -> int:
        if len(service.calls) == 1:
            service.calls.append((service.clock(), name))
            return await stubborn.stay(name)
        if not service.calls:
            service.calls.append((service.clock(), name))
            raise ConnectionError("down")
        return await service.stay(name)

    caller = calling(call, timeout=HOUR, retry=Retry(max_attempts=50, initial_interval=SECOND, coefficient=1.0))
    limit = Limit(name="service", trip_after=1, cool_down=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, 0)]
    await eventually(lambda: len(service.calls) == 1)
    await engine.settle()
    runs += [await engine.start(caller, number) for number in (1, 2)]
    await engine.settle()
    await engine.advance(MINUTE)
    await eventually(lambda: len(service.calls) == 2)
    [attempt] = engine._working().executor.under_way
    attempt.give_up(StepTimeout("late"))
    await engine.settle()
    await engine.advance(MINUTE)
    await eventually(lambda: service.inside == 1)
    assert await used(engine) == (2, 2)
    stubborn.go.set()
    await eventually(lambda: _uses(engine, 1, 2))
    await engine.advance(SECOND)
    assert (len(service.calls), service.inside) == (3, 1)
    service.go.set()
    assert sorted([await run.result() for run in runs]) == [0, 1, 2]
