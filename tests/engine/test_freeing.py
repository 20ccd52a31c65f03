"""When what completed runs have in memory is freed: after callers have results, but at once where code may run."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

from holdfast import Context, Engine, workflow


@workflow
async def quick(ctx: Context, n: int) -> int:
    return n


@workflow
async def with_a_task_left(ctx: Context) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    left = asyncio.create_task(waits())
    await asyncio.sleep(0)
    left.cancel()


def noting(engine: Engine, monkeypatch: Any) -> list[Any]:
    """Return where the executions of runs that are dropped are noted from now on, weakly."""
    departures, dropped = engine._working().runner.departures, []
    let_go = departures.let_go

    def noted(resident: Any, *, later: bool) -> None:
        dropped.append(weakref.ref(resident.execution.loop))
        let_go(resident, later=later)

    monkeypatch.setattr(departures, "let_go", noted)
    return dropped


async def test_completed_runs_are_freed_soon_after_their_callers_have_the_results(path: Path, monkeypatch):
    async with Engine(str(path), workflows=[quick]) as engine:
        dropped = noting(engine, monkeypatch)
        await asyncio.gather(*(engine.execute(quick, n) for n in range(1_000)))
        assert len(dropped) == 1_000
        assert any(ref() is not None for ref in dropped), "not while results are handed out"
        await eventually(lambda: asyncio.sleep(0, all(ref() is None for ref in dropped)))


async def test_runs_that_completed_just_before_the_engine_stops_are_freed_with_it(path: Path, monkeypatch):
    async with Engine(str(path), workflows=[quick]) as engine:
        dropped = noting(engine, monkeypatch)
        await asyncio.gather(*(engine.execute(quick, n) for n in range(1_000)))
        left = len(engine._working().runner.departures._completed)
    assert left
    assert len(dropped) == 1_000
    assert all(ref() is None for ref in dropped)


async def test_a_run_that_has_more_than_its_own_task_is_freed_at_once(path: Path, monkeypatch):
    async with Engine(str(path), workflows=[with_a_task_left]) as engine:
        dropped = noting(engine, monkeypatch)
        await asyncio.gather(*(engine.execute(with_a_task_left) for _ in range(1_000)))
        assert len(dropped) == 1_000
        assert not engine._working().runner.departures._completed
