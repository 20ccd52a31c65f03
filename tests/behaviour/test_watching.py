"""Watching: those who ask are told what became durable, once and in order, and change nothing by what they do."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta

import pytest
from tests.support.acts_cases import Flaky, Gate
from tests.support.paths import ROOT
from tests.support.waiting import LONG, eventually

from holdfast import (
    Change,
    Context,
    NoSuchRun,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    activity,
    step_context,
    workflow,
)
from holdfast.declarative import sequence
from holdfast.engine.views.changes import _REPORTS
from holdfast.engine.views.observers import TYPES
from holdfast.errors import BadInput, HoldfastError
from holdfast.testing.clock import JumpingClock

HOUR = timedelta(hours=1)
restarts = pytest.mark.parametrize("mode", ["file", "evict"])


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.receive("word", str)


class Told(list[Change]):
    """A callback that remembers."""

    def __call__(self, change: Change) -> None:
        self.append(change)

    __qualname__ = "Told"
    __hash__ = object.__hash__  # type: ignore[assignment]  # a list that can be a callback

    @property
    def types(self) -> list[str]:
        return [change.type for change in self]


async def test_a_run_is_told_from_its_start_to_its_end(make_engine):
    """S0-45 S0-46 S4-22 Runs and steps started, completed, failed; each once, in order, with what it is about."""
    body = Flaky("pay")

    @activity(retry=Retry(max_attempts=2, initial_interval=HOUR))
    async def pay(name: str) -> str:
        step_context().heartbeat({"asked": "the bank"})
        return await body.body(name)

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.step("pick", body.body, "pick")
        word = await ctx.receive("word", str)
        ctx.set_attributes(word=word)
        ctx.evidence("approved")
        return await ctx.step(pay, "pay")

    told = Told()
    engine = await make_engine(order, on_change=told)
    run = await engine.start(order, id="r")
    await engine.settle()
    await run.send("word", "go")
    with pytest.raises(RunFailed):
        await run.result()
    types = [kind for kind in told.types if kind not in ("run.suspended", "step.progress")]
    assert types == [
        "run.started",
        "step.started",
        "step.completed",
        "message.received",
        "attributes.set",
        "evidence.added",
        "step.started",
        "attempt.failed",
        "step.started",
        "step.failed",
        "run.failed",
        "deadletter.added",
    ]
    assert {(change.run_id, change.workflow) for change in told} == {("r", "order")}
    steps = [(change.type, change.step, change.attempt) for change in told if change.step and change.attempt]
    assert steps[2:] == [
        ("step.started", "pay", 1),
        ("attempt.failed", "pay", 1),
        ("step.started", "pay", 2),
        ("step.failed", "pay", 2),
    ]
    assert told.types.count("step.progress") == 2
    assert next(change for change in told if change.type == "step.progress").data == {"progress": {"asked": "the bank"}}
    failed = next(change for change in told if change.type == "run.failed")
    assert (failed.status, failed.data["error"]["message"]) == ("failed", "pay is out of order")
    times = [change.at for change in told]
    assert times == sorted(times)


class TickingClock(JumpingClock):
    """A clock on which every look takes a microsecond."""

    def now(self) -> int:
        self._now += 1
        return self._now


async def test_what_comes_later_has_no_earlier_time(make_engine):
    """S0-46 The start of a run is told after the commit that has its first steps, but with the time it had."""
    gate = Gate()
    gate.open("a", "b")

    @workflow
    async def parent(ctx: Context) -> str:
        await ctx.step("a", gate, "a")
        child = ctx.child(waits)
        await ctx.receive("go")
        await ctx.step("b", gate, "b")
        return await child

    told = Told()
    engine = await make_engine(parent, waits, on_change=told, clock=TickingClock())
    run = await engine.start(parent)
    await engine.settle()
    await run.send("go")
    for each in await engine.runs(workflow="waits"):
        await engine.get(each.id).send("word", "hello")
    assert await run.result() == "hello"
    for one in {change.run_id for change in told}:
        times = [change.at for change in told if change.run_id == one and change.type != "step.progress"]
        assert times == sorted(times), [(change.type, change.at) for change in told if change.run_id == one]


@restarts
async def test_nothing_is_told_again_on_replay(make_engine):
    """S0-46 The next engine, after a crash, tells only what it does itself."""
    body, first, second = Flaky(), Told(), Told()

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.step("pick", body.body, "pick")
        await ctx.sleep(HOUR)
        return await ctx.step("pack", body.body, "pack")

    engine = await make_engine(order, on_change=first)
    await engine.start(order, id="r")
    await engine.settle()
    await engine.crash()
    engine = await make_engine(order, on_change=[second], clock=engine.jumping)
    assert await engine.get("r").result() == "pack"
    told = [(change.type, change.step) for change in (*first, *second) if change.type != "run.suspended"]
    assert told == [
        ("run.started", ""),
        ("step.started", "pick"),
        ("step.completed", "pick"),
        ("step.started", "pack"),
        ("step.completed", "pack"),
        ("run.completed", ""),
    ]


async def test_a_subscription_may_be_for_one_run_and_can_be_ended(make_engine):
    """S0-45 subscribe returns what ends it; ending it twice, or from within the callback, is harmless."""
    engine = await make_engine(waits)
    everything, one, brief = Told(), Told(), Told()
    engine.subscribe(everything)
    stop = engine.subscribe(one, "a")

    def once(change: Change) -> None:
        brief(change)
        stop_brief()

    stop_brief = engine.subscribe(once)
    for name in ("a", "b"):
        await engine.start(waits, id=name)
    await engine.settle()
    assert {change.run_id for change in everything} == {"a", "b"}
    assert {change.run_id for change in one} == {"a"}
    assert len(brief) == 1
    stop()
    stop()
    seen = len(one)
    await engine.get("a").send("word", "hello")
    await engine.settle()
    assert len(one) == seen
    assert everything.types.count("run.completed") == 1


async def test_a_callback_that_raises_changes_nothing_and_is_reported(make_engine, caplog):
    """S0-50 B19 Logged, told to the others as callback.error; the run ends, its key is free, the callback is kept."""
    told, calls = Told(), []

    def broken(change: Change) -> None:
        calls.append(change.type)
        raise ZeroDivisionError("oops")

    engine = await make_engine(waits, on_change=[broken, told])
    with caplog.at_level(logging.ERROR, "holdfast.engine"):
        run = await engine.start(waits, unique_key="k")
        await run.send("word", "hello")
        assert await run.result() == "hello"
        again = await engine.start(waits, unique_key="k")
        await engine.settle()
        assert await again.terminate()
    assert calls.count("run.completed") == 1
    assert "callback.error" not in calls
    failures = [change for change in told if change.type == "callback.error"]
    assert len(failures) == len(calls)
    assert "broken" in failures[0].data["callback"]
    assert failures[0].data["error"] == "ZeroDivisionError: oops"
    assert failures[0].data["change"] == "run.started"
    assert "nothing is changed by that" in caplog.text


async def test_two_callbacks_that_raise_do_not_fight(make_engine):
    """S0-50 B19 The failure of one told to the other fails again, and that is the end of it."""
    calls: list[str] = []

    def first(change: Change) -> None:
        calls.append(f"first {change.type}")
        raise ValueError

    def second(change: Change) -> None:
        calls.append(f"second {change.type}")
        raise ValueError

    engine = await make_engine(waits, on_change=[first, second])
    await engine.start(waits)
    await engine.settle()
    assert calls[:4] == [
        "first run.started",
        "second callback.error",
        "second run.started",
        "first callback.error",
    ]


async def test_an_async_callback_is_refused(make_engine):
    """S0-50 B19 It would never run."""

    async def callback(change: Change) -> None:
        raise AssertionError

    engine = await make_engine()
    with pytest.raises(BadInput, match="async def"):
        engine.subscribe(callback)
    with pytest.raises(BadInput, match="async def"):
        await make_engine(on_change=callback)


async def test_a_watch_gives_what_happens_of_the_types_asked_for(make_engine):
    """S0-45 S2-39 An iterator over the changes of this engine, from now on."""
    engine = await make_engine(waits)
    async with engine.watch(types=["run.completed", "run.cancelled"]) as changes:
        for name in ("a", "b"):
            await engine.start(waits, id=name)
        await engine.settle()
        await engine.get("a").send("word", "hello")
        await engine.settle()
        await engine.get("b").terminate()
        seen = [await anext(changes), await anext(changes)]
    assert [(change.type, change.run_id) for change in seen] == [("run.completed", "a"), ("run.cancelled", "b")]
    await engine.start(waits, id="c")
    await engine.settle()
    assert [change async for change in changes] == []


async def test_a_watch_of_a_type_that_does_not_exist_is_refused(make_engine):
    """S0-45 It would wait for ever; one that only `run.watch()` tells, too."""
    engine = await make_engine(waits)
    with pytest.raises(BadInput, match=r"'run\.complete'; did you mean 'run\.completed'\?"):
        engine.watch(types=["run.failed", "run.complete"])
    with pytest.raises(BadInput, match=r"'tpyo'; there are attempt\.failed"):
        engine.watch("r", types=["tpyo"])
    with pytest.raises(BadInput, match=r"as in \['run\.failed'\]"):
        engine.watch(types="run.failed")
    with pytest.raises(BadInput, match=r"run\.watch\(\)"):
        engine.watch(types=["run.running"])


def test_every_type_of_change_is_known_and_documented():
    """S0-46 In the docstring of Change and in the documents; those that entries are told as are among them."""
    told = {report.type for report in _REPORTS.values()} | {f"run.{status}" for status in Status}
    followed = {"run.pending", "run.running", "run.moving", "run.moved"}  # told to those who follow a run
    assert told - TYPES == followed
    names = set(
        re.findall(
            r"\b(?:(?:run|step|attempt|compensation|message|attributes|evidence|deadletter|callback|schedule|limit|workflow|"
            r"queue)\.[a-z]+|purged)\b",
            Change.__doc__,
        )
    )
    assert names == TYPES | followed
    page = (ROOT / "docs/production/observability.md").read_text()
    assert [name for name in TYPES if f"`{name}`" not in page] == []


async def test_closing_a_watch_ends_its_loop(make_engine):
    """S0-45 From another task, as well as by leaving its block."""
    engine = await make_engine(waits)
    watch = engine.watch()

    async def collect() -> list[Change]:
        return [change async for change in watch]

    collecting = asyncio.create_task(collect())
    await asyncio.sleep(0)
    watch.close()
    assert await asyncio.wait_for(collecting, LONG) == []


async def test_stopping_the_engine_ends_its_watches(make_engine):
    """S0-45 There will be no more changes."""
    engine = await make_engine(waits)
    watch = engine.watch()

    async def collect() -> list[str]:
        return [change.type async for change in watch]

    collecting = asyncio.create_task(collect())
    await engine.start(waits)
    await engine.settle()
    await engine.stop()
    assert "run.started" in await asyncio.wait_for(collecting, LONG)


async def test_a_watcher_who_is_slow_loses_the_oldest_and_is_told_how_many(make_engine, monkeypatch):
    """S0-45 Nobody who watches can fill the memory of an engine."""
    monkeypatch.setattr("holdfast.engine.views.observers._MOST_WAITING", 5)
    engine = await make_engine(waits)
    async with engine.watch(types=["run.started"]) as changes:
        for number in range(8):
            await engine.start(waits, id=f"r{number}")
        await engine.settle()
        assert changes.dropped == 3
        assert [(await anext(changes)).run_id for _ in range(5)] == [f"r{number}" for number in range(3, 8)]


# Following one run, whichever engine runs it.


@pytest.mark.parametrize("mode", ["file"])
async def test_a_client_follows_a_run_of_another_engine_to_its_end(make_engine):
    """S0-45 S2-39 Where it stands first, then what is recorded, its end last."""
    body = Flaky()

    @workflow
    async def order(ctx: Context) -> str:
        await ctx.receive("word")
        return await ctx.step("pack", body.body, "pack")

    worker = await make_engine(order)
    client = await make_engine(run_workflows=False, clock=worker.jumping)
    run = await worker.start(order, id="r")
    await worker.settle()
    told = Told()

    async def follow() -> None:
        async for change in client.get("r").watch():
            told(change)

    following = asyncio.create_task(follow())
    await eventually(lambda: bool(told))
    assert (told[0].type, told[0].data) == ("run.suspended", {"waiting_for": "message word"})
    await run.send("word")
    await asyncio.wait_for(following, LONG)
    assert told.types[-1] == "run.completed"
    kinds = [kind for kind in told.types if not kind.startswith("run.")]
    assert kinds == ["message.received", "step.started", "step.completed"]


@restarts
async def test_a_follower_reads_only_what_was_recorded_since(make_engine, monkeypatch):
    body = Flaky()

    @workflow
    async def order(ctx: Context) -> str:
        for number in range(20):
            await ctx.step(f"pick-{number}", body.body, "pick")
        await ctx.receive("word")
        return await ctx.step("pack", body.body, "pack")

    worker = await make_engine(order)
    client = await make_engine(run_workflows=False, clock=worker.jumping)
    run = await worker.start(order, id="r")
    await worker.settle()
    read: list[int] = []
    history = client.store.history

    async def counted(*given, **more):
        rows = await history(*given, **more)
        read.append(len(rows))
        return rows

    monkeypatch.setattr(client.store, "history", counted)
    told = Told()

    async def follow() -> None:
        async for change in client.get("r").watch():
            told(change)

    following = asyncio.create_task(follow())
    await eventually(lambda: bool(told))
    await run.send("word")
    await asyncio.wait_for(following, LONG)
    assert [change.step for change in told if change.type == "step.completed"] == ["pack"]
    assert read[0] >= 40
    assert sum(read[1:]) < 20, "what is read later is what is new"


async def test_following_a_run_that_has_ended_says_so_and_ends(make_engine):
    """S0-45 And one that does not exist is an error."""
    engine = await make_engine(waits)
    run = await engine.start(waits)
    await run.send("word", "hello")
    await run.result()
    assert [change.type async for change in run.watch()] == ["run.completed"]
    with pytest.raises(NoSuchRun):
        async for _ in engine.get("nobody").watch():
            raise AssertionError


async def test_following_ends_with_an_error_when_the_engine_stops(make_engine):
    """S0-45 It does not hang."""
    engine = await make_engine(waits)
    run = await engine.start(waits)

    async def follow() -> None:
        async for _ in run.watch():
            pass

    following = asyncio.create_task(follow())
    await engine.settle()
    await engine.stop()
    with pytest.raises(HoldfastError, match="the engine stopped"):
        await asyncio.wait_for(following, LONG)


async def test_a_follower_sees_what_people_do_to_the_run(make_engine):
    """S0-45 S4-25 Paused, resumed, cancelling, cancelled."""
    engine = await make_engine(waits)
    run = await engine.start(waits)
    await engine.settle()
    told = Told()

    async def follow() -> None:
        async for change in run.watch():
            told(change)

    following = asyncio.create_task(follow())
    await eventually(lambda: bool(told))
    await run.pause()
    await engine.settle()
    await eventually(lambda: told.types[-1] == "run.paused")
    await run.resume()
    await engine.settle()
    await eventually(lambda: told.types[-1] == "run.suspended")
    await run.cancel()
    await asyncio.wait_for(following, LONG)
    assert told.types[-1] == "run.cancelled"


async def test_a_follower_sees_the_steps_of_every_life(make_engine):
    """S0-45 A run that begins again is still the same run."""
    body = Flaky()

    @workflow
    async def work(ctx: Context, life: int) -> None:
        await ctx.step(f"step {life}", body.body, "x")
        await ctx.receive("word")
        if life < 3:
            ctx.continue_as_new(life + 1)

    engine = await make_engine(work)
    run = await engine.start(work, 0)
    await engine.settle()
    told = Told()

    async def follow() -> None:
        async for change in run.watch():
            told(change)

    following = asyncio.create_task(follow())
    await eventually(lambda: bool(told))
    for life in range(1, 4):
        await run.send("word")
        await eventually(lambda life=life: any(change.step == f"step {life}" for change in told))
        await engine.settle()
    await run.send("word")
    await asyncio.wait_for(following, LONG)


# What happens to a run as a whole.


async def test_pause_resume_cancel_and_reopen_are_told(make_engine):
    """S0-46 S4-25 S4-22 Each once, with the workflow's name."""
    told = Told()
    engine = await make_engine(waits, on_change=told)
    run = await engine.start(waits)
    await engine.settle()
    for verb in ("pause", "resume", "cancel", "resume"):
        await getattr(run, verb)()
        await engine.settle()
    types = [kind for kind in told.types if kind != "run.suspended"]
    assert types == ["run.started", "run.paused", "run.resumed", "run.cancelling", "run.cancelled", "run.reopened"]
    assert {change.workflow for change in told} == {"waits"}


