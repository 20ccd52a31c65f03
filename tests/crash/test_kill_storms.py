"""Workers killed one after another at random: of the runs they drive only the one that kills its worker is blocked."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts.storm_worker import INNOCENTS, WORKFLOWS, innocent, poisoned
from tests.support.waiting import soon

from holdfast import Engine

SCRIPT = SCRIPTS / "storm_worker.py"
WORKERS = 3
KILLS = 60
PACE = 10.0 / KILLS
"""How many seconds lie between two kills, on average."""


class Worker:
    """A worker process."""

    def __init__(self, database: str, folder: Path) -> None:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), database, str(folder)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
        self.begun = time.monotonic()
        self.opened: float | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline():
            self.opened = time.monotonic()

    @property
    def gone(self) -> bool:
        return self.process.poll() is not None

    def kill(self) -> bool:
        """Kill it; tell whether it was at work."""
        at_work = self.opened is not None and not self.gone
        self.process.send_signal(signal.SIGKILL)
        self.end()
        return at_work

    def end(self) -> int:
        """Wait for its end."""
        code = self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


async def begin(database: str, folder: Path) -> None:
    async with Engine(database, workflows=WORKFLOWS, run_workflows=False) as client:
        for number in range(INNOCENTS):
            await client.start(innocent, str(folder), id=f"innocent-{number}")
        await client.start(poisoned, str(folder), id="poisoned")


async def standings(database: str) -> dict[str, str]:
    async with Engine(database, workflows=WORKFLOWS, run_workflows=False) as client:
        return {run.id: f"{run.status} {run.error.message if run.error else ''}" for run in await client.runs()}


def storm(database: str, folder: Path, dice: random.Random) -> int:
    """Kill workers, each replaced at once; return how many kills hit one at work."""
    workers = [Worker(database, folder) for _ in range(WORKERS)]
    hits = 0
    assert soon(lambda: any(worker.opened for worker in workers))
    # A machine five times as slow is given five times the time: what counts is how often a life is cut short.
    took = min(worker.opened - worker.begun for worker in workers if worker.opened)
    pause = max(PACE, 2 * took / WORKERS)
    for _ in range(KILLS):
        time.sleep(dice.uniform(0, 2 * pause))
        victim = dice.randrange(WORKERS)
        hits += workers[victim].kill()
        for place, worker in enumerate(workers):
            if worker.gone:  # killed, or poisoned
                worker.end()  # harmless a second time
                workers[place] = Worker(database, folder)
    for worker in workers:
        worker.kill()
    return hits


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_in_a_storm_of_kills_exactly_the_poisoned_run_is_blocked(tmp_path: Path, seed: int):
    """B24 B1 G4 G12 Sixty kills over twenty innocent runs and a poisoned one."""
    database = f"sqlite:///{tmp_path / 'storm.db'}"
    asyncio.run(begin(database, tmp_path))
    hits = storm(database, tmp_path, random.Random(seed))
    assert hits >= KILLS // 10, "the kills must have hit workers at work"
    (tmp_path / "over").touch()
    for _ in range(12):  # the poisoned run may kill a few more
        if Worker(database, tmp_path).end() == 0:
            break
    found = asyncio.run(standings(database))
    reason = found.pop("poisoned")
    assert reason.startswith("blocked ")
    assert "crash or hang" in reason
    assert {standing.strip() for standing in found.values()} == {"completed"}
    assert len(found) == INNOCENTS
