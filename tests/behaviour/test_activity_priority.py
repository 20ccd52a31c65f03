"""Priorities of activities: when places are scarce, the most urgent step of all runs is next."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.definitions import Activity
from holdfast.errors import BadInput


class Desk:
    """A step that keeps the only place until it is told to go, and the order in which all others came to it."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.begun = asyncio.Event()
        self.order: list[Any] = []

    async def occupy(self) -> None:
        self.begun.set()
        await self.free.wait()

    async def serve(self, name: Any) -> Any:
        self.order.append(name)
        return name


def workflows_of(desk: Desk) -> tuple[Any, Any]:
    served: Activity[Any, Any] = activity(desk.serve)

    @workflow
    async def occupy(ctx: Context) -> None:
        await ctx.step(desk.occupy)

    @workflow
    async def visit(ctx: Context, name: int, priority: int) -> Any:
        return await ctx.step("serve", served.options(priority=priority), name)

    return occupy, visit


async def waiting(engine: Any, many: int) -> None:
    """Wait until so many attempts run or wait for a place."""
    while engine.bodies < many:  # noqa: ASYNC110  # there is nothing to be told by
        await asyncio.sleep(0.001)


async def test_the_most_urgent_step_of_all_runs_is_next_and_ties_go_by_arrival(make_engine):
    """S0-24, B22 With one place for steps, forty runs are served by priority, equals in the order they came."""
    desk = Desk()
    occupy, visit = workflows_of(desk)
    engine = await make_engine(occupy, visit, max_steps=1)
    first = await engine.start(occupy)
    await desk.begun.wait()
    wanted = []
    for number in range(40):
        priority = (number * 7) % 4 - 1
        await engine.start(visit, number, priority, id=f"visit-{number}")
        await waiting(engine, number + 2)
        wanted.append((-priority, number))
    desk.free.set()
    for number in range(40):
        await engine.get(f"visit-{number}").result()
    await first.result()
    assert desk.order == [number for _, number in sorted(wanted)]


async def test_an_urgent_step_that_comes_last_is_served_next(make_engine):
    """S0-24, B22 The queue is asked each time a place becomes free, not sorted once."""
    desk = Desk()
    occupy, visit = workflows_of(desk)
    engine = await make_engine(occupy, visit, max_steps=1)
    await engine.start(occupy)
    await desk.begun.wait()
    runs = [await engine.start(visit, number, 0) for number in range(10)]
    await waiting(engine, 11)
    runs.append(await engine.start(visit, 99, 1))
    await waiting(engine, 12)
    desk.free.set()
    for run in runs:
        await run.result()
    assert desk.order == [99, *range(10)]


async def test_what_is_under_way_is_not_pushed_out(make_engine):
    """S0-24 Priority decides who begins, never who is interrupted."""
    desk = Desk()
    occupy, visit = workflows_of(desk)
    engine = await make_engine(occupy, visit, max_steps=1)
    first = await engine.start(occupy)
    await desk.begun.wait()
    urgent = await engine.start(visit, 1, 100)
    await waiting(engine, 2)
    assert desk.order == []
    desk.free.set()
    await urgent.result()
    (step,) = await first.steps()
    assert (step.status, step.attempts) == ("completed", 1)


async def test_a_retry_queues_by_its_priority_too(make_engine):
    """S0-24 A second attempt that is due waits like any other, before those of a lower priority."""
    desk = Desk()
    occupy, visit = workflows_of(desk)

    @activity(priority=5, retry=Retry(max_attempts=2))
    async def stumble() -> None:
        desk.order.append(f"stumble {step_context().attempt}")
        if step_context().attempt == 1:
            raise ConnectionError

    @workflow
    async def stumbling(ctx: Context) -> None:
        await ctx.step(stumble)

    engine = await make_engine(occupy, visit, stumbling, max_steps=1)
    run = await engine.start(stumbling)
    await engine.settle()
    await engine.start(occupy)
    await desk.begun.wait()
    other = await engine.start(visit, 1, 0)
    await waiting(engine, 2)
    engine.jumping.advance(Retry.default.initial_interval * 2)
    await waiting(engine, 3)
    desk.free.set()
    await run.result()
    await other.result()
    assert desk.order == ["stumble 1", "stumble 2", 1]


