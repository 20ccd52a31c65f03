"""Workers with shared limits and lanes that are killed at random; run by tests/crash/test_flow_storms.py.

usage: flow_storm.py WORK_DIR FIRST_SEED SEEDS

Forks the workers of one world after another (imports are paid once), kills them with SIGKILL while bodies go on, and
prints for each world one line of JSON: how its runs ended, what is broken or left, and the log that the bodies wrote.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from tests.support.waiting import soon

from holdfast import Context, Engine, Retry, Status, activity, workflow
from holdfast.contract.operations import Committed, Started
from holdfast.contract.rows import RunFilter
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.engine.worker import worker
from holdfast.limits import Limit
from holdfast.stores.rules.limits import turns
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

RUNS, WORKERS, KILLS = 12, 3, 6
RATE, PER = 4, timedelta(milliseconds=40)
LIMITS = [
    Limit(name="whole", at_once=3, per_key_at_once=2),
    Limit(name="paced", rate=RATE, per=PER),
    Limit(name="one", at_once=1, trip_after=3, cool_down=timedelta(milliseconds=20)),
]


class Log:
    """The file that all bodies write, each line at once."""

    def __init__(self, path: Path, life: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._life = life
        self._numbers = itertools.count()

    def who(self) -> str:
        return f"{self._life}/{next(self._numbers)}"

    def write(self, what: str, where: str, who: str) -> None:
        os.write(self._file, f"{what} {where} {who}\n".encode())


class WatchedStore(SQLiteStore):
    """Writes down which begins it records under a rate."""

    log: Log

    def apply_now(self, operations):
        outcomes = super().apply_now(operations)
        self._note(operations, outcomes)
        return outcomes

    async def apply(self, operations):
        outcomes = await super().apply(operations)
        self._note(operations, outcomes)
        return outcomes

    def _note(self, operations, outcomes):
        for operation, outcome in zip(operations, outcomes or (), strict=False):
            turn = operation.turn if isinstance(operation, StartRun) else operation
            done = outcome.committed if isinstance(outcome, Started) else outcome
            if isinstance(turn, CommitTurn) and isinstance(done, Committed) and turn.effects is not None:
                for enter in turn.effects.enters:
                    answer = done.limits.get(enter.location)
                    if enter.limit == "paced" and answer is not None and answer.outcome == "entered":
                        # A step is named: a commit may be told of twice, by apply and by way of it.
                        self.log.write("began", str(enter.now), f"{turn.key}-{enter.location}-{turn.entries[-1].seq}")


def make_workflows(log: Log, dice: Random) -> list[Any]:
    retry = Retry(max_attempts=None, initial_interval=timedelta(milliseconds=2), coefficient=1.0, crash_limit=1000)

    async def stay(*places: str) -> None:
        who = log.who()
        for place in places:
            log.write("in", place, who)
        await asyncio.sleep(dice.choice([0, 0.002, 0.01]))
        fails = dice.random() < 0.1
        for place in places:
            log.write("out", place, who)
        if fails:
            raise ConnectionError("down")

    @activity(limit="whole", limit_key=lambda tenant: tenant, retry=retry)
    async def shared(tenant: str) -> None:
        await stay("whole", f"whole/{tenant}")

    @activity(limit="whole", limit_key=lambda tenant: tenant, retry=retry)
    def threaded(tenant: str) -> None:
        who = log.who()
        log.write("in", "whole", who)
        time.sleep(0.003)
        log.write("out", "whole", who)

    @activity(limit="paced", retry=retry)
    async def paced() -> None:
        await stay("paced")

    @activity(limit="one", retry=retry)
    async def alone() -> None:
        await stay("one")

    @activity(retry=retry)
    async def arrive(lane: str, number: int) -> None:
        log.write("in", lane, f"run/{number}")

    @activity(retry=retry)
    async def depart(lane: str, number: int) -> None:
        log.write("out", lane, f"run/{number}")

    @workflow(name="steps", check=False)
    async def several(ctx: Context, number: int) -> None:
        await ctx.step(shared, f"t{number % 3}")
        await asyncio.gather(ctx.step(paced), ctx.step(threaded, f"t{number % 2}"))
        await ctx.step(alone)

    @workflow(name="lane", check=False, at_once=1, key=lambda number: f"k{number % 4}")
    async def laned(ctx: Context, number: int) -> None:
        lane = f"lane/k{number % 4}"
        await ctx.step(arrive, lane, number)
        await ctx.step(shared, "t0")
        await ctx.step(depart, lane, number)

    return [several, laned]


def engine_on(path: Path, log: Log, dice: Random, **options: Any) -> Engine:
    store = WatchedStore(path, durability="process")
    store.log = log
    return Engine(
        store=store, workflows=make_workflows(log, dice), limits=LIMITS, retention=None,
        max_steps=4, max_resident=dice.choice([0, 3, 1000]), **options,
    )  # fmt: skip


async def begin(path: Path, log: Log, dice: Random) -> None:
    async with engine_on(path, log, dice, run_workflows=False) as client:
        for number in range(RUNS):
            await client.start(("steps", "lane")[number % 2], number=number, id=str(number))


async def work(path: Path, log: Log, dice: Random) -> None:
    """Work until every run has ended and nothing is taken or waits."""
    async with engine_on(path, log, dice) as engine:
        while True:
            await asyncio.sleep(0.02)
            over = all(run.status.is_terminal for run in await engine.runs())
            if over and all((limit.used, limit.waiting) == (0, 0) for limit in await engine.limits()):
                return


async def inspect(path: Path, log: Log, dice: Random) -> None:
    store = SQLiteStore(path)
    await store.open()
    try:
        ends = [str(row.status) for row in await store.runs(RunFilter()) if row.status is not Status.COMPLETED]
        rows = await store.look(lambda db: db.read("limit_counts_of", [("",)]))
        path.with_suffix(".seen").write_text(json.dumps([*ends, *await violations(store), *map(str, rows)]))
    finally:
        await store.close()


def fork(life: str, what: Any, path: Path, seed: int) -> int:
    """Let a process of its own do something; return its id."""
    process = os.fork()
    if not process:
        code = 1
        try:
            worker._TAKE_OVER_EVERY = 0.1
            if seed % 2:  # workers keep places, however few they have
                turns.KEPT_FROM = 1
            asyncio.run(what(path, Log(path.with_suffix(".log"), life), Random(f"{seed} {life}")))
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def storm(path: Path, seed: int) -> dict[str, Any]:
    """Let workers work, kill some of them, and tell what came of it."""
    dice, lives = Random(seed), itertools.count()
    logged = path.with_suffix(".log")
    driver = Log(logged, "driver")
    assert ended(fork("client", begin, path, seed)) == 0
    workers: dict[str, int] = {}
    codes: list[int] = []

    def open_one() -> None:
        life = f"w{next(lives)}"
        workers[life] = fork(life, work, path, seed)

    for _ in range(WORKERS):
        open_one()
    for _ in range(KILLS):
        size = logged.stat().st_size + dice.randrange(800)
        victim = dice.choice([*workers])
        # Until more bodies have begun, or there are none left to begin.
        soon(lambda size=size, victim=victim: logged.stat().st_size >= size or _is_over(workers[victim]))  # type: ignore[misc]
        driver.write("gone", "-", victim)
        os.kill(workers[victim], signal.SIGKILL)
        codes.append(ended(workers.pop(victim)))
        open_one()
    lasts = [ended(process) for process in workers.values()]
    assert ended(fork("inspector", inspect, path, seed)) == 0
    return {
        "seed": seed, "killed": codes.count(-signal.SIGKILL), "lasts": lasts,
        "wrong": json.loads(path.with_suffix(".seen").read_text()), "log": logged.read_text().splitlines(),
    }  # fmt: skip


def _is_over(process: int) -> bool:
    """Whether a process has ended; it is not waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main(work_dir: Path, first: int, seeds: int) -> None:
    for seed in range(first, first + seeds):
        print(json.dumps(storm(work_dir / f"{seed}.db", seed)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
