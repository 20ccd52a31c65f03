"""The limits of this machine: what a plain loop without an engine does in the same file, server and interpreter."""

from __future__ import annotations

import asyncio
import time

import apsw
import msgspec
import report
from report import Job, Metrics

from holdfast import Engine
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite.checkpoints import begin_wal

_ROW = "INSERT INTO entries (run, location, seq, kind, at, data) VALUES (?, ?, ?, ?, ?, ?)"
_AT = 1_794_714_643_345_153


def raw_commits(job: Job, commits: int, rows: int = 1, *, grown: bool = False) -> float:
    """Rows of a step's size into the entries table, so many per commit, one thread: commits per second.

    In SQLite with the store's own connection settings; nothing is copied back from the write-ahead log meanwhile. With
    `grown` the log has its working size before the first commit, as the store sees to when it opens.
    """
    return _postgres_commits(job, commits, rows) if job.url else _sqlite_commits(job, commits, rows, grown)


def _sqlite_commits(job: Job, commits: int, rows: int, grown: bool) -> float:
    path = str(job.folder / "bench.db")
    asyncio.run(_make_tables(path))
    db, _ = sqlite_file.connect(path, "power", 5)
    try:
        if grown:
            begin_wal(db, grown=True)
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        began = time.perf_counter()
        for number in range(commits):
            db.execute("BEGIN IMMEDIATE")
            for row in range(rows):
                at = number * rows + row
                db.execute(_ROW, (0, f"a0#{at:06}", at, 2, _AT, f"[1,{at}]"))
            db.execute("COMMIT")
        took = time.perf_counter() - began
        db.execute("DELETE FROM entries WHERE run = 0")
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
    finally:
        db.close()
    return commits / took


async def _make_tables(path: str) -> None:
    async with Engine(path, run_workflows=False):
        pass


def _postgres_commits(job: Job, commits: int, rows: int) -> float:
    import psycopg

    with psycopg.connect(job.url, autocommit=True) as db:
        db.execute("SET client_min_messages = warning")
        db.execute(
            'CREATE TABLE IF NOT EXISTS raw_entries (run bigint, location text COLLATE "C", seq bigint, kind int, '
            "at bigint, data text, PRIMARY KEY (run, location, seq))"
        )
        statement = "INSERT INTO raw_entries VALUES (%s, %s, %s, %s, %s, %s)"
        began = time.perf_counter()
        for number in range(commits):
            with db.transaction(), db.cursor() as cursor:
                first = number * rows
                cursor.executemany(
                    statement, [(0, f"a0#{at:06}", at, 2, _AT, f"[1,{at}]") for at in range(first, first + rows)]
                )
        took = time.perf_counter() - began
        db.execute("DROP TABLE raw_entries")
    return commits / took


def commits(job: Job) -> Metrics:
    """One row per commit, a hundred rows per commit, and in SQLite one row with the log at its working size."""
    metrics = {
        "commits_per_second": raw_commits(job, job.times(1_000)),
        "hundred_row_commits_per_second": raw_commits(job, job.times(200), 100),
    }
    if not job.url:
        metrics["commits_per_second_in_a_grown_log"] = raw_commits(job, job.times(900), grown=True)
    return metrics


def round_trips(job: Job) -> Metrics:
    """A step's entry to JSON and back, with msgspec."""

    class Step(msgspec.Struct, array_like=True):
        attempt: int
        result: str

    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Step)
    count = job.times(200_000)
    began = time.perf_counter()
    for number in range(count):
        decoder.decode(encoder.encode(Step(number, "a result of twenty")))
    return {"round_trips_per_second": count / (time.perf_counter() - began)}


def tasks(job: Job) -> Metrics:
    """A task of asyncio that gives way once, made and awaited."""

    async def body() -> None:
        await asyncio.sleep(0)

    async def main() -> float:
        count = job.times(50_000)
        began = time.perf_counter()
        for _ in range(count):
            await asyncio.create_task(body())
        return count / (time.perf_counter() - began)

    return {"tasks_per_second": asyncio.run(main())}


if __name__ == "__main__":
    report.main({"commits": commits, "msgspec": round_trips, "asyncio": tasks}, lambda job: "")
