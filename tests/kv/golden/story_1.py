"""The workflows of the key spaces of format 1, as they were when those were written. Never changed.

Made once by `python -m tests.kv.golden.story_1 FOLDER`.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast import Break, Context, Continue, Retry, activity, step_context, workflow
from holdfast.kv import DirectoryDriver, deliver, drive
from holdfast.testing import JumpingClock

BEGAN = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def effect(name: str) -> str:
    return name


@activity(retry=Retry(max_attempts=5, initial_interval=HOUR, jitter=0))
async def shaky() -> int:
    if step_context().attempt < 3:
        raise ConnectionError("down")
    return step_context().attempt


@activity(idempotency_key=lambda order: order)
async def charge(order: str) -> str:
    return f"charged {order}"


async def refund(order: str) -> None: ...


@workflow
async def everything(ctx: Context, order: str) -> list[object]:
    seen: list[object] = [await ctx.step(charge, order)]
    ctx.compensate(refund, order)
    ctx.set_attributes(city="Berlin")
    ctx.evidence("order", {"id": order})
    both = await ctx.join("both", {"x": lambda c: c.step(effect, "x"), "y": lambda c: c.step(effect, "y")})
    won = await ctx.race("first", {"step": lambda c: c.step(effect, "quick"), "never": lambda c: c.sleep(100 * HOUR)})

    async def lap(inner: Context, state: int) -> Continue[int] | Break[int]:
        await inner.step(effect, f"lap{state}")
        return Continue(state + 1) if state < 9 else Break(state)

    seen += [both, won.winner, await ctx.loop("laps", lap, state=0, commit_interval=2, history_every=4, history_keep=2)]
    seen.append(await ctx.receive("word"))
    seen.append(await ctx.step(shaky))
    await ctx.sleep(HOUR)
    seen.append(await ctx.step(effect, str(ctx.uuid())))
    return seen


@workflow
async def lives(ctx: Context, n: int) -> int:
    await ctx.step(effect, str(n))
    if n < 3:
        ctx.continue_as_new(n + 1)
    await ctx.sleep(HOUR)
    return n


STORIES: dict[str, Any] = {"retrying": everything, "unread": everything, "ended": everything, "renewed": lives}


async def make(folder: Path) -> None:
    for name, flow in STORIES.items():
        clock = JumpingClock(BEGAN)
        driver = DirectoryDriver(folder / name)
        await drive(driver, flow, 0 if flow is lives else name, id=name, clock=clock)
        if name in ("unread", "ended", "retrying"):
            await deliver(driver, "word", name, id="w", clock=clock)
        if name == "unread":
            await deliver(driver, "other", 1, clock=clock)
        while name in ("retrying", "ended"):
            standing = await drive(driver, flow, clock=clock)
            if name == "retrying" or standing.ended:
                break
            clock.advance(5 * HOUR)
        driver.compact()
        driver.close()
        (folder / name / "lock").unlink()


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[1])))
