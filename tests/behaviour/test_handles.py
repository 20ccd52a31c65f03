"""Handles: what a run shows from outside, and how its end is told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import (
    Context,
    JoinError,
    NoSuchRun,
    RunBlocked,
    RunCancelled,
    RunFailed,
    Status,
    StepFailed,
    workflow,
)
from holdfast.errors import HoldfastError, InvalidId, NotSerializable, StuckRun

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@dataclass
class Receipt:
    number: int
    at: datetime


@workflow
async def sell(ctx: Context, number: int) -> Receipt:
    await ctx.sleep(HOUR)
    return Receipt(number, ctx.now())


@workflow
async def sleeper(ctx: Context) -> None:
    await ctx.sleep(DAY)


async def test_the_result_has_the_annotated_type(make_engine):
    """S1-43 A dataclass with a datetime comes back equal, from any handle that knows the workflow."""
    engine = await make_engine(sell, start=datetime(2030, 1, 1, tzinfo=UTC))
    run = await engine.start(sell, 7)
    expected = Receipt(7, datetime(2030, 1, 1, 1, tzinfo=UTC))
    assert await run.result() == expected
    assert await engine.get(run.id, sell).result() == expected
    assert await engine.get(run.id).result() == {"number": 7, "at": "2030-01-01T01:00:00Z"}


@pytest.mark.parametrize(
    ("end", "status", "error"),
    [
        ("complete", Status.COMPLETED, None),
        ("fail", Status.FAILED, RunFailed),
        ("cancel", Status.CANCELLED, RunCancelled),
        ("terminate", Status.CANCELLED, RunCancelled),
        ("block", Status.BLOCKED, RunBlocked),
        ("wait", Status.SUSPENDED, TimeoutError),
        ("pause", Status.PAUSED, TimeoutError),
    ],
)
async def test_only_a_run_that_has_completed_has_a_result(make_engine, end, status, error):
    """S2-5 Of any other there is nothing to show, and a caller that waits for it is told why: it is never a value."""

    @workflow
    async def work(ctx: Context) -> str:
        if end == "fail":
            raise ValueError("no")
        if end == "block":
            await asyncio.Event().wait()
        if end != "complete":
            await ctx.receive("word")
        return "value"

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    if end in ("cancel", "terminate", "pause"):
        await getattr(run, end)()
        await engine.settle()
    seen = await run.describe()
    assert (seen.status, seen.output) == (status, "value" if error is None else None)
    if error is None:
        assert await run.result() == "value"
    else:
        with pytest.raises(error):
            await run.result(timedelta(seconds=0.02) if error is TimeoutError else None)


async def test_a_timeout_of_the_wait_leaves_the_run_alone(make_engine):
    """S1-43 TimeoutError to the caller; the run goes on and its result is there later."""

    @workflow
    async def ask(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(ask)
    run = await engine.start(ask)
    with pytest.raises(TimeoutError):
        await run.result(timedelta(seconds=0.02))
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "still here")
    assert await run.result() == "still here"


async def test_a_caller_that_stops_waiting_leaves_the_run_alone(make_engine):
    """S1-43 Cancelling the task that awaits result() cancels the wait and nothing else."""

    @workflow
    async def ask(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(ask)
    run = await engine.start(ask)
    waiting = asyncio.ensure_future(run.result())
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await run.send("word", "fine")
    assert await run.result() == "fine"


async def test_many_callers_get_the_same_result(make_engine):
    """S1-43 Ten waiters, one run."""
    engine = await make_engine(sell)
    run = await engine.start(sell, 1)
    results = await asyncio.gather(*(engine.get(run.id, sell).result() for _ in range(10)))
    assert {result.number for result in results} == {1}


async def test_an_unknown_run_is_an_error_everywhere(make_engine):
    """S2-4 GUARANTEES 6.11 NoSuchRun from each verb of a handle; InvalidId for what cannot be an id."""
    engine = await make_engine(sell)
    run = engine.get("nobody")
    for verb in (run.status, run.describe, run.history, run.result, run.cancel):
        with pytest.raises(NoSuchRun, match="nobody") as caught:
            await verb()
        assert caught.value.run_id == "nobody"
    with pytest.raises(NoSuchRun):
        await run.send("word")
    with pytest.raises(InvalidId):
        engine.get("no/body")


async def test_a_run_describes_itself_from_start_to_end(make_engine):
    """S2-10 S1-34 S4-1 S4-2 Input, output, times, status and version, before and after."""
    engine = await make_engine(sell, start=datetime(2030, 1, 1, tzinfo=UTC))
    run = await engine.start(sell, 7, id="s7")
    await engine.settle()
    seen = await run.describe()
    assert (seen.id, seen.workflow, seen.version) == ("s7", "sell", "1")
    assert (seen.status, seen.waiting_for) == (Status.SUSPENDED, "timer")
    assert (seen.input, seen.output, seen.error) == ({"number": 7}, None, None)
    assert seen.created_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert seen.due_at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert seen.ended_at is None
    await run.result()
    seen = await run.describe()
    assert (seen.status, seen.waiting_for, seen.due_at) == (Status.COMPLETED, "", None)
    assert seen.output == {"number": 7, "at": "2030-01-01T01:00:00Z"}
    assert seen.ended_at == seen.updated_at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert seen.owner is None


async def test_the_history_of_a_run_can_be_read(make_engine):
    """S2-39 S1-10 S4-1 Every fact in order, with path, word and time."""

    async def add(number: int) -> int:
        return number + 1

    @workflow
    async def work(ctx: Context) -> int:
        number = await ctx.step(add, 1)
        await ctx.sleep(HOUR)
        return await ctx.step("again", add, number)

    engine = await make_engine(work, start=datetime(2030, 1, 1, tzinfo=UTC))
    run = await engine.start(work)
    assert await run.result() == 3
    history = await run.history()
    assert [(entry.path, entry.kind) for entry in history] == [
        ("add", "step"),
        ("add", "step completed"),
        ("sleep", "sleep"),
        ("sleep", "timer fired"),
        ("again", "step"),
        ("again", "step completed"),
    ]
    assert [entry.seq for entry in history] == sorted(entry.seq for entry in history)
    assert history[0].at == datetime(2030, 1, 1, tzinfo=UTC)
    assert history[-1].at == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert bytes(history[1].entry.result) == b"2"


async def test_a_failed_run_tells_its_error(make_engine):
    """S2-33 S1-34 RunFailed from result(), with the error as its cause; type, message and traceback in the record."""

    @workflow
    async def broken(ctx: Context) -> None:
        await ctx.sleep(HOUR)
        raise ValueError("no such colour: teal")

    engine = await make_engine(broken)
    run = await engine.start(broken)
    with pytest.raises(RunFailed, match="no such colour: teal") as caught:
        await run.result()
    assert caught.value.run_id == run.id
    assert isinstance(caught.value.__cause__, ValueError)
    seen = await run.describe()
    assert seen.status is Status.FAILED
    assert seen.error.type == "ValueError"
    assert seen.error.message == "no such colour: teal"
    assert "in broken" in seen.error.traceback


async def test_causes_of_causes_are_kept(make_engine):
    """S2-33 `raise ... from ...` is shown as it was raised."""

    @workflow
    async def broken(ctx: Context) -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise RuntimeError("outer") from error

    engine = await make_engine(broken)
    with pytest.raises(RunFailed) as caught:
        await engine.execute(broken)
    outer = caught.value.__cause__
    assert isinstance(outer, RuntimeError)
    assert isinstance(outer.__cause__, KeyError)


async def test_an_error_class_of_the_application_comes_back_as_itself_when_registered(make_engine):
    """S2-33 Engine(errors=...) names what may be raised again; without it StepFailed carries the name."""

    @workflow
    async def broken(ctx: Context) -> None:
        raise OutOfStock("teapot")

    engine = await make_engine(broken, errors=[OutOfStock])
    with pytest.raises(RunFailed, match="teapot") as caught:
        await engine.execute(broken)
    assert type(caught.value.__cause__) is OutOfStock


class OutOfStock(Exception):
    pass


class Oddity(BaseException):
    pass


async def test_errors_that_are_no_exceptions_fail_the_run_and_nothing_else(make_engine):
    """S2-33 GUARANTEES 4.15 SystemExit, GeneratorExit and a BaseException of one's own: failed, worker alive."""

    @workflow
    async def odd(ctx: Context, how: str) -> None:
        await ctx.sleep(HOUR)
        if how == "exit":
            raise SystemExit(3)
        if how == "generator":
            raise GeneratorExit
        raise Oddity("odd")

    engine = await make_engine(odd, sell)
    for how, name in (("exit", "SystemExit"), ("own", "Oddity"), ("generator", "GeneratorExit")):
        run = await engine.start(odd, how)
        with pytest.raises(RunFailed, match=name):
            await run.result()
        assert name in (await run.describe()).error.type
    assert (await engine.execute(sell, 1)).number == 1


