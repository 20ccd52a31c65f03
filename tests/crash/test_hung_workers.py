"""Workers that hang (SIGSTOP) beyond their lease: their runs are taken over, and what they write later is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.support.paths import SCRIPTS

from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

SCRIPT = SCRIPTS / "many_workers.py"


def test_runs_of_a_hung_worker_are_taken_over_and_its_late_writes_are_refused(tmp_path: Path):
    """B24 G5 S2-28 Three workers on one file, stopped at random beyond their lease: no fact is recorded twice."""
    path, runs = tmp_path / "jobs.db", 120
    command = [sys.executable, str(SCRIPT), f"sqlite:///{path}", str(tmp_path / "log"), str(runs)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    dice = random.Random(7)
    stops, deadline = 0, time.monotonic() + 60
    try:
        while all(worker.poll() is None for worker in workers) and time.monotonic() < deadline:
            victim = dice.choice(workers)
            time.sleep(dice.uniform(0.1, 0.3))
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(0.5 if stops > 2 else 1.5)  # the others look for the dead each second
            os.kill(victim.pid, signal.SIGCONT)
            stops += 1
        outputs = [worker.communicate() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [(worker.returncode, output[1][-2000:]) for worker, output in zip(workers, outputs, strict=True)] == [
        (0, output[1][-2000:]) for output in outputs
    ]
    assert stops >= 3, "the test must have stopped workers"
    assert sum(int(output[0]) for output in outputs) >= 1, (
        "a worker must have been declared dead, or a late write refused"
    )
    assert asyncio.run(_broken(path)) == []


async def _broken(path: Path) -> list[str]:
    store = SQLiteStore(path)
    await store.open()
    try:
        return await violations(store)
    finally:
        await store.close()
