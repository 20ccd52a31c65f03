"""Logs: once, with run, step and attempt, and silent on replay."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Retry, activity, step_context, workflow


@activity(retry=Retry(max_attempts=2, initial_interval=timedelta(hours=1)))
async def flaky() -> int:
    step_context().log.warning("trying")
    if step_context().attempt == 1:
        raise OSError("not yet")
    return step_context().attempt


@workflow
async def chatty(ctx: Context) -> int:
    ctx.log.info("begun with %s", "care")
    await ctx.sleep(timedelta(days=1))
    attempt = await ctx.step(flaky)
    ctx.log.info("done")
    return attempt


async def test_a_workflow_logs_each_line_once_however_often_it_is_replayed(make_engine, caplog):
    """S1-40 S4-26 Every line carries the run; a step's lines carry step and attempt."""
    caplog.set_level(logging.INFO, "holdfast")
    engine = await make_engine(chatty)
    run = await engine.start(chatty, id="chat")
    assert await run.result() == 2
    lines = [record for record in caplog.records if record.name == "holdfast.workflow"]
    assert [record.getMessage() for record in lines] == ["[chat] begun with care", "[chat] done"]
    assert {(record.run_id, record.workflow) for record in lines} == {("chat", "chatty")}
    steps = [record for record in caplog.records if record.name == "holdfast.step"]
    assert [(record.run_id, record.step, record.attempt) for record in steps] == [
        ("chat", "flaky", 1),
        ("chat", "flaky", 2),
    ]


async def test_a_claimed_run_is_given_its_names_history_attempts_messages_and_state_at_once(make_engine):
    """S1-44 S1-43 What one engine left is all that another needs; no turn ever asks the store for more."""

    @workflow
    async def patient(ctx: Context) -> list[str]:
        heard = [await ctx.receive("first", str)]
        await ctx.step(flaky)
        heard.append(await ctx.receive("second", str))
        return heard

    engine = await make_engine(patient)
    run = await engine.start(patient, id="patient")
    await run.send("second", "b")
    await run.send("first", "a")
    await engine.settle()
    row = await engine.store.get("patient")
    (loaded,) = await engine.store.load([row.key])
    kinds = {entry.kind for entry in await run.history()}
    assert {"receive", "message", "step", "attempt failed"} <= kinds
    assert len(loaded.entries) == len(await run.history()) + 2  # and the names
    assert [message.name for message in loaded.messages] == ["second"]
    assert loaded.seen == 2
    assert await run.result() == ["a", "b"]


async def test_a_run_that_cannot_be_freed_is_reported(make_engine, mode, caplog):
    """S1-42 Its code swallows even being closed; it is evicted all the same, and goes on from its history."""

    @workflow
    async def stubborn(ctx: Context) -> str:
        while True:
            try:
                return await ctx.receive("word", str)
            except BaseException:  # the very thing under test
                continue

    engine = await make_engine(stubborn)
    run = await engine.start(stubborn, id="stubborn")
    await engine.settle()
    await run.send("word", "hello")
    assert await run.result() == "hello"
    told = [record for record in caplog.records if "cannot be freed" in record.getMessage()]
    assert bool(told) == (mode == "evict")


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_run_goes_on_though_what_listens_to_its_log_fails(make_engine):
    """G1 S1-40 A handler of the application's that raises is not the run's doing."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log server is gone")

    async def body() -> str:
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        ctx.log.warning("begun")
        return await ctx.step(body)

    broken = Broken()
    logging.getLogger("holdfast.workflow").addHandler(broken)
    try:
        engine = await make_engine(work)
        assert await asyncio.wait_for(engine.execute(work), LONG) == "done"
    finally:
        logging.getLogger("holdfast.workflow").removeHandler(broken)
