"""One of several processes that share a queue; run by tests/crash/test_queue_workers.py.

usage: queue_worker.py DATABASE LOG office|gpu|both [LEASE_MS]

`office` advances runs, `gpu` runs the steps that wait in the queue. Works until its standard input is closed, then
prints how often it was declared dead or a write of its was refused. Each body notes in LOG what it is, when it begins
and when it ends; while the file LOG.hold is there, it stays.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import Context, Engine, Retry, activity, step_context, workflow

LOG = Path(sys.argv[2]) if len(sys.argv) > 2 else Path()


def note(what: str) -> None:
    context = step_context()
    with open(LOG, "a") as log:
        log.write(f"{what} {os.getpid()} {context.run_id} {context.step} {context.attempt}\n")


@activity(queue="gpu", retry=Retry(crash_limit=100))
async def train(number: int) -> list[int]:
    note("begin")
    while LOG.with_name("hold").exists():  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    note("end")
    return [number, step_context().attempt]


@workflow(check=False)
async def job(ctx: Context, steps: int) -> list[list[int]]:
    done = [await ctx.step(f"s{number}", train, number) for number in range(steps)]
    return [*done, *await asyncio.gather(*(ctx.step(f"p{number}", train, number) for number in range(steps)))]


async def main() -> None:
    role, lease = sys.argv[3], timedelta(milliseconds=int(sys.argv[4])) if len(sys.argv) > 4 else timedelta(seconds=30)
    roles: dict[str, dict[str, Any]] = {
        "office": {"workflows": [job]},
        "gpu": {"activities": [train], "queues": ["gpu"]},
        "both": {"workflows": [job], "queues": ["default", "gpu"]},
    }
    async with Engine(sys.argv[1], lease=lease, max_steps=4, **roles[role]) as engine:
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        worker = engine._working()
        print(worker.runner.departures.fenced + worker.lapses, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
