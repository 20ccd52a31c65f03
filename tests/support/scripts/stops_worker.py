"""A worker under load, for tests that interrupt its stop.

usage: stops_worker.py DATABASE run|lifespan|thread SECONDS NAME

It starts some runs, says `open`, works for so long, says `stopping` and stops; SIGINT may come at any time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from typing import Any

from holdfast import Context, Engine, Retry, activity, workflow

ONCE = Retry(max_attempts=1)
STEPS = 4
RUNS = 8


@activity(retry=ONCE)
async def in_loop(number: int) -> int:
    await asyncio.sleep(0.002 * (number % 7))
    return number


@activity(retry=ONCE)
def in_thread(number: int) -> int:
    time.sleep(0.002 * (number % 5))
    return number


@activity(retry=ONCE, queue="default")
async def in_queue(number: int) -> int:
    await asyncio.sleep(0.003)
    return number


@workflow
async def load(ctx: Context, number: int) -> int:
    total = 0
    for lap in range(STEPS):
        total += await ctx.step(in_loop, number + lap)
        total += sum(await asyncio.gather(ctx.step(in_thread, lap), ctx.step(in_queue, lap), ctx.step(in_loop, lap)))
        await ctx.sleep(timedelta(milliseconds=5))
    return total


def expected(number: int) -> int:
    return sum(number + lap + 3 * lap for lap in range(STEPS))


def make(database: str, grace: float = 0.05) -> Engine:
    return Engine(
        database, workflows=[load], stop_grace=timedelta(seconds=grace), max_threads=4, retention=None, max_steps=12
    )


def say(word: str) -> None:
    print(word, flush=True)


async def start(engine: Any, name: str) -> None:
    for number in range(RUNS):
        await engine.start(load, number, id=f"{name}-{number}")
    say("open")


async def work(engine: Engine, seconds: float, name: str) -> None:
    async with engine:
        await start(engine, name)
        try:
            await asyncio.sleep(seconds)
        finally:
            say("stopping")


async def bounded(engine: Engine, seconds: float) -> None:
    say("open")
    await engine.run(timedelta(seconds=seconds), buffer=timedelta(milliseconds=20))


def in_a_thread(engine: Engine, seconds: float, name: str) -> None:
    with engine.in_thread() as call:
        call(start(engine, name))
        try:
            time.sleep(seconds)
        finally:
            say("stopping")


def main() -> None:
    database, how, seconds, name = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    engine = make(database)
    try:
        if how == "run":
            asyncio.run(work(engine, seconds, name))
        elif how == "lifespan":
            asyncio.run(bounded(engine, seconds))
        else:
            in_a_thread(engine, seconds, name)
    except KeyboardInterrupt:
        sys.exit(5)


if __name__ == "__main__":
    main()
