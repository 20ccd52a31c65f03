"""Steps that die with their process: counted, run again below the limit, and only the culprit is failed.

Real worker processes on a file, killed with SIGKILL from within or from outside.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.paths import ROOT, SCRIPTS
from tests.support.scripts.steps_worker import WORKFLOWS, crasher, innocent
from tests.support.waiting import eventually

from holdfast import Context, Engine, Retry, RunFailed, activity, step_context, workflow
from holdfast.errors import StepCrashed
from holdfast.replay import entry as entries
from holdfast.testing import TestEngine


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine(str(tmp_path / "db"), workflows=WORKFLOWS, run_workflows=False) as engine:
        yield engine


@asynccontextmanager
async def worker(tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPTS / "steps_worker.py"),
        str(tmp_path / "db"),
        stdin=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def work_until(done: Awaitable[Any], tmp_path: Path, limit: int = 6) -> tuple[Any, int]:
    """Keep one worker alive until something is done; return that and how many workers died."""
    waiting = asyncio.ensure_future(done)
    for deaths in range(limit):
        async with worker(tmp_path) as process:
            died = asyncio.ensure_future(process.wait())
            await asyncio.wait([waiting, died], return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                died.cancel()
                return waiting.result(), deaths
            assert process.returncode == -signal.SIGKILL
    waiting.cancel()
    raise AssertionError(f"not done after {limit} workers died")


def logged(log: Path, run_id: str) -> list[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.split()[0] == run_id]


async def outcome(run: Any) -> Any:
    try:
        return await run.result()
    except RunFailed as failed:
        return failed.__cause__


async def lost(run: Any) -> list[tuple[int, str]]:
    facts = await run.history()
    return [(fact.entry.attempt, fact.entry.why) for fact in facts if isinstance(fact.entry, entries.AttemptLost)]


@pytest.mark.parametrize("importable", [True, False], ids=["importable", "local"])
async def test_a_step_that_kills_its_process_is_failed_at_the_crash_limit(client, tmp_path, importable):
    """B1 G4 S0-37 S0-42 Even with max_attempts=1 it runs three times, each attempt counted before it began.

    The third attempt of a function that can be imported runs in a child process, so the worker survives it.
    """
    log = tmp_path / "log"
    run = await client.start(crasher, str(log), importable=importable, id="c")
    error, deaths = await work_until(outcome(run), tmp_path)
    assert isinstance(error, StepCrashed)
    assert "crashed during execution: 3 attempts died with their process" in str(error)
    assert deaths == (2 if importable else 3)
    assert logged(log, "c") == [1, 2, 3]
    assert await lost(run) == [(1, "crash"), (2, "crash"), (3, "crash")]
    begun = [fact.entry.attempt for fact in await run.history() if isinstance(fact.entry, entries.AttemptBegun)]
    assert begun == [2, 3]
    [letter] = await client.dead_letters.list()
    assert (letter.attempts, letter.failures) == (3, 0), "B34: none of them threw"
    [step] = await run.steps()
    assert (step.attempts, step.failures) == (3, 0)


async def test_workers_killed_from_outside_do_not_fail_an_innocent_step(client, tmp_path):
    """B1 G4 Five deploys with SIGKILL in the middle of a long step: it is run again each time and completes."""
    log = tmp_path / "log"
    run = await client.start(innocent, str(log), 0.4, id="i")
    for kill in range(5):
        async with worker(tmp_path) as process:
            await eventually(lambda kill=kill: len(logged(log, "i")) > kill)
            process.send_signal(signal.SIGKILL)
    result, _ = await work_until(outcome(run), tmp_path)
    assert result == 6
    assert logged(log, "i") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("importable", [True, False], ids=["importable", "local"])
async def test_of_many_steps_that_die_together_only_the_culprit_is_failed(client, tmp_path, importable):
    """B1 Innocents lost twice beside the culprit become suspects too, run one at a time, and complete."""
    log = tmp_path / "log"
    culprit = await client.start(crasher, str(log), 4, importable, id="c")
    runs = [await client.start(innocent, str(log), 0.15, importable, id=f"i{number}") for number in range(4)]
    ends, deaths = await work_until(asyncio.gather(*(outcome(run) for run in [*runs, culprit])), tmp_path)
    assert deaths == (2 if importable else 3)
    assert isinstance(ends[-1], StepCrashed)
    assert [type(end).__name__ for end in ends[:-1]] == ["int"] * 4
    assert logged(log, "c") == [1, 2, 3]
    for run in runs:
        attempts = logged(log, run.id)
        assert attempts == sorted(set(attempts))
        assert [why for _, why in await lost(run)].count("crash") == 2


# Attempts that had run for long, in an engine whose process is as if killed.


def slow_flow(done: list[bool], bodies: list[int], limit: int = 3) -> Any:
    @activity(name="slow", retry=Retry(max_attempts=1, crash_limit=limit))
    async def slow() -> int:
        bodies.append(step_context().attempt)
        while not done:  # noqa: ASYNC110  # of an event loop that is gone
            await asyncio.sleep(0.001)
        return step_context().attempt

    @workflow
    async def one(ctx: Context) -> int:
        return await ctx.step(slow)

    return one


async def crash_after(engine: TestEngine, bodies: list[int], minutes: float) -> None:
    begun = len(bodies)
    await eventually(lambda: len(bodies) > begun or engine.bodies)
    engine.jumping.advance(timedelta(minutes=minutes))
    await engine.crash()


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_long_step_that_only_runs_here_survives_many_deaths_of_its_worker(make_engine, mode):
    """B1 G4 A closure cannot run in a child process; after a minute the death of its process is not held against it."""
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies)
    engine = await make_engine(one)
    run = await engine.start(one, id="slow")
    for minutes in (1.5, 5, 60, 2, 2):
        await crash_after(engine, bodies, minutes)
        engine = await make_engine(one, clock=engine.jumping)
    done.append(True)
    assert await engine.get("slow").result() == 6
    assert await lost(engine.get(run.id)) == [(attempt, "outlived") for attempt in range(1, 6)]


@pytest.mark.parametrize("mode", ["file"])
async def test_a_step_that_dies_within_a_minute_is_failed_at_the_crash_limit(make_engine):
    """B1 G4 Where it is one of several deaths, those of long attempts do not count."""
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies)
    engine = await make_engine(one)
    run = await engine.start(one)
    for minutes in (5, 0, 5, 0.5, 0.9):
        await crash_after(engine, bodies, minutes)
        engine = await make_engine(one, clock=engine.jumping)
    error = await outcome(engine.get(run.id))
    assert isinstance(error, StepCrashed)
    assert [why for _, why in await lost(engine.get(run.id))] == ["outlived", "crash", "outlived", "crash", "crash"]


@pytest.mark.parametrize("mode", ["file"])
async def test_a_step_that_kills_slowly_is_failed_in_the_end(make_engine):
    """B1 G4 At ten times its crash limit."""
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies)
    engine = await make_engine(one)
    run = await engine.start(one)
    for _ in range(30):
        await crash_after(engine, bodies, 10)
        engine = await make_engine(one, clock=engine.jumping)
    error = await outcome(engine.get(run.id))
    assert isinstance(error, StepCrashed)
    assert "30 attempts died with their process" in str(error)


@pytest.mark.parametrize("mode", ["file"])
@pytest.mark.parametrize("limit", [1, 2])
async def test_a_step_that_may_not_run_again_is_failed_whatever_killed_it(make_engine, limit):
    """B1 G3 A limit of one or two is kept for long attempts too."""
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies, limit)
    engine = await make_engine(one)
    run = await engine.start(one)
    for _ in range(limit):
        await crash_after(engine, bodies, 10)
        engine = await make_engine(one, clock=engine.jumping)
    done.append(True)
    assert isinstance(await outcome(engine.get(run.id)), StepCrashed)
    assert len(bodies) == limit


@pytest.mark.parametrize("mode", ["file"])
async def test_a_step_is_not_blamed_while_workers_die_that_did_not_run_it(make_engine):
    """B1 B24 G4 Three kills hit it among others, as in a storm of kills."""
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies)
    engine = await make_engine(one)
    for _ in range(4):
        await engine.crash()
        engine = await make_engine(one, clock=engine.jumping)
    run = await engine.start(one)
    for _ in range(3):
        await crash_after(engine, bodies, 0)
        engine = await make_engine(one, clock=engine.jumping)
    done.append(True)
    assert await engine.get(run.id).result() == 4
    assert [why for _, why in await lost(engine.get(run.id))] == ["outage"] * 3


@pytest.mark.parametrize("mode", ["file"])
async def test_a_takeover_is_logged_with_the_runs_concerned(make_engine, caplog):
    """B24 At INFO, with the worker that died."""
    caplog.set_level(logging.INFO)
    done: list[bool] = []
    bodies: list[int] = []
    one = slow_flow(done, bodies)
    engine = await make_engine(one)
    for number in range(25):
        await engine.start(one, id=f"slow-{number:02}")
    worker = engine.worker_id
    await crash_after(engine, bodies, 0)
    done.append(True)
    await make_engine(one, clock=engine.jumping)
    [record] = [record for record in caplog.records if f"worker {worker} died" in record.getMessage()]
    assert record.levelno == logging.INFO
    assert "slow-00, slow-01, " in record.getMessage()
    assert record.getMessage().endswith("slow-19 and 5 more")
