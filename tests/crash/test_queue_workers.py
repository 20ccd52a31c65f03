"""Real processes around a queue: killed or stopped while they run steps for others, or while others run theirs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts.queue_worker import job
from tests.support.waiting import LONG, eventually

from holdfast import Engine
from holdfast.looking import LocalDesk
from holdfast.replay import entry as entries
from holdfast.testing.invariants import violations

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


class House:
    """A database, a log of bodies, and processes around them."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "queue.db")
        self.database = f"sqlite:///{self.path}"
        self.log = folder / "log"
        self.hold = folder / "hold"
        self.log.touch()
        self.processes: list[subprocess.Popen[str]] = []

    def open(self, role: str, lease: int = 30_000) -> subprocess.Popen[str]:
        """Start a process and wait until it works."""
        command = [sys.executable, str(SCRIPTS / "queue_worker.py"), self.database, str(self.log), role, str(lease)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def bodies(self, what: str = "begin") -> list[tuple[int, str, str, int]]:
        """Return process, run, step and attempt of the bodies that began (or ended)."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(int(words[1]), words[2], words[3], int(words[4])) for words in lines if words[0] == what]

    def in_a_body(self, process: subprocess.Popen[str]) -> bool:
        """Whether a process has begun a body that has not ended."""
        begun, ended = Counter(self.bodies()), Counter(self.bodies("end"))
        return any(body[0] == process.pid for body in begun - ended)

    @contextmanager
    def stopped(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Stop a process, but not in the middle of a commit: SQLite lets nobody else write then."""
        while True:
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.01)
            try:
                with contextlib.closing(apsw.Connection(self.path)) as database:
                    database.execute("BEGIN IMMEDIATE; ROLLBACK")
                break
            except apsw.BusyError:
                os.kill(process.pid, signal.SIGCONT)
                time.sleep(0.005)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def losses(engine: Engine, run: Any) -> list[tuple[int, str]]:
    row = await engine.store.get(run.id)
    assert row is not None
    found = [entries.decode_entry(each.kind, each.data) for each in await engine.store.history(row.key)]
    return [(each.attempt, each.why) for each in found if isinstance(each, entries.AttemptLost)]


async def alive(engine: Engine, process: subprocess.Popen[str]) -> set[str]:
    """Return the workers of a process that are alive."""
    workers = await LocalDesk(engine.store).workers()
    return {each.id for each in workers if (each.pid, each.state) == (process.pid, "alive")}


async def is_a_new_worker(engine: Engine, process: subprocess.Popen[str], known: set[str]) -> bool:
    """Tell whether a process has noticed that it was declared dead, and goes on as another worker."""
    return bool(await alive(engine, process) - known)


async def test_a_step_whose_worker_was_killed_is_made_again_by_another(house: House):
    """B1 B24 G4 S2-28 At once, without waiting for a lease of thirty seconds."""
    async with Engine(house.database, workflows=[job], run_workflows=False) as client:
        house.hold.touch()
        house.open("office")
        first = house.open("gpu")
        run = await client.start(job, 1)
        await eventually(house.bodies)
        second = house.open("gpu")
        first.kill()
        first.wait()
        house.hold.unlink()
        assert await run.result(timedelta(seconds=LONG)) == [[0, 2], [0, 1]]
        assert [body[0] for body in house.bodies()] == [first.pid, second.pid, second.pid]
        assert await losses(client, run) == [(1, "crash")]


async def test_a_worker_that_hung_beyond_its_lease_is_refused(house: House):
    """B24 G5 S2-28 Another one makes the next attempt; the result of the first comes too late, and changes nothing."""
    async with Engine(house.database, workflows=[job], run_workflows=False) as client:
        house.hold.touch()
        house.open("office")
        hung = house.open("gpu", 1500)
        run = await client.start(job, 1)
        await eventually(house.bodies)
        known = await alive(client, hung)
        with house.stopped(hung):
            other = house.open("gpu")
            house.hold.unlink()
            assert await run.result(timedelta(seconds=LONG)) == [[0, 2], [0, 1]]
        assert [body[0] for body in house.bodies()] == [hung.pid, other.pid, other.pid]
        assert await losses(client, run) == [(1, "lapse")]
        await eventually(partial(is_a_new_worker, client, hung, known))
        output, _ = hung.communicate("")
        assert int(output) >= 1, "the hung worker must have noticed"


