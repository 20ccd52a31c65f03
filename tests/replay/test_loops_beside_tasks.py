"""Loops under gather, task groups, timeouts and beside tasks: they forget where they safely can, and say where not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.driving import assert_replays, finished, live, paths

from holdfast import Break, Context, Continue, workflow
from holdfast.contract.rows import EntryRow
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry

ROUNDS = 12


def work(x: int) -> int:
    return x + 1


async def body(ctx: Context, state: int) -> Any:
    return Break(state) if state == ROUNDS else Continue(await ctx.step(work, state))


def looping(ctx: Context, name: str) -> Any:
    return ctx.loop(name, body, state=0, commit_interval=2, history_every=2, history_keep=1)


async def iterating(ctx: Context, name: str) -> int:
    async for it in ctx.loop(name, state=0, commit_interval=2, history_every=2, history_keep=1):
        if it.state == ROUNDS:
            break
        it.state = await it.step(work, it.state)
    return it.state


async def in_gather(ctx: Context) -> Any:
    return await asyncio.gather(looping(ctx, "a"), looping(ctx, "b"))


async def in_a_task_group(ctx: Context) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[int]] = [group.create_task(looping(ctx, name)) for name in ("a", "b")]
    return [task.result() for task in tasks]


async def in_time(ctx: Context) -> Any:
    return [
        await asyncio.wait_for(looping(ctx, "a"), 86_400 * 365),
        await asyncio.wait_for(looping(ctx, "b"), 86_400 * 365),
    ]


async def own_code_in_time(ctx: Context) -> Any:
    return [await asyncio.wait_for(iterating(ctx, name), 86_400 * 365) for name in ("a", "b")]


async def own_code_in_a_task(ctx: Context) -> Any:
    return [await asyncio.create_task(iterating(ctx, name)) for name in ("a", "b")]


async def own_code_alone_in_gather(ctx: Context) -> Any:
    return [*await asyncio.gather(iterating(ctx, "a")), *await asyncio.gather(iterating(ctx, "b"))]


async def own_code_alone_in_a_task_group(ctx: Context) -> Any:
    found = []
    for name in ("a", "b"):
        async with asyncio.TaskGroup() as group:
            task = group.create_task(iterating(ctx, name))
        found.append(task.result())
    return found


async def own_code_waited_for(ctx: Context) -> Any:
    found = []
    for name in ("a", "b"):
        done, _ = await asyncio.wait([asyncio.create_task(iterating(ctx, name))])
        found += [task.result() for task in done]
    return found


async def in_branches(ctx: Context) -> Any:
    async def branch(ctx: Context) -> int:
        return await asyncio.create_task(iterating(ctx, "loop"))

    found = await ctx.join({"a": branch, "b": branch})
    return [found["a"], found["b"]]


SAFE: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        in_gather,
        in_a_task_group,
        in_time,
        own_code_in_time,
        own_code_in_a_task,
        own_code_alone_in_gather,
        own_code_alone_in_a_task_group,
        own_code_waited_for,
        in_branches,
    )
}


@pytest.mark.parametrize("name", SAFE)
def test_a_loop_forgets_wherever_nothing_can_share_what_it_did(name: str):
    """S1-28 S1-29 Live in several orders, and replayed from every cut of what is left of the history."""
    definition = workflow(name=name)(SAFE[name])
    turn, rows = finished(definition, [])
    assert turn.outcome is not None
    assert turn.outcome.payload == f"[{ROUNDS},{ROUNDS}]"
    assert max(kept(rows).values()) <= 3
    assert not said(rows)
    for seed in range(3 if "time" not in name else 0):  # which would be over too soon
        recording = live(definition, seed=seed)
        assert recording.result == [ROUNDS, ROUNDS]
        assert max(kept(recording.rows).values()) <= 3
        assert_replays(recording)


async def beside_a_task(ctx: Context) -> Any:
    async def beside() -> None:
        await ctx.receive("never")

    task = asyncio.create_task(beside(), name="beside")
    found = await iterating(ctx, "a")
    task.cancel()
    return [found]


async def in_a_task_beside_the_code(ctx: Context) -> Any:
    task = asyncio.create_task(iterating(ctx, "a"), name="mine")
    for x in range(5 * ROUNDS):
        await ctx.step("beside", work, x) if not x else await ctx.step(work, x)
    return [await task]


async def own_code_beside_other(ctx: Context) -> Any:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def produces() -> int:
        async for it in ctx.loop("a", state=0, commit_interval=2, history_every=2, history_keep=1):
            if it.state == ROUNDS:
                break
            it.state = await it.step(work, it.state)
            queue.put_nowait(it.state)
        return it.state

    async def consumes() -> int:
        while (found := await queue.get()) < ROUNDS:
            await ctx.step(work, found)
        return found

    return (await asyncio.gather(produces(), consumes()))[:1]


async def with_a_call_left_open(ctx: Context) -> Any:
    async for it in ctx.loop("a", state=0, commit_interval=2, history_every=2, history_keep=1):
        if it.state == ROUNDS:
            break
        if it.index == 0:
            asyncio.gather(it.receive("never"))
        it.state = await it.step(work, it.state)
    return [it.state]


async def with_a_task_left_running(ctx: Context) -> Any:
    async for it in ctx.loop("a", state=0, commit_interval=2, history_every=2, history_keep=1):
        if it.state == ROUNDS:
            break
        if it.index == 0:
            asyncio.create_task(asyncio.Event().wait(), name="left")  # noqa: RUF006
        it.state = await it.step(work, it.state)
    return [it.state]


UNSAFE = {
    beside_a_task: "beside runs beside it",
    in_a_task_beside_the_code: "it runs in mine, beside the code that began that",
    own_code_beside_other: "runs beside it",
    with_a_call_left_open: "receive 'a/~0/receive never' is still open",
    with_a_task_left_running: "left, begun in an iteration, goes on after it",
}


@pytest.mark.parametrize("function", UNSAFE, ids=lambda function: function.__name__)
def test_a_loop_that_cannot_forget_says_so_once(function: Any):
    """S1-29 In the run's log and in its history, and not again on replay."""
    definition = workflow(name=function.__name__)(function)
    recording = live(definition)
    assert recording.result == [ROUNDS]
    assert kept(recording.rows)["a"] == ROUNDS
    [hindrance] = said(recording.rows)
    assert UNSAFE[function] in hindrance
    assert [line for line in recording.logs if f"loop 'a' keeps its whole history as long as {hindrance}" in line]
    assert len([line for line in recording.logs if "keeps its whole history" in line]) == 1
    assert_replays(recording)


def kept(rows: list[EntryRow]) -> dict[str, int]:
    """Return how many iterations of each loop a history has."""
    found: dict[str, set[str]] = {}
    for path in paths(rows).values():
        loop, inside, rest = path.partition("/~")
        if inside:
            found.setdefault(loop, set()).add(rest.partition("/")[0])
    return {loop: len(iterations) for loop, iterations in found.items()}


def said(rows: list[EntryRow]) -> list[str]:
    return [decode_entry(row.kind, row.data).hindrance for row in rows if row.kind == entries.LoopKept.kind]
