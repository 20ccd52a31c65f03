"""Figures: what a worker counts of the steps and runs that end there, and when it adds that to those of all workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.waiting import eventually

from holdfast import Context, Engine, Retry, RunCancelled, RunFailed, activity, workflow
from holdfast.contract.figures import HOUR, MINUTE, Figure, FigureFilter
from holdfast.contract.store import Store
from holdfast.engine.worker import figures as counting
from holdfast.engine.worker import worker as working
from holdfast.engine.worker.figures import Figures
from holdfast.errors import StoreBusy, StoreError
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.faults import Faults

SECOND = 1_000_000
ALL = FigureFilter(since=0, until=1 << 60)
Counts = dict[tuple[str, str, str], int]


async def add_one(number: int) -> int:
    return number + 1


@activity(retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=90)))
async def unlucky(number: int) -> int:
    raise ConnectionError("the line is dead")


@activity(timeout=timedelta(hours=1))
async def slow(number: int) -> int:
    return number


@workflow
async def climb(ctx: Context, number: int) -> int:
    for _ in range(3):
        number = await ctx.step(add_one, number)
    number = await ctx.step("one more", add_one, number)
    await ctx.sleep(timedelta(minutes=3))
    return await ctx.step(slow, number)


@workflow
async def fall(ctx: Context, number: int) -> int:
    return await ctx.step(unlucky, number)


@workflow
async def wait(ctx: Context) -> None:
    await ctx.receive("never")


async def summed(store: Store, by: str = "step", **fields: int) -> list[Figure]:
    which = FigureFilter(since=0, until=1 << 60, by=by, **fields)  # type: ignore[arg-type]  # a Literal
    return (await store.figures(which)).rows


async def counted(store: Store) -> Counts:
    rows = [*await summed(store), *await summed(store, "workflow")]
    return {(row.workflow, row.step, row.outcome): row.n for row in rows}


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return request.getfixturevalue("empty_database") if request.param == "postgres" else str(tmp_path / "shop.db")


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    """A look at the database beside the engines of a test."""
    store: Store = PostgresStore(address) if address.startswith("postgres") else SQLiteStore(address)
    await store.open()
    yield store
    await store.close()


async def test_a_worker_counts_attempts_runs_and_how_long_they_took(address: str, store: Store) -> None:
    async with TestEngine(address, workflows=[climb, fall, wait]) as engine:
        assert await engine.execute(climb, 1) == 5
        with pytest.raises(RunFailed):
            await engine.execute(fall, 1)
        waiting = await engine.start(wait)
        await engine.settle()
        await waiting.cancel()
        with pytest.raises(RunCancelled):
            await waiting.result()
    assert await counted(store) == {
        ("climb", "add_one", "completed"): 3,
        ("climb", "one more", "completed"): 1,
        ("climb", "slow", "completed"): 1,
        ("fall", "unlucky", "retried"): 2,
        ("fall", "unlucky", "failed"): 1,
        ("climb", "", "completed"): 1,
        ("fall", "", "failed"): 1,
        ("wait", "", "cancelled"): 1,
    }
    [climbed] = [row for row in await summed(store, "workflow") if row.workflow == "climb"]
    assert climbed.total >= 180 * SECOND
    assert climbed.buckets[9] == 1  # between 67 s and 268 s


async def test_figures_of_two_workers_are_added_up_and_each_minute_has_its_own(address: str, store: Store) -> None:
    clock = JumpingClock()
    for _ in range(2):
        async with TestEngine(address, workflows=[fall], clock=clock) as engine:
            with pytest.raises(RunFailed):
                await engine.execute(fall, 1)
    assert {row.outcome: row.n for row in await summed(store)} == {"retried": 4, "failed": 2}
    by_minute = await summed(store, "time", span=MINUTE, slot=MINUTE)
    assert len(by_minute) == 2
    assert sum(row.n for row in by_minute) == 2
    assert all(row.start % MINUTE == 0 for row in by_minute)


async def test_workers_whose_clocks_differ_lose_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    behind, ahead = JumpingClock(), JumpingClock()
    ahead.advance(timedelta(minutes=7))
    async with TestEngine(path, workflows=[fall], clock=behind) as first:
        async with TestEngine(path, workflows=[fall], clock=ahead) as second:
            for engine in (first, second):
                with pytest.raises(RunFailed):
                    await engine.execute(fall, 1)
        await asyncio.sleep(0)
        store = SQLiteStore(path)
        await store.open()
    try:
        assert (await counted(store))["fall", "unlucky", "failed"] == 2
    finally:
        await store.close()


async def test_how_long_runs_were_due_before_a_worker_claimed_them_is_counted(tmp_path: Path) -> None:
    path, clock = str(tmp_path / "shop.db"), JumpingClock()
    async with TestEngine(path, workflows=[wait], clock=clock, run_workflows=False) as client:
        await client.start(wait)
    clock.advance(timedelta(seconds=20))
    async with TestEngine(path, workflows=[wait], clock=clock) as engine:
        await engine.settle()
    store = SQLiteStore(path)
    await store.open()
    [claimed] = await summed(store, "workflow")
    await store.close()
    assert (claimed.outcome, claimed.n, claimed.total) == ("claimed", 1, 20 * SECOND)


async def test_a_worker_adds_every_ten_seconds_and_only_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_EVERY", 0.0)
    monkeypatch.setattr(working, "_TAKE_OVER_EVERY", 0.0)
    store = SQLiteStore(tmp_path / "shop.db")
    faults = Faults(store)
    added = faults.watch("add_figures")
    async with Engine(store=store, workflows=[climb, fall, wait]) as engine:
        looks = faults.calls["take_over"]
        await eventually(lambda: faults.calls["take_over"] > looks + 3)
        assert added == []
        await engine.start(wait, id="w")
        await engine.get("w").terminate()
        await eventually(lambda: faults.calls["take_over"] > looks + 6)
        run = await engine.start(climb, 1)
        await eventually(lambda: len(added) > 0)
        await run.terminate()
    assert all(figures for (figures,) in added)


@pytest.mark.parametrize("works", [True, False])
async def test_an_engine_that_advances_no_run_writes_nothing(tmp_path: Path, works: bool) -> None:
    store = SQLiteStore(tmp_path / "shop.db")
    faults = Faults(store)
    async with TestEngine(store=store, workflows=[climb], run_workflows=works) as engine:
        if not works:
            await engine.start(climb, 1)
        await engine.runs()
    assert faults.calls["add_figures"] == 0


class Counters:
    """Figures of a worker without the worker."""

    def __init__(self, store: Store) -> None:
        self.clock = JumpingClock()
        self.figures = Figures(store, self.clock)

    def count(self, step: str = "charge", took: int = 1, outcome: str = "failed", workflow: str = "order") -> None:
        self.figures._count(workflow, step, outcome, took, self.clock.now())


@pytest.fixture
async def memory() -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(":memory:")
    await store.open()
    yield store
    await store.close()


async def test_what_the_store_has_no_room_for_is_added_later_and_what_is_in_doubt_is_not(memory: SQLiteStore) -> None:
    counters, faults = Counters(memory), Faults(memory)
    counters.count()
    faults.fail(at="add_figures", error=StoreBusy("locked"))
    await counters.figures.add()
    assert await summed(memory) == []
    counters.count()
    await counters.figures.add()
    assert [row.n for row in await summed(memory)] == [2]
    counters.count()
    faults.lose_answer(at="add_figures", error=StoreError("the line is dead"))
    await counters.figures.add()
    await counters.figures.add()
    assert [row.n for row in await summed(memory)] == [3]


async def test_a_clock_that_is_set_back_is_followed_and_takes_nothing_from_a_sum(memory: SQLiteStore) -> None:
    counters = Counters(memory)
    noon = counters.clock._now = 500_000 * HOUR
    counters.count()
    await counters.figures.add()
    counters.clock._now = noon - 3 * HOUR
    counters.count(took=-5)
    await counters.figures.add()
    counters.count()
    await counters.figures.add()
    by_hour = await memory.figures(FigureFilter(since=noon - 3 * HOUR, until=noon))
    assert [(row.n, row.total) for row in by_hour.rows] == [(1, 1)]


async def test_names_made_up_at_run_time_do_not_fill_the_store(
    memory: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "_MOST_STEPS", 3)
    counters = Counters(memory)
    for number in range(10):
        counters.count(f"step-{number}")
    assert counters.figures.completed_of("order", "step-11") is counters.figures.completed["order"]["(other)"]
    await counters.figures.add()
    found = {row.step: row.n for row in await summed(memory)}
    assert found.pop("(other)") == 7
    assert found == {"step-0": 1, "step-1": 1, "step-2": 1}


@pytest.mark.parametrize(
    ("took", "bucket"),
    [(0, 0), (1_024, 0), (1_025, 1), (4_096, 1), (4_097, 2), (SECOND, 5), (68_719_476_736, 13), (1 << 40, None)],
)
async def test_a_duration_is_counted_in_the_bucket_whose_bound_it_does_not_exceed(
    memory: SQLiteStore, took: int, bucket: int | None
) -> None:
    counters = Counters(memory)
    counters.count(took=took)
    await counters.figures.add()
    [row] = await summed(memory)
    assert (row.n, row.total, sum(row.buckets)) == (1, took, int(bucket is not None))
    assert bucket is None or row.buckets[bucket] == 1


async def test_many_steps_of_many_runs_are_each_counted_once(tmp_path: Path) -> None:
    path = str(tmp_path / "shop.db")
    async with Engine(path, workflows=[busy]) as engine:
        assert await asyncio.gather(*(engine.execute(busy, 20) for _ in range(20))) == [20] * 20
        steps = [len(await engine.get(run.id).steps()) for run in await engine.runs()]
    store = SQLiteStore(path)
    await store.open()
    found = await counted(store)
    await store.close()
    assert found == {("busy", "add_one", "completed"): sum(steps), ("busy", "", "completed"): 20}


@workflow
async def busy(ctx: Context, steps: int) -> int:
    return sum(await asyncio.gather(*(ctx.step(add_one, 0) for _ in range(steps))))
