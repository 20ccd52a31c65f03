"""Libraries in workflow code, through an engine: the Context that they find, and names they make."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, current_context, valid_name, workflow
from holdfast.errors import BadInput


def in_a_thread() -> bool:
    return current_context() is None


async def on_the_loop() -> bool:
    await asyncio.sleep(0)
    return current_context() is None


async def test_there_is_no_current_context_in_steps_and_queries(make_engine):
    """S1-12 And none outside of workflows, while one runs in the same process."""

    @workflow
    async def asks(ctx: Context) -> list[bool]:
        ctx.on_query("context", lambda: current_context() is None)
        found = [await ctx.step(in_a_thread), await ctx.step(on_the_loop), current_context() is ctx]
        await ctx.receive("go")
        return found

    engine = await make_engine(asks)
    run = await engine.start(asks)
    assert current_context() is None
    assert await run.query("context") is True
    await run.send("go")
    assert await run.result() == [True, True, True]


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize("text", ["a/b", "", " ", "x" * 500, "line\nline", "#1 ~ @ !", "é ü 漢字 🎉", "\ud800", "ok"])
async def test_any_text_makes_a_name(make_engine, text: str):
    """B11 A step of that name runs, and its text is told from others that look alike."""
    name = valid_name(text)
    assert valid_name(text) == name
    assert valid_name(name) == name
    assert (name == text) == (text in ("ok", "é ü 漢字 🎉", " "))

    @workflow
    async def named(ctx: Context) -> Any:
        return await ctx.step(name, on_the_loop)

    engine = await make_engine(named)
    run = await engine.start(named)
    assert await run.result() is True
    assert [step.name for step in await run.steps()] == [name]


def test_texts_that_look_alike_make_different_names():
    """B11 Else one would be refused as used twice."""
    names = [valid_name(text) for text in ("a/b", "a#b", "a-b", "a~b", "x" * 201, "x" * 202)]
    assert len(set(names)) == len(names)
    with pytest.raises(BadInput):
        valid_name(7)
