"""What the tests of the command line share: a house with something of everything, and how a command ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.support.transfer_cases import EVENTS, WORKFLOWS, House, account, approval, order, sleeper
from tests.support.waiting import soon

from holdfast import Context, Engine, activity, workflow
from holdfast.cli.main import main
from holdfast.limits import Limit
from holdfast.testing import JumpingClock

LIMITS = [Limit(name="openai", at_once=1)]


class Answer:
    """How a command ended, and what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
        self.code = main(arguments)
        self.out, self.err = capsys.readouterr()


@activity(queue="gpu")
async def train() -> None: ...


@workflow
async def training(ctx: Context) -> None:
    await ctx.step(train)


@workflow
async def adder(ctx: Context) -> int:
    """Answer requests and queries until it has counted to ten."""
    total = 0
    ctx.on_query("total", lambda: total)
    while total < 10:
        request = await ctx.receive_request("add", int)
        total += request.payload
        ctx.reply(request, total)
    return total


async def fill(house: House) -> None:
    """Leave runs in several states, a schedule, a queue with a step, a limit, an event, and what people did."""
    async with house.engine([*WORKFLOWS, training, adder], limits=LIMITS) as engine:
        house.bank_open = True
        await engine.execute(order, "lamp", id="done")
        house.bank_open = False
        await engine.start(order, "chair", id="failed")
        await engine.start(sleeper, 3, id="sleeps")
        await engine.start(approval, 2, id="waits", attributes={"customer": "c-2210"})
        await engine.start(training, id="trains")
        await engine.start(account, id="account")
        await engine.publish("parcel", {"item": "lamp"})
        await engine.schedules.put("nightly", sleeper, 1, cron="0 2 * * *", timezone="Europe/Berlin")
        await engine.get("waits").pause(by="kim", reason="bank down")
        await engine.get("waits").resume(by="lena")
        await engine.settle()


def furnished(database: str) -> House:
    """Return a house that was filled."""
    house = House(database, JumpingClock())
    asyncio.run(fill(house))
    return house


@contextmanager
def working(database: str) -> Iterator[None]:
    """Let a worker advance the runs of a database, in a thread of its own, as another process would."""
    loop, stop, opened = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def work() -> None:
        options: dict[str, Any] = {"workflows": [*WORKFLOWS, training, adder], "events": EVENTS, "limits": LIMITS}
        async with Engine(database, context=lambda: {"bank_open": True}, stop_grace=timedelta(0), **options):
            opened.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    try:
        assert soon(opened.is_set)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
