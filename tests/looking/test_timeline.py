"""The timeline of a run, from the facts of its history."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Retry, activity, workflow
from holdfast.errors import ReceiveTimeout
from holdfast.looking import LocalDesk
from holdfast.looking.about.timeline import CallRow, Timeline
from holdfast.testing import TestEngine


@activity(retry=Retry(max_attempts=3, initial_interval=timedelta(seconds=10), jitter=0))
async def book(item: str) -> str:
    if item == "never":
        raise ConnectionError("503")
    return item


@workflow
async def small(ctx: Context) -> str:
    return await ctx.step(book, "child")


@workflow
async def order(ctx: Context, item: str) -> Any:
    await ctx.sleep(timedelta(hours=2))
    approved = None
    with suppress(ReceiveTimeout):
        approved = await ctx.receive("approved", timeout=timedelta(minutes=5))
    await ctx.child(small, id="child")
    await ctx.step(book, item)
    return approved


async def rows_of(engine: TestEngine, run_id: str, page: int = 1_000) -> dict[str, CallRow]:
    """Return the rows of a run, read in pages."""
    desk, timeline = LocalDesk(engine.store), Timeline()
    while True:
        facts = await desk.history(run_id, after=timeline.seq, limit=page)
        timeline.take(facts.items)
        if facts.next is None:
            return {row.path: row for row in timeline.rows()}


async def test_bars_are_what_the_steps_say():
    """FACES 10.11: bars recomputed from history agree with `steps()`."""
    async with TestEngine(workflows=[order, small]) as engine:
        with pytest.raises(Exception, match="503"):
            await engine.execute(order, "never", id="run")
        rows = await rows_of(engine, "run")
        steps = (await LocalDesk(engine.store).steps("run")).items
        assert [(step.path, step.status, step.attempts) for step in steps] == [
            (row.path, row.status, row.attempts) for row in rows.values() if row.kind == "step"
        ]
        book_row = rows["book"]
        assert (book_row.begun, book_row.ended) == (steps[-1].started_at, steps[-1].finished_at) or steps[
            -1
        ].attempts > 1
        assert [bar.state for bar in book_row.bars] == ["failed", "backoff", "failed", "backoff", "failed"]
        assert all(one.end == other.begin for one, other in zip(book_row.bars, book_row.bars[1:], strict=False))
        assert book_row.error == "ConnectionError: 503"
        kinds = {row.kind: row for row in rows.values()}
        assert kinds["sleep"].ended - kinds["sleep"].begun == timedelta(hours=2)
        assert (kinds["message"].note, kinds["message"].name) == ("gave up", "approved")
        assert (kinds["child"].name, kinds["child"].status) == ("child", "completed")


async def test_facts_come_in_parts_or_at_once():
    async with TestEngine(workflows=[order, small]) as engine:
        run = await engine.start(order, "lamp", id="run")
        await engine.advance(timedelta(hours=2, minutes=1))
        waiting = next(row for row in (await rows_of(engine, "run")).values() if row.kind == "message")
        assert (waiting.status, waiting.bars[-1].end) == ("waiting", None)
        await run.send("approved", 7)
        assert await run.result() == 7
        assert await rows_of(engine, "run", 2) == await rows_of(engine, "run")
