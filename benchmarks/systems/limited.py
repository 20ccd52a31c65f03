"""Limits that workers share: what one costs that never binds, and how fast a place goes round between two workers.

Rates are compared with the same work without a limit, in the same run and by turns: machines differ, and are busy.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from statistics import median

from report import Job, Metrics

from holdfast import Context, Engine, activity, workflow
from holdfast.limits import Limit

STEPS = 10
WORKERS = 4
LIMITS = [Limit(name="wide", at_once=1_000_000), Limit(name="narrow", at_once=1)]


async def increment(number: int) -> int:
    return number + 1


limited = activity(name="limited", limit="wide")(increment)


@activity(limit="narrow")
async def brief(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


@workflow
async def free(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    return number


@workflow
async def under_limit(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(limited, number)
    return number


@workflow
async def in_turn(ctx: Context, number: int) -> int:
    return await ctx.step(brief, number)


def engine_of(job: Job, name: str) -> Engine:
    database = job.url or str(job.folder / f"{name}.db")
    return Engine(database, workflows=[free, under_limit, in_turn], limits=LIMITS)


async def rate_of(job: Job, kind: str, name: str) -> float:
    """Return how many steps a second many runs of one kind make, from the first start to the last result."""
    runs = job.times(1_000)
    async with engine_of(job, name) as engine:
        began = time.perf_counter()
        results = await asyncio.gather(*(engine.execute(kind, STEPS) for _ in range(runs)))
        assert results == [STEPS] * runs
        return runs * STEPS / (time.perf_counter() - began)


def measured(job: Job) -> Metrics:
    """W13: the share of W2 that is left under a limit that never binds; how often a single place changes hands."""
    shares, rates = [], []
    for number in range(3):
        without = asyncio.run(rate_of(job, "free", f"{number}"))
        rates.append(asyncio.run(rate_of(job, "under_limit", f"{number}")))
        shares.append(rates[-1] / without)
    metrics = {"steps_per_second": median(rates), "share_of_w2": median(shares)}
    metrics["hand_overs_per_second"] = _hand_overs(job)
    if job.store == "postgres":
        together = _together(job)
        metrics |= {"steps_per_second_4_workers": together, "four_to_one": together / metrics["steps_per_second"]}
    return metrics


def _together(job: Job) -> float:
    """Return how many steps a second four workers make under the limit, from the first start to the last end."""
    commands = [[sys.executable, __file__, job.url, str(job.times(1_000) // WORKERS + 1)] for _ in range(WORKERS)]
    workers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    began = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"done\n"
    took = time.perf_counter() - began
    for worker in workers:
        assert worker.wait() == 0
    return WORKERS * (job.times(1_000) // WORKERS + 1) * STEPS / took


async def _work(url: str, runs: int) -> None:
    """Be one of the four workers: open, say so, and make one's runs when told to."""
    async with Engine(url, workflows=[free, under_limit, in_turn], limits=LIMITS) as engine:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(engine.execute(under_limit, STEPS) for _ in range(runs)))
        print("done", flush=True)


def _hand_overs(job: Job) -> float:
    """Return how many bodies of 1 ms run a second, one at a time, of two workers that wait for each other."""

    async def main() -> float:
        runs = job.times(200)
        async with engine_of(job, "turns") as one, engine_of(job, "turns") as other:
            await one.execute(in_turn, 0)
            began = time.perf_counter()
            await asyncio.gather(
                *(engine.execute(in_turn, number) for number in range(runs // 2) for engine in (one, other))
            )
            return runs // 2 * 2 / (time.perf_counter() - began)

    return asyncio.run(main())


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], int(sys.argv[2])))
