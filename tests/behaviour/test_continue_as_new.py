"""Continue as new: the same run, a fresh history, another input."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.behaviour.instants import a_moment, same
from tests.support.waiting import LONG

from holdfast import Context, RunFailed, Status, workflow

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@dataclass
class State:
    total: int


async def add_one(number: int) -> int:
    return number + 1


@workflow
async def count(ctx: Context, number: int, to: int) -> int:
    number = await ctx.step(add_one, number)
    if number < to:
        ctx.continue_as_new(number, to)
    return number


async def test_a_run_goes_on_under_the_same_id_with_an_empty_history(make_engine):
    """S2-32 Same id, history cleared, new arguments; the generation grows by one each time."""
    engine = await make_engine(count)
    run = await engine.start(count, 0, 3, id="counter")
    assert await run.result() == 3
    seen = await run.describe()
    assert seen.id == "counter"
    assert seen.generation == 2
    assert seen.input == {"number": 2, "to": 3}
    assert [(entry.path, entry.kind) for entry in await run.history()] == [
        ("state", "renewed"),
        ("add_one", "step"),
        ("add_one", "step completed"),
    ]


async def test_fifty_generations_leave_a_history_of_one(make_engine):
    """S2-32 The history does not grow, however often the run begins again."""
    engine = await make_engine(count)
    run = await engine.start(count, 0, 50)
    assert await run.result() == 50
    assert (await run.describe()).generation == 49
    assert len(await run.history()) == 3


async def test_a_generation_that_does_nothing_but_begin_again(make_engine):
    """S2-32 Also in the very first turn, with no step before it, fifty times."""

    @workflow
    async def down(ctx: Context, number: int) -> str:
        if number:
            ctx.continue_as_new(number - 1)
        return "zero"

    engine = await make_engine(down)
    assert await engine.execute(down, 50) == "zero"


async def test_messages_that_were_not_read_are_kept_for_the_next_generation(make_engine):
    """S2-32 G7 The inbox belongs to the run; order and number stay as they were."""

    @workflow
    async def drain(ctx: Context, taken: list[int]) -> list[int]:
        if len(taken) == 6:
            return taken
        await ctx.sleep(HOUR)
        first = await ctx.receive("item", int)
        second = await ctx.receive("item", int)
        ctx.continue_as_new([*taken, first, second])

    engine = await make_engine(drain)
    run = await engine.start(drain, [])
    for number in range(6):
        await run.send("item", number)
    assert await run.result() == [0, 1, 2, 3, 4, 5]


async def test_a_message_sent_while_the_run_begins_again_is_not_lost(make_engine):
    """S2-32 S2-30 G7 Messages arrive at every moment of a hundred renewals; each is taken once."""

    @workflow
    async def drain(ctx: Context, taken: list[int]) -> list[int]:
        taken = [*taken, await ctx.receive("item", int)]
        if len(taken) < 100:
            ctx.continue_as_new(taken)
        return taken

    engine = await make_engine(drain)
    run = await engine.start(drain, [])
    for number in range(100):
        await run.send("item", number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    assert await run.result() == list(range(100))


async def test_a_renewed_run_keeps_types_and_keyword_arguments(make_engine):
    """S2-32 The new input goes through the same codec and signature as a start."""

    @workflow
    async def total(ctx: Context, state: State, *, rounds: int = 0) -> int:
        assert type(state) is State
        if rounds == 3:
            return state.total
        ctx.continue_as_new(State(state.total + 10), rounds=rounds + 1)

    engine = await make_engine(total)
    assert await engine.execute(total, State(0)) == 30


async def test_new_input_that_does_not_fit_fails_the_run_and_says_why(make_engine):
    """GUARANTEES 6.14 The error is raised at the call; nothing is renewed."""

    @workflow
    async def bad(ctx: Context, number: int) -> None:
        ctx.continue_as_new("three")

    engine = await make_engine(bad)
    run = await engine.start(bad, 1)
    with pytest.raises(RunFailed, match="number"):
        await run.result()
    assert (await run.describe()).input == {"number": 1}


async def test_it_works_from_deep_inside(make_engine):
    """S2-32 From a helper, a branch of a join, a task group and a loop's body."""

    @workflow
    async def deep(ctx: Context, stage: int) -> str:
        async def branch(inner: Context) -> None:
            await inner.sleep(HOUR)
            if stage == 0:
                inner.continue_as_new(1)

        async def helper() -> None:
            await ctx.sleep(HOUR)
            ctx.continue_as_new(2)

        if stage == 0:
            await ctx.join({"a": branch, "b": lambda inner: inner.receive("never")})
        if stage == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(helper())
                await ctx.receive("never")
        if stage == 2:
            async for it in ctx.loop("rounds", state=0):
                it.state += 1
                await it.sleep(HOUR)
                if it.state == 3:
                    it.continue_as_new(3)
        return f"stage {stage}"

    engine = await make_engine(deep)
    assert await engine.execute(deep, 0) == "stage 3"


