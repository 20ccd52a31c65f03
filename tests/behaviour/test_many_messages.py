"""Messages with ids, limits and dead letters, in numbers: accepted once, taken once, in order, or kept for a person."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Event, NoSuchRun, RunTerminal, Status, workflow
from holdfast.errors import BadInput, QueueFull, StoreError
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import Faults

HOUR = timedelta(hours=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])
"""For tests with several engines on one file."""


@workflow
async def take(ctx: Context, name: str, count: int) -> list[Any]:
    return [await ctx.receive(name) for _ in range(count)]


async def test_a_suspended_run_takes_the_message_it_waits_for_and_goes_on(make_engine):
    """S2-12 S3-12 Recorded where it waits; the run is running, then waits for the next."""
    engine = await make_engine(take)
    run = await engine.start(take, "word", 2)
    await engine.settle()
    assert (await run.describe()).waiting_for == "message word"
    await run.send("word", "a")
    await engine.settle()
    messages = [fact.path for fact in await run.history() if fact.kind == "message"]
    assert messages == ["receive word"]
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "b")
    assert await run.result() == ["a", "b"]


async def test_messages_nobody_waits_for_are_kept_by_run_and_name(make_engine):
    """S2-13 S3-13 S3-27 None overwrites another; each name is a queue of its own in each run."""

    @workflow
    async def later(ctx: Context) -> list[Any]:
        await ctx.sleep(HOUR)
        return [await ctx.receive(name) for name in ("b", "a", "b", "a")]

    engine = await make_engine(later)
    runs = [await engine.start(later) for _ in range(3)]
    for number in range(2):
        for name in "ab":
            for which, run in enumerate(runs):
                await run.send(name, f"{which}{name}{number}")
    for which, run in enumerate(runs):
        assert await run.result() == [f"{which}b0", f"{which}a0", f"{which}b1", f"{which}a1"]


async def test_a_durable_wait_of_a_week_ends_with_its_message_or_without(make_engine):
    """S3-12 B13 The deadline is kept over whatever happens meanwhile; None is a message."""

    @workflow
    async def approval(ctx: Context) -> Any:
        return await ctx.receive("approval", timeout=timedelta(days=7), default="nobody answered")

    engine = await make_engine(approval)
    answered, silent = [await engine.start(approval) for _ in range(2)]
    await engine.advance(timedelta(days=6, hours=23))
    await answered.send("approval", None)
    assert await answered.result() is None
    assert await silent.status() is Status.SUSPENDED
    await engine.advance(2 * HOUR)
    assert await silent.status() is Status.COMPLETED
    assert await silent.result() == "nobody answered"


# Sent once.


async def test_a_message_with_an_id_is_sent_once(make_engine):
    """G7 S3-27 Ten at once and one later: one is accepted; the others say so. Ids belong to a run."""
    engine = await make_engine(take)
    first, second = [await engine.start(take, "item", 2) for _ in range(2)]
    accepted = await asyncio.gather(*(first.send("item", n, id="m1") for n in range(10)))
    assert sorted(accepted) == [False] * 9 + [True]
    await engine.settle()
    assert await first.send("item", "again", id="m1") is False
    assert await second.send("item", "other", id="m1") is True
    for run in (first, second):
        assert await run.send("item", "last") is True
    assert await first.result() == [accepted.index(True), "last"]
    assert await second.result() == ["other", "last"]


async def test_an_id_is_known_in_the_next_life_of_its_run(make_engine):
    """G7 continue_as_new forgets the history, not what was taken."""

    @workflow
    async def lives(ctx: Context, seen: list[Any]) -> list[Any]:
        if len(seen) == 2:
            return seen
        ctx.continue_as_new([*seen, await ctx.receive("item")])

    engine = await make_engine(lives)
    run = await engine.start(lives, [])
    assert await run.send("item", 1, id="m1")
    await engine.settle()
    assert not await run.send("item", 1, id="m1")
    await run.send("item", 2, id="m2")
    assert await run.result() == [1, 2]


async def test_a_message_that_was_taken_is_a_duplicate_also_when_its_run_has_ended(make_engine):
    """G7 Whoever repeats after a crash must not be told that nobody will take what was taken."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 1)
    assert await run.send("item", 1, id="m1")
    assert await run.result() == [1]
    assert await run.send("item", 1, id="m1") is False
    with pytest.raises(RunTerminal):
        await run.send("item", 2, id="m2")