async def test_system_exit_inside_a_branch_fails_the_run_and_nothing_else(make_engine):
    """GUARANTEES 4.15 sys.exit in a task of the workflow, gathered or joined."""

    @workflow
    async def leave(ctx: Context, how: str) -> None:
        async def branch(inner: Context) -> None:
            await inner.sleep(HOUR)
            raise SystemExit("bye")

        if how == "join":
            await ctx.join({"a": branch})
        else:
            await asyncio.gather(branch(ctx), ctx.sleep(DAY))

    engine = await make_engine(leave, sell)
    for how in ("join", "gather"):
        run = await engine.start(leave, how)
        with pytest.raises(RunFailed, match=r"SystemExit|bye"):
            await run.result()
    assert (await engine.execute(sell, 1)).number == 1


async def test_a_join_error_is_stored_with_every_branch(make_engine):
    """S1-25 S2-33 The failing error of a run may be a JoinError; the record names each branch."""

    @workflow
    async def both(ctx: Context) -> None:
        async def bad(inner: Context) -> None:
            await inner.sleep(HOUR)
            raise ValueError("bad branch")

        async def worse(inner: Context) -> None:
            raise KeyError("worse branch")

        await ctx.join("both", {"a": bad, "b": worse})

    engine = await make_engine(both)
    run = await engine.start(both)
    with pytest.raises(RunFailed, match="bad branch") as caught:
        await run.result()
    assert "worse branch" in str(caught.value)
    assert isinstance(caught.value.__cause__, JoinError)
    assert "worse branch" in (await run.describe()).error.message


