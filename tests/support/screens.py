"""What the tests of the terminal screen share: a house in memory, the screen on it, and what is seen of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from tests.support.waiting import eventually
from textual.pilot import Pilot

from holdfast import Context, Retry, activity, workflow
from holdfast.looking import Desk, LocalDesk
from holdfast.testing import TestEngine
from holdfast.tui import House, Top

HOSTILE = "\x1b[31mred\x1b]0;title\x07 \u202eright [bold]to[/bold] left\r\n\x00 \u200b done"


@activity
async def pack(item: str) -> str:
    return f"packed {item}"


@activity(retry=Retry(max_attempts=2, initial_interval=timedelta(seconds=5)))
async def carry(item: str) -> None:
    raise ConnectionError(f"503 {item}")


@workflow
async def order(ctx: Context, item: str) -> Any:
    await ctx.step(pack, item)
    return await ctx.receive("approved")


@workflow
async def failing(ctx: Context, item: str) -> None:
    await ctx.step(carry, item)


@workflow
async def family(ctx: Context) -> None:
    await ctx.child(order, "lamp", id="small")


WORKFLOWS: list[Any] = [order, failing, family]


@asynccontextmanager
async def screen(
    engine: TestEngine, *, size: tuple[int, int] = (80, 24), filter: str = "", look: Any = None
) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    """Show a house on a terminal of that size; it looks again when it is told to, and not by itself."""

    @asynccontextmanager
    async def desk() -> AsyncIterator[Desk]:
        yield LocalDesk(engine.store, engine=engine)

    app = Top(House("shop", look or desk, desk, "kim"), filter, every=3600)
    async with app.run_test(size=size) as pilot:
        await eventually(lambda: app.looks)
        yield app, pilot


async def look(app: Top) -> None:
    """Let it look again, and wait until it has."""
    before = app.looks
    app.look_now()
    await eventually(lambda: app.looks > before)


def picture(app: Top) -> str:
    """Return what stands on the screen."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def seen(app: Top, text: str) -> str:
    """Wait until a text stands on the screen; return all of it."""
    try:
        await eventually(lambda: text in picture(app))
    except TimeoutError:
        raise AssertionError(f"{text!r} is not on the screen:\n{picture(app)}") from None
    return picture(app)


async def press(pilot: Pilot[None], keys: Sequence[str]) -> None:
    """Press keys, and wait until what they asked for was looked at."""
    await pilot.press(*keys)
    await pilot.pause()
