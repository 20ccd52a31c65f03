"""Clients: engines that start, ask, act and look, and leave the running to others on the same database."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import (
    Change,
    Context,
    Engine,
    NoSuchRun,
    RunBlocked,
    RunConflict,
    RunFailed,
    RunTerminal,
    Status,
    workflow,
)
from holdfast.errors import BadInput, UnknownWorkflow

HOUR = timedelta(hours=1)

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def add(ctx: Context, left: int, right: int = 2) -> int:
    return left + right


@workflow
async def ask(ctx: Context) -> Any:
    ctx.on_query("mood", lambda: "waiting")
    request = await ctx.receive_request("question")
    ctx.reply(request, f"you said {request.payload}")
    return await ctx.receive("word")


async def soon(waiting: Any) -> Any:
    """Wait in real time for what another engine does."""
    return await asyncio.wait_for(waiting, LONG)


async def test_a_client_starts_talks_and_acts_and_a_worker_does_the_work(make_engine):
    """S3-11 S2-3 S0-60 Everything but running: results, requests, messages, pausing, cancelling."""
    client = await make_engine(add, ask, run_workflows=False)
    run = await client.start(ask, id="r", attributes={"from": "client"}, unique_key="k")
    await client.settle()
    assert await run.status() is Status.PENDING
    worker = await make_engine(add, ask, clock=client.jumping)
    assert await soon(client.execute(add, 40)) == 42
    assert await soon(run.ask("question", "hi")) == "you said hi"
    assert await run.query("mood") == "waiting"
    assert await run.pause(by="kim")
    await worker.settle()
    assert await run.status() is Status.PAUSED
    assert await run.resume(by="kim")
    await run.send("word", "done")
    assert await soon(run.result()) == "done"
    assert [found.id for found in await client.runs(attributes={"from": "client"})] == ["r"]
    assert [record.action for record in await worker.audit.records()] == ["pause", "resume"]
    with pytest.raises(RunTerminal):
        await run.send("word")
    with pytest.raises(NoSuchRun):
        await client.get("nobody").send("word")


async def test_a_client_runs_nothing_whatever_it_is_asked(make_engine):
    """S0-60 Not its own starts, not what is due, not what a dead worker left, not a schedule's tick."""
    client = await make_engine(add, run_workflows=False)
    await client.start(add, 1)
    await client.start(add, 1, delay=HOUR)
    await client.schedules.put("s", add, 1, every=HOUR)
    await client.recover()
    client.jumping.advance(3 * HOUR)
    await asyncio.sleep(0.05)  # ten times as long as a worker would need
    assert {run.status for run in await client.runs()} == {Status.PENDING}
    assert len(await client.runs()) == 2


async def test_time_passes_for_a_client_too(make_engine):
    """S0-60 What is due is for others to do."""
    client = await make_engine(add, run_workflows=False)
    run = await client.start(add, 1)
    await client.advance(HOUR)
    assert await run.status() is Status.PENDING


async def test_a_client_settles_after_it_acted(make_engine):
    """S0-60 Nothing is under way in it: others are to act on what it sent."""
    client = await make_engine(ask, run_workflows=False)
    run = await client.start(ask)
    await run.send("word", "early")
    await client.recover()
    await asyncio.wait_for(client.settle(), LONG)
    assert await run.status() is Status.PENDING


async def test_a_client_without_the_code_starts_by_name_with_arguments_by_keyword(make_engine):
    """S2-3 S3-11 B16 The worker that has the code checks them; with an id it is the run that the code would start."""
    client = await make_engine(run_workflows=False)
    run = await client.start("add", left=1, right=5, id="r")
    assert (await client.start("add", right=5, left=1, id="r")).id == "r"
    with pytest.raises(RunConflict):
        await client.start("add", left=1, right=6, id="r")
    with pytest.raises(BadInput, match="keyword"):
        await client.start("add", 1)
    worker = await make_engine(add, clock=client.jumping)
    assert await soon(run.result()) == 6
    assert (await worker.start(add, 1, 5, id="r")).id == "r"


