"""The time limit of tests, tried on tests that hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

HANGING = """
import asyncio, gc, time
import pytest

# Tasks that are collected while pytest parses the source of a failure parse theirs, which CPython 3.11 cannot nest.
gc.disable()
pytestmark = pytest.mark.timeout(1, func_only=True)


async def in_a_task():
    async def spin():
        while True:
            await asyncio.sleep(0)

    others = [asyncio.ensure_future(spin()) for _ in range(20)]
    await asyncio.wait(others)


async def in_a_callback():
    loop = asyncio.get_running_loop()

    def again():
        time.sleep(0.01)
        loop.call_soon(again)

    again()
    await loop.create_future()


def test_in_a_task():
    asyncio.run(in_a_task())


def test_in_a_callback():
    asyncio.run(in_a_callback())


def test_in_plain_code():
    while True:
        pass
"""


def test_a_test_that_hangs_fails_whatever_the_event_loop_does(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_timeout_set_timer\n")
    (tmp_path / "test_hanging.py").write_text(HANGING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, str(tmp_path)]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert "3 failed" in done.stdout
    assert done.stdout.count("TookTooLong: took longer than 1 seconds") >= 3, done.stdout
