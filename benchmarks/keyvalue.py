"""An engine on a directory of files beside one on SQLite: opening a large one, its memory, and steps a second.

    python benchmarks/keyvalue.py                  # 10,000 open runs and 100,000 that have ended
    python benchmarks/keyvalue.py --open 1000 --ended 10000

Both hold the same rows: runs of five steps that wait for a message, and runs of five steps that have ended. Each figure
is measured in a process of its own, the two stores in turn. Run it on a machine that has nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import apsw
import msgspec

from holdfast import Context, Engine, workflow
from holdfast.kv import DirectoryDriver
from holdfast.stores import newest_schema, open_store
from holdfast.stores.keyvalue.rows import everything
from holdfast.stores.keyvalue.space import ABOUT, FORMAT, StoredAbout

STEPS = 1000
RUNS, STEPS_EACH = 100, 20


async def work(number: int) -> int:
    """Do nothing, as a step."""
    return number


@workflow
async def waits(ctx: Context, wait: bool) -> int:
    """Take five steps, and wait for a message or end."""
    for number in range(5):
        await ctx.step(work, number)
    if wait:
        await ctx.receive("approved")
    return 5


@workflow
async def steps(ctx: Context, many: int) -> int:
    """Take so many steps."""
    for number in range(many):
        await ctx.step(work, number)
    return many


async def _first(address: str) -> None:
    async with Engine(address, workflows=[waits], durability="process", retention=None) as engine:
        await engine.execute(waits, False, id="ended")
        run = await engine.start(waits, True, id="open")
        while (await run.describe()).status != "suspended":
            await asyncio.sleep(0.01)


def make(sqlite: Path, directory: Path, several: dict[str, int]) -> None:
    """Make two runs, copy their rows so often, and put the same rows into a directory."""
    asyncio.run(_first(f"sqlite:///{sqlite}"))
    db = apsw.Connection(str(sqlite))
    numbers = "WITH RECURSIVE counted (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < ?) "
    for id, count in several.items():
        key = int(db.execute("SELECT key FROM runs WHERE id = ?", (id,)).get)
        for table, column in (
            ("runs", "key"),
            ("inputs", "run"),
            ("results", "run"),
            ("entries", "run"),
            ("event_waiters", "run"),
        ):
            columns = [name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()]
            copied = {name: name for name in columns} | {column: f"{column} + n * 2"}
            if table == "runs":
                copied["id"] = "id || n"
            db.execute(
                f"{numbers} INSERT INTO {table} ({', '.join(columns)}) "
                f"SELECT {', '.join(copied[name] for name in columns)} FROM {table}, counted WHERE {column} = ?",
                (count - 1, key),
            )
    driver = DirectoryDriver(directory)
    left: Iterator[tuple[bytes, bytes]] = everything(db)
    while some := dict(islice(left, 50_000)):
        driver.batch(some)
    driver.batch({ABOUT: msgspec.json.encode(StoredAbout(FORMAT, newest_schema("sqlite")))})
    driver.close()
    db.close()


def _memory() -> int:
    """Return how many bytes this process has in memory."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


async def opening(address: str) -> dict[str, float]:
    """Open a store, and tell how long it took and how much more memory there is then."""
    store = open_store(address)
    before, began, used = _memory(), time.perf_counter(), time.process_time()
    await store.open()
    took, used = time.perf_counter() - began, time.process_time() - used
    found = {"seconds": took, "processor": used, "megabytes": (_memory() - before) / 1e6}
    await store.close()
    return found


async def running(address: str) -> dict[str, float]:
    """Tell how many steps a second there are, one after another and of many runs at once."""
    async with Engine(address, workflows=[steps], retention=None) as engine:
        began = time.perf_counter()
        await engine.execute(steps, STEPS)
        one = STEPS / (time.perf_counter() - began)
        began = time.perf_counter()
        await asyncio.gather(*(engine.execute(steps, STEPS_EACH) for _ in range(RUNS)))
        return {"one": one, "many": RUNS * STEPS_EACH / (time.perf_counter() - began)}


def _measured(what: str, address: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, __file__, what, address], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(several: dict[str, int], rounds: int) -> None:
    """Measure both and print a table."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        sqlite, directory = Path(folder) / "runs.db", Path(folder) / "runs.keys"
        make(sqlite, directory, several)
        large = {"kv+dir": f"kv+dir:///{directory.absolute()}", "sqlite": f"sqlite:///{sqlite.absolute()}"}
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in large}
        for number in range(rounds):
            for kind, address in large.items():
                small = (
                    f"{'kv+dir' if kind == 'kv+dir' else 'sqlite'}:///{Path(folder).absolute()}/small-{number}-{kind}"
                )
                found[kind].append(_measured("opening", address) | _measured("running", small))
        print(f"{several['open']:,} open and {several['ended']:,} ended runs")
        for kind, figures in found.items():
            said = {name: median(each[name] for each in figures) for name in figures[0]}
            print(
                f"{kind:8} open {said['seconds']:.2f} s ({said['processor']:.2f} s of a processor), "
                f"{said['megabytes']:.0f} MB; steps a second: "
                f"{said['one']:,.0f} one after another, {said['many']:,.0f} of {RUNS} runs"
            )


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in ("opening", "running"):
        print(json.dumps(asyncio.run({"opening": opening, "running": running}[sys.argv[1]](sys.argv[2]))))
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("--open", type=int, default=10_000)
        parser.add_argument("--ended", type=int, default=100_000)
        parser.add_argument("--rounds", type=int, default=3)
        given = parser.parse_args()
        compare({"ended": given.ended, "open": given.open}, given.rounds)
