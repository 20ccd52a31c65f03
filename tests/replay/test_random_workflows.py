"""Workflows nobody would write: random nestings of everything, run in random orders, replayed from every cut."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import assert_replays, live

from holdfast import Context, workflow
from holdfast.context.api import Break, Continue
from holdfast.replay import entry as entries
from holdfast.replay.turn import Ending

LEAVES = ("step", "fail", "sleep", "asyncio", "receive", "dice", "send", "publish", "compensate", "note")
NESTS = ("seq", "gather", "group", "wait", "timeout", "join", "race", "loop", "for", "task", "patched")


def program(dice: random.Random, depth: int) -> Any:
    """Draw a tree of things to do."""
    kind = dice.choice(LEAVES if depth == 0 or dice.random() < 0.25 else NESTS)
    if kind in LEAVES:
        return kind, dice.randrange(1, 6)
    options = {name: dice.randrange(1, 4) for name in ("commit_interval", "history_every", "history_keep")}
    return kind, dice.randrange(1, 5), options, [program(dice, depth - 1) for _ in range(dice.randrange(1, 4))]


def work(value: Any) -> int:
    return len(str(value))


def fail(value: Any) -> int:
    raise ValueError(str(value))


def undo(value: Any) -> int:
    return len(str(value))


async def run(ctx: Any, node: Any) -> int:
    """Do what a tree says and return a number that depends on how everything in it went."""
    if node[0] in LEAVES:
        return await leaf(ctx, *node)
    kind, number, options, parts = node
    return int(await globals()[f"do_{kind}"](ctx, number, options, parts))


async def leaf(ctx: Any, kind: str, number: int) -> int:
    if kind == "step":
        return int(await ctx.step(work, "x" * number))
    if kind == "fail":
        try:
            return int(await ctx.step(fail, number))
        except ValueError:
            return number
    if kind == "sleep":
        await ctx.sleep(timedelta(seconds=number))
    if kind == "asyncio":
        await asyncio.sleep(number / 3)
    if kind == "send":
        await ctx.send("other", "news", number)
    if kind == "publish":
        await ctx.publish("news", number)
    if kind == "compensate":
        ctx.compensate(undo if number % 3 else fail, "x" * number)
    if kind == "note":
        ctx.set_attributes(number=number)
        return len(ctx.evidence("note", number))
    if kind == "receive":
        return int(await ctx.receive("number", int, timeout=timedelta(seconds=number), default=number))
    if kind == "dice":
        return int(await ctx.step(work, [ctx.random().random(), str(ctx.uuid()), ctx.now().isoformat()]))
    return 0


async def do_seq(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    return sum([(at + 1) * await run(ctx, part) for at, part in enumerate(parts)])


async def do_gather(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    order: list[int] = []

    async def one(at: int) -> None:
        order.append(at + await run(ctx, parts[at]))

    await asyncio.gather(*(one(at) for at in range(len(parts))), ctx.step(work, "gathered"))
    return int(await ctx.step(work, order))


async def do_group(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    seen: list[str] = []

    async def one(at: int) -> None:
        try:
            seen.append(f"{at} {await run(ctx, parts[at])}")
            if at + 1 == number:
                raise LookupError(at)
        except asyncio.CancelledError:
            seen.append(f"{at} cancelled")
            raise

    try:
        async with asyncio.TaskGroup() as group:
            for at in range(len(parts)):
                group.create_task(one(at))
    except* LookupError as errors:
        seen.append(str(errors.exceptions))
    return int(await ctx.step(work, seen))


async def do_wait(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    pending: set[Any] = {asyncio.ensure_future(run(ctx, part)) for part in parts} | {ctx.step(work, "waited")}
    done, pending = await asyncio.wait(pending, timeout=number, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        each.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return int(await ctx.step(work, [each.result() for each in done]))


async def do_timeout(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    try:
        async with asyncio.timeout(number / 2):
            return await do_seq(ctx, number, options, parts)
    except TimeoutError:
        return int(await ctx.step(work, "late"))


def branches(parts: list[Any]) -> dict[str, Any]:
    def branch(part: Any) -> Any:
        async def inside(ctx: Context) -> int:
            try:
                return await run(ctx, part)
            finally:
                await ctx.step(work, "clean-up")

        return inside

    return {f"branch {at}": branch(part) for at, part in enumerate(parts)}


async def do_join(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    return sum((await ctx.join(branches(parts))).values())


async def do_race(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    won = await ctx.race(branches(parts))
    return int(await ctx.step(work, [won.winner, won.value]))


async def do_loop(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    async def body(ctx: Context, state: list[int]) -> Any:
        state = [*state, await do_seq(ctx, number, options, parts)]
        return Break(sum(state)) if len(state) > number else Continue(state)

    return int(await ctx.loop(body, state=[], **options))


async def do_for(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    async for it in ctx.loop(state=0, **options):
        if it.index == number:
            break
        it.state += await do_seq(it, number, options, parts)
    return int(it.state + await ctx.step(work, it.state))


async def do_task(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    task = asyncio.create_task(run(ctx, parts[0]))
    rest = await do_seq(ctx, number, options, parts[1:])
    return rest + await task


async def do_patched(ctx: Any, number: int, options: Any, parts: list[Any]) -> int:
    return await run(ctx, parts[0] if ctx.patched(f"patch {number}") else parts[-1])


@pytest.mark.parametrize("seed", range(60))
def test_a_random_workflow_replays_alike_from_every_cut(seed):
    """S1-1 S1-14 S1-16 S1-32 S1-46 Verbs and asyncio in any nesting."""
    dice = random.Random(seed)
    tree = program(dice, 3)

    @workflow(name="random")
    async def drawn(ctx: Context) -> int:
        return await run(ctx, tree)

    messages: list[Any] = [("number", dice.randrange(9)) for _ in range(4)]
    if seed % 5 == 0:
        messages.insert(dice.randrange(4), "cancel")
    recording = live(drawn, seed=seed, messages=messages, stop=120)
    assert_replays(recording)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_workflow_that_fails_undoes_alike_from_every_cut(seed):
    """B17 G11 Whatever it left running, wherever it registered what to undo."""
    dice = random.Random(seed)
    tree = program(dice, 3)

    @workflow(name="random")
    async def drawn(ctx: Context) -> None:
        ctx.compensate(undo, 0)
        task = asyncio.create_task(run(ctx, tree))
        await asyncio.wait([task], timeout=dice_of_its_own)
        await ctx.step(fail, 1)

    dice_of_its_own = dice.randrange(1, 20)
    messages: list[Any] = [("number", dice.randrange(9), dice.choice(["message", "event", "notice"])) for _ in range(4)]
    if seed % 5 == 0:
        messages.insert(dice.randrange(4), "cancel and undo")
    recording = live(drawn, seed=seed, messages=messages, stop=200)
    assert recording.outcome is not None
    assert recording.outcome.ending in (Ending.FAILED, Ending.CANCELLED)
    registered = recording.paths(entries.CompensationAdded)
    begun = [path for path in recording.paths(entries.StepBegun) if path.startswith("undo#")]
    assert [path.partition("/")[0] for path in begun] == registered[::-1]
    assert len(recording.outcome.compensation or ()) == len(registered)
    assert_replays(recording)
