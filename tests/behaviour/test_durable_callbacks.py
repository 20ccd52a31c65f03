"""Callbacks of activities that do I/O: awaited before the run goes on, and not lost with the process."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.support.acts_cases import dead_or_done
from tests.support.waiting import eventually

from holdfast import Context, NotReady, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.engine.handle import RunHandle

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
IN_MEMORY = pytest.mark.parametrize("mode", ["memory"])
ON_FILE = pytest.mark.parametrize("mode", ["file"])

log: list[Any] = []


@pytest.fixture(autouse=True)
def empty_log() -> None:
    log.clear()


async def after_a_while(word: str, *args: Any) -> None:
    log.append(f"{word} begins")
    for _ in range(3):
        await asyncio.sleep(0)
    log.append(word)


def slow(*words: str) -> dict[str, Any]:
    return {word: partial(after_a_while, word) for word in words}


ALL = slow("on_start", "on_success", "on_failure", "on_failed", "on_skipped")


async def note(word: str) -> None:
    log.append(word)


@IN_MEMORY
async def test_async_callbacks_are_awaited_before_the_next_call_begins(make_engine):
    """B35 S0-29 Whatever becomes of the step: skipped, failed and tried again, succeeded."""
    answers = [NotReady("offline", MINUTE)]

    @activity(run_when=lambda step: answers.pop() if answers else True, **ALL)
    async def call() -> str:
        log.append("body")
        if step_context().attempt == 1:
            raise ConnectionError
        return "done"

    @workflow
    async def caller(ctx: Context) -> str:
        found = await ctx.step(call)
        await ctx.step(note, "next call")
        return found

    engine = await make_engine(caller)
    assert await engine.execute(caller) == "done"
    ends = [word for word in log if not str(word).endswith("begins")]
    assert ends == ["on_skipped", "on_start", "body", "on_failure", "on_start", "body", "on_success", "next call"]


@IN_MEMORY
async def test_the_code_hears_of_a_failure_when_its_callbacks_have_ended(make_engine):
    """B35 S0-29 on_failure and on_failed, one after the other."""

    @activity(retry=Retry.never, **ALL)
    def call() -> None:
        raise ConnectionError

    @workflow
    async def caller(ctx: Context) -> None:
        try:
            await ctx.step(call)
        except ConnectionError:
            await ctx.step(note, "handled")

    engine = await make_engine(caller)
    await engine.execute(caller)
    assert log[2:] == ["on_failure begins", "on_failure", "on_failed begins", "on_failed", "handled"]


@IN_MEMORY
async def test_on_start_is_part_of_the_attempt(make_engine):
    """B35 The attempt's time runs while it is awaited, and the body does not begin if it runs out."""

    @activity(on_start=lambda step: asyncio.Event().wait(), timeout=timedelta(milliseconds=1), retry=Retry.never)
    async def call() -> None:
        log.append("body")

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(call)

    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="did not finish within"):
        await engine.execute(caller)
    assert log == []


@IN_MEMORY
async def test_a_run_that_is_cancelled_in_on_start_begins_no_body(make_engine):
    """B35 B7"""
    starts = asyncio.Event()

    async def on_start(step: Any) -> None:
        starts.set()
        try:
            await asyncio.Event().wait()
        finally:
            log.append("stopped")

    @activity(on_start=on_start)
    def call() -> None:
        log.append("body")

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(call)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await starts.wait()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await eventually(lambda: log == ["stopped"])


@IN_MEMORY
async def test_async_callbacks_that_raise_change_nothing_and_are_reported(make_engine):
    """B35 B19"""

    async def broken(*args: Any) -> None:
        raise ZeroDivisionError("in a callback")

    @activity(on_start=broken, on_success=broken)
    async def call() -> int:
        return 7

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(call)

    engine = await make_engine(caller)
    told: list[str] = []
    engine.subscribe(lambda change: told.append(change.data["error"]) if change.type == "callback.error" else None)
    assert await engine.execute(caller) == 7
    assert told == ["ZeroDivisionError: in a callback"] * 2


@IN_MEMORY
async def test_what_a_callback_returns_to_be_awaited_is_awaited(make_engine):
    """B35 `lambda step, result: notify(result)` with an async notify."""

    @activity(on_success=lambda step, result: after_a_while("told"))
    async def call() -> None: ...

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(call)

    engine = await make_engine(caller)
    await engine.execute(caller)
    assert log == ["told begins", "told"]


@IN_MEMORY
async def test_a_step_is_shown_as_completed_while_its_callback_is_told(make_engine):
    """B35 S0-58 Its result is durable before that; the run has not seen it."""
    telling, go_on = asyncio.Event(), asyncio.Event()

    async def on_success(step: Any, result: int) -> None:
        telling.set()
        await go_on.wait()

    @activity(on_success=on_success)
    async def call() -> int:
        return 7

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(call) + await ctx.step("second", call.options(on_success=None))

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await telling.wait()
    [step] = await run.steps()
    assert (step.status, step.result) == ("completed", 7)
    go_on.set()
    assert await run.result() == 14
    assert [step.failures for step in await run.steps()] == [0, 0]


