"""A worker whose workflow code kills its process; run by tests/crash/test_poison.py.

usage: poison_worker.py DATABASE start|work

`start` starts one poisoned and some innocent runs; both modes then work until every run has ended or is blocked.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import timedelta

from holdfast import Context, Engine, workflow


async def greet(name: str) -> str:
    await asyncio.sleep(0.01)
    return f"hello {name}"


@workflow(check=False)
async def poisoned(ctx: Context) -> str:
    await ctx.step(greet, "poison")
    os._exit(7)  # what a crash in C code, or the out-of-memory killer, would do


@workflow
async def innocent(ctx: Context, name: str) -> str:
    for lap in range(3):
        await ctx.step(greet, f"{name}{lap}")
        await ctx.sleep(timedelta(milliseconds=30))
    return name


async def main() -> None:
    database, mode = sys.argv[1:3]
    async with Engine(database, workflows=[poisoned, innocent]) as engine:
        if mode == "start":
            for number in range(20):
                await engine.start(innocent, f"i{number}", id=f"innocent-{number}")
            await engine.start(poisoned, id="poisoned")
        while True:
            runs = await engine.runs()
            if all(run.status.is_terminal or run.status == "blocked" for run in runs):
                break
            await asyncio.sleep(0.02)
        print(json.dumps({run.id: [run.status, run.error.message if run.error else ""] for run in runs}))


asyncio.run(main())
