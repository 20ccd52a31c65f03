"""An order as a saga: a list of activities, each with what undoes it, for when a later one fails for good.

    python examples/order_saga.py

Three orders: a kettle, which is shipped; a piano, which no carrier takes, so that the money is given back and the piano
goes back on its shelf: in reverse order, each once; and an organ, whose money cannot even be given back, because the
card was closed. The organ goes back on its shelf all the same, and the refund is a dead letter, for an operator. Kill
the program whenever you like, also while it undoes something, and run it again. Remove saga.db to begin again.
"""

import asyncio
import sys
from typing import Any

from holdfast import Engine, NonRetryable, Retry, RunFailed
from holdfast.declarative import sequence, step

State = dict[str, Any]  # what the run was started with, and what each activity added to it


async def reserve(order: State) -> State:
    print(f"  reserving a {order['item']}")
    return {"shelf": f"shelf {len(order['item'])}"}


async def release(order: State) -> None:
    print(f"  putting the {order['item']} back on {order['shelf']}")


async def charge(order: State) -> State:
    print(f"  charging {order['cents'] / 100:.2f} for the {order['item']}")
    await asyncio.sleep(0.1)
    return {"payment": f"payment for a {order['item']}"}


async def refund(order: State) -> None:
    print(f"  giving back the {order['payment']}")
    await asyncio.sleep(0.1)
    if order["item"] == "organ":
        raise NonRetryable("the card was closed")


async def ship(order: State) -> State:
    print(f"  shipping the {order['item']} from {order['shelf']}")
    if order["item"] in ("piano", "organ"):
        raise NonRetryable(f"no carrier takes this: {order['item']}")
    return {"parcel": f"parcel with a {order['item']}"}


order_saga = sequence(
    "order_saga",
    [
        step(reserve, compensate=release),
        step(charge, compensate=refund, retry=Retry.payment),
        step(ship, retry=Retry.external_service),
    ],
)


async def main(database: str) -> None:
    async with Engine(database, workflows=[order_saga]) as engine:
        for item, cents in (("kettle", 12_900), ("piano", 490_000), ("organ", 990_000)):
            run = await engine.start(order_saga, {"item": item, "cents": cents}, id=f"order-{item}")
            try:
                print((await run.result())["parcel"])
            except RunFailed as failed:
                said = [f"{each['name']} {each['status']}" for each in (await run.describe()).compensation or []]
                print(f"{failed.__cause__}; {', '.join(said)}")
        for letter in await engine.dead_letters.list(kind="work"):
            print(f"for an operator: {letter.activity} of {letter.run_id}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "saga.db"))
