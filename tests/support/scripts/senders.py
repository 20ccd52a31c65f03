"""Messages and events whose senders and receivers are killed; run by tests/crash/test_sends_and_kills.py.

usage: senders.py WORK_DIR race SENDS KILLS SEED    senders and workers on one file, killed at random while they work
       senders.py WORK_DIR fan-out WAITERS LIKE     the publisher of an event killed at each boundary like this:
                                                    commits (before and after each), statements (inside the transaction)
                                                    or working (commits of a publisher that also runs the waiters)

Forks one process per life (imports are paid once) and prints one line of JSON per kill or, for race, one in all.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

from tests.support.scripts.crash_everywhere import KillingStore

from holdfast import Context, Engine, Event, Status, workflow
from holdfast.contract.rows import RunFilter
from holdfast.errors import RunTerminal
from holdfast.stores.sqlite import store as sqlite
from holdfast.stores.sqlite.statements import SetStatements
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

RUNS = 20
WINDOW = 40  # so each run is sent the next message while it takes the one before, and parks
SLACK = 5 * WINDOW
EVENTS = [Event(name="news", consume_on_read=False), Event(name="end", consume_on_read=False)]


@workflow(check=False)
async def collect(ctx: Context, count: int) -> list[int]:
    """Take messages one by one, parking between them."""
    return [await ctx.receive("item", int) for _ in range(count)]


@workflow(check=False)
async def reader(ctx: Context) -> list[Any]:
    """Read news until the end."""
    read: list[Any] = []
    while True:
        name, value = await ctx.receive(["news", "end"])
        if name == "end":
            return read
        read.append(value)


def fork(live: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> int:
    """Run a coroutine in a process of its own and return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(live(*args))
        except BaseException as error:
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return pid


def ended(pid: int) -> int:
    """Wait for a process and return how it ended, as waitpid gives it."""
    return os.waitpid(pid, 0)[1]


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


async def broken(path: Path) -> list[str]:
    """Return every broken invariant, every run that has not ended, and every row left in an inbox."""
    store = SQLiteStore(path)
    await store.open()
    try:
        found = await violations(store)
        before = None
        while rows := await store.runs(RunFilter(limit=500, before=before)):
            before = rows[-1].key
            found += [f"{row.id} is {row.status}: {row.wait}" for row in rows if row.status is not Status.COMPLETED]
            inboxes = await store.inboxes({row.key: 0 for row in rows})
            found += [f"{key} has not read {len(unread)}" for key, unread in inboxes.items() if unread]
        return found
    finally:
        await store.close()


# Race.


async def send(path: Path, sends: int) -> None:
    """Send every message that no sender before this one was told is durable, with the ids they would have used."""
    acknowledged = path.with_name("acknowledged")
    async with Engine(path, workflows=[collect], run_workflows=False) as engine:
        for number in range(RUNS):
            await engine.start(collect, sends // RUNS, id=f"r{number}")
        path.with_name(f"ready-{os.getpid()}").touch()
        done = acknowledged.stat().st_size if acknowledged.exists() else 0
        with open(acknowledged, "ab", buffering=0) as log:
            while done < sends:
                while done >= int(path.with_name("limit").read_text() or 0):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)  # whoever is to be killed soon is not there yet
                window = range(done, min(done + WINDOW, sends))
                sending = [engine.get(f"r{n % RUNS}").send("item", n, id=f"m{n}") for n in window]
                for outcome in await asyncio.gather(*sending, return_exceptions=True):
                    # One that was sent before may find a run that took it and ended.
                    if isinstance(outcome, BaseException) and not isinstance(outcome, RunTerminal):
                        raise outcome
                log.write(b"." * len(window))
                done += len(window)


