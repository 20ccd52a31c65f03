"""Workflows that two processes of one test both know."""

from __future__ import annotations

import os

from holdfast import Context, workflow


def where() -> int:
    return os.getpid()


@workflow
async def echo(ctx: Context) -> list[str]:
    pid = await ctx.step(where)
    heard = [str(pid)]
    while len(heard) < 4:
        heard.append(await ctx.receive("word", str))
    return heard
