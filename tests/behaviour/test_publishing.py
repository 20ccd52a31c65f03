"""Publishing events: from outside and from workflows, by name or by type, once, and only so many."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.support.event_cases import HOUR, queued, restarts, take
from tests.support.waiting import LONG

from holdfast import Context, Event, workflow
from holdfast.errors import BadInput, NotSerializable, QueueFull


async def test_an_event_with_an_id_is_published_once(make_engine):
    """G8 S2-17 By whomever, however often, also after it was taken."""
    engine = await make_engine(take)
    run = await engine.start(take, "price")
    await engine.settle()
    given = await asyncio.gather(*(engine.publish("price", number, id="e1") for number in range(10)))
    assert sorted(given) == [0] * 9 + [1]
    assert await run.result() == [given.index(1)]
    assert await engine.publish("price", 10, id="e1") == 0
    assert await queued(engine) == {}


@pytest.mark.parametrize("wrong", ["", 7, "x" * 256])
async def test_an_id_that_is_none_is_refused(make_engine, wrong):
    """GUARANTEES 6.11 Before anything is stored."""
    engine = await make_engine(take)
    with pytest.raises(BadInput, match="must be a text of 1 to 255 characters"):
        await engine.publish("price", 1, id=wrong)
    assert await queued(engine) == {}


async def test_an_object_is_the_event_and_not_its_name(make_engine):
    """S2-44 A payload beside it, or a value of no class of its own, is a mistake."""
    engine = await make_engine(take)
    with pytest.raises(BadInput):
        await engine.publish(Price(1), {"another": "payload"})
    for wrong in (None, 7, ["price"]):
        with pytest.raises(BadInput):
            await engine.publish(wrong)
    assert await queued(engine) == {}


async def test_an_event_that_cannot_be_stored_is_refused_and_nothing_is_queued(make_engine):
    """GUARANTEES 6.1"""
    engine = await make_engine(take)
    with pytest.raises(NotSerializable):
        await engine.publish("price", object())
    for wrong in ("", "a/b", "x" * 300):
        with pytest.raises(BadInput):
            await engine.publish(wrong)
    assert (await engine.stats())["pending_events"] == 0


@dataclass
class Price:
    eur: int


async def test_the_name_of_an_event_is_derived_from_its_type_or_given(make_engine):
    """S2-44 S2-36 And an engine needs no events at all to publish and receive."""

    @workflow
    async def typed(ctx: Context, name: str) -> int:
        return (await ctx.receive(name, Price)).eur

    assert Event(type=Price).name == "Price"
    assert Event(name="price", type=Price).name == "price"
    for events in ([], [Event(type=Price, consume_on_read=False)]):
        engine = await make_engine(typed, events=events, database=":memory:")
        run = await engine.start(typed, "Price")
        await engine.settle()
        assert await engine.publish(Price(4)) == 1
        assert await run.result() == 4
    assert await queued(engine) == {"Price": 1}, "the Event of that name says that it stays"


async def test_an_object_is_published_under_the_name_its_event_gives_to_the_type(make_engine):
    """S2-44 The mapping of types to names may be given."""

    @workflow
    async def typed(ctx: Context) -> int:
        return (await ctx.receive("price", Price)).eur

    engine = await make_engine(typed, events=[Event(name="price", type=Price)])
    run = await engine.start(typed)
    await engine.settle()
    assert await engine.publish(Price(4)) == 1
    assert await run.result() == 4


@pytest.mark.parametrize(
    "wrong",
    [{}, {"name": "a", "delivery": "some"}, {"name": "a", "on_target_ended": "burn"}, {"name": "a", "max_pending": 0}],
)
def test_an_event_that_means_nothing_is_refused(wrong):
    """S2-15 S2-44"""
    with pytest.raises(BadInput):
        Event(**wrong)


@pytest.mark.parametrize("wrong", [{"name": "a/b"}, {"name": 7}, {"type": "x"}, {"name": "a", "max_pending": True}])
def test_an_event_nobody_could_publish_is_refused(wrong):
    """S2-44"""
    with pytest.raises(BadInput):
        Event(**wrong)


async def test_two_events_of_one_name_are_refused(make_engine):
    """S2-44"""
    with pytest.raises(BadInput, match="two events are named 'price'"):
        await make_engine(take, events=[Event(name="price"), Event(name="price")])


async def test_a_full_queue_refuses_the_publisher(make_engine):
    """B23 S2-35 Nothing is lost that was accepted; there is room again when one is taken or has expired."""
    events = [Event(name="price", max_pending=3, expire_after=HOUR)]
    engine = await make_engine(take, events=events)
    for number in range(3):
        await engine.publish("price", number)
    with pytest.raises(QueueFull, match=r"too many 'price' wait already: see max_pending"):
        await engine.publish("price", 3)
    await engine.publish("other", 3)
    assert await engine.execute(take, "price") == [0]
    await engine.publish("price", 4)
    with pytest.raises(QueueFull):
        await engine.publish("price", 5)
    assert await queued(engine) == {"price": 3, "other": 1}
    await engine.advance(2 * HOUR)
    await engine.publish("price", 6)
    assert await engine.execute(take, "price") == [6]


@pytest.mark.parametrize("mode", ["memory"])
async def test_ten_thousand_events_of_a_name_wait_unless_said_otherwise(make_engine):
    """B23 S2-35"""
    engine = await make_engine(take, call_patience=timedelta(seconds=5 * LONG))
    await asyncio.gather(*(engine.publish("price", number) for number in range(10_000)))
    with pytest.raises(QueueFull):
        await engine.publish("price", 10_000)
    assert await queued(engine) == {"price": 10_000}


# Publishing from workflows.


async def test_a_workflow_publishes_once_and_goes_on_when_that_is_durable(make_engine):
    """S2-14 S2-41 G8 Also to itself, and to what comes later."""

    @workflow
    async def publisher(ctx: Context) -> list[Any]:
        await ctx.publish("price", 1)
        await ctx.publish("mine", 2)
        return [await ctx.receive("mine")]

    engine = await make_engine(publisher, take)
    run = await engine.start(take, "price")
    await engine.settle()
    assert await engine.execute(publisher) == [2]
    assert await run.result() == [1]
    assert await queued(engine) == {}


async def test_a_full_queue_is_raised_in_the_workflow_that_publishes(make_engine):
    """B23 When awaited, live and replayed alike; the workflow may catch it."""

    @workflow
    async def publisher(ctx: Context) -> str:
        said = ""
        for number in range(3):
            try:
                await ctx.publish("price", number)
            except QueueFull as error:
                said = str(error)
        await ctx.receive("go on")
        return said

    engine = await make_engine(publisher, events=[Event(name="price", max_pending=2)])
    run = await engine.start(publisher)
    await engine.settle()
    assert await queued(engine) == {"price": 2}
    await run.send("go on")
    assert "too many events 'price'" in await run.result()


async def test_an_event_with_an_id_is_published_by_one_of_many_workflows(make_engine):
    """G8 Each of them goes on."""

    @workflow
    async def publisher(ctx: Context) -> None:
        await ctx.publish("opened", id="opened-2030-01-01")

    engine = await make_engine(publisher)
    for run in [await engine.start(publisher) for _ in range(5)]:
        await run.result()
    assert await queued(engine) == {"opened": 1}


@restarts
async def test_a_replayed_publish_is_not_published_again(make_engine):
    """G8 The publisher is restarted again and again after it published."""

    @workflow
    async def publisher(ctx: Context) -> None:
        await ctx.publish("price", 1)
        for _ in range(3):
            await ctx.receive("next")

    for number in range(4):
        engine = await make_engine(publisher)
        run = await engine.start(publisher, id="p")
        await engine.settle()
        if number:
            await run.send("next")
        await engine.settle()
        assert await queued(engine) == {"price": 1}
        await engine.stop()
