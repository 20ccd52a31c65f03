"""A worker that takes an idempotency key and never gives it back: killed by tests/behaviour/test_idempotency.py."""

from __future__ import annotations

import asyncio
import sys

from holdfast import Context, Engine, activity, workflow


@activity(idempotency_key=lambda: "k")
async def seize() -> str:
    print("holding", flush=True)
    await asyncio.sleep(60)
    return "never"


@workflow
async def hold(ctx: Context) -> str:
    return await ctx.step(seize)


async def main(path: str) -> None:
    async with Engine(path, workflows=[hold]) as engine:
        run = await engine.start(hold, id="holder")
        await run.result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
