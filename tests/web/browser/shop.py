"""A shop with a run in every state, for the tests of the dashboard and for the pictures of its pages.

Bodies of steps let time pass themselves, so that what is shown is the same at every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.waiting import eventually

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.contract.figures import MINUTE as MINUTE_FIGURES
from holdfast.contract.figures import Figure
from holdfast.contract.rows import Status
from holdfast.limits import Limit
from holdfast.testing import JumpingClock, TestEngine

SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
BEGIN = datetime(2026, 11, 11, 8, 2, 10, tzinfo=UTC)
LIMITS = [Limit(name="openai", at_once=1)]


class CarrierDown(Exception):
    pass


class CardDeclined(Exception):
    pass


class OutOfStock(Exception):
    pass


def taking(seconds: float) -> None:
    """Let time pass in the body of a step."""
    CLOCK[0].advance(timedelta(seconds=seconds))


CLOCK: list[JumpingClock] = []
"""The clock of the shop that is open."""


@activity
async def reserve_stock(order: str) -> str:
    taking(0.41)
    return f"{order} is on shelf 7"


@activity
async def release_stock(order: str) -> None:
    taking(0.2)


@activity
async def refund(order: str) -> None:
    taking(0.3)


@activity
async def refund_slowly(order: str) -> None:
    await asyncio.Event().wait()


@activity(retry=Retry(max_attempts=5, initial_interval=timedelta(seconds=2), jitter=0))
async def charge(order: str, cents: int) -> str:
    taking(0.9)
    if cents < 0:
        raise CardDeclined("insufficient funds")
    if step_context().attempt == 1 and cents > 5_000:
        taking(4.1)
        raise TimeoutError("no answer from the bank within 5 s")
    return f"paid {cents / 100:.2f}"


@activity(retry=Retry(max_attempts=8, initial_interval=timedelta(seconds=2), max_interval=5 * MINUTE, jitter=0))
async def book_carrier(parcel: dict[str, Any]) -> str:
    taking(0.8)
    raise CarrierDown("503 from api.carrier.example: maintenance until 11:30 UTC")


@activity
async def pack(order: str) -> None:
    taking(2.5)


@activity(retry=Retry(max_attempts=5, initial_interval=timedelta(seconds=0.4), jitter=0))
async def print_label(order: str) -> str:
    taking(0.3)
    if step_context().attempt == 1:
        raise OSError("the printer is out of paper")
    return "label.pdf"


@activity(heartbeat_timeout=HOUR)
async def encode(film: str) -> None:
    step_context().heartbeat({"done": "61 %"})
    await asyncio.Event().wait()


@activity(limit="openai")
async def embed(doc: str) -> None:
    await asyncio.Event().wait()


@activity(queue="gpu")
async def train(model: str) -> None: ...


@activity(retry=Retry(initial_interval=HOUR))
async def declare(goods: str) -> None:
    raise ConnectionError("customs do not answer")


@workflow
async def abroad(ctx: Context, goods: str) -> None:
    await ctx.step(declare, goods)


@workflow(version="2")
async def fulfil(ctx: Context, order: dict[str, Any]) -> str:
    name = order["order"]
    await ctx.step(reserve_stock, name)
    ctx.compensate(release_stock, name)
    await ctx.step(charge, name, order["total"])
    ctx.compensate(refund, name)
    await ctx.receive("approved", timeout=24 * HOUR)

    async def packed(ctx: Context) -> None:
        await ctx.step(pack, name)

    async def labelled(ctx: Context) -> str:
        return await ctx.step(print_label, name)

    await ctx.join("prepare", {"parcel": packed, "paper": labelled})
    shipping = ctx.child(ship, id=f"ship-{ctx.run_id.removeprefix('order-')}")
    await ctx.step(book_carrier, {"order": name, "kg": 2.4, "to": "Kantstr. 1"})
    await shipping
    return f"receipt for {name}"


@workflow
async def ship(ctx: Context) -> None:
    await ctx.receive("picked_up")


@workflow(version="2")
async def quick(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    await ctx.step(reserve_stock, order["order"])
    return {"receipt": order["order"], "shipped": True}


@workflow
async def relocate(ctx: Context) -> None:
    await ctx.child(ship, id=f"ship-{ctx.run_id.rpartition('-')[2]}")


@workflow
async def trip(ctx: Context, order: str) -> None:
    ctx.compensate(refund_slowly, order)
    ctx.compensate(release_stock, order)
    raise OutOfStock("no kettle is left")


@workflow(version="4")
async def render(ctx: Context, film: str) -> None:
    await ctx.step(encode, film)


@workflow
async def index_docs(ctx: Context, doc: str) -> None:
    await ctx.step(embed, doc)


@workflow
async def improve(ctx: Context, model: str) -> None:
    await ctx.step(train, model)


@workflow
async def reminder(ctx: Context) -> None:
    await ctx.sleep(18 * HOUR)


@workflow
async def lengthy(ctx: Context, steps: int) -> None:
    for number in range(steps):
        await ctx.step(release_stock, f"o-{number}")


@workflow
async def permits(ctx: Context) -> None:
    request = await ctx.receive_request("permit", str)
    ctx.reply(request, f"granted: {request.payload}")
    await ctx.receive("revoked")


@workflow
async def caravan(ctx: Context) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_of(ctx.child(relocate, id="moving-1")))
        group.create_task(_of(ctx.child(ship, id="ship-2")))


async def _of(child: Any) -> None:
    await child


@workflow
async def poll(ctx: Context, times: int) -> None:
    async for it in ctx.loop("ask", state=0, history_keep=50):
        await it.step("fetch", release_stock, f"o-{it.state}")
        await it.step("store", release_stock, f"o-{it.state}")
        it.state += 1
        if it.state == times:
            break


@activity(name="<img onerror>", retry=Retry(max_attempts=1))
async def says(text: Any) -> Any:
    if isinstance(text, str):
        raise ValueError(text)
    return text


@workflow(name="<svg onload>")
async def talkative(ctx: Context, text: Any) -> Any:
    ctx.evidence("<b>", text if isinstance(text, list) else text[:100])
    await ctx.step(says, text)
    await ctx.receive("<b>approved")


@workflow
async def on_record(ctx: Context) -> None:
    for number in range(3):
        ctx.evidence("weighed", {"parcel": number, "note": '\u2028 \x01 " é'})
    await ctx.receive("approved")


@workflow(name="checkout", version="3")
async def checkout_before(ctx: Context) -> None:
    await ctx.step(reserve_stock, "o-88412")
    await ctx.receive("approved")


@workflow(name="checkout", version="3")
async def checkout_after(ctx: Context) -> None:
    await ctx.step(charge, "o-88412", 10)
    await ctx.receive("approved")


ALL: list[Any] = [
    fulfil, ship, quick, relocate, trip, render, index_docs, improve, reminder, lengthy, poll, talkative,
    on_record, checkout_after, abroad, permits, caravan,
]  # fmt: skip


class Shop:
    """An open engine on a database, with its clock."""

    def __init__(self, engine: TestEngine, clock: JumpingClock) -> None:
        self.engine = engine
        self.clock = clock

    async def settle(self) -> None:
        await self.engine.settle()

    async def until(self, run_id: str, check: Callable[[Any], Any]) -> None:
        async def look() -> bool:
            found = await self.engine.store.heads_of([run_id])
            return run_id in found and bool(check(found[run_id]))

        await eventually(look)


async def opened(stack: AsyncExitStack, database: str = ":memory:") -> Shop:
    """Open a shop without runs."""
    clock = JumpingClock(BEGIN)
    CLOCK[:] = [clock]
    engine = TestEngine(database, workflows=ALL, clock=clock, limits=LIMITS, stop_grace=timedelta(0))
    await stack.enter_async_context(engine)
    engine.store.clock = clock
    return Shop(engine, clock)


async def order(shop: Shop, number: int, total: int = 8_490, **more: Any) -> str:
    """Start an order, which waits for `approved`."""
    run_id = f"order-{number}"
    given = {"order": f"o-{number}", "items": ["kettle", "lamp"], "total": total, "card": "4111 1111 1111 1111"}
    await shop.engine.start(
        fulfil,
        given,
        id=run_id,
        actor="shop-web",
        tenant="acme",
        attributes={"customer": f"c-{number % 4000:04}"} | more,
    )
    return run_id


async def fill(shop: Shop) -> None:
    """Let a day go by, and leave a run in every state that a shop has at the end of it."""
    engine, clock = shop.engine, shop.clock
    await engine.start(relocate, id="moving-204", attributes={"tenant": "acme"})
    await shop.settle()
    clock.advance(2 * HOUR)
    await order(shop, 88391, 1_200, region="north")
    await shop.settle()
    clock.advance(68 * MINUTE)
    await failed(shop)
    await paused_and_cancelled(shop)
    for number in range(88350, 88360):
        await engine.start(
            quick, {"order": f"o-{number}"}, id=f"order-{number}", attributes={"customer": f"c-{number % 900:04}"}
        )
        await shop.settle()
        clock.advance(47 * SECOND)
    await the_order(shop)
    await in_hand(shop)


async def the_order(shop: Shop) -> None:
    """The order of the picture: two hours of waiting, then a carrier that is down."""
    engine, clock = shop.engine, shop.clock
    await order(shop, 88405, vip=True, region="north")
    await shop.settle()
    await engine.advance(3 * SECOND)
    await engine.advance(2 * HOUR)
    run = engine.get("order-88405")
    await run.set_attributes({"vip": True}, by="kim")
    await run.send("approved", {"by": "kim"}, by="kim")
    await shop.settle()
    for seconds in (1, 2, 4, 8):
        await engine.advance(seconds * SECOND)
    clock.advance(4 * SECOND)


async def paused_and_cancelled(shop: Shop) -> None:
    engine, clock = shop.engine, shop.clock
    await order(shop, 7731, 100)
    await shop.settle()
    await engine.get("order-7731").pause(by="lena", reason="bank down, INC-7", duration=2 * HOUR)
    await order(shop, 88377, 100)
    await shop.settle()
    clock.advance(3 * MINUTE)
    await engine.get("order-88377").cancel(by="kim", reason="ordered twice")
    await shop.settle()
    await engine.start(reminder, id="remind-1204", attributes={"customer": "c-0888"})
    await shop.settle()


async def in_hand(shop: Shop) -> None:
    """Runs whose steps are running, or cannot: they stay so for as long as the shop is open."""
    engine, clock = shop.engine, shop.clock
    await engine.start(render, "film.mov", id="film-5520", attributes={"res": "4k"})
    await shop.until("film-5520", lambda head: head.status is Status.RUNNING)
    for number in (6640, 6641):
        await engine.start(index_docs, "handbook", id=f"embed-{number}", attributes={"doc": "handbook"})
    await shop.until("embed-6641", lambda head: head.wait)
    await engine.start(improve, "digits", id="train-0192", attributes={"model": "digits"})
    await shop.until("train-0192", lambda head: head.wait)
    await engine.start(trip, "o-88398", id="order-88398", attributes={"customer": "c-1175"})

    async def refunds() -> bool:
        return any(step.status == "running" for step in await engine.get("order-88398").steps())

    await eventually(refunds)
    clock.advance(3 * SECOND)


async def failed(shop: Shop) -> None:
    engine, clock = shop.engine, shop.clock
    for number in (88407, 88408, 88409):
        await order(shop, number, -1)
        await shop.settle()
        for _ in range(5):
            await engine.advance(20 * SECOND)
        await shop.until(f"order-{number}", lambda head: head.status is Status.FAILED)
    clock.advance(2 * MINUTE)


async def count(shop: Shop, ago: timedelta, completed: int, failed: int) -> None:
    """Put into the figures, as a worker would, that so many runs ended so long ago."""
    start = (shop.clock.now() - ago // timedelta(microseconds=1)) // MINUTE_FIGURES * MINUTE_FIGURES
    took = (0,) * 8 + (1,) + (0,) * 5
    rows = [("completed", completed), ("failed", failed)]
    await shop.engine.store.add_figures(
        [
            Figure(start, "fulfil", "", outcome, n, n * 40_000_000, tuple(n * each for each in took))
            for outcome, n in rows
            if n
        ]
    )


async def count_step(shop: Shop, ago: timedelta, step: str, completed: int, retried: int) -> None:
    """Put into the figures how often a step completed, and how often it was tried again, so long ago."""
    start = (shop.clock.now() - ago // timedelta(microseconds=1)) // MINUTE_FIGURES * MINUTE_FIGURES
    took = (0,) * 5 + (1,) + (0,) * 8
    await shop.engine.store.add_figures(
        [
            Figure(start, "fulfil", step, outcome, n, n * 600_000, tuple(n * each for each in took))
            for outcome, n in (("completed", completed), ("retried", retried))
            if n
        ]
    )


async def block(stack: AsyncExitStack, database: str) -> Shop:
    """Open a shop whose database has a run that was begun with other code."""
    clock = JumpingClock(BEGIN)
    CLOCK[:] = [clock]
    async with TestEngine(database, workflows=[checkout_before], clock=clock) as engine:
        await engine.start(checkout_before, id="order-88412", attributes={"customer": "c-3081", "region": "north"})
        await engine.settle()
    shop = await opened(stack, database)
    await shop.engine.get("order-88412").send("note", 1)
    await shop.until("order-88412", lambda head: head.status is Status.BLOCKED)
    return shop