async def test_a_step_elsewhere_outlives_the_process_that_had_its_run(house: House):
    """S2-28 G3 Its result is recorded by whoever continues the run, and it is not run twice."""
    async with Engine(house.database, workflows=[job], run_workflows=False) as client:
        house.hold.touch()
        owner = house.open("office")
        worker = house.open("gpu")
        run = await client.start(job, 1)
        await eventually(house.bodies)
        owner.kill()
        owner.wait()
        house.hold.unlink()
        await eventually(lambda: house.bodies("end"))
        house.open("office")
        assert await run.result(timedelta(seconds=LONG)) == [[0, 1], [0, 1]]
        assert [(body[0], body[3]) for body in house.bodies()] == [(worker.pid, 1)] * 2
        assert await losses(client, run) == []


async def test_workers_and_owners_killed_and_stopped_at_random_lose_and_repeat_nothing(house: House):
    """B1 B24 G3 G4 G5 S2-28 S4-28 No attempt is run twice, no result recorded twice, and every run comes to its end."""
    dice, hits = random.Random(5), Counter[str]()
    async with Engine(house.database, workflows=[job], run_workflows=False) as client:
        roles = {house.open(role, 800): role for role in ("office", "both", "gpu", "gpu")}
        handles = []
        for round_ in range(16):
            handles += [await client.start(job, 2) for _ in range(4)]
            await asyncio.sleep(dice.uniform(0.1, 0.3))
            victim = dice.choice(list(roles))
            if round_ % 4 < 2:
                # In the middle of a body, however busy the machine is.
                house.hold.touch()
                victim = await eventually(lambda: next(filter(house.in_a_body, roles), None))
            if round_ % 2:
                busy = [body for body in house.bodies() if body[0] == victim.pid]
                with house.stopped(victim):
                    await asyncio.sleep(1.1)
                hits["stop"] += bool(busy)
                house.hold.unlink(missing_ok=True)
            else:
                victim.kill()
                victim.wait()
                role = roles.pop(victim)
                hits[f"kill {role}"] += 1
                house.hold.unlink(missing_ok=True)
                roles[house.open(role, 800)] = role
        results = [await run.result(timedelta(seconds=LONG)) for run in handles]
        assert [[number for number, _ in result] for result in results] == [[0, 1, 0, 1]] * 64
        assert await violations(client.store) == []
        lost = Counter([why for run in handles for _, why in await losses(client, run)])
    assert sum(hits.values()) >= 12, hits
    assert lost["crash"] + lost["lapse"] >= 3, "workers must have been killed and stopped in the middle of bodies"
    twice = [body for body, often in Counter(body[1:] for body in house.bodies()).items() if often > 1]
    assert twice == [], "an attempt was run twice"


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_process_killed_at_any_commit_repeats_no_recorded_step_of_a_queue(tmp_path: Path, step: int):
    """G1 G3 G4 S4-28 B1 Retries, keys, a race and a new life; each number is given to one body only."""
    command = [sys.executable, str(SCRIPTS / "queue_everywhere.py"), str(tmp_path), "1", str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    killed = [report for report in reports if report["killed"]]
    assert len(killed) >= 70 // step, "the test must have killed at every commit, before and after"
    for report in reports:
        where = f"killed {report['moment']} commit {report['kill_at']}"
        assert report["finished"], where
        assert (report["broken"], report["left"]) == ([], 0), where
        bodies = [line.split() for line in report["bodies"]]
        lost = {"first-True", "keyed", "last"}  # of two runs, and of two lives
        twice = [pair for pair, often in Counter((name, n) for _, name, n in bodies).items() if often > 1]
        assert {name for name, _ in twice} <= lost, where
        assert "never" not in {name for _, name, _ in bodies}, where
        keyed = [life for life, name, _ in bodies if name == "keyed"]
        assert len(keyed) <= 2, where  # one lost with its process at most
