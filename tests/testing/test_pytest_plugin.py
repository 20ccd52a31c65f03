"""The fixture that pytest gives where holdfast is installed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from holdfast import Context, workflow
from pytest_holdfast import OpenEngine

PROGRAM = """
import pytest
from datetime import timedelta
from holdfast import Context, workflow


async def charge(cents: int) -> str:
    raise RuntimeError("this would call the bank")


@workflow
async def yearly(ctx: Context, cents: int) -> list[str]:
    receipts = []
    for _ in range(12):
        receipts.append(await ctx.step(charge, cents))
        await ctx.sleep(timedelta(days=30))
    return receipts


@pytest.mark.asyncio
async def test_a_year_passes(holdfast_engine):
    engine = await holdfast_engine(yearly, substitutes={charge: lambda cents: f"paid {cents}"})
    assert await engine.execute(yearly, 500) == ["paid 500"] * 12
"""


@workflow
async def slow(ctx: Context) -> str:
    await ctx.sleep(timedelta(days=400))
    return "done"


async def test_an_engine_whose_clock_jumps_is_opened_and_stopped_after_the_test(holdfast_engine: OpenEngine) -> None:
    engine = await holdfast_engine(slow)
    other = await holdfast_engine(slow)
    assert await engine.execute(slow) == await other.execute(slow) == "done"
    # That both are stopped is checked after every test: neither leaves a store or a thread.


def test_the_fixture_is_there_in_a_project_that_only_has_holdfast_installed(tmp_path: Path) -> None:
    """In the strict mode of pytest-asyncio, which is its default."""
    (tmp_path / "test_yearly.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


def test_tests_that_do_not_ask_for_it_import_nothing_of_holdfast() -> None:
    looked = "import sys, pytest_holdfast; print([name for name in sys.modules if name.split('.')[0] == 'holdfast'])"
    ran = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
