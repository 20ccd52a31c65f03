"""Steps that succeed: every kind of body, recorded once, and what a body may know about itself."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import (
    Context,
    HoldfastError,
    Retry,
    RunCancelled,
    RunFailed,
    RunHandle,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.contract.turns import CommitTurn
from holdfast.errors import BadInput, NonDeterministic, NotSerializable
from holdfast.replay import entry as entries

DAY = timedelta(days=1)


@dataclass
class Order:
    id: str
    items: list[str]


async def double(number: int) -> int:
    return number * 2


def triple(number: int) -> int:
    return number * 3


@dataclass(frozen=True)
class Adder:
    amount: int

    def __call__(self, number: int) -> int:
        return number + self.amount

    def method(self, number: int) -> int:
        return number + 10 * self.amount

    async def async_method(self, number: int) -> int:
        return number + 100 * self.amount


@dataclass
class Unhashable:
    amount: int

    def __call__(self, number: int) -> int:
        return number - self.amount


class AsyncCallable:
    async def __call__(self, number: int) -> int:
        return number + 7


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return function(*args)

    return around


def made_sync(function: Any) -> Any:
    @functools.wraps(function)
    def around(*args: Any) -> Any:
        return (
            asyncio.run(function(*args)) if threading.current_thread() is not threading.main_thread() else args[0] * 2
        )

    return around


async def sum_of(first: int, *more: int, scale: int = 1, **named: int) -> int:
    return (first + sum(more) + sum(named.values())) * scale


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (double, 10),
        (triple, 15),
        (lambda number: number + 1, 6),
        (lambda number: double(number), 10),
        (functools.partial(triple, 7), 21),
        (functools.partial(double, 7), 14),
        (Adder(1), 6),
        (AsyncCallable(), 12),
        (Unhashable(2), 3),
        (Adder(1).method, 15),
        (Adder(1).async_method, 105),
        (wrapped(double), 10),
        (wrapped(triple), 15),
        (made_sync(double), 10),
        (activity(double), 10),
        (activity(name="other", timeout=DAY)(triple), 15),
        (max, 5),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_any_callable_can_be_a_step(make_engine, body, expected):
    """S0-5 S1-12 S3-2 Async and sync functions, lambdas, partials, callable objects, methods, wrapped, builtin."""
    partial = isinstance(body, functools.partial)

    @workflow
    async def caller(ctx: Context) -> list[int]:
        first = await (ctx.step(body) if partial else ctx.step(body, 5, *([] if body is not max else [1])))
        await ctx.sleep(DAY)
        second = await (ctx.step(body) if partial else ctx.step(body, 5, *([] if body is not max else [1])))
        return [first, second]

    engine = await make_engine(caller)
    assert await engine.execute(caller) == [expected, expected]


async def test_a_step_takes_a_name_keywords_and_options(make_engine):
    """S1-12 S3-2 The explicit name is the path; keyword and variadic arguments arrive; options override."""

    @activity(name="add", retry=Retry.never)
    async def add(first: int, *more: int, scale: int = 1, **named: int) -> int:
        context = step_context()
        return await sum_of(first, *more, scale=scale, **named) if context.attempt == 1 else -1

    @workflow
    async def caller(ctx: Context) -> list[int]:
        return [
            await ctx.step("named", add, 1, 2, scale=10, extra=4),
            await ctx.step(add, 1, scale=2),
            await ctx.step(add.options(name="renamed"), first=5),
            await ctx.step(add, 1),
        ]

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == [70, 2, 5, 1]
    assert [fact.path for fact in await run.history() if fact.kind == "step"] == ["named", "add", "renamed", "add#2"]


class Effect(str, Enum):  # noqa: UP042  # its members are shown with their class, unlike those of a StrEnum
    CHARGE = "charge"


class Label(str):
    pass


@pytest.mark.parametrize(("name", "recorded"), [(Effect.CHARGE, "Effect.CHARGE"), (Label("refund"), "refund")])
async def test_the_name_of_an_activity_is_recorded_as_it_is_shown(make_engine, name, recorded):
    """B11 Histories name steps by plain texts, which other texts that happen to be equal must not be taken for."""
    named = activity(name=name)(double)

    @workflow
    async def work(ctx: Context) -> list[int]:
        return [await ctx.step("charge", double, 1), await ctx.step(named, 2)]

    engine = await make_engine(work)
    run = await engine.start(work)
    assert await run.result() == [2, 4]
    assert [step.path for step in await run.steps()] == ["charge", recorded]


async def test_options_override_what_the_activity_says(make_engine):
    """B3 The policy of a call wins over that of the activity."""
    seen: list[int] = []

    @activity(retry=Retry.never)
    async def flaky() -> int:
        seen.append(1)
        if len(seen) < 3:
            raise ValueError("x")
        return len(seen)

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(flaky.options(retry=Retry(max_attempts=3)))

    engine = await make_engine(caller)
    assert await engine.execute(caller) == 3


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_each_step_is_durable_before_the_next_begins_and_the_last_before_the_end_is_told(make_engine, make_store):
    """S1-13 S3-3 Created, executed, saved, one after the other; another reader of the file sees all that is over."""
    reader = make_store()
    await reader.open()

    async def stored() -> list[int]:
        row = await reader.get("r")
        assert row is not None
        ends = (entries.StepBegun.kind, entries.StepCompleted.kind)
        return [entry.kind for entry in await reader.history(row.key) if entry.kind in ends]

    seen: list[list[int]] = []

    async def look(number: int) -> int:
        seen.append(await stored())
        return number + 1

    @workflow
    async def work(ctx: Context) -> int:
        number = 0
        for _ in range(3):
            number = await ctx.step(look, number)
        return number

    try:
        engine = await make_engine(work)
        run = await engine.start(work, id="r")
        assert await run.result() == 3
        step = [entries.StepBegun.kind, entries.StepCompleted.kind]
        assert seen == [step[:1], step + step[:1], step * 2 + step[:1]]
        assert await stored() == step * 3
        row = await reader.get("r")
        assert row is not None
        assert (row.status, row.output) == (Status.COMPLETED, "3")
    finally:
        await reader.close()


async def test_a_recorded_step_is_never_run_again(make_engine):
    """G3 S1-14 S2-37 Replayed after each eviction, the body still ran once; void results count too."""
    calls: list[str] = []

    async def note(name: str) -> None:
        calls.append(name)

    @workflow
    async def caller(ctx: Context) -> int:
        for name in ("a", "b", "c"):
            result: object = await ctx.step(note, name)
            assert result is None
            await ctx.sleep(DAY)
        return len(name)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == 1
    assert calls == ["a", "b", "c"]
    assert [fact.kind for fact in await run.history()].count("step completed") == 3


async def test_sync_bodies_run_in_threads_and_leave_the_loop_free(make_engine):
    """GUARANTEES 2: a sync body never runs on the loop's thread; many run at once, and loop callbacks in between."""
    threads: set[int] = set()
    together = threading.Barrier(3)

    def meet(number: int) -> int:
        threads.add(threading.get_ident())
        together.wait(LONG)
        return number

    @workflow
    async def caller(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(meet, number) for number in range(3))))

    engine = await make_engine(caller)
    assert await engine.execute(caller) == [0, 1, 2]
    assert threading.get_ident() not in threads
    assert len(threads) == 3


