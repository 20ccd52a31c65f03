"""The shop of the examples: `order-88405` in the state that an example is for, and all else that examples name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.support.command_cases import LIMITS, adder
from tests.support.waiting import eventually

from holdfast import Context, Retry, activity, workflow
from holdfast.testing import JumpingClock, TestEngine

HOUR = timedelta(hours=1)
STATES = ("failed", "waiting", "paused", "blocked")


def _fulfil(retry: Retry, name: str = "charge") -> Any:
    @activity(name=name, retry=retry)
    async def charge(order: str) -> str:
        raise ConnectionError("503 from the bank")

    @workflow(name="fulfil")
    async def fulfil(ctx: Context, order: str) -> str:
        return await ctx.step(charge, order)

    return fulfil


@workflow
async def nightly(ctx: Context) -> None:
    await ctx.sleep(timedelta(days=1))


@workflow
async def stocked(ctx: Context) -> None:
    await ctx.receive("stock")


PATIENT = _fulfil(Retry(max_attempts=8, initial_interval=HOUR, max_interval=HOUR, jitter=0))
IMPATIENT = _fulfil(Retry.never)
CHANGED = _fulfil(Retry.never, "charge_card")
WORKFLOWS = [PATIENT, nightly, stocked, adder]
"""The code at hand."""


async def furnish(database: str, state: str) -> None:
    """Leave `order-88405` in a state, and an account, a schedule, an event, a limit, and what people did."""
    clock = JumpingClock()
    fulfil = IMPATIENT if state == "failed" else PATIENT
    options: dict[str, Any] = {"clock": clock, "limits": LIMITS, "stop_grace": timedelta(0)}
    async with TestEngine(database, workflows=[fulfil, nightly, stocked, adder], **options) as engine:
        run = await engine.start(fulfil, "lamp", id="order-88405")
        await engine.start(adder, id="account-7")
        await engine.start(stocked, id="order-7")
        await engine.schedules.put("nightly", nightly, cron="0 2 * * *", timezone="Europe/Berlin")
        await engine.settle()
        if state == "paused":
            await run.pause(by="kim", reason="bank down")
            await engine.settle()
    if state == "blocked":
        async with TestEngine(database, workflows=[CHANGED, nightly, stocked, adder], **options) as engine:
            await engine.get("order-88405").send("note", 1)
            await eventually(lambda: _is_blocked(engine))


async def _is_blocked(engine: TestEngine) -> bool:
    return await engine.get("order-88405").status() == "blocked"
