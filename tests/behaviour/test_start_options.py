"""What may be said of a run when it is started: its beginning, its deadline, its urgency, what it is found by."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Context, RunCancelled, RunConflict, RunFailed, Status, workflow
from holdfast.errors import BadInput, InvalidDuration, RunTimeout

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])
anywhere = pytest.mark.parametrize("mode", ["memory"])  # refused before any store is asked


@workflow
async def quick(ctx: Context, number: int = 0) -> int:
    return number


@workflow
async def ask(ctx: Context) -> Any:
    return await ctx.receive("word")


@workflow
async def urgent(ctx: Context, priority: int = 1) -> int:
    return priority


async def test_a_start_gives_a_run_with_its_id_its_input_and_its_first_step(make_engine):
    """S0-14 S2-3 The id is known, the input stored and the first step counted when start returns."""
    gate = asyncio.Event()

    async def first(number: int) -> int:
        await gate.wait()
        return number

    @workflow
    async def work(ctx: Context, number: int, label: str = "none") -> int:
        return await ctx.step(first, number)

    engine = await make_engine(work)
    keyed = await engine.start(work, 8, unique_key="eight", on_conflict="raise")
    run = await engine.start(work, 7)
    for handle, number in ((keyed, 8), (run, 7)):
        seen = await handle.describe()
        assert (seen.id, seen.input, seen.status) == (handle.id, {"number": number, "label": "none"}, Status.RUNNING)
    assert [(step.name, step.status) for step in await run.steps()] == [("first", "running")]
    gate.set()
    assert await run.result() == 7


# When it begins.


async def test_a_delayed_run_begins_after_its_delay_and_not_before(make_engine):
    """S0-14 G9 Its own time begins with it: nothing of its code runs until then."""

    @workflow
    async def clock(ctx: Context) -> str:
        return ctx.now().isoformat()

    engine = await make_engine(clock, start=BEGIN)
    run = await engine.start(clock, delay=HOUR)
    await engine.advance(HOUR - timedelta(microseconds=1))
    seen = await run.describe()
    assert (seen.status, seen.begins_at, seen.due_at) == (Status.PENDING, BEGIN + HOUR, BEGIN + HOUR)
    assert await run.history() == []
    assert await run.result() == "2026-03-01T13:00:00+00:00"


async def test_a_run_may_be_given_the_instant_at_which_it_begins(make_engine):
    """S0-14 One that is past is now."""
    engine = await make_engine(quick, start=BEGIN)
    late = await engine.start(quick, 1, start_at=BEGIN + DAY)
    past = await engine.start(quick, 2, start_at=BEGIN - DAY)
    await engine.settle()
    assert [(await run.describe()).begins_at for run in (late, past)] == [BEGIN + DAY, None]
    assert [await run.status() for run in (late, past)] == [Status.PENDING, Status.COMPLETED]
    assert await late.result() == 1


@restarts
async def test_a_delay_outlives_the_engine(make_engine):
    """G1 G9 Begun by another engine, late, if nobody was there in time."""
    first = await make_engine(quick, start=BEGIN)
    run = await first.start(quick, 5, delay=HOUR, id="later")
    await first.stop()
    first.jumping.advance(3 * HOUR)
    second = await make_engine(quick, clock=first.jumping)
    await second.settle()
    assert await second.get(run.id).status() is Status.COMPLETED


async def test_what_is_sent_to_a_run_that_has_not_begun_waits_for_it(make_engine):
    """G7 A message comes before the first line of code."""
    engine = await make_engine(ask)
    run = await engine.start(ask, delay=HOUR)
    await run.send("word", "early")
    await engine.settle()
    assert await run.status() is Status.PENDING
    assert await run.result() == "early"


async def test_a_run_cancelled_before_it_begins_ends_at_once_and_runs_no_code(make_engine):
    """B7 Nobody has to be told, and its time does not bring it back."""
    ran: list[int] = []

    @workflow
    async def work(ctx: Context) -> None:
        ran.append(1)

    engine = await make_engine(work)
    run = await engine.start(work, delay=HOUR, id="never")
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await engine.advance(DAY)
    assert ran == []


# How long it may take.


async def test_a_run_that_takes_too_long_is_cut_off_cleans_up_and_fails(make_engine):
    """S3-22 GUARANTEES 6.16 RunTimeout is the cause; a receive with a default inside the time is not disturbed."""
    noted: list[str] = []

    async def note(word: str) -> None:
        noted.append(word)

    @workflow
    async def slow(ctx: Context) -> None:
        await ctx.step(note, await ctx.receive("word", timeout=timedelta(minutes=10), default="nothing came"))
        try:
            await ctx.receive("word")
        finally:
            await ctx.step(note, ctx.now().isoformat())

    engine = await make_engine(slow, start=BEGIN)
    run = await engine.start(slow, timeout=HOUR)
    with pytest.raises(RunFailed, match="deadline") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, RunTimeout)
    assert noted == ["nothing came", (BEGIN + HOUR).isoformat()]
    seen = await run.describe()
    assert (seen.deadline_at, seen.ended_at) == (BEGIN + HOUR, BEGIN + HOUR)


async def test_the_time_a_run_may_take_counts_from_its_beginning(make_engine):
    """S3-23 Not from its start, if it begins later."""
    engine = await make_engine(ask, start=BEGIN)
    run = await engine.start(ask, delay=DAY, timeout=HOUR)
    await engine.advance(DAY + HOUR / 2)
    assert (await run.describe()).deadline_at == BEGIN + DAY + HOUR
    assert await run.status() is Status.SUSPENDED
    with pytest.raises(RunFailed):
        await run.result()


async def test_a_run_that_ends_in_time_never_hears_of_its_deadline(make_engine):
    """Nor does the engine wake for it."""
    engine = await make_engine(ask)
    run = await engine.start(ask, timeout=HOUR)
    await engine.settle()
    await run.send("word", "in time")
    assert await run.result() == "in time"
    await engine.advance(DAY)
    assert await run.status() is Status.COMPLETED


@restarts
async def test_a_deadline_that_passed_while_no_engine_was_there_counts(make_engine):
    """G9 The next engine cuts the run off at once."""
    first = await make_engine(ask)
    run = await first.start(ask, timeout=HOUR)
    await first.settle()
    await first.stop()
    first.jumping.advance(2 * HOUR)
    second = await make_engine(ask, clock=first.jumping)
    await second.settle()
    assert await second.get(run.id).status() is Status.FAILED


# How urgent it is.


async def test_of_many_due_runs_the_more_urgent_go_first_then_the_longer_due_then_the_older(make_engine):
    """B22 Priority descending, then when they were due, then the order of their starts."""
    order: list[str] = []

    async def body(label: str) -> None:
        order.append(label)

    @workflow
    async def work(ctx: Context, label: str) -> None:
        await ctx.step(body, label)

    engine = await make_engine(work, max_steps=1)
    wanted = [("low", -5, 1), ("late", 0, 3), ("early", 0, 1), ("top", 100, 3), ("tie 1", 7, 2), ("tie 2", 7, 2)]
    runs = [await engine.start(work, label, priority=priority, delay=hours * HOUR) for label, priority, hours in wanted]
    engine.jumping.advance(5 * HOUR)  # all of them at once, as after an outage
    for run in runs:
        await run.result()
    assert order == ["top", "tie 1", "tie 2", "early", "late", "low"]


async def test_a_priority_shows_and_outlives_the_start(make_engine):
    """B22"""
    engine = await make_engine(quick)
    run = await engine.start(quick, priority=-100)
    assert (await run.describe()).priority == -100


# What it is found by.


async def test_runs_are_found_by_attributes_actor_and_tenant(make_engine):
    """S0-53 getExecutionsByMetadata({moveId}); all that is named must be equal."""
    engine = await make_engine(ask)
    for number, (actor, tenant) in enumerate((("kim", "acme"), ("kim", "other"), ("lee", "acme"))):
        await engine.start(
            ask, id=f"r{number}", actor=actor, tenant=tenant, attributes={"move_id": number, "rush": number == 1}
        )

    async def found(**which: Any) -> list[str]:
        return sorted(run.id for run in await engine.runs(**which))

    assert await found(attributes={"move_id": 1}) == ["r1"]
    assert await found(attributes={"rush": False}) == ["r0", "r2"]
    assert await found(attributes={"rush": False, "move_id": 2}) == ["r2"]
    assert await found(attributes={"move_id": "1"}) == []
    assert await found(actor="kim") == ["r0", "r1"]
    assert await found(actor="kim", tenant="acme") == ["r0"]
    assert await found(tenant="acme", attributes={"rush": True}) == []
    seen = await engine.get("r1").describe()
    assert (seen.actor, seen.tenant, seen.attributes) == ("kim", "other", {"move_id": 1, "rush": True})


async def test_what_a_run_and_people_say_of_it_later_is_found_too(make_engine):
    """S0-53 Set by the code, by name from outside, removed by None; also of a run that has ended."""

    @workflow
    async def move(ctx: Context) -> None:
        ctx.set_attributes(stage="packed", boxes=3)
        await ctx.receive("word")
        ctx.set_attributes({"stage": "gone", "boxes": None})

    engine = await make_engine(move)
    run = await engine.start(move, attributes={"stage": "new", "move_id": 9})
    await engine.settle()
    assert [found.id for found in await engine.runs(attributes={"stage": "packed", "boxes": 3})] == [run.id]
    assert await engine.runs(attributes={"stage": "new"}) == []
    await run.send("word")
    await run.result()
    await run.set_attributes({"reviewed": True}, by="kim")
    assert (await run.describe()).attributes == {"stage": "gone", "move_id": 9, "reviewed": True}


async def test_a_number_finds_its_equal(make_engine):
    """S0-53 1 and 1.0 are one value, as they are in Python."""
    engine = await make_engine(quick)
    await engine.start(quick, id="a", attributes={"weight": 1})
    assert [run.id for run in await engine.runs(attributes={"weight": 1.0})] == ["a"]


# Many at once.


async def test_many_runs_are_started_with_one_call_in_order(make_engine):
    """S2-3 S0-53 A tuple is several arguments; an id is made from them; options are the same for all."""

    @workflow
    async def add(ctx: Context, left: int, right: int = 1) -> int:
        return left + right

    engine = await make_engine(add)
    runs = await engine.start_many(
        add, [(1, 2), 5, (7,)], id=lambda left, right=1: f"{left}-{right}", attributes={"batch": "b1"}
    )
    assert [run.id for run in runs] == ["1-2", "5-1", "7-1"]
    assert [await run.result() for run in runs] == [3, 6, 8]
    assert len(await engine.runs(attributes={"batch": "b1"})) == 3
    again = await engine.start_many(add, [(1, 2)], id=lambda left, right: f"{left}-{right}")
    assert await again[0].result() == 3
    assert await engine.start_many(add, []) == []


async def test_one_of_many_that_cannot_be_started_is_told_after_the_others_were(make_engine):
    """GUARANTEES 6.14 Nothing of the bad one is stored."""
    engine = await make_engine(quick)
    with pytest.raises(BadInput, match="number"):
        await engine.start_many(quick, [1, "two", 3])
    await engine.settle()
    assert sorted(run.output for run in await engine.runs()) == [1, 3]


@pytest.mark.parametrize("mode", ["memory"])
async def test_very_many_are_started_by_the_thousand_whichever_of_them_cannot_be(make_engine):
    """GUARANTEES 6.14 At no time are there coroutines for more than a thousand of them."""
    engine = await make_engine(quick)
    most = 0

    def id_of(number: object) -> str:
        return f"n{number}"

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(asyncio.all_tasks()))
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    with pytest.raises(BadInput, match="number"):
        await engine.start_many(quick, ["bad", *range(2_100)], id=id_of, delay=HOUR)
    counting.cancel()
    assert sum((await engine.stats()).values()) == 2_100
    assert 1_000 <= most < 1_100


# Ids and options.


async def test_a_second_start_of_an_id_changes_nothing_about_the_run(make_engine):
    """G2 B16 Options are no part of the input: the first start's count."""
    engine = await make_engine(ask)
    await engine.start(ask, id="one", priority=5, attributes={"a": 1}, delay=HOUR)
    again = await engine.start(ask, id="one", priority=9, attributes={"a": 2}, actor="kim")
    seen = await again.describe()
    assert (seen.priority, seen.attributes, seen.actor, seen.status) == (5, {"a": 1}, None, Status.PENDING)


