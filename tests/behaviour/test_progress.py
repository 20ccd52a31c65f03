"""Progress: what a long step reports is on record while it runs, and so is every attempt that failed."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, Retry, RunFailed, activity, step_context, workflow
from holdfast.contract.operations import Beat
from holdfast.errors import StoreError

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def calling(body: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> Any:
        return await ctx.step(body)

    return caller


async def only(run: Any) -> Any:
    (step,) = await run.steps()
    return step


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_progress_is_on_record_while_the_step_runs(make_engine, kind):
    """S4-29 S4-20 When it last reported and what it said; those who watch are told."""
    release = threading.Event()

    async def copy_async() -> str:
        step_context().heartbeat({"copied": 40, "of": 100})
        while not release.is_set():  # noqa: ASYNC110  # the event is shared with a thread
            await asyncio.sleep(0.001)
        return "copied"

    def copy_thread() -> str:
        step_context().heartbeat({"copied": 40, "of": 100})
        release.wait(LONG)
        return "copied"

    caller = calling(copy_async if kind == "async" else copy_thread)
    engine = await make_engine(caller, start=START)
    told: list[Any] = []
    engine.subscribe(lambda change: told.append(change.data) if change.type == "step.progress" else None)
    run = await engine.start(caller)

    async def reported() -> bool:
        return (await only(run)).heartbeat_at is not None

    await eventually(reported)
    step = await only(run)
    assert (step.status, step.heartbeat_at, step.progress) == ("running", START, {"copied": 40, "of": 100})
    assert told == [{"progress": {"copied": 40, "of": 100}}]
    release.set()
    assert await run.result() == "copied"


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_progress_is_seen_from_another_engine(make_engine):
    """S4-29 It is in the store, not in the memory of whoever runs the step."""
    release = asyncio.Event()

    async def copy() -> None:
        step_context().heartbeat("half")
        await release.wait()

    caller = calling(copy)
    engine = await make_engine(caller)
    client = await make_engine(caller, run_workflows=False, clock=engine.jumping)
    run = await engine.start(caller)

    async def seen() -> bool:
        return bool((await only(client.get(run.id))).progress == "half")

    await eventually(seen)
    release.set()
    await run.result()


async def test_reports_are_recorded_at_most_once_a_second(make_engine):
    """S4-29 A body may report as often as it likes; the store is not flooded."""
    told: list[Any] = []

    async def copy() -> None:
        for number in range(1000):
            step_context().heartbeat(number)
        await asyncio.sleep(0.01)

    caller = calling(copy)
    engine = await make_engine(caller)
    engine.subscribe(lambda change: told.append(change.data["progress"]) if change.type == "step.progress" else None)
    await engine.execute(caller)
    assert told == [0]


async def test_the_last_word_of_many_is_on_record(make_engine, monkeypatch):
    """S4-29 Each report replaces the one before it."""
    monkeypatch.setattr("holdfast.bodies.context.REPORT_EVERY", 0.0)
    release = asyncio.Event()

    async def copy() -> None:
        for number in range(5):
            step_context().heartbeat(number)
            await asyncio.sleep(0)
        await release.wait()

    caller = calling(copy)
    engine = await make_engine(caller)
    run = await engine.start(caller)

    async def seen() -> bool:
        return bool((await only(run)).progress == 4)

    await eventually(seen)
    release.set()
    await run.result()
    assert (await only(run)).status == "completed"


async def test_progress_that_cannot_be_stored_fails_the_step(make_engine):
    """S4-29 It says which step and what is wrong with it; another attempt would only repeat it."""

    async def copy() -> None:
        step_context().heartbeat(object())

    caller = calling(copy)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed, match="the progress of step 'copy'"):
        await run.result()
    assert (await only(run)).attempts == 1


async def test_a_step_that_reports_nothing_any_more_is_given_up_and_tried_again(make_engine):
    """S4-20 S4-29 The timeout is from the last report on; what the first attempt reported can be seen till the next."""
    ran: list[int] = []
    silent = timedelta(milliseconds=100)

    @activity(heartbeat_timeout=silent, retry=Retry(max_attempts=2, initial_interval=MINUTE))
    async def copy() -> str:
        ran.append(step_context().attempt)
        if len(ran) == 1:
            for number in range(4):
                step_context().heartbeat(number)
                await asyncio.sleep(0.03)
            await asyncio.sleep(30)
        return "copied"

    caller = calling(copy)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    await engine.settle()
    step = await only(run)
    assert (step.status, step.attempts, step.failures) == ("waiting", 1, 1)
    assert step.error.type == "holdfast.errors.HeartbeatTimeout"
    assert step.progress == 0
    assert await run.result() == "copied"
    assert ran == [1, 2]


async def test_a_failed_attempt_is_on_record_before_its_retry(make_engine):
    """S4-29 S4-28 Status, number of attempts, last error and the time of the next, while the step waits for it."""

    @activity(retry=Retry(max_attempts=3, initial_interval=MINUTE, max_interval=60 * MINUTE))
    async def flaky() -> str:
        attempt = step_context().attempt
        if attempt < 3:
            raise ConnectionError(f"no answer to attempt {attempt}")
        return "answered"

    caller = calling(flaky)
    engine = await make_engine(caller, start=START)
    run = await engine.start(caller)
    for attempt, wait in ((1, MINUTE), (2, 3 * MINUTE)):
        await engine.settle()
        step = await only(run)
        assert (step.status, step.attempts, step.failures) == ("waiting", attempt, attempt)
        assert (step.error.type, step.error.message) == ("ConnectionError", f"no answer to attempt {attempt}")
        assert step.next_attempt_at == START + wait
        await engine.advance(MINUTE * attempt)
    assert await run.result() == "answered"
    assert (await only(run)).attempts == 3


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_progress_outlives_the_engine_that_stopped(make_engine):
    """S4-29 S0-37 The attempt was handed back and runs again from its beginning; how far the last one came is known."""
    release = asyncio.Event()
    ran: list[int] = []

    async def copy() -> str:
        ran.append(step_context().attempt)
        if len(ran) == 1:
            step_context().heartbeat("page 7")
        await release.wait()
        return "copied"

    caller = calling(copy)
    engine = await make_engine(caller)
    run = await engine.start(caller, id="r")

    async def seen() -> bool:
        return bool((await only(engine.get("r"))).progress == "page 7")

    await eventually(seen)
    await engine.stop()
    engine = await make_engine(caller, clock=engine.jumping)
    run = engine.get("r")

    async def running() -> bool:
        return len(ran) == 2

    await eventually(running)
    assert (await only(run)).progress == "page 7"
    release.set()
    assert await run.result() == "copied"
    assert ran == [1, 2]


# How far a run of code has come.


async def test_code_says_how_far_it_has_come(make_engine):
    """The number and the total it says, the steps done, the one under way and what that said."""
    release = asyncio.Event()

    async def copy(name: str) -> None:
        if name == "c":
            step_context().heartbeat({"copied": "40 %"})
            await release.wait()

    @workflow
    async def move(ctx: Context, names: list[str]) -> None:
        for number, name in enumerate(names):
            ctx.progress(number, of=len(names))
            await ctx.step(name, copy, name)
        ctx.progress(len(names), of=len(names))

    engine = await make_engine(move)
    run = await engine.start(move, ["a", "b", "c", "d"])

    async def reported() -> bool:
        return (await run.progress()).reported is not None

    await eventually(reported)
    now = await run.progress()
    assert (now.index, now.total, now.fraction, now.name, now.done) == (2, 4, 0.5, "c", False)
    assert (now.steps, now.reported) == (2, {"copied": "40 %"})
    release.set()
    await run.result()
    now = await run.progress()
    assert (now.index, now.total, now.fraction, now.name, now.done, now.steps) == (4, 4, 1.0, "", True, 4)


async def test_code_that_says_nothing_has_done_so_many_steps(make_engine):
    """There is no total to tell."""

    @workflow
    async def two(ctx: Context) -> None:
        await ctx.step("first", nothing)
        await ctx.step("second", nothing)
        await ctx.receive("word")

    engine = await make_engine(two)
    run = await engine.start(two)
    await engine.settle()
    now = await run.progress()
    assert (now.index, now.total, now.fraction, now.steps, now.done) == (2, None, None, 2, False)


async def nothing() -> None:
    pass


async def laps(ctx: Context) -> int:
    async for lap in ctx.loop("laps", state=0, commit_interval=2, history_every=2, history_keep=1):
        if lap.state == 9:
            break
        await lap.step(nothing)
        lap.state += 1
    return await ctx.receive("word", int)


async def laps_with_progress(ctx: Context) -> int:
    async for lap in ctx.loop("laps", state=0, commit_interval=2, history_every=2, history_keep=1):
        if lap.state == 9:
            break
        lap.progress(lap.state, of=9)
        await lap.step(nothing)
        lap.progress(lap.state + 1, of=9)
        lap.state += 1
    ctx.progress(9, of=10)
    return await ctx.receive("word", int)


@pytest.mark.parametrize("mode", ["file", "evict"])
@pytest.mark.parametrize("codes", [(laps, laps_with_progress), (laps_with_progress, laps)], ids=["added", "removed"])
async def test_progress_may_be_added_and_removed_under_open_runs(make_engine, codes):
    """Nothing depends on it, so a run that began without it, or with it, goes on."""
    before, after = (workflow(name="laps", check=False)(code) for code in codes)
    engine = await make_engine(before)
    run = await engine.start(before, id="r")
    await engine.settle()
    await engine.stop()
    other = await make_engine(after)
    run = other.get("r")
    await run.send("word", 7)
    assert await run.result() == 7


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_progress_is_not_noted_again_by_a_replay(make_engine):
    """S1-32 However often the run is brought back into memory."""
    flow = workflow(name="laps", check=False)(laps_with_progress)
    engine = await make_engine(flow)
    run = await engine.start(flow, id="r")
    await engine.settle()
    entries = [entry.seq for entry in await run.history() if entry.kind == "progress"]
    assert entries
    for _ in range(3):
        await engine.stop()
        engine = await make_engine(flow)
        run = engine.get("r")
        await run.send("other")
        await engine.settle()
    assert [entry.seq for entry in await run.history() if entry.kind == "progress"] == entries
    now = await run.progress()
    assert (now.index, now.total) == (9, 10)


@pytest.mark.parametrize("mode", ["memory"])
@pytest.mark.parametrize("given", [("x",), (True,), (1, "x"), (float("nan"),), (1, float("inf")), (None,)])
async def test_what_is_no_number_is_refused(make_engine, given):
    """GUARANTEES 6.14"""

    @workflow
    async def wrong(ctx: Context) -> None:
        ctx.progress(*given)

    engine = await make_engine(wrong)
    with pytest.raises(RunFailed, match="must be a number"):
        await engine.execute(wrong)


async def test_a_heartbeat_that_is_awaited_is_durable_however_soon_it_comes(make_engine, address, mode):
    """S4-29 S4-20 Each one, though others of the same second are not recorded."""
    seen: list[Any] = []

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(copy)

    async def copy() -> None:
        context = step_context()
        for number in range(3):
            await context.heartbeat(number)
            run = await engine.store.get(context.run_id)
            assert run is not None
            seen.extend(said for _, said in (await engine.store.beats(run.key)).values())

    engine = await make_engine(caller)
    await (await engine.start(caller)).result()
    assert seen == ["0", "1", "2"]


@pytest.mark.parametrize("mode", ["memory"])
async def test_a_heartbeat_that_cannot_be_recorded_tells_the_body_that_waits_for_it(make_engine):
    """S4-29 G14"""
    told: list[str] = []

    async def copy() -> None:
        try:
            await step_context().heartbeat(1)
        except StoreError as error:
            told.append(str(error))

    caller = calling(copy)
    engine = await make_engine(caller)
    fault = engine.faults.fail(only=Beat, error=StoreError("the disk is gone"))
    await (await engine.start(caller)).result()
    assert (told, fault.injected) == (["the disk is gone"], 1)
