"""W7: very many suspended runs: how long to start them, what they cost while they wait, how long to wake them all."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from report import Job, Metrics

from holdfast import Context, Engine, workflow

IDLE = 10.0
"""For how many seconds the idle processor time is measured."""


@workflow
async def sleeper(ctx: Context, moment: datetime) -> int:
    await ctx.sleep_until(moment)
    return 1


def suspended(job: Job) -> Metrics:
    """Start runs that sleep until one moment, look at the process while they do, and count until all have ended."""
    return {**_suspended(job, job.times(10_000), "10000"), **_suspended(job, job.times(100_000), "100000")}


def _suspended(job: Job, runs: int, label: str) -> Metrics:
    async def main() -> Metrics:
        async with Engine(job.url or str(job.folder / f"waiting{label}.db"), workflows=[sleeper]) as engine:
            # Ample time to start them all, so that every one of them really sleeps.
            moment = datetime.now(UTC) + timedelta(seconds=runs / 2_500 + 15 + IDLE)
            began = time.perf_counter()
            for first in range(0, runs, 5_000):
                await engine.start_many(sleeper, [moment] * min(5_000, runs - first))
            started = time.perf_counter() - began
            await _settled(engine, runs)
            assert datetime.now(UTC) + timedelta(seconds=IDLE + 1) < moment, "they took too long to start"
            before = time.process_time()
            await asyncio.sleep(IDLE)
            idle = (time.process_time() - before) / IDLE
            memory = _resident_bytes()
            await asyncio.sleep((moment - datetime.now(UTC)).total_seconds())
            while (await engine.stats()).get("completed", 0) < runs:  # the store has no such event
                await asyncio.sleep(0.2)
            woken = (datetime.now(UTC) - moment).total_seconds()
        return {
            f"start_seconds_{label}": started,
            f"memory_mb_{label}": memory / 1e6,
            f"idle_cpu_percent_{label}": idle * 100,
            f"wake_seconds_{label}": woken,
        }

    return asyncio.run(main())


async def _settled(engine: Engine, runs: int) -> None:
    """Wait until all are suspended and what exceeds the limit of runs in memory has left it."""
    while (await engine.stats()).get("suspended", 0) < runs:  # the store has no such event
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.5)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
