"""Transactional steps, killed at one statement and then continued; run by tests/crash/test_transactions.py.

usage: transact_everywhere.py WORK_DIR FIRST STEP

Every statement that any connection of the process runs after its run was started is a place to die: just before it,
which is just after the one before. For FIRST, FIRST + STEP, ... a fresh database is driven until that statement, the
process is killed with SIGKILL, and another one continues. Prints one line of JSON per kill; ends when a life does not
come to its statement.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
from tests.support.scripts import crash_everywhere as lives

from holdfast import Context, Engine, Retry, activity, step_context, workflow
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.invariants import violations

QUICK = Retry(max_attempts=5, initial_interval=timedelta(milliseconds=1))
COUNTING: dict[str, Any] = {"at": 0, "seen": 0, "on": False, "last": ""}


def meet(cursor: object, sql: str, bindings: object) -> bool:
    if COUNTING["on"]:
        COUNTING["seen"] += 1
        if COUNTING["seen"] == COUNTING["at"]:
            with open(lives.LOG, "a") as log:
                log.write(f"killed before {sql.split(';')[0][:60]!r} after {COUNTING['last']!r}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        COUNTING["last"] = sql.strip()[:60]
    return True


def trace(db: apsw.Connection) -> None:
    db.exec_trace = meet


@activity(transaction=True, retry=QUICK)
def book(name: str) -> str:
    context = step_context()
    with open(lives.LOG, "a") as log:
        log.write(f"{lives.LIFE} {name} {context.attempt}\n")
    db = context.connection
    db.execute("CREATE TABLE IF NOT EXISTS books (name TEXT, attempt INTEGER)")
    db.execute("INSERT INTO books VALUES (?, ?)", (name, context.attempt))
    if name == "shaky" and context.attempt == 1:
        raise ValueError("once")
    db.execute("UPDATE books SET attempt = -attempt WHERE name = ?", (name,))
    return name


async def note(name: str) -> str:
    return name


@workflow(check=False)
async def booking(ctx: Context, again: bool = False) -> list[str]:
    if again:
        return [await ctx.step("first", book, "in the next life")]
    seen = [await ctx.step("first", book, "first"), await ctx.step(note, "plain"), await ctx.step("s", book, "shaky")]
    ctx.compensate(book, "never")
    seen += await asyncio.gather(ctx.step("left", book, "left"), ctx.step("right", book, "right"))
    await ctx.sleep(timedelta(milliseconds=1))
    seen.append(await ctx.step("last", book, "last"))
    assert seen == ["first", "plain", "shaky", "left", "right", "last"]
    await ctx.continue_as_new(again=True)
    return seen


async def live(path: str, kill_at: int) -> None:
    apsw.connection_hooks.append(trace)
    COUNTING["at"] = kill_at
    async with Engine(path, workflows=[booking], retention=None, durability="process") as engine:
        COUNTING["on"] = True
        run = await engine.start(booking, id="b")
        assert await run.result(timeout=timedelta(seconds=180)) == ["in the next life"]
        COUNTING["on"] = False


async def go_on(path: str, place: Path) -> None:
    """Note what is there, continue, and note what is there then."""
    await inspect(path, place / "before")
    await live(path, 0)
    await inspect(path, place / "after")


async def inspect(path: str, out: Path) -> None:
    store = SQLiteStore(path, durability="process")
    await store.open()
    try:
        there = store._connections.reader.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'books'").get
        rows = store._connections.reader.execute("SELECT name, attempt FROM books").fetchall() if there else []
        found = await store.get("b")
        inbox = (await store.inboxes({found.key: 0}))[found.key] if found is not None else []
        out.write_text(json.dumps([rows, await violations(store), len(inbox)]))
    finally:
        await store.close()


def main(work: Path, first: int, step: int) -> None:
    kill_at, killed = first, True
    while killed:
        place = work / str(kill_at)
        place.mkdir()
        path, lives.LOG = str(place / "books.db"), place / "log"
        lives.LOG.touch()
        killed = lives.was_killed(lives.fork("A", live, path, kill_at))
        finished = lives.fork("B", go_on, path, place) == 0
        report = {
            "kill_at": kill_at,
            "killed": killed,
            "finished": finished,
            "before": json.loads((place / "before").read_text()),
            "after": json.loads((place / "after").read_text()) if finished else None,
            "log": lives.LOG.read_text().splitlines(),
        }
        print(json.dumps(report), flush=True)
        kill_at += step


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