async def work(path: Path, max_resident: int) -> None:
    """Work until killed, or until every run has ended."""
    async with Engine(path, workflows=[collect], max_resident=max_resident) as engine:
        path.with_name(f"ready-{os.getpid()}").touch()
        while True:
            runs = await engine.runs(limit=RUNS)
            if len(runs) == RUNS and all(run.status.is_terminal for run in runs):
                return
            for run in runs:
                # Kills come so thick here that three in a row may hit the same run, which then looks like their cause.
                if run.status is Status.BLOCKED and run.error and "three workers in a row" in run.error.message:
                    await engine.get(run.id).recover()
                    with open(path.with_name("recovered"), "a") as log:
                        log.write(f"{run.id}\n")
            await asyncio.sleep(0.05)


async def look(path: Path, sends: int) -> None:
    """Report what became of every message."""
    problems = await broken(path)
    async with Engine(path, run_workflows=False) as engine:
        for run in await engine.runs(limit=RUNS):
            wanted = [n for n in range(sends) if f"r{n % RUNS}" == run.id]
            if run.output != wanted:
                problems.append(f"{run.id}: {run.output}")
    path.with_name("report").write_text(json.dumps(problems))


class Crowd:
    """A sender and two workers, one of which keeps no run in memory; whoever is killed is replaced."""

    def __init__(self, path: Path, sends: int) -> None:
        self._path = path
        self._lives = {"sender": (send, sends), "keeping": (work, 1000), "evicting": (work, 0)}
        self.pids = {role: self._begin(role) for role in self._lives}
        self.kills: dict[str, int] = dict.fromkeys(self._lives, 0)

    def _begin(self, role: str) -> int:
        live, argument = self._lives[role]
        return fork(live, self._path, argument)

    def kill(self, role: str) -> None:
        """Kill one that is ready and begin another in its place."""
        pid = self.pids[role]
        while not self._path.with_name(f"ready-{pid}").exists():
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        if not was_killed(ended(pid)):
            raise SystemExit(f"the {role} had ended before it was killed")
        self.kills[role] += 1
        self.pids[role] = self._begin(role)

    def finish(self, patience: float) -> list[str]:
        """Wait for everybody and return who did not end well."""
        deadline = time.monotonic() + patience
        failed = []
        for role, pid in self.pids.items():
            status = None
            while status is None and time.monotonic() < deadline:
                found, how = os.waitpid(pid, os.WNOHANG)
                status = how if found else None
                time.sleep(0.005)
            if status is None:
                os.kill(pid, signal.SIGKILL)
                ended(pid)
            if status != 0:
                failed.append(f"{role}: {status}")
        return failed


def race(work_dir: Path, sends: int, kills: int, seed: int) -> None:
    path, dice = work_dir / "race.db", random.Random(seed)
    limit, acknowledged = work_dir / "limit", work_dir / "acknowledged"
    limit.write_text("0")
    crowd = Crowd(path, sends)
    victims = [role for role, _ in zip(cycle(crowd.pids), range(kills), strict=False)]
    dice.shuffle(victims)
    for moment, victim in zip(sorted(dice.sample(range(1, sends - WINDOW), kills)), victims, strict=True):
        limit.write_text(str(moment + SLACK))
        while not acknowledged.exists() or acknowledged.stat().st_size < moment:
            time.sleep(0.0005)
        time.sleep(dice.uniform(0, 0.01))
        crowd.kill(victim)
    limit.write_text(str(sends))
    failed = crowd.finish(300)
    ended(fork(look, path, sends))
    problems = json.loads((work_dir / "report").read_text())
    recovered = (work_dir / "recovered").read_text().split() if (work_dir / "recovered").exists() else []
    report = {"kills": crowd.kills, "failed": failed, "problems": problems, "recovered": recovered}
    print(json.dumps(report), flush=True)


# Fan-out.


def kill_at_statement(number: int) -> None:
    """Let this process kill itself at the n-th statement of a batch, inside its transaction."""
    met = 0

    class KillingStatements(SetStatements):
        def _meet(self) -> None:
            nonlocal met
            met += 1
            if met == number:
                os.kill(os.getpid(), signal.SIGKILL)

        async def read(self, name, rows):
            self._meet()
            return await super().read(name, rows)

        async def write(self, name, rows):
            self._meet()
            await super().write(name, rows)

        async def change(self, name, row):
            self._meet()
            return await super().change(name, row)

    sqlite.SetStatements = KillingStatements  # type: ignore[attr-defined]  # where the store looks it up


