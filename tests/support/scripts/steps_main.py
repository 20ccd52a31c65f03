"""A script of its own whose isolated step is defined in __main__. Prints what the step returned."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from holdfast import Context, Engine, Retry, activity, workflow


@dataclass
class Point:
    x: int


@activity(isolate="process", retry=Retry.never)
def move(point: Point) -> Point:
    assert os.getpid() != int(os.environ["PARENT"])
    return Point(point.x + 1)


@workflow
async def mover(ctx: Context) -> Point:
    return await ctx.step(move, Point(4))


async def main() -> None:
    os.environ["PARENT"] = str(os.getpid())
    async with Engine(sys.argv[1], workflows=[mover]) as engine:
        sys.stdout.write(repr(await engine.execute(mover)))


if __name__ == "__main__":
    asyncio.run(main())
