"""What becomes of messages and events that nobody read: dropped, published, kept as dead letters."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.event_cases import HOUR, SECOND, queued, restarts, take
from tests.support.waiting import LONG

from holdfast import Context, Event, NoSuchRun, Retention, RunCancelled, RunFailed, Status, workflow
from holdfast.clock import to_datetime
from holdfast.errors import BadInput


async def end_completed(run: Any) -> None:
    await run.send("end")
    await run.result()


async def end_failed(run: Any) -> None:
    await run.send("fail")
    with pytest.raises(RunFailed):
        await run.result()


async def end_cancelled(run: Any) -> None:
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()


async def end_terminated(run: Any) -> None:
    assert await run.terminate()


ENDS = {"completed": end_completed, "failed": end_failed, "cancelled": end_cancelled, "terminated": end_terminated}


@workflow
async def deaf(ctx: Context) -> None:
    """Take no news."""
    name, _ = await ctx.receive(["end", "fail"])
    if name == "fail":
        raise ValueError("no")


@workflow
async def hears_later(ctx: Context) -> Any:
    """Take a word only when told to."""
    await ctx.receive("go")
    await ctx.receive("word")
    await ctx.receive("stop")


@pytest.mark.parametrize("end", ENDS)
async def test_unread_messages_go_where_their_event_says_whatever_ends_the_run(make_engine, end):
    """S2-18 S2-19 S2-45 Discarded, published to who waits or later comes, or kept as dead letters, typed by name."""
    events = [
        Event(name="published", on_target_ended="republish"),
        Event(name="kept", on_target_ended="dead_letter"),
    ]
    engine = await make_engine(deaf, take, events=events)
    waiter = await engine.start(take, "published")
    run = await engine.start(deaf, id="deaf")
    await engine.settle()
    for number in (1, 2):
        for name in ("dropped", "published", "kept"):
            await run.send(name, number)
    await engine.advance(SECOND)
    await ENDS[end](run)
    assert await waiter.result() == [1]
    assert await queued(engine) == {"published": 1}
    assert await engine.execute(take, "published") == [2]
    letters = await engine.dead_letters.list(kind="event")
    assert sorted(letter.payload for letter in letters) == [1, 2]
    status = "cancelled" if end == "terminated" else end
    for letter in letters:
        assert (letter.name, letter.run_id, letter.target_status) == ("kept", "deaf", status)
        assert letter.sent_at is not None
        assert letter.at - letter.sent_at == SECOND
        assert (await run.describe()).ended_at == letter.at
    assert await engine.dead_letters.list(name="dropped") == []


async def test_a_republished_message_goes_to_everybody_where_that_is_the_rule(make_engine):
    """S2-18 S2-41 S2-43"""
    events = [Event(name="news", on_target_ended="republish", consume_on_read=False)]
    engine = await make_engine(deaf, take, events=events)
    waiters = [await engine.start(take, "news") for _ in range(3)]
    run = await engine.start(deaf)
    await engine.settle()
    await run.send("news", 1)
    await engine.settle()
    assert {await waiter.status() for waiter in waiters} == {Status.SUSPENDED}
    await end_completed(run)
    assert [await waiter.result() for waiter in waiters] == [[1]] * 3
    assert await engine.execute(take, "news") == [1]


async def test_the_unread_of_a_run_cancelled_before_it_began_goes_the_same_way(make_engine):
    """S2-18 S2-45"""
    engine = await make_engine(take, events=[Event(name="kept", on_target_ended="dead_letter")])
    run = await engine.start(take, "never", delay=HOUR)
    await run.send("kept", 1)
    assert await run.cancel()
    (letter,) = await engine.dead_letters.list(name="kept")
    assert (letter.payload, letter.target_status) == (1, "cancelled")


async def test_an_undelivered_message_is_replayed_to_a_run_to_whoever_waits_or_removed(make_engine):
    """S2-20 S2-36 B9 G12 Listed by name; each is dealt with once."""
    engine = await make_engine(deaf, take, events=[Event(name="kept", on_target_ended="dead_letter")])
    run = await engine.start(deaf)
    await engine.settle()
    for number in range(4):
        await run.send("kept", number)
    await end_completed(run)
    letters = {letter.payload: letter.id for letter in await engine.dead_letters.list(name="kept")}
    chosen = await engine.start(take, "kept", id="chosen")
    waiter = await engine.start(take, "kept", id="waiter")
    await engine.settle()
    await engine.dead_letters.replay(letters[0], to="waiter")
    assert await waiter.result() == [0]
    await engine.dead_letters.replay(letters[1], broadcast=True)
    assert await chosen.result() == [1]
    await engine.dead_letters.replay(letters[2], broadcast=True)
    assert await queued(engine) == {"kept": 1}
    assert await engine.dead_letters.remove(letters[3])
    assert not await engine.dead_letters.remove(letters[3])
    assert await engine.execute(take, "kept") == [2]


@restarts
async def test_events_nobody_took_in_a_week_go_where_their_event_says(make_engine):
    """S2-35 B23 The sweep of an engine that opens later drops them, or keeps them as dead letters."""
    gone = asyncio.Event()
    purged = []

    def on_purged(what: str, id: str) -> None:
        purged.append((what, id))
        gone.set()

    assert Retention().events == timedelta(days=7)
    events = [Event(name="kept", on_target_ended="dead_letter")]
    first = await make_engine(take, events=events)
    for name in ("dropped", "kept"):
        await first.publish(name, 1, id=name)
    await first.advance(timedelta(days=6))
    await first.publish("dropped", 2, id="young")
    await first.stop()
    first.jumping.advance(timedelta(days=2))
    second = await make_engine(take, events=events, clock=first.jumping, retention=Retention(on_purged=on_purged))
    await asyncio.wait_for(gone.wait(), LONG)
    await second.settle()
    assert sorted(purged) == [("events", "dropped"), ("events", "kept")]
    assert await queued(second) == {"dropped": 1}
    (letter,) = await second.dead_letters.list(kind="event")
    assert (letter.name, letter.payload, letter.run_id, letter.target_status) == ("kept", 1, "", "")
    await second.dead_letters.replay(letter.id, broadcast=True)
    assert await second.execute(take, "kept") == [1]


async def test_what_waits_for_a_run_is_listed_with_its_content(make_engine):
    """Messages and events that its code has not received: name, payload, id, when; received ones are gone."""
    engine = await make_engine(hears_later)
    run = await engine.start(hears_later)
    await run.send("word", {"n": 1}, id="m-1")
    await run.send("word", None)
    await engine.publish("news", [1, 2], id="e-1")
    await engine.settle()
    waiting = await run.messages()
    assert [(each.name, each.payload, each.event) for each in waiting] == [
        ("word", {"n": 1}, False),
        ("word", None, False),
    ]
    assert (waiting[0].id, waiting[0].number < waiting[1].number) == ("m-1", True)
    assert waiting[0].sent_at == to_datetime(engine.clock.now())
    assert "payload" not in repr(waiting[0])
    await run.send("go")
    await engine.settle()
    assert [each.payload for each in await run.messages()] == [None]
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").messages()


async def test_events_that_wait_for_any_run_are_listed_with_their_content(make_engine):
    """Of a name, in pages, or the oldest of all."""
    engine = await make_engine(hears_later)
    for number in range(3):
        await engine.publish("news", {"n": number}, id=f"e-{number}")
        engine.jumping.advance(SECOND)
    await engine.publish("other", "x")
    page = await engine.queued_events("news", limit=2)
    assert [(each.id, each.payload, each.event) for each in page] == [("e-0", {"n": 0}, True), ("e-1", {"n": 1}, True)]
    assert [each.id for each in await engine.queued_events("news", after=page[-1].number)] == ["e-2"]
    assert [each.name for each in await engine.queued_events()] == ["news", "news", "news", "other"]
    assert await engine.queued_events("none") == []
    for wrong in ({"limit": 0}, {"limit": 1001}, {"after": 1}, {"name": "a/b"}):
        with pytest.raises(BadInput):
            await engine.queued_events(**wrong)
