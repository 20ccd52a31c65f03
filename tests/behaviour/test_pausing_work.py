"""Pausing a workflow or a queue as a whole: nothing of it begins, on any worker, until it is resumed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Status, activity, workflow
from holdfast.errors import BadInput

HOUR = timedelta(hours=1)


def transfers(begun: list[str]) -> Any:
    """Return a workflow of two steps that tell when they begin."""

    async def debit(name: str) -> None:
        begun.append(f"debit {name}")

    async def credit(name: str) -> None:
        begun.append(f"credit {name}")

    @workflow(name="transfer")
    async def transfer(ctx: Context, name: str) -> str:
        await ctx.step(debit, name)
        await ctx.step(credit, name)
        return name

    return transfer


async def test_nothing_of_a_paused_workflow_begins_until_it_is_resumed(make_engine):
    """Runs can be started, and wait; those of other workflows go on."""
    begun: list[str] = []
    transfer = transfers(begun)

    @workflow
    async def other(ctx: Context) -> str:
        return "done"

    engine = await make_engine(transfer, other)
    assert await engine.flow.pause(workflow=transfer, by="ada", reason="the bank is down")
    assert not await engine.flow.pause(workflow="transfer")
    run = await engine.start(transfer, "a", id="a")
    assert await engine.execute(other) == "done"
    await engine.settle()
    found = await run.describe()
    assert (found.status, found.owner, begun) == (Status.PENDING, None, [])
    assert found.paused == "workflow transfer"
    [paused] = await engine.flow.paused()
    assert (paused.kind, paused.name) == ("workflow", "transfer")
    assert await engine.flow.resume(workflow="transfer", by="bob")
    assert not await engine.flow.resume(workflow="transfer")
    assert await run.result() == "a"
    assert (await run.describe()).paused == ""
    assert begun == ["debit a", "credit a"]
    records = await engine.audit.records(target="workflow transfer")
    assert [(record.actor, record.action) for record in records] == [
        ("ada", "workflow.pause"),
        ("bob", "workflow.resume"),
    ]


async def test_a_step_under_way_ends_and_the_next_one_waits(make_engine):
    """What a step achieved is recorded, and is not done again."""
    begun: list[str] = []
    go = asyncio.Event()

    async def first() -> str:
        begun.append("first")
        await go.wait()
        return "one"

    async def second(said: str) -> str:
        begun.append("second")
        return f"{said} two"

    @workflow
    async def pair(ctx: Context) -> str:
        return await ctx.step(second, await ctx.step(first))

    engine = await make_engine(pair)
    run = await engine.start(pair)
    await eventually(lambda: begun == ["first"])
    await engine.flow.pause(workflow=pair)
    go.set()
    await eventually(lambda: engine.residents == 0)
    await engine.settle()
    assert begun == ["first"]
    [step, *_] = await run.steps()
    assert step.status == "completed"
    await engine.flow.resume(workflow=pair)
    assert await run.result() == "one two"
    assert begun == ["first", "second"]


async def test_a_run_of_a_paused_workflow_sleeps_on_and_keeps_its_messages(make_engine):
    """Neither a timer nor a message lets it go on."""

    @workflow
    async def sleeper(ctx: Context) -> str:
        await ctx.sleep(HOUR)
        return await ctx.receive("said", str)

    engine = await make_engine(sleeper)
    run = await engine.start(sleeper)
    await engine.settle()
    await engine.flow.pause(workflow=sleeper)
    await run.send("said", "hello")
    await engine.advance(2 * HOUR)
    assert not (await run.status()).is_terminal
    assert engine.residents == 0
    await engine.flow.resume(workflow=sleeper)
    assert await run.result() == "hello"


async def test_nothing_is_taken_from_a_paused_queue(make_engine):
    """Neither attempts that wait in it nor runs of workflows that have it."""
    begun: list[str] = []

    @activity(queue="bank")
    async def debit() -> str:
        begun.append("debit")
        return "debited"

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(debit)

    @workflow(queue="bank")
    async def report(ctx: Context) -> str:
        begun.append("report")
        return "reported"

    engine = await make_engine(caller, report, queues=["default", "bank"])
    await engine.flow.pause(queue="bank")
    runs = [await engine.start(caller), await engine.start(report)]
    await engine.settle()
    assert begun == []
    assert (await runs[0].describe()).waiting_for == "step debit (queue bank)"
    assert [(await run.describe()).paused for run in runs] == ["queue bank", "queue bank"]
    await engine.flow.resume(queue="bank")
    assert [await run.result() for run in runs] == ["debited", "reported"]


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_pause_holds_for_every_worker_and_survives_restarts(make_engine):
    """Another engine sees it within a second or so; one that is opened later begins nothing either."""
    begun: list[str] = []
    engine = await make_engine(transfers(begun))
    other = await make_engine(transfers(begun), run_workflows=False, clock=engine.jumping)
    await other.flow.pause(workflow="transfer")
    await eventually(lambda: bool(engine._queues.paused))
    await other.start("transfer", name="a", id="a")
    await engine.settle()
    await engine.stop()
    later = await make_engine(transfers(begun), clock=engine.jumping)
    await later.settle()
    assert begun == []
    await other.flow.resume(workflow="transfer")
    assert await asyncio.wait_for(later.get("a").result(), LONG) == "a"


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({}, "name a workflow= or a queue="),
        ({"workflow": "w", "queue": "q"}, "name a workflow= or a queue="),
        ({"workflow": 7}, "workflow must be a workflow or its name, not 7"),
        ({"workflow": ""}, "workflow"),
        ({"queue": "\n"}, "queue"),
        ({"queue": 7}, "queue"),
        ({"queue": "q", "by": 7}, "by"),
    ],
)
async def test_what_cannot_be_paused_is_named(make_engine, which, said):
    engine = await make_engine()
    for act in (engine.flow.pause, engine.flow.resume):
        with pytest.raises(BadInput, match=said):
            await act(**which)
    assert await engine.flow.paused() == []