async def wait_for_all(path: Path, waiters: int) -> None:
    """Begin runs that wait for news."""
    async with Engine(path, workflows=[reader], events=EVENTS, max_resident=0) as engine:
        await engine.start_many(reader, [()] * waiters)
        while (await engine.stats())["suspended"] < waiters:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def publish(path: Path, kill_at: int, moment: str) -> None:
    """Publish and leave; killed on the way."""
    if moment == "statement":
        kill_at_statement(kill_at)
    async with Engine(store=KillingStore(str(path), kill_at, moment), events=EVENTS, run_workflows=False) as engine:
        await engine.publish("news", "flood", id="flood-1")


async def publish_and_work(path: Path, kill_at: int, moment: str) -> None:
    """Publish, and let the runs that wait read it; killed on the way."""
    store = KillingStore(str(path), kill_at, moment)
    async with Engine(store=store, workflows=[reader], events=EVENTS, retention=None) as engine:
        store.commits = 0
        await engine.publish("news", "flood", id="flood-1")
        await quiet(engine, 0)


async def publish_again(path: Path, waiters: int) -> None:
    """Publish the same once more, then the end, and report what each run read."""
    async with Engine(path, workflows=[reader], events=EVENTS, retention=None) as engine:
        given = await engine.publish("news", "flood", id="flood-1")
        await quiet(engine, waiters)
        to_end = await engine.publish("end")
        read = [await engine.get(run.id, reader).result(timedelta(seconds=180)) for run in await all_runs(engine)]
    report = {"again": given, "to_end": to_end, "wrong": [each for each in read if each != ["flood"]]}
    path.with_name("report").write_text(json.dumps(report | {"runs": len(read), "broken": await broken(path)}))


async def quiet(engine: Engine, waiters: int) -> None:
    """Wait until so many runs wait and none has anything to do."""
    while (await engine.stats())["suspended"] < waiters or await busy(engine):  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def busy(engine: Engine) -> bool:
    """Tell whether a run has something to do."""
    return any(run.due_at for run in await all_runs(engine))


async def all_runs(engine: Engine) -> list[Any]:
    runs = page = await engine.runs(limit=1000)
    while len(page) == 1000:
        page = await engine.runs(limit=1000, before=page[-1])
        runs += page
    return runs


LIVES = {
    "commits": (publish, ("before", "after")),
    "statements": (publish, ("statement",)),
    "working": (publish_and_work, ("before", "after")),
}


def fan_out(work_dir: Path, waiters: int, like: str) -> None:
    begun = work_dir / "begun.db"
    if ended(fork(wait_for_all, begun, waiters)) != 0:
        raise SystemExit("the runs did not begin to wait")
    live, moments = LIVES[like]
    kill_at, reached = 1, True
    while reached:
        reached = False
        for moment in moments:
            place = work_dir / f"{kill_at}-{moment}"
            place.mkdir()
            path = place / "news.db"
            shutil.copy(begun, path)
            killed = was_killed(ended(fork(live, path, kill_at, moment)))
            reached = reached or killed
            finished = ended(fork(publish_again, path, waiters)) == 0
            report = json.loads((place / "report").read_text()) if finished else {}
            told = {"kill_at": kill_at, "moment": moment, "killed": killed, "finished": finished}
            print(json.dumps(told | report), flush=True)
            shutil.rmtree(place)
            if not reached:
                break
        kill_at += 1


if __name__ == "__main__":
    if sys.argv[2] == "race":
        race(Path(sys.argv[1]), *map(int, sys.argv[3:6]))
    else:
        fan_out(Path(sys.argv[1]), int(sys.argv[3]), sys.argv[4])