async def test_an_exception_group_is_stored_and_shown(make_engine):
    """S2-33 A TaskGroup raises ExceptionGroup: the record shows what was in it."""

    @workflow
    async def group(ctx: Context) -> None:
        async def bad(number: int) -> None:
            await ctx.sleep(HOUR)
            raise ValueError(f"bad {number}")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(bad(1))
            tasks.create_task(bad(2))

    engine = await make_engine(group)
    run = await engine.start(group)
    with pytest.raises(RunFailed):
        await run.result()
    error = (await run.describe()).error
    assert "ExceptionGroup" in error.type
    assert "bad 1" in f"{error.message} {error.traceback}"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: object(), "object"),
        (lambda: {"deep": [lambda: None]}, r"deep"),
        (lambda: float("nan"), "NaN"),
        (lambda: "\ud800", "Unicode"),
        (lambda: datetime(2030, 1, 1), "time zone|timezone"),  # noqa: DTZ001  # that it is naive is the point
        (lambda: {1: "a"}, "key"),
        (lambda: "x" * 2_100_000, "2,097,152"),
    ],
)
async def test_a_result_that_cannot_be_stored_fails_the_run_with_the_reason(make_engine, make, what):
    """GUARANTEES 6.1 6.2 6.3 6.5 6.6 6.9 Failed with the path and the workflow; not retried, not blocked."""
    entered: list[str] = []

    @workflow
    async def bad(ctx: Context) -> Any:
        entered.append("x")
        return make()

    engine = await make_engine(bad)
    run = await engine.start(bad)
    with pytest.raises(RunFailed, match=what) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, NotSerializable)
    assert "the result of workflow 'bad'" in str(caught.value)
    assert entered == ["x"]


