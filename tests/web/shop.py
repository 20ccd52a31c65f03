"""A small house whose dashboard is tested."""

from __future__ import annotations

from typing import Any

from holdfast import Engine, activity, workflow
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


def house(database: str = ":memory:", **options: Any) -> Engine:
    return Engine(database, workflows=[order, approve], **options)


def viewer(role: Any = "viewer") -> Any:
    """Return who is taken for whoever asks: kim, in a role."""
    return lambda request: Principal("kim", role)
