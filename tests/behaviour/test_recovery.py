"""Recovery: what another engine finds on the database, it continues; what it cannot continue, it leaves in peace."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, NoSuchRun, RunBlocked, Status, workflow
from holdfast.errors import HistoryMismatch, StoreBusy, StoreError

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
SOON = timedelta(seconds=LONG)

pytestmark = pytest.mark.parametrize("mode", ["file", "evict"])


class Bodies(list[str]):
    """Step bodies that say when they ran."""

    async def __call__(self, what: str) -> str:
        self.append(what)
        return what

    __name__ = "body"
    __hash__ = object.__hash__  # type: ignore[assignment]  # a list that can be a step


# Going on.


async def test_recorded_steps_are_not_run_again_by_the_next_engine(make_engine):
    """G3 S1-14 S2-28 S3-24 S4-1 S4-28 Five engines in turn on one run; every body once."""
    bodies = Bodies()

    @workflow
    async def work(ctx: Context) -> list[str]:
        done = []
        for number in range(6):
            done.append(await ctx.step(f"step {number}", bodies, f"{number}"))
            await ctx.sleep(DAY)
        return done

    engine = await make_engine(work)
    run = await engine.start(work, id="w")
    for _ in range(5):
        await engine.advance(DAY)
        await engine.stop()
        engine = await make_engine(work, clock=engine.jumping)
        run = engine.get("w")
    assert await run.result() == ["0", "1", "2", "3", "4", "5"]
    assert bodies == ["0", "1", "2", "3", "4", "5"]


async def test_parallel_work_goes_on_where_each_branch_was(make_engine):
    """G3 S1-25 S1-26 join, race, gather and a loop in one run, replayed into the same interleaving."""
    bodies = Bodies()

    @workflow
    async def work(ctx: Context) -> list[Any]:
        async def branch(inner: Context) -> str:
            first = await inner.step("one", bodies, "one")
            await inner.sleep(HOUR)
            return first + await inner.step("two", bodies, "two")

        joined = await ctx.join("both", {"a": branch, "b": branch})
        winner = await ctx.race(
            {"slow": lambda inner: inner.sleep(DAY), "quick": lambda inner: inner.step("q", bodies, "quick")}
        )
        total = 0
        async for it in ctx.loop("rounds", state=0, commit_interval=2, history_every=2, history_keep=1):
            await it.step("tick", bodies, f"tick {it.index}")
            await it.sleep(HOUR)
            it.state += 1
            if it.state == 5:
                total = it.state
                break
        gathered = await asyncio.gather(ctx.receive("a"), ctx.receive("b"))
        return [joined, winner.winner, total, gathered]

    engine = await make_engine(work)
    await engine.start(work, id="w")
    for number in range(12):
        await engine.advance(HOUR / 2)
        if number == 5:
            await engine.get("w").send("b", 2)
        await engine.stop()
        engine = await make_engine(work, clock=engine.jumping)
    run = engine.get("w")
    await run.send("a", 1)
    assert await run.result() == [{"a": "onetwo", "b": "onetwo"}, "quick", 5, [1, 2]]
    assert sorted(bodies) == sorted(["one", "one", "two", "two", "quick", *(f"tick {n}" for n in range(5))])


async def test_a_hundred_parked_runs_are_all_found_again(make_engine):
    """S2-27 G1 Timers, messages and children: every kind of wait is registered again."""

    @workflow
    async def kid(ctx: Context) -> str:
        await ctx.sleep(DAY)
        return "kid"

    @workflow
    async def wait(ctx: Context, how: str) -> str:
        if how == "timer":
            await ctx.sleep(DAY)
            return how
        if how == "child":
            return await ctx.child(kid)
        return await ctx.receive("word", str)

    first = await make_engine(wait, kid)
    runs = [await first.start(wait, how, id=f"{how}-{n}") for how in ("timer", "message", "child") for n in range(34)]
    await first.settle()
    await first.stop()
    second = await make_engine(wait, kid, clock=first.jumping)
    for run in runs:
        if run.id.startswith("message"):
            await second.get(run.id).send("word", "message")
    results = {run.id: await second.get(run.id).result() for run in runs}
    assert all(result == {"c": "kid"}.get(id[0], id.split("-")[0]) for id, result in results.items())


# Code that is not the code.


async def test_a_workflow_that_an_engine_does_not_know_is_left_alone(make_engine):
    """GUARANTEES 6.12 B20 B24 Status, owner and attempts stay as they are until somebody knows it."""

    @workflow
    async def known(ctx: Context) -> str:
        return "known"

    @workflow
    async def sleepy(ctx: Context) -> str:
        await ctx.sleep(HOUR)
        return "slept"

    first = await make_engine(sleepy)
    run = await first.start(sleepy)
    await first.settle()
    await first.stop()
    before = await (await make_engine(known, clock=first.jumping, run_workflows=False)).get(run.id).describe()
    stranger = await make_engine(known, clock=first.jumping)
    await stranger.advance(DAY)
    assert await stranger.execute(known) == "known"
    assert await stranger.get(run.id).describe() == before
    assert before.status is Status.SUSPENDED
    second = await make_engine(sleepy, clock=first.jumping)
    assert await second.get(run.id).result() == "slept"


def charge_version(bodies: Bodies, *, changed: bool) -> Any:
    if changed:

        @workflow(name="order")
        async def order(ctx: Context) -> str:
            await ctx.step("reserve", bodies, "reserve")
            await ctx.step("refund", bodies, "refund")
            await ctx.sleep(DAY)
            await ctx.step("charge", bodies, "charge")
            return "new"

    else:

        @workflow(name="order")
        async def order(ctx: Context) -> str:
            await ctx.step("reserve", bodies, "reserve")
            await ctx.sleep(DAY)
            await ctx.step("charge", bodies, "charge")
            return "old"

    return order


async def test_a_workflow_changed_under_a_sleeping_run_is_blocked_and_goes_on_when_put_back(make_engine):
    """G13 S1-37 B6 Recorded against current, with the line; nothing wrong is executed; the old code completes it."""
    bodies = Bodies()
    old, new = charge_version(bodies, changed=False), charge_version(bodies, changed=True)
    first = await make_engine(old)
    run = await first.start(old)
    await first.settle()
    await first.stop()
    first.jumping.advance(2 * DAY)
    second = await make_engine(new, clock=first.jumping)
    with pytest.raises(HistoryMismatch) as caught:
        await second.get(run.id).result(SOON)
    text = str(caught.value)
    assert run.id in text
    assert "at 'sleep' history has a sleep" in text
    assert f"test_recovery.py:{new.function.__code__.co_firstlineno + 3}" in text
    assert await second.get(run.id).status() is Status.BLOCKED
    history = [(entry.path, entry.kind) for entry in await second.get(run.id).history()]
    assert history == [("reserve", "step"), ("reserve", "step completed"), ("sleep", "sleep")]
    assert bodies == ["reserve"]
    await second.stop()
    third = await make_engine(old, clock=first.jumping)
    assert await third.get(run.id).result(SOON) == "old"
    assert bodies == ["reserve", "charge"]


async def test_the_lines_of_a_mismatch_are_lines_of_the_workflow(make_engine):
    """G13 S1-37 No line of the application, the test runner or the engine stands in the message."""
    bodies = Bodies()
    old, new = charge_version(bodies, changed=False), charge_version(bodies, changed=True)
    first = await make_engine(old)
    run = await first.start(old)
    await first.settle()
    await first.stop()
    first.jumping.advance(2 * DAY)
    second = await make_engine(new, clock=first.jumping)
    with pytest.raises(HistoryMismatch) as caught:
        await second.get(run.id).result(SOON)
    assert {file for file, _ in re.findall(r"([\w.]+):(\d+)", str(caught.value))} == {"test_recovery.py"}


CHANGES = ["removed step", "renamed step", "other kind", "other arguments", "other order", "ends early"]


@pytest.mark.parametrize("change", CHANGES)
async def test_every_kind_of_change_is_noticed_before_anything_wrong_happens(make_engine, change):
    """G13 S1-37 The run is blocked, its history is what it was, and no body has run."""
    bodies = Bodies()

    @workflow(name="task")
    async def old(ctx: Context) -> None:
        await ctx.step("one", bodies, "1")
        await ctx.step("two", bodies, "2")
        await ctx.receive("go")
        await ctx.step("three", bodies, "3")

    @workflow(name="task")
    async def new(ctx: Context) -> None:
        if change == "removed step":
            await ctx.step("two", bodies, "2")
        elif change == "renamed step":
            await ctx.step("uno", bodies, "1")
            await ctx.step("two", bodies, "2")
        elif change == "other kind":
            await ctx.sleep(HOUR, name="one")
            await ctx.step("two", bodies, "2")
        elif change == "other arguments":
            await ctx.step("one", bodies, "one")
            await ctx.step("two", bodies, "2")
        elif change == "other order":
            await ctx.step("two", bodies, "2")
            await ctx.step("one", bodies, "1")
        elif change == "ends early":
            await ctx.step("one", bodies, "1")
            return
        await ctx.receive("go")
        await ctx.step("wrong", bodies, "wrong")

    first = await make_engine(old)
    run = await first.start(old)
    await first.settle()
    before = await run.history()
    await first.stop()
    bodies.clear()
    second = await make_engine(new, clock=first.jumping)
    await second.get(run.id).send("go")
    with pytest.raises(RunBlocked):
        await second.get(run.id).result(SOON)
    assert await second.get(run.id).history() == before
    assert bodies == []


@pytest.mark.parametrize("change", ["child", "message", "target"])
async def test_other_input_of_a_child_or_a_send_is_noticed(make_engine, change):
    """G13 G10 DESIGN 4 The digest of what was sent is part of the history; nothing is sent or started again."""

    def task(number: int, word: str, target: str) -> Any:
        @workflow(name="task")
        async def task(ctx: Context) -> str:
            ctx.child(helper, number)
            await ctx.send(target, "word", word)
            await ctx.receive("go")
            return "done"

        return task

    @workflow
    async def other(ctx: Context) -> str:
        return await ctx.receive("word", str)

    old = task(1, "a", "left")
    new = {"child": task(2, "a", "left"), "message": task(1, "b", "left"), "target": task(1, "a", "right")}[change]
    first = await make_engine(old, helper, other)
    left, right = await first.start(other, id="left"), await first.start(other, id="right")
    run = await first.start(old, id="t")
    await first.settle()
    await first.stop()
    second = await make_engine(new, helper, other, clock=first.jumping)
    await second.get(run.id).send("go")
    with pytest.raises(HistoryMismatch):
        await second.get(run.id).result(SOON)
    assert await second.get(left.id).result() == "a"
    assert await second.get(right.id).status() is Status.SUSPENDED
    assert not second.offers("lists") or len(await second.runs(parent="t")) == 1


async def test_a_change_behind_the_present_place_is_no_change(make_engine):
    """S1-33 G13 What the run has not reached yet may be edited freely."""
    bodies = Bodies()

    @workflow(name="task")
    async def old(ctx: Context) -> str:
        await ctx.step("one", bodies, "1")
        await ctx.sleep(DAY)
        return "old"

    @workflow(name="task")
    async def new(ctx: Context) -> str:
        await ctx.step("one", bodies, "1")
        await ctx.sleep(DAY)
        await ctx.step("more", bodies, "more")
        return "new"

    first = await make_engine(old)
    run = await first.start(old)
    await first.settle()
    await first.stop()
    second = await make_engine(new, clock=first.jumping)
    assert await second.get(run.id).result() == "new"
    assert bodies == ["1", "more"]


async def test_a_blocked_run_is_tried_again_on_request(make_engine):
    """G13 DESIGN 2 recover(): True for a blocked run, False otherwise; still wrong code blocks it again."""
    bodies = Bodies()
    old, new = charge_version(bodies, changed=False), charge_version(bodies, changed=True)
    first = await make_engine(old)
    run = await first.start(old)
    await first.settle()
    await first.stop()
    first.jumping.advance(2 * DAY)
    second = await make_engine(new, clock=first.jumping)
    with pytest.raises(RunBlocked):
        await second.get(run.id).result(SOON)
    assert await second.get(run.id).recover() is True
    with pytest.raises(RunBlocked):
        await second.get(run.id).result(SOON)
    with pytest.raises(NoSuchRun):
        await second.get("nobody").recover()
    assert bodies == ["reserve"]


async def test_a_run_keeps_its_version_as_long_as_that_is_registered(make_engine):
    """B20 S3-1 New runs use the latest; the old run goes on with the old code; without it the latest is tried."""
    bodies = Bodies()

    def version(number: str) -> Any:
        @workflow(name="task", version=number)
        async def task(ctx: Context) -> str:
            await ctx.step(f"begin {number}" if number == "2" else "begin", bodies, number)
            await ctx.sleep(DAY)
            return f"version {number}"

        return task

    one, two = version("1"), version("2")
    first = await make_engine(one)
    run = await first.start(one)
    second_run = await first.start(one)
    assert (await run.describe()).version == "1"
    await first.settle()
    await first.stop()
    both = await make_engine(one, two, clock=first.jumping)
    fresh = await both.start("task")
    assert (await fresh.describe()).version == "2"
    assert await both.get(run.id).result() == "version 1"
    assert await fresh.result() == "version 2"
    await both.stop()
    assert bodies == ["1", "1", "2"]
    assert second_run.id


async def test_without_its_version_a_run_is_checked_against_the_latest(make_engine):
    """B20 G13 Version gone: the latest code is tried, and a difference blocks the run."""
    bodies = Bodies()

    @workflow(name="task", version="1")
    async def one(ctx: Context, how: str) -> str:
        await ctx.step("begin", bodies, "1")
        await ctx.sleep(DAY)
        return "version 1"

    @workflow(name="task", version="2")
    async def two(ctx: Context, how: str) -> str:
        await ctx.step("begin", bodies, "1" if how == "same" else "2")
        await ctx.sleep(DAY)
        return "version 2"

    first = await make_engine(one)
    same, other = await first.start(one, "same"), await first.start(one, "other")
    await first.settle()
    await first.stop()
    second = await make_engine(two, clock=first.jumping)
    assert await second.get(same.id).result() == "version 2"
    with pytest.raises(RunBlocked):
        await second.get(other.id).result(SOON)


async def test_input_that_can_no_longer_be_decoded_blocks_that_run_alone(make_engine):
    """B21 G12 B6 The parameter changed its type: blocked with the field; its neighbours run."""

    @workflow(name="task")
    async def old(ctx: Context, amount: str) -> str:
        await ctx.sleep(HOUR)
        return amount

    @workflow(name="task")
    async def new(ctx: Context, amount: int) -> int:
        await ctx.sleep(HOUR)
        return amount + 0

    first = await make_engine(old)
    run = await first.start(old, "a lot")
    await first.settle()
    await first.stop()
    first.jumping.advance(DAY)
    second = await make_engine(new, clock=first.jumping)
    assert await second.execute(new, 3) == 3
    with pytest.raises(RunBlocked, match="amount"):
        await second.get(run.id).result(SOON)
    await second.stop()
    third = await make_engine(old, clock=first.jumping)
    assert await third.get(run.id).result(SOON) == "a lot"


async def test_a_recorded_result_that_no_longer_fits_blocks_that_run_alone(make_engine):
    """GUARANTEES 2 B21 A step changed its result type: blocked, not a crash loop."""

    async def measure() -> str:
        return "long"

    async def measure_new() -> int:
        return 3

    measure_new.__name__ = "measure"

    def task(body: Any) -> Any:
        @workflow(name="task")
        async def task(ctx: Context) -> str:
            length = await ctx.step(body)
            await ctx.sleep(HOUR)
            return str(length)

        return task

    first = await make_engine(task(measure))
    run = await first.start("task")
    await first.settle()
    await first.stop()
    first.jumping.advance(DAY)
    new = task(measure_new)
    second = await make_engine(new, clock=first.jumping)
    with pytest.raises(RunBlocked, match="measure"):
        await second.get(run.id).result(SOON)
    assert await second.execute(new) == "3"


DAMAGE = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as db:
    db.execute("UPDATE entries SET data = '{' WHERE kind = 2 AND run = (SELECT key FROM runs WHERE id = 'bad')")
    db.execute("UPDATE entries SET kind = 99 WHERE kind = 8 AND run = (SELECT key FROM runs WHERE id = 'worse')")
"""


