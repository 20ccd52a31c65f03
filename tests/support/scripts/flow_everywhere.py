"""Runs in lanes, and steps under limits, killed at one commit and then continued; run by tests/crash/test_flow.py.

usage: flow_everywhere.py WORK_DIR FIRST STEP

As in crash_everywhere.py, which see, but a claim of runs counts as a commit, too. The scenario has runs that wait for a
place, a debounce window, a rejection, and a pause that a later life ends; and steps under shared limits, which wait,
are granted their turn, are told 429, and trip a circuit. Prints one line of JSON per kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from tests.support.scripts import crash_everywhere as lives

from holdfast import Context, Engine, Retry, activity, workflow
from holdfast.contract.rows import RunFilter
from holdfast.errors import RetryAfter, RunRejected, RunTerminal
from holdfast.limits import Limit
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

LONG = timedelta(seconds=180)


async def effect(name: str) -> str:
    with open(lives.LOG, "a") as log:
        log.write(f"{lives.LIFE} begin {name}\n")
    await asyncio.sleep(0.001)
    with open(lives.LOG, "a") as log:
        log.write(f"{lives.LIFE} end {name}\n")
    return name


@workflow(check=False, at_once=1, key=lambda tenant, name: tenant)
async def pays(ctx: Context, tenant: str, name: str) -> str:
    await ctx.step("one", effect, f"{name}-one")
    await ctx.sleep(timedelta(milliseconds=2))
    return await ctx.step("two", effect, f"{name}-two")


@workflow(check=False, at_once=1, on_full="reject")
async def alone(ctx: Context) -> str:
    return await ctx.receive("go", str)


@workflow(check=False, debounce=timedelta(milliseconds=300), debounce_at_most=timedelta(seconds=1))
async def index(ctx: Context, text: str) -> str:
    return await ctx.step("index", effect, f"index-{text}")


RETRY = Retry(max_attempts=None, initial_interval=timedelta(milliseconds=2), coefficient=1.0)
LIMITS = [
    Limit(name="bank", at_once=1),
    Limit(name="post", at_once=1, trip_after=2, cool_down=timedelta(milliseconds=5)),
]


@activity(limit="bank", retry=RETRY)
async def charge(name: str) -> str:
    busy = f"429 {name}\n"
    if name == "c2" and busy not in lives.LOG.read_text():
        with open(lives.LOG, "a") as log:
            log.write(f"{lives.LIFE} {busy}")
        raise RetryAfter(timedelta(milliseconds=5), "429")
    return await effect(f"bank-{name}")


@activity(limit="post", retry=RETRY)
async def post(name: str) -> str:
    if lives.LOG.read_text().count(" down ") < 3:
        with open(lives.LOG, "a") as log:
            log.write(f"{lives.LIFE} down {name}\n")
        raise ConnectionError("down")
    return await effect(f"post-{name}")


@workflow(check=False)
async def charges(ctx: Context, name: str) -> str:
    await ctx.step(charge, name)
    return await ctx.step(post, name)


class KillingStore(lives.KillingStore):
    """Counts what takes runs as a commit."""

    async def claim(self, *args, **options):
        return await self._counted(super().claim(*args, **options))

    async def claim_waiting(self, *args, **options):
        return await self._counted(super().claim_waiting(*args, **options))

    async def _counted(self, claiming):
        self._meet("before", self.commits + 1)
        found = await claiming
        if found:
            self.commits += 1
            self._meet("after", self.commits)
        return found

    def _meet(self, moment, commit):
        # Claims run beside commits, so that a number may be passed by unmet: the next one is as good.
        if moment == self.moment and commit >= self.kill_at > 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(path: str, kill_at: int, moment: str) -> None:
    """Do all that is not done yet."""
    store = KillingStore(path, kill_at, moment)
    async with Engine(
        store=store, workflows=[pays, alone, index, charges], limits=LIMITS, retention=None, max_steps=4
    ) as engine:
        await engine.flow.pause(workflow=pays, reason="first all is started")
        await engine.limits.pause("bank")
        runs = [
            await engine.start(pays, tenant, tenant + str(n), id=tenant + str(n)) for n in (1, 2) for tenant in "ab"
        ]
        charged = [await engine.start(charges, f"c{n}", id=f"c{n}") for n in (1, 2, 3)]
        older = await engine.start(index, "older", id="older")
        newer = await engine.start(index, "newer", id="newer")
        first = await engine.start(alone, id="first")
        if "sent go" not in lives.LOG.read_text():
            try:
                await engine.start(alone, id="second")
            except RunRejected:
                pass
            else:
                raise AssertionError("the second run was not rejected")
            with open(lives.LOG, "a") as log:
                log.write(f"{lives.LIFE} sent go\n")
        if not (await first.status()).is_terminal:
            with suppress(RunTerminal):
                await first.send("go", "gone", id="go")
        await engine.flow.resume(workflow=pays)
        await engine.limits.resume("bank")
        assert await first.result(timeout=LONG) == "gone"
        assert [await run.result(timeout=LONG) for run in runs] == ["a1-two", "b1-two", "a2-two", "b2-two"]
        assert await newer.result(timeout=LONG) == "index-newer"
        assert [await run.result(timeout=LONG) for run in charged] == ["post-c1", "post-c2", "post-c3"]
        await asyncio.wait([asyncio.ensure_future(older.result(timeout=LONG))])


async def inspect(path: str, out: str) -> None:
    """Note how the runs ended, what is broken, and what is left of lanes and limits."""
    store = SQLiteStore(path)
    await store.open()
    try:
        ends = {row.id: [str(row.status), row.output, row.error] for row in await store.runs(RunFilter())}
        left = [str(row) for row in await store.paused()]
        rows = await store.look(lambda db: db.read("count_places", [("pays", "a", held, 9) for held in (-1, 0, 1)]))
        taken = [limit.used + limit.granted + limit.waiting for limit in await store.limits()]
        held = sum([*(int(n or 0) for (n,) in rows), *taken])
        Path(out).write_text(json.dumps([ends, await violations(store), left, held]))
    finally:
        await store.close()


def main(work: Path, first: int, step: int) -> None:
    kill_at, reached = first, True
    while reached:
        reached = False
        for moment in ("before", "after"):
            place = work / f"{kill_at}-{moment}"
            place.mkdir()
            path, lives.LOG = str(place / "flow.db"), place / "log"
            lives.LOG.touch()
            killed = lives.was_killed(lives.fork("A", live, path, kill_at, moment))
            reached = reached or killed
            finished = lives.fork("B", live, path, 0, "never") == 0
            lives.fork("-", inspect, path, str(place / "seen"))
            ends, broken, paused, held = json.loads((place / "seen").read_text())
            report = {
                "kill_at": kill_at,
                "moment": moment,
                "killed": killed,
                "finished": finished,
                "ends": ends,
                "broken": broken,
                "left": [*paused, held],
                "bodies": lives.LOG.read_text().splitlines(),
            }
            print(json.dumps(report), flush=True)
        kill_at += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