async def test_the_end_of_a_timed_pause_is_told(make_engine):
    """S0-46 S4-30 As if somebody had resumed it."""
    told = Told()
    engine = await make_engine(waits, on_change=told)
    run = await engine.start(waits)
    await engine.settle()
    await run.pause(duration=HOUR)
    await engine.advance(2 * HOUR)
    assert [kind for kind in told.types if kind != "run.suspended"] == ["run.started", "run.paused", "run.resumed"]


@pytest.mark.parametrize("how", ["completed", "failed", "returns", "grace", "terminated", "unbegun", "blocked"])
async def test_every_end_is_told_once(make_engine, how):
    """S0-46 S0-34 However a run ends, those who watch hear of it, exactly once."""
    told = Told()

    @workflow
    async def work(ctx: Context) -> None:
        if how == "failed":
            raise ValueError("no")
        if how == "blocked":
            await asyncio.Event().wait()
        if how == "completed":
            return
        try:
            await ctx.receive("word")
        finally:
            if how == "grace":
                await ctx.receive("never")

    engine = await make_engine(work, on_change=told)
    run = await engine.start(work, delay=HOUR if how == "unbegun" else None)
    await engine.settle()
    if how in ("returns", "grace", "unbegun"):
        await run.cancel()
    elif how == "terminated":
        await run.terminate()
    await engine.advance(HOUR)
    ends = [change for change in told if change.type in ENDS]
    expected = how if how in ("completed", "failed", "blocked") else "cancelled"
    assert [(change.type, change.workflow, change.status) for change in ends] == [(f"run.{expected}", "work", expected)]
    assert await run.status() == expected


