"""Trying now what waits to be tried again: a nudge is an inbox row, audited, and one of the attempts there may be."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, NotReady, Retry, activity, workflow
from holdfast.errors import BadInput, NoSuchRun, RunFailed
from holdfast.looking.acts import Options, act
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)
_calls: list[str] = []
_open: set[str] = set()


@activity(retry=Retry(max_attempts=3, initial_interval=HOUR, max_interval=HOUR, jitter=0))
async def book(name: str) -> str:
    _calls.append(name)
    if name not in _open:
        raise ConnectionError(f"{name} is down")
    return name


@activity(run_when=lambda step: True if "line" in _open else NotReady("not connected", retry_in=HOUR))
async def upload() -> str:
    return "uploaded"


@workflow
async def booking(ctx: Context) -> str:
    return await ctx.step(book, "carrier")


@workflow
async def two_bookings(ctx: Context) -> list[str]:
    return [*await asyncio.gather(ctx.step("first", book, "carrier"), ctx.step("second", book, "ship"))]


@workflow
async def uploading(ctx: Context) -> str:
    return await ctx.step(upload)


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


@pytest.fixture(autouse=True)
def closed() -> None:
    _calls.clear()
    _open.clear()


async def nudges(engine: TestEngine, run_id: str = "order-1") -> list[str]:
    return [record.actor for record in await engine.audit.records(target=run_id) if record.action == "nudge"]


async def test_a_step_that_waits_for_its_next_attempt_is_tried_now(make_engine):
    engine = await make_engine(booking)
    run = await engine.start(booking, id="order-1")
    await engine.settle()
    assert _calls == ["carrier"]
    _open.add("carrier")
    began = engine.jumping.now()
    assert await run.nudge(by="kim", reason="the carrier is back")
    await engine.settle()
    assert await run.result() == "carrier"
    assert engine.jumping.now() == began  # an hour was not waited for
    assert not engine.offers("audit") or await nudges(engine) == ["kim"]


async def test_one_of_several_steps_is_tried_by_its_path(make_engine):
    engine = await make_engine(two_bookings)
    run = await engine.start(two_bookings, id="order-1")
    await engine.settle()
    assert sorted(_calls) == ["carrier", "ship"]
    _open.update(("carrier", "ship"))
    assert not await run.nudge("third")
    assert await run.nudge("second")
    await engine.settle()
    assert sorted(_calls) == ["carrier", "ship", "ship"]
    assert await run.status() == "suspended"
    assert await run.nudge()
    await engine.settle()
    assert await run.result() == ["carrier", "ship"]


async def test_a_step_that_its_condition_put_off_is_asked_again_now(make_engine):
    engine = await make_engine(uploading)
    run = await engine.start(uploading, id="order-1")
    await engine.settle()
    _open.add("line")
    began = engine.jumping.now()
    assert await run.nudge()
    await engine.settle()
    assert await run.result() == "uploaded"
    assert engine.jumping.now() == began


async def test_a_nudge_is_one_of_the_attempts_that_a_step_may_have(make_engine):
    engine = await make_engine(booking)
    run = await engine.start(booking, id="order-1")
    for _ in range(2):
        await engine.settle()
        assert await run.nudge()
    await engine.settle()
    with pytest.raises(RunFailed):
        await run.result()
    assert len(_calls) == 3


async def test_where_nothing_waits_to_be_tried_again_nothing_is_done(make_engine):
    engine = await make_engine(approval, booking)
    waiting = await engine.start(approval, id="order-1")
    paused = await engine.start(booking, id="order-2")
    await engine.settle()
    await paused.pause(by="lena")
    await engine.settle()
    for run in (waiting, paused):
        assert not await run.nudge(by="kim")
        assert await nudges(engine, run.id) == []
    await waiting.send("approved")
    await waiting.result()
    assert not await waiting.nudge(by="kim")
    with pytest.raises(NoSuchRun):
        await engine.get("nothing").nudge()
    with pytest.raises(BadInput):
        await waiting.nudge("a\nb")


async def test_a_desk_nudges_and_says_where_there_is_nothing_to_nudge(make_engine):
    engine = await make_engine(approval, booking)
    await engine.start(approval, id="order-1")
    await engine.start(booking, id="order-2")
    await engine.settle()

    async def nudged(run_id: str, **options: Any) -> tuple[bool, str]:
        done = await act(engine, "nudge", run_id, Options(by="kim", **options))
        return done.changed, done.said

    assert await nudged("order-1") == (False, "no step of it waits to be tried again: see holdfast why order-1")
    assert await nudged("order-2", dry_run=True) == (False, "")
    assert await nudged("order-2") == (True, "")
    await engine.settle()
    assert _calls == ["carrier", "carrier"]
