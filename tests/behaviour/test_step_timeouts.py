"""Bodies that take too long: given up at once, signalled, and never waited for."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunCancelled, RunFailed, Status, StepTimeout, activity, step_context, workflow
from holdfast.bodies.context import CancelSignal
from holdfast.errors import HeartbeatTimeout, InvalidDuration
from holdfast.replay import entry as entries

SHORT = timedelta(milliseconds=300)
ONCE = Retry.never


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


def calling(body: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> Any:
        return await ctx.step(body)

    return caller


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_timeout_is_a_failed_attempt_that_is_retried(make_engine, kind):
    """B5 S3-25 S4-20 Each timed-out attempt counts; the one that is quick enough wins."""
    seen: list[int] = []

    @activity(timeout=SHORT, retry=Retry(max_attempts=3))
    async def slow_twice() -> str:
        seen.append(step_context().attempt)
        await asyncio.sleep(30 if len(seen) < 3 else 0)
        return "at last"

    @activity(timeout=SHORT, retry=Retry(max_attempts=3))
    def slow_twice_in_thread() -> str:
        seen.append(step_context().attempt)
        if len(seen) < 3:
            step_context().signal.wait(30)
        return "at last"

    caller = calling(slow_twice if kind == "async" else slow_twice_in_thread)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "at last"
    assert seen == [1, 2, 3]
    failed = [fact.entry.error for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    assert [error.type for error in failed] == ["holdfast.errors.StepTimeout"] * 2
    assert f"did not finish within {SHORT}" in failed[0].message


async def test_exhausted_timeouts_raise_the_timeout(make_engine):
    """B5 B2 A step that never makes it fails with StepTimeout after its attempts."""
    seen: list[int] = []

    @activity(timeout=ms(5), retry=Retry(max_attempts=2))
    async def slow() -> None:
        seen.append(1)
        await asyncio.sleep(30)

    caller = calling(slow)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed) as failed:
        await engine.execute(caller)
    assert type(failed.value.__cause__) is StepTimeout
    assert len(seen) == 2


async def test_retry_on_timeout_false_fails_at_the_first(make_engine):
    """B5 The opt-out; other errors are still retried."""
    seen: list[int] = []

    @activity(timeout=SHORT, retry=Retry(max_attempts=5, retry_on_timeout=False))
    async def slow() -> None:
        seen.append(1)
        if len(seen) == 1:
            raise ValueError("retried")
        await asyncio.sleep(30)

    caller = calling(slow)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="StepTimeout"):
        await engine.execute(caller)
    assert len(seen) == 2


@pytest.mark.parametrize("timeout", [timedelta(0), None])
async def test_a_timeout_of_zero_is_none(make_engine, timeout):
    """S0-24 Zero means no timeout."""

    @activity(timeout=timeout, heartbeat_timeout=timeout, retry=ONCE)
    async def body() -> str:
        await asyncio.sleep(0.03)
        return "finished"

    caller = calling(body)
    engine = await make_engine(caller)
    assert await engine.execute(caller) == "finished"


def test_a_negative_timeout_is_refused_where_it_is_written():
    """GUARANTEES 6 case 16."""
    with pytest.raises(InvalidDuration, match="timeout of activity 'body' is negative"):

        @activity(timeout=timedelta(seconds=-1))
        async def body() -> None: ...


async def test_a_body_that_swallows_its_cancellation_is_not_waited_for(make_engine):
    """B5 GUARANTEES 2 (swallowed cancel) The attempt ends at its timeout; what the body does later changes nothing."""
    released = asyncio.Event()
    finished: list[int] = []

    @activity(timeout=SHORT, retry=Retry(max_attempts=2))
    async def stubborn() -> str:
        attempt = step_context().attempt
        if attempt == 2:
            return "second"
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        finished.append(attempt)
        return "first, late"

    caller = calling(stubborn)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "second"
    assert finished == []
    assert engine.abandoned == 1
    released.set()
    await eventually(lambda: finished == [1] and engine.abandoned == 0)
    await engine.settle()
    assert await run.result() == "second"
    completed = [fact.entry.attempt for fact in await run.history() if isinstance(fact.entry, entries.StepCompleted)]
    assert completed == [2]


async def test_a_body_asleep_in_a_thread_is_not_waited_for_and_gives_back_its_slot(make_engine):
    """B5 GUARANTEES 2 (thread outlives timeout) With one thread allowed, the retry gets a new one at once."""
    wake = threading.Event()
    ended: list[str] = []

    @activity(timeout=SHORT, retry=Retry(max_attempts=2))
    def deaf() -> str:
        if step_context().attempt == 2:
            return "second"
        wake.wait(LONG)
        ended.append("late")
        return "first, late"

    caller = calling(deaf)
    engine = await make_engine(caller, max_threads=1)
    run = await engine.start(caller)
    assert await run.result() == "second"
    assert engine.abandoned == 1
    wake.set()
    await eventually(lambda: engine.abandoned == 0)
    assert ended == ["late"]
    await engine.settle()
    assert await run.result() == "second"


async def test_a_late_failure_is_discarded_like_a_late_result(make_engine):
    """B5 A body that raises after its timeout neither fails the step nor disturbs the loop."""
    wake = threading.Event()

    @activity(timeout=SHORT, retry=Retry(max_attempts=2))
    def deaf() -> str:
        if step_context().attempt == 2:
            return "second"
        wake.wait(LONG)
        raise RuntimeError("too late to matter")

    caller = calling(deaf)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "second"
    wake.set()
    await eventually(lambda: engine.abandoned == 0)
    assert await run.status() is Status.COMPLETED


async def test_a_coroutine_that_comes_late_from_a_thread_is_closed(make_engine):
    """A sync body that returns a coroutine after its timeout leaves no "never awaited" behind (warnings are errors)."""
    wake = threading.Event()

    async def inner() -> str:
        return "never"

    @activity(timeout=SHORT, retry=ONCE)
    def deaf() -> Any:
        wake.wait(LONG)
        return inner()

    caller = calling(deaf)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="StepTimeout"):
        await engine.execute(caller)
    wake.set()
    await eventually(lambda: engine.abandoned == 0)


async def test_too_many_lost_threads_make_sync_steps_wait_until_some_come_back(make_engine, monkeypatch, caplog):
    """GUARANTEES 2: above the limit the worker takes no sync steps, says so once, and goes on when threads return."""
    monkeypatch.setattr("holdfast.bodies.executor.MAX_ABANDONED_THREADS", 3)
    wake = threading.Event()
    ran: list[str] = []

    @activity(timeout=ms(200), retry=ONCE)
    def deaf() -> None:
        wake.wait(LONG)

    @activity(timeout=timedelta(seconds=5), retry=ONCE)
    def quick() -> str:
        ran.append("quick")
        return "quick"

    async def unaffected() -> str:
        return "async"

    @workflow
    async def lose(ctx: Context) -> int:
        results = await asyncio.gather(*(ctx.step(deaf) for _ in range(4)), return_exceptions=True)
        return sum(isinstance(result, TimeoutError) for result in results)

    @workflow
    async def go_on(ctx: Context) -> list[str]:
        return [await ctx.step(unaffected), *await asyncio.gather(ctx.step(quick), ctx.step(quick))]

    engine = await make_engine(lose, go_on)
    executor = engine._working().executor
    assert await engine.execute(lose) == 4
    assert engine.abandoned == 4
    assert not executor.healthy
    with caplog.at_level(logging.ERROR, "holdfast.engine"):
        run = await engine.start(go_on)
        await eventually(lambda: engine.bodies == 2)
        await asyncio.sleep(0.02)
        assert ran == []
    assert len([record for record in caplog.records if "never came back" in record.message]) == 1
    wake.set()
    assert await run.result() == ["async", "quick", "quick"]
    assert executor.healthy


# Heartbeats.


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_heartbeats_keep_a_long_body_alive(make_engine, kind):
    """S4-8 S4-20 It takes longer than the heartbeat timeout, with heartbeats in between."""

    @activity(heartbeat_timeout=ms(1000), retry=ONCE)
    async def beating() -> str:
        for _ in range(30):
            await asyncio.sleep(0.04)
            step_context().heartbeat()
        return "alive"

    @activity(heartbeat_timeout=ms(1000), retry=ONCE)
    def beating_in_thread() -> str:
        for _ in range(30):
            time.sleep(0.04)
            step_context().heartbeat()
        return "alive"

    caller = calling(beating if kind == "async" else beating_in_thread)
    engine = await make_engine(caller)
    assert await engine.execute(caller) == "alive"


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_body_that_stops_beating_is_given_up_and_retried(make_engine, kind):
    """S4-20 B5 A missing heartbeat is a timeout of its own name and counts as one."""
    seen: list[int] = []

    @activity(heartbeat_timeout=SHORT, retry=Retry(max_attempts=2))
    async def silent() -> str:
        seen.append(1)
        step_context().heartbeat()
        await asyncio.sleep(0 if len(seen) == 2 else 30)
        return "second"

    @activity(heartbeat_timeout=SHORT, retry=Retry(max_attempts=2))
    def silent_in_thread() -> str:
        seen.append(1)
        step_context().heartbeat()
        if len(seen) == 1:
            step_context().signal.wait(30)
        return "second"

    caller = calling(silent if kind == "async" else silent_in_thread)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "second"
    (failed,) = [fact.entry.error for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    assert failed.type == "holdfast.errors.HeartbeatTimeout"
    assert failed.message.endswith("sent no heartbeat for 0.3 s")


async def test_a_missing_heartbeat_is_caught_as_such(make_engine):
    """S4-20 HeartbeatTimeout is a StepTimeout is a TimeoutError, live and replayed."""

    @activity(heartbeat_timeout=ms(5), retry=ONCE)
    async def silent() -> None:
        await asyncio.sleep(30)

    @workflow
    async def caller(ctx: Context) -> bool:
        try:
            await ctx.step(silent)
        except TimeoutError as error:
            await ctx.sleep(timedelta(days=1))
            return type(error) is HeartbeatTimeout
        return False

    engine = await make_engine(caller)
    assert await engine.execute(caller) is True


async def test_a_heartbeat_after_the_end_is_harmless(make_engine):
    """A thread that outlives its step and even its engine may go on beating."""
    wake, beaten = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    @activity(timeout=SHORT, heartbeat_timeout=timedelta(seconds=5), retry=ONCE)
    def deaf() -> None:
        context = step_context()
        wake.wait(LONG)
        try:
            context.heartbeat()
        except BaseException as error:
            failures.append(error)
        beaten.set()

    caller = calling(deaf)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed):
        await engine.execute(caller)
    await engine.stop()
    wake.set()
    await asyncio.to_thread(beaten.wait, LONG)
    assert failures == []


# The signal.


@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("why", ["timeout", "cancel", "lost race"])
async def test_the_signal_fires_when_nobody_waits_any_more(make_engine, kind, why):
    """S0-25 S0-34 S0-36 S1-26 Pollable, with listeners, waitable; it says why; an async body is cancelled besides."""
    signals: list[CancelSignal] = []
    heard: list[str] = []
    ended: list[str] = []

    def prepare() -> CancelSignal:
        signal = step_context().signal
        assert not signal.aborted
        forget = signal.listen(lambda: heard.append("forgotten"))
        signal.listen(lambda: heard.append(signal.reason))
        forget()
        signals.append(signal)
        return signal

    @activity(timeout=SHORT if why == "timeout" else None, retry=ONCE)
    async def body() -> None:
        prepare()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @activity(timeout=SHORT if why == "timeout" else None, retry=ONCE)
    def body_in_thread() -> None:
        if prepare().wait(30):
            ended.append("cancelled")

    chosen = body if kind == "async" else body_in_thread

    @workflow
    async def caller(ctx: Context) -> None:
        if why == "lost race":
            await ctx.race({"body": lambda branch: branch.step(chosen), "go": lambda branch: branch.receive("go")})
        else:
            await ctx.step(chosen)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await eventually(lambda: signals)
    if why == "cancel":
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    elif why == "lost race":
        await run.send("go")
        await run.result()
    else:
        with pytest.raises(RunFailed, match="StepTimeout"):
            await run.result()
    await eventually(lambda: ended == ["cancelled"])
    assert signals[0].aborted
    assert heard == ["timeout" if why == "timeout" else "cancelled"]
    late: list[int] = []
    signals[0].listen(lambda: late.append(1))
    assert late == [1]


async def test_a_listener_that_fails_disturbs_nobody(make_engine, caplog):
    """S0-36 B19 Its error is logged; the others are still told."""
    heard: list[str] = []

    def fail() -> None:
        raise ValueError("in a listener")

    @activity(timeout=SHORT, retry=ONCE)
    async def body() -> None:
        signal = step_context().signal
        signal.listen(fail)
        signal.listen(lambda: heard.append("told"))
        await asyncio.sleep(30)

    caller = calling(body)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="StepTimeout"):
        await engine.execute(caller)
    assert heard == ["told"]
    assert any("listener" in record.message for record in caplog.records)


@pytest.mark.parametrize("steps", [0, 2])
async def test_a_step_given_up_by_an_asyncio_timeout_is_cancelled(make_engine, steps):
    """DESIGN 3: asyncio.timeout around a step is a durable deadline in the workflow; the body is signalled.

    Begun by the first commit of its run, or by one that only records facts.
    """
    signals: list[CancelSignal] = []

    async def before() -> None:
        pass

    async def body() -> None:
        signals.append(step_context().signal)
        await asyncio.sleep(30)

    @workflow
    async def caller(ctx: Context) -> str:
        for _ in range(steps):
            await ctx.step(before)
        try:
            async with asyncio.timeout(3600):
                await ctx.step(body)
        except TimeoutError:
            await ctx.sleep(timedelta(days=1))
            return "gave up"
        return "finished"

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await eventually(lambda: signals)
    engine.jumping.advance(timedelta(hours=1))
    engine._jump(engine.clock.now())
    assert await run.result() == "gave up"
    assert signals[0].aborted
