"""Flow control in a world where workers are killed, stopped and replaced, clocks jump, the store fails, and operators
pause, cancel and change numbers.

What is judged is what bodies wrote down, and begin times as they were recorded. A worker that is killed here takes its
bodies with it, so nothing may ever run above a limit. In the end every run has ended, and no place is left taken.

Each seed is one world. With `HOLDFAST_SEEDS=1000`, which `make stress` says, the slow tests try twenty times as many.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.simulation.flow_world import ALLOWED, BURST, PER, RATE, World
from tests.support.flow_judge import most_in_any, most_inside
from tests.support.moved_clocks import BootedStore

from holdfast import Status
from holdfast.clock import micros
from holdfast.contract.store import Store
from holdfast.engine.runs import departures
from holdfast.engine.steps.limits import kept
from holdfast.engine.worker import committer, worker
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.rules.limits import turns
from holdfast.testing.invariants import violations

TIMES = max(int(os.environ.get("HOLDFAST_SEEDS", "0")) // 50, 1)
"""By how much more is tried than in CI."""
FEW, MANY = 10, 24
"""How many runs a world has."""


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers look for the dead, and try again, sooner than in earnest."""
    monkeypatch.setattr(worker, "_TAKE_OVER_EVERY", 0.05)
    monkeypatch.setattr(committer, "_RETRIES", (0.001, 0.002, 0.005))
    monkeypatch.setattr(departures, "_FIRST_PAUSE", 0.005)


async def live(seed: int, make_store: Callable[[], Store], runs: int, boots: bool) -> World:
    """Live through one world until all has ended, and return it."""
    world = World(seed, make_store, boots=boots)
    try:
        await world.open()
        await world.open()
        for number in range(runs):
            await world.start(number)
            if world.random.random() < 0.5:
                await world.trouble()
        if seed % 10 == 0:  # so rare that no other of ten may have had one
            world.happened["boot"] += 1
            await world.boot()
        for _ in range(runs // 4):
            await world.trouble()
        for faults in world.faults:
            faults.heal()
        await world.end()
        found = await world.engines[0].stats()
        assert found[Status.FAILED] == found[Status.BLOCKED] == 0
        assert await violations(world.engines[0].store) == []
    finally:
        while world.engines:
            await world.close(0, "stop")
    return world


async def check(seed: int, make_store: Callable[[], Store], runs: int = MANY, boots: bool = True) -> Counter[str]:
    """Live through one world and judge it; in every other one workers keep places, however few they have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "KEPT_FROM", 1 if seed % 2 else turns.KEPT_FROM)
        patch.setattr(kept, "KEPT_FOR", 0.01)
        world = await live(seed, make_store, runs, boots)
    most = most_inside(world.log)
    assert {place: count for place, count in most.items() if count > ALLOWED.get(place, count)} == {}, seed
    per = micros(PER)
    allowed = {"paced": RATE, "spread": RATE + BURST - 1, "often": RATE}
    for (name, key), times in world.begins.items():
        assert name not in allowed or most_in_any(times, per) <= allowed[name], (seed, name, key, times)
    return world.happened


def on_file(path: Path) -> Callable[[], Store]:
    """Return what opens a file on a machine that is booted now and then."""
    return partial(BootedStore, path, durability="process")


@pytest.mark.parametrize("seed", range(24))
async def test_nothing_is_ever_above_its_limit(seed: int, path: Path) -> None:
    """S4-19 G1 G2 Small worlds, on SQLite."""
    await check(seed, on_file(path), FEW)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1000 + 200 * TIMES, 10))
async def test_nothing_is_ever_above_its_limit_in_many_worlds(start: int, tmp_path: Path) -> None:
    """S4-19 G1 G2"""
    happened: Counter[str] = Counter()
    for seed in range(start, start + 10):
        happened += await check(seed, on_file(tmp_path / f"{seed}.db"))
    assert {"kill", "stop", "boot", "clock", "fail", "limit", "run", "cancel"} <= set(happened)


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_is_ever_above_its_limit_on_a_server(seed: int, empty_database: str) -> None:
    """S4-19 G1 G2 Small worlds, on PostgreSQL, whose clock jumps forward."""
    await check(seed, partial(PostgresStore, empty_database), FEW, boots=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + 20 * TIMES))
async def test_nothing_is_ever_above_its_limit_in_many_worlds_on_a_server(seed: int, empty_database: str) -> None:
    """S4-19 G1 G2"""
    await check(seed, partial(PostgresStore, empty_database), boots=False)
