"""What a step of many runs costs beside the raw work that it is made of; run by tests/engine/test_speed.py.

usage: speed.py FOLDER [RUNS] [ROUNDS]

Prints one line of JSON: processor time (not the clock's: others use the machine too) of a step and of the raw unit,
each the least of several rounds that take turns, their ratio, and how many functions are called for a step.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import msgspec

from holdfast import Context, Engine, workflow

STEPS = 10
ROW = (1_794_714_643_345_153, 2, "a0#a2", "[1,2]")


class Step(msgspec.Struct, array_like=True):
    attempt: int
    result: int


async def increment(number: int) -> int:
    return number + 1


@workflow
async def count(ctx: Context, steps: int) -> int:
    number = 0
    for _ in range(steps):
        number = await ctx.step(increment, number)
    return number


async def raw(folder: Path, units: int) -> float:
    """A unit: a task, an entry to JSON and back, two rows in a commit of two hundred. Seconds each."""

    async def body() -> None:
        await asyncio.sleep(0)

    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(Step)
    database = apsw.Connection(str(folder / "raw.db"))
    database.pragma("journal_mode", "wal")
    database.execute("CREATE TABLE entries (at, kind, location, data)")
    began = time.process_time()
    for number in range(units):
        await asyncio.create_task(body())
        decoder.decode(encoder.encode(Step(1, number)))
        if number % 100 == 0:
            with database:
                database.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", [ROW] * 200)
    took = time.process_time() - began
    database.close()
    return took / units


async def steps(folder: Path, runs: int) -> float:
    """Seconds of processor time for each step of runs that go on at the same time."""
    async with Engine(folder / "steps.db", workflows=[count]) as engine:
        began = time.process_time()
        results = await asyncio.gather(*(engine.execute(count, STEPS) for _ in range(runs)))
        took = time.process_time() - began
    assert results == [STEPS] * runs
    return took / (runs * STEPS)


async def calls(folder: Path, runs: int) -> float:
    """How many functions this thread calls for each step."""
    counted = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    async with Engine(folder / "steps.db", workflows=[count]) as engine:
        await engine.execute(count, STEPS)
        sys.setprofile(note)
        await asyncio.gather(*(engine.execute(count, STEPS) for _ in range(runs)))
        sys.setprofile(None)
    return counted / (runs * STEPS)


def main() -> None:
    folder = Path(sys.argv[1])
    runs, rounds = (int(text) for text in (sys.argv[2:4] or ("300", "5")))
    units: list[float] = []
    taken: list[float] = []
    for number in range(rounds + 1):
        place = folder / str(number)
        place.mkdir()
        unit, step = asyncio.run(raw(place, runs * STEPS)), asyncio.run(steps(place, runs))
        shutil.rmtree(place)
        if number:  # the first warms up
            units.append(unit)
            taken.append(step)
    (folder / "calls").mkdir()
    called = asyncio.run(calls(folder / "calls", runs))
    told = {"raw_us": min(units) * 1e6, "step_us": min(taken) * 1e6, "ratio": min(taken) / min(units), "calls": called}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
