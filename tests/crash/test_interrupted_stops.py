"""Ctrl-C, once and twice, at any moment of a worker's life and of its stop: it leaves in order all the same."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts.stops_worker import RUNS, expected, make
from tests.support.waiting import LONG

from holdfast.replay import entry as entries

SCRIPT = SCRIPTS / "stops_worker.py"
NOT_COUNTED = {"handed back", "held", "bystander", "cleared"}


def life(database: str, how: str, name: str, dice: random.Random) -> None:
    """Let a worker live, and interrupt it."""
    command = [sys.executable, str(SCRIPT), database, how, str(dice.uniform(0.02, 0.3)), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "open\n"
        if how != "lifespan" and dice.random() < 0.5:
            worker.stdout.readline()  # it stops
        for _ in range(dice.randint(1, 2)):
            time.sleep(dice.uniform(0, 0.08))
            worker.send_signal(signal.SIGINT)
        try:
            said, errors = worker.communicate(timeout=LONG)
        except subprocess.TimeoutExpired:
            worker.kill()  # or this would wait for it
            raise
    assert worker.returncode in (0, 5, -signal.SIGINT, 130), (said, errors)


@pytest.mark.parametrize("lives", [9, pytest.param(100, marks=pytest.mark.slow)])
def test_interrupted_workers_leave_in_order_and_every_run_ends(tmp_path: Path, lives: int):
    """S2-8 G4 B1 No attempt counts as lost with its process, whatever the second interrupt hit."""
    database, dice = f"sqlite:///{tmp_path / 'load.db'}", random.Random(5)
    for number in range(lives):
        life(database, ["run", "thread", "lifespan"][number % 3], f"life-{number}", dice)
        assert list(tmp_path.glob("*-worker-*")) == [], "the worker has left in order"
    counted = asyncio.run(finish(database, lives))
    assert counted <= NOT_COUNTED


async def finish(database: str, lives: int) -> set[str]:
    """Let every run end, and return how attempts were lost."""
    found: set[str] = set()
    async with make(database) as engine:
        for life in range(lives):
            if life % 3 == 2:
                continue  # that one started none
            for number in range(RUNS):
                run: Any = engine.get(f"life-{life}-{number}")
                async with asyncio.timeout(LONG):
                    assert await run.result() == expected(number)
                facts = [fact.entry for fact in await run.history()]
                found |= {fact.why for fact in facts if isinstance(fact, entries.AttemptLost)}
    return found


INTERRUPTED = """
import asyncio, sys
from holdfast import Engine
from holdfast.stores.sqlite.store import SQLiteStore
from tests.support.scripts.stops_worker import load, start

told = []


class Interrupting(SQLiteStore):
    async def leave(self, worker):
        if not told:
            told.append(worker)
            raise KeyboardInterrupt  # as Ctrl-C does, in the middle of a stop
        await super().leave(worker)


async def main():
    async with Engine(store=Interrupting(sys.argv[1]), workflows=[load]) as engine:
        await start(engine, "life-0")

asyncio.run(main())
"""

AGAIN = """
import asyncio, os, signal, sys
from holdfast import Engine
from holdfast.stores.sqlite.store import SQLiteStore
from tests.support.scripts.stops_worker import load, start


class Interrupted(SQLiteStore):
    async def leave(self, worker):
        print("leaving", flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        await super().leave(worker)
        print("left", flush=True)


async def main():
    try:
        async with Engine(store=Interrupted(sys.argv[1]), workflows=[load]) as engine:
            await start(engine, "life-0")
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
    finally:
        print("main is over", flush=True)

asyncio.run(main())
"""

FORGOTTEN = """
import asyncio, sys
from tests.support.scripts.stops_worker import make, start


async def main():
    engine = make(sys.argv[1])
    await engine.open()
    await start(engine, "life-0")

asyncio.run(main())
"""


def test_a_second_interrupt_waits_until_the_stop_is_finished(tmp_path: Path):
    """S2-8 G4 Raised in the middle of the event loop it could lose a task's wake-up, and the process hung for ever."""
    database = str(tmp_path / "load.db")
    ended = subprocess.run([sys.executable, "-c", AGAIN, database], capture_output=True, text=True, cwd=ROOT)
    assert ended.stdout.split("\n") == ["open", "leaving", "left", "main is over", ""]
    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert asyncio.run(finish(f"sqlite:///{database}", 1)) <= NOT_COUNTED


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (INTERRUPTED, -signal.SIGINT, "KeyboardInterrupt"),
        (FORGOTTEN, 0, "handed its runs back"),
    ],
    ids=["interrupted in the stop", "never stopped"],
)
def test_a_process_that_ends_hands_back_what_its_engine_had(tmp_path: Path, program: str, code: int, said: str):
    """S2-8 G4 B1 Also where its event loop is gone before the engine has stopped."""
    database = str(tmp_path / "load.db")
    ended = subprocess.run([sys.executable, "-c", program, database], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == code, ended.stderr
    assert said in ended.stderr
    assert list(tmp_path.glob("*-worker-*")) == []
    assert asyncio.run(finish(f"sqlite:///{database}", 1)) <= NOT_COUNTED
