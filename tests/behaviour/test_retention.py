"""Retention end to end: what is over goes after its time, what is open never, and ids outlive their runs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Event, NoSuchRun, Retention, Retry, RunConflict, RunFailed, Status, activity, workflow
from holdfast.errors import BadInput, CannotReopen

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
YEAR = timedelta(days=365)

shared = pytest.mark.parametrize("mode", ["file", "evict"])


def kept(**ages: Any) -> Retention:
    """Return a retention that sweeps only when it is told to."""
    return Retention(**{"on_start": False, "every": YEAR, "pause": timedelta(0), **ages})


@workflow
async def ask(ctx: Context) -> Any:
    word = await ctx.receive("word")
    if word == "fail":
        raise ValueError("no")
    return word


@workflow
async def quick(ctx: Context, number: int = 0) -> int:
    return number


async def gone(run: Any) -> bool:
    try:
        await run.status()
    except NoSuchRun:
        return True
    return False


async def test_runs_go_when_they_have_been_over_for_as_long_as_their_status_says(make_engine):
    """S0-39 S0-59 completedExecutionRetention and the like; each is counted and told once, open ones never go."""
    purged: list[tuple[str, str]] = []
    ages = kept(completed=DAY, failed=3 * DAY, cancelled=2 * DAY, on_purged=lambda what, id: purged.append((what, id)))
    engine = await make_engine(ask, retention=ages)
    runs = {end: await engine.start(ask, id=end) for end in ("completed", "failed", "cancelled", "open")}
    await engine.settle()
    await runs["completed"].send("word", "hello")
    await runs["failed"].send("word", "fail")
    await runs["cancelled"].cancel()
    await engine.settle()
    for days, expected in ((1, "completed"), (1, "cancelled"), (1, "failed")):
        engine.jumping.advance(days * DAY + timedelta(seconds=1))
        counts = await engine.sweep()
        assert {kind: count for kind, count in counts.items() if count} == {expected: 1}
        assert purged[-1] == (expected, expected)
        assert await gone(runs[expected])
    engine.jumping.advance(3 * YEAR)
    await engine.sweep()
    assert len(purged) == 3
    await runs["open"].send("word", "still here")
    assert await runs["open"].result() == "still here"


async def test_a_sweep_can_be_asked_for(make_engine):
    """S0-59 By call it returns the counts; an engine that keeps everything says so."""
    engine = await make_engine(quick, retention=kept(completed=DAY, batch=2))
    await engine.start_many(quick, range(5))
    await engine.settle()
    assert (await engine.sweep())["completed"] == 0
    engine.jumping.advance(2 * DAY)
    assert (await engine.sweep())["completed"] == 5
    assert await engine.runs() == []
    keeper = await make_engine(quick, database=":memory:")
    with pytest.raises(BadInput, match="retention"):
        await keeper.sweep()


async def test_an_engine_sweeps_by_itself_when_it_opens_and_from_time_to_time(make_engine):
    """S0-39 cleanup{onStart, ...}"""
    purged: list[str] = []
    ages = Retention(
        completed=DAY, every=timedelta(milliseconds=5), on_purged=lambda what, id: purged.append(f"{what} {id}")
    )
    engine = await make_engine(quick, retention=ages)
    for number in range(2):
        await engine.start(quick, id=f"r{number}")
        await engine.settle()
        engine.jumping.advance(2 * DAY)
        await eventually(lambda number=number: purged == [f"completed r{each}" for each in range(number + 1)])


@shared
async def test_the_next_engine_sweeps_when_it_opens_unless_it_is_a_client(make_engine):
    """S0-39 onStart; a client leaves everything alone."""
    purged: list[str] = []
    ages = Retention(completed=DAY, on_purged=lambda what, id: purged.append(id))
    first = await make_engine(quick)
    await first.start(quick, id="old")
    await first.settle()
    await first.stop()
    first.jumping.advance(2 * DAY)
    client = await make_engine(quick, clock=first.jumping, retention=ages, run_workflows=False)
    await client.settle()
    assert [run.id for run in await client.runs()] == ["old"]
    await make_engine(quick, clock=first.jumping, retention=ages)
    await eventually(lambda: purged == ["old"])


@shared
async def test_two_engines_that_sweep_at_once_tell_of_each_run_once(make_engine):
    """S0-59 S0-60"""
    purged: list[str] = []
    ages = kept(completed=DAY, batch=3, on_purged=lambda what, id: purged.append(id))
    first = await make_engine(quick, retention=ages)
    second = await make_engine(quick, retention=ages, clock=first.jumping)
    await first.start_many(quick, range(40))
    await first.settle()
    first.jumping.advance(2 * DAY)
    counts = await asyncio.gather(first.sweep(), second.sweep())
    assert sum(count["completed"] for count in counts) == len(purged) == len(set(purged)) == 40


async def test_what_a_callback_raises_is_told_and_changes_nothing(make_engine, caplog):
    """S0-59 B19 The run is gone all the same, and so are those after it."""
    told: list[Any] = []

    def broken(what: str, id: str) -> None:
        raise RuntimeError(f"cannot archive {id}")

    engine = await make_engine(quick, retention=kept(completed=DAY, on_purged=broken), on_change=told.append)
    await engine.start_many(quick, [1, 2], id=lambda number: f"r{number}")
    await engine.settle()
    engine.jumping.advance(2 * DAY)
    assert (await engine.sweep())["completed"] == 2
    assert await engine.runs() == []
    errors = [change.data for change in told if change.type == "callback.error"]
    assert [(data["callback"], data["error"]) for data in errors] == [
        ("on_purged", "RuntimeError: cannot archive r1"),
        ("on_purged", "RuntimeError: cannot archive r2"),
    ]
    assert [change.data["completed"] for change in told if change.type == "purged"] == [2]


async def test_a_listing_goes_on_though_its_last_run_was_purged(make_engine):
    """S0-59 S2-39 Page by page, while a sweep goes on beside it."""
    engine = await make_engine(quick, retention=kept(completed=DAY))
    await engine.start_many(quick, range(4), id=lambda number: f"r{number}")
    await engine.settle()
    page = await engine.runs(limit=2)
    engine.jumping.advance(2 * DAY)
    await engine.start(quick, id="new")
    await engine.sweep()
    assert await engine.runs(limit=2, before=page[-1]) == []


# Ids outlive runs.


async def test_the_id_of_a_purged_run_is_taken_until_its_time_is_over(make_engine):
    """B16 G2 A tombstone of id and input: equal input runs nothing again, other input is a conflict."""
    ran: list[int] = []

    async def body(number: int) -> None:
        ran.append(number)

    @workflow
    async def work(ctx: Context, number: int) -> None:
        await ctx.step(body, number)

    engine = await make_engine(work, quick, retention=kept(completed=DAY, ids=YEAR))
    await engine.execute(work, 1, id="one")
    engine.jumping.advance(2 * DAY)
    assert (await engine.sweep())["completed"] == 1
    assert (await engine.start(work, 1, id="one")).id == "one"
    assert (await engine.start_many(work, [1], id=lambda number: "one"))[0].id == "one"
    with pytest.raises(RunConflict, match="one"):
        await engine.start(work, 2, id="one")
    with pytest.raises(RunConflict, match="work"):
        await engine.start(quick, 1, id="one")
    with pytest.raises(NoSuchRun):
        await engine.get("one").result()
    await engine.settle()
    assert ran == [1]
    engine.jumping.advance(YEAR + HOUR)
    assert (await engine.sweep())["ids"] == 1
    await engine.execute(work, 2, id="one")
    assert ran == [1, 2]


async def test_a_schedule_does_not_run_a_tick_again_whose_run_was_purged(make_engine):
    """B16 S0-54 Nor does a backfill."""
    engine = await make_engine(quick, retention=kept(completed=HOUR))
    schedule = await engine.schedules.put("s", quick, every=HOUR)
    await engine.advance(3.5 * HOUR)
    assert (await engine.sweep())["completed"] == 2
    assert await engine.schedules.backfill("s", schedule.starting, schedule.starting + DAY) == [
        f"s:{schedule.starting:%Y%m%dT%H%M%S}.{schedule.starting.microsecond:06}Z"
    ]


# What hangs together.


async def test_a_child_goes_on_when_its_parent_is_gone(make_engine):
    """S0-59 G10 Nobody waits for it; its end has nowhere to go, and it ends."""

    @workflow
    async def parent(ctx: Context) -> None:
        ctx.child(ask, id="kid")

    engine = await make_engine(parent, ask, retention=kept(completed=DAY))
    await engine.execute(parent, id="dad")
    engine.jumping.advance(2 * DAY)
    assert (await engine.sweep())["completed"] == 1
    kid = engine.get("kid")
    assert (await kid.describe()).parent == "dad"
    await kid.send("word", "orphan")
    assert await kid.result() == "orphan"


@pytest.mark.parametrize("word", ["hello", "fail"])
async def test_a_child_that_is_gone_has_left_its_result_with_its_parent(make_engine, word):
    """S0-59 G10 G3 A retry of the parent that needs the child's failure undone says why it cannot be."""

    @workflow
    async def parent(ctx: Context) -> Any:
        child = ctx.child(ask, id="kid")
        await ctx.receive("go")
        return await child

    engine = await make_engine(parent, ask, retention=kept(completed=DAY, failed=DAY))
    dad = await engine.start(parent, id="dad")
    await engine.settle()
    await engine.get("kid").send("word", word)
    await engine.settle()
    engine.jumping.advance(2 * DAY)
    await engine.sweep()
    assert await gone(engine.get("kid"))
    await dad.send("go")
    if word == "hello":
        assert await dad.result() == "hello"
        return
    with pytest.raises(RunFailed):
        await dad.result()
    with pytest.raises(CannotReopen, match=r"kid.*purged"):
        await dad.retry()


