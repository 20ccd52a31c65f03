"""What is under way when a run is paused ends, and the run is let go: whatever comes first, however it is heard.

A run that is pausing is let go by its worker once nothing of it is under way. If that is missed it is forgotten: it is
in memory, where nothing goes on with it, and has an owner, so that no worker may claim it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import Gate
from tests.support.waiting import LONG, eventually

from holdfast import Context, NotReady, Status, activity, workflow
from holdfast.contract.turns import CommitTurn

HOUR = timedelta(hours=1)


class Paying:
    """A step in a transaction: its body waits, and then what it committed waits to be told to its worker."""

    def __init__(self, mode: str) -> None:
        self.begun, self.may_end, self.may_be_told = threading.Event(), threading.Event(), threading.Event()

        # On SQLite all other commits wait for the body, whose time is short; in memory even the event loop waits.
        @activity(transaction=True, timeout=HOUR if mode == "postgres" else timedelta(seconds=5))
        def pay() -> str:
            self.begun.set()
            self.may_end.wait(LONG)
            return "paid"

        @workflow
        async def caller(ctx: Context) -> str:
            return await ctx.step(pay)

        self.workflow = caller

    @asynccontextmanager
    async def under_way(self, make_engine: Any) -> AsyncIterator[tuple[Any, Any]]:
        """Begin the body in an engine, and let all threads go afterwards."""
        engine = await make_engine(self.workflow, max_resident=10)
        self.told = engine.faults.call(lambda: self.may_be_told.wait(LONG), at="transact", moment="after")
        try:
            run = await engine.start("caller")
            await eventually(self.begun.is_set)
            yield engine, run
        finally:
            self.may_end.set()
            self.may_be_told.set()

    async def commits(self) -> None:
        """Let the body end and commit, and its thread wait before it tells."""
        self.may_end.set()
        await self.told.happened()


async def looked(engine: Any) -> None:
    """Let the worker look into the inboxes of its runs, and take what is there; it looks into none if it has none."""
    looks = engine.faults.calls["inboxes"]
    engine._working().look()
    await eventually(lambda: engine.faults.calls["inboxes"] > looks or not engine.residents)
    await eventually(lambda: not engine._working()._background.busy("look"))
    await asyncio.sleep(0)


async def result_of(run: Any) -> Any:
    return await asyncio.wait_for(run.result(), LONG)


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_run_is_let_go_whose_worker_saw_the_end_of_its_body_before_it_was_told(make_engine, mode):
    """B25 The commit of a body in a transaction is in the inbox before the body's thread says so."""
    paying = Paying(mode)
    async with paying.under_way(make_engine) as (engine, run):
        # The worker looks each second, too: it must not see the end of the body without the pause.
        look = engine.faults.hold(at="inboxes")
        await paying.commits()
        assert await run.pause()
        engine._working().look()
        await look.happened()
        look.release()
        assert await run.resume()
        paying.may_be_told.set()
        assert await result_of(run) == "paid"


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "told"])
@pytest.mark.parametrize("when", ["before", "committed", "letting go", "let go", "released"])
@pytest.mark.parametrize("mode", ["postgres"])
async def test_a_resume_is_heard_whenever_it_comes(make_engine, mode, when, seen):
    """B25 Before the body commits, before its commit is told, and before and after the run is given up.

    On SQLite no other commits while the body is under way.
    """
    paying = Paying(mode)
    async with paying.under_way(make_engine) as (engine, run):
        assert await run.pause()
        if when == "before":
            assert await run.resume()
        await paying.commits()
        if when == "committed":
            assert await run.resume()
        if seen:
            await looked(engine)
        if when in ("letting go", "let go"):
            moment: Any = "before" if when == "letting go" else "after"
            released = engine.faults.hold(moment=moment, only=releases if moment == "before" else _any)
            paying.may_be_told.set()
            await released.happened()
            resuming = asyncio.ensure_future(run.resume())
            await asyncio.sleep(0)
            released.release()
            assert await resuming
        paying.may_be_told.set()
        if when == "released":
            await eventually(lambda: not engine.residents)
            assert await run.resume()
        assert await result_of(run) == "paid"


def releases(operations: Any) -> bool:
    """Whether a batch gives up a run."""
    return any(isinstance(each, CommitTurn) and each.state is not None and each.state.released for each in operations)


def _any(outcomes: Any) -> bool:
    return True


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_timed_pause_ends_by_itself_though_the_end_of_the_body_was_seen_early(make_engine, mode):
    """B25 No operator resumes it: the worker must have let it go."""
    paying = Paying(mode)
    async with paying.under_way(make_engine) as (engine, run):
        # The worker looks each second, too: it must not see the end of the body without the pause.
        look = engine.faults.hold(at="inboxes")
        await paying.commits()
        assert await run.pause(duration=HOUR)
        engine._working().look()
        await look.happened()
        look.release()
        await looked(engine)
        paying.may_be_told.set()
        await eventually(lambda: not engine.residents)
        assert await run.status() is Status.PAUSED
        await engine.advance(HOUR)
        assert await result_of(run) == "paid"


@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "timed"])
async def test_a_run_is_let_go_when_its_last_callback_was_told(make_engine, resumed):
    """B25 A callback that is told of a skip while its run is paused; nothing is recorded after it."""
    gate, ready = Gate(), False

    async def skipped(context: Any, reason: str) -> None:
        await gate("skipped")

    @activity(run_when=lambda context: ready or NotReady("not yet", HOUR), on_skipped=skipped)
    async def ship() -> str:
        return "shipped"

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(ship)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await gate.entered("skipped")
    assert await run.pause(duration=None if resumed else HOUR)
    if resumed:
        assert await run.resume()
    ready = True
    gate.open("skipped")
    if not resumed:
        await eventually(lambda: not engine.residents)
        await engine.advance(HOUR)
    assert await result_of(run) == "shipped"


@pytest.mark.parametrize("mode", ["file", "postgres"])
async def test_a_run_of_a_paused_workflow_is_let_go_whose_worker_saw_the_end_of_its_body_early(make_engine, mode):
    """Nothing in the inbox of the run says that its workflow is paused."""
    paying = Paying(mode)
    async with paying.under_way(make_engine) as (engine, run):
        await paying.commits()
        [resident] = engine._working().runner.residents.values()
        assert await engine.flow.pause(workflow="caller")
        # The look of a second may see the end of the body before the pause is noticed, or let the run go right after.
        await eventually(lambda: resident.pausing or not engine.residents)
        await looked(engine)
        paying.may_be_told.set()
        await eventually(lambda: not engine.residents)
        assert await engine.flow.resume(workflow="caller")
        assert await result_of(run) == "paid"
