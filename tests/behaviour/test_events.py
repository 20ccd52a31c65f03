"""Events by name: who is given one, which of them, and how often."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.event_cases import HOUR, SECOND, late, queued, received, take, waiting

from holdfast import Context, Event, Status, workflow

# Who is given it.


async def test_an_event_goes_to_the_run_that_has_waited_longest(make_engine):
    """S2-14 S2-15 B29 G8 One reader each, in the order of suspension, whatever the order of ids."""
    engine = await make_engine(take)
    runs = await waiting(engine, take, "price", ids="cab")
    for number in range(3):
        assert await engine.publish("price", number) == 1
    assert [await run.result() for run in runs] == [[0], [1], [2]]
    assert await queued(engine) == {}


async def test_an_event_for_nobody_is_queued_and_is_no_error(make_engine):
    """S2-14 S2-42 The first wait to come takes the oldest, in the commit that would have made it wait."""
    engine = await make_engine(take)
    for number in range(3):
        assert await engine.publish("price", number) == 0
    assert await queued(engine) == {"price": 3}
    assert (await engine.stats())["pending_events"] == 3
    run = await engine.start(take, "price", 2)
    assert await run.result() == [0, 1]
    assert await queued(engine) == {"price": 1}


async def test_an_event_for_everybody_reaches_each_waiting_run_at_its_own_place(make_engine):
    """S2-15 S2-41 B30 G8 The value is recorded in each run's history, where that run waits, and each goes on."""

    async def nothing() -> None: ...

    @workflow
    async def after_some(ctx: Context, before: int) -> Any:
        for number in range(before):
            await ctx.step(f"before{number}", nothing)
        return await ctx.receive("price")

    engine = await make_engine(after_some, events=[Event(name="price", consume_on_read=False)])
    runs = [await engine.start(after_some, number) for number in range(5)]
    await engine.settle()
    assert await engine.publish("price", 7, id="e1") == 5
    assert [await run.result() for run in runs] == [7] * 5
    for run in runs:
        (fact,) = await received(run)
        assert (fact.name, fact.id, bytes(fact.payload), fact.source) == ("price", "e1", b"7", "notice")


async def test_runs_that_have_ended_are_given_nothing(make_engine):
    """S2-14 Completed, failed, cancelled and terminated runs neither take an event nor swallow one."""

    @workflow
    async def either(ctx: Context) -> str:
        name, _ = await ctx.receive(["price", "end", "fail"])
        if name == "fail":
            raise ValueError("no")
        return name

    engine = await make_engine(either)
    completed, failed, cancelled, terminated, living = await waiting(engine, either, ids="abcde")
    await completed.send("end")
    await failed.send("fail")
    await cancelled.cancel()
    await terminated.terminate()
    await engine.settle()
    assert await engine.publish("price") == 1
    assert await living.result() == "price"
    assert await queued(engine) == {}


async def test_a_blocked_run_does_not_take_what_others_wait_for(make_engine):
    """G8 G13 It cannot go on; when its code is put right it waits again."""

    @workflow
    async def wrong(ctx: Context) -> None:
        async def waits(branch: Context) -> None:
            await branch.receive("price")

        async def breaks(branch: Context) -> None:
            await branch.receive("go")
            await asyncio.to_thread(print)

        await ctx.join({"waits": waits, "breaks": breaks})

    engine = await make_engine(wrong, take)
    blocked = await engine.start(wrong)
    await engine.advance(SECOND)
    healthy = await engine.start(take, "price")
    await engine.settle()
    await blocked.send("go")
    await engine.settle()
    assert await blocked.status() is Status.BLOCKED
    assert await engine.publish("price", 1) == 1
    await engine.settle()
    assert await healthy.status() is Status.COMPLETED


