"""Sagas that are killed at one commit and then continued; run by tests/crash/test_kill_a_saga.py.

usage: saga_everywhere.py WORK_DIR each FIRST STEP    kill one life at each commit, then let it finish
       saga_everywhere.py WORK_DIR undoing            a compensation that kills its process, every time
       saga_everywhere.py WORK_DIR skipped            a step that is skipped once and then kills its process, every time

Three runs share a database: a saga (a life that continues as new, a join, a trimmed loop, a compensation that fails, an
event, and then its failure), another run that wants the same keyed effect and waits for the event, and one that is
paused and fails after it was resumed. As in crash_everywhere.py, which see, prints one line of JSON per kill.
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

from holdfast import Break, Context, Continue, Engine, NotReady, Retry, RunFailed, activity, step_context, workflow
from holdfast.contract.rows import LetterFilter
from holdfast.errors import RunTerminal
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

LAPS = 5
QUICK = Retry(max_attempts=2, initial_interval=timedelta(milliseconds=1))


def note(what: str) -> None:
    with open(lives.LOG, "a") as log:
        log.write(f"{lives.LIFE} {what}\n")


async def effect(name: str) -> str:
    note(f"{step_context().run_id} {name}")
    await asyncio.sleep(0)
    return name


@activity(idempotency_key=lambda order: f"charge:{order}")
async def charge(order: str) -> str:
    return await effect("charge")


async def undo(name: str) -> None:
    await effect(f"undo-{name}")


@activity(retry=QUICK)
async def cannot(name: str) -> None:
    await effect(f"undo-{name}")
    raise ValueError("this cannot be undone")


@activity(retry=Retry.never)
async def explode() -> None:
    note(f"{step_context().run_id} explode")
    raise RuntimeError("the last step fails")


@workflow(check=False)
async def saga(ctx: Context, life: int) -> None:
    if life == 0:
        await ctx.step(effect, "reserve")
        ctx.compensate(undo, "reserve")
        ctx.continue_as_new(1)

    async def left(branch: Context) -> None:
        await branch.step(effect, "left")
        branch.compensate(undo, "left")

    async def right(branch: Context) -> None:
        await branch.step(charge, "7")
        branch.compensate(undo, "charge")

    await ctx.join("both", {"left": left, "right": right})

    async def lap(inner: Context, state: int) -> Continue[int] | Break[int]:
        await inner.step(effect, f"lap{state}")
        inner.compensate(cannot if state == 2 else undo, f"lap{state}")
        return Continue(state + 1) if state < LAPS - 1 else Break(state)

    await ctx.loop("laps", lap, state=0, commit_interval=1, history_every=2, history_keep=1)
    await ctx.publish("packed", "box 7")
    await ctx.step(explode)


@workflow(check=False)
async def other(ctx: Context) -> list[str]:
    return [await ctx.step(charge, "7"), await ctx.receive("packed", str)]


@workflow(check=False)
async def napper(ctx: Context) -> None:
    await ctx.step(effect, "bed")
    ctx.compensate(undo, "bed")
    await ctx.receive("wake")
    await ctx.step(explode)


async def go_on(path: str, place: Path) -> None:
    """Finish what a killed life left, and say what was there before and is after."""
    await inspect(path, str(place / "before"))
    await live(path, 0, "never")
    await inspect(path, str(place / "after"))


async def live(path: str, kill_at: int, moment: str) -> None:
    """Drive the three runs until they end or the process is killed."""
    store = lives.KillingStore(path, kill_at, moment)
    async with Engine(store=store, workflows=[saga, other, napper], retention=None) as engine:
        first = await engine.start(saga, 0, id="saga")
        second = await engine.start(other, id="other")
        third = await engine.start(napper, id="napper")
        resumed = "resumed" in [line.partition(" ")[2] for line in lives.LOG.read_text().splitlines()]
        if not resumed:
            await third.pause()
            try:
                await third.send("wake", id="wake")
            except RunTerminal:
                note("resumed")  # by a life that was killed before it could say so
        await _fails(first)
        assert await second.result(timeout=timedelta(seconds=180)) == ["charge", "box 7"]
        await third.resume()
        note("resumed")
        await _fails(third)


async def _fails(run) -> None:
    cause = None
    try:
        await run.result(timeout=timedelta(seconds=180))
    except RunFailed as failed:
        cause = failed.__cause__
    assert isinstance(cause, RuntimeError), cause


async def inspect(path: str, out: str) -> None:
    """Write what the database says: what is undone in which order, the letters, what is broken."""
    store = SQLiteStore(path)
    await store.open()
    try:
        seen: dict[str, object] = {"broken": await violations(store)}
        for run_id in ("saga", "napper"):
            row = await store.get(run_id)
            history = await store.history(row.key) if row is not None else []
            added = {fact.location: decode_entry(fact.kind, fact.data) for fact in history if fact.kind == ADDED}
            begun = [fact for fact in history if fact.kind == entries.StepBegun.kind and fact.location[0] == "^"]
            ended = [fact for fact in history if fact.kind in ENDS and fact.location[0] == "^"]
            seen[run_id] = {
                "status": str(row.status) if row is not None else "",
                "registered": [json.loads(bytes(added[place].args))[0] for place in sorted(added)],
                "begun": [json.loads(bytes(added[each.location.partition("/")[0]].args))[0] for each in begun],
                "undone": [json.loads(bytes(added[each.location.partition("/")[0]].args))[0] for each in ended],
                "report": json.loads(row.compensation) if row is not None and row.compensation else None,
            }
        letters = await store.letters(LetterFilter())
        seen["letters"] = sorted([letter.run, letter.step.rpartition("/")[2], letter.attempts] for letter in letters)
        seen["waiting events"] = sum((await store.counts()).events.values())
        Path(out).write_text(json.dumps(seen))
    finally:
        await store.close()


ADDED = entries.CompensationAdded.kind
ENDS = (entries.StepCompleted.kind, entries.StepFailure.kind)


def kill_at_each(work: Path, first: int, step: int) -> None:
    """Kill at every commit, until lives end by themselves three times in a row: no two make the same number."""
    kill_at, survived = first, 0
    while survived < 3:
        survived += 1
        for moment in ("before", "after"):
            place = work / f"{kill_at}-{moment}"
            place.mkdir()
            path, lives.LOG = str(place / "saga.db"), place / "log"
            lives.LOG.touch()
            killed = lives.was_killed(lives.fork("A", live, path, kill_at, moment))
            survived = 0 if killed else survived
            finished = lives.fork("B", go_on, path, place) == 0
            report = {
                "kill_at": kill_at,
                "moment": moment,
                "killed": killed,
                "finished": finished,
                "before": json.loads((place / "before").read_text()),
                "after": json.loads((place / "after").read_text()) if finished else None,
                "bodies": lives.LOG.read_text().splitlines(),
            }
            print(json.dumps(report), flush=True)
        kill_at += step


# Bodies that kill their process.


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def deadly_undo() -> None:
    note("deadly")
    die()


def not_at_first(step) -> bool | NotReady:
    asked = lives.LOG.read_text()
    note("asked")
    return bool(asked) or NotReady("not yet", timedelta(milliseconds=1))


@activity(run_when=not_at_first, retry=Retry.never)
async def deadly_when_ready() -> None:
    note("deadly")
    die()


@workflow(check=False)
async def undoing(ctx: Context) -> None:
    await ctx.step(effect, "first")
    ctx.compensate(undo, "first")
    ctx.compensate(not_importable(deadly_undo))
    await ctx.step(explode)


@workflow(check=False)
async def skipped(ctx: Context) -> None:
    await ctx.step(deadly_when_ready)


def not_importable(function):
    """Return a function that no child process can import: then it is this process that dies."""

    async def deadly() -> None:
        await function()

    return deadly


async def die_again(path: str, name: str) -> None:
    flow = {"undoing": undoing, "skipped": skipped}[name]
    async with Engine(path, workflows=[flow], retention=None) as engine:
        run = await engine.start(flow, id="r")
        try:
            await run.result(timeout=timedelta(seconds=180))
        except RunFailed:
            pass


async def tell(path: str, out: str) -> None:
    async with Engine(path, run_workflows=False, retention=None) as engine:
        run, letters = await engine.get("r").describe(), await engine.dead_letters.list()
        seen = {
            "status": run.status,
            "error": run.error.type if run.error else "",
            "compensation": run.compensation,
            "letters": sorted([letter.activity, letter.attempts] for letter in letters),
            "broken": await violations(engine.store),
        }
        Path(out).write_text(json.dumps(seen))


def kill_from_within(work: Path, name: str) -> None:
    path, lives.LOG = str(work / "deadly.db"), work / "log"
    lives.LOG.touch()
    deaths = 0
    while deaths < 6 and lives.was_killed(lives.fork(f"L{deaths}", die_again, path, name)):
        deaths += 1
    lives.fork("-", tell, path, str(work / "seen"))
    print(json.dumps({"deaths": deaths, **json.loads((work / "seen").read_text())}), flush=True)


if __name__ == "__main__":
    if sys.argv[2] == "each":
        kill_at_each(Path(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        kill_from_within(Path(sys.argv[1]), sys.argv[2])
