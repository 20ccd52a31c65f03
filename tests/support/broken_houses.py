"""Five houses in which something is broken, as an operator finds them; each is mended by one command, or by none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.clock import Clock
from holdfast.contract.operations import Committed, Started
from holdfast.contract.rows import Status
from holdfast.contract.turns import StartRun, State
from holdfast.stores import open_store
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.conformance.samples import claim, new_run, one, turn

HOUR = timedelta(hours=1)
DATABASE = "sqlite:///holdfast.db"
ORDERS = 400


class BankDown(Exception):  # as an operator would read it
    pass


@activity(queue="gpu")
async def render(what: str) -> str:
    return f"a picture of {what}"


@workflow
async def picture(ctx: Context, what: str) -> str:
    return await ctx.step(render, what)


@activity(retry=Retry(max_attempts=8, initial_interval=HOUR, max_interval=HOUR, jitter=0))
async def charge(order: int) -> str:
    if step_context().bank_down:
        raise BankDown("503")
    return f"charged {order}"


@activity
async def check_fraud(order: int) -> bool:
    return True


@workflow
async def fulfil(ctx: Context, order: int) -> str:
    return await ctx.step(charge, order)


@workflow(name="deliver")
async def deliver(ctx: Context, order: int) -> str:
    receipt = await ctx.step(charge, order)
    await ctx.receive("packed")
    return receipt


@workflow(name="deliver")
async def deliver_checked(ctx: Context, order: int) -> str:
    await ctx.step(check_fraud, order)
    receipt = await ctx.step(charge, order)
    await ctx.receive("packed")
    return receipt


class BrokenHouse:
    """A house that stands while it is looked at; `mend` is what a command that is not one of holdfast's does."""

    def __init__(self, stack: AsyncExitStack, database: str, minutes_ago: int = 0) -> None:
        self.database = database
        self.clock = JumpingClock(datetime.now(UTC) - timedelta(minutes=minutes_ago))
        self.bank_down = False
        self.mend: Callable[[], Awaitable[None]] | None = None
        self.repaired: Callable[[], Awaitable[bool]] | None = None
        """Whether it is, once the last command was given; None if no command mends it."""
        self._stack = stack

    def catch_up(self) -> None:
        """Let the house's clock be no later than that of the command, which goes by the machine's."""
        self.clock.jump_to(Clock().now())

    async def engine(self, workflows: list[Any], **options: Any) -> TestEngine:
        return await self._stack.enter_async_context(self.unopened(workflows, **options))

    def unopened(self, workflows: list[Any], **options: Any) -> TestEngine:
        context = {"bank_down": self.bank_down}
        self.context = context
        return TestEngine(self.database, workflows=workflows, clock=self.clock, context=lambda: context, **options)


async def ended(engine: TestEngine, status: str, count: int) -> bool:
    return len([run for run in await engine.runs(limit=1000) if run.status == status]) == count


async def a_queue_that_no_worker_serves(house: BrokenHouse) -> None:
    engine = await house.engine([picture])
    for number in range(12):
        await engine.start(picture, "sunset", id=f"picture-{number}")

    async def queued() -> bool:
        return sum(row.waiting for row in await engine.store.queues()) == 12

    await eventually(queued)

    async def mend() -> None:
        await house.engine([picture], queues=["gpu"])

    house.mend = mend
    house.repaired = lambda: ended(engine, "completed", 12)


async def a_deploy_that_diverged(house: BrokenHouse) -> None:
    async with house.unopened([deliver]) as engine:
        for number in range(3):
            await engine.start(deliver, number, id=f"order-{number}")
        await engine.settle()
    async with house.unopened([deliver_checked]) as engine:
        for number in range(3):
            await engine.get(f"order-{number}").send("packed")
        await eventually(lambda: ended(engine, "blocked", 3))

    async def repaired() -> bool:
        """The code was put back, and a worker with it is started."""
        house.catch_up()
        async with house.unopened([deliver]) as engine:
            await eventually(lambda: ended(engine, "completed", 3))
        return True

    house.repaired = repaired


async def a_bank_that_is_down(house: BrokenHouse) -> None:
    house.bank_down = True
    engine = await house.engine([fulfil])
    for number in range(ORDERS):
        await engine.start(fulfil, number, id=f"order-{number}")
    await engine.settle()
    house.context["bank_down"] = False  # it is back by the time of the last command

    async def repaired() -> bool:
        house.catch_up()
        return await ended(engine, "completed", ORDERS)

    house.repaired = repaired


async def a_poison_run(house: BrokenHouse) -> None:
    store, now = open_store(house.database), house.clock.now()
    await store.open()
    await one(store, StartRun(run=new_run("picture-7", at=now)), Started)
    await store.join("worker-3", HOUR)
    for trial in (False, True, True, True):
        [taken] = await claim(store, "worker-3", now=now)
        if trial:
            await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
        state = State(status=Status.PENDING, seen=0, due=now, released=True)
        await one(store, turn(taken.key, taken.epoch, state=state), Committed)
    assert await claim(store, "worker-3", now=now) == []
    await store.close()

    async def repaired() -> bool:
        async with house.unopened([], run_workflows=False) as engine:
            return await engine.get("picture-7").status() == "cancelled"

    house.repaired = repaired


async def a_full_disk(house: BrokenHouse) -> None:
    engine = await house.engine([fulfil])
    await engine.execute(fulfil, 1, id="order-1")
    engine.faults.fill()


HOUSES = {
    "A queue that no worker serves": a_queue_that_no_worker_serves,
    "A deploy that diverged": a_deploy_that_diverged,
    "A bank that is down": a_bank_that_is_down,
    "A poison run": a_poison_run,
    "A full disk": a_full_disk,
}


@asynccontextmanager
async def broken(name: str, database: str = DATABASE) -> AsyncIterator[BrokenHouse]:
    """Break a house in the current folder, or in a database, and keep it so."""
    async with AsyncExitStack() as stack:
        house = BrokenHouse(stack, database, minutes_ago=11 if "queue" in name else 0)
        await HOUSES[name](house)
        assert database != DATABASE or Path("holdfast.db").exists()
        yield house
