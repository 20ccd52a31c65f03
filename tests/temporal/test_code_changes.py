"""Changed code under open runs meets holdfast's own rules, not Temporal's."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.waiting import eventually
from tests.temporal.flows import mark

from holdfast import Context, RunBlocked, workflow
from holdfast.errors import HistoryMismatch

pytestmark = [pytest.mark.temporal, pytest.mark.leaves("process")]  # the server that the tests of the file share


@workflow(name="changing", version="1")
async def old(ctx: Context) -> list[str]:
    first = await ctx.step("a", mark, "a")
    await ctx.receive("go")
    return [first, await ctx.step("b", mark, "b")]


@workflow(name="changing", version="2")
async def patched(ctx: Context) -> list[str]:
    first = await ctx.step("a", mark, "a")
    if ctx.patched("more"):
        await ctx.step("more", mark, "more")
    await ctx.receive("go")
    return [first, await ctx.step("b", mark, "b"), await ctx.step("c", mark, "c")]


@workflow(name="changing", version="3")
async def inserted(ctx: Context) -> list[str]:
    await ctx.step("inserted", mark, "inserted")
    first = await ctx.step("a", mark, "a")
    await ctx.receive("go")
    return [first]


async def _waits(run: Any) -> None:
    async def waits() -> bool:
        return bool((await run.describe()).waiting_for == "message go")

    await eventually(waits)


async def test_an_open_run_goes_on_with_code_that_was_patched(make_engine):
    before = await make_engine(old)
    run = await before.start(old)
    await _waits(run)
    await before.stop()
    after = await make_engine(patched)
    again = after.get(run.id, patched)
    await again.send("go")
    assert await again.result() == ["a", "b", "c"]
    assert [step.path for step in await again.steps()] == ["a", "b", "c"]


async def test_code_that_does_not_fit_blocks_the_run_until_it_is_put_right(make_engine):
    before = await make_engine(old)
    run = await before.start(old)
    await _waits(run)
    await before.stop()
    wrong = await make_engine(inserted)
    blocked = wrong.get(run.id)
    await blocked.send("go")
    with pytest.raises((RunBlocked, HistoryMismatch), match="inserted"):
        await blocked.result()
    assert await blocked.status() == "blocked"
    await wrong.stop()
    after = await make_engine(old)
    mended = after.get(run.id, old)
    assert await mended.recover()
    assert await mended.result() == ["a", "b"]
    assert not await mended.recover()