async def test_of_events_for_everybody_each_run_sees_each_once(make_engine):
    """B30 G8 A loop that waits for one name takes what is kept one by one and then waits; it does not spin."""

    @workflow
    async def watch(ctx: Context) -> list[Any]:
        seen: list[Any] = []
        async for lap in ctx.loop("prices", state=0):
            price = await lap.receive("price", timeout=HOUR, default=None)
            if price is None:
                break
            seen.append(price)
        return seen

    engine = await make_engine(watch, events=[Event(name="price", consume_on_read=False)])
    early = await engine.start(watch)
    await engine.settle()
    for number in range(3):
        await engine.publish("price", number)
        await engine.settle()
    latecomer = await engine.start(watch)
    await engine.settle()
    assert await engine.publish("price", 3) == 2
    assert await early.result() == await latecomer.result() == [0, 1, 2, 3]
    assert await queued(engine) == {"price": 4}


async def test_two_waits_of_one_run_are_given_one_event_after_the_other(make_engine):
    """B30 S2-41 Each run sees an event once, however many of its waits are open."""

    @workflow
    async def twice(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.receive("price"), ctx.receive("price")))

    engine = await make_engine(twice, events=[Event(name="price", consume_on_read=False)])
    run = await engine.start(twice)
    await engine.settle()
    assert await engine.publish("price", 1) == 1
    await engine.settle()
    assert await run.status() is Status.SUSPENDED
    assert await engine.publish("price", 2) == 1
    assert await run.result() == [1, 2]


@pytest.mark.parametrize("mode", ["memory", "file"])
async def test_the_wait_that_did_not_take_the_event_goes_on_waiting(make_engine):
    """S2-42 G8 Of two waits of one run the event ends one; the next event must find the other."""

    @workflow
    async def twice(ctx: Context) -> list[Any]:
        await ctx.receive("x", timeout=SECOND, default=None)  # "receive x" is a name of this run from here on
        first, second = ctx.receive(["x", "y"]), ctx.receive("x")
        return [await first, await second]

    engine = await make_engine(twice)
    run = await engine.start(twice)
    await engine.advance(2 * SECOND)
    assert await engine.publish("x", 1) == 1
    await engine.settle()
    assert await engine.publish("x", 2) == 1
    assert await run.result() == [["x", 1], 2]


async def test_a_run_that_was_paused_keeps_its_place_among_those_who_wait(make_engine):
    """B29 G8 The order is that of suspension; what was done to the run since does not matter."""
    engine = await make_engine(take)
    first, second = await waiting(engine, take, "price", ids="ab")
    await first.pause()
    await engine.settle()
    await first.resume()
    await engine.settle()
    for number in (1, 2):
        await engine.publish("price", number)
    assert (await first.result(), await second.result()) == ([1], [2])


async def test_a_run_that_looks_at_something_else_keeps_its_place_among_those_who_wait(make_engine):
    """B29 G8 A message it does not wait for wakes an evicted run, which goes on waiting as before."""
    engine = await make_engine(take)
    first, second = await waiting(engine, take, "price", ids="ab")
    await first.send("other")
    await engine.settle()
    for number in (1, 2):
        await engine.publish("price", number)
    assert (await first.result(), await second.result()) == ([1], [2])


# Which of the queued ones.


@pytest.mark.parametrize(
    ("delivery", "expected"),
    [("all", "ancient"), ("first", "ancient"), ("after_create", "recent"), ("after_wait", "nothing")],
)
@pytest.mark.parametrize("consume_on_read", [True, False])
async def test_the_delivery_mode_says_which_queued_events_a_new_wait_may_take(
    make_engine, delivery, expected, consume_on_read
):
    """B29 S2-15 `ancient` is older than the run, `recent` older than its wait."""
    event = Event(name="price", delivery=delivery, consume_on_read=consume_on_read)
    engine = await make_engine(late, events=[event])
    await engine.publish("price", "ancient")
    await engine.advance(SECOND)
    run = await engine.start(late, "price")
    await engine.advance(SECOND)
    await engine.publish("price", "recent")
    assert await run.result() == expected


