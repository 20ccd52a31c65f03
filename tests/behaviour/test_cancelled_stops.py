"""A stop is always finished: cancelled, doubled, timed out, or with every other task of its event loop cancelled."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripts.stops_worker import expected, load, make
from tests.support.waiting import LONG, eventually

from holdfast import Context, Engine, HoldfastError, Retry, Status, activity, step_context, workflow
from holdfast.engine.client.in_thread import InThread
from holdfast.replay import entry as entries
from holdfast.testing import TestEngine

DICE = random.Random(12)
NOT_COUNTED = {"handed back", "held", "bystander", "cleared"}


async def losses(engine: Engine, run_id: str) -> set[str]:
    facts = await engine.get(run_id).history()
    return {fact.entry.why for fact in facts if isinstance(fact.entry, entries.AttemptLost)}


def all_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}


def cancel_all() -> None:
    for task in all_tasks():
        task.cancel()


async def moment(most: float = 0.04) -> None:
    await asyncio.sleep(DICE.uniform(0, most))


# Ways to stop.


async def plainly(engine: Engine) -> None:
    await engine.stop()


async def cancelled(engine: Engine) -> None:
    """Cancel the task that stops, once or more often."""
    task = asyncio.ensure_future(engine.stop())
    for _ in range(DICE.randint(1, 3)):
        await moment()
        task.cancel()
    await asyncio.wait([task])


async def doubled(engine: Engine) -> None:
    """Stop twice at once, and cancel one of the two."""
    tasks = [asyncio.ensure_future(engine.stop()) for _ in range(2)]
    await moment()
    DICE.choice(tasks).cancel()
    await asyncio.wait(tasks)


async def timed_out(engine: Engine) -> None:
    try:
        async with asyncio.timeout(DICE.uniform(0, 0.05)):
            await engine.stop()
    except TimeoutError:
        pass


async def with_all_tasks(engine: Engine) -> None:
    """Do as asyncio.run does at its end: cancel whatever there is, this engine's own tasks too."""
    task = asyncio.ensure_future(engine.stop())
    await moment()
    cancel_all()
    await asyncio.wait([task])


async def after_all_tasks(engine: Engine) -> None:
    """Cancel whatever there is, and then stop."""
    cancel_all()
    await engine.stop()


WAYS: list[Callable[[Engine], Coroutine[Any, Any, None]]] = [
    plainly, cancelled, doubled, timed_out, with_all_tasks, after_all_tasks,
]  # fmt: skip


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
@pytest.mark.parametrize("stops", [12, pytest.param(100, marks=pytest.mark.slow)])
async def test_stops_of_every_kind_under_load_lose_nothing(tmp_path, request, store, stops, caplog):
    """S2-8 G4 B1 No attempt counts as lost with its process, no thread stays, and every run ends."""
    caplog.set_level(logging.WARNING)
    database = f"sqlite:///{tmp_path / 'load.db'}" if store == "sqlite" else request.getfixturevalue("database")
    threads = {*threading.enumerate()}
    for stop in range(stops):
        engine = make(database, grace=DICE.choice([0.0, 0.02, 0.2]))
        await engine.open()
        for number in range(4):
            await engine.start(load, number, id=f"run-{stop}-{number}")
        await moment(0.1)
        async with asyncio.timeout(LONG):
            await WAYS[stop % len(WAYS)](engine)
        assert not [thread for thread in threading.enumerate() if thread.name == "holdfast lease"]
        assert list(tmp_path.glob("*-worker-*")) == [], "the worker has left in order"
        with pytest.raises(HoldfastError, match="not open"):
            await engine.start(load, 0)
    engine = make(database)
    async with engine:
        for stop in range(stops):
            for number in range(4):
                run = engine.get(f"run-{stop}-{number}", load)
                async with asyncio.timeout(LONG):
                    assert await run.result() == expected(number)
                assert await losses(engine, run.id) <= NOT_COUNTED
    await eventually(lambda: not [thread for thread in {*threading.enumerate()} - threads if "holdfast" in thread.name])
    assert [message for message in caplog.messages if "lease" in message or "could not leave" in message] == []


# One by one.


@workflow
async def ask(ctx: Context) -> str:
    return await ctx.receive("word", str)


async def test_a_cancelled_stop_is_finished_and_then_raises_the_cancel(tmp_path):
    """S2-8 A caller that gives up waiting ends the grace, and nothing else."""
    begun = asyncio.Event()
    told: list[str] = []

    @activity(retry=Retry(max_attempts=1, crash_limit=1))
    async def forever() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.append(step_context().signal.reason)
            raise

    @workflow
    async def one(ctx: Context) -> None:
        await ctx.step(forever)

    engine = Engine(str(tmp_path / "db"), workflows=[one], stop_grace=timedelta(hours=1))
    await engine.open()
    run = await engine.start(one)
    await begun.wait()
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done(), "it waits for the body"
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(stopping, LONG)
    assert told == ["the worker stops"]
    assert list(tmp_path.glob("*-worker-*")) == []
    async with Engine(str(tmp_path / "db"), workflows=[one], run_workflows=False) as client:
        assert await losses(client, run.id) == {"handed back"}
        assert await client.get(run.id).status() is Status.PENDING


