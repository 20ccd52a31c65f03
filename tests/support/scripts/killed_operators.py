"""An operator's process killed at every statement of what it does; run by tests/behaviour/test_evidence_and_audit.py.

usage: killed_operators.py WORK_DIR

For every action and every SQL statement of it, a fresh copy of one database is acted upon by a forked process that
kills itself with SIGKILL when it comes to that statement. Prints one line of JSON per life: whether it was killed,
whether anything but the audit trail changed, and what the audit trail says.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw

from holdfast import Context, Engine, RunFailed, workflow
from holdfast.stores.sqlite.store import SQLiteStore


@workflow
async def ask(ctx: Context) -> Any:
    return await ctx.receive("word")


@workflow
async def broken(ctx: Context) -> None:
    raise ValueError("no")


async def acknowledge(engine: Engine) -> object:
    (letter,) = await engine.dead_letters.list()
    return await engine.dead_letters.acknowledge(letter.id, by="kim")


ACTIONS = {
    "cancel": lambda engine: engine.get("waiting").cancel(by="kim"),
    "terminate": lambda engine: engine.get("waiting").terminate(by="kim"),
    "pause": lambda engine: engine.get("waiting").pause(by="kim"),
    "retry": lambda engine: engine.get("failed").retry(by="kim"),
    "set attributes": lambda engine: engine.get("waiting").set_attributes({"seen": True}, by="kim"),
    "schedule.put": lambda engine: engine.schedules.put("s", ask, cron="@daily", by="kim"),
    "acknowledge": acknowledge,
}


async def prepare(path: str) -> None:
    async with Engine(path, workflows=[ask, broken], durability="process") as engine:
        await engine.start(ask, id="waiting", attributes={"seen": False})
        try:
            await engine.execute(broken, id="failed")
        except RunFailed:
            pass
        await engine.schedules.put("s", ask, every=timedelta(days=1))


async def act(path: str, action: str, kill_at: int) -> None:
    """Do it, counting the statements of the connection that writes."""
    store = SQLiteStore(path, durability="process")
    count = 0

    def statement(*_: object) -> bool:
        nonlocal count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    async with Engine(store=store, workflows=[ask, broken], run_workflows=False) as engine:
        store._connections.writer.exec_trace = statement
        await ACTIONS[action](engine)
        store._connections.writer.exec_trace = None


def fork(coroutine_function: Any, *args: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(coroutine_function(*args))
        except BaseException as error:
            print(json.dumps({"error": repr(error)}), flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def contents(path: str) -> tuple[str, list[list[object]]]:
    """Return everything but the audit trail as one text, and the audit trail."""
    db = apsw.Connection(path)
    try:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        rest = {table: list(db.execute(f'SELECT * FROM "{table}"')) for table in tables if table != "audit"}
        return repr(rest), [list(row) for row in db.execute("SELECT actor, action, target FROM audit ORDER BY n")]
    finally:
        db.close()


def main(work: Path) -> None:
    origin = str(work / "origin.db")
    assert fork(prepare, origin) == 0
    before, said = contents(origin)
    for action in ACTIONS:
        kill_at, killed = 0, True
        while killed:
            kill_at += 1
            path = str(work / "copy.db")
            for old in work.glob("copy.db*"):
                old.unlink()
            shutil.copy(origin, path)
            status = fork(act, path, action, kill_at)
            killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            after, says = contents(path)
            report = {
                "action": action,
                "statement": kill_at,
                "killed": killed,
                "finished": status == 0,
                "changed": after != before,
                "audited": says[len(said) :],
            }
            print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
