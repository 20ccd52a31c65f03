"""A regression fails and does not hang: what a test engine does when what is awaited never comes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.bodies import judging
from holdfast.engine.worker.timers import Timers
from holdfast.testing import NoProgress, TestEngine

HOUR = timedelta(hours=1)


@activity(retry=Retry(max_attempts=3))
async def charge() -> None:
    raise ConnectionError("the bank is away")


@workflow
async def order(ctx: Context) -> None:
    await ctx.step("charge", charge)


@workflow
async def poll(ctx: Context, times: int) -> int:
    for _ in range(times):
        await ctx.sleep(HOUR)
    return times


@workflow
async def ask(ctx: Context) -> str:
    return await ctx.receive("answer", str)


@pytest.mark.parametrize("max_resident", [1000, 0], ids=["resident", "evicted"])
async def test_attempts_that_never_run_out_are_an_error(monkeypatch: pytest.MonkeyPatch, max_resident: int) -> None:
    """A mutant: the policy always allows one more attempt."""
    monkeypatch.setattr(judging, "_exhausted", lambda *_: False)
    async with TestEngine(workflows=[order], max_resident=max_resident, max_jumps=100) as engine:
        run = await engine.start(order, id="order-7")
        with pytest.raises(
            NoProgress, match=r"jumped 100 times.*'order-7' \(order\).*'charge' is waiting after \d+ att"
        ):
            await run.result()


async def test_a_timer_that_is_always_due_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the run is woken but never told that its time has come."""
    async with TestEngine(workflows=[poll], max_jumps=50) as engine:
        monkeypatch.setattr(Timers, "next", lambda self: engine.clock.now())
        monkeypatch.setattr(Timers, "check", lambda self: None)
        run = await engine.start(poll, 1, id="poll-1")
        with pytest.raises(NoProgress, match="'poll-1'"):
            await run.result()
        with pytest.raises(NoProgress, match="the same instant stays due: run 'poll-1'"):
            await engine.advance(HOUR)


async def test_a_store_that_always_says_that_a_run_is_due_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant: the earliest due time is one that no claim takes."""
    async with TestEngine(workflows=[ask], max_jumps=50) as engine:

        async def next_due(names: Any) -> int:
            return engine.clock.now()

        monkeypatch.setattr(engine.store, "next_due", next_due)
        run = await engine.start(ask, id="ask-1")
        with pytest.raises(NoProgress, match=r"'ask-1' \(ask\) is suspended, waiting for message"):
            await run.result()


async def test_a_message_that_is_never_sent_is_an_error() -> None:
    async with TestEngine(workflows=[ask], patience=timedelta(milliseconds=50)) as engine:
        run = await engine.start(ask, id="ask-1")
        with pytest.raises(NoProgress, match=r"nothing is due: run 'ask-1' \(ask\) is suspended, waiting for message"):
            await run.result()


async def test_a_message_that_another_task_sends_later_is_waited_for() -> None:
    async with TestEngine(workflows=[ask], patience=timedelta(seconds=60)) as engine:
        run = await engine.start(ask)

        async def answer_later() -> None:
            await asyncio.sleep(0.05)
            await run.send("answer", "yes")

        result, _ = await asyncio.gather(run.result(), answer_later())
        assert result == "yes"


async def test_as_many_jumps_as_are_allowed_are_no_error() -> None:
    async with TestEngine(workflows=[poll], max_jumps=20) as engine:
        assert await engine.execute(poll, 20) == 20
        with pytest.raises(NoProgress):
            await engine.execute(poll, 21)


async def test_only_the_first_few_of_many_open_runs_are_named() -> None:
    async with TestEngine(workflows=[ask], patience=timedelta(milliseconds=10)) as engine:
        runs = [await engine.start(ask) for _ in range(8)]
        with pytest.raises(NoProgress, match="3 more runs are open"):
            await runs[0].result()