async def test_a_corrupt_history_blocks_that_run_alone(make_engine, tmp_path):
    """B21 G12 Rows that nobody wrote: quarantined as blocked, the worker goes on."""
    bodies = Bodies()

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step("one", bodies, "1")
        await ctx.sleep(DAY)
        return "done"

    first = await make_engine(work)
    good, bad, worse = [await first.start(work, id=name) for name in ("good", "bad", "worse")]
    await first.settle()
    await first.stop()
    # By another process: two SQLite libraries in one process lose each other's locks.
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", DAMAGE, tmp_path / "test.db"], check=True)
    second = await make_engine(work, clock=first.jumping)
    assert await second.get(good.id).result(SOON) == "done"
    for run in (bad, worse):
        with pytest.raises(RunBlocked):
            await second.get(run.id).result(SOON)
        assert await second.get(run.id).status() is Status.BLOCKED


# A store that fails for a while.


HOLD_LOCK = """
import apsw, sys, time
db = apsw.Connection(sys.argv[1])
db.execute("PRAGMA busy_timeout = 5000")
db.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
db.execute("ROLLBACK")
"""


async def test_a_worker_survives_a_file_that_another_process_keeps_locked(make_engine, tmp_path):
    """B21 GUARANTEES 2 Nothing is lost, nobody sees `database is locked`, work goes on by itself."""
    bodies = Bodies()

    @workflow
    async def work(ctx: Context) -> str:
        for number in range(5):
            await ctx.step(f"step {number}", bodies, f"{number}")
        return "done"

    engine = await make_engine(work)
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD_LOCK, tmp_path / "test.db", "0.7", stdout=asyncio.subprocess.PIPE
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"locked\n"
    runs = await asyncio.gather(*(engine.start(work) for _ in range(10)))
    assert [await run.result() for run in runs] == ["done"] * 10
    assert await holder.wait() == 0
    assert len(bodies) == 50


