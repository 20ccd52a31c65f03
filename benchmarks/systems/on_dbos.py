"""The workloads on DBOS, in SQLite and in PostgreSQL."""
# mypy: ignore-errors

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import report
import sqlalchemy
from dbos import DBOS, DBOSClient, SetWorkflowID
from report import Job, Metrics

HANG = "DBOS_BENCH_HANG"
"""Set in the process that is killed: the last step of its runs never ends."""
THREADS = {"sqlite": 2, "postgres": 3}
"""Threads that run workflows, where there are many: more of them only wait for each other."""
CONNECTIONS = {"sqlite": 1, "postgres": 20}
POLLING = 0.001
"""Seconds between two looks for messages in SQLite, the least that is allowed; PostgreSQL notifies."""
PARKED: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
"""By the id of a run: that it is about to receive."""


@DBOS.step()
def increment(number: int) -> int:
    return number + 1


@DBOS.step()
def twenty_bytes(number: int) -> str:
    return f"{number:020}"


@DBOS.step()
def hang(number: int) -> int:
    if HANG in os.environ:
        os.write(1, b"hanging\n")  # whole, whichever thread writes next
        threading.Event().wait()
    return number + 1


@DBOS.workflow()
def sequential(steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = increment(number)
    return number


@DBOS.workflow()
def wordy(steps: int) -> str:
    words = [twenty_bytes(number) for number in range(steps)]
    return words[-1]


@DBOS.workflow()
def interrupted(steps: int, number: int) -> int:
    for _ in range(steps):
        number = increment(number)
    return hang(number)


@DBOS.workflow()
async def echo(rounds: int) -> int:
    total = 0
    for _ in range(rounds):
        PARKED[DBOS.workflow_id].set()
        total += await DBOS.recv_async()
    return total


def one_run(job: Job) -> Metrics:
    """W1: one run of many sequential steps, from start to result."""
    steps = job.times(1_000)
    with launched(job):
        began = time.perf_counter()
        assert DBOS.start_workflow(sequential, steps).get_result() == steps
        return {"steps_per_second": steps / (time.perf_counter() - began)}


def many_runs(job: Job) -> Metrics:
    """W2: many runs at once, from the first start to the last result."""
    runs, steps = job.times(1_000), 10
    with launched(job, max_executor_threads=THREADS[job.store]):
        began = time.perf_counter()
        handles = [DBOS.start_workflow(sequential, steps) for _ in range(runs)]
        results = [handle.get_result() for handle in handles]
        took = time.perf_counter() - began
    assert results == [steps] * runs
    return {"steps_per_second": runs * steps / took}


def latencies(job: Job) -> Metrics:
    """W3: one-step runs, one after another, each from the call of start to the result."""
    taken = []
    with launched(job):
        for _ in range(job.times(200)):
            began = time.perf_counter()
            assert DBOS.start_workflow(sequential, 1).get_result() == 1
            taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50_ms": taken[len(taken) // 2] * 1e3, "p99_ms": taken[len(taken) * 99 // 100] * 1e3}


def recovery(job: Job) -> Metrics:
    """W4: a process is killed in the second step of many runs; another one finishes them."""
    runs = job.times(2_000)
    leave_unfinished(job, "W4-begin", runs)
    began = time.perf_counter()
    with launched(job):
        while DBOS.list_workflows(status=["PENDING", "ENQUEUED"], limit=1, load_input=False, load_output=False):
            time.sleep(0.02)
        took = time.perf_counter() - began
        ended = DBOS.list_workflows(status="SUCCESS")
        assert sorted(run.output for run in ended) == [number + 2 for number in range(runs)]
    return {"seconds": took}


def begin_many(job: Job) -> Metrics:
    """The process of W4 that is killed."""
    return begin(job, runs=job.times(2_000), steps=1)


def round_trips(job: Job) -> Metrics:
    """W5: a message is acknowledged, consumed, and the next receive is near; one run, then a hundred at once.

    The run says so in memory before it receives again, which no other process could see: a reply would cost a commit.
    """

    async def talk(run: str, rounds: int) -> None:
        with SetWorkflowID(run):
            handle = await DBOS.start_workflow_async(echo, rounds)
        for number in range(rounds):
            await PARKED[run].wait()
            PARKED[run].clear()
            await DBOS.send_async(run, number)
        assert await handle.get_result() == sum(range(rounds))

    async def main() -> Metrics:
        with launched(job, notification_listener_polling_interval_sec=POLLING):
            alone, each = job.times(200), job.times(10)
            began = time.perf_counter()
            await talk("alone", alone)
            one = alone / (time.perf_counter() - began)
            began = time.perf_counter()
            await asyncio.gather(*(talk(f"r{number}", each) for number in range(100)))
            many = 100 * each / (time.perf_counter() - began)
        return {"round_trips_per_second": one, "round_trips_per_second_100": many}

    return asyncio.run(main())


def replayed(job: Job) -> Metrics:
    """W6: a process is killed after many steps of one run; another one replays them and makes the last."""
    leave_unfinished(job, "W6-begin", 1)
    began = time.perf_counter()
    with launched(job):
        result = DBOS.retrieve_workflow("r0").get_result(polling_interval_sec=0.005)
        took = time.perf_counter() - began
    assert result == job.times(5_000) + 1
    return {"seconds": took}


def begin_long(job: Job) -> Metrics:
    """The process of W6 that is killed."""
    return begin(job, runs=1, steps=job.times(5_000))


def stored_bytes(job: Job) -> Metrics:
    """W8: how much the store grows by a step with a result of twenty bytes."""
    runs, steps = job.times(1_000), 10
    with launched(job):
        pass
    before = size_of_store(job)
    with launched(job, max_executor_threads=THREADS[job.store]):
        handles = [DBOS.start_workflow(wordy, steps) for _ in range(runs)]
        assert [handle.get_result() for handle in handles] == [f"{steps - 1:020}"] * runs
    return {"bytes_per_step": (size_of_store(job) - before) / (runs * steps)}


def footprint(job: Job) -> Metrics:
    """W10: time to import DBOS in a fresh interpreter, and room for it and what it needs."""
    return report.footprint("import dbos")


@contextmanager
def launched(job: Job, **options: object) -> Iterator[None]:
    """Have DBOS running on the job's database."""
    engine = engine_of(job)
    config = {"name": "bench", "application_version": "1", "log_level": "ERROR", "system_database_engine": engine}
    DBOS(config={**config, **options})
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()
        engine.dispose()


def engine_of(job: Job) -> sqlalchemy.Engine:
    """Make the connections that DBOS would, but with a log instead of a journal in SQLite, and no ping."""
    pool = {"pool_size": CONNECTIONS[job.store], "max_overflow": 0, "pool_timeout": 600}
    if job.store == "postgres":
        return sqlalchemy.create_engine(sqlalchemy.make_url(job.url).set(drivername="postgresql+psycopg"), **pool)
    engine = sqlalchemy.create_engine(f"sqlite:///{job.folder / 'bench.db'}", **pool)

    @sqlalchemy.event.listens_for(engine, "connect")
    def prepare(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "foreign_keys=ON", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")

    return engine


def leave_unfinished(job: Job, workload: str, runs: int) -> None:
    """Have another process begin runs, and kill it when all of them are in their last step."""
    given = ["--store", job.store, "--folder", str(job.folder), "--url", job.url, "--scale", str(job.scale)]
    command = [sys.executable, __file__, workload, *given]
    with subprocess.Popen(command, env={**os.environ, HANG: "1"}, stdout=subprocess.PIPE) as child:
        try:
            hanging = sum(next(child.stdout) == b"hanging\n" for _ in range(runs))
        finally:
            child.kill()
    assert hanging == runs
    engine = engine_of(job)
    client = DBOSClient(system_database_engine=engine)
    assert len(client.list_workflows(status="PENDING", load_input=False, load_output=False)) == runs
    client.destroy()
    engine.dispose()


def begin(job: Job, runs: int, steps: int) -> Metrics:
    """Begin runs that hang after so many steps, and wait to be killed."""
    with launched(job):
        for number in range(runs):
            with SetWorkflowID(f"r{number}"):
                DBOS.start_workflow(interrupted, steps, number)
        threading.Event().wait()
    return {}


def size_of_store(job: Job) -> int:
    """Give the bytes of the database that nothing has open."""
    if job.store == "sqlite":
        path = job.folder / "bench.db"
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return path.stat().st_size
    sizes = "SELECT sum(pg_total_relation_size(relid)) FROM pg_catalog.pg_statio_user_tables WHERE schemaname = 'dbos'"
    engine = engine_of(job)
    with engine.connect() as connection:
        size = connection.execute(sqlalchemy.text(sizes)).scalar_one()
    engine.dispose()
    return int(size)


def settings(job: Job) -> str:
    if job.store == "sqlite":
        return (
            "sync API, own engine with WAL, synchronous=FULL, 1 connection without ping; W2: 2 threads; "
            "W5: async API, messages looked for every ms"
        )
    return "sync API, 20 connections without ping, the server's default durability; W2: 3 threads; W5: async API"


WORKLOADS = {
    "W1": one_run,
    "W2": many_runs,
    "W3": latencies,
    "W4": recovery,
    "W4-begin": begin_many,
    "W5": round_trips,
    "W6": replayed,
    "W6-begin": begin_long,
    "W8": stored_bytes,
    "W10": footprint,
}

if __name__ == "__main__":
    report.main(WORKLOADS, settings)