async def test_a_client_without_the_code_starts_the_latest_version(make_engine):
    """S2-3 B20 It cannot know a version; the worker takes the one that new runs get, and nobody speaks of skew."""

    @workflow(name="add", version="2")
    async def newer(ctx: Context, left: int, right: int = 2) -> str:
        return f"version 2: {left + right}"

    told: list[Change] = []
    client = await make_engine(run_workflows=False)
    run = await client.start("add", left=1, right=2)
    worker = await make_engine(add, newer, clock=client.jumping, on_change=told.append)
    assert await soon(run.result()) == "version 2: 3"
    await worker.settle()
    assert [change.type for change in told] == ["run.started", "run.completed"]


async def test_arguments_from_a_client_without_the_code_that_do_not_fit_block_the_run(make_engine):
    """GUARANTEES 6.14 G12 Nothing is lost: the run says what is wrong and waits for somebody."""
    client = await make_engine(run_workflows=False)
    run = await client.start("add", left="one")
    worker = await make_engine(add, clock=client.jumping)
    await worker.settle()
    with pytest.raises(RunBlocked, match="left"):
        await soon(run.result())
    assert await run.terminate(by="kim", reason="typo")


async def test_a_run_that_nobody_knows_waits_and_a_misspelt_one_is_told_where_the_code_is(make_engine):
    """GUARANTEES 6.12 A client cannot know; an engine that has workflows names the closest."""
    client = await make_engine(run_workflows=False)
    run = await client.start("ordr", left=1)
    worker = await make_engine(add, clock=client.jumping)
    await worker.settle()
    assert await run.status() is Status.PENDING
    with pytest.raises(UnknownWorkflow, match="did you mean 'add'"):
        await worker.start("adds", 1)
    assert await run.cancel()
    assert await run.status() is Status.CANCELLED


async def test_a_client_sees_how_a_run_of_another_engine_fails(make_engine):
    """S3-11 executeWorkflowSync raises, with the cause as it was."""

    @workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("no")

    client = await make_engine(broken, run_workflows=False)
    await make_engine(broken, clock=client.jumping)
    with pytest.raises(RunFailed, match="no") as failed:
        await soon(client.execute(broken))
    assert isinstance(failed.value.__cause__, ValueError)


async def test_a_message_to_a_run_that_is_over_is_refused_or_kept_as_a_dead_letter(make_engine):
    """GUARANTEES 6.17 G12 NoSuchRun, RunTerminal with its status, or, when that is asked for, stored with a reason."""
    client = await make_engine(add, run_workflows=False)
    await make_engine(add, clock=client.jumping)
    run = await client.start(add, 1, id="r")
    await soon(run.result())
    with pytest.raises(RunTerminal, match="completed") as refused:
        await client.get("r").send("word", "late")
    assert refused.value.status is Status.COMPLETED
    for dead_letter in (False, True):
        with pytest.raises(NoSuchRun, match="nobody"):
            await client.get("nobody").send("word", "lost", dead_letter=dead_letter)
    assert await client.dead_letters.list() == []
    await client.get("r").send("word", "late", dead_letter=True)
    (letter,) = await client.dead_letters.list()
    assert (letter.kind, letter.run_id, letter.name, letter.payload) == ("event", "r", "word", "late")
    assert letter.target_status == "completed"


async def test_fifty_starts_of_one_id_from_clients_and_workers_give_one_run(make_engine):
    """G2 B16 With equal input; one body."""
    bodies: list[int] = []

    async def body() -> int:
        bodies.append(1)
        return 1

    @workflow
    async def once(ctx: Context, number: int) -> int:
        return await ctx.step(body)

    client = await make_engine(once, run_workflows=False)
    worker = await make_engine(once, clock=client.jumping)
    runs = await asyncio.gather(*((client, worker)[index % 2].start(once, 7, id="one") for index in range(50)))
    assert {run.id for run in runs} == {"one"}
    assert await soon(runs[0].result()) == await soon(runs[1].result()) == 1
    assert bodies == [1]


async def test_a_client_leaves_no_trace_when_it_goes(make_engine, tmp_path):
    """S0-60 It joins nothing, holds nothing and nobody waits for it."""
    worker = await make_engine(add)
    client = Engine(tmp_path / "test.db", workflows=[add], run_workflows=False, durability="process")
    async with client:
        run = await client.start(add, 1, id="r")
    assert await soon(worker.get(run.id).result()) == 3
    with pytest.raises(Exception, match="not open"):
        await client.start(add, 1)
