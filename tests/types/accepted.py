"""What type checkers know of holdfast: every line is right, and has the type that is claimed for it.

Nothing here runs: mypy and pyright read it, see `make check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from holdfast import ChildFailed, Context, Engine, RunHandle, Status, activity, step_context, workflow
from holdfast.declarative import graph, sequence
from holdfast.testing import RecordedRun, TestEngine, record, replay


@dataclass
class Order:
    id: str
    cents: int


@activity(timeout=timedelta(seconds=5))
async def charge(order: str, cents: int) -> float:
    step_context().heartbeat({"sent": 1})
    return cents / 100


def ship(order: str) -> bool:
    return True


@workflow
async def fulfil(ctx: Context, order: Order, express: bool = False) -> int:
    paid = await ctx.step(charge, order.id, order.cents)
    assert_type(paid, float)
    assert_type(await ctx.step("named", ship, order.id), bool)
    assert_type(await ctx.receive("word", str), str)
    assert_type(await ctx.receive("word", str, timeout=timedelta(hours=1), default=None), str | None)
    return 1


@workflow(name="other", queue="gpu")
async def plain(ctx: Context) -> str:
    return ""


@workflow
async def family(ctx: Context, order: Order) -> None:
    assert_type(await ctx.child(fulfil, order), int)
    assert_type(await ctx.child(fulfil, order, express=True), int)
    assert_type(await ctx.child(fulfil, order, True), int)
    assert_type(await ctx.child(fulfil, order, id="a"), int)
    assert_type(await ctx.child(fulfil, order, True, id="a", cancel_with_parent=True), int)
    assert_type(await ctx.child(fulfil, order, propagate=True), int)
    assert_type(await ctx.child(fulfil, order, propagate=False), int | ChildFailed)
    assert_type(await ctx.child(fulfil, order, express=True, id="b"), int)
    assert_type(await ctx.child(fulfil, order, express=True, id="c", propagate=False), int | ChildFailed)
    assert_type(await ctx.child(plain, propagate=False, priority=3), str | ChildFailed)
    assert_type(await ctx.child("elsewhere", order=order), Any)
    assert_type(ctx.child(plain).id, str)


async def calls(engine: Engine) -> None:
    order = Order("a", 1)
    assert_type(await engine.start(fulfil, order), RunHandle[int])
    assert_type(await engine.start(fulfil, order, express=True), RunHandle[int])
    assert_type(await engine.start(fulfil, order, True), RunHandle[int])
    assert_type(await engine.start(fulfil, order, id="order-a"), RunHandle[int])
    late = await engine.start(fulfil, order, True, id="a", delay=timedelta(hours=1), attributes={"a": 1})
    assert_type(late, RunHandle[int])
    assert_type(await engine.start(fulfil, order, express=True, id="a", delay=timedelta(hours=1)), RunHandle[int])
    assert_type(await engine.start(fulfil, order=order, express=True, id="a"), RunHandle[int])
    assert_type(await engine.execute(fulfil, order, express=True, id="a"), int)
    assert_type(await engine.start(plain), RunHandle[str])
    assert_type(await engine.start(plain, id="a", on_conflict="return"), RunHandle[str])
    assert_type(await engine.start("fulfil", order=order), RunHandle[Any])
    assert_type(await engine.start("fulfil", order=order, id="a"), RunHandle[Any])
    assert_type(await engine.execute(fulfil, order), int)
    assert_type(await engine.execute(fulfil, order, id="a"), int)
    assert_type(await engine.execute("fulfil", order=order), Any)
    assert_type(await engine.start_many(fulfil, [order]), list[RunHandle[int]])
    assert_type(engine.get("a"), RunHandle[Any])
    assert_type(engine.get("a", fulfil), RunHandle[int])
    assert_type(await engine.get("a", fulfil).result(timedelta(seconds=5)), int)
    run = engine.get("a")
    assert_type(await run.status(), Status)
    assert_type((await run.status()).is_terminal, bool)
    assert_type(await run.send("word", "x", id="m"), bool)
    assert_type(await run.cancel(by="kim", reason="ordered twice"), bool)


def sync_calls(engine: Engine, order: Order) -> None:
    with engine.in_thread() as call:
        run = call(engine.start(fulfil, order, id="a"))
        assert_type(run, RunHandle[int])
        assert_type(call(run.result()), int)


async def tests() -> None:
    async with TestEngine(workflows=[fulfil, plain], substitutes={charge: ship}) as engine:
        run = await engine.start(plain)
        recorded = await record(run)
        assert_type(recorded, RecordedRun)
        replayed = replay(recorded, plain)
        assert_type(replayed.output, str | None)
        assert replayed.status == "completed"


listed = sequence("listed", [charge, ship])
drawn = graph("drawn", {charge: [], ship: [charge]})
