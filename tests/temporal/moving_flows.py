"""Workflows for tests of runs that move to Temporal: at the top of a module, as other workers find them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from tests.temporal.flows import mark, note

from holdfast import Context, activity, step_context, workflow


@workflow
async def halfway(ctx: Context, ballast: str = "") -> list[Any]:
    made: list[Any] = [await ctx.step("a", mark, "a"), ctx.uuid().hex]
    ctx.evidence("begun", {"a": made[0]})
    made.append(await ctx.receive("one", str))
    made.append(await ctx.receive("two", str))
    return [*made, await ctx.step("b", mark, "b")]


@workflow
async def counter(ctx: Context, most: int) -> list[int]:
    return [await ctx.receive("n", int) for _ in range(most)]


async def sleep_a_while() -> str:
    note("slept")
    await asyncio.sleep(0.5)
    return "slept"


@workflow
async def patient(ctx: Context) -> str:
    slept = await ctx.step(sleep_a_while)
    return f"{slept} then {await ctx.step(mark, 'done')}"


async def never_ends() -> None:
    note("begun")
    await asyncio.Event().wait()


@workflow
async def stubborn(ctx: Context) -> None:
    await ctx.step(never_ends)


async def second_time() -> int:
    note("tried")
    if step_context().attempt == 1:
        await asyncio.Event().wait()
    return step_context().attempt


@workflow
async def once_more(ctx: Context) -> int:
    return await ctx.step(second_time)


@activity(idempotency_key=lambda: "one")
async def alone() -> None:
    await asyncio.Event().wait()


@workflow
async def keyed(ctx: Context) -> None:
    await ctx.step(alone)


@workflow
async def talker(ctx: Context) -> None:
    await ctx.publish("news", 1)
    await ctx.receive("never")


@workflow
async def grandchild(ctx: Context) -> int:
    return await ctx.receive("go", int)


@workflow
async def child(ctx: Context, name: str) -> int:
    return await ctx.child(grandchild, id=f"{name}.below", cancel_with_parent=True)


@workflow
async def parent(ctx: Context, name: str) -> list[int]:
    return [await ctx.child(child, name, id=f"{name}.child", cancel_with_parent=True)]


async def undo(what: str) -> None:
    note(f"undo-{what}")


async def refuse() -> None:
    raise ValueError("no")


@workflow
async def journey(ctx: Context, name: str, seconds: float) -> str:
    """Do all that a move must carry: steps, what undoes them, a sleep, a child, a message, a failure at the end."""
    ctx.compensate(undo, await ctx.step("first", mark, "first"))
    begun = ctx.now()
    await ctx.sleep(timedelta(seconds=seconds))
    assert ctx.now() - begun >= timedelta(seconds=seconds)
    below = ctx.child(grandchild, id=f"{name}.below")
    said = await ctx.receive("said", str)
    ctx.compensate(undo, await ctx.step("second", mark, said))
    await ctx.step("third", mark, str(await below))
    await ctx.step(refuse)
    return "never"


@workflow
async def asked(ctx: Context) -> str:
    request = await ctx.receive_request("question", str)
    await ctx.receive("go")
    ctx.reply(request, "late")
    return await ctx.receive("more", str)


@workflow
async def tidy(ctx: Context) -> str:
    try:
        await ctx.receive("never")
    finally:
        await ctx.step(mark, "tidied")
    return ""


EVERY = [halfway, counter, patient, stubborn, once_more, parent, child, grandchild, journey, asked, tidy]
