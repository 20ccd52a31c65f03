"""What a check before a deploy costs, counted: statements, replays, and bytes sent between processes."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.paths import ROOT

from holdfast.definitions import Registry
from holdfast.histories.judging import Judge
from holdfast.histories.recorded import RecordedRun
from holdfast.histories.sources import open_runs
from holdfast.histories.worker import framed
from holdfast.stores.sqlite.store import SQLiteStore

RUNS = 1_200


@pytest.fixture
def benchmark_code(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("check")


async def _read(path: Path) -> tuple[list[list[RecordedRun]], int]:
    """Return the open runs of a database as they are read, and how many statements that takes."""
    store = SQLiteStore(path)
    await store.open(look_only=True)
    statements: list[object] = []
    store._connections.reader.trace_v2(apsw.SQLITE_TRACE_PROFILE, statements.append)
    try:
        return [runs async for runs in open_runs(store)], len(statements)
    finally:
        store._connections.reader.trace_v2(0, None)
        await store.close()


def test_a_check_reads_in_pages_and_sends_each_run_once(benchmark_code, tmp_path):
    """FACES 10, line 6, counted instead of timed: open runs of ten steps."""
    path = tmp_path / "open.db"
    benchmark_code.fill(path, RUNS)
    pages, statements = asyncio.run(_read(path))
    assert sorted(run.id for runs in pages for run in runs) == sorted(f"run-{number}" for number in range(RUNS))
    assert len(pages) <= 5, [len(runs) for runs in pages]
    assert statements <= 20 * len(pages), statements  # and none for each run
    sent = sum(len(framed(runs)) for runs in pages)
    assert sent <= 2_500 * RUNS, sent // RUNS
    judge = Judge(Registry(benchmark_code.workflows))
    assert [judge.judge(run) for run in pages[0]] == [None] * len(pages[0])