async def test_a_cancelled_run_raises_from_result(make_engine):
    """S2-9 B7 RunCancelled with the id."""
    engine = await make_engine(sleeper)
    run = await engine.start(sleeper)
    await run.cancel()
    with pytest.raises(RunCancelled) as caught:
        await run.result()
    assert caught.value.run_id == run.id


async def test_a_blocked_run_raises_from_result_instead_of_waiting_for_ever(make_engine):
    """B6 G13 RunBlocked with the reason and the line; the run is not terminal."""

    @workflow
    async def stuck(ctx: Context) -> None:
        await asyncio.Event().wait()

    engine = await make_engine(stuck)
    run = await engine.start(stuck)
    with pytest.raises(RunBlocked, match=r"test_handles\.py:\d+") as caught:
        await run.result()
    assert isinstance(caught.value, StuckRun)
    seen = await run.describe()
    assert seen.status is Status.BLOCKED
    assert not seen.status.is_terminal
    assert seen.error is not None


async def test_a_run_that_never_waits_is_blocked_and_its_neighbours_run(make_engine):
    """GUARANTEES 2 A busy loop of 100,000 callbacks is ended; the worker goes on."""

    @workflow
    async def busy(ctx: Context) -> None:
        while True:  # noqa: ASYNC110  # that it never waits is the point
            await asyncio.sleep(0)

    engine = await make_engine(busy, sell)
    run = await engine.start(busy)
    with pytest.raises(RunBlocked, match="never waits"):
        await run.result()
    assert (await engine.execute(sell, 2)).number == 2


async def test_a_step_failure_is_the_failure_of_the_run_unless_caught(make_engine):
    """S2-33 The error of the step, as the workflow saw it, is the cause."""

    async def bad() -> None:
        raise OutOfStock("teapot")

    @workflow
    async def work(ctx: Context) -> None:
        await ctx.step(bad)

    engine = await make_engine(work)
    with pytest.raises(RunFailed, match="OutOfStock: teapot") as caught:
        await engine.execute(work)
    assert isinstance(caught.value.__cause__, StepFailed)


async def test_terminal_is_final(make_engine):
    """G6 S2-9 B8 Nothing internal changes an ended run: messages, cancels, recover, time."""
    engine = await make_engine(sell)
    run = await engine.start(sell, 1)
    await run.result()
    before = await run.describe()
    assert await run.cancel() is False
    assert await engine.get(run.id).recover() is False
    with pytest.raises(HoldfastError):
        await run.send("word")
    await engine.advance(365 * DAY)
    assert await run.describe() == before


@restarts
async def test_waiting_for_a_result_when_the_engine_stops_is_an_error_and_not_a_cancel(make_engine):
    """S2-8 Whoever awaits result() when the engine stops is told so; its own task is not cancelled."""

    @workflow
    async def ask(ctx: Context) -> str:
        return await ctx.receive("word", str)

    engine = await make_engine(ask)
    run = await engine.start(ask)
    waiting = asyncio.ensure_future(run.result())
    await asyncio.sleep(0.02)
    await engine.stop()
    done, _ = await asyncio.wait([waiting], timeout=LONG)
    assert done
    assert not waiting.cancelled()
    assert isinstance(waiting.exception(), HoldfastError)


async def test_a_run_that_waits_is_evicted_on_request_and_goes_on_when_something_comes(make_engine, mode):
    """S1-42 It is replayed then; one that is not in memory, has work under way or has ended stays as it is."""
    entered: list[str] = []
    gate = asyncio.Event()

    @workflow
    async def work(ctx: Context) -> str:
        entered.append(ctx.run_id)
        word = await ctx.receive("word", str)
        await ctx.step("wait", gate.wait)
        return word

    engine = await make_engine(work)
    run = await engine.start(work, id="r")
    await engine.settle()
    assert await run.evict() is (mode != "evict")
    await engine.settle()
    assert engine.residents == 0
    assert await run.evict() is False
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "hello")
    await eventually(lambda: engine.bodies)
    assert (await run.evict(), entered) == (False, ["r", "r"])
    gate.set()
    assert await run.result() == "hello"
    assert await run.evict() is False
    with pytest.raises(NoSuchRun):
        await engine.get("nobody").evict()