@IN_MEMORY
async def test_a_pause_waits_for_a_callback_that_is_being_told(make_engine):
    """B35 B25 What is under way may finish, and is recorded: it is not told twice."""
    telling, go_on = asyncio.Event(), asyncio.Event()

    async def on_success(step: Any, result: int) -> None:
        log.append("on_success")
        telling.set()
        await go_on.wait()

    @activity(on_success=on_success)
    async def call() -> int:
        return 7

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(call)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await telling.wait()
    assert await run.pause()
    go_on.set()
    await engine.settle()
    assert await run.status() is Status.PAUSED
    await run.resume()
    assert await run.result() == 7
    assert log == ["on_success"]


@ON_FILE
async def test_a_callback_that_was_cut_off_by_a_stop_is_called_again(make_engine):
    """B35 The result is kept: the body is not run again."""
    telling = asyncio.Event()

    async def on_success(step: Any, result: int) -> None:
        log.append("on_success")
        telling.set()
        await (asyncio.Event().wait() if log.count("on_success") == 1 else note("told"))

    @activity(on_success=on_success, retry=Retry.never)
    async def call() -> int:
        log.append("body")
        return 7

    @workflow
    async def caller(ctx: Context) -> int:
        found = await ctx.step(call)
        await ctx.step(note, "next call")
        return found

    engine = await make_engine(caller)
    await engine.start(caller, id="r")
    await telling.wait()
    await engine.stop()
    engine = await make_engine(caller, clock=engine.jumping)
    assert await engine.get("r").result() == 7
    assert log == ["body", "on_success", "on_success", "told", "next call"]


@ON_FILE
async def test_a_callback_that_the_code_no_longer_has_is_not_missed(make_engine):
    """B35 The run goes on with what was kept."""
    telling = asyncio.Event()

    async def on_failure(step: Any, error: Any) -> None:
        telling.set()
        await asyncio.Event().wait()

    async def call() -> int:
        log.append(step_context().attempt)
        if step_context().attempt == 1:
            raise ConnectionError
        return 7

    def caller(**options: Any) -> Any:
        called = activity(retry=Retry(initial_interval=MINUTE), **options)(call)

        @workflow(name="caller")
        async def calling(ctx: Context) -> int:
            return await ctx.step(called)

        return calling

    engine = await make_engine(caller(on_failure=on_failure))
    await engine.start("caller", id="r")
    await telling.wait()
    await engine.crash()
    engine = await make_engine(caller(), clock=engine.jumping)
    assert await engine.get("r").result() == 7
    assert log == [1, 2]
    assert [step.failures for step in await engine.get("r").steps()] == [1]


@IN_MEMORY
async def test_a_result_whose_callback_was_being_told_is_kept_when_the_run_is_cancelled_and_resumed(make_engine):
    """B35 B8 B36 It was recorded: the body is not repeated, and the callback is told again."""
    telling = asyncio.Event()

    async def on_success(step: Any, result: int) -> None:
        log.append("on_success")
        telling.set()
        await (asyncio.Event().wait() if log.count("on_success") == 1 else note("told"))

    @activity(on_success=on_success)
    async def call() -> int:
        log.append("body")
        return 7

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(call)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await telling.wait()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await run.resume()
    assert await run.result() == 7
    assert log == ["body", "on_success", "on_success", "told"]


@IN_MEMORY
async def test_a_step_that_is_done_again_is_not_answered_by_what_was_kept_of_it(make_engine):
    """B35 B8 rerun(from_step=...) runs the body and tells its callbacks again."""

    @activity(on_success=partial(after_a_while, "on_success"))
    async def call() -> int:
        log.append("body")
        return log.count("body")

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(call)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == 1
    await run.rerun(from_step="call")
    assert await run.result() == 2
    assert log == ["body", "on_success begins", "on_success"] * 2


@ON_FILE
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_no_callback_is_lost_whenever_the_worker_dies(make_engine, tmp_path, moment):
    """B35 G3 Killed at each commit in turn: each is told at least once before what follows it begins."""

    @activity(retry=Retry(initial_interval=SECOND), **ALL)
    async def call() -> str:
        if "on_failure" not in log:
            raise ConnectionError
        return "done"

    @workflow
    async def caller(ctx: Context) -> str:
        found = await ctx.step(call)
        await ctx.step(note, "next call")
        return found

    died = 0
    for dies_at in range(1, 20):
        log.clear()
        path = str(tmp_path / f"{dies_at}.db")
        engine = await make_engine(caller, database=path)
        engine.faults.die(dies_at, moment)
        running = asyncio.create_task(_run(engine, caller))
        await dead_or_done(engine.faults, running)
        dead = engine.faults.dead
        running.cancel()
        await asyncio.wait([running])
        await engine.crash()
        engine = await make_engine(caller, database=path, clock=engine.jumping)
        run = await engine.start(caller, id="r")
        assert await run.result() == "done"
        assert log.index("on_success") < log.index("next call"), log
        assert {"on_failure", "on_success"} <= set(log[: log.index("next call")]), log
        assert "on_success" not in log[log.index("next call") :], log
        await engine.stop()
        if not dead:
            break
        died += 1
    assert died >= 6, "the worker must have died at each commit"


async def _run(engine: Any, workflow: Any) -> Any:
    run: RunHandle[Any] = await engine.start(workflow, id="r")
    return await run.result()
