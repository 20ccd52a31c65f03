"""A web service: FastAPI with two processes that share one database, each with a worker of its own.

    pip install fastapi uvicorn
    uvicorn --app-dir examples --workers 2 web_service:app

    curl -X PUT localhost:8000/orders/7 -H 'content-type: application/json' -d '{"item": "kettle", "cents": 12900}'
    curl -X POST localhost:8000/orders/7/approval
    curl localhost:8000/orders/7

Any process answers for any order: what is known of it is in the database. Kill one of them, or both, and start the
service again: orders go on where they were, and nothing that was recorded is done twice. Remove orders.db to begin
again.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from holdfast import Context, Engine, NoSuchRun, RunConflict, RunTerminal, workflow

DATABASE = os.environ.get("DATABASE", "orders.db")  # or postgresql://...


class Order(BaseModel):
    item: str
    cents: int


class Seen(BaseModel):
    status: str
    result: str | None = None


async def charge(order: Order) -> str:
    print(f"  charging {order.cents / 100:.2f} for a {order.item}", flush=True)
    await asyncio.sleep(0.1)
    return f"paid {order.cents / 100:.2f}"


async def ship(order: Order) -> str:
    print(f"  shipping a {order.item}", flush=True)
    return f"parcel with a {order.item}"


@workflow
async def fulfil(ctx: Context, order: Order) -> str:
    if not await ctx.receive("approval", bool, timeout=timedelta(days=7), default=False):
        return "not approved"
    return f"{await ctx.step(charge, order)}, {await ctx.step(ship, order)}"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
    async with Engine(DATABASE, workflows=[fulfil]) as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


@app.put("/orders/{number}", status_code=202)
async def place(number: int, order: Order, request: Request) -> Seen:
    """Place an order; the same request again finds the order that is there."""
    try:
        run = await engine_of(request).start(fulfil, order, id=f"order-{number}")
    except RunConflict:
        raise HTTPException(409, f"there is another order {number}") from None
    return Seen(status=await run.status())


@app.post("/orders/{number}/approval", status_code=202)
async def approve(number: int, request: Request) -> None:
    """Approve an order; approved twice is approved once."""
    try:
        await engine_of(request).get(f"order-{number}").send("approval", True, id=f"approval-{number}")
    except NoSuchRun:
        raise HTTPException(404) from None
    except RunTerminal as over:
        raise HTTPException(409, str(over)) from None


@app.get("/orders/{number}")
async def look(number: int, request: Request) -> Seen:
    """Say how an order stands."""
    try:
        run = await engine_of(request).get(f"order-{number}").describe()
    except NoSuchRun:
        raise HTTPException(404) from None
    return Seen(status=run.status, result=run.output)