async def test_evidence_the_audit_trail_and_dead_letters_outlive_their_run(make_engine):
    """S0-39 S3-19 G12 A letter goes only when somebody has seen it."""

    @workflow
    async def work(ctx: Context) -> None:
        ctx.evidence("decision", {"score": 7})
        raise ValueError("no")

    engine = await make_engine(work, retention=kept(failed=DAY, acknowledged_dead_letters=DAY))
    run = await engine.start(work, id="r")
    with pytest.raises(RunFailed):
        await run.result()
    await run.set_attributes({"reviewed": True}, by="kim")
    engine.jumping.advance(2 * DAY)
    counts = await engine.sweep()
    assert (counts["failed"], counts["dead_letters"]) == (1, 0)
    assert [item.data for item in await engine.audit.evidence("r")] == [{"score": 7}]
    assert [record.actor for record in await engine.audit.records(target="r")] == ["kim"]
    assert (await engine.audit.verify()).ok
    assert (await engine.audit.verify_evidence("r")).ok
    (letter,) = await engine.dead_letters.list()
    assert letter.run_id == "r"
    await engine.dead_letters.acknowledge(letter.id)
    assert (await engine.sweep())["dead_letters"] == 1


@shared
async def test_results_under_idempotency_keys_are_kept_apart_from_runs(make_engine):
    """S3-15 Runs, steps and cached results are three stores in one: shared by engines, or in memory for one alone."""
    calls: list[int] = []

    @activity(idempotency_key=lambda order: f"pay-{order}")
    async def pay(order: int) -> str:
        calls.append(order)
        return f"receipt {len(calls)}"

    @workflow
    async def shop(ctx: Context, order: int) -> str:
        return await ctx.step(pay, order)

    first = await make_engine(shop, retention=kept(completed=HOUR))
    assert await first.execute(shop, 1) == "receipt 1"
    first.jumping.advance(2 * HOUR)
    assert (await first.sweep())["completed"] == 1
    assert await first.runs() == []
    second = await make_engine(shop, clock=first.jumping)
    run = await second.start(shop, 1)
    assert await asyncio.wait_for(run.result(), LONG) == "receipt 1"
    alone = await make_engine(shop, database=":memory:")
    assert await alone.execute(shop, 1) == "receipt 2"
    assert calls == [1, 1]


async def test_events_nobody_took_go_and_steps_under_way_stay(make_engine):
    """S0-59 S2-35 A run whose step runs for days is open, however old it is."""
    gate = asyncio.Event()

    @activity(retry=Retry.never)
    async def long() -> str:
        await gate.wait()
        return "done"

    @workflow
    async def work(ctx: Context) -> str:
        return await ctx.step(long)

    engine = await make_engine(
        work, events=[Event(name="price", on_target_ended="discard")], retention=kept(completed=DAY, events=DAY)
    )
    run = await engine.start(work)
    await engine.publish("price", 5)
    engine.jumping.advance(YEAR)
    counts = await engine.sweep()
    assert {kind: count for kind, count in counts.items() if count} == {"events": 1}
    gate.set()
    assert await run.result() == "done"
    assert await run.status() is Status.COMPLETED
