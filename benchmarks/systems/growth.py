"""W9: what a step costs as the store fills with finished runs; and how much room things take."""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
from collections.abc import Iterable
from statistics import median

from report import Job, Metrics

from holdfast import Context, Engine, workflow
from holdfast.stores.sqlite import file as sqlite_file

_COLUMNS = {
    "runs": "key, id, workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, lost, seed, "
    "digest, created, updated, ended, reopens, side_rows, priority, cancel_with_parent",
    "entries": "run, location, seq, kind, at, data",
    "inputs": "run, input",
    "results": "run, output",
}
_COPY = {
    "runs": "{n}, 'copy' || ({n}), workflow, version, status, wait, due, epoch, owner, generation, inbox, claims, "
    "lost, seed, digest, created + {n}, updated + {n}, ended + {n}, reopens, side_rows, priority, cancel_with_parent",
    "entries": "{n}, location, seq, kind, at, data",
    "inputs": "{n}, input",
    "results": "{n}, output",
}
"""What a finished run leaves, written once more under another key."""


async def increment(number: int) -> int:
    return number + 1


@workflow
async def count(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    return number


def growing(job: Job) -> Metrics:
    """Microseconds per step, many runs at once, with a thousand and with a million finished runs in the store."""
    few, many = job.times(1_000), job.times(1_000_000)
    micros: dict[int, float] = {}
    asyncio.run(_run(job, 1))
    for stored in (few, many):
        _fill(job, stored)
        asyncio.run(_run(job, 100))
        micros[stored] = median(asyncio.run(_run(job, 1_000)) for _ in range(5)) * 1e6
    return {
        "microseconds_per_step_1000": micros[few],
        "microseconds_per_step_1000000": micros[many],
        "growth": micros[many] / micros[few],
    }


async def _run(job: Job, runs: int) -> float:
    async with Engine(_address(job), workflows=[count]) as engine:
        began = time.perf_counter()
        await asyncio.gather(*(engine.execute(count, 10) for _ in range(runs)))
        return (time.perf_counter() - began) / (runs * 10)


def _address(job: Job) -> str:
    return job.url or str(job.folder / "growing.db")


def _fill(job: Job, total: int) -> None:
    """Copy the run that ended first until so many are stored."""
    if job.url:
        _fill_postgres(job, total)
        return
    db, _ = sqlite_file.connect(_address(job), "process", 5)
    try:
        [[last]] = db.execute("SELECT max(key) FROM runs")
        [[stored]] = db.execute("SELECT count(*) FROM runs")
        series = f"WITH RECURSIVE series (n) AS (SELECT {last + 1} UNION ALL SELECT n + 1 FROM series LIMIT {{}})"
        with db:
            for table, columns in _COLUMNS.items():
                db.execute(
                    f"{series.format(total - stored)} INSERT INTO {table} ({columns}) "
                    f"SELECT {_COPY[table].format(n='n')} FROM series, {table} "
                    f"WHERE {'key' if table == 'runs' else 'run'} = (SELECT min(key) FROM runs)"
                )
    finally:
        db.close()


def _fill_postgres(job: Job, total: int) -> None:
    import psycopg

    with psycopg.connect(job.url, autocommit=True) as db:
        db.execute("SET search_path = holdfast")
        first, stored = db.execute("SELECT min(key), count(*) FROM runs").fetchone() or (0, 0)
        for table, columns in _COLUMNS.items():
            column = "key" if table == "runs" else "run"
            db.execute(
                f"INSERT INTO {table} ({columns}) SELECT {_COPY[table].format(n='n')} "  # type: ignore[arg-type]
                f"FROM generate_series({stored + 1}, {total}) AS n, {table} WHERE {column} = {first}"
            )
        db.execute("VACUUM ANALYZE")


def size_of(job: Job) -> int:
    """Return how many bytes the store has, everything written back from the log."""
    if job.url:
        import psycopg

        with psycopg.connect(job.url) as db:
            rows = db.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname = 'holdfast'"
            ).fetchone()
            return int(rows[0]) if rows else 0
    db, _ = sqlite_file.connect(str(job.folder / "bench.db"), "power", 5)
    try:
        db.wal_checkpoint(mode=3)  # TRUNCATE
    finally:
        db.close()
    return (job.folder / "bench.db").stat().st_size


def installed_bytes(packages: Iterable[str]) -> int:
    """Return how much room packages take on disk, by their own lists of files."""
    return sum(
        file.locate().stat().st_size  # type: ignore[attr-defined]
        for package in packages
        for file in importlib.metadata.files(package) or ()
        if file.locate().exists()  # type: ignore[attr-defined]
    )
