"""The workloads: each sets up what it needs in a folder of its own, measures one thing, and returns plain numbers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import Context, Engine, workflow
from holdfast.stores import sqlite_file
from holdfast.stores.checkpoints import grow_wal
from holdfast.testing import record, replay

DURABILITY = {"full": "power", "normal": "process"}


async def increment(number: int) -> int:
    return number + 1


@workflow
async def sequential(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    return number


@workflow
async def sequential_then_wait(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    await ctx.receive("go")
    return number


def raw_commits(folder: Path, durability: str, commits: int, *, grown: bool = False) -> float:
    """One row per commit into the entries table, with the store's own connection settings: commits per second.

    The row has the size of a step's result. Nothing is copied back from the write-ahead log meanwhile. With `grown` the
    log has its working size before the first commit, as the store sees to when it opens: the highest rate there is.
    """
    db = sqlite_file.connect(str(folder / "bench.db"), DURABILITY[durability], 5)
    if grown:
        grow_wal(db)
    insert = "INSERT INTO entries (run, location, seq, kind, at, data) VALUES (?, ?, ?, ?, ?, ?)"
    try:
        db.wal_checkpoint(mode=1)
        db.execute("DELETE FROM entries WHERE run = 0")
        began = time.perf_counter()
        for number in range(commits):
            db.execute("BEGIN IMMEDIATE")
            db.execute(insert, (0, f"0#{number:06}", number, 2, 1_794_714_643_345_153, f"[1,{number}]"))
            db.execute("COMMIT")
        took = time.perf_counter() - began
        db.execute("DELETE FROM entries WHERE run = 0")
        db.wal_checkpoint(mode=1)
    finally:
        db.close()
    return commits / took


def one_run(folder: Path, durability: str, steps: int) -> float:
    """One run of many sequential steps, from start to result: steps per second."""

    async def main() -> float:
        async with _engine(folder, durability) as engine:
            began = time.perf_counter()
            assert await engine.execute(sequential, steps) == steps
            return steps / (time.perf_counter() - began)

    return asyncio.run(main())


def many_runs(folder: Path, durability: str, runs: int, steps: int) -> float:
    """Many runs at once, from the first start to the last result: steps per second."""

    async def main() -> float:
        async with _engine(folder, durability) as engine:
            began = time.perf_counter()
            results = await asyncio.gather(*(engine.execute(sequential, steps) for _ in range(runs)))
            took = time.perf_counter() - began
            assert results == [steps] * runs
            return runs * steps / took

    return asyncio.run(main())


def latencies(folder: Path, durability: str, runs: int) -> list[float]:
    """One-step runs, one after the other: seconds from the call of start to the result, each."""

    async def main() -> list[float]:
        taken = []
        async with _engine(folder, durability) as engine:
            for _ in range(runs):
                began = time.perf_counter()
                await engine.execute(sequential, 1)
                taken.append(time.perf_counter() - began)
        return sorted(taken)

    return asyncio.run(main())


def prepare_replay(folder: Path, steps: int) -> dict[str, Any]:
    """Write a run of many steps that waits for a message; returns bytes per step and seconds of the turn alone."""
    path = folder / "bench.db"

    async def main() -> dict[str, Any]:
        async with _engine(folder, "normal"):
            pass
        before = path.stat().st_size
        async with _engine(folder, "normal") as engine:
            run = await engine.start(sequential_then_wait, steps, id="long")
            while (await run.describe()).waiting_for != "message go":  # noqa: ASYNC110  # the store has no such event
                await asyncio.sleep(0.05)
            recorded = await record(run)
        began = time.perf_counter()
        assert replay(recorded, sequential_then_wait) is None
        took = time.perf_counter() - began
        return {"bytes_per_step": (path.stat().st_size - before) / steps, "turn_seconds": took}

    return asyncio.run(main())


def replayed(folder: Path, durability: str, steps: int) -> float:
    """Open an engine on that run, whose message has come meanwhile, and wait for its result: seconds."""

    async def main() -> float:
        async with Engine(
            str(folder / "bench.db"),
            workflows=[sequential_then_wait],
            run_workflows=False,
            durability=DURABILITY[durability],
        ) as client:
            await client.send("long", "go")
        began = time.perf_counter()
        async with _engine(folder, durability) as engine:
            assert await engine.get("long", sequential_then_wait).result() == steps
            return time.perf_counter() - began

    return asyncio.run(main())


def _engine(folder: Path, durability: str) -> Engine:
    return Engine(
        str(folder / "bench.db"), workflows=[sequential, sequential_then_wait], durability=DURABILITY[durability]
    )


PROFILED: dict[str, Callable[[Path, str], object]] = {
    "W1": lambda folder, durability: one_run(folder, durability, 3_000),
    "W2": lambda folder, durability: many_runs(folder, durability, 1_000, 10),
    "W3": lambda folder, durability: latencies(folder, durability, 1_000),
}
