"""A web service that is not async: Flask under gunicorn, which loads the program once and then forks two processes.

    pip install flask gunicorn
    cd examples/flask_service
    gunicorn app:app

    curl -X PUT localhost:8000/orders/7 -H 'content-type: application/json' -d '{"item": "kettle", "cents": 12900}'
    curl -X POST localhost:8000/orders/7/approval
    curl localhost:8000/orders/7

The engine is made here, before the fork, which opens nothing; `gunicorn.conf.py` opens it in each process after the
fork. Kill one of them, or all, and start the service again: orders go on where they were, and nothing that was recorded
is done twice. Remove orders.db to begin again.
"""

import os
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from flask import Flask, abort, request

from holdfast import Context, Engine, NoSuchRun, RunConflict, RunTerminal, workflow

Answer = tuple[dict[str, Any], int]


@dataclass
class Order:
    item: str
    cents: int


def charge(order: Order) -> str:
    print(f"  charging {order.cents / 100:.2f} for a {order.item}", flush=True)
    time.sleep(0.1)  # a plain function runs in a thread
    return f"paid {order.cents / 100:.2f}"


def ship(order: Order) -> str:
    print(f"  shipping a {order.item}", flush=True)
    return f"parcel with a {order.item}"


@workflow
async def fulfil(ctx: Context, order: Order) -> str:
    if not await ctx.receive("approval", bool, timeout=timedelta(days=7), default=False):
        return "not approved"
    return f"{await ctx.step(charge, order)}, {await ctx.step(ship, order)}"


engine = Engine(os.environ.get("DATABASE", "orders.db"), workflows=[fulfil])
call = engine.in_thread()
app = Flask(__name__)


@app.put("/orders/<int:number>")
def place(number: int) -> Answer:
    """Place an order; the same request again finds the order that is there."""
    order = Order(**request.get_json())
    try:
        run = call(engine.start(fulfil, order, id=f"order-{number}"))
    except RunConflict:
        abort(409, f"there is another order {number}")
    return {"status": call(run.status())}, 202


@app.post("/orders/<int:number>/approval")
def approve(number: int) -> Answer:
    """Approve an order; approved twice is approved once."""
    try:
        call(engine.get(f"order-{number}").send("approval", True, id=f"approval-{number}"))
    except NoSuchRun:
        abort(404)
    except RunTerminal as over:
        abort(409, str(over))
    return {}, 202


@app.get("/orders/<int:number>")
def look(number: int) -> Answer:
    """Say how an order stands."""
    try:
        run = call(engine.get(f"order-{number}").describe())
    except NoSuchRun:
        abort(404)
    return {"status": run.status, "result": run.output}, 200
