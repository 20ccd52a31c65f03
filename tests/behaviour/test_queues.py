"""Queues: steps that wait for whichever engine serves their queue, and workflows that only some engines advance."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import (
    Context,
    Engine,
    NonRetryable,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.declarative import graph, sequence, step
from holdfast.definitions import NotReady
from holdfast.errors import BadInput, DefinitionError, RetryAfter, StepSkipped, StepTimeout, UndecodablePayload
from holdfast.limits import Limit
from holdfast.replay import entry as entries
from holdfast.testing import TestEngine

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
BOTH = ("default", "gpu")
QUICK = Retry(max_attempts=3, initial_interval=timedelta(milliseconds=1))

two_engines = pytest.mark.parametrize("mode", ["file", "evict"])


@dataclass(frozen=True)
class Picture:
    name: str
    size: tuple[int, int]


def calling(called: Any, *args: Any) -> Any:
    """Return a workflow that makes one step."""

    @workflow
    async def caller(ctx: Context) -> Any:
        return await ctx.step(called, *args)

    return caller


async def result_of(engine: Any, run: Any) -> Any:
    """Wait in real time: the work may be done by the other engine."""
    return await asyncio.wait_for(engine.get(run.id).result(), LONG)


async def kinds(engine: Any, run: Any) -> list[str]:
    """Return what history has of steps, in order, with the numbers of attempts."""
    row = await engine.store.get(run.id)
    rows = await engine.store.history(row.key)
    found = [entries.decode_entry(each.kind, each.data) for each in rows]
    return [f"{entry.word} {getattr(entry, 'attempt', '')}".strip() for entry in found if hasattr(entry, "attempt")]


async def tasks_left(engine: Any, *workers: Any) -> list[Any]:
    """Return the attempts that workers have, or that wait in the queue gpu."""
    await engine.store.join("looker", HOUR)
    names = [activity for worker in (engine, *workers) for activity in worker._queues.activities]
    left: list[Any] = list(await engine.store.claim_tasks("looker", engine.clock.now(), 99, ["gpu"], names))
    for worker in (engine, *workers):
        left += await engine.store.held_tasks(worker.worker_id)
    return left


# Where steps run.


async def test_a_step_with_a_queue_is_run_by_the_engine_that_serves_it(make_engine):
    """S0-60 One engine may serve both: the step goes through its queue all the same."""
    seen: list[Any] = []

    @activity(queue="gpu")
    async def train(picture: Picture, *, rounds: int) -> Picture:
        context = step_context()
        seen.append((context.run_id, context.workflow, context.step, context.attempt, context.idempotency_key))
        seen.append((picture, rounds, context.input, context.pending_since is not None, context.signal.aborted))
        return Picture(picture.name.upper(), picture.size)

    @workflow
    async def caller(ctx: Context) -> Picture:
        return await ctx.step("training", train, Picture("a", (1, 2)), rounds=3)

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller, id="r")
    assert await run.result() == Picture("A", (1, 2))
    assert seen[0] == ("r", "caller", "training", 1, "r:training")
    assert seen[1][:2] == (Picture("a", (1, 2)), 3)
    assert seen[1][2:] == ((Picture("a", (1, 2)),), True, False)
    assert await kinds(engine, run) == ["step 1", "step completed 1"]


async def test_a_queue_named_default_is_a_queue_too(make_engine):
    """S0-60 It is handed out like any other, and every engine serves it unless told otherwise."""

    @activity(queue="default")
    def double(number: int) -> int:
        return 2 * number

    engine = await make_engine(calling(double, 21))
    run = await engine.start("caller")
    assert await run.result() == 42


async def test_a_run_that_waits_for_a_queue_is_parked_and_says_so(make_engine, caplog):
    """S0-60 No slot, no thread, no owner needed; the log says once what is missing."""

    @activity(queue="gpu")
    async def train(number: int) -> int:
        return number

    @workflow
    async def caller(ctx: Context, number: int) -> int:
        return await ctx.step(train, number)

    engine = await make_engine(caller)
    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        runs = [await engine.start(caller, number) for number in range(3)]
        await engine.settle()
    said = [record.getMessage() for record in caplog.records if "queue" in record.getMessage()]
    assert len(said) == 1
    assert "'gpu'" in said[0]
    assert "Engine(queues=['gpu', ...])" in said[0]
    for run in runs:
        found = await run.describe()
        assert (found.status, found.waiting_for, found.due_at) == (Status.SUSPENDED, "step train (queue gpu)", None)
    [step_now] = await runs[0].steps()
    assert (step_now.status, step_now.attempts) == ("running", 1)
    assert engine.bodies == 0


async def test_an_engine_that_serves_a_queue_says_what_activity_it_does_not_know(make_engine, caplog):
    """S0-60 A function that the code reaches only while it runs has to be given to the engine."""

    @activity(queue="gpu")
    async def train() -> str:
        return "trained"

    hidden = [train]

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(hidden[0])

    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        engine = await make_engine(caller, queues=BOTH)
        await engine.start(caller)
        await engine.settle()
    assert any("knows activity 'train'" in each.getMessage() for each in caplog.records)
    other = await make_engine(caller, queues=BOTH, activities=[train], database=":memory:")
    assert await other.execute(caller) == "trained"


@two_engines
async def test_the_step_runs_where_its_queue_is_served_and_the_run_where_its_workflow_is(make_engine):
    """S0-60 The worker knows no workflow at all."""

    @activity(queue="gpu")
    async def train(number: int) -> list[str]:
        return [step_context().where, str(number)]

    async def local() -> str:
        return step_context().where

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return [*await ctx.step(train, 1), await ctx.step(local)]

    office = await make_engine(caller, context=lambda: {"where": "office"})
    worker = await make_engine(
        activities=[train], queues=["gpu"], clock=office.jumping, context=lambda: {"where": "machine room"}
    )
    run = await office.start(caller)
    assert await result_of(office, run) == ["machine room", "1", "office"]
    assert await worker.stats() == await office.stats()


@two_engines
async def test_a_worker_takes_only_what_it_serves_and_knows(make_engine):
    """S0-60 Two queues, two activities: nobody touches what is not theirs."""

    @activity(queue="a")
    async def first() -> str:
        return step_context().where

    @activity(queue="b")
    async def second() -> str:
        return step_context().where

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step(first), ctx.step(second)))

    office = await make_engine(caller, queues=["default"])
    for served, known in (("a", first), ("b", second), ("a", second), ("b", first)):
        name = f"{served} {known.name}"
        await make_engine(
            activities=[known], queues=[served], clock=office.jumping, context=lambda name=name: {"where": name}
        )
    run = await office.start(caller)
    assert await result_of(office, run) == ["a first", "b second"]


async def test_sync_and_isolated_bodies_run_from_queues_like_any_other(make_engine):
    """S0-60 DESIGN 3"""
    threads: list[str] = []

    @activity(queue="gpu")
    def sync(number: int) -> int:
        threads.append(threading.current_thread().name)
        return number + 1

    engine = await make_engine(calling(sync, 1), queues=BOTH)
    assert await engine.execute("caller") == 2
    assert threads == ["holdfast step"]


async def test_declared_workflows_may_have_steps_with_queues(make_engine):
    """S0-1 S0-60 Their activities are listed, so the engine knows them."""

    async def here(state: dict[str, Any]) -> dict[str, Any]:
        return {"here": True}

    async def there(state: dict[str, Any]) -> dict[str, Any]:
        return {"there": state["here"]}

    async def built(fetched: str) -> str:
        return fetched + " built"

    async def fetched() -> str:
        return "fetched"

    listed = sequence("listed", [here, step(there, queue="gpu")])
    drawn = graph("drawn", {fetched: [], step(built, queue="gpu"): [fetched]})
    engine = await make_engine(listed, drawn, queues=BOTH)
    assert await engine.execute(listed, {}) == {"here": True, "there": True}
    assert await engine.execute(drawn) == {"fetched": "fetched", "built": "fetched built"}


async def test_many_steps_side_by_side_and_after_each_other_go_through_queues(make_engine):
    """S0-60 G3 Each body once, whatever is evicted meanwhile."""
    bodies: list[int] = []

    @activity(queue="gpu")
    async def work(number: int) -> int:
        bodies.append(number)
        await asyncio.sleep(0)
        return number

    @workflow
    async def caller(ctx: Context, base: int) -> int:
        total = 0
        for lap in range(3):
            total += sum(await asyncio.gather(*(ctx.step(work, base + 10 * lap + each) for each in range(4))))
            await ctx.sleep(HOUR)
        return total

    engine = await make_engine(caller, queues=BOTH)
    runs = [await engine.start(caller, 100 * number) for number in range(10)]
    for number, run in enumerate(runs):
        assert await run.result() == sum(100 * number + 10 * lap + each for lap in range(3) for each in range(4))
    assert sorted(bodies) == sorted({*bodies})
    assert len(bodies) == 120


# Arguments.


async def test_an_argument_that_would_arrive_as_something_else_fails_the_step(make_engine):
    """GUARANTEES 6.1 It is told which one, and not tried again."""

    @activity(queue="gpu", retry=QUICK)
    async def train(picture) -> None: ...

    engine = await make_engine(calling(train, Picture("a", (1, 2))), queues=BOTH)
    run = await engine.start("caller")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, DefinitionError)
    assert "argument 1 of step 'train' is a Picture and would reach the worker" in str(caught.value.__cause__)
    assert await kinds(engine, run) == ["step 1", "step failed 1"]


async def test_a_key_function_that_raises_fails_the_attempt(make_engine):
    """B14 As it does for a step without a queue."""

    def broken(number: int) -> str:
        raise ValueError("no key")

    @activity(queue="gpu", idempotency_key=broken, retry=QUICK)
    async def train(number: int) -> None: ...

    engine = await make_engine(calling(train, 1), queues=BOTH)
    run = await engine.start("caller")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, ValueError)
    assert (await kinds(engine, run))[-1] == "step failed 3"


@two_engines
async def test_arguments_that_do_not_fit_the_worker_s_function_fail_the_step(make_engine):
    """G12 The worker has another version of the code."""

    @activity(queue="gpu")
    async def train(number: int) -> None: ...

    @activity(name="train")
    async def other(word: str, more: int) -> None: ...

    office = await make_engine(calling(train, 1))
    await make_engine(activities=[other], queues=["gpu"], clock=office.jumping)
    run = await office.start("caller")
    with pytest.raises(RunFailed) as caught:
        await result_of(office, run)
    assert isinstance(caught.value.__cause__, UndecodablePayload)


# Failing.


async def test_an_attempt_that_fails_is_made_again_from_the_queue(make_engine):
    """S1-22 S0-9 G4 Numbers go on; the error is that of the body."""
    attempts: list[int] = []

    @activity(queue="gpu", retry=Retry(max_attempts=3, initial_interval=HOUR))
    async def shaky(wanted: int) -> str:
        attempts.append(step_context().attempt)
        if len(attempts) < wanted:
            raise LookupError(f"try {len(attempts)}")
        return "at last"

    @workflow
    async def caller(ctx: Context, wanted: int) -> str:
        return await ctx.step(shaky, wanted)

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller, 3)
    assert await run.result() == "at last"
    assert attempts == [1, 2, 3]
    assert await kinds(engine, run) == [
        "step 1", "attempt failed 1", "attempt 2", "attempt failed 2", "attempt 3", "step completed 3",
    ]  # fmt: skip
    attempts.clear()
    run = await engine.start(caller, 9)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, LookupError)
    assert attempts == [1, 2, 3]
    [letter] = await engine.dead_letters.list(kind="work")
    assert (letter.step, letter.attempts) == ("shaky", 3)


async def test_errors_come_back_as_themselves_and_hopeless_ones_are_not_tried_again(make_engine):
    """B27 S1-23"""

    class Broken(NonRetryable):
        pass

    @activity(queue="gpu", raises=[Broken], retry=QUICK)
    async def train() -> None:
        raise Broken("for good")

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(train)
        except Broken as error:
            return str(error)
        return "?"

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller)
    assert await run.result() == "for good"
    assert await kinds(engine, run) == ["step 1", "step failed 1"]


async def test_a_worker_that_is_told_to_come_back_later_does(make_engine):
    """S4-19 RetryAfter is no failure, and holds its limit where the body ran."""
    times: list[int] = []

    @activity(queue="gpu", limit="api", retry=Retry(max_attempts=1))
    async def call() -> str:
        times.append(engine.clock.now())
        if len(times) == 1:
            raise RetryAfter(HOUR)
        return "ok"

    engine: Any = await make_engine(calling(call), queues=BOTH, limits=[Limit(name="api", at_once=1)])
    run = await engine.start("caller")
    assert await run.result() == "ok"
    assert times[1] - times[0] == 3600 * 1_000_000


async def test_the_call_says_how_long_an_attempt_may_take(make_engine):
    """S4-20 An async body is cancelled by the worker, the attempt is a failed one."""
    signals: list[Any] = []

    @activity(queue="gpu", retry=Retry(max_attempts=1))
    async def slow() -> None:
        signals.append(step_context().signal)
        await asyncio.sleep(60)

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(slow.options(timeout=timedelta(milliseconds=20)))

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, StepTimeout)
    assert [(each.aborted, each.reason) for each in signals] == [(True, "timeout")]


async def test_heartbeats_of_a_body_elsewhere_are_seen_on_the_run(make_engine):
    """S4-20 S4-29 And one that sends none is given up."""
    go = asyncio.Event()

    @activity(queue="gpu", heartbeat_timeout=timedelta(seconds=20))
    async def alive() -> str:
        step_context().heartbeat({"done": 7})
        await go.wait()
        return "ok"

    @activity(queue="gpu", heartbeat_timeout=timedelta(milliseconds=20), retry=Retry(max_attempts=1))
    async def silent() -> None:
        await asyncio.sleep(60)

    @workflow
    async def caller(ctx: Context) -> str:
        said = await ctx.step(alive)
        try:
            await ctx.step(silent)
        except TimeoutError as error:
            return f"{said} {type(error).__name__}"
        return "?"

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller)
    changes: list[Any] = []
    engine.subscribe(lambda change: changes.append(change) if change.type == "step.progress" else None)

    async def beaten() -> bool:
        return (await run.steps())[0].progress == {"done": 7}

    while not await beaten():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    go.set()
    assert await run.result() == "ok HeartbeatTimeout"
    assert [(each.run_id, each.step, each.data) for each in changes] in (
        [],
        [(run.id, "alive", {"progress": {"done": 7}})],
    )


# Conditions, limits, priorities, room.


async def test_a_condition_is_asked_where_the_step_would_run(make_engine):
    """B10 S0-26 S0-27 Skipped without using up an attempt, asked again later, in the end given up."""
    asked: list[int] = []
    skipped: list[str] = []

    def ready(context: Any) -> bool | NotReady:
        asked.append(context.attempt)
        return len(asked) > 2 or NotReady("cold", HOUR)

    @activity(queue="gpu", run_when=ready, on_skipped=lambda context, reason: skipped.append(reason))
    async def train() -> int:
        return step_context().attempt

    @activity(queue="gpu", run_when=lambda context: False, max_skips=1)
    async def never() -> None: ...

    engine = await make_engine(calling(train), queues=BOTH)
    run = await engine.start("caller")
    before = engine.clock.now()
    assert await run.result() == 1
    assert engine.clock.now() - before >= 2 * 3600 * 1_000_000
    assert (asked, skipped) == ([1, 1, 1], ["cold", "cold"])
    other = await make_engine(calling(never), queues=BOTH, database=":memory:")
    with pytest.raises(RunFailed) as caught:
        await other.execute("caller")
    assert isinstance(caught.value.__cause__, StepSkipped)


async def test_a_limit_holds_for_the_engine_that_runs_the_steps(make_engine):
    """S4-19 It takes no more from the queue than the limit lets in."""
    inside: list[int] = []
    most: list[int] = []
    go = asyncio.Event()

    @activity(queue="gpu", limit="card")
    async def train(number: int) -> int:
        inside.append(number)
        most.append(len(inside))
        await go.wait()
        inside.remove(number)
        return number

    @workflow
    async def caller(ctx: Context, number: int) -> int:
        return await ctx.step(train, number)

    engine = await make_engine(caller, queues=BOTH, limits=[Limit(name="card", at_once=2)])
    runs = [await engine.start(caller, number) for number in range(6)]
    await eventually(lambda: len(inside) == 2)
    await asyncio.sleep(0.05)
    assert engine.bodies == 2
    go.set()
    assert [await run.result() for run in runs] == list(range(6))
    assert max(most) == 2


async def test_a_rate_puts_steps_off_until_their_turn(make_engine):
    """S4-19 Without a slot, and without counting as skipped."""
    times: list[int] = []

    @activity(queue="gpu", limit="api", max_skips=0)
    async def call() -> None:
        times.append(engine.clock.now())

    engine: Any = await make_engine(calling(call), queues=BOTH, limits=[Limit(name="api", rate=1, per=HOUR)])
    runs = [await engine.start("caller") for _ in range(3)]
    for run in runs:
        await run.result()
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps == [3600 * 1_000_000] * 2
    assert (await runs[2].steps())[0].skips == 0


@two_engines
async def test_a_worker_takes_no_more_than_it_has_room_for(make_engine):
    """S0-60 What the busy one leaves in the queue, the other one takes."""
    running: list[str] = []
    go = asyncio.Event()

    @activity(queue="gpu")
    async def train(number: int) -> str:
        running.append(step_context().where)
        await go.wait()
        return step_context().where

    @workflow
    async def caller(ctx: Context, number: int) -> str:
        return await ctx.step(train, number)

    office = await make_engine(caller)
    options: dict[str, Any] = {"activities": [train], "queues": ["gpu"], "clock": office.jumping}
    await make_engine(**options, max_steps=2, context=lambda: {"where": "small"})
    runs = [await office.start(caller, number) for number in range(6)]
    await eventually(lambda: len(running) == 2)
    await make_engine(**options, max_steps=3, context=lambda: {"where": "large"})
    await eventually(lambda: len(running) == 5)
    await asyncio.sleep(0.05)
    assert sorted(running) == ["large"] * 3 + ["small"] * 2
    go.set()
    results = [await result_of(office, run) for run in runs]
    assert len(results) == 6


async def test_more_urgent_steps_are_taken_from_a_queue_first(make_engine):
    """S0-24 B22 When slots are scarce, whichever runs they belong to."""
    order: list[str] = []

    @activity(queue="gpu")
    async def work(name: str) -> str:
        order.append(name)
        await asyncio.sleep(0)
        return name

    @workflow
    async def caller(ctx: Context) -> None:
        urgent, huge = work.options(priority=9), work.options(priority=10**30)
        await asyncio.gather(
            ctx.step(work, "a"), ctx.step(work, "b"), ctx.step(urgent, "urgent"), ctx.step(huge, "most urgent")
        )

    engine = await make_engine(caller, queues=BOTH, max_steps=1)
    await engine.execute(caller)
    assert order == ["most urgent", "urgent", "a", "b"]


@two_engines
async def test_callbacks_are_called_where_it_happens(make_engine):
    """S0-29 The start where the body runs; the rest where the run is, once it is durable."""
    calls: list[tuple[str, str]] = []

    def note(what: str) -> Callable[..., None]:
        return lambda context, *more: calls.append((what, context.app.get("where", "")))

    @activity(queue="gpu", retry=QUICK, on_start=note("start"), on_success=note("success"), on_failure=note("failure"))
    async def train() -> str:
        if step_context().attempt == 1:
            raise ValueError("once")
        return "ok"

    office = await make_engine(calling(train))
    await make_engine(activities=[train], queues=["gpu"], clock=office.jumping, context=lambda: {"where": "gpu"})
    run = await office.start("caller")
    assert await result_of(office, run) == "ok"
    assert calls == [("start", "gpu"), ("failure", ""), ("start", "gpu"), ("success", "")]


# Giving up.


@two_engines
@pytest.mark.parametrize("how", ["race", "cancel", "terminate", "renew", "timeout"])
async def test_a_body_elsewhere_is_stopped_when_its_run_gives_it_up(make_engine, how):
    """B7 S1-26 S2-6 Within a second at most, and what it still says is refused."""
    begun: list[Any] = []
    signals: list[tuple[bool, str]] = []

    @activity(queue="gpu")
    async def endless() -> str:
        context = step_context()
        begun.append(context)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            signals.append((context.signal.aborted, context.signal.reason))
            raise
        return "never"

    @workflow
    async def caller(ctx: Context, again: bool = False) -> str:
        if again:
            return "renewed" + await ctx.receive("more", str)
        if how == "race":
            won = await ctx.race(
                {"slow": lambda inner: inner.step(endless), "quick": lambda inner: inner.receive("go", str)}
            )
            return won.winner + await ctx.receive("more", str)
        if how == "renew":
            asyncio.create_task(_awaited(ctx.step(endless)))  # noqa: RUF006
            await ctx.receive("go", str)
            await ctx.continue_as_new(again=True)
        if how == "timeout":
            try:
                async with asyncio.timeout(3600):
                    await ctx.step(endless)
            except TimeoutError:
                return "too late"
        return await ctx.step(endless)

    office = await make_engine(caller)
    worker = await make_engine(activities=[endless], queues=["gpu"], clock=office.jumping)
    run = await office.start(caller)
    await eventually(lambda: begun)
    if how == "race":
        await run.send("go", "!")
        await eventually(lambda: signals)  # though the run goes on
        await run.send("more", "!")
        assert await result_of(office, run) == "quick!"
    elif how == "renew":
        await run.send("go", "!")
        await eventually(lambda: signals)
        await run.send("more", "!")
        assert await result_of(office, run) == "renewed!"
    elif how == "timeout":
        assert await result_of(office, run) == "too late"
    else:
        await getattr(run, how)()
        with pytest.raises(RunCancelled):
            await result_of(office, run)
    await eventually(lambda: signals)
    assert signals == [(True, "cancelled")]
    assert (await run.describe()).status.is_terminal
    assert await tasks_left(office, worker) == []


async def _awaited(what: Any) -> Any:
    return await what


async def test_a_step_that_is_given_up_before_anybody_took_it_never_runs(make_engine):
    """S1-26 B7"""
    bodies: list[int] = []

    @activity(queue="gpu")
    async def train() -> None:
        bodies.append(1)

    @workflow
    async def caller(ctx: Context) -> str:
        won = await ctx.race({"slow": lambda inner: inner.step(train), "quick": lambda inner: inner.sleep(HOUR)})
        return won.winner

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "quick"
    await engine.store.join("w", HOUR)
    assert await engine.store.claim_tasks("w", engine.clock.now(), 9, ["gpu"], ["train"]) == []
    assert bodies == []


# Keys and compensations.


async def test_two_runs_that_want_the_same_effect_share_one_attempt(make_engine):
    """B14 S3-9 The key is taken by the commit that puts the attempt into its queue; who has to wait gets the result."""
    bodies: list[int] = []
    keys: list[str] = []

    @activity(queue="gpu", idempotency_key=lambda number: f"k{number}")
    async def charge(number: int) -> int:
        bodies.append(number)
        keys.append(step_context().idempotency_key)
        await asyncio.sleep(0.01)
        return number

    engine = await make_engine(calling(charge, 7), queues=BOTH)
    runs = [await engine.start("caller") for _ in range(4)]
    assert [await run.result() for run in runs] == [7, 7, 7, 7]
    assert (bodies, keys) == ([7], ["k7"])


async def test_what_undoes_a_step_may_have_a_queue(make_engine):
    """B17 G11 S0-55"""
    undone: list[tuple[str, int]] = []

    @activity(queue="gpu", retry=QUICK)
    async def release(name: str) -> None:
        undone.append((name, step_context().attempt))
        if len(undone) == 1:
            raise ValueError("not yet")

    @workflow
    async def caller(ctx: Context) -> None:
        ctx.compensate(release, "a")
        ctx.compensate(release, "b")
        raise RuntimeError("no")

    engine = await make_engine(caller, queues=BOTH)
    run = await engine.start(caller)
    with pytest.raises(RunFailed):
        await run.result()
    assert undone == [("b", 1), ("b", 2), ("a", 1)]
    report = (await run.describe()).compensation
    assert report is not None
    assert [each["status"] for each in report] == ["completed", "completed"]


# Pausing.


@two_engines
async def test_a_body_under_way_elsewhere_may_finish_while_its_run_is_paused(make_engine):
    """B25 What it achieved is there when the run goes on."""
    begun: list[int] = []
    go = asyncio.Event()

    @activity(queue="gpu")
    async def train() -> str:
        begun.append(1)
        await go.wait()
        return "trained"

    office = await make_engine(calling(train))
    worker = await make_engine(activities=[train], queues=["gpu"], clock=office.jumping)
    run = await office.start("caller")
    await eventually(lambda: begun)
    await run.pause()
    await eventually(lambda: worker.bodies == 1)
    go.set()
    await eventually(lambda: worker.idle)
    await asyncio.sleep(0.05)
    assert await run.status() is Status.PAUSED
    await run.resume()
    assert await result_of(office, run) == "trained"
    assert begun == [1]


async def test_a_paused_run_begins_no_attempt_that_waits_in_a_queue(make_engine, mode):
    """B25 It stays there, and is taken when the run goes on."""
    bodies: list[int] = []

    @activity(queue="gpu")
    async def train() -> str:
        bodies.append(step_context().attempt)
        return "trained"

    engine = await make_engine(calling(train))
    run = await engine.start("caller")
    await engine.settle()
    await run.pause()
    await engine.settle()
    assert await run.status() is Status.PAUSED
    await engine.store.join("w", HOUR)
    assert await engine.store.claim_tasks("w", engine.clock.now(), 9, ["gpu"], ["train"]) == []
    await run.resume()
    await engine.settle()
    [task] = await engine.store.claim_tasks("w", engine.clock.now(), 9, ["gpu"], ["train"])
    assert task.attempt == 1
    assert bodies == []


# Workflows with a queue.


@two_engines
async def test_runs_of_a_workflow_wait_for_an_engine_that_serves_its_queue(make_engine):
    """S0-60 G1 Started anywhere, children and delayed ones too."""

    async def where() -> str:
        return step_context().where

    @workflow(queue="reports")
    async def report(ctx: Context) -> str:
        return await ctx.step(where)

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(report)

    office = await make_engine(report, parent, context=lambda: {"where": "office"})
    runs = [await office.start(report), await office.start(parent), await office.start(report, unique_key="k")]
    await office.settle()
    waiting = await runs[0].describe()
    assert (waiting.status, waiting.owner) == (Status.PENDING, None)
    assert (await runs[1].describe()).waiting_for.startswith("child ")
    await make_engine(
        report, parent, queues=["reports"], clock=office.jumping, context=lambda: {"where": "printing room"}
    )
    assert [await result_of(office, run) for run in runs] == ["printing room"] * 3


async def test_a_child_that_nobody_here_advances_is_warned_of(make_engine, caplog):
    """S0-60"""

    @workflow(queue="reports")
    async def report(ctx: Context) -> None: ...

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child(report)

    engine = await make_engine(report, parent)
    with caplog.at_level(logging.WARNING, "holdfast.engine"):
        await engine.start(parent)
        await engine.settle()
    assert any("Engine(queues=['reports', ...])" in record.getMessage() for record in caplog.records)


# What is refused.


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", 7, "\ud800"])
def test_a_queue_needs_a_name(name):
    """GUARANTEES 6"""
    with pytest.raises(BadInput, match="1 to 255 printable characters"):
        activity(queue=name)(calling)
    with pytest.raises(BadInput, match="1 to 255 printable characters"):
        Engine(":memory:", queues=[name])

    async def flow(ctx: Context) -> None: ...

    with pytest.raises(BadInput, match="1 to 255 printable characters"):
        workflow(queue=name)(flow)


def test_queues_are_a_list():
    """GUARANTEES 6"""
    with pytest.raises(BadInput, match=r"queues must be a list: \['gpu'\]"):
        Engine(":memory:", queues="gpu")


def test_two_activities_with_queues_must_not_have_one_name():
    """GUARANTEES 6 Workers find them by name; one that is given explicitly decides."""

    def make(result: int) -> Any:
        @activity(name="train", queue="gpu")
        async def train() -> int:
            return result

        return train

    one, other = make(1), make(2)

    @workflow(name="first")
    async def first(ctx: Context) -> None:
        await ctx.step(one)

    @workflow(name="second")
    async def second(ctx: Context) -> None:
        await ctx.step(other)

    with pytest.raises(DefinitionError, match="two activities with a queue are named 'train'"):
        TestEngine(workflows=[first, second])
    TestEngine(workflows=[first, second], activities=[one])
