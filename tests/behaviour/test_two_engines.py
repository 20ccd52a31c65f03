"""Two engines on one file in one process: they share the work, never a run."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, RunCancelled, Status, step_context, workflow

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def ask(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow
async def quick(ctx: Context, number: int) -> int:
    return number


async def result_of(engine: Any, run_id: str) -> Any:
    """Wait in real time: the work may be done by the other engine."""
    return await asyncio.wait_for(engine.get(run_id).result(), LONG)


async def test_two_engines_share_many_runs_and_no_body_runs_twice(make_engine):
    """G3 G5 B24 S0-60 A hundred runs started here and there: each body once, each result once."""
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        await asyncio.sleep(0)
        return number

    @workflow
    async def job(ctx: Context, number: int) -> int:
        await ctx.step("one", work, number)
        await ctx.sleep(HOUR)
        return await ctx.step("two", work, number)

    first = await make_engine(job)
    second = await make_engine(job, clock=first.jumping)
    engines = [first, second]
    runs = [await engines[number % 2].start(job, number) for number in range(100)]
    results = await asyncio.gather(*(result_of(engines[number // 2 % 2], run.id) for number, run in enumerate(runs)))
    assert results == list(range(100))
    assert sorted(bodies) == sorted([*range(100), *range(100)])


async def test_runs_of_a_client_are_shared_by_both_workers(make_engine):
    """S0-60 B24 Whoever claims runs; each is run once."""
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        await asyncio.sleep(0.001)
        return number

    @workflow
    async def job(ctx: Context, number: int) -> int:
        return await ctx.step(work, number)

    client = await make_engine(job, run_workflows=False)
    for _ in range(2):
        await make_engine(job, clock=client.jumping)
    runs = await asyncio.gather(*(client.start(job, number) for number in range(60)))
    assert await asyncio.gather(*(result_of(client, run.id) for run in runs)) == list(range(60))
    assert sorted(bodies) == list(range(60))


async def test_a_message_sent_through_the_other_engine_wakes_the_run(make_engine):
    """G7 S2-12 DESIGN 3 The owner learns of the commit of the other one without being asked."""
    first = await make_engine(ask)
    second = await make_engine(ask, clock=first.jumping)
    run = await first.start(ask)
    await first.settle()
    await second.get(run.id).send("word", "hello")
    assert await result_of(second, run.id) == "hello"
    assert await result_of(first, run.id) == "hello"


async def test_a_cancel_through_the_other_engine_reaches_the_run(make_engine):
    """B7 S2-6 While the owner has it in memory, and while a body runs there."""
    started = asyncio.Event()
    stopped: list[bool] = []

    async def body() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append(step_context().signal.aborted)
            raise

    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.step(body)

    first = await make_engine(ask, busy)
    second = await make_engine(ask, busy, clock=first.jumping)
    waiting = await first.start(ask)
    running = await first.start(busy)
    await started.wait()
    for run in (waiting, running):
        assert await second.get(run.id).cancel() is True
        with pytest.raises(RunCancelled):
            await result_of(second, run.id)
    assert stopped == [True]


async def test_starts_of_one_id_on_two_engines_give_one_run(make_engine):
    """G2 B16 Raced from both sides."""
    bodies: list[int] = []

    async def work() -> int:
        bodies.append(1)
        return 1

    @workflow
    async def job(ctx: Context, number: int) -> int:
        return await ctx.step(work)

    first = await make_engine(job)
    second = await make_engine(job, clock=first.jumping)
    for number in range(10):
        await asyncio.gather(*(engine.start(job, number, id=f"r{number}") for engine in (first, second, first, second)))
    for number in range(10):
        assert await result_of(first, f"r{number}") == 1
    assert len(bodies) == 10


async def test_what_one_engine_hands_back_the_other_takes_up(make_engine):
    """S3-24 S0-37 B24 One stops with runs in flight and parked; the other one, already there, goes on with both."""
    attempts: list[int] = []
    started = asyncio.Event()

    async def body() -> str:
        attempts.append(step_context().attempt)
        if len(attempts) == 1:
            started.set()
            await asyncio.sleep(60)
        return "done"

    @workflow
    async def busy(ctx: Context) -> str:
        return await ctx.step(body)

    first = await make_engine(ask, busy)
    second = await make_engine(ask, busy, clock=first.jumping)
    running = await first.start(busy)
    parked = await first.start(ask)
    await started.wait()
    await first.stop()
    assert await result_of(second, running.id) == "done"
    assert attempts == [1, 2]
    await second.get(parked.id).send("word", "still there")
    assert await result_of(second, parked.id) == "still there"


async def test_each_engine_runs_only_what_it_knows(make_engine):
    """GUARANTEES 6.12 B20 A parent here, its child there."""

    @workflow
    async def parent(ctx: Context) -> Any:
        return await ctx.child("quick", number=3)

    left = await make_engine(parent)
    right = await make_engine(quick, clock=left.jumping)
    run = await left.start(parent, id="p")
    assert await result_of(left, run.id) == 3
    assert (await right.get("p:quick").describe()).parent == "p"


async def test_engines_on_different_files_know_nothing_of_each_other(make_engine, tmp_path):
    """DESIGN 5 No global state: the same ids and workflows in two databases."""
    first = await make_engine(ask)
    second = await make_engine(ask, database=f"sqlite:///{tmp_path / 'other.db'}")
    one = await first.start(ask, id="same")
    other = await second.start(ask, id="same")
    await one.send("word", "first")
    await other.send("word", "second")
    assert (await one.result(), await other.result()) == ("first", "second")


async def test_a_run_waits_quietly_while_both_engines_are_idle(make_engine):
    """DESIGN 3 Nobody polls the run: its epoch and time of change stay as they are."""
    first = await make_engine(ask)
    second = await make_engine(ask, clock=first.jumping)
    run = await first.start(ask)
    await first.settle()
    before = await run.describe()
    await asyncio.sleep(0.15)
    assert await second.get(run.id).describe() == before
    assert before.status is Status.SUSPENDED


async def test_many_who_wait_for_runs_elsewhere_ask_one_question(make_engine, tmp_path):
    """S2-10 No read per waiting result: their ends are looked for together, and those of runs here are simply told."""
    database = str(tmp_path / "one.db")
    worker = await make_engine(ask, quick, database=database, patience=timedelta(seconds=5 * LONG))
    asked = worker.faults.watch("standings")
    client = await make_engine(ask, database=f"sqlite:///{database}", clock=worker.jumping, run_workflows=False)
    runs = [await client.start(ask) for _ in range(300)]
    waiting = asyncio.gather(*(worker.get(run.id).result() for run in runs))
    await worker.settle()
    assert len(asked) <= 10  # none where the worker has taken all of them by now
    for run in runs:
        await run.send("word", "hello")
    assert set(await asyncio.wait_for(waiting, LONG)) == {"hello"}
    asked.clear()
    assert await asyncio.gather(*(worker.execute(quick, number) for number in range(50))) == [*range(50)]
    assert sum(len(run_ids) for (run_ids,) in asked) <= 50


async def test_a_waiter_hears_that_a_run_it_waits_for_here_was_ended_or_taken_elsewhere(make_engine, tmp_path):
    """S2-10 G6 The worker that has the run in memory is not the one that ends it."""
    database = f"sqlite:///{tmp_path / 'one.db'}"
    here = await make_engine(ask, database=database)
    run = await here.start(ask)
    waiting = asyncio.ensure_future(run.result())
    await here.settle()
    there = await make_engine(ask, database=database, clock=here.jumping, run_workflows=False)
    assert await there.get(run.id).terminate()
    with pytest.raises(RunCancelled):
        await asyncio.wait_for(waiting, LONG)


async def test_a_message_from_elsewhere_that_comes_first_is_not_overtaken(make_engine, tmp_path):
    """G7 S2-30 A run is handed a message before its commit; if it is not the next after all, nothing of it is kept."""

    @workflow
    async def collect(ctx: Context, count: int) -> list[int]:
        return [await ctx.receive("item", int) for _ in range(count)]

    database = f"sqlite:///{tmp_path / 'one.db'}"
    here = await make_engine(collect, database=database, max_resident=100)
    there = await make_engine(collect, database=database, clock=here.jumping, run_workflows=False)
    run = await here.start(collect, 60)
    overtaken = 0
    for number in range(0, 60, 2):
        while (await run.describe()).waiting_for != "message item":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await here.settle()
        # The other engine's message is committed, and this one does not know of it yet.
        sent = asyncio.gather(
            there.get(run.id).send("item", number), _after_a_moment(here.get(run.id).send("item", number + 1))
        )
        await sent
        overtaken = here._working().runner.departures.overtaken
    assert sorted(await result_of(here, run.id)) == [*range(60)]
    assert overtaken >= 3 or here.settings.max_resident == 0


async def _after_a_moment(sending: Any) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    await sending


@pytest.mark.parametrize("count", [1, 40])
async def test_a_message_to_a_run_that_waits_here_is_one_commit(make_engine, tmp_path, count):
    """G7 W5 Put and taken at once; its sender is told when both are durable."""

    @workflow
    async def collect(ctx: Context, count: int) -> list[int]:
        return [await ctx.receive("item", int) for _ in range(count)]

    engine = await make_engine(collect, database=str(tmp_path / "one.db"), max_resident=100)
    batches = engine.faults.batches
    runs = [await engine.start(collect, 3) for _ in range(count)]
    await engine.settle()
    for number in range(2):
        batches.clear()
        await asyncio.gather(*(run.send("item", number) for run in runs))
        assert [len(batch) for batch in batches] == [2 * count]
        for run in runs:
            assert [entry.kind for entry in await run.history()][-2:] == ["message", "receive"]
            assert (await run.describe()).due_at is None
