"""The health of an engine, as a probe asks for it."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, workflow
from holdfast.errors import StoreUnreachable
from holdfast.testing import TestEngine

SHORT = timedelta(milliseconds=50)


@workflow
async def hear(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_an_engine_that_is_well_says_so(make_engine, mode):
    engine = await make_engine(hear)
    await engine.start(hear)
    await engine.settle()
    health = await engine.health(timeout=timedelta(seconds=LONG))
    assert (health.ok, health.reasons, health.open) == (True, (), True)
    assert health.store_latency is not None
    assert health.lease_age is not None
    assert health.lease_age < engine.settings.lease
    assert health.oldest_due is None
    assert health.runs_in_memory == (0 if mode == "evict" else 1)


async def test_a_silent_store_is_told_in_time_and_asked_only_once(make_engine):
    """However often a probe comes: its questions do not pile up; when the store answers all is well again."""
    engine = await make_engine(hear)
    await engine.settle()  # so that it is not the worker whose question is held
    hold = engine.faults.hold(at="next_due")
    for _ in range(5):
        health = await asyncio.wait_for(engine.health(timeout=SHORT), LONG)
        assert not health.ok
        assert "has not answered for" in health.reasons[0]
        assert health.store_latency is None
    asked = engine.faults.calls["next_due"]
    hold.release()
    await eventually(lambda: engine._probe._asking.done())
    assert (await engine.health(timeout=timedelta(seconds=LONG))).ok
    assert engine.faults.calls["next_due"] <= asked + 2


async def test_an_error_of_the_store_is_a_reason(make_engine):
    engine = await make_engine(hear)
    engine.faults.fail(None, at="next_due", error=StoreUnreachable("the server\nis away"))
    health = await engine.health(timeout=timedelta(seconds=LONG))
    engine.faults.heal()
    assert not health.ok
    assert health.reasons == ("StoreUnreachable: the server\\nis away",)


async def test_a_run_that_waits_for_a_worker_is_seen(make_engine):
    """The backlog is no reason against this engine: other workers may be busy with it."""
    engine = await make_engine(hear, run_workflows=False)
    await engine.start("hear", id="waiting")
    engine.jumping.advance(timedelta(minutes=7))
    health = await engine.health(timeout=timedelta(seconds=LONG))
    assert health.oldest_due == timedelta(minutes=7)
    assert health.ok
    assert health.lease_age is None


async def test_an_engine_that_is_not_open_is_not_well():
    engine = TestEngine()
    assert (await engine.health()).reasons == ("the engine is not open",)
    async with engine:
        assert (await engine.health(timeout=timedelta(seconds=LONG))).ok
    assert not (await engine.health()).open


async def test_an_event_loop_that_is_late_is_a_reason(make_engine, monkeypatch):
    engine = await make_engine(hear)
    asyncio.get_running_loop().call_later(0.001, time.sleep, 1.2)
    health = await engine.health(timeout=timedelta(seconds=LONG))
    assert health.loop_lag > timedelta(seconds=1)
    assert any("event loop is late" in reason for reason in health.reasons)


@pytest.mark.parametrize("mode", ["file"])
async def test_a_lease_that_is_not_renewed_is_a_reason(make_engine):
    engine = await make_engine(hear, lease=timedelta(milliseconds=300))
    engine.faults.fail(None, at="renew")
    await eventually(lambda: engine._working().lease_age > timedelta(milliseconds=300))
    health = await engine.health(timeout=timedelta(seconds=LONG))
    engine.faults.heal()
    assert any("lease was renewed" in reason for reason in health.reasons)
