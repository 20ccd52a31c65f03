"""When a worker looks at the store by itself, though nothing told it that anything changed there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

from holdfast import Engine
from holdfast.engine.worker import worker as workers
from holdfast.engine.worker.committer import Committer


async def test_a_worker_that_has_much_to_commit_does_not_read_all_of_it_each_second(path: Path, monkeypatch):
    """G7 But it looks every ten seconds all the same: a row from a clock that was ahead is found by nothing else."""
    monkeypatch.setattr(workers, "_TAKE_OVER_EVERY", 0.0)
    monkeypatch.setattr(workers, "_LOOKS_EVERY", 1 << 62)
    async with Engine(str(path)) as engine:
        worker, asked = engine._working(), []
        due = worker._store.due

        async def counted(*arguments: Any) -> list[int]:
            asked.append(arguments)
            return await due(*arguments)

        monkeypatch.setattr(worker._store, "due", counted)
        await eventually(lambda: asyncio.sleep(0, bool(asked)))

        monkeypatch.setattr(Committer, "waiting", 10_000)
        await eventually(lambda: asyncio.sleep(0, not worker._background.busy("look")))
        asked.clear()
        worker.tick()
        assert not worker._background.busy("look"), "ten thousand commits are under way"
        assert not asked

        monkeypatch.setattr(workers, "_LOOKS_EVERY", 1)
        worker.tick()
        await eventually(lambda: asyncio.sleep(0, bool(asked)))
        monkeypatch.undo()
