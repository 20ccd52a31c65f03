"""Promises of the engine that only a fault or a race at the wrong moment puts to the test."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Retry, Status, activity, workflow
from holdfast.contract.operations import Operation, Outcome
from holdfast.contract.rows import Claim, History
from holdfast.contract.turns import CommitTurn
from holdfast.errors import StoreError, StoreFull
from holdfast.stores.sqlite.store import SQLiteStore

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


class HeldStore(SQLiteStore):
    """A real store that keeps a commit waiting when told to, and then fails it."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.hold = False
        self.holding = asyncio.Event()
        self.let_go = asyncio.Event()

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        if not self.hold:
            return await super().apply(operations)
        self.hold = False
        self.holding.set()
        await self.let_go.wait()
        raise StoreError("this one commit fails")

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None


async def test_after_a_commit_that_failed_nothing_of_its_run_is_written(make_engine, tmp_path):
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

    store = HeldStore(str(tmp_path / "held.db"))
    engine = await make_engine(work, store=store)
    run = await engine.start(work, id="r")
    async with asyncio.timeout(LONG):
        while len(begun) < 2:  # noqa: ASYNC110  # bodies begin by themselves
            await asyncio.sleep(0.005)
    store.hold = True
    ends["a"].set()
    await asyncio.wait_for(store.holding.wait(), LONG)
    ends["b"].set()
    while engine._working().committer.waiting < 2:  # noqa: ASYNC110  # its commit waits behind the one that will fail
        await asyncio.sleep(0.005)
    store.let_go.set()
    told = await asyncio.wait_for(run.result(), LONG)
    assert sorted(map(len, told)) == [1, 2]
    assert await run.status() is Status.COMPLETED


@pytest.mark.parametrize("how", ["gather", "group", "task"])
async def test_cleanup_may_use_tasks_of_its_own(make_engine, how):
    """B7 S2-6 Verbs return to tasks that are begun while the cancel is being handled."""
    undone: list[str] = []

    async def undo(what: str) -> None:
        undone.append(what)

    @workflow
    async def work(ctx: Context) -> None:
        async def back(what: str) -> None:
            await ctx.step(f"undo {what}", undo, what)

        try:
            await ctx.receive("never")
        finally:
            if how == "gather":
                await asyncio.gather(back("a"), back("b"))
            elif how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(back("a"))
                    group.create_task(back("b"))
            else:
                for what in ("a", "b"):
                    await asyncio.create_task(back(what))

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    assert await run.cancel()
    await engine.settle()
    assert undone == ["a", "b"]
    assert await run.status() is Status.CANCELLED


class FullStore(SQLiteStore):
    """A real store on a disk that is full for a while."""

    full = False
    refusals = 0

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        if self.full:
            self.refusals += 1
            raise StoreFull("no space left on device")
        return await super().apply(operations)

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None


async def test_on_a_disk_that_stays_full_nothing_goes_on_that_is_not_recorded(make_engine, tmp_path, monkeypatch):
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

    store = FullStore(str(tmp_path / "full.db"))
    engine = await make_engine(work, store=store)
    run = await engine.start(work, id="r")
    while not bodies:  # noqa: ASYNC110  # it begins by itself
        await asyncio.sleep(0.005)
    store.full = True
    may_end.set()
    with pytest.raises(StoreFull):
        await engine.start(work, id="other")
    while store.refusals < 8:  # noqa: ASYNC110  # beyond the patience of one commit, which ends after two
        await asyncio.sleep(0.005)
    assert bodies == ["one"]
    store.full = False
    assert await engine.runs() != []
    assert await asyncio.wait_for(run.result(), LONG) == ["one", "two"]
    assert [seen.id for seen in await engine.runs()] == ["r"]


async def test_a_message_behind_what_ends_a_life_reaches_the_next_life(make_engine):
    """G7 S2-32 The end of a child and a message come together; the first makes the run continue as new."""

    @workflow
    async def kid(ctx: Context) -> str:
        return await ctx.receive("go", str)

    @workflow
    async def parent(ctx: Context, heard: str = "") -> list[str]:
        if not heard:
            ctx.continue_as_new(await ctx.child(kid, id="kid"))
        return [heard, await ctx.receive("word", str)]

    engine = await make_engine(parent, kid)
    await engine.start(parent, id="parent")
    await engine.settle()
    await engine.stop()
    engine = await make_engine(kid, clock=engine.jumping)
    await engine.get("kid").send("go", "went")
    assert await engine.get("kid").result() == "went"
    await engine.get("parent").send("word", "heard")
    await engine.stop()
    engine = await make_engine(parent, kid, clock=engine.jumping)
    assert await asyncio.wait_for(engine.get("parent").result(), LONG) == ["went", "heard"]