async def test_code_that_swallows_everything_begins_again_all_the_same(make_engine):
    """S2-32 `except BaseException` around the call, and steps after it, change nothing."""
    bodies: list[int] = []

    async def wrong(number: int) -> None:
        bodies.append(number)

    @workflow
    async def greedy(ctx: Context, number: int) -> int:
        if number == 3:
            return number
        try:
            ctx.continue_as_new(number + 1)
        except BaseException:
            pass
        await ctx.step(wrong, number)
        return -1

    @workflow
    async def returns(ctx: Context, number: int) -> int:
        try:
            if number < 3:
                ctx.continue_as_new(number + 1)
        finally:
            return number  # noqa: B012  # that it hides the exception is the point

    engine = await make_engine(greedy, returns)
    assert await engine.execute(greedy, 0) == 3
    assert await engine.execute(returns, 0) == 3
    assert bodies == []


async def test_children_of_an_old_generation_do_not_answer_the_calls_of_a_new_one(make_engine):
    """S2-32 G10 Each generation has children of its own; a late end of an old one is nobody's."""

    @workflow
    async def kid(ctx: Context, number: int) -> int:
        await ctx.sleep(HOUR * (10 - number))
        return number

    @workflow
    async def parent(ctx: Context, number: int, seen: list[int]) -> list[int]:
        kept = ctx.child(kid, number)
        if number % 2:
            await ctx.sleep(HOUR)
            ctx.continue_as_new(number + 1, seen)
        seen = [*seen, await kept]
        if number < 6:
            ctx.continue_as_new(number + 1, seen)
        return seen

    engine = await make_engine(parent, kid)
    run = await engine.start(parent, 0, [], id="p")
    assert await run.result() == [0, 2, 4, 6]
    assert not engine.offers("lists") or len(await engine.runs(parent="p")) == 7


async def test_a_later_generation_has_the_same_beginning_on_every_replay(make_engine):
    """S2-32 S1-1 ctx.now() and asyncio timers count from the renewal, live and replayed alike."""

    @workflow
    async def timed(ctx: Context, number: int) -> list[str]:
        began = ctx.now()
        await asyncio.sleep(3600)
        woke = ctx.now()
        await ctx.sleep(DAY)
        if number:
            ctx.continue_as_new(number - 1)
        return [began.isoformat(), woke.isoformat()]

    engine = await make_engine(timed)
    run = await engine.start(timed, 2)
    created = (await run.describe()).created_at
    began, woke = map(datetime.fromisoformat, await run.result())
    assert same(engine, woke - began, HOUR)
    assert same(engine, began - created, 2 * (HOUR + DAY))


async def test_randomness_differs_between_generations_but_not_between_replays(make_engine):
    """S2-32 S1-1 ctx.uuid() and ctx.random() in a new generation are new, and the same after a replay."""
    seen: list[str] = []

    async def note(text: str) -> None:
        seen.append(text)

    @workflow
    async def dice(ctx: Context, number: int) -> None:
        text = f"{ctx.uuid()} {ctx.random().random()}"
        await ctx.step(note, text)
        await ctx.sleep(DAY)
        await ctx.step("again", note, text)
        if number:
            ctx.continue_as_new(number - 1)

    engine = await make_engine(dice)
    await engine.execute(dice, 2)
    assert len(seen) == 6
    assert seen[0::2] == seen[1::2]
    assert len(set(seen)) == 3


