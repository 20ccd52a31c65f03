"""What callers are told of a run that is on its way to another runtime, or has arrived there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import eventually

from holdfast import Context, NoSuchRun, workflow
from holdfast.contract.moves import FinishMove, Leaving, MarkMoving
from holdfast.contract.operations import Done
from holdfast.errors import HoldfastError, Moved
from holdfast.testing import TestEngine

ADDRESS = "temporal://host:7233/shop"
TOKEN = "a token"


@workflow
async def approval(ctx: Context) -> str:
    ctx.on_query("state", lambda: "waits")
    return await ctx.receive("approved", str)


@workflow
async def sender(ctx: Context, target: str) -> str:
    try:
        await ctx.send(target, "approved", "yes")
    except HoldfastError as error:
        return f"{type(error).__name__}: {error}"
    return "sent"


async def mark(engine: TestEngine, run_id: str) -> None:
    """Let a run be on its way."""
    await engine.get(run_id).pause()
    await engine.settle()
    row = await engine.store.get(run_id)
    assert row is not None
    leaving = [Leaving(id=run_id, epoch=row.epoch)]
    step = MarkMoving(target=run_id, token=TOKEN, at=engine.clock.now(), runs=leaving, address=ADDRESS)
    assert await engine.store.apply([step]) == [Done(1, (run_id,))]


async def finish(engine: TestEngine, run_id: str) -> None:
    """Let it have arrived."""
    step = FinishMove(target=run_id, token=TOKEN, at=engine.clock.now(), seen=99)
    assert await engine.store.apply([step]) == [Done(1)]


def acts(run: Any) -> list[Any]:
    """Return calls that only the runtime can answer which has the run."""
    return [
        lambda: run.pause(),
        lambda: run.resume(),
        lambda: run.terminate(),
        lambda: run.nudge(),
        lambda: run.set_attributes({"a": 1}),
        lambda: run.query("state"),
    ]


async def test_calls_to_the_old_side_are_told_where_the_run_is():
    """S3-16: every act, message, query and wait raises Moved with the address; looking shows it."""
    async with TestEngine(workflows=[approval, sender]) as engine:
        run = await engine.start(approval, id="order-1")
        await engine.settle()
        waiting = asyncio.ensure_future(run.result())
        await mark(engine, "order-1")
        await finish(engine, "order-1")
        late = [
            lambda: run.retry(),
            lambda: run.rerun(),
            lambda: run.recover(),
            lambda: run.send("approved", "yes"),
            lambda: run.ask("approved", "yes"),
            lambda: run.cancel(),
        ]
        again = [lambda: run.result(), lambda: engine.start(approval, id="order-1"), lambda: waiting]
        for call in (*acts(run), *late, *again):
            with pytest.raises(Moved, match=f"run 'order-1' was moved to {ADDRESS}: call it there") as told:
                await call()
            assert (told.value.address, told.value.run_id) == (ADDRESS, "order-1")
        assert (await run.describe()).status == "moved"
        assert await engine.execute(sender, "order-1") == f"Moved: run 'order-1' was moved to {ADDRESS}: call it there"
        assert [found.id for found in await engine.runs(status="moved")] == ["order-1"]


async def test_a_run_on_its_way_takes_messages_and_a_cancel_and_nothing_else():
    """S3-16: both are forwarded; a caller that waits for its end waits on."""
    async with TestEngine(workflows=[approval, sender]) as engine:
        run = await engine.start(approval, id="order-1")
        await engine.settle()
        waiting = asyncio.ensure_future(run.result())
        await mark(engine, "order-1")
        for call in acts(run):
            with pytest.raises(Moved, match=f"is being moved to {ADDRESS}"):
                await call()
        assert await run.send("approved", "yes", id="m")
        assert not await run.send("approved", "yes", id="m")
        assert await run.cancel()
        assert await engine.execute(sender, "order-1") == "sent"
        assert (await engine.start(approval, id="order-1")).id == "order-1"
        await engine.settle()
        assert not waiting.done()
        assert [message.name for message in await run.messages()] == ["approved", "approved"]
        await finish(engine, "order-1")
        with pytest.raises(Moved):
            await run.cancel()  # which lets this engine look: another process has committed
        with pytest.raises(Moved):
            await waiting
        with pytest.raises(NoSuchRun):
            await engine.get("order-2").result()


async def test_a_worker_that_has_the_run_in_memory_drives_it_no_further():
    """S3-16: whatever it had, it writes nothing to a run that is moving."""
    async with TestEngine(workflows=[approval]) as engine:
        run = await engine.start(approval, id="order-1")
        await engine.settle()
        await mark(engine, "order-1")
        before = await engine.store.history(1)
        await run.send("approved", "yes")
        await engine.settle()

        async def let_go() -> bool:
            return bool((await run.describe()).status == "moving")

        await eventually(let_go)
        assert await engine.store.history(1) == before
