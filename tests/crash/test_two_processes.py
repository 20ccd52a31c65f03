"""Several processes on one file: one starts and sends, another works, and each notices what the other did."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.paths import SCRIPTS
from tests.support.scripts.shared_workflows import echo
from tests.support.waiting import LONG

from holdfast import Engine, Status


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shared.db'}"


def worker(database: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPTS / "plain_worker.py"), database]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


async def test_a_client_and_a_worker_in_two_processes_wake_each_other(database: str):
    """S0-60 S3-11 S3-12 B12 Runs started and messages sent by a client reach the worker, and its results the client."""
    process = worker(database)
    try:
        async with Engine(database, workflows=[echo], run_workflows=False) as client:
            run = await client.start(echo)
            for word in ("a", "b", "c"):
                await run.send("word", word)
                await asyncio.sleep(0.05)
            assert await run.result(timedelta(seconds=LONG)) == [str(process.pid), "a", "b", "c"]
    finally:
        process.communicate("")
    assert process.returncode == 0


async def test_a_run_of_a_killed_process_is_taken_over_at_once_by_one_that_is_running(database: str):
    """B24 S2-28 The lock of the dead is free, so nobody waits for its lease of thirty seconds."""
    process = worker(database)
    async with Engine(database, workflows=[echo], run_workflows=False) as client:
        run = await client.start(echo)
        await run.send("word", "a")
        while "message word" not in (await run.describe()).waiting_for:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await run.describe()).owner is not None
        async with Engine(database, workflows=[echo]):
            process.kill()
            process.communicate()
            await run.send("word", "b")
            await run.send("word", "c")
            assert await run.result(timedelta(seconds=LONG)) == [str(process.pid), "a", "b", "c"]
    async with Engine(database, run_workflows=False) as client:
        assert await client.get(run.id).status() is Status.COMPLETED
