"""Events on one file: several engines, restarts, faults, and everything at once."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from tests.support.event_cases import HOUR, SECOND, late, queued, received, restarts, take
from tests.support.waiting import LONG

from holdfast import Context, Event, RunCancelled, RunTerminal, Status, workflow
from holdfast.contract.turns import PublishEvent
from holdfast.errors import StoreError


@restarts
async def test_what_waits_survives_a_restart_with_its_id_value_and_time(make_engine):
    """S2-17 S2-26 S2-36 One file holds runs, steps, events, messages and dead letters."""
    events = [
        Event(name="price", expire_after=timedelta(minutes=90)),
        Event(name="late", on_target_ended="dead_letter"),
    ]

    async def work() -> int:
        return 7

    @workflow
    async def busy(ctx: Context) -> list[Any]:
        done = await ctx.step(work)
        return [done, await ctx.receive("mine")]

    first = await make_engine(take, busy, events=events)
    await first.publish("price", {"eur": 1}, id="old")
    await first.advance(HOUR)
    await first.publish("price", {"eur": 2}, id="e2")
    run = await first.start(busy, id="busy")
    await first.settle()
    ended = await first.start(take, "done")
    await ended.send("late", 3, id="m3")
    await ended.send("done")
    await ended.result()
    assert [each.id for each in await first.runs(status=Status.SUSPENDED)] == ["busy"]
    await first.stop()
    client = await make_engine(busy, run_workflows=False, clock=first.jumping)
    await client.get("busy").send("mine", "own")
    await client.stop()

    second = await make_engine(take, busy, events=events, clock=first.jumping)
    assert await second.get("busy").result() == [7, "own"]
    (letter,) = await second.dead_letters.list(name="late")
    assert (letter.payload, letter.run_id, letter.target_status) == (3, ended.id, "completed")
    await second.advance(timedelta(minutes=31))
    run = await second.start(take, "price")
    assert await run.result() == [{"eur": 2}], "the other one is ninety minutes old"
    assert [(fact.id, fact.source) for fact in await received(run)] == [("e2", "event")]


@restarts
async def test_the_rule_is_that_of_the_engine_that_delivers(make_engine):
    """S2-43 S2-15 Nothing of it is stored with the event: a new version of the program may think otherwise."""
    single = await make_engine(take)
    for number in range(2):
        await single.publish("price", number)
    await single.stop()
    shared = await make_engine(take, events=[Event(name="price", consume_on_read=False)], clock=single.jumping)
    assert await shared.execute(take, "price", 2) == await shared.execute(take, "price", 2) == [0, 1]
    await shared.stop()
    fresh = await make_engine(late, events=[Event(name="price", delivery="after_wait")], clock=single.jumping)
    assert await fresh.execute(late, "price") == "nothing"
    assert await queued(fresh) == {"price": 2}


@restarts
async def test_an_event_reaches_runs_of_another_engine(make_engine):
    """S2-41 S2-12 Published by a client, for runs that two workers hold."""
    events = [Event(name="price", consume_on_read=False)]
    client = await make_engine(take, events=events, run_workflows=False)
    workers = [await make_engine(take, events=events, clock=client.jumping) for _ in range(2)]
    runs = [await workers[number % 2].start(take, "price") for number in range(6)]
    for worker in workers:
        await worker.settle()
    assert await client.publish("price", 1) == 6
    results = [asyncio.wait_for(client.get(run.id).result(), LONG) for run in runs]
    assert await asyncio.gather(*results) == [[1]] * 6


@restarts
async def test_a_message_the_run_has_not_seen_comes_before_an_event(make_engine):
    """S2-16 S2-42 Another engine sent it just before the commit that makes the run wait; the event is older."""
    client: Any = None

    async def be_sent(run_id: str) -> None:
        await client.get(run_id).send("price", "message")

    @workflow
    async def waits(ctx: Context) -> list[Any]:
        await ctx.step(be_sent, ctx.run_id)
        return [await ctx.receive("price") for _ in range(2)]

    worker = await make_engine(waits)
    client = await make_engine(waits, run_workflows=False, clock=worker.jumping)
    for _ in range(10):
        await worker.publish("price", "event")
    for _ in range(10):
        assert await worker.execute(waits) == ["message", "event"]


@restarts
async def test_whatever_happens_at_once_each_event_is_taken_by_one_run_or_queued(make_engine):
    """S2-29 S2-30 G8 Two engines publish, cancel, time out and wait: what was accepted is taken once or still there."""
    engines = [await make_engine(take)]
    engines.append(await make_engine(take, clock=engines[0].jumping))

    @workflow
    async def impatient(ctx: Context) -> Any:
        return await ctx.receive("price", timeout=SECOND, default=None)

    for engine in engines:
        engine.registry.add(impatient)
    runs = [await engines[number % 2].start(impatient, id=f"r{number}") for number in range(60)]

    async def act(number: int) -> None:
        engine = engines[number % 2]
        await engine.publish("price", number)
        if number % 3 == 0:
            await engine.get(f"r{(number * 7) % 60}").cancel()
        if number % 5 == 0:
            await engine.get(f"r{(number * 11) % 60}").pause()
        if number == 20:
            engines[0].jumping.advance(2 * SECOND)

    await asyncio.gather(*(act(number) for number in range(40)))
    for run in runs:
        await run.resume()
    taken = []
    for number, run in enumerate(runs):
        try:
            taken.append(await asyncio.wait_for(engines[number % 2].get(run.id).result(), LONG))
        except RunCancelled:
            continue
    left = (await queued(engines[0])).get("price", 0)
    rest = [await engines[0].execute(take, "price", left)] if left else [[]]
    assert sorted([number for number in taken if number is not None] + rest[0]) == list(range(40))


@workflow
async def shopper(ctx: Context) -> list[int]:
    """Wait in four branches at once, for some names, for some time, again and again."""
    dice = ctx.random()

    async def branch(inner: Context) -> list[int]:
        taken = []
        for _ in range(5):
            names = dice.sample(["x", "y", "z"], dice.randint(1, 3))
            patience = timedelta(seconds=dice.choice([0, 1, 5, 1000]))
            found: Any = await inner.receive(names, timeout=patience, default=None)
            taken += [found[1]] if found is not None else []
        return taken

    branches = await ctx.join({f"b{number}": branch for number in range(4)})
    return [value for taken in branches.values() for value in taken]


@workflow
async def sweep(ctx: Context) -> list[int]:
    """Take whatever is left."""
    left = []
    while (found := await ctx.receive(["x", "y", "z"], timeout=SECOND, default=None)) is not None:
        left.append(found[1])
    return left


@pytest.mark.parametrize("seed", range(3))
async def test_many_waits_of_many_names_in_one_run_lose_nothing(make_engine, seed):
    """S2-29 S2-31 S2-42 G7 G8 Events, messages, timeouts and polls meet; each value is taken once."""
    dice = random.Random(seed)
    engine = await make_engine(
        shopper, sweep, events=[Event(name=name, on_target_ended="dead_letter") for name in "xyz"]
    )
    runs = [await engine.start(shopper) for _ in range(3)]
    sent = []
    for number in range(25):
        name = dice.choice("xyz")
        if dice.random() < 0.7:
            await engine.publish(name, number)
            sent.append(number)
        else:
            with suppress(RunTerminal):
                await dice.choice(runs).send(name, number)
                sent.append(number)
        if dice.random() < 0.3:
            await engine.advance(timedelta(seconds=dice.choice([0, 1, 3])))
    taken = [value for run in runs for value in await asyncio.wait_for(run.result(), LONG)]
    left = await engine.execute(sweep)
    letters = [letter.payload for letter in await engine.dead_letters.list()]
    assert sorted([*taken, *left, *letters]) == sent


@restarts
async def test_a_publication_of_unknown_outcome_is_repeated_with_its_id(make_engine):
    """G8 G14 The commit was durable and its answer lost: the second one reaches nobody twice."""
    engine = await make_engine(take, events=[Event(name="price", consume_on_read=False)])
    runs = [await engine.start(take, "price", 2) for _ in range(3)]
    await engine.settle()
    engine.faults.lose_answer(only=PublishEvent)
    with pytest.raises(StoreError):
        await engine.publish("price", 1, id="e1")
    assert await engine.publish("price", 1, id="e1") == 0
    await engine.settle()
    assert await engine.publish("price", 2, id="e2") == 3
    assert [await run.result() for run in runs] == [[1, 2]] * 3
