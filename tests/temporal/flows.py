"""Workflows for tests of the runtime on Temporal: at the top of a module, as other workers find them."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Break, Context, Continue, Retry, activity, step_context, workflow

QUICK = Retry(max_attempts=4, initial_interval=timedelta(milliseconds=10))
SECOND = timedelta(seconds=1)


def note(what: str) -> None:
    """Write down, for a test in another process too, that a body ran."""
    folder = os.environ.get("HOLDFAST_TEST_NOTES")
    if folder:
        with Path(folder, "notes").open("a") as notes:
            notes.write(what + "\n")


async def add(a: int, b: int) -> int:
    return a + b


async def mark(what: str) -> str:
    note(what)
    return what


def blocking(a: int) -> int:
    time.sleep(0.01)
    return a * 2


@activity(retry=QUICK)
async def flaky(times: int) -> int:
    if step_context().attempt <= times:
        raise ConnectionError(f"attempt {step_context().attempt}")
    return step_context().attempt


@activity(timeout=timedelta(milliseconds=50), retry=Retry.never)
async def slow() -> None:
    await asyncio.sleep(60)


async def endless(name: str) -> None:
    note(f"{name} begun")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note(f"{name} stopped")
        raise


async def boom() -> None:
    raise ValueError("boom")


async def mended() -> None:
    return None


@workflow
async def steps(ctx: Context, n: int) -> list[Any]:
    made: list[Any] = [await ctx.step(add, n, 1), await ctx.step(blocking, n), await ctx.step(flaky, 2)]
    try:
        await ctx.step("too often", flaky, 9)
    except ConnectionError as error:
        made.append(str(error))
    try:
        await ctx.step(slow)
    except TimeoutError as error:
        made.append(type(error).__name__)
    return made


@workflow
async def together(ctx: Context) -> list[Any]:
    first = await asyncio.gather(*(ctx.step(f"add {n}", add, n, n) for n in range(4)))
    joined = await ctx.join({"x": lambda c: c.step(add, 1, 1), "y": lambda c: c.step(blocking, 2)})
    won = await ctx.race(
        {
            "slow": lambda c: c.step(endless, "loser"),
            "word": lambda c: c.receive("word"),
        }
    )
    try:
        async with asyncio.timeout(0.05):
            await ctx.step(endless, "timed out")
    except TimeoutError:
        pass
    return [first, joined, won.winner]


@workflow
async def talk(ctx: Context) -> list[Any]:
    got: list[Any] = []
    ctx.on_query("got", lambda extra=0: len(got) + extra)
    got.append(await ctx.receive("x", timeout=timedelta(milliseconds=20), default="none"))
    got.append(await ctx.receive("x", int))
    got.append(await ctx.receive(["a", "b"]))
    request = await ctx.receive_request("ask", int)
    ctx.reply(request, request.payload + 1)
    ctx.set_attributes(stage="done", n=3)
    ctx.evidence("seen", {"n": 1})
    return got


@workflow
async def kid(ctx: Context, n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    return await ctx.step(add, n, 100)


@workflow
async def waiting_kid(ctx: Context) -> str:
    return await ctx.receive("go", str)


@workflow
async def parent(ctx: Context) -> list[Any]:
    a = await ctx.child(kid, 1)
    b = await ctx.child(kid, -1, propagate=False)
    c = ctx.child(kid, 3, id=f"{ctx.run_id}-named")
    return [a, type(b).__name__, c.id == f"{ctx.run_id}-named", await c]


@workflow
async def parent_of_waiting(ctx: Context) -> str:
    failed: Any = await ctx.child(waiting_kid, propagate=False)
    return f"{type(failed).__name__} {failed.status}"


@workflow
async def sender(ctx: Context) -> str:
    child = ctx.child(waiting_kid)
    await ctx.send(child.id, "go", "went")
    return await child


@workflow
async def looping(ctx: Context, times: int) -> int:
    async def body(ctx: Context, n: int) -> Break[int] | Continue[int]:
        total = await ctx.step(add, n, 1)
        return Break(total) if total >= times else Continue(total)

    return await ctx.loop("count", body, state=0)


@workflow
async def lives(ctx: Context, n: int) -> int:
    await ctx.step(add, n, 1)
    if n < 3:
        ctx.continue_as_new(n + 1)
    return n


@workflow
async def cleaning(ctx: Context) -> None:
    try:
        await ctx.receive("never")
    finally:
        await ctx.step(mark, "cleaned")


@workflow
async def saga(ctx: Context, fail: bool) -> str:
    for name in ("a", "b"):
        await ctx.step(f"do {name}", mark, f"do {name}")
        ctx.compensate(mark, f"undo {name}")
    if fail:
        await ctx.step(boom)
    return await ctx.receive("never", str)


@activity(retry=Retry.never)
async def noted_boom() -> None:
    note("boom")
    raise ValueError("boom")


async def noted_add(a: int, b: int) -> int:
    note(f"kid {a}")
    return a + b


@workflow
async def noted_kid(ctx: Context, n: int) -> int:
    return await ctx.step(noted_add, n, 100)


@workflow
async def everything(ctx: Context, fail: bool) -> list[str]:
    """Steps, a loop, a child and, if it fails, a compensation: what is killed at every event."""
    made = [await ctx.step("first", mark, "first")]
    ctx.compensate(mark, "undo first")

    async def body(ctx: Context, n: int) -> Break[int] | Continue[int]:
        await ctx.step("turn", mark, f"turn {n}")
        return Break(n) if n == 2 else Continue(n + 1)

    made.append(str(await ctx.loop("rounds", body, state=0)))
    made.append(str(await ctx.child(noted_kid, 1)))
    made.append(await ctx.receive("word", str))
    made.append(await ctx.receive("word", str, timeout=timedelta(milliseconds=20), default="nothing more"))
    if fail:
        await ctx.step("boom", noted_boom)
    return made


@workflow
async def count(ctx: Context, times: int) -> int:
    number = 0
    for _ in range(times):
        number = await ctx.step(add, number, 1)
    return number


EVERY: list[Any] = [
    steps, together, talk, kid, waiting_kid, parent, parent_of_waiting, sender, looping, lives, cleaning, saga,
    everything, count, noted_kid,
]  # fmt: skip