async def test_threads_are_reused_and_bounded(make_engine):
    """S0-57 No more sync bodies at once than max_threads; the others wait their turn without using up their timeout."""
    now, most = 0, 0
    lock = threading.Lock()

    @activity(timeout=timedelta(milliseconds=2_500), retry=Retry.never)
    def work(number: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.2)
        with lock:
            now -= 1
        return number

    @workflow
    async def caller(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.step(work, number) for number in range(30))))

    engine = await make_engine(caller, max_threads=2)
    assert await engine.execute(caller) == sum(range(30))
    assert most == 2


async def test_async_bodies_are_bounded_by_max_steps(make_engine):
    """S0-57 Concurrency control of the executor."""
    now, most = 0, 0
    full = asyncio.Event()

    async def work(number: int) -> int:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if most == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.001)
        now -= 1
        return number

    @workflow
    async def caller(ctx: Context) -> int:
        return sum(await asyncio.gather(*(ctx.step(work, number) for number in range(20))))

    engine = await make_engine(caller, max_steps=3)
    assert await engine.execute(caller) == sum(range(20))
    assert most == 3


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="unset")


async def test_context_variables_do_not_leak_from_step_to_step(make_engine):
    """GUARANTEES 4 row 15: each attempt has a copy of the engine's context of its own."""

    def sync_body(value: str) -> str:
        before = VARIABLE.get()
        VARIABLE.set(value)
        return before

    async def async_body(value: str) -> str:
        return sync_body(value)

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return [
            await ctx.step(sync_body, "a"),
            await ctx.step(async_body, "b"),
            await ctx.step(sync_body, "c"),
            await ctx.step(async_body, "d"),
        ]

    VARIABLE.set("engine")
    engine = await make_engine(caller)
    assert await engine.execute(caller) == ["engine"] * 4


