"""One of several workers on a file, some of which are stopped and continued; run by tests/crash/test_hung_workers.py.

usage: many_workers.py DATABASE LOG NUMBER_OF_RUNS

Works until every run has ended, then prints how often it was declared dead or a write of its was refused.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta

from holdfast import Context, Engine, workflow

LOG = sys.argv[2]


async def effect(name: str) -> str:
    with open(LOG, "a") as log:
        log.write(f"{os.getpid()} {name}\n")
    await asyncio.sleep(0.03)
    return name


@workflow(check=False)
async def job(ctx: Context, number: int) -> int:
    for step in range(10):
        await ctx.step(f"s{step}", effect, f"{number}-{step}")
        await ctx.sleep(timedelta(milliseconds=60))
    return number


async def main() -> None:
    count = int(sys.argv[3])
    async with Engine(sys.argv[1], workflows=[job], lease=timedelta(milliseconds=300), max_steps=4) as engine:
        for number in range(count):
            await engine.start(job, number, id=f"job-{number}")
        while True:
            runs = await engine.runs(limit=count)
            if len(runs) == count and all(run.status.is_terminal for run in runs):
                break
            await asyncio.sleep(0.05)
        assert all(run.status == "completed" and run.output == int(run.id[4:]) for run in runs)
        worker = engine._working()
        print(worker.runner.departures.fenced + worker.lapses, flush=True)


asyncio.run(main())