async def test_what_a_step_achieved_is_kept_when_the_code_after_it_blocks(make_engine):
    """G3 G13 The turn that took its result is not recorded, but the result is: put right, the code finds it there."""
    bodies: list[str] = []

    async def charge() -> str:
        bodies.append("charge")
        return "charged"

    @workflow(name="work")
    async def wrong(ctx: Context) -> str:
        await ctx.step(charge)
        return await asyncio.get_running_loop().create_future()

    @workflow(name="work")
    async def right(ctx: Context) -> str:
        return await ctx.step(charge)

    engine = await make_engine(wrong)
    run = await engine.start(wrong, id="r")
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    await engine.stop()
    engine = await make_engine(right, clock=engine.jumping)
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "charged"
    assert bodies == ["charge"]


async def test_a_retry_keeps_its_time_through_a_restart(make_engine):
    """G9 S2-27 A new worker tries again when the old one would have, neither at once nor after another delay."""
    hour = timedelta(hours=1)
    attempts: list[str] = []

    @activity(retry=Retry(initial_interval=hour, max_interval=None))
    async def flaky() -> int:
        attempts.append("attempt")
        if len(attempts) == 1:
            raise OSError("not yet")
        return len(attempts)

    @workflow
    async def work(ctx: Context) -> int:
        return await ctx.step(flaky)

    engine = await make_engine(work)
    await engine.start(work, id="r")
    for _ in range(3):
        await engine.advance(hour / 4)
        await engine.stop()
        engine = await make_engine(work, clock=engine.jumping)
        # Somebody else's cancel or message may claim it early; so does a message that nobody waits for.
        await engine.get("r").send("word")
        await engine.settle()
        assert len(attempts) == 1
    await engine.advance(hour / 4)
    assert await engine.get("r").status() is Status.COMPLETED
    assert len(attempts) == 2


class UnluckyStore(SQLiteStore):
    """A real store that fails at one place, though what was asked for is done or about to be."""

    failing = ""
    bitten = 0

    def _bite(self, where: str) -> None:
        if self.failing == where:
            self.bitten += 1
            self.failing = ""
            raise StoreError(f"a fault at {where}")

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().apply(operations)
        self._bite("start")
        return outcomes

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None

    async def claim(self, *args: Any, **kwargs: Any) -> list[Claim]:
        claims = await super().claim(*args, **kwargs)
        if claims:
            self._bite("claim")
        return claims

    async def load(self, keys: Sequence[int]) -> list[History]:
        self._bite("load")
        return await super().load(keys)


@pytest.mark.parametrize("where", ["start", "claim", "load"])
async def test_a_run_that_the_worker_owns_without_knowing_it_goes_on(make_engine, tmp_path, monkeypatch, where):
    """G1 G14 B21 A start or a claim that happened although it seemed to fail: its own worker gives the run back."""
    monkeypatch.setattr("holdfast.engine.worker.worker._TAKE_OVER_EVERY", 0.04)
    bodies: list[str] = []

    async def body() -> str:
        bodies.append("body")
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        if where != "start":
            await ctx.sleep(timedelta(hours=1))
        return await ctx.step(body)

    path = str(tmp_path / "unlucky.db")
    if where != "start":
        engine = await make_engine(work, store=SQLiteStore(path))
        await engine.start(work, id="r")
        await engine.stop()
    store = UnluckyStore(path)
    engine = await make_engine(work, store=store)
    store.failing = where
    if where == "start":
        with pytest.raises(StoreError, match="a fault at start"):
            await engine.start(work, id="r")
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "done"
    assert store.bitten == 1
    assert bodies == ["body"]