@pytest.mark.parametrize("error", [StoreBusy("locked"), StoreError("disk on fire"), RuntimeError("a bug of the store")])
async def test_a_worker_survives_a_store_that_raises_for_a_while(make_engine, error):
    """B21 S2-34 G14 Running and parked runs, a cancel and a retry in the outage: all end as they should."""
    bodies = Bodies()
    entered = asyncio.Event()
    outage_over = asyncio.Event()

    async def slow(what: str) -> str:
        entered.set()
        await outage_over.wait()
        bodies.append(what)
        return what

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step("one", bodies, "1")
        await ctx.step(slow, "slow")
        return await ctx.step("two", bodies, "2")

    @workflow
    async def sleepy(ctx: Context) -> str:
        await ctx.sleep(HOUR)
        return await ctx.step("after", bodies, "after")

    engine = await make_engine(work, sleepy)
    run = await engine.start(work)
    sleeping = await engine.start(sleepy)
    await asyncio.wait_for(entered.wait(), LONG)
    outage = [engine.faults.fail(None, at=method, error=error) for method in ("apply", "claim", "load")]
    engine.jumping.advance(2 * HOUR)
    engine._working().wake()
    outage_over.set()
    await eventually(lambda: sum(fault.injected for fault in outage) >= 3)
    engine.faults.heal()
    assert await asyncio.wait_for(run.result(), LONG) == "2"
    assert await asyncio.wait_for(sleeping.result(), LONG) == "after"
    assert bodies.count("1") == 1
    assert bodies.count("2") == 1
    assert bodies.count("after") == 1