@pytest.mark.parametrize("kind", ["generator", "async generator"])
async def test_a_generator_is_refused_with_the_way_out(make_engine, kind):
    """A body that yields has no result to store: said clearly, once."""
    calls: list[int] = []

    def numbers() -> Iterator[int]:
        calls.append(1)
        yield 1

    async def async_numbers() -> AsyncIterator[int]:
        calls.append(1)
        yield 1

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step("numbers", numbers if kind == "generator" else async_numbers)
        except NotSerializable as error:
            return str(error)
        return "accepted"

    engine = await make_engine(caller)
    run = await engine.start(caller)
    said = await run.result()
    assert said == "a generator at $ in the result of step 'numbers': its body must return the items, as a list"
    assert not [fact for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]


async def test_what_is_not_callable_is_refused_where_it_is_called(make_engine):
    """A coroutine in place of a function, the commonest slip, is named."""

    @workflow
    async def caller(ctx: Context) -> list[str]:
        said = []
        for wrong in (5, None):
            try:
                await ctx.step(wrong)  # type: ignore[call-overload]
            except BadInput as error:
                said.append(str(error))
        try:
            await ctx.step("name")  # type: ignore[call-overload]
        except BadInput as error:
            said.append(str(error))
        return said

    engine = await make_engine(caller)
    assert await engine.execute(caller) == [
        "a step needs a function, not 5",
        "a step needs a function, not None",
        "ctx.step('name') needs a function after its name",
    ]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_body_may_spoil_its_arguments_without_touching_the_workflows_objects(make_engine, kind):
    """S0-31 Each attempt gets a copy of its own; the workflow sees its object unchanged, live and replayed."""
    seen: list[Order] = []

    def spoil(order: Order, *, tags: list[str]) -> int:
        seen.append(Order(order.id, list(order.items)))
        order.id = "spoiled"
        order.items.clear()
        tags.append("x")
        if len(seen) < 3:
            raise ValueError("again")
        return len(seen)

    async def spoil_async(order: Order, *, tags: list[str]) -> int:
        return spoil(order, tags=tags)

    @workflow
    async def caller(ctx: Context) -> list[Any]:
        order, tags = Order("o-1", ["a", "b"]), ["t"]
        running = ctx.step("spoil", spoil_async if kind == "async" else spoil, order, tags=tags)
        order.items.append("added after the call")
        count = await running
        await ctx.sleep(DAY)
        return [order.id, order.items, tags, count]

    engine = await make_engine(caller)
    assert await engine.execute(caller) == ["o-1", ["a", "b", "added after the call"], ["t"], 3]
    assert seen == [Order("o-1", ["a", "b"])] * 3


async def test_a_result_has_its_annotated_type_live_and_replayed(make_engine):
    """DESIGN 5: a live value passes through the codec like a replayed one; the body's own object is never shared."""
    kept: list[Order] = []

    async def make() -> Order:
        kept.append(Order("o-1", ["a"]))
        return kept[-1]

    async def make_tuple() -> tuple[int, ...]:
        return (1, 2)

    async def make_plain():
        return (1, Order("o", []))

    @workflow
    async def caller(ctx: Context) -> list[str]:
        order, numbers, plain = await ctx.step(make), await ctx.step(make_tuple), await ctx.step(make_plain)
        order.items.append("b")
        await ctx.sleep(DAY)
        return [repr(order), repr(numbers), repr(plain)]

    engine = await make_engine(caller)
    said = await engine.execute(caller)
    assert said == [repr(Order("o-1", ["a", "b"])), "(1, 2)", "[1, {'id': 'o', 'items': []}]"]
    assert kept[0].items == ["a"]