@pytest.mark.parametrize("wrong", ["", 7, "x" * 256])
async def test_an_id_that_is_none_is_refused(make_engine, wrong):
    """GUARANTEES 6.11 Before anything is stored: the run can still be read."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 1)
    with pytest.raises(BadInput, match="must be a text of 1 to 255 characters"):
        await run.send("item", 1, id=wrong)
    await run.send("item", 2)
    assert await run.result() == [2]


@restarts
async def test_a_send_of_unknown_outcome_is_repeated_with_its_id(make_engine, tmp_path):
    """G7 G14 Two hundred messages, many acknowledged only at the second or third try: each is taken once, in order."""
    worker = await make_engine(take, database=f"sqlite:///{tmp_path / 'one.db'}")
    run = await worker.start(take, "item", 100)
    client = await make_engine(
        take, database=f"sqlite:///{tmp_path / 'one.db'}", run_workflows=False, clock=worker.jumping
    )
    lost = client.faults.lose_answer(None, skip=2, every=3)
    for number in range(100):
        while True:
            try:
                await client.get(run.id).send("item", number, id=f"m{number}")
                break
            except StoreError:
                continue
    assert lost.injected >= 30, "answers must have been lost"
    assert await asyncio.wait_for(run.result(), LONG) == list(range(100))


# Too many.


async def test_too_many_messages_of_a_name_are_refused(make_engine):
    """B23 S2-35 QueueFull names the run and the way out; other names and other runs are not concerned."""
    engine = await make_engine(take, events=[Event(name="item", max_pending=3)])
    run, other = [await engine.start(take, "go", 1) for _ in range(2)]
    for number in range(3):
        await run.send("item", number)
    with pytest.raises(QueueFull, match=rf"too many 'item' wait already of run '{run.id}': see max_pending"):
        await run.send("item", 3)
    await run.send("other")
    await other.send("item")
    await run.send("go")
    await run.result()


async def test_there_is_room_again_when_a_message_was_taken(make_engine):
    """B23 What waits is counted, not what was ever sent."""
    engine = await make_engine(take, events=[Event(name="item", max_pending=2)])
    run = await engine.start(take, "item", 50)
    for number in range(50):
        await run.send("item", number)
        await engine.settle()
    assert await run.result() == list(range(50))


@pytest.mark.parametrize("mode", ["file"])
async def test_ten_thousand_messages_of_a_name_wait_unless_said_otherwise(make_engine):
    """B23 S2-35 G7 And the ten thousand are taken in order."""

    @workflow
    async def all_of_them(ctx: Context) -> int:
        async for lap in ctx.loop("items", state=0):
            if await lap.receive("item") != lap.state:
                raise ValueError(f"{lap.state} is missing")
            lap.state += 1
            if lap.state == 10_000:
                break
        return 10_000

    client = await make_engine(all_of_them, run_workflows=False)
    run = await client.start(all_of_them)
    await asyncio.gather(*(run.send("item", number) for number in range(10_000)))
    with pytest.raises(QueueFull):
        await run.send("item", 10_000)
    worker = await make_engine(all_of_them, clock=client.jumping)
    assert await worker.get(run.id).result() == 10_000


async def test_too_many_messages_from_a_workflow_are_refused_when_awaited(make_engine):
    """B23 Live and replayed alike."""

    @workflow
    async def sender(ctx: Context, target: str) -> int:
        sent = 0
        try:
            for number in range(5):
                await ctx.send(target, "item", number)
                sent += 1
        except QueueFull:
            await ctx.receive("go on")
        return sent

    engine = await make_engine(take, sender, events=[Event(name="item", max_pending=3)])
    target = await engine.start(take, "go", 1)
    run = await engine.start(sender, target.id)
    await engine.settle()
    await run.send("go on")
    assert await run.result() == 3


# Too late.


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled"])
async def test_a_message_that_comes_too_late_may_be_kept_as_a_dead_letter(make_engine, how):
    """S2-19 G7 G12 B9 Only if that was asked for; once, however often it is sent with its id."""

    @workflow
    async def short(ctx: Context) -> None:
        if how == "failed":
            raise ValueError("no")
        if how == "cancelled":
            await ctx.receive("never")

    engine = await make_engine(short)
    run = await engine.start(short, id="short")
    await engine.settle()
    await run.cancel()
    await engine.settle()
    assert await run.status() == how
    with pytest.raises(RunTerminal):
        await engine.get("short").send("item", 1)
    assert await engine.dead_letters.list(kind="event") == []
    assert await engine.get("short").send("item", {"n": 1}, id="m1", dead_letter=True)
    assert not await engine.get("short").send("item", {"n": 1}, id="m1", dead_letter=True)
    (letter,) = await engine.dead_letters.list(kind="event")
    assert (letter.name, letter.payload, letter.run_id, letter.target_status) == ("item", {"n": 1}, "short", how)
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").send("item", dead_letter=True)


async def test_a_dead_letter_is_asked_for_but_not_needed(make_engine):
    """G7 The run is open: it is a message like any other."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 1)
    await run.send("item", 1, dead_letter=True)
    assert await run.result() == [1]
    assert await engine.dead_letters.list() == []


# From several sides.


@restarts
async def test_a_claimed_run_has_all_its_messages_at_once(make_engine, tmp_path):
    """S1-17 They are loaded with its history when it is claimed; taking them asks the store for nothing."""
    client = await make_engine(take, database=f"sqlite:///{tmp_path / 'one.db'}", run_workflows=False)
    run = await client.start(take, "item", 100)
    for number in range(100):
        await run.send("item", number)
    await client.stop()
    store = SQLiteStore(str(tmp_path / "one.db"))
    faults = Faults(store)
    worker = await make_engine(take, store=store, clock=client.jumping)
    assert await worker.get(run.id).result() == list(range(100))
    assert faults.calls["claim"] > 0
    assert faults.calls["inboxes"] == 0


@restarts
async def test_handles_of_one_run_in_several_engines_send_to_one_inbox(make_engine):
    """S1-43 S2-29 The handle sends and shows the result; runs of one id share one history."""
    engines = [await make_engine(take)]
    engines.append(await make_engine(take, clock=engines[0].jumping))
    handles = [await engine.start(take, "item", 100, id="same") for engine in engines]

    async def send(which: int) -> None:
        for number in range(50):
            await handles[which].send("item", (which, number))

    await asyncio.gather(send(0), send(1))
    results = await asyncio.gather(*(asyncio.wait_for(handle.result(), LONG) for handle in handles))
    assert results[0] == results[1]
    for which in (0, 1):
        assert [number for sender, number in results[0] if sender == which] == list(range(50))
