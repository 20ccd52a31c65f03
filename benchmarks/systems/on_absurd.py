"""The workloads on absurd, in PostgreSQL; its tables come from `absurdctl`, the work is done by the Python SDK."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import absurdctl
import psycopg
import report
from absurd_sdk import AsyncAbsurd, AsyncTaskContext
from report import Job, Metrics

HANG = "ABSURD_BENCH_HANG"
"""Set in the process that is killed: the last step of its tasks never ends."""
WORKERS = 8
"""Workers in the process where there are many tasks: each has one connection, and does one task at a time."""
POLLING = 0.002
"""Seconds between two looks: of an idle worker for tasks, of who waits for a task at its state."""
LEASE = 120
"""Seconds, the default of `claim_timeout`."""


async def increment(number: int) -> int:
    return number + 1


async def twenty_bytes(number: int) -> str:
    return f"{number:020}"


async def hang(number: int) -> int:
    if HANG in os.environ:
        print("hanging", flush=True)
        await asyncio.Event().wait()
    return number + 1


async def sequential(params: dict[str, int], ctx: AsyncTaskContext) -> int:
    number = 0
    for _ in range(params["steps"]):
        number = await ctx.step("increment", lambda number=number: increment(number))
    return number


async def wordy(params: dict[str, int], ctx: AsyncTaskContext) -> str:
    word = ""
    for number in range(params["steps"]):
        word = await ctx.step("word", lambda number=number: twenty_bytes(number))
    return word


async def interrupted(params: dict[str, int], ctx: AsyncTaskContext) -> int:
    number = await ctx.step("increment", lambda: increment(params["number"]))
    return await ctx.step("hang", lambda: hang(number))


async def then_wait(params: dict[str, int], ctx: AsyncTaskContext) -> int:
    number = await sequential(params, ctx)
    return number + await ctx.await_event("go")


async def echo(params: dict[str, int], ctx: AsyncTaskContext) -> int:
    total = 0
    for number in range(params["rounds"]):
        total += await ctx.await_event(f"{ctx.task_id}:{number}")
    return total


TASKS = {task.__name__: task for task in (sequential, wordy, interrupted, then_wait, echo)}


async def one_run(job: Job) -> Metrics:
    """W1: one task of many sequential steps, from spawn to result."""
    steps = job.times(1_000)
    async with working(job) as app:
        began = time.perf_counter()
        assert await result_of(app, await spawn(app, sequential, steps=steps)) == steps
        return {"steps_per_second": steps / (time.perf_counter() - began)}


async def many_runs(job: Job) -> Metrics:
    """W2: many tasks at once, from the first spawn to the last result."""
    runs, steps = job.times(1_000), 10
    async with working(job, WORKERS) as app:
        began = time.perf_counter()
        tasks = [await spawn(app, sequential, steps=steps) for _ in range(runs)]
        results = [await result_of(app, task) for task in tasks]
        took = time.perf_counter() - began
    assert results == [steps] * runs
    return {"steps_per_second": runs * steps / took}


async def latencies(job: Job) -> Metrics:
    """W3: one-step tasks, one after another, each from the call of spawn to the result."""
    taken = []
    async with working(job) as app:
        for _ in range(job.times(200)):
            began = time.perf_counter()
            assert await result_of(app, await spawn(app, sequential, steps=1)) == 1
            taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50_ms": taken[len(taken) // 2] * 1e3, "p99_ms": taken[len(taken) * 99 // 100] * 1e3}


async def recovery(job: Job) -> Metrics:
    """W4: a process is killed in the second step of many tasks; another one finishes them when their leases lapse."""
    runs = job.times(2_000)
    given = ["--store", job.store, "--folder", str(job.folder), "--url", job.url, "--scale", str(job.scale)]
    command = [sys.executable, __file__, "W4-begin", *given]
    with subprocess.Popen(command, env={**os.environ, HANG: "1"}, stdout=subprocess.PIPE) as child:
        try:
            hanging = sum(next(child.stdout) == b"hanging\n" for _ in range(runs))
        finally:
            child.kill()
    assert hanging == runs
    assert await states(job) == {"running": runs}
    began = time.perf_counter()
    async with working(job, WORKERS, install=False):
        while await states(job) != {"completed": runs}:
            await asyncio.sleep(0.1)
        took = time.perf_counter() - began
    results = await query(job, "SELECT completed_payload::int FROM absurd.t_default ORDER BY 1")
    assert [result for (result,) in results] == [number + 2 for number in range(runs)]
    return {"seconds": took, "lease_seconds": LEASE}


async def begin_many(job: Job) -> Metrics:
    """The process of W4 that is killed: one worker, for it must have all tasks in hand at once."""
    runs = job.times(2_000)
    async with working(job, workers=0) as app:
        for number in range(runs):
            await spawn(app, interrupted, number=number)
        await app.start_worker(concurrency=runs + 1)
    return {}


async def round_trips(job: Job) -> Metrics:
    """W5: an event is emitted, consumed, and the task sleeps until the next; one task, then a hundred at once.

    The sender sees it sleep by looking at the task's state again and again.
    """

    async def talk(app: AsyncAbsurd, rounds: int, look: float) -> None:
        task = await spawn(app, echo, rounds=rounds)
        for number in range(rounds):
            while (await app.fetch_task_result(task)).state != "sleeping":
                await asyncio.sleep(look)
            await app.emit_event(f"{task}:{number}", number)
        assert await result_of(app, task) == sum(range(rounds))

    alone, each = job.times(200), job.times(10)
    async with working(job) as app:
        began = time.perf_counter()
        await talk(app, alone, POLLING)
        one = alone / (time.perf_counter() - began)
    async with working(job, WORKERS, install=False) as app:
        began = time.perf_counter()
        await asyncio.gather(*(talk(app, each, 10 * POLLING) for _ in range(100)))
        many = 100 * each / (time.perf_counter() - began)
    return {"round_trips_per_second": one, "round_trips_per_second_100": many}


async def replayed(job: Job) -> Metrics:
    """W6: a task of many recorded steps, whose event has come meanwhile: from starting a worker to its result."""
    steps = job.times(5_000)
    async with working(job) as app:
        task = await spawn(app, then_wait, steps=steps)
        while (await app.fetch_task_result(task)).state != "sleeping":
            await asyncio.sleep(0.05)
    async with working(job, workers=0, install=False) as app:
        await app.emit_event("go", 1)
    began = time.perf_counter()
    async with working(job, install=False) as app:
        assert await result_of(app, task) == steps + 1
        return {"seconds": time.perf_counter() - began}


async def stored_bytes(job: Job) -> Metrics:
    """W8: how much the tables grow by a step with a result of twenty bytes."""
    runs, steps = job.times(1_000), 10
    sizes = "SELECT sum(pg_total_relation_size(relid)) FROM pg_statio_user_tables WHERE schemaname = 'absurd'"
    async with working(job, WORKERS) as app:
        [[before]] = await query(job, sizes)
        tasks = [await spawn(app, wordy, steps=steps) for _ in range(runs)]
        assert [await result_of(app, task) for task in tasks] == [await twenty_bytes(steps - 1)] * runs
        [[after]] = await query(job, sizes)
    return {"bytes_per_step": float(after - before) / (runs * steps)}


async def footprint(job: Job) -> Metrics:
    """W10: time to import the SDK in a fresh interpreter, and room for it, `absurdctl` and what they need."""
    return report.footprint("import absurd_sdk")


@asynccontextmanager
async def working(job: Job, workers: int = 1, *, install: bool = True) -> AsyncIterator[AsyncAbsurd]:
    """Have a client of the job's database, with so many workers beside it."""
    if install:
        await query(job, absurdctl.BUNDLED_SCHEMA_SQL)
        await query(job, "SELECT absurd.create_queue('default')")
    apps = [client(job) for _ in range(1 + workers)]
    working = [asyncio.create_task(app.start_worker(poll_interval=POLLING)) for app in apps[1:]]
    try:
        await apps[0].list_queues()  # connected by one call, not by each of many at once
        yield apps[0]
    finally:
        for app in apps:
            app.stop_worker()
        await asyncio.gather(*working)
        for app in apps:
            await app.close()