# What a body knows about its own step.


async def test_a_body_knows_its_run_its_step_and_its_key(make_engine, caplog):
    """S0-25 S4-8 S4-26 B14 The default key is run:location, the same for every attempt; log lines carry all three."""
    seen: list[tuple[Any, ...]] = []

    def look() -> None:
        context = step_context()
        seen.append((context.run_id, context.workflow, context.step, context.attempt, context.idempotency_key))
        context.heartbeat()
        context.log.warning("looking")
        if len(seen) == 1:
            raise ValueError("again")

    @workflow
    async def watcher(ctx: Context) -> None:
        await ctx.step(look)
        await ctx.join({"left": lambda branch: branch.step("inner", look)})

    engine = await make_engine(watcher)
    with caplog.at_level(logging.WARNING, "holdfast.step"):
        await engine.execute(watcher, id="run-7")
    first, second, inner = seen
    assert first == ("run-7", "watcher", "look", 1, "run-7:look")
    assert second == ("run-7", "watcher", "look", 2, "run-7:look")
    assert inner[2].endswith("left/inner")
    assert inner[3:] == (1, f"run-7:{inner[2]}")
    record = next(record for record in caplog.records if record.name == "holdfast.step")
    assert (record.run_id, record.step, record.attempt) == ("run-7", "look", 1)


async def test_an_activity_may_make_its_own_idempotency_key(make_engine):
    """S3-2 S4-31 The key function gets the arguments; the body sees what it made."""

    @activity(idempotency_key=lambda order, *, scale=1: f"charge:{order.id}:{scale}")
    async def charge(order: Order, *, scale: int = 1) -> str:
        return step_context().idempotency_key

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(charge, Order("o-9", []), scale=3)

    engine = await make_engine(caller)
    assert (await engine.execute(caller)).endswith("charge:o-9:3")


async def test_a_key_function_that_raises_fails_the_step_and_says_who(make_engine):
    """An error in the key function is the step's error; the body never runs without its key."""
    ran: list[int] = []

    @activity(idempotency_key=lambda: {}["nothing"], retry=Retry.never)
    async def charge() -> None:
        ran.append(1)

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(charge)
        except KeyError as error:
            return " ".join(error.__notes__)
        return "no error"

    engine = await make_engine(caller)
    assert "raised by idempotency_key of activity 'charge'" in await engine.execute(caller)
    assert ran == []


def test_step_context_outside_a_step_says_so():
    with pytest.raises(HoldfastError, match="only inside a step's body"):
        step_context()


async def test_step_context_in_workflow_code_says_so(make_engine):
    @workflow
    async def caller(ctx: Context) -> None:
        step_context()

    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="only inside a step's body"):
        await engine.execute(caller)


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_runs_context_used_in_a_body_says_what_to_use_instead(make_engine, kind):
    """A body that calls a verb gets a clear error and the run its failure; nothing hangs."""

    @workflow
    async def caller(ctx: Context) -> None:
        async def body() -> None:
            await ctx.sleep(DAY)

        def sync_body() -> None:
            ctx.step(double, 1)

        await ctx.step(activity(name="body", retry=Retry.never)(body if kind == "async" else sync_body))

    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match=r"inside a step use step_context\(\)") as failed:
        await engine.execute(caller)
    assert isinstance(failed.value.__cause__, NonDeterministic)


async def test_a_body_that_blocks_the_loop_harms_nobody_for_good(make_engine):
    """GUARANTEES 4 row 15: blocking code in an async body delays the others; all of them end as they should."""

    async def rude() -> str:
        time.sleep(0.3)  # the point
        return "rude"

    @activity(timeout=timedelta(seconds=30), heartbeat_timeout=timedelta(seconds=30))
    async def polite() -> str:
        await asyncio.sleep(0.001)
        return "polite"

    @workflow
    async def caller(ctx: Context) -> list[str]:
        return list(await asyncio.gather(ctx.step(polite), ctx.step(rude), ctx.step(polite)))

    engine = await make_engine(caller)
    assert await engine.execute(caller) == ["polite", "rude", "polite"]


