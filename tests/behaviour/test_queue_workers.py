"""Workers that take attempts from queues and stop, die or hang; owners of runs that do; stores that fail; new code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunFailed, activity, step_context, workflow
from holdfast.contract.operations import Fenced, FinishTask
from holdfast.contract.rows import Task
from holdfast.errors import StepCrashed
from holdfast.replay import entry as entries
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)
BOTH = ("default", "gpu")

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


class Bodies(list[int]):
    """The attempts whose bodies ran, and a gate they wait at."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()


def training(bodies: Bodies, **options: Any) -> Any:
    @activity(name="train", queue="gpu", **options)
    async def train() -> str:
        bodies.append(step_context().attempt)
        await bodies.gate.wait()
        return f"trained {step_context().attempt}"

    return train


def calling(called: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(called)

    return caller


async def result_of(engine: Any, run: Any) -> Any:
    return await asyncio.wait_for(engine.get(run.id).result(), LONG)


async def history(engine: Any, run: Any) -> list[Any]:
    row = await engine.store.get(run.id)
    rows = await engine.store.history(row.key)
    return [entries.decode_entry(each.kind, each.data) for each in rows]


async def losses(engine: Any, run: Any) -> list[tuple[int, str]]:
    return [(each.attempt, each.why) for each in await history(engine, run) if isinstance(each, entries.AttemptLost)]


@asynccontextmanager
async def ghost(tmp_path: Path, lease: timedelta = HOUR) -> AsyncIterator[Callable[[], Any]]:
    """A worker of another store that takes one attempt when asked; it dies when the block is left."""
    store = SQLiteStore(tmp_path / "test.db")
    await store.open()
    name = f"ghost-{id(store)}"
    await store.join(name, lease)

    async def take() -> tuple[SQLiteStore, str, Task]:
        found = await eventually(lambda: store.claim_tasks(name, 1 << 60, 1, ["gpu"], ["train"]))
        return store, name, found[0]

    try:
        yield take
    finally:
        await store.close()


# Workers that stop.


async def test_a_worker_that_stops_lets_a_body_finish_within_the_grace(make_engine):
    """S3-24 Its end is recorded before the worker leaves."""
    bodies = Bodies()
    train = training(bodies)
    office = await make_engine(calling(train))
    worker = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    run = await office.start("caller")
    await eventually(lambda: bodies)
    stopping = asyncio.ensure_future(worker.stop(grace=timedelta(seconds=10)))
    await asyncio.sleep(0.02)
    bodies.gate.set()
    await stopping
    assert await result_of(office, run) == "trained 1"


async def test_what_a_worker_cannot_finish_before_it_stops_is_handed_back(make_engine):
    """S3-24 G4 The next attempt has the next number and is no failure; another worker makes it."""
    bodies = Bodies()
    train = training(bodies, retry=Retry(max_attempts=1))
    office = await make_engine(calling(train))
    first = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    run = await office.start("caller")
    await eventually(lambda: bodies)
    await first.stop()
    bodies.gate.set()
    await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    assert await result_of(office, run) == "trained 2"
    assert bodies == [1, 2]
    assert await losses(office, run) == [(1, "handed back")]


async def test_a_worker_given_a_short_time_takes_nothing_it_could_not_finish(make_engine, tmp_path):
    """S0-44 engine.run(lifespan=...) leaves a step of an hour to others."""
    bodies = Bodies()
    train = training(bodies, timeout=HOUR)
    office = await make_engine(calling(train))
    run = await office.start("caller")
    await office.settle()
    database = f"sqlite:///{tmp_path / 'test.db'}"
    worker = TestEngine(database, activities=[train], queues=["gpu"], clock=office.jumping)
    await worker.run(timedelta(seconds=1))
    assert bodies == []
    assert (await run.describe()).waiting_for == "step train (queue gpu)"


# Workers that die or hang.


async def test_an_attempt_whose_worker_died_is_made_again(make_engine, tmp_path):
    """B1 B24 G4 S2-28 Counted as a crash, at once, with the next number."""
    bodies = Bodies()
    bodies.gate.set()
    train = training(bodies)
    office = await make_engine(calling(train))
    run = await office.start("caller")
    async with ghost(tmp_path) as take:
        _, _, task = await take()
        assert task.attempt == 1
    await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    assert await result_of(office, run) == "trained 2"
    assert await losses(office, run) == [(1, "crash")]
    assert bodies == [2]


async def test_a_step_that_takes_its_workers_with_it_is_failed(make_engine, tmp_path):
    """B1 G4 G12 Three dead workers; the owner of the run is none of them."""
    train = training(Bodies())
    office = await make_engine(calling(train))
    run = await office.start("caller")
    numbers: list[int] = []
    for _ in range(3):
        async with ghost(tmp_path) as take:
            numbers.append((await take())[2].attempt)
    with pytest.raises(RunFailed) as caught:
        await result_of(office, run)
    assert isinstance(caught.value.__cause__, StepCrashed)
    assert numbers == [1, 2, 3]
    assert await losses(office, run) == [(1, "crash"), (2, "crash"), (3, "crash")]


async def test_a_suspect_runs_alone_on_the_worker_that_takes_it(make_engine, tmp_path):
    """B1 Of three steps lost twice, the worker runs one at a time, and none of those that wait is blamed."""
    held: list[int] = []

    @activity(name="train", queue="gpu")
    async def train(number: int) -> int:
        await asyncio.sleep(0.1)
        held.append(len(await worker.store.held_tasks(worker.worker_id)))
        return number

    @workflow
    async def caller(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(train, number) for number in range(3))))

    office = await make_engine(caller)
    run = await office.start(caller)
    for _ in range(2):
        async with ghost(tmp_path) as take:
            for _ in range(3):
                await take()
    worker: Any = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    assert await result_of(office, run) == [0, 1, 2]
    assert held == [1, 1, 1]
    assert [why for _, why in await losses(office, run)].count("bystander") <= 3