async def test_racing_delayed_starts_of_one_id_give_one_run(make_engine):
    """G2 B16 Those with other input are told."""
    engine = await make_engine(quick)
    starts = (engine.start(quick, number % 2, id="one", delay=HOUR) for number in range(20))
    ends = await asyncio.gather(*starts, return_exceptions=True)
    assert sum(isinstance(end, RunConflict) for end in ends) == 10
    assert not engine.offers("lists") or len(await engine.runs()) == 1


# What makes no sense.


SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"priority": 101}, "priority"),
    ({"priority": True}, "priority"),
    ({"priority": "high"}, "priority"),
    ({"delay": -HOUR}, "delay"),
    ({"delay": 60}, r"delay.*timedelta\(seconds=60\)"),
    ({"delay": HOUR, "start_at": BEGIN}, "not both"),
    ({"start_at": datetime(2026, 1, 1)}, "start_at.*time zone"),  # noqa: DTZ001  # the very thing under test
    ({"timeout": -HOUR}, "timeout"),
    ({"timeout": 5}, "timeout"),
    ({"timeout": timedelta(days=999_999_999)}, "timeout"),
    ({"unique_key": ""}, "unique_key"),
    ({"unique_key": "k" * 256}, "unique_key"),
    ({"unique_key": 7}, "unique_key"),
    ({"on_conflict": "ignore"}, "on_conflict"),
    ({"actor": "a\nb"}, "actor"),
    ({"tenant": ""}, "tenant"),
    ({"attributes": {"x": [1]}}, "attribute 'x'"),
    ({"attributes": {"x": float("nan")}}, "attribute 'x'"),
    ({"attributes": {"": 1}}, "attribute name"),
    ({"attributes": "x"}, "mapping"),
    ({"id": ""}, "run id"),
    ({"nmber": 1}, "nmber"),
    ({"timeout": 0}, "timeout"),
    ({"connection": None}, "connection=None"),
    ({"id": "a", "connection": None}, "connection=None"),
]


