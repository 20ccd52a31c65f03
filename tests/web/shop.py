"""A small house whose dashboard is tested."""

from __future__ import annotations

from typing import Any

from holdfast import Engine, Retry, activity, workflow
from holdfast.web import Principal


@activity
async def pack(item: str) -> str:
    return f"packed {item}"


@workflow
async def order(ctx: Any, item: str) -> str:
    packed: str = await ctx.step(pack, item)
    return packed


@workflow
async def approve(ctx: Any) -> Any:
    return await ctx.receive("approved")


@activity(retry=Retry(max_attempts=1))
async def break_down(secret: str = "") -> None:
    raise ValueError(f"cannot use {secret}")


@workflow
async def fail(ctx: Any, secret: str = "") -> None:
    await ctx.step(break_down, secret)


def house(database: str = ":memory:", **options: Any) -> Engine:
    return Engine(database, workflows=[order, approve, fail], **options)


def viewer(role: Any = "viewer") -> Any:
    """Return who is taken for whoever asks: kim, in a role."""
    return lambda request: Principal("kim", role)
