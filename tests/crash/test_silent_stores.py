"""A PostgreSQL server that is frozen, an SQLite file that another program keeps locked: every call of a caller ends."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres import servers
from tests.support.paths import SCRIPTS
from tests.support.waiting import LONG

from holdfast import Context, Engine, RunHandle, Status, workflow
from holdfast.errors import OutcomeUnknown, StoreBusy
from holdfast.ops.audit import AuditTrail
from holdfast.ops.dead_letters import DeadLetters
from holdfast.schedules.service import Schedules

PATIENCE = timedelta(seconds=5)
THEN = datetime(2026, 1, 1, tzinfo=UTC)

NOT_LIMITED = {
    "Engine": {"open", "run", "stop", "backup", "health"},
    "RunHandle": {"result", "watch"},
    "Schedules": {"tick"},
}
"""What waits for something other than one answer of the store (a run, the end of the engine), or has its own limit."""


@workflow(check=False)
async def nothing(ctx: Context) -> None:
    """End at once."""


@workflow(check=False)
async def hear(ctx: Context) -> str:
    """Wait for a word."""
    return await ctx.receive("word", str)


@contextmanager
def frozen_server() -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Give the address of a server, and what freezes it and lets it go on: all of its processes."""
    version = next(iter(servers.find_servers()), "")
    if not version:
        pytest.skip("there is no PostgreSQL on this machine")
    with servers.own_server(version) as server:
        stopped: list[int] = []

        def freeze() -> None:
            with psycopg.connect(server.url()) as connection:
                sessions = connection.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
                main = int((server.folder / "data" / "postmaster.pid").read_text().split()[0])
                stopped[:] = [main, *(pid for (pid,) in sessions.fetchall())]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            while stopped:
                os.kill(stopped.pop(), signal.SIGCONT)

        try:
            yield f"{server.url()}&schema=silent", freeze, thaw
        finally:
            thaw()


