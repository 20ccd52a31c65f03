"""Debounce: of many starts under one key the last one runs, a while after it, and the others say so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast import ChildFailed, Context, RunCancelled, Status, workflow
from holdfast.errors import BadInput

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


def indexing(ran: list[str], **options: Any) -> Any:
    async def index(page: str, text: str) -> str:
        ran.append(text)
        return text

    @workflow(name="indexing", key=lambda page, text: page, debounce=10 * SECOND, **options)
    async def flow(ctx: Context, page: str, text: str) -> str:
        return await ctx.step(index, page, text)

    return flow


async def test_the_last_start_of_a_window_runs_and_ends_the_one_before(make_engine):
    """Each start is a run with an id of its own; the window slides."""
    ran: list[str] = []
    flow = indexing(ran)
    engine = await make_engine(flow)
    first = await engine.start(flow, "p", "one", id="one")
    await engine.advance(8 * SECOND)
    second = await engine.start(flow, "p", "two", id="two")
    other = await engine.start(flow, "q", "other")
    await engine.advance(8 * SECOND)
    assert ran == []
    found = await first.describe()
    assert (found.status, found.error and found.error.type) == (Status.CANCELLED, "Superseded")
    assert found.error is not None
    assert "'two'" in found.error.message
    with pytest.raises(RunCancelled):
        await first.result()
    waits = await second.describe()
    assert (waits.status, waits.waiting_for) == (Status.PENDING, "place")
    assert await second.result() == "two"
    assert await other.result() == "other"
    third = await engine.start(flow, "p", "three")
    assert await third.result() == "three"
    assert sorted(ran) == ["other", "three", "two"]


async def test_the_window_closes_at_the_latest_when_it_is_said(make_engine):
    ran: list[str] = []
    flow = indexing(ran, debounce_at_most=25 * SECOND)
    engine = await make_engine(flow)
    for n in range(8):
        await engine.start(flow, "p", str(n))
        await engine.advance(5 * SECOND)
    assert ran == ["5"] or ran == ["4"]
    await engine.advance(MINUTE)
    assert ran[1:] == ["7"]


async def test_a_repeated_start_returns_its_own_run_and_does_not_count(make_engine):
    """Neither does it end the run that waits, nor does the window slide."""
    ran: list[str] = []
    flow = indexing(ran)
    engine = await make_engine(flow)
    one = await engine.start(flow, "p", "one", id="one")
    await engine.advance(8 * SECOND)
    assert (await engine.start(flow, "p", "one", id="one")).id == "one"
    await engine.advance(3 * SECOND)
    assert ran == ["one"]
    two = await engine.start(flow, "p", "two", id="two")
    assert (await engine.start(flow, "p", "one", id="one")).id == "one"
    assert [await one.result(), await two.result()] == ["one", "two"]


async def test_a_parent_is_told_that_its_child_was_superseded(make_engine):
    ran: list[str] = []
    flow = indexing(ran)

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            return await ctx.child(flow, "p", "child")
        except ChildFailed as error:
            return f"{error.status}: {error.__cause__}"

    engine = await make_engine(flow, parent)
    run = await engine.start(parent)
    await engine.settle()
    newer = await engine.start(flow, "p", "newer", id="newer")
    said = await run.result()
    assert said.startswith("cancelled: ")
    assert "newer" in said
    assert await newer.result() == "newer"


@pytest.mark.parametrize("mode", ["memory"])
async def test_what_does_not_go_with_a_window_is_refused(make_engine):
    flow = indexing([])
    engine = await make_engine(flow)
    with pytest.raises(BadInput, match="start it without connection"):
        await engine.start(flow, "p", "one", connection=object())
    with pytest.raises(BadInput, match="it says itself when a run begins"):
        await engine.start(flow, "p", "one", delay=SECOND)
    assert await engine.runs() == []