@pytest.mark.parametrize("delivery", ["all", "after_wait", "after_create"])
async def test_whoever_waits_already_is_given_an_event_in_every_mode(make_engine, delivery):
    """B29 S2-15 The mode is about what was queued before the wait."""
    engine = await make_engine(take, events=[Event(name="price", delivery=delivery, consume_on_read=False)])
    runs = [await engine.start(take, "price") for _ in range(3)]
    await engine.advance(HOUR)
    assert await engine.publish("price", 1) == 3
    assert [await run.result() for run in runs] == [[1]] * 3


async def test_first_gives_to_the_oldest_waiter_alone(make_engine):
    """B29 S2-15 Whatever consume_on_read says."""
    engine = await make_engine(take, events=[Event(name="price", delivery="first", consume_on_read=False)])
    oldest, other = await waiting(engine, take, "price", ids="ba")
    assert await engine.publish("price", 1) == 1
    assert await oldest.result() == [1]
    assert await other.status() is Status.SUSPENDED
    assert await queued(engine) == {}


@pytest.mark.parametrize("consume_on_read", [True, False])
async def test_an_event_that_has_expired_is_not_delivered(make_engine, consume_on_read):
    """S2-15 B30 Counted from its publication; one that is young enough is."""
    event = Event(name="price", expire_after=timedelta(minutes=90), consume_on_read=consume_on_read)
    engine = await make_engine(late, events=[event])
    await engine.publish("price", "too old")
    await engine.advance(HOUR)
    run = await engine.start(late, "price")
    await engine.publish("price", "young enough")
    assert await run.result() == "young enough"
    run = await engine.start(late, "price")
    await engine.advance(HOUR)
    assert await run.result() == "nothing"


async def test_the_runs_own_messages_come_before_events(make_engine):
    """S2-16 S2-42 B29 Although the event is older; and the event is not lost."""
    engine = await make_engine(late, take)
    await engine.publish("price", "event")
    run = await engine.start(late, "price")
    await engine.advance(SECOND)
    await run.send("price", "message")
    assert await run.result() == "message"
    assert await (await engine.start(take, "price")).result() == ["event"]


async def test_a_message_comes_before_an_event_that_the_run_was_given_earlier(make_engine):
    """S2-16 B25 It was paused while it waited, and looks at both when it goes on."""
    engine = await make_engine(take)
    run = await engine.start(take, "price", 2)
    await engine.settle()
    await run.pause()
    await engine.settle()
    assert await engine.publish("price", "event") == 1
    await run.send("price", "message")
    await run.resume()
    assert await run.result() == ["message", "event"]


async def test_an_event_and_a_message_at_once_are_both_taken(make_engine):
    """S2-30 G8 Given an event and sent a message in the same moment, a run loses neither."""
    engine = await make_engine(take)
    for number in range(10):
        run = await engine.start(take, f"n{number}", 2)
        await engine.settle()
        await asyncio.gather(engine.publish(f"n{number}", "event"), run.send(f"n{number}", "message"))
        assert sorted(await run.result()) == ["event", "message"]


async def test_of_several_names_the_oldest_event_is_taken(make_engine):
    """S2-31 What is true of messages of several names is true of events."""

    @workflow
    async def either(ctx: Context) -> list[Any]:
        return list(await ctx.receive(["a", "b"]))

    engine = await make_engine(either)
    await engine.publish("b", 1)
    await engine.advance(SECOND)
    await engine.publish("a", 2)
    assert await engine.execute(either) == ["b", 1]


async def test_what_ended_a_combined_wait_is_recorded_and_replayed(make_engine):
    """S2-31 S2-27 An event, a timer or a child, whichever comes first, is the winner for ever."""

    @workflow
    async def child(ctx: Context) -> str:
        return await ctx.receive("child", str)

    @workflow
    async def combined(ctx: Context) -> list[Any]:
        won = await ctx.race(
            {
                "event": lambda branch: branch.receive(["price", "stop"]),
                "timer": lambda branch: branch.sleep(HOUR),
                "child": lambda branch: branch.child(child, id=f"{ctx.run_id}-child"),
            }
        )
        await ctx.receive("go on")
        return [won.winner, won.value]

    engine = await make_engine(combined, child)
    runs = await waiting(engine, combined, ids="abc")
    assert await engine.publish("price", 5) == 1
    await engine.get("b-child").send("child", "grown")
    await engine.advance(2 * HOUR)
    await engine.publish("stop")  # too late for anybody
    for run in runs:
        await run.send("go on")
    results = [await run.result() for run in runs]
    assert results == [["event", ["price", 5]], ["child", "grown"], ["timer", None]]
    assert await queued(engine) == {"stop": 1}


