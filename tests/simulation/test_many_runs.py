"""A random world of many runs: sagas, events, keys, schedules and people who act on all of them, on several engines of
one file that fail, stop and die; afterwards every event, effect and undoing must be accounted for.

Each seed is one world: `HOLDFAST_SEEDS=5000` runs more of them, `HOLDFAST_SEED=17` just that one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from tests.simulation.many_books import Books
from tests.simulation.many_checks import check
from tests.simulation.many_nemesis import Nemesis

from holdfast.engine.runs import departures
from holdfast.engine.worker import committer, maintenance, worker

SEEDS = [int(os.environ["HOLDFAST_SEED"])] if "HOLDFAST_SEED" in os.environ else []
SEEDS = SEEDS or list(range(int(os.environ.get("HOLDFAST_SEEDS", "12"))))


async def live(seed: int, folder: Path) -> Books:
    """Live through one world and return its books."""
    books = Books(seed)
    nemesis = Nemesis(books, folder / f"{seed}.db")
    for _ in range(books.random.randint(10, 60)):
        await nemesis.act()
    books.calm = True
    await asyncio.gather(*nemesis.fading)
    while nemesis.engines:
        await nemesis.stop_engine()
    for _ in range(books.random.randint(1, 2)):
        await nemesis.start_engine()
    engine = nemesis.engines[0]
    await nemesis.hire(engine)
    await check(nemesis, engine)
    while nemesis.engines:
        await nemesis.stop_engine()
    return books


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_is_done_to_many_runs_everything_is_accounted_for(seed: int, monkeypatch: pytest.MonkeyPatch):
    """G8 G11 G12 G13 B8 B14 B17 B25 B29 No event is lost or doubled, what was done is undone in order or not at all."""
    monkeypatch.setattr(committer, "_RETRIES", (0.001, 0.002, 0.005))
    monkeypatch.setattr(departures, "_FIRST_PAUSE", 0.005)
    monkeypatch.setattr(worker, "_TAKE_OVER_EVERY", 0.1)
    monkeypatch.setattr(maintenance, "_AFTER_A_FAULT", 5_000)
    monkeypatch.setattr(maintenance, "_LOOK_EVERY", 0.02)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        books = await live(seed, Path(folder))
    assert not books.wrong, "\n".join(books.wrong)