@contextmanager
def locked_file(folder: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Give an SQLite file, and what lets another process take its write lock and give it back."""
    path = folder / "silent.db"
    holders: list[subprocess.Popen[str]] = []

    def lock() -> None:
        command = [sys.executable, str(SCRIPTS / "lock_holder.py"), str(path)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        holders.append(holder)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"

    def unlock() -> None:
        while holders:
            holders.pop().communicate("over\n", timeout=LONG)

    try:
        yield f"sqlite:///{path}", lock, unlock
    finally:
        unlock()


@pytest.fixture(params=["frozen server", "locked file"])
def silent(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[], None], Any]]:
    with frozen_server() if request.param == "frozen server" else locked_file(tmp_path) as store:
        yield store


async def test_a_start_is_made_or_withdrawn_or_not_known_and_never_anything_else(silent):
    """G2 G14

    One hundred starts and messages while the store is silent: each is told within its patience. What was told that it
    did not happen is not there afterwards, what was acknowledged is.
    """
    address, hush, speak = silent
    async with Engine(address, workflows=[nothing, hear], call_patience=PATIENCE, retention=None) as engine:
        waiting = await engine.start(hear, id="hearing")
        await asyncio.to_thread(hush)
        calls: dict[str, Coroutine[Any, Any, Any]] = {f"s{n}": engine.start(nothing, id=f"s{n}") for n in range(100)}
        told = await asyncio.wait_for(
            asyncio.gather(*calls.values(), waiting.send("word", "lost?"), return_exceptions=True), LONG
        )
        await asyncio.to_thread(speak)
        sent = told.pop()
        outcomes = dict(zip(calls, told, strict=True))
        assert all(isinstance(each, StoreBusy | OutcomeUnknown) for each in outcomes.values())
        assert any(isinstance(each, StoreBusy) for each in outcomes.values()), "none was withdrawn"
        for number in range(3):  # all that was on its way has arrived once these have
            await (await started(engine, f"after {number}")).result(timedelta(seconds=LONG))
        there = {run.id for run in await engine.runs(workflow="nothing", limit=1000)}
        ghosts = [run_id for run_id, each in outcomes.items() if isinstance(each, StoreBusy) and run_id in there]
        assert ghosts == []
        assert (await waiting.status() is Status.COMPLETED) <= isinstance(sent, OutcomeUnknown)


async def started(engine: Engine, name: str) -> RunHandle[None]:
    """Start a run, as often as it takes: a store that was silent needs a moment to come back."""
    async with asyncio.timeout(LONG):
        while True:
            try:
                return await engine.start(nothing, id=name.replace(" ", "-"))
            except (StoreBusy, OutcomeUnknown):
                continue


def calls_of(engine: Engine) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    """Return a call of every public method that asks the store for something."""
    run: RunHandle[str] = engine.get("there", hear)
    letters, audit, schedules = engine.dead_letters, engine.audit, engine.schedules
    old = timedelta(days=1)

    async def export() -> None:
        async for _ in audit.export():
            pass

    return {
        "Engine.start": lambda: engine.start(nothing, id="x"),
        "Engine.start_for": lambda: engine.start_for("kim", "nothing", {}, {}),
        "Engine.start_many": lambda: engine.start_many(nothing, [(), ()]),
        "Engine.execute": lambda: engine.execute(nothing),
        "Engine.runs": lambda: engine.runs(),
        "Engine.stats": lambda: engine.stats(),
        "Engine.find": lambda: engine.find("x"),
        "Engine.pending_steps": lambda: engine.pending_steps(),
        "Engine.queued_events": lambda: engine.queued_events("news"),
        "Engine.publish": lambda: engine.publish("news"),
        "Engine.bulk": lambda: engine.bulk("cancel", workflow="hear"),
        "Engine.sweep": lambda: engine.sweep(),
        "Engine.recover": lambda: engine.recover(),
        "RunHandle.status": run.status,
        "RunHandle.describe": run.describe,
        "RunHandle.send": lambda: run.send("other"),
        "RunHandle.ask": lambda: run.ask("question"),
        "RunHandle.query": lambda: run.query("state"),
        "RunHandle.cancel": run.cancel,
        "RunHandle.terminate": run.terminate,
        "RunHandle.pause": run.pause,
        "RunHandle.resume": run.resume,
        "RunHandle.retry": run.retry,
        "RunHandle.rerun": run.rerun,
        "RunHandle.recover": run.recover,
        "RunHandle.evict": run.evict,
        "RunHandle.nudge": run.nudge,
        "RunHandle.set_attributes": lambda: run.set_attributes({"a": 1}),
        "RunHandle.history": run.history,
        "RunHandle.steps": run.steps,
        "RunHandle.state": run.state,
        "RunHandle.messages": run.messages,
        "RunHandle.progress": run.progress,
        "RunHandle.timeline": run.timeline,
        "DeadLetters.list": letters.list,
        "DeadLetters.get": lambda: letters.get("x"),
        "DeadLetters.find": lambda: letters.find("x"),
        "DeadLetters.counts": letters.counts,
        "DeadLetters.acknowledge": lambda: letters.acknowledge("x"),
        "DeadLetters.remove": lambda: letters.remove("x"),
        "DeadLetters.replay": lambda: letters.replay("x"),
        "DeadLetters.replay_all": lambda: letters.replay_all(),
        "DeadLetters.purge": lambda: letters.purge(older_than=old),
        "AuditTrail.records": audit.records,
        "AuditTrail.evidence": lambda: audit.evidence("x"),
        "AuditTrail.shown": lambda: audit.shown("x", "reveal", by="kim"),
        "AuditTrail.purge_evidence": lambda: audit.purge_evidence("x", by="kim", reason="asked for"),
        "AuditTrail.verify": audit.verify,
        "AuditTrail.verify_evidence": lambda: audit.verify_evidence("x"),
        "AuditTrail.export": export,
        "Schedules.put": lambda: schedules.put("daily", nothing, cron="@daily"),
        "Schedules.put_for": lambda: schedules.put_for("kim", "daily", "nothing", {}, {"cron": "@daily"}),
        "Schedules.get": lambda: schedules.get("x"),
        "Schedules.list": schedules.list,
        "Schedules.preview": lambda: schedules.preview("x"),
        "Schedules.pause": lambda: schedules.pause("x"),
        "Schedules.resume": lambda: schedules.resume("x"),
        "Schedules.delete": lambda: schedules.delete("x"),
        "Schedules.trigger": lambda: schedules.trigger("x"),
        "Schedules.backfill": lambda: schedules.backfill("x", THEN, THEN + old),
    }


def waits(member: object) -> bool:
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


async def test_every_call_ends_while_the_server_is_frozen():
    """G14 All of them at once; a method that is added to the engine or its tools has to be added here."""
    with frozen_server() as (address, freeze, thaw):
        async with Engine(address, workflows=[nothing, hear], call_patience=PATIENCE) as engine:
            await engine.start(hear, id="there")
            calls = calls_of(engine)
            public = {
                f"{cls.__name__}.{name}"
                for cls in (Engine, RunHandle, DeadLetters, AuditTrail, Schedules)
                for name, member in inspect.getmembers(cls)
                if waits(member) and not name.startswith("_") and name not in NOT_LIMITED.get(cls.__name__, ())
            }
            assert calls.keys() == public
            await asyncio.to_thread(freeze)
            made = [call() for call in calls.values()]
            told = await asyncio.wait_for(asyncio.gather(*made, return_exceptions=True), LONG)
            await asyncio.to_thread(thaw)
            outcomes = zip(calls, told, strict=True)
            odd = {name: each for name, each in outcomes if not isinstance(each, StoreBusy | OutcomeUnknown)}
            assert odd == {}
            await (await started(engine, "after")).result(timedelta(seconds=LONG))
