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

APP = "tests.support.command_cases:WORKFLOWS"
LOOKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "list": ((), ("is:open",), ("is:attention",), ("--count",), ("--json",)), "show": (("RUN",), ("RUN", "--json")),
    "why": (("RUN",), ("RUN", "--json")), "history": (("RUN",), ("RUN", "--json")), "steps": (("RUN",),),
    "children": (("RUN",),), "tail": (("--for", "0s"),), "graph": (("order",), ("order", "--mermaid")),
    "inbox": (("RUN",),), "versions": ((),), "evidence": (("RUN",), ("RUN", "--json")), "audit export": ((),),
    "letters show": (("019a8b1c-0000-7000-8000-000000000000",),), "watch": (("RUN",),),
    "result": (("RUN",),), "stats": ((),), "workers": ((),), "letters list": ((), ("--json",)),
    "letters groups": ((),), "schedules list": ((),), "schedules next": (("nightly",),),
    "schedules show": (("nightly",),), "check": (("--app", APP, "--jobs", "1"),),
    "debug": (("RUN", "--app", APP),), "record": (("RUN",),), "queues": ((),), "limits list": ((),),
    "limits show": (("openai",),), "limits why": (("OPEN",),), "events": ((), ("parcel",)),
    "audit list": ((), ("--json",)), "audit verify": ((),), "doctor": ((), ("--json",)), "db status": ((),),
    "token list": ((), ("--all", "--json")),
}  # fmt: skip
"""Every command that looks, as it is called; RUN stands for a run that failed, OPEN for one that is open."""
OTHERS = {
    "start", "cancel", "pause", "resume", "retry", "rerun", "terminate", "recover", "nudge", "send", "ask", "query",
    "set", "publish", "letters ack", "letters replay", "schedules pause", "schedules resume", "schedules trigger",
    "letters purge", "letters remove", "schedules backfill", "schedules delete", "schedules put", "purge",
    "reveal", "token create", "token revoke", "limits override", "limits restore",
    "db backup", "db restore", "db upgrade", "export", "import", "backup", "restore", "move",  # which act
    "bench", "demo", "new", "ui", "top", "config", "completion", "schema",  # which look at no database, or on and on
}  # fmt: skip
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


def looks(run_id: str = "failed", open_run: str = "waits") -> Iterator[tuple[str, ...]]:
    """Yield every command that looks, with what it takes."""
    for path, calls in LOOKS.items():
        for given in calls:
            yield (*path.split(), *({"RUN": run_id, "OPEN": open_run}.get(word, word) for word in given))