async def test_a_second_stop_waits_for_the_first(tmp_path):
    """S2-8 When it returns the store is closed, and the engine can be opened again."""
    begun = asyncio.Event()

    async def slow() -> str:
        begun.set()
        await asyncio.sleep(0.1)
        return "slow"

    @workflow
    async def one(ctx: Context) -> str:
        return await ctx.step(slow)

    engine = Engine(str(tmp_path / "db"), workflows=[one])
    await engine.open()
    run = await engine.start(one)
    await begun.wait()
    first = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    with pytest.raises(HoldfastError, match="is stopping"):
        await engine.open()
    await engine.stop()
    assert list(tmp_path.glob("*-worker-*")) == []
    await first
    async with engine:
        assert await engine.get(run.id).result() == "slow"


async def test_an_error_or_a_timeout_inside_the_block_stops_in_order(tmp_path):
    """S2-8 What the block raised comes out of it."""
    for error in (ValueError("mine"), KeyboardInterrupt(), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            async with Engine(str(tmp_path / "db"), workflows=[ask]) as engine:
                await engine.start(ask)
                raise error
        assert list(tmp_path.glob("*-worker-*")) == []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), Engine(str(tmp_path / "db"), workflows=[ask]):
            await asyncio.sleep(3600)
    assert list(tmp_path.glob("*-worker-*")) == []


async def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path):
    """S2-8 Wherever it had come to."""
    for delay in [0.0] * 3 + [DICE.uniform(0, 0.01) for _ in range(10)]:
        engine = Engine(str(tmp_path / "db"), workflows=[ask])
        opening = asyncio.ensure_future(engine.open())
        await asyncio.sleep(delay)
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await engine.stop()
        assert list(tmp_path.glob("*-worker-*")) == []


async def test_a_bounded_life_that_is_cancelled_stops_in_order(tmp_path):
    """S2-8 engine.run() hands back what it has."""
    engine = Engine(str(tmp_path / "db"), workflows=[ask])
    life = asyncio.ensure_future(engine.run(timedelta(hours=1)))
    await eventually(lambda: bool(list(tmp_path.glob("*-worker-*"))))
    for _ in range(2):
        life.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await life
    assert list(tmp_path.glob("*-worker-*")) == []


@pytest.mark.parametrize("mode", ["file"])
async def test_a_body_that_is_cancelled_because_the_program_ends_has_not_failed(make_engine):
    """S2-8 B1 Another task cancelled it together with all others: it is handed back."""
    begun = asyncio.Event()

    @activity(retry=Retry.never)
    async def wait() -> int:
        begun.set()
        if step_context().attempt == 1:
            await asyncio.sleep(3600)
        return step_context().attempt

    @workflow
    async def one(ctx: Context) -> int:
        return await ctx.step(wait)

    engine = await make_engine(one)
    run = await engine.start(one)
    await begun.wait()
    cancel_all()
    await asyncio.sleep(0.01)
    await engine.stop()
    second = await make_engine(one, clock=engine.jumping)
    assert await second.get(run.id).result() == 2


async def test_a_body_that_is_cancelled_while_the_engine_goes_on_has_failed(tmp_path):
    """S1-22 A body may cancel itself; its attempt ends."""

    @activity(retry=Retry.never)
    async def wait() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(3600)

    @workflow
    async def one(ctx: Context) -> None:
        await ctx.step(wait)

    async with TestEngine(workflows=[one]) as engine:
        run = await engine.start(one)
        await eventually(lambda: _failed(run))
        [step] = await run.steps()
        assert (step.status, step.error.message) == ("failed", "CancelledError: the body was cancelled from within")


async def _failed(run: Any) -> bool:
    return await run.status() is Status.FAILED


class Interrupted(Exception):
    """Stands for KeyboardInterrupt, which would end the test run."""


class InterruptedThread(InThread[Engine]):
    """An engine in a thread whose user presses Ctrl-C as soon as it stops."""

    leaving = False

    def __exit__(self, *exc: object) -> None:
        self.leaving = True
        super().__exit__(*exc)

    def __call__(self, coro: Coroutine[Any, Any, Any]) -> Any:
        if not self.leaving:
            return super().__call__(coro)
        begun = threading.Event()
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(coro, self._loop)
        self._loop.call_soon_threadsafe(begun.set)
        assert begun.wait(LONG)
        raise Interrupted


def test_an_engine_in_a_thread_survives_an_interrupt_of_its_exit(tmp_path: Path):
    """S2-8 Ctrl-C while the `with` block is left: the stop is hurried, and finished."""
    engine = Engine(str(tmp_path / "db"), workflows=[hanging], stop_grace=timedelta(hours=1))
    with pytest.raises(Interrupted), InterruptedThread(engine) as call:
        run: Any = call(engine.start(hanging))
        call(eventually(lambda: bool(HANGS)))
    assert list(tmp_path.glob("*-worker-*")) == []

    async def look() -> set[str]:
        async with Engine(str(tmp_path / "db"), workflows=[hanging], run_workflows=False) as client:
            return await losses(client, run.id)

    assert asyncio.run(look()) == {"handed back"}


HANGS: list[int] = []


async def _hang() -> None:
    HANGS.append(1)
    await asyncio.sleep(3600)


@workflow
async def hanging(ctx: Context) -> None:
    await ctx.step(_hang)