async def test_a_stop_hands_back_a_running_step_which_does_not_count(make_engine, mode):
    """G4 S0-21 A hand-back gets its own attempt number but uses up neither attempts nor crashes."""
    if mode == "memory":
        pytest.skip("nothing survives in memory")
    seen: list[int] = []
    stop = threading.Event()

    @activity(retry=Retry(max_attempts=1, crash_limit=1))
    def body() -> str:
        seen.append(step_context().attempt)
        if len(seen) < 4:
            step_context().signal.wait(10)
            return "too late"
        return "done"

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(body)

    for restart in range(3):
        engine = await make_engine(caller, stop_grace=timedelta(milliseconds=10))
        run = await engine.start(caller, id="r")
        while len(seen) <= restart:  # noqa: ASYNC110  # what is waited for happens in another process or thread
            await asyncio.sleep(0.001)
        await engine.stop()
    stop.set()
    engine = await make_engine(caller)
    run = engine.get("r", caller)
    assert await run.result() == "done"
    assert seen == [1, 2, 3, 4]
    lost = [fact.entry for fact in await run.history() if isinstance(fact.entry, entries.AttemptLost)]
    assert [(entry.attempt, entry.why) for entry in lost] == [(number, "handed back") for number in (1, 2, 3)]


async def test_steps_that_begin_together_all_begin_whatever_becomes_of_the_first(make_engine):
    """G3 The first fails before it ever waits; the others were begun all the same."""
    begun: list[str] = []

    @activity(retry=Retry.never)
    async def work(name: str) -> None:
        begun.append(name)
        if name == "a":
            raise ValueError("at once")

    @workflow
    async def several(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(name, work, name) for name in "abc"))

    engine = await make_engine(several)
    run = await engine.start(several)
    with pytest.raises(RunFailed):
        await run.result()
    assert sorted(begun) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["file", "evict", "postgres"])
@pytest.mark.parametrize("how", ["pause", "cancel", "subscribe"])
async def test_what_comes_while_the_commit_of_a_step_is_not_answered_is_heeded(make_engine, how):
    """G3 Another engine acts on the run, or an observer comes, after the commit and before the step begins."""
    ran: list[str] = []
    changes: list[str] = []

    async def body(name: str) -> str:
        ran.append(name)
        return name

    @workflow
    async def work(ctx: Context) -> list[str]:
        return [await ctx.step("one", body, "one"), await ctx.step("two", body, "two")]

    engine = await make_engine(work)
    caller = await make_engine(run_workflows=False, clock=engine.jumping)
    late = engine.faults.hold(moment="after", only=CommitTurn)
    run = await engine.start(work)
    await asyncio.wait_for(late.happened(), LONG)
    if how == "subscribe":
        engine.subscribe(lambda change: changes.append(change.type), run.id)
    else:
        operator = caller.get(run.id)
        look = engine.faults.hold(at="inboxes")  # the worker looks each second, too: it must not see the act before
        await (operator.pause() if how == "pause" else operator.cancel())
        await asyncio.wait_for(look.happened(), LONG)
        looked = engine.faults.call(lambda: None, at="inboxes", moment="after")
        look.release()
        await asyncio.wait_for(looked.happened(), LONG)
        await asyncio.sleep(0.01)  # what was read is handed over in the next round of the loop
    late.release()
    if how == "cancel":
        with pytest.raises(RunCancelled):
            await asyncio.wait_for(run.result(), LONG)
        assert ran == ["one"]
        return
    if how == "pause":
        await eventually(lambda: is_paused(operator))
        assert ran == ["one"]
        await operator.resume()
    assert await asyncio.wait_for(run.result(), LONG) == ran == ["one", "two"]
    assert [step.attempts for step in await run.steps()] == [1, 2 if how == "pause" else 1]
    if how == "subscribe":
        assert changes == ["step.completed", "step.started", "step.completed", "run.completed"]


async def is_paused(run: RunHandle[Any]) -> bool:
    return await run.status() is Status.PAUSED
