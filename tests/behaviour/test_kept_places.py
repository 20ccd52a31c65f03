"""Places of a shared limit that a busy worker keeps for its next steps: others have them when they are wanted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.limit_cases import Service, calling
from tests.support.waiting import LONG, eventually

from holdfast.limits import Limit

WIDE = [Limit(name="service", at_once=40)]
EIGHT = [Limit(name="service", at_once=8)]


class Stays(Service):
    """Lets bodies out one by one, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.out: set[int] = set()

    async def stay(self, name: Any = None) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await eventually(lambda: name in self.out)
        finally:
            self.inside -= 1
        return name


@pytest.fixture
def service() -> Stays:
    return Stays()


async def used(engine: Any) -> int:
    [row] = await engine.store.limits()
    return row.used


async def waiting(engine: Any) -> int:
    [row] = await engine.store.limits()
    return row.waiting


async def is_used(engine: Any, count: int) -> bool:
    return await used(engine) == count


async def started(engine: Any, caller: Any, numbers: range) -> list[Any]:
    return [await engine.start(caller, number) for number in numbers]


async def test_what_a_worker_keeps_is_given_back_while_it_goes_on(make_engine, service):
    """S4-19 No place stays taken that no body has, though one of the worker's bodies goes on."""
    caller = calling(service.stay)
    engine = await make_engine(caller, limits=WIDE)
    runs = await started(engine, caller, range(8))
    await eventually(lambda: service.inside == 8)
    service.out |= {*range(1, 8)}
    for run in runs[1:]:
        await asyncio.wait_for(run.result(), LONG)
    await eventually(lambda: is_used(engine, 1))
    service.out.add(0)
    await asyncio.wait_for(runs[0].result(), LONG)
    await eventually(lambda: is_used(engine, 0))


async def test_steps_one_after_another_use_what_was_kept_and_leave_nothing_taken(make_engine, service):
    """S4-19 Many runs of which each leaves and enters, on one worker."""
    caller = calling(service.stay)
    service.out |= {*range(60)}
    engine = await make_engine(caller, limits=WIDE, max_steps=6)
    runs = await started(engine, caller, range(60))
    assert [await asyncio.wait_for(run.result(), LONG) for run in runs] == list(range(60))
    assert service.most <= 6
    await eventually(lambda: is_used(engine, 0))


async def test_nothing_begins_with_a_kept_place_under_a_limit_that_is_paused(make_engine, service):
    """S4-19 A pause is in force from its commit."""
    caller = calling(service.stay)
    engine = await make_engine(caller, limits=WIDE)
    first = await started(engine, caller, range(8))
    await eventually(lambda: service.inside == 8)
    service.out |= {*range(8)}
    for run in first:
        await asyncio.wait_for(run.result(), LONG)
    await engine.limits.pause("service")
    more = await started(engine, caller, range(100, 104))

    async def all_wait() -> bool:
        return await waiting(engine) == 4

    await eventually(all_wait)
    assert service.inside == 0
    service.out |= {*range(100, 104)}
    await engine.limits.resume("service")
    assert [await asyncio.wait_for(run.result(), LONG) for run in more] == list(range(100, 104))
    await eventually(lambda: is_used(engine, 0))


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_another_worker_gets_what_one_has_kept(make_engine, service):
    """S4-19 All places, while the first is there and has nothing to do; and never more than there are."""
    caller = calling(service.stay)
    first = await make_engine(caller, limits=EIGHT)
    second = await make_engine(caller, limits=EIGHT, clock=first.jumping)
    runs = await started(first, caller, range(4))
    await eventually(lambda: service.inside == 4)
    service.out |= {*range(4)}
    for run in runs:
        await asyncio.wait_for(run.result(), LONG)
    more = await started(second, caller, range(100, 110))
    await eventually(lambda: service.inside == 8)
    service.out |= {*range(100, 110)}
    assert [await asyncio.wait_for(run.result(), LONG) for run in more] == list(range(100, 110))
    assert service.most == 8
    await eventually(lambda: is_used(first, 0))