async def test_a_run_on_its_way_to_the_worker_is_not_given_back(make_engine, tmp_path):
    """G5 Claimed and still being read is not lost: given back at once it would be run twice."""
    arriving, may_arrive = asyncio.Event(), asyncio.Event()
    bodies: list[str] = []

    class SlowStore(SQLiteStore):
        async def load(self, keys: Sequence[int]) -> list[History]:
            histories = await super().load(keys)
            arriving.set()
            await may_arrive.wait()
            return histories

    async def body() -> str:
        bodies.append("body")
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.receive("go")
        return await ctx.step(body)

    path = str(tmp_path / "slow.db")
    engine = await make_engine(work, store=SQLiteStore(path))
    await engine.start(work, id="r")
    await engine.stop()
    client = await make_engine(work, store=SQLiteStore(path), run_workflows=False)
    await client.get("r").send("go")
    engine = await make_engine(work, store=SlowStore(path))
    await asyncio.wait_for(arriving.wait(), LONG)
    worker = engine._working()
    worker.in_doubt()
    await worker.runs.check(worker.id)
    await asyncio.sleep(0.05)
    before = await engine.store.get("r")
    may_arrive.set()
    assert await asyncio.wait_for(engine.get("r").result(), LONG) == "done"
    after = await engine.store.get("r")
    assert before is not None
    assert after is not None
    assert (before.owner, before.epoch) == (engine._working().id, after.epoch)
    assert bodies == ["body"]


@pytest.mark.parametrize("edited", [timedelta(minutes=1), timedelta(days=1)], ids=["shorter", "longer"])
async def test_the_deadline_of_a_wait_outlives_an_edit_of_its_timeout(make_engine, edited):
    """G9 S2-27 A wait ends when it was said to end, whatever timeout the code gives to later ones."""

    def made(timeout: timedelta) -> Any:
        @workflow
        async def work(ctx: Context) -> str:
            return await ctx.receive("word", str, timeout=timeout, default="nobody")

        return work

    before, after = made(timedelta(hours=1)), made(edited)
    engine = await make_engine(before)
    await engine.start(before, id="r")
    await engine.settle()
    await engine.stop()
    engine = await make_engine(after, clock=engine.jumping)
    run = engine.get("r")
    await engine.advance(timedelta(minutes=59))
    assert await run.status() is Status.SUSPENDED
    await engine.advance(timedelta(minutes=1))
    assert await run.status() is Status.COMPLETED


async def test_a_timer_of_a_run_in_memory_fires_within_a_second_of_a_jump_of_the_clock(make_engine):
    """G9 The machine slept, or its clock was set: nobody tells the engine, which waits on another clock."""

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.sleep(timedelta(hours=1))

    engine = await make_engine(work, max_resident=10)
    run = await engine.start(work)
    await engine.settle()
    engine.jumping.advance(timedelta(hours=2))
    async with asyncio.timeout(LONG):
        while await run.status() is not Status.COMPLETED:  # noqa: ASYNC110  # result() would tell the engine
            await asyncio.sleep(0.01)


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


class ForgetfulStore(SQLiteStore):
    """A real store that refuses the next few commits with something for a history."""

    refusing = 0

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        if self.refusing and any(isinstance(each, CommitTurn) and each.entries for each in operations):
            self.refusing -= 1
            raise StoreError("disk on fire")
        return await super().apply(operations)

    def apply_now(self, operations: Sequence[Operation]) -> list[Outcome] | None:
        return None


async def test_a_run_that_the_store_kept_from_its_progress_is_no_poison(make_engine, tmp_path, monkeypatch):
    """G14 B21 Claimed five times and five times without a commit: the store is to blame, the run goes on."""
    monkeypatch.setattr("holdfast.engine.runs.departures._FIRST_PAUSE", 0.01)

    async def body() -> str:
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.sleep(timedelta(hours=1))
        return await ctx.step(body)

    store = ForgetfulStore(str(tmp_path / "forgetful.db"))
    engine = await make_engine(work, store=store)
    run = await engine.start(work)
    await engine.settle()
    store.refusing = 5
    assert await asyncio.wait_for(run.result(), LONG) == "done"
    assert store.refusing == 0


async def test_the_time_of_a_run_does_not_go_back_with_the_clock(make_engine):
    """G9 S2-27 The next worker's clock is behind what the last one recorded: history goes on from there."""
    hour = timedelta(hours=1)

    @activity(retry=Retry(max_attempts=None, initial_interval=hour, coefficient=1.0))
    async def hopeless() -> None:
        raise OSError("not yet")

    @workflow
    async def work(ctx: Context) -> datetime:
        trying: Any = ctx.step(hopeless)
        await ctx.receive("enough")
        trying.cancel()
        return ctx.now()

    start = datetime(2030, 1, 1, tzinfo=UTC)
    engine = await make_engine(work, start=start)
    await engine.start(work, id="r")
    await engine.advance(3 * hour)
    await engine.stop()
    engine = await make_engine(work, start=start + hour)
    await engine.get("r").send("enough")
    assert await engine.get("r", work).result() >= start + 3 * hour
    row = await engine.store.get("r")
    times = [entry.at for entry in await engine.store.history(row.key)]
    assert times == sorted(times)
