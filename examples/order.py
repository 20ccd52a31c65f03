"""An order: steps with retries, and an approval that is waited for with a deadline.

    python examples/order.py

Kill it whenever you like and run it again: it goes on where it was, and nothing that was recorded is done twice. A
second run of the finished program shows the recorded result. Remove order.db to begin again.
"""

import asyncio
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from holdfast import Context, Engine, Retry, RunTerminal, activity, step_context, workflow


@dataclass
class Order:
    id: str
    item: str
    cents: int


class CardDeclined(Exception):
    pass


async def reserve(order: Order) -> str:
    print(f"  reserving one {order.item}")
    return f"shelf {len(order.item)}"


@activity(
    retry=Retry(
        max_attempts=20,
        initial_interval=timedelta(milliseconds=100),
        max_interval=timedelta(milliseconds=800),
        non_retryable=(CardDeclined,),
    ),
    timeout=timedelta(seconds=30),
    raises=[CardDeclined],
)
async def charge(order: Order) -> str:
    step = step_context()
    print(f"  charging {order.cents / 100:.2f}, attempt {step.attempt}, idempotency key {step.idempotency_key}")
    if random.random() < 0.5:  # a step may throw dice, and a bank may not answer
        raise ConnectionError("the bank does not answer")
    return f"payment of {order.id}"


async def ship(order: Order, shelf: str) -> str:
    print(f"  shipping from {shelf}")
    return f"parcel of {order.id}"


@workflow
async def fulfil(ctx: Context, order: Order) -> str:
    shelf = await ctx.step(reserve, order)
    if not await ctx.receive("approval", bool, timeout=timedelta(days=7), default=False):
        return "not approved"
    try:
        payment = await ctx.step(charge, order)
    except CardDeclined:
        return "declined"
    return f"{payment}, {await ctx.step(ship, order, shelf)}"


async def main(database: str) -> None:
    async with Engine(database, workflows=[fulfil]) as engine:
        run = await engine.start(fulfil, Order("order-7", "kettle", 12_900), id="order-7")
        with suppress(RunTerminal):  # it has ended already
            # In a real shop this comes from elsewhere: a web handler, another process with the same database.
            await run.send("approval", True)
        print(await run.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "order.db"))
