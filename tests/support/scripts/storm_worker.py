"""A worker among others that are killed; run by tests/crash/test_kill_storms.py.

usage: storm_worker.py DATABASE FOLDER

It says `open` when it works, and ends when every run has ended or is blocked.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path

from holdfast import Context, Engine, workflow

INNOCENTS = 20


async def look(folder: str) -> bool:
    """Tell whether the storm is over."""
    await asyncio.sleep(0.01)
    return Path(folder, "over").exists()


@workflow(check=False)
async def poisoned(ctx: Context, folder: str) -> str:
    await ctx.step(look, folder)
    os._exit(7)  # what a crash in C code, or the out-of-memory killer, would do


@workflow
async def innocent(ctx: Context, folder: str) -> int:
    laps = 0
    while not await ctx.step(look, folder):
        laps += 1
        await ctx.sleep(timedelta(milliseconds=20))
    return laps


WORKFLOWS = [poisoned, innocent]


async def main() -> None:
    database, _ = sys.argv[1:3]
    async with Engine(database, workflows=WORKFLOWS) as engine:
        print("open", flush=True)
        while not all(run.status.is_terminal or run.status == "blocked" for run in await engine.runs()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main())
