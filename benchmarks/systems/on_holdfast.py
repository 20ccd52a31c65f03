"""The workloads on holdfast: each opens an empty database, measures one thing and gives plain numbers."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import growth
import limited
import report
import waiting
from on_raw import raw_commits
from report import Job, Metrics

from holdfast import Context, Engine, Event, workflow

CRASH_STEPS = "HOLDFAST_BENCH_HANG"
"""Set in the process that is killed: the second step of its runs never ends."""


async def increment(number: int) -> int:
    return number + 1


async def twenty_bytes(number: int) -> str:
    return f"{number:018}"  # quoted, twenty


async def hang(number: int) -> int:
    if CRASH_STEPS in os.environ:
        await asyncio.Event().wait()
    return number + 1


@workflow
async def sequential(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    return number


@workflow
async def wordy(ctx: Context, steps: int) -> int:
    for number in range(steps):
        await ctx.step(twenty_bytes, number)
    return steps


@workflow
async def then_wait(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    await ctx.receive("go")
    return number


@workflow
async def two_steps(ctx: Context, number: int) -> int:
    number = await ctx.step(increment, number)
    return await ctx.step(hang, number)


@workflow
async def echo(ctx: Context, rounds: int) -> int:
    for number in range(rounds):
        await ctx.receive(BALLS[number % 2])
    return rounds


@workflow
async def fan_out(ctx: Context, steps: int) -> int:
    return sum(await asyncio.gather(*(ctx.step(increment, number) for number in range(steps))))


@workflow
async def listen(ctx: Context) -> int:
    return await ctx.receive("news", int)


BALLS = ("ping", "pong")
WORKFLOWS = [sequential, wordy, then_wait, two_steps, echo, fan_out, listen]
NEWS = Event(name="news", consume_on_read=False)


def engine_of(job: Job, **options: Any) -> Engine:
    """Open an engine as a user would: every option at its default, but for those given."""
    return Engine(job.url or str(job.folder / "bench.db"), workflows=WORKFLOWS, events=[NEWS], **options)


def measured(job: Job, work: Callable[[Engine], Awaitable[Metrics]], **options: Any) -> Metrics:
    """Open an engine and measure something with it."""

    async def main() -> Metrics:
        async with engine_of(job, **options) as engine:
            return await work(engine)

    return asyncio.run(main())


def one_run(job: Job) -> Metrics:
    """W1: one run of many sequential steps, from start to result; the raw commit rate just before and just after."""
    counts = [job.times(count) for count in (100, 1_000, 10_000)]

    async def rate(steps: int) -> float:
        async with engine_of(job) as engine:
            began = time.perf_counter()
            assert await engine.execute(sequential, steps) == steps
            return steps / (time.perf_counter() - began)

    asyncio.run(rate(counts[0]))  # the tables are made, the statements prepared
    before = raw_commits(job, counts[1])
    value = asyncio.run(rate(counts[1]))
    after = raw_commits(job, counts[1])
    few = median(asyncio.run(rate(counts[0])) for _ in range(5))
    return {
        "steps_per_second": value,
        "raw": (before + after) / 2,
        "steps_per_second_of_100": few,
        "steps_per_second_of_10000": asyncio.run(rate(counts[2])),
    }


def many_runs(job: Job) -> Metrics:
    """W2: many runs at once, from the first start to the last result."""
    runs, steps = job.times(1_000), 10

    async def work(engine: Engine) -> Metrics:
        began = time.perf_counter()
        results = await asyncio.gather(*(engine.execute(sequential, steps) for _ in range(runs)))
        took = time.perf_counter() - began
        assert results == [steps] * runs
        return {"steps_per_second": runs * steps / took}

    before = raw_commits(job, job.times(1_000))
    metrics = measured(job, work)
    return {**metrics, "raw": (before + raw_commits(job, job.times(1_000))) / 2}


def latencies(job: Job) -> Metrics:
    """W3: one-step runs, one after another, each from the call of start to the result."""

    async def work(engine: Engine) -> Metrics:
        taken = []
        for _ in range(job.times(500)):
            began = time.perf_counter()
            await engine.execute(sequential, 1)
            taken.append(time.perf_counter() - began)
        taken.sort()
        return {"p50_ms": taken[len(taken) // 2] * 1e3, "p99_ms": taken[len(taken) * 99 // 100] * 1e3}

    return measured(job, work)


def recovery(job: Job) -> Metrics:
    """W4: a process is killed in the second step of many runs; another one finishes them."""
    runs = job.times(2_000)
    child = subprocess.Popen(
        [sys.executable, __file__, "W4-begin", *arguments(job)],
        env={**os.environ, CRASH_STEPS: "1"},
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()

    async def main() -> Metrics:
        began = time.perf_counter()
        async with engine_of(job) as engine:
            opened = time.perf_counter()
            handles = [engine.get(f"r{number}", two_steps) for number in range(runs)]
            results = await asyncio.gather(*(handle.result() for handle in handles))
            took = time.perf_counter() - began
            assert results == [number + 2 for number in range(runs)]
            return {"seconds": took, "seconds_to_open": opened - began}

    return asyncio.run(main())


def begin_runs(job: Job) -> Metrics:
    """The process that is killed: says when each run has made its first step and begun its second."""
    runs = job.times(2_000)

    async def work(engine: Engine) -> Metrics:
        await engine.start_many(two_steps, range(runs), id=lambda number: f"r{number}")
        while (await engine.stats()).get("completed", 0) or not await begun(engine, runs):
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.Event().wait()
        return {}

    return measured(job, work, max_steps=2 * runs)  # all of them hang in their second step


async def begun(engine: Engine, runs: int) -> bool:
    """Tell whether the run that was started last is in its second step."""
    steps = await engine.get(f"r{runs - 1}").steps()
    return len(steps) == 2


def round_trips(job: Job) -> Metrics:
    """W5: a message is acknowledged, consumed, and the next receive is waiting; one run, then a hundred at once.

    The sender hears of the latter from the engine, which tells when a run waits for something else than before.
    """

    async def talk(engine: Engine, run_id: str, rounds: int) -> None:
        parked = asyncio.Event()
        stop = engine.subscribe(lambda change: parked.set(), run_id)
        run = await engine.start(echo, rounds, id=run_id)
        for number in range(rounds):
            await parked.wait()
            parked.clear()
            await run.send(BALLS[number % 2])
        stop()
        assert await run.result() == rounds

    async def work(engine: Engine) -> Metrics:
        alone, each = job.times(1_000), job.times(100)
        began = time.perf_counter()
        await talk(engine, "alone", alone)
        one = alone / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(talk(engine, f"r{number}", each) for number in range(100)))
        many = 100 * each / (time.perf_counter() - began)
        return {"round_trips_per_second": one, "round_trips_per_second_100": many}

    before = raw_commits(job, job.times(1_000))
    metrics = measured(job, work)
    return {**metrics, "raw": (before + raw_commits(job, job.times(1_000))) / 2}


def replayed(job: Job) -> Metrics:
    """W6: a run of many recorded steps, whose message has come meanwhile: from opening an engine to its result."""
    steps = job.times(5_000)

    async def prepare(engine: Engine) -> Metrics:
        run = await engine.start(then_wait, steps, id="long")
        while (await run.describe()).waiting_for != "message go":  # the store has no such event
            await asyncio.sleep(0.05)
        return {}

    async def send(engine: Engine) -> Metrics:
        await engine.get("long").send("go")
        return {}

    async def main() -> Metrics:
        began = time.perf_counter()
        async with engine_of(job) as engine:
            opened = time.perf_counter()
            assert await engine.get("long", then_wait).result() == steps
            done = time.perf_counter()
            return {"seconds": done - opened, "seconds_with_opening": done - began}

    measured(job, prepare)
    measured(job, send, run_workflows=False)
    return asyncio.run(main())


def stored_bytes(job: Job) -> Metrics:
    """W8: how much the store grows by a step with a result of twenty bytes."""
    runs, steps = job.times(1_000), 10

    async def nothing(engine: Engine) -> Metrics:
        return {}

    async def work(engine: Engine) -> Metrics:
        await asyncio.gather(*(engine.execute(wordy, steps) for _ in range(runs)))
        return {}

    measured(job, nothing)
    before = growth.size_of(job)
    measured(job, work)
    return {"bytes_per_step": (growth.size_of(job) - before) / (runs * steps)}


def footprint(job: Job) -> Metrics:
    """W10: what it costs to have holdfast: time to import, from nothing to a first result, and room on disk."""
    first = (
        "import sys; sys.path[:0] = [{here!r}]\n"
        "import asyncio\n"
        "from holdfast import Engine\n"
        "from first import hello\n"
        "asyncio.run(hello({url!r}))"
    ).format(here=str(Path(__file__).parent), url=job.url or str(job.folder / "first.db"))
    return {
        "import_ms": (report.seconds_of("import holdfast") - report.seconds_of("pass")) * 1e3,
        "cold_start_ms": report.seconds_of(first) * 1e3,
        "install_mb": growth.installed_bytes(["holdfast", "apsw", "msgspec", "cronsim", "click"]) / 1e6,
    }


def gathered(job: Job) -> Metrics:
    """W11: one run that gathers many steps."""
    steps = job.times(10_000)

    async def work(engine: Engine) -> Metrics:
        began = time.perf_counter()
        assert await engine.execute(fan_out, steps) == sum(range(1, steps + 1))
        return {"seconds": time.perf_counter() - began}

    return measured(job, work)


def broadcast(job: Job) -> Metrics:
    """W12: one event for many waiting runs: from publishing it to the last of their results."""
    runs = job.times(10_000)

    async def work(engine: Engine) -> Metrics:
        handles = await engine.start_many(listen, [()] * runs)
        while (await engine.stats()).get("suspended", 0) < runs:  # the store has no such event
            await asyncio.sleep(0.1)
        ended = asyncio.gather(*(handle.result() for handle in handles))
        await asyncio.sleep(0.5)
        began = time.perf_counter()
        assert await engine.publish("news", 7) == runs
        assert await ended == [7] * runs
        return {"seconds": time.perf_counter() - began}

    return measured(job, work)


def arguments(job: Job) -> list[str]:
    """The command line that gives this job to another process."""
    return ["--store", job.store, "--folder", str(job.folder), "--url", job.url, "--scale", str(job.scale)]


def settings(job: Job) -> str:
    return "as it comes: synchronous=FULL" if job.store == "sqlite" else "as it comes: the server's default durability"


WORKLOADS = {
    "W1": one_run,
    "W2": many_runs,
    "W3": latencies,
    "W4": recovery,
    "W4-begin": begin_runs,
    "W5": round_trips,
    "W6": replayed,
    "W7": waiting.suspended,
    "W8": stored_bytes,
    "W9": growth.growing,
    "W10": footprint,
    "W11": gathered,
    "W12": broadcast,
    "W13": limited.measured,
}

if __name__ == "__main__":
    report.main(WORKLOADS, settings)