async def test_a_poll_takes_what_is_queued(make_engine):
    """S2-42 B13 A timeout of zero looks once: at the run's own messages, then at events."""

    @workflow
    async def poll(ctx: Context) -> list[Any]:
        found = [await ctx.receive("price", timeout=timedelta(0), default="nothing") for _ in range(2)]
        await ctx.sleep(HOUR)
        return [*found, await ctx.receive("price", timeout=timedelta(0), default="nothing")]

    engine = await make_engine(poll)
    await engine.publish("price", 1)
    run = await engine.start(poll)
    await engine.settle()
    await engine.publish("price", 2)
    assert await run.result() == [1, "nothing", 2]


async def test_a_wait_that_was_given_up_takes_no_event(make_engine):
    """S2-14 G8 A timeout ended it: the event goes to whoever waits, or is queued."""

    @workflow
    async def impatient(ctx: Context) -> list[Any]:
        first = await ctx.receive("price", timeout=SECOND, default="nothing")
        await ctx.receive("go on")
        return [first, await ctx.receive("price", timeout=SECOND, default="nothing")]

    engine = await make_engine(impatient, take)
    run = await engine.start(impatient)
    await engine.advance(2 * SECOND)
    assert await engine.publish("price", 1) == 0
    await run.send("go on")
    assert await run.result() == ["nothing", 1]


async def test_an_event_given_in_the_moment_a_wait_ends_goes_to_somebody_else(make_engine):
    """G8 S2-30 The run was given it and takes a message instead; another run waits for it."""

    @workflow
    async def once(ctx: Context) -> list[Any]:
        taken = await ctx.receive(["price", "stop"])
        await ctx.receive("end")
        return list(taken)

    engine = await make_engine(once, take)
    for number in range(10):
        run = await engine.start(once)
        await engine.advance(SECOND)
        other = await engine.start(take, "price")
        await engine.settle()
        await asyncio.gather(run.send("stop"), engine.publish("price", number))
        await engine.settle()
        await run.send("end")
        taken = await run.result()
        if taken == ["price", number]:
            await engine.publish("price", number)
        assert await other.result() == [number]
        assert await queued(engine) == {}


async def test_an_event_given_to_a_run_that_ends_without_taking_it_goes_to_somebody_else(make_engine):
    """G8 S2-45 It is cancelled in the moment it is given the event."""
    engine = await make_engine(take)
    first, second = await waiting(engine, take, "price", ids="ab")
    await first.pause()
    await engine.settle()
    assert await engine.publish("price", 1) == 1
    await engine.settle()
    assert await second.status() is Status.SUSPENDED
    await first.terminate()
    assert await second.result() == [1]


async def test_a_new_life_of_a_run_waits_for_itself_and_sees_no_copy_twice(make_engine):
    """B30 G8 continue_as_new ends the waits of the old life; what it has seen stays seen."""

    @workflow
    async def lives(ctx: Context, seen: list[Any]) -> list[Any]:
        price = await ctx.receive("price", timeout=HOUR, default=None)
        if price is None:
            return seen
        ctx.continue_as_new([*seen, price])

    engine = await make_engine(lives, events=[Event(name="price", consume_on_read=False)])
    await engine.publish("price", 0)
    run = await engine.start(lives, [])
    await engine.settle()
    for number in (1, 2):
        assert await engine.publish("price", number) == 1
        await engine.settle()
    assert await run.result() == [0, 1, 2]