ENDS = ("run.completed", "run.failed", "run.cancelled", "run.blocked")


async def test_active_steps_hear_of_a_cancel_before_the_run_cleans_up(make_engine):
    """S0-34 S0-36 In this order: cancelling is recorded, the body is told, the code cleans up, the end is told."""
    log: list[str] = []
    gate = Gate()

    async def body() -> None:
        step_context().signal.listen(lambda: log.append("the body is told"))
        await gate("body")

    @workflow
    async def work(ctx: Context) -> None:
        try:
            await ctx.step(body)
        finally:
            await ctx.step("clean up", lambda: log.append("the run cleans up"))

    def note(change: Change) -> None:
        if change.type.startswith("run."):
            log.append(change.type)

    engine = await make_engine(work, on_change=note)
    run = await engine.start(work)
    await gate.entered("body")
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await engine.settle()
    assert log == ["run.started", "run.cancelling", "the body is told", "the run cleans up", "run.cancelled"]
    assert [step.status for step in await run.steps()] == ["cancelled", "completed"]


async def test_active_steps_hear_of_a_cancel_before_the_hook_of_the_workflow_is_called(make_engine):
    """S0-34 In this order: cancelling is recorded, the body is told, on_cancelled is called.

    Its step is cancelled, the next one never runs, and its key is free.
    """
    log: list[str] = []
    gate = Gate()

    async def first(state: dict[str, int]) -> None:
        step_context().signal.listen(lambda: log.append("the body is told"))
        await gate("body")

    async def second(state: dict[str, int]) -> None:
        log.append("the next one runs")

    def note(change: Change) -> None:
        if change.type == "run.cancelling":
            log.append(change.type)

    work = sequence("work", [first, second], on_cancelled=lambda run_id, state: log.append("on_cancelled"))
    engine = await make_engine(work, on_change=note)
    run = await engine.start(work, {}, unique_key="k")
    await gate.entered("body")
    assert await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await engine.settle()
    assert log == ["run.cancelling", "the body is told", "on_cancelled"]
    names = [(step.name, step.status) for step in await run.steps()]
    assert names == [("first", "cancelled"), ("on_cancelled", "completed")]
    assert (await engine.start(work, {}, unique_key="k")).id != run.id
    await gate.entered("body", 2)
    gate.open("body")


async def test_stats_count_runs_by_status_letters_and_events(make_engine):
    """S0-45 S2-39 S4-2 pending, running, completed, failed and the rest, in one look."""
    body = Flaky("x")

    @workflow
    async def fails(ctx: Context) -> None:
        await ctx.step("x", body.step, "x")

    engine = await make_engine(waits, fails)
    runs = [await engine.start(waits) for _ in range(4)]
    await engine.start(waits, delay=HOUR)
    await engine.start(fails)
    await engine.settle()
    await runs[0].send("word", "hello")
    await runs[1].cancel()
    await runs[2].pause()
    await engine.settle()
    await engine.publish("nobody waits")
    stats = await engine.stats()
    counted = {status: count for status, count in stats.items() if count}
    assert counted == {
        "completed": 1,
        "cancelled": 1,
        "paused": 1,
        "suspended": 1,
        "pending": 1,
        "failed": 1,
        "dead_letters": 1,
        "pending_events": 1,
    }
    assert set(stats) >= set(Status)
