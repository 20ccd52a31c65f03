"""How long `holdfast check` takes: open runs of ten steps, as many as are asked for, on one SQLite file.

python benchmarks/check.py 1000 100000
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from holdfast import Context, workflow
from holdfast.testing import TestEngine

STEPS = 10
_KEYED = ("entries", "inputs", "attributes")


async def work(number: int) -> int:
    return number


@workflow
async def waits(ctx: Context, number: int) -> None:
    for _ in range(STEPS):
        await ctx.step(work, number)
    await ctx.receive("go")


workflows = [waits]


async def _first(path: Path) -> None:
    async with TestEngine(str(path), workflows=workflows) as engine:
        await engine.start(waits, 1, id="run-0")
        await engine.settle()


def fill(path: Path, runs: int) -> None:
    """Make one run, and copies of it: what is measured is the check, not the engine."""
    asyncio.run(_first(path))
    connection = apsw.Connection(str(path))
    taken = {"key": "key + :n", "id": "'run-' || :n"}
    with connection:
        for table in ("runs", *_KEYED):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            if not names:
                continue
            values = [taken[name] if table == "runs" and name in taken else name for name in names]
            if table != "runs":
                values[0] = f"{names[0]} + :n"
            copy = f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} WHERE {names[0]} = 1"
            connection.executemany(copy, ({"n": n} for n in range(1, runs)))
    connection.close()


def measure(sizes: list[int]) -> Iterator[str]:
    for runs in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "open.db"
            fill(path, runs)
            command = [sys.executable, "-m", "holdfast", "check", "--url", str(path), "--app", "check:workflows"]
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
            took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            yield f"{runs:>9,} runs  {took:6.2f} s  {spent:6.2f} s of processor  {done.stdout.strip()}"


if __name__ == "__main__":
    print(f"{os.cpu_count()} cores, {STEPS} steps a run")
    for line in measure([int(size.replace(",", "")) for size in sys.argv[1:]] or [1_000]):
        print(line, flush=True)
