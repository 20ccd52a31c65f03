"""How each code of `why` comes about: one function a code, which leaves a run that has it and says its id."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, NamedTuple

from tests.support.waiting import eventually

from holdfast import Context, NotReady, Retry, activity, step_context, workflow
from holdfast.clock import Instant
from holdfast.contract.figures import BOUNDS, CLAIMED, MINUTE, Figure
from holdfast.contract.moves import FinishMove
from holdfast.contract.operations import Committed, Done, Started
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import StartRun, State
from holdfast.limits import Limit
from holdfast.stores import open_store
from holdfast.testing import JumpingClock, TestEngine
from holdfast.testing.conformance.moving import mark
from holdfast.testing.conformance.samples import new_run, one, turn

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
BRIEF = timedelta(milliseconds=50)
LIMITS = [Limit(name="openai", at_once=1), Limit(name="bank", trip_after=1, cool_down=HOUR)]


class CardDeclinedError(Exception):
    pass


# What runs do.


@activity(retry=Retry(max_attempts=8, initial_interval=HOUR, max_interval=HOUR, jitter=0))
async def book_carrier() -> None:
    raise CardDeclinedError("503")


@activity(retry=Retry.never)
async def charge() -> None:
    raise CardDeclinedError("insufficient funds")


@activity(limit="bank", retry=Retry(max_attempts=8, initial_interval=SECOND, jitter=0))
async def ask_bank() -> None:
    raise CardDeclinedError("no answer")


@activity(heartbeat_timeout=HOUR)
async def encode() -> None:
    step_context().heartbeat("61 %")
    await asyncio.Event().wait()


@activity(idempotency_key=lambda: "acct-17")
async def keyed() -> None:
    await asyncio.Event().wait()


@activity(limit="openai")
async def embed() -> None:
    await asyncio.Event().wait()


@activity(queue="gpu")
async def train() -> None: ...


@activity
async def refund() -> None:
    await asyncio.Event().wait()


@activity
async def restock() -> None: ...


def not_connected(step: Any) -> NotReady:
    return NotReady("not connected", HOUR)


@activity(run_when=not_connected)
async def upload() -> None: ...


def one_step(body: Any) -> Any:
    """Return a workflow that does one step."""

    async def run(ctx: Context) -> None:
        await ctx.step(body)

    return workflow(name=body.name)(run)


steps = {body.name: one_step(body) for body in (book_carrier, charge, ask_bank, encode, keyed, embed, train, upload)}


@workflow
async def quick(ctx: Context) -> str:
    return "done"


@workflow
async def breaks(ctx: Context) -> None:
    raise ValueError("the code is wrong")


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved", timeout=24 * HOUR)


@workflow
async def stock(ctx: Context) -> None:
    await ctx.receive("stock")


@workflow
async def parent(ctx: Context, depth: int = 1, child: str = "") -> None:
    child = child or f"ship-{depth - 1}"
    await (ctx.child(approval, id=child) if depth == 1 else ctx.child(parent, depth - 1, id=child))


@workflow
async def failing_parent(ctx: Context) -> None:
    await ctx.child(breaks, id="ship-204")


@workflow
async def sleeper(ctx: Context) -> None:
    await ctx.sleep(18 * HOUR)


@workflow
async def either(ctx: Context) -> None:
    await asyncio.gather(ctx.receive("approved"), ctx.child(sleeper, id="other"))


@workflow
async def stubborn(ctx: Context) -> None:
    try:
        await ctx.sleep(40 * HOUR)
    except asyncio.CancelledError:
        await ctx.sleep(2 * HOUR)
        raise


@workflow
async def trip(ctx: Context) -> None:
    ctx.compensate(refund)
    ctx.compensate(restock)
    raise ValueError("out of stock")


async def hook(run_id: str, state: Any) -> None:
    await asyncio.Event().wait()


@workflow(on_complete=hook)
async def hooked(ctx: Context) -> None: ...


@workflow(at_once=1)
async def one_by_one(ctx: Context) -> None:
    await ctx.sleep(HOUR)


@workflow(key=lambda: "page", debounce=HOUR)
async def indexing(ctx: Context) -> None: ...


@workflow
async def stuck(ctx: Context) -> None:
    await asyncio.Event().wait()


@workflow
async def spins(ctx: Context) -> None:
    while True:  # noqa: ASYNC110  # the very thing that is told
        await asyncio.sleep(0)


@workflow(name="changing")
async def before(ctx: Context) -> None:
    await ctx.step(restock)
    await ctx.receive("approved")


@workflow(name="changing")
async def after(ctx: Context) -> None:
    await ctx.step(refund)
    await ctx.receive("approved")


@workflow(name="typed")
async def typed_before(ctx: Context, given: str) -> None:
    await ctx.receive("approved")


@workflow(name="typed")
async def typed_after(ctx: Context, given: int) -> None:
    await ctx.receive("approved")


ALL = [
    *steps.values(), quick, breaks, approval, stock, parent, failing_parent, sleeper, either, stubborn, trip,
    hooked, one_by_one, indexing, stuck, spins, before, typed_before,
]  # fmt: skip


# How they come about.


class House:
    """A database, its clock, and the engines and stores that a case opens on it."""

    def __init__(self, database: str, stack: AsyncExitStack) -> None:
        self.database = database
        self.clock = JumpingClock()
        self._stack = stack

    async def engine(self, workflows: Any = ALL, **options: Any) -> TestEngine:
        engine = TestEngine(
            self.database, workflows=workflows, clock=self.clock, limits=LIMITS, stop_grace=timedelta(0), **options
        )
        await self._stack.enter_async_context(engine)
        engine.store.clock = self.clock
        return engine

    async def store(self) -> Store:
        store = open_store(self.database, "process")
        await store.open()
        self._stack.push_async_callback(store.close)
        store.clock = self.clock
        return store

    async def held_by(self, worker: str, lease: timedelta = BRIEF, run_id: str = "order-1") -> Store:
        """Start a run as a worker that joined with a lease, and return its store."""
        store = await self.store()
        await store.join(worker, lease)
        await one(store, StartRun(run=new_run(run_id, owner=worker, at=self.clock.now())), Started)
        return store


class Case(NamedTuple):
    """What brings a code about, and how the sentence begins that says it."""

    make: Callable[[House], Awaitable[str]]
    sentence: str


CASES: dict[str, Case] = {}


def case(code: str, sentence: str) -> Callable[[Any], Any]:
    """Register a function that brings a code about; it returns the id of the run."""

    def register(make: Any) -> Any:
        CASES[code] = Case(make, sentence)
        return make

    return register


async def settled(house: House, flow: Any, *given: Any, **options: Any) -> str:
    """Start `order-1` and let it go as far as it can without waiting."""
    engine = await house.engine()
    await engine.start(flow, *given, id="order-1", **options)
    await engine.settle()
    return "order-1"


async def until(house: House, engine: TestEngine, run_id: str, check: Callable[[Any], Any]) -> None:
    """Wait until the head of a run is as it should be."""

    async def look() -> bool:
        found = await engine.store.heads_of([run_id])
        return run_id in found and bool(check(found[run_id]))

    await eventually(look)


def ends_with(code: str, sentence: str, flow: Any) -> None:
    """Register a code that a run has once it went as far as it can."""
    case(code, sentence)(lambda house: settled(house, flow))


ends_with("completed", "Completed 0.0 s ago, 0.0 s after it was started", quick)
ends_with("failed.step", "Step `charge` gave up after 1 attempt: CardDeclinedError: insufficient", steps["charge"])
ends_with("failed.code", "Its code raised ValueError: the code is wrong", breaks)
ends_with("failed.child", "Its child failed: ", failing_parent)
ends_with("blocked.stuck", "Blocked: run order-1 waits for something that nothing can bring about", stuck)
ends_with("blocked.busy_loop", "Blocked: the workflow never waits for anything durable", spins)
ends_with("waiting.message", "Waits for message `approved` since 0.0 s; gives up in 1 d", approval)
ends_with("waiting.child", "Waits for child `ship-0`, which waits for message `approved` since 0.0 s; gives up", parent)
ends_with("waiting.sleep", "Sleeps until ", sleeper)
ends_with(
    "waiting.retry", "Step `book_carrier` failed 1 time of 8, next attempt in 1 h: CardDec", steps["book_carrier"]
)
ends_with("waiting.several", "Waits for message `approved` or child `other`; whichever comes first moves it", either)


@case("failed.timeout", "Took longer than it was given: RunTimeout: ")
async def too_long(house: House) -> str:
    engine = await house.engine()
    await engine.start(sleeper, id="order-1", timeout=HOUR)
    await engine.advance(2 * HOUR)
    return "order-1"


@case("cancelled", "Cancelled by kim: ordered twice; nothing was undone")
async def cancelled(house: House) -> str:
    engine = await house.engine()
    run = await engine.start(approval, id="order-1")
    await engine.settle()
    await run.cancel(by="kim", reason="ordered twice")
    await engine.settle()
    return "order-1"


@case("terminated", "Terminated by kim: INC-9")
async def terminated(house: House) -> str:
    engine = await house.engine()
    run = await engine.start(approval, id="order-1")
    await engine.settle()
    await run.terminate(by="kim", reason="INC-9")
    return "order-1"


@case("moving", "On its way to temporal://host:7233/default: nothing of it happens here, what is sent to it")
async def moving(house: House) -> str:
    await _marked(await house.engine())
    return "order-1"


@case("moved", "Moved to temporal://host:7233/default 0.0 s ago: it goes on there")
async def moved(house: House) -> str:
    engine = await house.engine()
    await _marked(engine)
    gone = FinishMove(target="order-1", token="mine", at=engine.clock.now(), seen=9)  # no secret
    await one(engine.store, gone, Done)
    return "order-1"


async def _marked(engine: Any) -> None:
    run = await engine.start(approval, id="order-1")
    await engine.settle()
    await run.pause()
    await engine.settle()
    await one(engine.store, mark((await engine.store.get("order-1")), at=engine.clock.now()), Done)


@case("blocked.mismatch", "Blocked: the code has a new ")
async def mismatch(house: House) -> str:
    return await _with_other_code(house, before, after)


@case("blocked.code", "Blocked: ")
async def undecodable(house: House) -> str:
    return await _with_other_code(house, typed_before, typed_after, "lamp")


async def _with_other_code(house: House, old: Any, new: Any, *given: Any) -> str:
    async with TestEngine(house.database, workflows=[old], clock=house.clock) as engine:
        await engine.start(old, *given, id="order-1")
        await engine.settle()
    engine = await house.engine([new])
    await engine.get("order-1").send("note", 1)
    await until(house, engine, "order-1", lambda head: head.status is Status.BLOCKED)
    return "order-1"


@case("blocked.poison", "Blocked: three workers in a row drove it alone and none got a commit out of it")
async def poison(house: House) -> str:
    store, now = await house.store(), house.clock.now()
    await one(store, StartRun(run=new_run("order-1", at=now)), Started)
    await store.join("w", HOUR)
    await kill_workers(store, now)
    return "order-1"


async def kill_workers(store: Store, now: Instant, workflow: str = "order") -> None:
    """Let a run be lost with the workers that drive it, until no other is given to it."""
    for trial in (False, True, True, True):
        [taken] = await store.claim("w", now, 100, [workflow])
        if trial:
            await one(store, turn(taken.key, taken.epoch, trial=True), Committed)
        state = State(status=Status.PENDING, seen=0, due=now, released=True)
        await one(store, turn(taken.key, taken.epoch, state=state), Committed)
    assert await store.claim("w", now, 100, [workflow]) == []


@case("paused", "Paused by lena 0.0 s ago: bank down, INC-7; goes on by itself in 2 h")
async def paused(house: House) -> str:
    engine = await house.engine()
    run = await engine.start(approval, id="order-1")
    await engine.settle()
    await run.pause(by="lena", reason="bank down, INC-7", duration=2 * HOUR)
    await engine.settle()
    return "order-1"


@case("cancelling", "Being cancelled by kim: its code has not come to its end yet; it is ended in ")
async def cancelling(house: House) -> str:
    engine = await house.engine(cancel_grace=30 * HOUR)
    run = await engine.start(stubborn, id="order-1")
    await engine.settle()
    await run.cancel(by="kim")
    await engine.settle()
    return "order-1"


@case("compensating", "Undoing what it has done: 1 of 2 undone, `refund` is running")
async def compensating(house: House) -> str:
    engine = await house.engine()
    run = await engine.start(trip, id="order-1")

    async def at_the_refund() -> bool:
        return any(step.name == "refund" and step.status == "running" for step in await run.steps())

    await eventually(at_the_refund)
    return "order-1"


@case("ending.hook", "Ends completed: its hook for that is being called")
async def ending(house: House) -> str:
    engine = await house.engine()
    await engine.start(hooked, id="order-1")
    await until(house, engine, "order-1", lambda head: head.conclusion is not None)
    return "order-1"


@case("pending.later", "Begins ")
async def later(house: House) -> str:
    engine = await house.engine(run_workflows=False)
    await engine.start(sleeper, id="order-1", delay=9 * HOUR)
    return "order-1"


@case("pending.nobody", "No worker can take it: none is alive")
async def nobody(house: House) -> str:
    engine = await house.engine(run_workflows=False)
    await engine.start(sleeper, id="order-1")
    return "order-1"


@case(
    "pending.busy",
    "Waits for a worker: it was due 0.0 s ago, 1 run is pending before it, and 1 worker is alive; "
    "about 90 are taken a second",
)
async def busy(house: House) -> str:
    store = await house.store()
    await store.join("worker-3", HOUR)  # it has not told what it serves
    minute = (house.clock.now() // MINUTE - 1) * MINUTE
    await store.add_figures([Figure(minute, "sleeper", "", CLAIMED, 5 * 60 * 90, 0, (0,) * len(BOUNDS))])
    engine = await house.engine(run_workflows=False)
    await engine.start(sleeper, id="order-0")
    house.clock.advance(SECOND)
    await engine.start(sleeper, id="order-1")
    return "order-1"


@case("overdue", "It was due 4 min ago and no worker took it: none is alive")
async def overdue(house: House) -> str:
    await nobody(house)
    house.clock.advance(timedelta(minutes=4))
    return "order-1"


@case("pending.admission", "Waits for its turn: the runs of workflow `one_by_one` take turns, or have no free place")
async def admission(house: House) -> str:
    engine = await house.engine()
    await engine.start(one_by_one, id="order-0")
    await engine.settle()
    await engine.start(one_by_one, id="order-1")
    await engine.settle()
    return "order-1"


@case("debounced", "Begins ")
async def debounced(house: House) -> str:
    return await settled(house, indexing)


@case("running.step", "Step `encode`, attempt 1, since 0.0 s on `")
async def running(house: House) -> str:
    engine = await house.engine()
    await engine.start(steps["encode"], id="order-1")

    async def beats() -> bool:
        found = await engine.store.heads_of(["order-1"])
        return bool(await engine.store.beats(found["order-1"].key))

    await eventually(beats)
    return "order-1"


@case("running.silent", "Its worker `")
async def silent(house: House) -> str:
    store = await house.held_by("worker-3")
    await eventually(lambda: _state(store, "worker-3", "silent"))
    return "order-1"


@case("running.dead", "Its worker `")
async def dead(house: House) -> str:
    worker = await house.held_by("worker-3")
    await worker.close()
    store = await house.store()
    await eventually(lambda: _state(store, "worker-3", "dead"))
    return "order-1"


async def _state(store: Store, worker: str, state: str) -> bool:
    return {row.id: row.state for row in await store.workers()}.get(worker) == state


@case("waiting.condition", 'Step `upload` is put off, "not connected", and asked again in 1 h')
async def put_off(house: House) -> str:
    engine = await house.engine()
    await engine.start(steps["upload"], id="order-1")
    await until(house, engine, "order-1", lambda head: head.wait)
    return "order-1"


@case("waiting.limit", "Step `embed` waits for its turn: limit `openai` (1 at once) is used up; 1 waits, 1 runs")
async def limited(house: House) -> str:
    engine = await house.engine()
    for number in range(2):
        await engine.start(steps["embed"], id=f"order-{number}")
        await eventually(lambda: engine.bodies == 1)
    await until(house, engine, "order-1", lambda head: head.wait)
    return "order-1"


@case("waiting.circuit", "Step `ask_bank` waits: the circuit of limit `bank` is open after failures, until ")
async def circuit(house: House) -> str:
    engine = await house.engine()
    await engine.start(steps["ask_bank"], id="order-0")
    await until(house, engine, "order-0", lambda head: head.wait)
    await engine.start(steps["ask_bank"], id="order-1")
    await until(house, engine, "order-1", lambda head: head.wait)
    return "order-1"


@case("waiting.paused", "Step `train` waits in queue `gpu`, which was paused 0.0 s ago")
async def paused_queue(house: House) -> str:
    engine = await house.engine()
    await engine.flow.pause(queue="gpu", by="lena")
    await engine.start(steps["train"], id="order-1")
    await until(house, engine, "order-1", lambda head: head.wait)
    return "order-1"


@case("waiting.queue", "Step `train` waits in queue `gpu`")
async def queued(house: House) -> str:
    engine = await house.engine()
    await engine.start(steps["train"], id="order-1")
    await engine.settle()
    await (await house.store()).join("worker-3", HOUR)  # it has not told what it serves
    return "order-1"


@case("waiting.queue.nobody", "Step `train` waits in queue `gpu`, and no worker is alive")
async def no_worker_for_a_queue(house: House) -> str:
    async with TestEngine(house.database, workflows=ALL, clock=house.clock, limits=LIMITS) as engine:
        await engine.start(steps["train"], id="order-1")
        await engine.settle()
    await house.engine(run_workflows=False)
    return "order-1"


@case(
    "waiting.key", "Step `keyed` waits for idempotency key `acct-17`, held by `order-0` for 0.0 s, which runs on worker"
)
async def key(house: House) -> str:
    engine = await house.engine()
    await engine.start(steps["keyed"], id="order-0")
    await eventually(lambda: engine.bodies == 1)
    await engine.start(steps["keyed"], id="order-1")
    await until(house, engine, "order-1", lambda head: head.wait)
    return "order-1"


@case("waiting.message.similar", "Waits for message `approved` since 0.0 s; a message `aproved` is in its inbox unread")
async def similar(house: House) -> str:
    engine = await house.engine()
    run = await engine.start(approval, id="order-1")
    await engine.settle()
    await run.send("aproved", 1)
    return "order-1"


@case("waiting.event", "Waits for event `stock` since 0.0 s; the last `stock` went to `order-0` 0.0 s ago")
async def event(house: House) -> str:
    engine = await house.engine()
    await engine.publish("stock", 1)
    await engine.start(stock, id="order-0")
    await engine.settle()
    await engine.start(stock, id="order-1")
    await engine.settle()
    return "order-1"


@case("waiting.unknown", "Waits; what for is not on record")
async def unknown(house: House) -> str:
    """As a database of an earlier holdfast may have it."""
    store, now = await house.store(), house.clock.now()
    run = new_run("order-1", owner="w", at=now)
    await store.join("w", HOUR)
    state = State(status=Status.SUSPENDED, seen=0)
    await one(store, StartRun(run=run, turn=turn(0, at=now, state=state)), Started)
    return "order-1"
