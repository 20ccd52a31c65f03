"""Starting runs: idempotent by id, durable before it returns, from any engine on the database."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, HoldfastError, RunConflict, RunFailed, Status, workflow
from holdfast.errors import BadInput, UnknownWorkflow
from holdfast.stores import open_store

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@dataclass
class Order:
    id: int
    items: list[str]


@workflow
async def fulfil(ctx: Context, order: Order, express: bool = False) -> str:
    await ctx.sleep(HOUR)
    return f"{order.id} {len(order.items)} {express}"


@workflow
async def other(ctx: Context, order: Order) -> None:
    await ctx.sleep(HOUR)


async def note(bodies: list[str]) -> None:
    bodies.append("ran")


async def test_a_start_returns_at_once_with_a_handle(make_engine):
    """S3-11 S2-3 The run goes on by itself; the id is made up when none is given."""
    engine = await make_engine(fulfil)
    first = await engine.start(fulfil, Order(1, []))
    second = await engine.start(fulfil, Order(1, []))
    assert first.id != second.id
    assert await first.status() in (Status.RUNNING, Status.SUSPENDED)
    assert await first.result() == "1 0 False"


async def test_execute_waits_for_the_result_or_raises(make_engine):
    """S3-11 executeWorkflowSync: result or error."""

    @workflow
    async def broken(ctx: Context) -> None:
        raise ValueError("no")

    engine = await make_engine(fulfil, broken)
    assert await engine.execute(fulfil, Order(2, ["a"]), express=True, id="x") == "2 1 True"
    with pytest.raises(RunFailed, match="no"):
        await engine.execute(broken)


async def test_a_workflow_may_be_started_by_its_name(make_engine):
    """S2-3 With the arguments checked against the registered signature."""
    engine = await make_engine(fulfil)
    run = await engine.start("fulfil", Order(3, []), id="named")
    assert await run.result() == "3 0 False"
    with pytest.raises(BadInput):
        await engine.start("fulfil")


async def test_one_id_and_equal_input_give_one_run(make_engine):
    """B16 G2 While it runs and after it has ended, from handles of their own."""
    bodies: list[str] = []

    async def work() -> None:
        bodies.append("ran")

    @workflow
    async def once(ctx: Context, order: Order) -> str:
        await ctx.step(work)
        await ctx.sleep(HOUR)
        return "done"

    engine = await make_engine(once)
    first = await engine.start(once, Order(1, ["a"]), id="one")
    again = await engine.start(once, Order(1, ["a"]), id="one")
    by_keyword = await engine.start(once, order=Order(1, ["a"]), id="one")
    assert first.id == again.id == by_keyword.id == "one"
    assert await again.result() == "done"
    late = await engine.start(once, Order(1, ["a"]), id="one")
    assert await late.result() == "done"
    assert bodies == ["ran"]
    assert not engine.offers("lists") or len(await engine.runs()) == 1


async def test_one_id_with_other_input_is_a_conflict(make_engine):
    """B16 G2 RunConflict names the id; the run there is goes on untouched."""
    engine = await make_engine(fulfil)
    run = await engine.start(fulfil, Order(1, []), id="one")
    for order, express in ((Order(2, []), False), (Order(1, ["x"]), False), (Order(1, []), True)):
        with pytest.raises(RunConflict, match="one") as caught:
            await engine.start(fulfil, order, express, id="one")
        assert caught.value.run_id == "one"
    assert await run.result() == "1 0 False"
    with pytest.raises(RunConflict):
        await engine.start(fulfil, Order(2, []), id="one")


async def test_one_id_for_two_workflows_is_a_conflict(make_engine):
    """B16 G2 The message names the workflow that has the id."""
    engine = await make_engine(fulfil, other)
    await engine.start(fulfil, Order(1, []), id="one")
    with pytest.raises(RunConflict, match="fulfil"):
        await engine.start(other, Order(1, []), id="one")


async def test_many_starts_of_one_id_at_once_give_one_run(make_engine):
    """G2 B16 Fifty racing starts: one run, one execution, fifty handles."""
    bodies: list[str] = []

    async def work() -> None:
        bodies.append("ran")

    @workflow
    async def once(ctx: Context, number: int) -> str:
        await ctx.step(work)
        return "done"

    engine = await make_engine(once)
    handles = await asyncio.gather(*(engine.start(once, 7, id="one") for _ in range(50)))
    assert {handle.id for handle in handles} == {"one"}
    assert await handles[-1].result() == "done"
    assert bodies == ["ran"]


async def test_racing_starts_with_different_input_have_one_winner(make_engine):
    """G2 B16 One run; everybody else is told."""
    engine = await make_engine(fulfil)
    ends = await asyncio.gather(
        *(engine.start(fulfil, Order(number, []), id="one") for number in range(20)), return_exceptions=True
    )
    assert sum(isinstance(end, RunConflict) for end in ends) == 19
    assert not engine.offers("lists") or len(await engine.runs()) == 1


async def test_two_hundred_starts_at_once_all_run(make_engine):
    """G1 S2-2 Each reaches its own end with its own input."""
    engine = await make_engine(fulfil)
    runs = await asyncio.gather(*(engine.start(fulfil, Order(number, []), id=f"r{number}") for number in range(200)))
    assert [await run.result() for run in runs] == [f"{number} 0 False" for number in range(200)]


@restarts
async def test_a_start_has_returned_only_when_it_is_durable(make_engine, tmp_path):
    """G1 S0-42 Another reader of the file sees the run, and its first step counted, the moment start() returns."""
    waiting = asyncio.Event()

    async def body() -> None:
        await waiting.wait()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(body)

    engine = await make_engine(work)
    reader = open_store(f"sqlite:///{tmp_path / 'test.db'}")
    await reader.open()
    try:
        for number in range(10):
            run = await engine.start(work)
            row = await reader.get(run.id)
            assert row is not None, number
            assert [entry.kind for entry in await reader.history(row.key)][-1] == 1
    finally:
        waiting.set()
        await reader.close()


@restarts
async def test_a_client_starts_runs_that_another_engine_runs(make_engine):
    """S0-60 S3-11 G1 run_workflows=False stores and waits; the engine beside it does the work."""
    client = await make_engine(fulfil, run_workflows=False)
    early = await client.start(fulfil, Order(1, []))
    await client.settle()
    assert await early.status() is Status.PENDING
    worker = await make_engine(fulfil, clock=client.jumping)
    late = await client.start(fulfil, Order(2, []))
    assert await worker.get(early.id).result() == "1 0 False"
    assert await worker.get(late.id).result() == "2 0 False"
    assert await asyncio.wait_for(early.result(), LONG) == "1 0 False"
    assert await asyncio.wait_for(late.result(), LONG) == "2 0 False"


@restarts
async def test_a_client_waits_for_a_result_that_another_engine_brings(make_engine):
    """S0-60 result() on the client wakes by itself when the worker commits the end."""

    @workflow
    async def ask(ctx: Context) -> str:
        return await ctx.receive("word", str)

    client = await make_engine(ask, run_workflows=False)
    worker = await make_engine(ask, clock=client.jumping)
    run = await client.start(ask)
    waiting = asyncio.ensure_future(run.result())
    await client.get(run.id).send("word", "hello")
    assert await asyncio.wait_for(waiting, LONG) == "hello"
    await worker.settle()


async def test_what_a_closed_engine_is_asked_gets_a_clear_error(tmp_path):
    """S2-8 Before it is opened and after it was stopped; nothing hangs."""
    engine = Engine(f"sqlite:///{tmp_path / 'closed.db'}", workflows=[fulfil])
    for _ in range(2):
        with pytest.raises(HoldfastError, match="not open"):
            await engine.start(fulfil, Order(1, []))
        with pytest.raises(HoldfastError, match="not open"):
            await engine.get("r").send("word")
        with pytest.raises(HoldfastError, match="not open"):
            await engine.get("r").cancel()
        with pytest.raises(HoldfastError):
            await engine.get("r").result()
        with pytest.raises(HoldfastError):
            await engine.runs()
        async with engine:
            await engine.start(fulfil, Order(1, []), id="r")
        await engine.stop()


async def test_an_engine_can_be_opened_again(tmp_path):
    """S2-8 S3-24 The same object, after a stop, goes on with what is there."""

    @workflow
    async def ask(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = Engine(f"sqlite:///{tmp_path / 'again.db'}", workflows=[ask])
    async with engine:
        run = await engine.start(ask)
    async with engine:
        await run.send("word", "back")
        assert await run.result(timedelta(seconds=LONG)) == "back"


async def test_an_unknown_workflow_is_refused_with_the_nearest_name(make_engine):
    """GUARANTEES 6.12 UnknownWorkflow, by name and by object; nothing is stored."""
    engine = await make_engine(fulfil)
    with pytest.raises(UnknownWorkflow, match=r"'fulfill'.*did you mean 'fulfil'\?"):
        await engine.start("fulfill", Order(1, []))
    with pytest.raises(UnknownWorkflow, match="other"):
        await engine.start(other, Order(1, []))
    with pytest.raises(UnknownWorkflow, match="workflows="):
        await engine.start("zzz")
    assert await engine.runs() == []


async def test_only_a_workflow_can_be_started(make_engine):
    """GUARANTEES 6.13 A plain function, a call of it and None are refused with advice."""

    async def plain(ctx: Context) -> None: ...

    engine = await make_engine(fulfil)
    for wrong in (plain, None, 3):
        with pytest.raises(BadInput, match="workflow"):
            await engine.start(wrong)


async def test_another_definition_under_a_registered_name_is_not_run(make_engine):
    """B20 The registered code is what would continue the run, so it is what begins it, or the start is refused."""
    ran: list[str] = []

    @workflow(name="task")
    async def registered(ctx: Context) -> str:
        ran.append("registered")
        return "registered"

    @workflow(name="task")
    async def stranger(ctx: Context) -> str:
        ran.append("stranger")
        return "stranger"

    engine = await make_engine(registered)
    try:
        await engine.execute(stranger)
    except BadInput:
        pass
    assert "stranger" not in ran


# Listing.


async def test_runs_are_listed_newest_first_and_by_filter(make_engine):
    """S2-4 S3-14 By workflow, status and parent, with a limit."""

    @workflow
    async def quick(ctx: Context) -> None:
        return None

    engine = await make_engine(fulfil, quick)
    for number in range(3):
        await engine.start(fulfil, Order(number, []), id=f"f{number}")
        await engine.start(quick, id=f"q{number}")
    await engine.settle()

    async def ids(**which: Any) -> list[str]:
        return [run.id for run in await engine.runs(**which)]

    assert await ids() == ["q2", "f2", "q1", "f1", "q0", "f0"]
    assert await ids(limit=2) == ["q2", "f2"]
    assert await ids(workflow="quick") == ["q2", "q1", "q0"]
    assert await ids(status=Status.SUSPENDED) == ["f2", "f1", "f0"]
    assert await ids(status="completed", workflow="fulfil") == []
    assert await ids(workflow="nothing") == []
    assert await ids(parent="f0") == []


async def test_a_filter_that_makes_no_sense_is_refused(make_engine):
    """GUARANTEES 6 BadInput that names what is allowed, not a bare ValueError or everything there is."""
    engine = await make_engine(fulfil)
    with pytest.raises(BadInput, match="suspended"):
        await engine.runs(status="asleep")
    with pytest.raises(BadInput, match="limit"):
        await engine.runs(limit=-1)


async def test_a_default_given_or_left_out_is_the_same_input(make_engine):
    """B16 G2 Equal input is equal for the workflow, however the call was written."""
    engine = await make_engine(fulfil)
    first = await engine.start(fulfil, Order(1, []), id="one")
    second = await engine.start(fulfil, Order(1, []), False, id="one")
    third = await engine.start(fulfil, {"id": 1, "items": []}, express=False, id="one")
    assert first.id == second.id == third.id
