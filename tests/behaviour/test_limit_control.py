"""What operators see of shared limits, and do to them."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from tests.support.limit_cases import START, Service, calling
from tests.support.waiting import eventually

from holdfast.errors import BadInput, UnknownLimit
from holdfast.limits import Limit
from holdfast.replay.entry import AttemptLost, decode_entry

MINUTE = timedelta(minutes=1)


@pytest.fixture
def service() -> Service:
    return Service()


async def test_nothing_begins_under_a_paused_limit_on_any_engine(make_engine, service, mode):
    """S4-19 From the commit on; what runs goes on; it is on record who did it and why, and survives a restart."""
    caller = calling(service.stay)
    limits = [Limit(name="service", at_once=5)]
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    inside = await engine.start(caller, 1)
    await eventually(lambda: service.inside == 1)
    assert await engine.limits.pause("service", by="ann", reason="down")
    assert not await engine.limits.pause("service")
    if mode != "memory":
        other = await make_engine(caller, clock=engine.jumping, limits=limits)
    else:
        other = engine
    waiting = await other.start(caller, 2)
    await eventually(lambda: _waiting(engine, 1))
    service.go.set()
    assert await inside.result() == 1
    assert [name for _, name in service.calls] == [1]
    await eventually(lambda: _in_line(waiting))
    assert (await waiting.describe()).paused == "limit service"
    assert await other.limits.resume("service", by="bob")
    assert await waiting.result() == 2
    assert not await engine.limits.resume("service")
    trail = [(record.actor, record.action) for record in await engine.audit.records(target="service")]
    assert trail[-2:] == [("ann", "limit.pause"), ("bob", "limit.resume")]


async def _waiting(engine, count: int) -> bool:
    return sum(limit.waiting for limit in await engine.limits()) == count


async def _in_line(run) -> bool:
    (step,) = await run.steps()
    return (step.status, step.reason, step.next_attempt_at) == ("skipped", "limit 'service'", None)


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_an_engine_that_declares_other_numbers_leaves_that_on_record(make_engine, service, mode, caplog):
    """S4-19 The same numbers again leave nothing; the difference is logged where it is written."""
    caller = calling(service.stay)
    engine = await make_engine(caller, start=START, limits=[Limit(name="service", at_once=5)])
    await make_engine(caller, clock=engine.jumping, limits=[Limit(name="service", at_once=5)])
    looks = engine.faults.calls["limits"]
    await eventually(lambda: engine.faults.calls["limits"] > looks)  # a worker compares what is in force with its own
    assert "limit 'service' was" not in caplog.text
    await make_engine(caller, clock=engine.jumping, limits=[Limit(name="service", at_once=2)])
    records = await engine.audit.records(target="service")
    assert [(record.actor, record.action) for record in records] == [("engine", "declare limit")] * 2
    assert [record.detail for record in records] == [{"at_once": 5}, {"at_once": 2}]
    assert any("limit 'service' was" in message and '"at_once":2' in message for message in caplog.messages)


async def test_limits_are_shown_with_what_is_used_waits_and_comes_next(make_engine, service):
    """S4-19"""
    caller = calling(service.stay, limit_key=lambda name: f"tenant-{name % 2}")
    limit = Limit(name="service", at_once=3, rate=1, per=MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(5)]
    await eventually(lambda: _waiting(engine, 3))
    (shown,) = await engine.limits()
    assert (shown.name, shown.used, shown.waiting, shown.paused, shown.overridden) == ("service", 2, 3, False, False)
    assert shown.next_turn == START + MINUTE
    assert [(key.key, key.used, key.waiting) for key in shown.keys] == [("tenant-0", 1, 2), ("tenant-1", 1, 1)]
    service.go.set()
    for run in runs:
        await run.result()


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_numbers_of_an_operator_hold_until_they_are_cleared(make_engine, service, caplog):
    """S4-19 Lowering interrupts nothing; the engine opened last says what is declared, and that is logged."""
    caller = calling(service.stay)
    service.engine = engine = await make_engine(caller, start=START, limits=[Limit(name="service", at_once=2)])
    runs = [await engine.start(caller, number) for number in range(4)]
    await eventually(lambda: service.inside == 2)
    assert await engine.limits.override("service", Limit(name="service", at_once=1), by="ann", reason="slow")
    assert service.inside == 2
    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        await make_engine(caller, clock=engine.jumping, limits=[Limit(name="service", at_once=3)])
        assert "limit 'service' was" in caplog.text
    (shown,) = await engine.limits()
    assert (shown.overridden, shown.numbers.at_once) == (True, 1)
    assert await engine.limits.override("service", None)
    await eventually(lambda: service.inside == 3)
    await eventually(lambda: caplog.text.count("limit 'service' was") > 1)
    service.go.set()
    for run in runs:
        await run.result()
    assert service.most == 3


async def test_other_numbers_hold_at_once_for_one_that_was_told_a_later_time(make_engine, service):
    """S4-19 The first in line was told to come in an hour; then an operator allows more."""
    caller = calling(service.call)
    limit = Limit(name="service", rate=1, per=60 * MINUTE)
    service.engine = engine = await make_engine(caller, start=START, limits=[limit])
    runs = [await engine.start(caller, number) for number in range(3)]
    await eventually(lambda: _waiting(engine, 2))
    await engine.settle()
    await engine.limits.override("service", Limit(name="service", rate=9, per=60 * MINUTE))
    await eventually(lambda: len(service.calls) == 3)
    assert service.times == [0, 0, 0]
    for run in runs:
        await run.result()


@pytest.mark.parametrize("mode", ["evict"])
async def test_a_suspect_obeys_its_limit(make_engine, service):
    """S4-19 B24 A step that was lost with two workers waits as any other does."""
    caller = calling(service.stay)
    limits = [Limit(name="service", at_once=1)]
    service.engine = engine = await make_engine(caller, start=START, limits=limits)
    await engine.start(caller, 1, id="r")
    for number in (1, 2):
        await eventually(lambda number=number: len(service.calls) == number)
        if number == 2:
            await engine.limits.pause("service")
        await engine.crash()
        service.engine = engine = await make_engine(caller, clock=engine.jumping, limits=limits)
    await eventually(lambda: _waiting(engine, 1))
    history = await engine.store.history((await engine.store.get("r")).key)
    lost = [decode_entry(row.kind, row.data).why for row in history if row.kind == AttemptLost.kind]
    assert (len(service.calls), lost) == (2, ["crash", "crash"])
    service.go.set()
    await engine.limits.resume("service")
    assert await engine.get("r").result() == 1
    assert len(service.calls) == 3


async def test_what_is_done_to_no_limit_is_refused(make_engine, service):
    """S4-19"""
    engine = await make_engine(calling(service.call), limits=[Limit(name="service")])
    with pytest.raises(UnknownLimit):
        await engine.limits.pause("nothing")
    with pytest.raises(UnknownLimit):
        await engine.limits.override("nothing", Limit(name="nothing", at_once=1))
    for numbers in (3, Limit(name="other"), Limit(name="service", scope="engine")):
        with pytest.raises(BadInput, match="takes a Limit"):
            await engine.limits.override("service", numbers)