async def test_what_a_worker_says_after_its_lease_lapsed_is_refused(make_engine, tmp_path):
    """B24 G5 The attempt is a lapse, made again by another; the late result changes nothing."""
    bodies = Bodies()
    bodies.gate.set()
    train = training(bodies)
    office = await make_engine(calling(train))
    run = await office.start("caller")
    async with ghost(tmp_path, timedelta(milliseconds=30)) as take:
        store, name, task = await take()
        await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
        assert await result_of(office, run) == "trained 2"
        late = FinishTask(
            run=task.run, location=task.location, attempt=1, worker=name, payload='{"result":"late"}', at=1
        )
        assert [type(outcome) for outcome in await store.apply([late])] == [Fenced]
    assert await losses(office, run) == [(1, "lapse")]


async def test_a_worker_that_was_declared_dead_stops_its_bodies(make_engine):
    """B24 G5 It goes on under a new name, and takes the next attempt itself."""
    bodies = Bodies()
    train = training(bodies)
    office = await make_engine(calling(train))
    worker = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping, lease=timedelta(seconds=3))
    run = await office.start("caller")
    await eventually(lambda: bodies)
    await worker.store.leave(worker.worker_id)  # as if others had declared it dead
    await eventually(lambda: worker.lapses and len(bodies) == 2)
    assert worker.bodies == 1
    bodies.gate.set()
    assert await result_of(office, run) == "trained 2"


# Owners of runs that stop or die.


async def test_a_body_elsewhere_outlives_the_owner_of_its_run(make_engine):
    """S2-28 G3 B24 The run is continued by another engine, and the body is not run twice."""
    bodies = Bodies()
    train = training(bodies)
    caller = calling(train)
    office = await make_engine(caller)
    await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    run = await office.start(caller)
    await eventually(lambda: bodies)
    await office.stop()
    bodies.gate.set()
    other = await make_engine(caller, clock=office.jumping)
    assert await result_of(other, run) == "trained 1"
    assert bodies == [1]
    assert await losses(other, run) == []


