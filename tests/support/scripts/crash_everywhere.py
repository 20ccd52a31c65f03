"""A fifty-step order that is killed at one commit and then continued; run by tests/crash/test_kill_at_every_commit.py.

usage: crash_everywhere.py WORK_DIR each FIRST STEP    kill one life at each commit, then let it finish
       crash_everywhere.py WORK_DIR chain N             kill every life at its N-th commit, until one reaches the end

Forks one process per life (imports are paid once). For every commit FIRST, FIRST + STEP, ... and for both moments,
before and after the commit, a fresh database is driven until that commit, the process is killed with SIGKILL, and
another process continues. Prints one line of JSON per kill; ends when a life does not meet its commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from holdfast import Break, Context, Continue, Engine, workflow
from holdfast.contract.rows import RunFilter
from holdfast.replay import entry as entries
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

LOG = Path()
LIFE = "?"
MOMENTS = ("before", "after")


async def effect(name: str) -> str:
    with open(LOG, "a") as log:
        log.write(f"{LIFE} {name}\n")
    await asyncio.sleep(0)
    return name


@workflow(check=False)
async def fifty(ctx: Context) -> list[str]:
    seen: list[str] = []
    for number in range(13):
        seen.append(await ctx.step(f"plain{number}", effect, f"plain{number}"))
    await ctx.sleep(timedelta(milliseconds=2))
    seen.append(await ctx.receive("first", str))

    async def left(branch: Context) -> str:
        for number in range(4):
            await branch.step(f"left{number}", effect, f"left{number}")
        await branch.sleep(timedelta(milliseconds=1))
        return await branch.step("left-end", effect, "left-end")

    async def right(branch: Context) -> str:
        async def lap(inner: Context, state: int) -> Continue[int] | Break[int]:
            await inner.step("work", effect, f"right-lap{state}")
            return Continue(state + 1) if state < 5 else Break(state)

        await branch.loop("laps", lap, state=0, commit_interval=2, history_every=2, history_keep=2)
        return await branch.receive("second", str)

    both = await ctx.join("both", {"left": left, "right": right})
    seen += [both["left"], both["right"]]

    async def slow(branch: Context) -> str:
        await branch.sleep(timedelta(days=1))
        return "never"

    winner = await ctx.race("race", {"slow": slow, "quick": lambda branch: branch.step("quick", effect, "quick")})
    seen.append(winner.winner)

    async def lap(inner: Context, state: int) -> Continue[int] | Break[int]:
        await inner.step("one", effect, f"loop{state}-one")
        if state % 4 == 3:
            await inner.sleep(timedelta(milliseconds=1))
        await asyncio.gather(
            inner.step("two", effect, f"loop{state}-two"), inner.step("three", effect, f"loop{state}-three")
        )
        return Continue(state + 1) if state < 7 else Break(state)

    await ctx.loop("main", lap, state=0, commit_interval=2, history_every=4, history_keep=2)
    async with asyncio.timeout(3600):
        seen.append(await ctx.step("last", effect, "last"))
    return seen


class KillingStore(SQLiteStore):
    """Kills its own process before or after the n-th commit."""

    def __init__(self, path: str, kill_at: int, moment: str) -> None:
        super().__init__(path)
        self.kill_at, self.moment, self.commits, self.patient = kill_at, moment, 0, False

    def apply_now(self, operations):
        if self.patient:
            return None
        self._meet("before", self.commits + 1)
        outcomes = super().apply_now(operations)
        if outcomes is not None:
            self.commits += 1
            self._meet("after", self.commits)
        return outcomes

    async def apply(self, operations):
        self.commits += 1
        self._meet("before", self.commits)
        self.patient = True
        try:
            outcomes = await super().apply(operations)
        finally:
            self.patient = False
        self._meet("after", self.commits)
        return outcomes

    def _meet(self, moment, commit):
        if (moment, commit) == (self.moment, self.kill_at):
            os.kill(os.getpid(), signal.SIGKILL)


async def live(path: str, kill_at: int, moment: str) -> None:
    """Drive the order until it ends or the process is killed."""
    store = KillingStore(path, kill_at, moment)
    async with Engine(store=store, workflows=[fifty], retention=None) as engine:
        run = await engine.start(fifty, id="order")
        sent = LOG.read_text() if LOG.exists() else ""
        for name in ("first", "second"):
            if f"sent {name}\n" not in sent:
                try:
                    await run.send(name, name)
                except Exception as error:
                    if type(error).__name__ != "RunTerminal":
                        raise
                with open(LOG, "a") as log:
                    log.write(f"sent {name}\n")
        result = await run.result(timeout=timedelta(seconds=180))
        assert result == EXPECTED, result


EXPECTED = [*(f"plain{number}" for number in range(13)), "first", "left-end", "second", "quick", "last"]


async def recorded(path: str) -> tuple[list[str], list[str]]:
    """Return the arguments of the steps whose results are durable, and every broken invariant."""
    store = SQLiteStore(path)
    await store.open()
    try:
        done: list[str] = []
        for row in await store.runs(RunFilter()):
            for fact in await store.history(row.key):
                if fact.kind == entries.StepCompleted.kind:
                    done.append(json.loads(bytes(entries.decode_entry(fact.kind, fact.data).result)))
        return done, await violations(store)
    finally:
        await store.close()


def fork(life: str, coroutine_function, *args) -> int:
    """Run a coroutine in a forked process and return its exit status as waitpid gives it."""
    global LIFE
    pid = os.fork()
    if pid == 0:
        LIFE = life
        try:
            asyncio.run(coroutine_function(*args))
        except BaseException as error:
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


async def inspect(path: str, out: str) -> None:
    done, broken = await recorded(path)
    Path(out).write_text(json.dumps([done, broken]))


def executed(life: str) -> list[str]:
    """Return the bodies that ran in a life."""
    lines = LOG.read_text().splitlines() if LOG.exists() else []
    return [line.partition(" ")[2] for line in lines if line.startswith(life + " ")]


def look(path: str, place: Path) -> tuple[list[str], list[str]]:
    """Return what is recorded and what is broken, seen by a process of its own."""
    out = str(place / "inspection")
    fork("-", inspect, path, out)
    done, broken = json.loads(Path(out).read_text())
    return done, broken


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kill_at_each(work: Path, first: int, step: int) -> None:
    global LOG
    kill_at, reached = first, True
    while reached:
        reached = False
        for moment in MOMENTS:
            place = work / f"{kill_at}-{moment}"
            place.mkdir()
            path, LOG = str(place / "order.db"), place / "log"
            killed = was_killed(fork("A", live, path, kill_at, moment))
            reached = reached or killed
            done, broken = look(path, place)
            finished = fork("B", live, path, 0, "never") == 0
            _, broken_after = look(path, place)
            twice = [name for name in executed("B") if name in executed("A")]
            report = {
                "kill_at": kill_at,
                "moment": moment,
                "killed": killed,
                "finished": finished,
                "recorded": len(done),
                "again": [name for name in twice if name in done],
                "twice": twice,
                "missing": sorted(NAMES - {*executed("A"), *executed("B")}),
                "broken": broken + broken_after,
            }
            print(json.dumps(report), flush=True)
        kill_at += step


def kill_in_a_chain(work: Path, commit: int) -> None:
    global LOG
    path, LOG = str(work / "order.db"), work / "log"
    lives, again, broken = 0, [], []
    while True:
        done, problems = look(path, work) if lives else ([], [])
        life = f"L{lives}"
        status = fork(life, live, path, commit, "after")
        again += [name for name in executed(life) if name in done]
        broken += problems
        if not was_killed(status):
            break
        lives += 1
    print(json.dumps({"lives": lives, "finished": status == 0, "again": again, "broken": broken}), flush=True)


NAMES = {
    *(f"plain{number}" for number in range(13)),
    *(f"left{number}" for number in range(4)),
    *(f"right-lap{number}" for number in range(6)),
    *(f"loop{lap}-{part}" for lap in range(8) for part in ("one", "two", "three")),
    "left-end",
    "quick",
    "last",
}

if __name__ == "__main__":
    if sys.argv[2] == "each":
        kill_at_each(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        kill_in_a_chain(Path(sys.argv[1]), int(sys.argv[3]))