async def test_a_start_during_an_outage_is_told_and_leaves_nothing(make_engine):
    """B21 G1 G14 The caller gets the store's error; the engine works again when the store does."""

    @workflow
    async def quick(ctx: Context) -> str:
        return "done"

    engine = await make_engine(quick)
    engine.faults.fail(None, error=StoreError("disk on fire"))
    with pytest.raises(StoreError, match="disk on fire"):
        await engine.start(quick, id="r")
    with pytest.raises(StoreError):
        await engine.get("r").send("word")
    engine.faults.heal()
    assert await engine.runs() == []
    assert await engine.execute(quick, id="r") == "done"


@workflow
async def helper(ctx: Context, number: int) -> int:
    await ctx.sleep(HOUR)
    return number


@workflow
async def everything(ctx: Context, round: int) -> list[Any]:
    first = await ctx.step("one", add_one, round)
    await ctx.sleep(HOUR)
    child = await ctx.child(helper, first)
    await ctx.send(ctx.run_id, "word", child)
    word = await ctx.receive("word", int)
    late = await ctx.receive("never", timeout=HOUR, default="late")
    if round < 2:
        ctx.continue_as_new(round + 1)
    return [first, child, word, late]


async def add_one(number: int) -> int:
    return number + 1


@workflow
async def stubborn(ctx: Context) -> None:
    try:
        await ctx.sleep(DAY)
    finally:
        await ctx.step("undo", add_one, 1)
        await ctx.sleep(DAY)