@anywhere
async def test_options_that_make_no_sense_are_refused_by_name(make_engine):
    """GUARANTEES 6.14 6.16 BadInput or a kind of it, at the call; nothing is stored."""
    engine = await make_engine(quick)
    for options, named in SENSELESS:
        with pytest.raises(BadInput, match=named):
            await engine.start(quick, **options)
        assert await engine.runs() == [], options


@pytest.mark.parametrize("options", [{"delay": timedelta(days=365 * 7990)}, {"timeout": timedelta(days=365 * 7990)}])
async def test_what_would_end_beyond_the_calendar_is_refused(make_engine, options):
    """GUARANTEES 6.16 A run that nobody could look at must not be stored: listing would fail for all the others."""
    engine = await make_engine(ask)
    with pytest.raises(InvalidDuration, match=next(iter(options))):
        await engine.start(ask, **options)
    assert not engine.offers("lists") or await engine.runs() == []


async def test_a_parameter_named_like_an_option_is_never_swallowed(make_engine):
    """GUARANTEES 6.14 It is refused with the way out: by position."""
    engine = await make_engine(urgent)
    with pytest.raises(BadInput, match=r"'priority'.*position"):
        await engine.start(urgent, priority=5)
    assert await engine.runs() == []


async def test_a_parameter_named_like_an_option_goes_by_position(make_engine):
    """GUARANTEES 6.14 Both may be given then."""
    engine = await make_engine(urgent)
    run = await engine.start(urgent, 5, priority=7)
    assert await run.result() == 5
    assert (await run.describe()).priority == 7


async def test_a_parameter_of_a_child_named_like_an_option_is_never_swallowed_either(make_engine):
    """GUARANTEES 6.14 ctx.child has options of its own; the parent is told where it calls."""

    @workflow
    async def parent(ctx: Context, by_position: bool) -> int:
        return await (ctx.child(urgent, 5, priority=7) if by_position else ctx.child(urgent, priority=5))

    engine = await make_engine(parent, urgent)
    assert await engine.execute(parent, True) == 5
    with pytest.raises(RunFailed, match=r"'priority'.*position"):
        await engine.execute(parent, False)
