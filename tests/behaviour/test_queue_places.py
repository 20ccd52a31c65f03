"""Queues: how many attempts run at once on all workers, and ageing, by which what waits long is taken too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, activity, workflow
from holdfast.definitions import Queue
from holdfast.errors import BadInput
from holdfast.ops.flow import QueuePlaces


class Desk:
    """Bodies that tell when they begin, and end when they are let."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.now = self.most = 0
        self.go = asyncio.Event()

    async def work(self, name: str) -> str:
        self.begun.append(name)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go.wait()
        self.now -= 1
        return name


def calling(desk: Desk) -> Any:
    @activity(queue="bank")
    async def pay(name: str) -> str:
        return await desk.work(name)

    @workflow(name="caller")
    async def caller(ctx: Context, name: str, urgency: int = 0) -> str:
        return await ctx.step(name, pay.options(priority=urgency), name)

    return caller


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_no_more_attempts_of_a_queue_run_at_once_than_may(make_engine):
    """On all workers together; a place is free when its attempt has ended."""
    desk = Desk()
    served = ["default", Queue(name="bank", at_once=2)]
    one = await make_engine(calling(desk), queues=served)
    two = await make_engine(calling(desk), queues=served, clock=one.jumping)
    runs = [await (one, two)[n % 2].start("caller", name=str(n), id=str(n)) for n in range(8)]
    await eventually(lambda: desk.now == 2)
    for engine in (one, two):
        await engine._settle_but_for_bodies()
    assert desk.now == 2
    assert await two.flow.queues() == [QueuePlaces("bank", places=2, used=2, waiting=6)]
    desk.go.set()
    assert [await asyncio.wait_for(two.get(run.id).result(), LONG) for run in runs] == [str(n) for n in range(8)]
    assert desk.most == 2
    assert await one.flow.queues() == [QueuePlaces("bank", places=2, used=0, waiting=0)]


async def test_priorities_are_strict_unless_a_queue_ages(make_engine):
    """B22 With ageing one in ten is the one that has waited longest, whatever its priority."""
    for ageing in (False, True):
        desk = Desk()
        engine = await make_engine(calling(desk), queues=["default", Queue(name="bank", at_once=1, ageing=ageing)])
        first = await engine.start("caller", name="first", id=f"first-{ageing}")
        await eventually(lambda desk=desk: desk.begun == ["first"])
        runs = [first, await engine.start("caller", name="patient", urgency=-1, id=f"patient-{ageing}")]
        runs += [await engine.start("caller", name=str(n), urgency=5, id=f"{n}-{ageing}") for n in range(20)]
        await engine._settle_but_for_bodies()
        desk.go.set()
        for run in runs:
            await run.result()
        assert desk.most == 1
        assert desk.begun.index("patient") == (9 if ageing else 21)
        await engine.stop()


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize("ageing", [True, False])
async def test_a_run_that_waits_long_is_taken_from_a_queue_that_ages(make_engine, ageing):
    """B22 Runs are taken by the hundred; of those taken after that the most overdue are first, unless it is strict."""
    order: list[str] = []

    @workflow
    async def told(ctx: Context, name: str) -> None:
        order.append(name)

    engine = await make_engine(told, queues=[Queue(name="default", ageing=ageing)])
    await engine.flow.pause(workflow=told)
    runs = [await engine.start(told, "patient", priority=-1)]
    runs += [await engine.start(told, "urgent", priority=5) for _ in range(300)]
    await engine.flow.resume(workflow=told)
    for run in runs:
        await run.result()
    assert (order.index("patient") < 250) is ageing
    assert ageing or order[-1] == "patient"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": ""}, "a queue's name"),
        ({"name": 7}, "a queue's name"),
        ({"name": "q", "at_once": 0}, "at_once of queue 'q' must be a whole number from 1 to 100,000, not 0"),
        ({"name": "q", "at_once": True}, "at_once"),
        ({"name": "q", "at_once": 10**7}, "at_once"),
        ({"name": "q", "ageing": 1}, "ageing of queue 'q' is True or False, not 1"),
    ],
)
def test_what_cannot_be_a_queue_is_named(options, said):
    with pytest.raises(BadInput, match=said):
        Queue(**options)


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_queue_is_declared_once(make_engine):
    with pytest.raises(BadInput, match="queue 'q' is declared twice"):
        await make_engine(queues=["q", Queue(name="q", at_once=1)])
    with pytest.raises(BadInput, match="queues must be a list"):
        await make_engine(queues=Queue(name="q"))