@workflow
async def hopeless(ctx: Context) -> None:
    await ctx.sleep(HOUR)
    await asyncio.Event().wait()


@pytest.mark.parametrize("written", [False, True], ids=["refused", "unknown"])
async def test_a_failure_of_any_single_commit_delays_a_run_and_nothing_else(make_engine, tmp_path, written):
    """B21 G1 G3 G7 G10 G14 Each commit of a run that does everything fails once; the run ends as if none had.

    With `unknown` the commit is durable although the engine was told that it failed.
    """
    bitten = 0
    for at in range(2, 60):
        engine = await make_engine(everything, helper, database=str(tmp_path / f"{at}.db"))
        run = await engine.start(everything, 1, id="r")
        fault = (engine.faults.lose_answer if written else engine.faults.fail)(skip=at - 2)
        result = await asyncio.wait_for(run.result(), LONG)
        assert result == [3, 3, 3, "late"], at
        bitten += fault.injected
        await engine.stop()
        if not fault.injected:
            break
    else:
        pytest.fail("the run never got through without a failure")
    assert bitten >= 10


@pytest.mark.parametrize("which", ["cancelled", "blocked"])
async def test_a_failure_of_any_single_commit_does_not_leave_a_run_between_its_states(make_engine, tmp_path, which):
    """B21 B7 G13 A cancel with cleanup beyond its grace, and a run that must be blocked: both arrive."""
    bitten = 0
    for at in range(1, 40):
        engine = await make_engine(stubborn, hopeless, database=str(tmp_path / f"{at}.db"))
        run = await engine.start(stubborn if which == "cancelled" else hopeless, id="r")
        await engine.settle()
        if which == "cancelled":
            await run.cancel()
        fault = engine.faults.fail(skip=at - 1)
        for _ in range(100):
            await engine.advance(HOUR)
            if str(await run.status()) == which:
                break
            await asyncio.sleep(0.02)
        assert str(await run.status()) == which, at
        bitten += fault.injected
        await engine.stop()
        if not fault.injected:
            break
    else:
        pytest.fail("the run never got through without a failure")
    assert bitten >= 1


async def test_a_failure_to_let_go_of_a_parked_run_does_not_lose_it(make_engine):
    """B21 G1 Eviction that cannot be committed: the run still wakes at its time."""
    engine = await make_engine(helper, max_resident=8)
    runs = [await engine.start(helper, number) for number in range(9)]
    await engine.settle()
    fault = engine.faults.fail()
    engine._working()._evict()
    await engine.settle()
    assert fault.injected == 1
    assert [await asyncio.wait_for(run.result(), LONG) for run in runs] == [*range(9)]


@workflow
async def nap(ctx: Context, number: int) -> int:
    await ctx.sleep(timedelta(hours=1))
    return number


async def test_many_that_wait_at_once_do_not_add_up_in_memory(make_engine):
    """W7 Started together or woken together: beyond a quarter more than may stay, they leave as they park."""
    engine = await make_engine(nap, max_resident=8)
    runs = await engine.start_many(nap, range(100))
    await engine.settle()
    assert engine.residents <= 10
    assert [await run.result() for run in runs] == [*range(100)]