async def test_an_end_that_came_while_nobody_had_the_run_is_found_by_its_next_owner(make_engine):
    """G3 S2-28 One that waits for two steps goes on when both are there."""
    bodies = Bodies()
    train = training(bodies)

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step("a", train), ctx.step("b", train), ctx.receive("word", str)))

    office = await make_engine(caller)
    worker = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    run = await office.start(caller)
    await eventually(lambda: len(bodies) == 2)
    await office.stop()
    bodies.gate.set()
    await eventually(lambda: worker.idle)
    await worker.get(run.id).send("word", "hello")
    row = await worker.store.get(run.id)
    assert row is not None
    assert sorted(each.kind for each in (await worker.store.inboxes({row.key: 0}))[row.key]) == [
        "message",
        "task_ended",
        "task_ended",
    ]
    other = await make_engine(caller, clock=office.jumping)
    assert await result_of(other, run) == ["trained 1", "trained 1", "hello"]
    assert (await worker.store.inboxes({row.key: 0}))[row.key] == []


# Stores that fail.


@pytest.mark.parametrize("after", [False, True], ids=["not written", "written"])
async def test_a_worker_tells_how_an_attempt_ended_however_long_the_store_fails(make_engine, after):
    """S4-28 G3 Whether or not the commits that failed were written."""
    bodies = Bodies()
    train = training(bodies)
    engine = await make_engine(calling(train), queues=BOTH)
    run = await engine.start("caller")
    await eventually(lambda: bodies)
    faults = engine.faults
    fault = (faults.lose_answer if after else faults.fail)(None, only=FinishTask)
    bodies.gate.set()
    await fault.happened()
    fault.heal()
    assert await asyncio.wait_for(run.result(), LONG) == "trained 1"
    assert bodies == [1]


async def test_an_attempt_that_a_worker_has_without_knowing_is_handed_back(make_engine):
    """G4 The claim was written, but its answer was lost."""
    bodies = Bodies()
    bodies.gate.set()
    train = training(bodies)
    engine = await make_engine(calling(train), queues=BOTH)
    lost = engine.faults.lose_answer(at="claim_tasks")
    run = await engine.start("caller")
    assert await result_of(engine, run) == "trained 2"
    assert lost.injected == 1
    assert await losses(engine, run) == [(1, "handed back")]


# Code that changes.


async def test_a_step_that_gets_a_queue_is_handed_out_when_its_open_attempt_is_lost(make_engine):
    """B20 G4 The attempt that ran here was lost with its engine; the next one goes to the queue."""
    bodies = Bodies()
    train = training(bodies)
    office = await make_engine(calling(train.options(queue=None)))
    run = await office.start("caller")
    await eventually(lambda: bodies)
    await office.stop()
    bodies.gate.set()
    office = await make_engine(calling(train), clock=office.jumping)
    await office.settle()
    await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    assert await result_of(office, run) == "trained 2"
    assert bodies == [1, 2]


async def test_an_attempt_in_a_queue_is_withdrawn_when_its_step_has_none_any_more(make_engine):
    """B20 G4"""
    bodies = Bodies()
    bodies.gate.set()
    train = training(bodies)
    office = await make_engine(calling(train))
    run = await office.start("caller")
    await office.settle()
    await office.stop()
    office = await make_engine(calling(train.options(queue=None)), clock=office.jumping)
    await office.get(run.id).send("hello", None)  # a run that is parked meets the new code when something wakes it
    assert await result_of(office, run) == "trained 2"
    assert bodies == [2]
    assert await losses(office, run) == [(1, "handed back")]
    await office.store.join("looker", HOUR)
    assert await office.store.claim_tasks("looker", 1 << 60, 9, ["gpu"], ["train"]) == []
