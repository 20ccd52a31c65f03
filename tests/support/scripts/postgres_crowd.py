"""Several workers on one database, seen from the test that kills, stops and starts them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from tests.support.scripts.postgres_runs import WORKFLOWS, all_runs

from holdfast import Engine, Status

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("postgres_worker.py")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


class Crowd:
    """Workers and the folder they leave notes in; see postgres_worker.py for both."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.options = options
        self.bodies = folder / "bodies"
        self.bodies.touch()
        self.pids: list[int] = []
        self._exited: list[int] = []
        command = [sys.executable, str(SCRIPT), str(folder)]
        self._server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The workers are killed by the kernel when their parent ends, stopped ones too.
        self._server.communicate()

    def _ask(self, order: str, argument: Any) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps({order: argument}) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def begin(self, **options: Any) -> int:
        """Begin a worker."""
        pid: int = self._ask("begin", self.options | options)
        self.pids.append(pid)
        return pid

    def is_ready(self, pid: int) -> bool:
        """Tell whether a worker has begun to work."""
        return (self.folder / f"ready-{pid}").exists()

    async def ready(self, *pids: int) -> None:
        """Wait until workers work."""
        await until(lambda: all(map(self.is_ready, pids or self.pids)) or self.exited() != [])
        assert self.exited() == [], self.log()

    def kill(self, pid: int) -> None:
        """Kill a worker, and see that it was this that ended it."""
        os.kill(pid, signal.SIGKILL)
        self.pids.remove(pid)
        status = self._ask("wait", pid)
        assert os.WIFSIGNALED(status), f"worker {pid} had ended before it was killed: {self.log()}"
        assert os.WTERMSIG(status) == signal.SIGKILL

    def stop(self, pid: int) -> None:
        """Stop a worker in the middle of whatever it is doing, and see that it stands still."""
        os.kill(pid, signal.SIGSTOP)
        while not self.stands_still(pid):
            time.sleep(0.001)

    def stands_still(self, pid: int) -> bool:
        """Tell whether a worker is stopped."""
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def go_on(self, pid: int) -> None:
        """Let a stopped worker go on as if nothing had happened."""
        os.kill(pid, signal.SIGCONT)

    def exited(self) -> list[int]:
        """Return the workers that ended though nobody told them to."""
        for pid in set(self.pids).difference(self._exited):
            if self._ask("look", pid) is not None:
                self._exited.append(pid)
        return self._exited

    def leave(self) -> list[int]:
        """Let all workers leave in order and return how they ended, as waitpid gives it."""
        for pid in self.pids:
            os.kill(pid, signal.SIGTERM)
        return [self._ask("wait", pid) for pid in self.pids]

    def log(self) -> str:
        """Return the end of what the workers logged."""
        file = self.folder / "log"
        return file.read_text()[-4000:] if file.exists() else ""

    def fenced(self) -> int:
        """Return how many writes were refused because another worker had the run."""
        file = self.folder / "fenced"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def lapses(self) -> int:
        """Return how often a worker noticed that it was declared dead."""
        return self.log_count("was declared dead while it hung")

    def log_count(self, words: str) -> int:
        """Return how many lines of the log have these words."""
        file = self.folder / "log"
        return sum(words in line for line in file.read_text().splitlines()) if file.exists() else 0


class Bench:
    """A client of the database, and what it can tell of the workers in it."""

    def __init__(self, database: str) -> None:
        address, _, self.schema = database.rpartition("schema=")
        self.address = address.rstrip("?&")
        self.client = Engine(database, workflows=WORKFLOWS, run_workflows=False)

    async def __aenter__(self) -> Self:
        self._connection = psycopg.connect(self.address, autocommit=True)
        await self.client.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()
        await self.client.stop()

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Look into the database, past everything of ours."""
        if self._connection.broken:
            self._connection = psycopg.connect(self.address, autocommit=True)
        return self._connection.execute(query.replace("$schema", self.schema).encode(), values).fetchall()

    def worker(self, pid: int) -> str | None:
        """Return under which name a process is thought to be alive."""
        rows = self.ask("SELECT id FROM $schema.workers WHERE pid = %s AND state = 'live'", pid)
        return rows[0][0] if rows else None

    async def all_ended(self, seconds: float = 240.0) -> None:
        """Wait until every run has ended; those that kills made look like their cause are let go on."""
        give_up = time.monotonic() + seconds
        while left := [run for run in await all_runs(self.client) if not run.status.is_terminal]:
            for run in left:
                if run.status is Status.BLOCKED and run.error and "three workers in a row" in run.error.message:
                    await self.client.get(run.id).recover()
            if time.monotonic() > give_up:
                told = "SELECT id, status, wait, owner, epoch, claims, due FROM $schema.runs WHERE ended IS NULL"
                workers = self.ask("SELECT id, pid, state FROM $schema.workers")
                raise AssertionError(f"these have not ended: {self.ask(told)}; workers are {workers}")
            await asyncio.sleep(0.1)


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], seconds: float = 240.0, pause: float = 0.01
) -> None:
    """Wait until a condition holds."""
    give_up = time.monotonic() + seconds
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        if time.monotonic() > give_up:
            raise TimeoutError(f"that did not come about within {seconds} s")
        await asyncio.sleep(pause)
