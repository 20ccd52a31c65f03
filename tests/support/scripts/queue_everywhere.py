"""Steps in a queue whose process is killed at one commit and then continued; run by tests/crash/test_queue_workers.py.

usage: queue_everywhere.py WORK_DIR FIRST STEP

As in crash_everywhere.py, which see, but a claim of attempts counts as a commit, too. One process serves the queue of
its own runs; in the second life another one has to take over both. Prints one line of JSON per kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from tests.support.scripts import crash_everywhere as lives

from holdfast import Context, Engine, Retry, activity, step_context, workflow
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

QUICK = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=1))


@activity(queue="gpu", retry=QUICK, idempotency_key=lambda name: name if name.startswith("keyed") else None)
async def effect(name: str) -> str:
    with open(lives.LOG, "a") as log:
        log.write(f"{lives.LIFE} {name} {step_context().attempt}\n")
    await asyncio.sleep(0)
    if name == "shaky" and step_context().attempt == 1:
        raise ValueError("once")
    return name


@workflow(check=False)
async def queued(ctx: Context, again: bool = False) -> list[str]:
    seen = [await ctx.step("first", effect, f"first {again}".replace(" ", "-"))]
    if not again:
        seen.append(await ctx.step("shaky", effect, "shaky"))
        ctx.compensate(effect, "never")
        seen += await asyncio.gather(*(ctx.step(f"side{n}", effect, f"side{n}") for n in range(3)))
        won = await ctx.race(
            {"slow": lambda inner: inner.sleep(timedelta(days=1)), "quick": lambda inner: inner.step("q", effect, "q")}
        )
        seen.append(won.winner)
        await ctx.continue_as_new(again=True)
    seen.append(await ctx.step("keyed", effect, "keyed"))
    await ctx.sleep(timedelta(milliseconds=2))
    return [*seen, await ctx.step("last", effect, "last")]


class KillingStore(lives.KillingStore):
    """Counts what takes attempts from a queue as a commit."""

    async def claim_tasks(self, *args, **options):
        self._meet("before", self.commits + 1)
        found = await super().claim_tasks(*args, **options)
        if found:
            self.commits += 1
            self._meet("after", self.commits)
        return found

    def _meet(self, moment, commit):
        # Claims run beside commits, so that a number may be passed by unmet: the next one is as good.
        if moment == self.moment and commit >= self.kill_at > 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def live(path: str, kill_at: int, moment: str) -> None:
    store = KillingStore(path, kill_at, moment)
    async with Engine(store=store, workflows=[queued], queues=["default", "gpu"], retention=None) as engine:
        run = await engine.start(queued, id="q")
        other = await engine.start(queued, True, id="other")
        assert await run.result(timeout=timedelta(seconds=180)) == ["first-True", "keyed", "last"]
        assert await other.result(timeout=timedelta(seconds=180)) == ["first-True", "keyed", "last"]


async def inspect(path: str, out: str) -> None:
    """Note the results that are durable, what is broken, and what is left in the queue."""
    store = SQLiteStore(path)
    await store.open()
    try:
        done: list[str] = []
        for id in ("q", "other"):
            row = await store.get(id)
            for fact in await store.history(row.key) if row is not None else ():
                if fact.kind == entries.StepCompleted.kind:
                    done.append(json.loads(bytes(decode_entry(fact.kind, fact.data).result)))
        await store.join("looker", timedelta(hours=1))
        left = await store.claim_tasks("looker", 1 << 60, 99, ["gpu"], ["effect"])
        Path(out).write_text(json.dumps([done, await violations(store), len(left)]))
    finally:
        await store.close()


def main(work: Path, first: int, step: int) -> None:
    kill_at, reached = first, True
    while reached:
        reached = False
        for moment in ("before", "after"):
            place = work / f"{kill_at}-{moment}"
            place.mkdir()
            path, lives.LOG = str(place / "queue.db"), place / "log"
            lives.LOG.touch()
            killed = lives.was_killed(lives.fork("A", live, path, kill_at, moment))
            reached = reached or killed
            finished = lives.fork("B", live, path, 0, "never") == 0
            lives.fork("-", inspect, path, str(place / "seen"))
            done, broken, left = json.loads((place / "seen").read_text())
            report = {
                "kill_at": kill_at,
                "moment": moment,
                "killed": killed,
                "finished": finished,
                "bodies": lives.LOG.read_text().splitlines(),
                "recorded": done,
                "broken": broken,
                "left": left,
            }
            print(json.dumps(report), flush=True)
        kill_at += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
