"""Hooks at the end of a run: steps of their own after the end is decided, and before the run is told as ended."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.acts_cases import dead_or_done
from tests.support.waiting import eventually

from holdfast import (
    ChildFailed,
    Context,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.declarative import graph, sequence
from holdfast.definitions import Hooks
from holdfast.errors import CannotReopen, UniqueConflict
from holdfast.testing import TestEngine, record, replay

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
IN_MEMORY = pytest.mark.parametrize("mode", ["memory"])
ON_FILE = pytest.mark.parametrize("mode", ["file"])
KEPT = pytest.mark.parametrize("mode", ["file", "evict"])
ENDS = {"go": Status.COMPLETED, "fail": Status.FAILED, "": Status.CANCELLED}
NAMES = {"go": "on_complete", "fail": "on_failed", "": "on_cancelled"}

log: list[Any] = []
may_end: list[asyncio.Event] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    log.clear()
    may_end[:] = [asyncio.Event()]


async def on_complete(run_id: str, state: Any) -> None:
    log.append("on_complete begins")
    await may_end[0].wait()
    log.append(("on_complete", run_id, state))


async def on_failed(run_id: str, state: Any, error: Any) -> None:
    log.append("on_failed begins")
    await may_end[0].wait()
    log.append(("on_failed", run_id, state, error.message))


async def on_cancelled(run_id: str, state: Any) -> None:
    log.append("on_cancelled begins")
    await may_end[0].wait()
    log.append(("on_cancelled", run_id, state))


HOOKS: dict[str, Any] = {"on_complete": on_complete, "on_failed": on_failed, "on_cancelled": on_cancelled}


async def release(what: str) -> None:
    log.append(f"released {what}")


async def process(ctx: Context) -> str:
    state: dict[str, str] = {}
    ctx.on_query("state", lambda: state)
    ctx.compensate(release, "seat")
    state["word"] = await ctx.receive("word", str)
    if state["word"] == "fail":
        raise ValueError("as told")
    return state["word"]


hooked = workflow(name="process", **HOOKS)(process)


async def decided(engine: Any, word: str, **options: Any) -> Any:
    """Return a run whose end is decided, and whose hook has begun."""
    run = await engine.start("process", **options)
    await engine.settle()
    await (run.send("word", word) if word else run.cancel())
    await eventually(lambda: f"{NAMES[word]} begins" in log)
    return run


async def ended(run: Any) -> None:
    try:
        await run.result()
    except (RunFailed, RunCancelled):
        pass


@IN_MEMORY
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_a_run_is_told_as_ended_when_its_hook_has(make_engine, word):
    """B35 S0-2 S0-32 S0-33 S0-34 Its unique key is free before that; it waits for `callback`, with the state it had."""
    engine = await make_engine(hooked)
    run = await decided(engine, word, unique_key="one at a time", id="r")
    found = await run.describe()
    assert (found.status, found.waiting_for) == (Status.RUNNING if word else Status.CANCELLING, "callback")
    second = await engine.start("process", unique_key="one at a time")
    with pytest.raises(UniqueConflict):
        await engine.start("process", unique_key="one at a time")
    assert found.ended_at is None
    may_end[0].set()
    await ended(run)
    assert await run.status() is ENDS[word]
    state = {"word": word} if word else {}
    wanted = (NAMES[word], "r", state, "as told") if word == "fail" else (NAMES[word], "r", state)
    assert log[-1] == wanted
    assert [entry for entry in log if entry[0] == NAMES[word]] == [wanted]
    await second.cancel()


@IN_MEMORY
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_nothing_stops_a_run_whose_end_is_decided(make_engine, word):
    """B35 cancel and pause answer False; the hook ends, and the run as it was decided."""
    engine = await make_engine(hooked)
    run = await decided(engine, word)
    assert not await run.cancel()
    assert not await run.cancel(compensate=True)
    assert not await run.pause()
    assert not await run.resume()
    may_end[0].set()
    await ended(run)
    assert await run.status() is ENDS[word]


@IN_MEMORY
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_a_run_that_is_terminated_ends_as_it_was_decided_and_leaves_its_hook_as_a_letter(make_engine, word):
    """B35 B7 No more code of it runs; its result, its error and its failed step are those that were decided."""
    engine = await make_engine(hooked)
    told: list[str] = []
    engine.subscribe(lambda change: told.append(change.type))
    run = await decided(engine, word)
    assert await run.terminate(reason="enough")
    assert await run.status() is ENDS[word]
    if word == "go":
        assert await run.result() == "go"
    elif word == "fail":
        with pytest.raises(RunFailed, match="as told"):
            await run.result()
    letters = {letter.step: letter for letter in await engine.dead_letters.list()}
    assert letters[f"end#0/{NAMES[word]}"].error.message == "enough"
    assert letters[f"end#0/{NAMES[word]}"].attempts == 1
    assert len(letters) == 1 + (word == "fail")
    assert told.count(f"run.{ENDS[word]}") == 1
    may_end[0].set()
    await engine.settle()
    assert NAMES[word] not in [entry[0] for entry in log]


@IN_MEMORY
async def test_a_hook_is_retried_by_its_own_policy(make_engine):
    """B35 An activity says how often and how long; a plain function runs in a thread, and may block."""
    seen: list[Any] = []

    @activity(retry=Retry(max_attempts=5, initial_interval=DAY, max_interval=None))
    def upload(run_id: str, state: Any) -> None:
        seen.append((step_context().attempt, step_context().idempotency_key))
        if step_context().attempt < 3:
            raise ConnectionError("no answer")

    @workflow(on_complete=upload)
    async def work(ctx: Context) -> int:
        return 7

    engine = await make_engine(work)
    run = await engine.start(work, id="r")
    assert await run.result() == 7
    assert seen == [(attempt, "r:end#0/on_complete") for attempt in (1, 2, 3)]
    [step] = await run.steps()
    assert (step.path, step.status, step.attempts, step.failures) == ("end#0/on_complete", "completed", 3, 2)
    assert await engine.dead_letters.list() == []


@IN_MEMORY
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_a_hook_that_fails_for_good_is_a_dead_letter_and_changes_nothing(make_engine, word):
    """B35 B19 It is logged and told; the run ends as it was decided."""

    @activity(retry=Retry(max_attempts=2))
    async def broken(*args: Any) -> None:
        raise ZeroDivisionError("in a hook")

    work = workflow(name="process", on_complete=broken, on_failed=broken, on_cancelled=broken)(process)
    engine = await make_engine(work)
    told: list[Any] = []
    engine.subscribe(told.append)
    run = await engine.start(work)
    await engine.settle()
    await (run.send("word", word) if word else run.cancel())
    await ended(run)
    assert await run.status() is ENDS[word]
    errors = [change.data for change in told if change.type == "callback.error"]
    assert errors == [{"callback": NAMES[word], "error": "ZeroDivisionError: in a hook"}] * 2
    assert sum(change.type == "deadletter.added" for change in told) == 1 + (word == "fail")
    [letter] = [each for each in await engine.dead_letters.list() if each.step.startswith("end#")]
    assert (letter.step, letter.attempts, letter.failures) == (f"end#0/{NAMES[word]}", 2, 2)
    with pytest.raises(CannotReopen, match="is not called again alone"):
        await engine.dead_letters.replay(letter.id)
    assert await engine.dead_letters.acknowledge(letter.id)


@IN_MEMORY
async def test_a_hook_takes_longer_than_the_grace_of_a_cancel(make_engine):
    """B35 B7"""
    engine = await make_engine(hooked, cancel_grace=SECOND)
    run = await decided(engine, "")
    await engine.advance(DAY)
    assert await run.status() is Status.CANCELLING
    may_end[0].set()
    await ended(run)
    assert [entry[0] for entry in log if entry[0] == "on_cancelled"] == ["on_cancelled"]


@IN_MEMORY
async def test_a_run_that_does_not_stop_within_its_grace_calls_its_hook(make_engine):
    """B35 B7 Whatever its code and its steps are doing."""

    async def forever() -> None:
        await asyncio.Event().wait()

    @workflow(on_cancelled=on_cancelled)
    async def stubborn(ctx: Context) -> None:
        while True:
            try:
                await ctx.step(forever)
            except asyncio.CancelledError:
                log.append("no")
                await ctx.step("more", forever)

    may_end[0].set()
    engine = await make_engine(stubborn, cancel_grace=MINUTE)
    run = await engine.start(stubborn, id="r")
    await eventually(lambda: engine.bodies == 1)
    assert await run.cancel()
    await eventually(lambda: log == ["no"])
    await engine.advance(2 * MINUTE)
    assert await run.status() is Status.CANCELLED
    assert log[-1] == ("on_cancelled", "r", None)


@IN_MEMORY
async def test_a_cancel_that_undoes_calls_the_hook_after_it(make_engine):
    """B35 B17"""
    may_end[0].set()
    engine = await make_engine(hooked)
    run = await engine.start(hooked, id="r")
    await engine.settle()
    await run.cancel(compensate=True)
    await ended(run)
    assert log == ["released seat", "on_cancelled begins", ("on_cancelled", "r", {})]
    assert [step.compensation for step in await run.steps()] == [True, False]


@IN_MEMORY
async def test_a_failed_run_tells_what_it_undid_after_its_hook(make_engine):
    """B35 B17 The report of its compensations is that of the decided end."""
    may_end[0].set()
    engine = await make_engine(hooked)
    run = await decided(engine, "fail")
    await ended(run)
    assert [each["name"] for each in (await run.describe()).compensation] == ["release"]
    assert log[:2] == ["released seat", "on_failed begins"]


@IN_MEMORY
async def test_a_parent_hears_of_its_child_when_the_hooks_of_that_have_ended(make_engine):
    """B35 B18"""

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.child(hooked, id="child")
        except ChildFailed as failed:
            log.append("parent hears")
            return str(failed)
        return ""

    engine = await make_engine(parent, hooked)
    run = await engine.start(parent)
    await engine.settle()
    await engine.get("child").send("word", "fail")
    await eventually(lambda: "on_failed begins" in log)
    assert "parent hears" not in log
    may_end[0].set()
    assert "as told" in await run.result()
    assert log[-1] == "parent hears"


@IN_MEMORY
async def test_each_end_of_a_run_calls_its_hook_with_a_key_of_its_own(make_engine):
    """B35 B8 Reopening cuts the hooks away: after a retry, a resume and a rerun they are called again."""
    keys: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        async def hook(*args: Any) -> None:
            keys.append((name, step_context().idempotency_key))

        return hook

    fails = [True]

    async def charge() -> int:
        if fails:
            raise ValueError("no")
        return 7

    @workflow(on_complete=note("complete"), on_failed=note("failed"), on_cancelled=note("cancelled"))
    async def order(ctx: Context) -> int:
        await ctx.sleep(MINUTE)
        return await ctx.step(activity(retry=Retry.never)(charge))

    engine = await make_engine(order)
    run = await engine.start(order, id="r")
    await engine.settle()
    await run.cancel()
    await ended(run)
    await run.resume()
    await ended(run)
    assert await run.status() is Status.FAILED
    fails.clear()
    await run.retry()
    assert await run.result() == 7
    await run.rerun(from_step="charge")
    assert await run.result() == 7
    assert keys == [
        ("cancelled", "r:end#0/on_cancelled"),
        ("failed", "r:end#1/on_failed"),
        ("complete", "r:end#2/on_complete"),
        ("complete", "r:end#3/on_complete"),
    ]
    assert [step.name for step in await run.steps()] == ["charge", "on_complete"]
    assert [item.what for item in await run.timeline()].count("end decided") == 4


@IN_MEMORY
async def test_what_outlasted_a_cancel_is_kept_beside_the_hook(make_engine):
    """B35 B36 A call that nothing can interrupt: its result is recorded with the decision, and kept by resume."""
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls: list[int] = []

    def blocking() -> int:
        calls.append(1)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return 7

    may_end[0].set()

    @workflow(on_cancelled=on_cancelled)
    async def work(ctx: Context) -> int:
        return await ctx.step(blocking)

    engine = await make_engine(work)
    run = await engine.start(work)
    await eventually(lambda: calls == [1])
    await run.cancel()
    await eventually(lambda: _is(run, Status.CANCELLING))
    assert log == []
    go_on.set()
    await ended(run)
    assert log[0] == "on_cancelled begins"
    await run.resume()
    assert await run.result() == 7
    assert calls == [1]


async def _is(run: Any, status: Status) -> bool:
    return await run.status() is status


# Workers that come and go.


@ON_FILE
async def test_a_run_that_is_cancelled_while_no_worker_has_its_code_stays_cancelling_until_one_has(make_engine):
    """B35 B7 Only where there is a hook for that: otherwise it ends at once."""
    may_end[0].set()

    @workflow
    async def plain(ctx: Context) -> None: ...

    client = await make_engine(hooked, plain, run_workflows=False)
    run, other = await client.start(hooked, id="r", delay=DAY), await client.start(plain)
    assert await run.cancel()
    assert await other.cancel()
    await client.settle()
    assert (await run.status(), await other.status()) == (Status.CANCELLING, Status.CANCELLED)
    await make_engine(hooked, clock=client.jumping)
    await eventually(lambda: _is(run, Status.CANCELLED))
    assert log[-1] == ("on_cancelled", "r", None)
    await run.resume()
    await run.send("word", "go")
    assert await run.result() == "go"


@KEPT
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_a_hook_goes_on_in_another_worker(make_engine, word):
    """B35 The code is not needed for that, and what it would do now does not matter: the end was decided."""
    engine = await make_engine(hooked)
    await decided(engine, word, id="r")
    await engine.crash()

    async def changed(ctx: Context) -> str:
        raise LookupError("other code")

    may_end[0].set()
    engine = await make_engine(workflow(name="process", **HOOKS)(changed), clock=engine.jumping)
    run = engine.get("r")
    await ended(run)
    assert await run.status() is ENDS[word]
    if word == "go":
        assert await run.result() == "go"
    assert [entry[0] for entry in log if entry[0] == NAMES[word]] == [NAMES[word]]
    assert log.count(f"{NAMES[word]} begins") == 2


@ON_FILE
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_a_hook_that_the_code_no_longer_has_is_left_out(make_engine, word):
    """B35 It is no divergence: the run ends as it was decided."""
    engine = await make_engine(hooked)
    await decided(engine, word, id="r")
    await engine.crash()
    engine = await make_engine(workflow(name="process")(process), clock=engine.jumping)
    run = engine.get("r")
    await ended(run)
    assert await run.status() is ENDS[word]
    assert [letter.step for letter in await engine.dead_letters.list()] == ([""] if word == "fail" else [])


@ON_FILE
async def test_a_worker_that_stops_hands_a_hook_over(make_engine):
    """B35"""
    engine = await make_engine(hooked)
    await decided(engine, "go", id="r")
    await engine.stop()
    may_end[0].set()
    engine = await make_engine(hooked, clock=engine.jumping)
    assert await engine.get("r").result() == "go"


@pytest.mark.parametrize("mode", ["evict", "postgres"])
async def test_a_hook_that_waits_for_its_next_attempt_keeps_its_run_open(make_engine):
    """B35 Also where the run is not kept in memory meanwhile."""
    tries: list[int] = []

    @activity(retry=Retry(initial_interval=DAY, max_interval=None))
    async def flaky(run_id: str, state: Any) -> None:
        tries.append(step_context().attempt)
        if len(tries) < 2:
            raise ConnectionError

    @workflow(on_complete=flaky)
    async def work(ctx: Context) -> int:
        return 7

    engine = await make_engine(work)
    run = await engine.start(work)
    await engine.settle()
    found = await run.describe()
    assert (found.status, found.waiting_for) == (Status.RUNNING, "callback")
    assert not await run.cancel()
    assert await run.result() == 7
    assert tries == [1, 2]


# Workflows as data.


@IN_MEMORY
async def test_hooks_of_sequences_and_graphs_are_awaited_and_retried(make_engine):
    """B35 S0-2 S0-32 S0-33 Upload clean-up, say: it does I/O, and is done again if that fails."""
    removed: list[Any] = []

    @activity(retry=Retry(max_attempts=3))
    async def clean_up(run_id: str, state: Any, error: Any = None) -> None:
        await asyncio.sleep(0)
        if step_context().attempt == 1:
            raise ConnectionError("the storage does not answer")
        removed.append((run_id, state, error.type if error else None))

    def shoot(state: dict[str, Any]) -> dict[str, Any]:
        return {"file": "photo-1"}

    def upload(state: dict[str, Any]) -> None:
        if "broken" in state:
            raise ValueError("no")

    def build(input: Any) -> int:
        return 1

    photos = sequence("photos", [shoot, upload], on_complete=clean_up, on_failed=clean_up)
    drawn = graph("drawn", {build: []}, on_complete=clean_up)
    engine = await make_engine(photos, drawn)
    run = await engine.start(photos, {}, id="good")
    assert await run.result() == {"file": "photo-1"}
    progress = await run.progress()
    assert (progress.steps, progress.done) == (2, True)
    with pytest.raises(RunFailed):
        await engine.execute(photos, {"broken": True}, id="bad")
    await engine.execute(drawn, {}, id="graph")
    assert removed == [
        ("good", {"file": "photo-1"}, None),
        ("bad", {"broken": True, "file": "photo-1"}, "ValueError"),
        ("graph", {"build": 1}, None),
    ]
    assert (await engine.get("bad").describe()).failed_step == "upload"


# Looking at them.


async def test_a_run_with_hooks_is_asked_and_replayed_as_if_it_had_none():
    """B35 S1-14 Queries of a run that has ended, replays of its history, and the check after every fact."""
    may_end[0].set()
    async with TestEngine(workflows=[hooked], replay=True) as engine:
        run = await decided(engine, "go")
        assert await run.result() == "go"
        assert engine.replays > 0
        assert await run.query("state") == {"word": "go"}
        recorded = await record(run)
        assert replay(recorded, hooked).output == "go"
        assert replay(recorded, workflow(name="process")(process)).output == "go"


async def test_a_run_is_asked_for_its_state_while_its_hook_runs():
    """B35"""
    async with TestEngine(workflows=[hooked]) as engine:
        run = await decided(engine, "go")
        assert await run.query("state") == {"word": "go"}
        may_end[0].set()
        await run.result()


def test_hooks_are_functions_plain_or_async():
    """B35"""
    Hooks(on_complete=on_complete, on_failed=print, on_cancelled=activity(on_cancelled))


# Crashes.


@ON_FILE
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("word", ["go", "fail", ""])
async def test_whenever_the_worker_dies_the_hook_is_called_and_the_end_stays_as_decided(
    make_engine, tmp_path, moment, word
):
    """B35 G3 Killed at each commit in turn, by the clock of the run: once decided, its end does not change."""
    may_end[0].set()
    died = 0
    for dies_at in range(1, 20):
        log.clear()
        path = str(tmp_path / f"{dies_at}.db")
        engine = await make_engine(hooked, database=path)
        run = await engine.start(hooked, id="r", unique_key="k")
        await engine.settle()
        engine.faults.die(dies_at, moment)
        running = asyncio.create_task(_end(run, word))
        await dead_or_done(engine.faults, running)
        dead = engine.faults.dead
        running.cancel()
        await asyncio.wait([running])
        called = any(entry[0] == NAMES[word] for entry in log)
        await engine.crash()
        engine = await make_engine(hooked, database=path, clock=engine.jumping)
        run = engine.get("r")
        if called:  # it was decided: nothing changes that
            assert not await run.cancel()
        else:
            await (run.send("word", word) if word and dies_at == 1 and moment == "before" else asyncio.sleep(0))
            await (run.cancel() if not word else asyncio.sleep(0))
        await ended(run)
        assert await run.status() is ENDS[word]
        calls = [entry for entry in log if entry[0] == NAMES[word]]
        assert 1 <= len(calls) <= 2, log
        assert len({repr(call) for call in calls}) == 1, log
        assert [entry[0] for entry in log if entry[0] in NAMES.values()] == [NAMES[word]] * len(calls)
        await engine.stop()
        if not dead:
            break
        died += 1
    assert died >= 2, "the worker must have died at each commit"


async def _end(run: Any, word: str) -> None:
    await (run.send("word", word) if word else run.cancel())
    await ended(run)
