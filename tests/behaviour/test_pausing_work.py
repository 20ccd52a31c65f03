"""Pausing a workflow or a queue as a whole: nothing of it begins, on any worker, until it is resumed."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Status, activity, workflow
from holdfast.errors import BadInput
from holdfast.limits import Limit

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


@pytest.mark.parametrize("mode", ["evict", "postgres"])
@pytest.mark.parametrize("limit", [None, "service"])
async def test_attempts_of_a_paused_workflow_are_left_in_their_queue(make_engine, limit: str | None):
    """Though their worker does not know the workflow, and takes attempts of other workflows from that queue."""
    begun: list[str] = []

    @activity(queue="gpu", limit=limit)
    async def train(name: str) -> str:
        begun.append(name)
        return name

    @workflow
    async def bank(ctx: Context) -> str:
        return await ctx.step(train, "bank")

    @workflow
    async def shop(ctx: Context) -> str:
        return await ctx.step(train, "shop")

    office = await make_engine(bank, shop, limits=[Limit(name="service", at_once=1)])
    paused, other = await office.start(bank), await office.start(shop)
    await office.settle()
    assert (await paused.describe()).waiting_for == "step train (queue gpu)"
    await office.flow.pause(workflow=bank)
    worker = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    assert await asyncio.wait_for(other.result(), LONG) == "shop"
    await worker.settle()
    assert begun == ["shop"]
    await office.flow.resume(workflow=bank)
    assert await asyncio.wait_for(paused.result(), LONG) == "bank"


@pytest.mark.parametrize("how", ["workflow", "queue"])
async def test_steps_of_a_paused_workflow_keep_no_other_from_its_turn(make_engine, how: str):
    """S4-19 They are first in line for a limit; what is free goes to the next at once, and they ask again."""
    go = asyncio.Event()
    begun: list[str] = []

    @activity(limit="service")
    async def call(name: str) -> str:
        begun.append(name)
        await go.wait()
        return name

    @workflow(queue="bank")
    async def bank(ctx: Context, name: str) -> str:
        return await ctx.step(call, name)

    @workflow
    async def shop(ctx: Context, name: str) -> str:
        return await ctx.step(call, name)

    engine = await make_engine(bank, shop, limits=[Limit(name="service", at_once=1)], queues=["default", "bank"])
    first = await engine.start(shop, "first")
    await eventually(lambda: begun == ["first"])
    paused = [await engine.start(bank, f"bank {number}") for number in range(3)]
    await eventually(lambda: _waits(engine, 3))
    which = {"workflow": bank} if how == "workflow" else {"queue": "bank"}
    await engine.flow.pause(**which)
    await eventually(lambda: bool(engine._queues.paused))
    last = await engine.start(shop, "last")
    await eventually(lambda: _waits(engine, 4))
    before = engine.clock.now()
    go.set()
    assert await asyncio.wait_for(first.result(), LONG) == "first"
    assert await asyncio.wait_for(last.result(), LONG) == "last"
    assert (begun, engine.clock.now() - before < 10_000_000) == (["first", "last"], True)
    await engine.flow.resume(**which)
    assert [await asyncio.wait_for(run.result(), LONG) for run in paused] == [f"bank {n}" for n in range(3)]


async def _waits(engine: Any, count: int) -> bool:
    [row] = await engine.store.limits()
    return row.waiting == count


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
