"""What type checkers refuse: every line but those that say otherwise is a mistake, and the checkers must see it.

An ignore that ignores nothing is an error of its own, so a mistake that is no longer seen fails `make check`.
"""

from __future__ import annotations

from datetime import timedelta

from holdfast import Context, Engine, workflow


@workflow
async def fulfil(ctx: Context, order: str, cents: int = 0) -> int:
    return 1


@workflow
async def family(ctx: Context) -> None:
    await ctx.child(fulfil)  # type: ignore[arg-type]  # the order is missing
    await ctx.child(fulfil, 5)  # type: ignore[misc]  # an order is a text
    await ctx.child(fulfil, "a", id=5)  # type: ignore[call-arg]  # an id is a text
    await ctx.child(fulfil, "a", 1, 2)  # type: ignore[arg-type]  # one too many
    await ctx.child(fulfil, 5, id="a")  # type: ignore[arg-type, call-arg]  # an order is a text, with options as well


async def calls(engine: Engine) -> None:
    await engine.start(fulfil)  # type: ignore[arg-type]  # the order is missing
    await engine.start(fulfil, 5)  # type: ignore[misc]  # an order is a text
    await engine.start(fulfil, "a", cents="x")  # type: ignore[arg-type]  # cents are a number
    await engine.start(fulfil, "a", 1, 2)  # type: ignore[arg-type]  # one too many
    await engine.start(fulfil, 5, id="a")  # type: ignore[arg-type, call-arg]  # an order is a text, with options as well
    await engine.start(fulfil, "a", id=5)  # type: ignore[call-arg]  # an id is a text
    await engine.start(fulfil, "a", delay=5)  # type: ignore[call-arg]  # a delay is a timedelta
    await engine.start(fulfil, "a", nmber=5)  # type: ignore[call-arg]  # there is no such option
    await engine.execute(fulfil, 5)  # type: ignore[misc]  # an order is a text
    text: str = await engine.execute(fulfil, "a")  # type: ignore[arg-type]  # the result is a number
    other: str = await engine.get("a", fulfil).result()  # type: ignore[assignment]  # likewise
    await engine.get("a").result(5)  # type: ignore[arg-type]  # a timeout is a timedelta
    await engine.get("a").result(timedelta(seconds=5))
    assert text == other
