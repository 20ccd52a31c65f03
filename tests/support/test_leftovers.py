"""The look at what tests leave behind, tried on things left behind."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path

import pytest
from tests.support import leftovers
from tests.support.paths import ROOT
from tests.support.sqlite_cases import opened


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE", 0.05)


def test_nothing_is_nothing() -> None:
    assert leftovers.Before().leftovers() == []


def test_a_thread_is_seen_while_it_runs() -> None:
    before, go = leftovers.Before(), threading.Event()
    thread = threading.Thread(target=go.wait, name="forgotten")
    thread.start()
    assert before.leftovers() == ["thread 'forgotten'"]
    go.set()
    thread.join()
    assert before.leftovers() == []


def test_a_thread_that_ends_soon_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "PATIENCE", 60.0)
    before = leftovers.Before()
    threading.Timer(0.05, lambda: None).start()
    assert before.leftovers() == []


def test_a_process_is_seen_until_it_was_waited_for() -> None:
    before = leftovers.Before()
    with subprocess.Popen(["sleep", "600"]) as process:
        assert before.leftovers() == [f"process {process.pid} (sleep 600)"]
        process.kill()
    assert before.leftovers() == []


def test_a_task_that_is_cancelled_with_its_loop_is_seen() -> None:
    async def forget() -> None:
        forgotten.append(asyncio.create_task(asyncio.sleep(600), name="forgotten"))

    forgotten: list[object] = []
    before = leftovers.Before()
    asyncio.run(forget())
    assert before.leftovers() == ["task 'forgotten' (sleep)"]
    assert leftovers.Before().leftovers() == []


async def test_a_store_is_seen_until_it_is_closed(path: Path) -> None:
    before = leftovers.Before()
    store = await opened(path)
    said = before.leftovers()
    await store.close()
    assert f"store {path}" in said
    assert "thread 'holdfast-writer'" in said
    assert before.leftovers() == []


def test_a_file_in_the_repository_is_seen() -> None:
    before, file = leftovers.Before(), ROOT / "holdfast-left-behind.db"
    file.touch()
    try:
        assert before.leftovers() == ["file holdfast-left-behind.db in the repository"]
    finally:
        file.unlink()
