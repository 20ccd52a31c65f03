"""Every verb of a context on a key space: it works, however often the run is driven again, or is refused by name."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import re
import uuid
from datetime import timedelta

import pytest

from holdfast import Break, Context, Continue, Retry, StepTimeout, activity, step_context, workflow
from holdfast.clock import from_datetime
from holdfast.errors import HeartbeatTimeout
from holdfast.kv import MemoryDriver, deliver, drive, keys, reply_to
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

HOUR = timedelta(hours=1)
REFUSED = {"child", "publish", "send"}
TOLD: list[str] = []


async def echo(value: object = None) -> object:
    TOLD.append(str(value))
    return value


async def hook(run_id: str, result: object) -> None:
    TOLD.append(f"hook of {run_id}")


@workflow(on_complete=hook)
async def everything(ctx: Context, lives: int) -> dict[str, object]:
    seen: dict[str, object] = {"run_id": ctx.run_id, "now": ctx.now().isoformat()}
    ctx.log.info("life %s", lives)
    ctx.compensate(echo, "undone")
    ctx.on_query("seen", lambda: sorted(seen))
    ctx.progress(1, of=3)
    ctx.set_attributes(city="Berlin")
    ctx.evidence("kind", {"a": 1})
    ctx.background("aside", echo, "aside")
    seen["dice"] = [ctx.random().random(), str(ctx.uuid())]
    ctx.removed("gone")
    seen["patched"] = ctx.patched("new")
    seen["step"] = await ctx.step(echo, "step")
    await ctx.sleep(HOUR)
    await ctx.sleep_until(ctx.now() + HOUR)
    seen["receive"] = await ctx.receive("word", str)
    seen["either"] = await ctx.receive(["a", "b"])
    seen["late"] = await ctx.receive("never", timeout=HOUR, default="nothing")
    request = await ctx.receive_request("price", int)
    ctx.reply(request, request.payload + 1)
    seen["join"] = await ctx.join("both", {"x": lambda c: c.step(echo, 1), "y": lambda c: c.sleep(HOUR)})
    seen["race"] = (await ctx.race("first", {"x": lambda c: c.sleep(HOUR), "y": lambda c: c.sleep(9 * HOUR)})).winner

    async def lap(inner: Context, total: int) -> Continue[int] | Break[int]:
        await inner.sleep(HOUR)
        await inner.step(echo, total)
        return Continue(total + 1) if total < 7 else Break(total)

    seen["loop"] = await ctx.loop("laps", lap, state=0, commit_interval=2, history_every=2, history_keep=2)
    if lives:
        ctx.continue_as_new(lives - 1)
    return seen


async def test_every_verb_works_though_the_run_is_read_again_at_every_wait(caplog):
    """S1-12 S1-9 S1-28 S1-35 S1-40 Two lives; what code asks of its context is the same at every reading."""
    caplog.set_level(logging.INFO, "holdfast")
    TOLD.clear()
    driver, clock = FaultyDriver(MemoryDriver()), JumpingClock()
    standing = await drive(driver, everything, 1, id="all", clock=clock)
    readings = given = 0
    while not standing.ended:
        if standing.until is not None:
            clock.jump_to(from_datetime(standing.until))
        else:
            given += 1
            for name, payload in (("word", "word"), ("b", "b"), ("price", 1)):
                await deliver(driver, name, payload, id=f"{name}-{given}", clock=clock)
        standing = await drive(driver, everything, clock=clock)
        readings += 1
    assert (standing.state, readings > 25) == ("completed", True)
    seen = standing.output
    assert {key: seen[key] for key in seen if key not in ("now", "dice")} == {
        "run_id": "all", "patched": True, "step": "step", "receive": "word", "either": ["b", "b"], "late": "nothing",
        "join": {"x": 1, "y": None}, "race": "x", "loop": 7,
    }  # fmt: skip
    assert uuid.UUID(seen["dice"][1])
    assert [TOLD.count(each) for each in ("step", "aside", "1", "7", "hook of all", "undone")] == [2, 2, 4, 2, 1, 0]
    assert await reply_to(driver, "price-1") == 2
    assert [len(await driver.list(family)) for family in (keys.TRAIL, keys.ANSWER, keys.MESSAGE)] == [2, 2, 0]
    logged = [record.getMessage() for record in caplog.records if "life" in record.getMessage()]
    assert logged == ["run all: life 1", "run all: life 0"]


def test_every_verb_of_a_context_is_tried_here_or_refused():
    """S1-12 A verb that is new has to be thought of."""
    verbs = {name for name, _ in inspect.getmembers(Context) if not name.startswith("_")}
    used = set(re.findall(r"(?:ctx|inner|c)\.(\w+)", inspect.getsource(everything.function)))
    assert verbs - used == REFUSED | {"replaying"}


@activity(timeout=timedelta(seconds=0.05), retry=Retry.never)
async def slow() -> None:
    await asyncio.Event().wait()


@activity(heartbeat_timeout=timedelta(seconds=0.05), retry=Retry.never)
async def silent() -> None:
    await asyncio.Event().wait()


@activity(heartbeat_timeout=timedelta(seconds=60))
async def lively() -> str:
    step_context().heartbeat("half")
    return "lively"


@activity(isolate="process")
def apart() -> int:
    return os.getpid()


@activity(run_when=lambda step: step.connected)
async def ready() -> str:
    return "ready"


async def test_bodies_have_timeouts_heartbeats_processes_and_conditions_of_their_own():
    """S1-22 They are run and judged as everywhere else."""

    @workflow
    async def bodies(ctx: Context) -> list[object]:
        found: list[object] = []
        for body in (slow, silent):
            try:
                await ctx.step(body)
            except (StepTimeout, HeartbeatTimeout) as error:
                found.append(type(error).__name__)
        return [*found, await ctx.step(lively), await ctx.step(apart), await ctx.step(ready)]

    driver, clock, known = MemoryDriver(), JumpingClock(), {"connected": False}
    standing = await drive(driver, bodies, clock=clock, context=lambda: known)
    assert standing.state == "sleeping"
    known["connected"] = True
    clock.jump_to(from_datetime(standing.until))
    first, second, third, process, last = (await drive(driver, bodies, clock=clock, context=lambda: known)).output
    assert (first, second, third, last) == ("StepTimeout", "HeartbeatTimeout", "lively", "ready")
    assert process != os.getpid()


@pytest.mark.parametrize("verb", sorted(REFUSED))
async def test_what_needs_other_runs_is_refused_by_name(verb):
    """S1-41"""

    @workflow
    async def other(ctx: Context) -> None: ...

    @workflow
    async def asking(ctx: Context) -> None:
        given = {"child": (other,), "publish": ("news", 1), "send": ("run-1", "news", 1)}[verb]
        await getattr(ctx, verb)(*given)

    driver = MemoryDriver()
    standing = await drive(driver, asking)
    assert (standing.state, driver.list(b"")) == ("blocked", [])
    assert re.search(rf"ctx\.{verb}\(\) at .* run it on an Engine", standing.error.message)