def client(job: Job) -> AsyncAbsurd:
    """Make a client that knows all tasks."""
    app = AsyncAbsurd(job.url)
    for name, task in TASKS.items():
        app.register_task(name)(task)
    return app


async def spawn(app: AsyncAbsurd, task: Callable[..., Awaitable[object]], **params: int) -> str:
    """Start a task and give its id."""
    return (await app.spawn(task.__name__, params))["task_id"]


async def result_of(app: AsyncAbsurd, task: str) -> object:
    """Wait for a task's result; `await_task_result` would do the same, but look ever less often."""
    while True:
        found = await app.fetch_task_result(task)
        assert found.state not in ("failed", "cancelled"), found.failure
        if found.state == "completed":
            return found.result
        await asyncio.sleep(POLLING)


async def states(job: Job) -> dict[str, int]:
    """Count the tasks in each state."""
    return dict(await query(job, "SELECT state, count(*) FROM absurd.t_default GROUP BY state"))


async def query(job: Job, statement: str) -> list[tuple]:
    """Execute a statement and give the rows, if it has any."""
    async with await psycopg.AsyncConnection.connect(job.url, autocommit=True) as connection:
        cursor = await connection.execute(statement)
        return await cursor.fetchall() if cursor.description else []


def settings(job: Job) -> str:
    return (
        f"async API, workers and results looked for every {POLLING * 1e3:.0f} ms, the server's default durability; "
        f"many tasks: {WORKERS} workers in the process; W4: the default lease of {LEASE} s"
    )


WORKLOADS = {
    "W1": report.at_once(one_run),
    "W2": report.at_once(many_runs),
    "W3": report.at_once(latencies),
    "W4": report.at_once(recovery),
    "W4-begin": report.at_once(begin_many),
    "W5": report.at_once(round_trips),
    "W6": report.at_once(replayed),
    "W8": report.at_once(stored_bytes),
    "W10": report.at_once(footprint),
}

if __name__ == "__main__":
    report.main(WORKLOADS, settings)