@restarts
async def test_a_restart_in_a_later_generation_goes_on_there(make_engine):
    """S2-32 S2-28 G3 Neither the old generations nor recorded steps of the present one run again."""
    bodies: list[int] = []

    async def note(number: int) -> int:
        bodies.append(number)
        return number

    @workflow
    async def rounds(ctx: Context, number: int) -> int:
        await ctx.step(note, number)
        await ctx.sleep(DAY)
        if number < 4:
            ctx.continue_as_new(number + 1)
        return number

    engine = await make_engine(rounds)
    run = await engine.start(rounds, 0, id="r")
    for _ in range(5):
        await engine.advance(HOUR * 20)
        await engine.stop()
        engine = await make_engine(rounds, clock=engine.jumping)
        run = engine.get("r")
    assert await run.result() == 4
    assert bodies == [0, 1, 2, 3, 4]


async def test_a_run_that_begins_again_can_be_cancelled(make_engine):
    """S2-32 B7 A cancel reaches whichever generation is there."""

    @workflow
    async def for_ever(ctx: Context, number: int) -> None:
        await ctx.sleep(HOUR)
        ctx.continue_as_new(number + 1)

    engine = await make_engine(for_ever)
    run = await engine.start(for_ever, 0)
    await engine.advance(10 * HOUR + a_moment(engine))
    assert (await run.describe()).input["number"] == 10
    assert await run.cancel()
    await engine.settle()
    assert await run.status() is Status.CANCELLED


async def test_a_cancelled_run_does_not_begin_again(make_engine):
    """B7 S2-32 Cleanup that calls continue_as_new does not undo the cancel."""

    @workflow
    async def stubborn(ctx: Context, number: int) -> Any:
        try:
            await ctx.sleep(DAY)
        except asyncio.CancelledError:
            ctx.continue_as_new(number + 1)

    engine = await make_engine(stubborn)
    run = await engine.start(stubborn, 0)
    await engine.settle()
    await run.cancel()
    await engine.advance(timedelta(minutes=2))
    assert await run.status() is Status.CANCELLED
    assert (await run.describe()).input == {"number": 0}


async def test_a_child_that_begins_again_still_answers_its_parent(make_engine):
    """S2-32 G10 The parent waits for the run, not for one generation of it."""

    @workflow
    async def parent(ctx: Context) -> int:
        return await ctx.child(count, 0, 5)

    engine = await make_engine(parent, count)
    assert await engine.execute(parent) == 5


async def test_sends_and_children_of_the_turn_that_begins_again_are_not_lost(make_engine):
    """S2-32 S2-24 What the old generation asked for in its last turn still happens, once."""

    @workflow
    async def kid(ctx: Context, number: int) -> None:
        await ctx.sleep(HOUR)

    @workflow
    async def spawn(ctx: Context, number: int) -> list[int]:
        if number == 3:
            return [await ctx.receive("mark", int) for _ in range(3)]
        ctx.child(kid, number)
        sent: Any = ctx.send(ctx.run_id, "mark", number)
        assert not sent.done()
        ctx.continue_as_new(number + 1)

    engine = await make_engine(spawn, kid)
    run = await engine.start(spawn, 0, id="s")
    assert await run.result() == [0, 1, 2]
    assert not engine.offers("lists") or len(await engine.runs(parent="s")) == 3


async def test_a_step_left_running_by_the_old_generation_does_not_answer_the_new_one(make_engine):
    """S2-32 G3 The new generation's step of the same name gets its own result."""
    first_may_end = asyncio.Event()
    bodies: list[int] = []

    async def work(number: int) -> int:
        bodies.append(number)
        if number == 0:
            await first_may_end.wait()
        return number

    @workflow
    async def leave(ctx: Context, number: int) -> int:
        step: Any = ctx.step(work, number)
        if number == 0:
            await ctx.receive("go")
            assert not step.done()
            ctx.continue_as_new(1)
        return await step

    engine = await make_engine(leave)
    run = await engine.start(leave, 0)
    await run.send("go")
    first_may_end.set()
    assert await run.result() == 1
    assert bodies == [0, 1]


@pytest.mark.parametrize("mode", ["file", "evict"])
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
