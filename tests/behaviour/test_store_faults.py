"""Runs while the store fails: commits that are refused, held up or of unknown outcome, claims that seem to fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Status, workflow
from holdfast.contract.operations import Operation
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.errors import StoreError, StoreFull
from holdfast.testing import Faults

pytestmark = pytest.mark.parametrize("mode", ["evict", "postgres"])


async def test_after_a_commit_that_failed_nothing_of_its_run_is_written(make_engine):
    """B21 G3 G7 What was decided on an end that is not in history would be another decision on replay."""
    ends = {"a": asyncio.Event(), "b": asyncio.Event()}
    begun: list[str] = []

    async def wait_for(name: str) -> str:
        begun.append(name)
        await ends[name].wait()
        return name

    async def tell(done: list[str]) -> list[str]:
        return done

    @workflow
    async def work(ctx: Context) -> list[list[str]]:
        done: list[str] = []

        async def branch(name: str) -> list[str]:
            done.append(await ctx.step(name, wait_for, name))
            return await ctx.step(f"after {name}", tell, list(done))

        return list(await asyncio.gather(branch("a"), branch("b")))

    engine = await make_engine(work)
    run = await engine.start(work, id="r")
    await eventually(lambda: len(begun) == 2)
    hold = engine.faults.hold(only=CommitTurn)
    ends["a"].set()
    await asyncio.wait_for(hold.happened(), LONG)
    ends["b"].set()
    await eventually(lambda: engine._working().committer.waiting >= 2)  # it waits behind the one that will fail
    hold.release(StoreError("this one commit fails"))
    told = await asyncio.wait_for(run.result(), LONG)
    assert sorted(map(len, told)) == [1, 2]
    assert await run.status() is Status.COMPLETED


async def test_on_a_disk_that_stays_full_nothing_goes_on_that_is_not_recorded(make_engine, monkeypatch):
    """G14 G3 S2-34 The end of a step that finds no room: no next step, no end, no start; with room all is done."""
    monkeypatch.setattr("holdfast.engine.worker.committer._RETRIES", (0.01,))
    monkeypatch.setattr("holdfast.engine.runs.departures._FIRST_PAUSE", 0.01)
    bodies: list[str] = []
    may_end = asyncio.Event()

    async def body(name: str) -> str:
        bodies.append(name)
        await may_end.wait()
        return name

    @workflow
    async def work(ctx: Context) -> list[str]:
        return [await ctx.step("one", body, "one"), await ctx.step("two", body, "two")]

    engine = await make_engine(work)
    run = await engine.start(work, id="r")
    await eventually(lambda: bodies)
    full = engine.faults.fill()
    may_end.set()
    with pytest.raises(StoreFull):
        await engine.start(work, id="other")
    await full.happened(8)  # beyond the patience of one commit, which ends after two
    assert bodies == ["one"]
    full.heal()
    assert await engine.runs() != []
    assert await asyncio.wait_for(run.result(), LONG) == ["one", "two"]
    assert [seen.id for seen in await engine.runs()] == ["r"]


@pytest.mark.parametrize("where", ["start", "claim", "load"])
async def test_a_run_that_the_worker_owns_without_knowing_it_goes_on(make_engine, make_store, monkeypatch, where):
    """G1 G14 B21 A start or a claim that happened although it seemed to fail: its own worker gives the run back."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.25)
    bodies: list[str] = []

    async def body() -> str:
        bodies.append("body")
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        if where != "start":
            await ctx.sleep(timedelta(hours=1))
        return await ctx.step(body)

    if where != "start":
        engine = await make_engine(work)
        await engine.start(work, id="r")
        await engine.stop()
    store = make_store()
    faults = Faults(store)
    if where == "load":
        faults.fail(at="load")
    else:
        faults.lose_answer(at={"start": "apply"}.get(where, where), only=StartRun if where == "start" else None)
    engine = await make_engine(work, store=store)
    if where == "start":
        with pytest.raises(StoreError, match="outcome is unknown"):
            await engine.start(work, id="r")
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "done"
    assert faults.injected == 1
    assert bodies == ["body"]


async def test_a_run_on_its_way_to_the_worker_is_not_given_back(make_engine, make_store):
    """G5 Claimed and still being read is not lost: given back at once it would be run twice."""
    bodies: list[str] = []

    async def body() -> str:
        bodies.append("body")
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.receive("go")
        return await ctx.step(body)

    engine = await make_engine(work)
    await engine.start(work, id="r")
    await engine.stop()
    client = await make_engine(work, run_workflows=False)
    await client.get("r").send("go")
    store = make_store()
    loading = Faults(store).hold(at="load", moment="after")
    engine = await make_engine(work, store=store)
    await asyncio.wait_for(loading.happened(), LONG)
    worker = engine._working()
    worker.in_doubt()
    await worker.runs.check(worker.id)
    await asyncio.sleep(0.05)
    before = await engine.store.get("r")
    loading.release()
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "done"
    after = await engine.store.get("r")
    assert before is not None
    assert after is not None
    assert (before.owner, before.epoch) == (engine.worker_id, after.epoch)
    assert bodies == ["body"]


async def test_a_run_that_the_store_kept_from_its_progress_is_no_poison(make_engine, monkeypatch):
    """G14 B21 Claimed five times and five times without a commit: the store is to blame, the run goes on."""
    monkeypatch.setattr("holdfast.engine.runs.departures._FIRST_PAUSE", 0.01)

    async def body() -> str:
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(timedelta(hours=1))
        return await ctx.step(body)

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    fault = engine.faults.fail(5, only=_adds_to_a_history)
    assert await asyncio.wait_for(run.result(), LONG) == "done"
    assert fault.injected == 5


def _adds_to_a_history(operations: Sequence[Operation]) -> bool:
    return any(isinstance(each, CommitTurn) and each.entries for each in operations)


async def test_a_start_of_unknown_outcome_that_parked_at_once_goes_on(make_engine, monkeypatch):
    """G1 G2 G14 The second start is acknowledged as the run that the first one left, so that run must end."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.25)

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(timedelta(hours=1))
        return "done"

    engine = await make_engine(work)
    lost = engine.faults.lose_answer(only=StartRun)
    with pytest.raises(StoreError):
        await engine.start(work, id="r")
    run = await engine.start(work, id="r")
    assert await asyncio.wait_for(run.result(), LONG) == "done"
    assert lost.injected == 1


async def test_a_doubt_that_comes_while_the_store_is_asked_is_not_forgotten(make_engine, monkeypatch):
    """G1 G2 G14 What the store answers then may be older than the start whose outcome is unknown."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.25)

    async def body() -> str:
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(body)

    engine = await make_engine(work)
    asked = engine.faults.hold(at="held", moment="after", only=lambda answer: not answer)
    engine._working().in_doubt()
    await asyncio.wait_for(asked.happened(), LONG)
    lost = engine.faults.lose_answer(only=StartRun)
    with pytest.raises(StoreError):
        await engine.start(work, id="r")
    asked.release()
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "done"
    assert (asked.injected, lost.injected) == (1, 1)


async def test_a_look_for_ended_runs_that_fails_is_made_again(make_engine, monkeypatch):
    """G14 Another process ended the run, whose body here must be stopped, and nothing else is ever committed."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.25)
    stopped = asyncio.Event()

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(body)

    engine = await make_engine(work, lease=timedelta(hours=1))  # a renewal would let it look again
    run = await engine.start(work)
    client = await make_engine(work, run_workflows=False)
    fault = engine.faults.fail(at="held")
    await client.get(run.id).terminate()
    await asyncio.wait_for(stopped.wait(), LONG)
    assert fault.injected == 1
