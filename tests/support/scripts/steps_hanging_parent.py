"""A worker that runs the isolated step `hang` until it is killed: argv is the database and the marker file."""

from __future__ import annotations

import asyncio
import sys

from tests.support.scripts.steps_bodies import hang

from holdfast import Context, Engine, workflow


@workflow
async def hanging(ctx: Context, marker: str) -> None:
    await ctx.step(hang, marker)


async def main() -> None:
    async with Engine(sys.argv[1], workflows=[hanging]) as engine:
        await engine.execute(hanging, sys.argv[2], id="r")


if __name__ == "__main__":
    asyncio.run(main())