async def test_a_sync_step_of_a_higher_priority_goes_before_async_ones(make_engine):
    """S0-24, B22, S0-56 Sync functions run in threads of their own; the places are shared, and so is the queue."""
    desk = Desk()
    occupy, visit = workflows_of(desk)

    @activity(priority=100)
    def in_thread() -> bool:
        desk.order.append("thread")
        return threading.current_thread() is not threading.main_thread()

    @workflow
    async def urgent(ctx: Context) -> bool:
        return await ctx.step(in_thread)

    engine = await make_engine(occupy, visit, urgent, max_steps=1)
    await engine.start(occupy)
    await desk.begun.wait()
    runs = [await engine.start(visit, number, 0) for number in range(3)]
    await waiting(engine, 4)
    run = await engine.start(urgent)
    await waiting(engine, 5)
    desk.free.set()
    assert await run.result() is True
    for each in runs:
        await each.result()
    assert desk.order == ["thread", 0, 1, 2]


async def test_a_sync_body_runs_in_a_thread_and_does_not_hold_up_the_others(make_engine):
    """S0-56 runOnThread is what every plain function gets: the event loop goes on while it blocks."""
    entered, go = threading.Event(), threading.Event()
    threads: list[str] = []

    def block() -> str:
        threads.append(threading.current_thread().name)
        entered.set()
        assert go.wait(LONG)
        return step_context().run_id

    async def beside() -> str:
        threads.append(threading.current_thread().name)
        go.set()
        return "beside"

    @workflow
    async def blocking(ctx: Context) -> str:
        return await ctx.step(block)

    @workflow
    async def quick(ctx: Context) -> str:
        return await ctx.step(beside)

    engine = await make_engine(blocking, quick)
    slow = await engine.start(blocking, id="slow")
    while not entered.is_set():  # noqa: ASYNC110  # there is nothing to be told by
        await asyncio.sleep(0.001)
    assert await engine.execute(quick) == "beside"
    assert await slow.result() == "slow"
    assert threads[0] != threading.main_thread().name
    assert threads[1] == threading.main_thread().name


async def test_hundreds_of_waiting_runs_are_served_by_priority(make_engine):
    """S0-24, B22 Many runs, few places: no one of a lower priority before one of a higher."""
    desk = Desk()
    occupy, visit = workflows_of(desk)
    engine = await make_engine(occupy, visit, max_steps=1)
    await engine.start(occupy)
    await desk.begun.wait()
    runs = await engine.start_many(visit, [(number, number % 10) for number in range(300)])
    await waiting(engine, 301)
    desk.free.set()
    for run in runs:
        await run.result()
    assert [number % 10 for number in desk.order] == sorted((number % 10 for number in range(300)), reverse=True)


@pytest.mark.parametrize("priority", ["high", 1.5, True, None])
def test_a_priority_that_is_no_number_is_refused(priority):
    """S0-24"""
    with pytest.raises(BadInput, match="priority of activity"):

        @activity(priority=priority)
        async def work() -> None: ...


async def test_every_option_has_its_default():
    """S0-22 As there but for retries and timeouts, where holdfast tries three times and sets no timeout by itself."""

    @activity
    async def work() -> None: ...

    options = work.settings
    assert (options.priority, options.run_when, options.limit, options.max_skips) == (0, None, None, None)
    assert options.timeout is None
    assert (options.on_start, options.on_success, options.on_failure, options.on_failed, options.on_skipped) == (
        (None,) * 5
    )
    assert (options.retry.max_attempts, options.retry.coefficient) == (3, 2)
    assert Retry.never.max_attempts == 1
    changed = work.options(priority=7, limit="stripe")
    assert (changed.settings.priority, changed.settings.limit) == (7, "stripe")
    assert work.settings.priority == 0
