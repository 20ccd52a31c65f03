"""Eviction: a dropped run records nothing, asks for nothing, says nothing, and is freed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import subprocess
import sys
import textwrap
import warnings
import weakref
from datetime import timedelta
from typing import Any

import pytest
from tests.support.driving import START, answer, execution, live

from holdfast import Context, JoinError, ReceiveTimeout, workflow
from holdfast.replay import ending

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable")


class Thing:
    """Something a weak reference can watch."""


def work(x: int) -> int:
    return x


def clean_up(x: int) -> int:
    return x


async def _forever(ctx: Context) -> None:
    try:
        await ctx.step(work, 1)
    finally:
        ctx.log.info("must not be heard")
        ctx.patched("must not be recorded")
        await ctx.step(clean_up, 1)
        await ctx.sleep(timedelta(days=1))
        await asyncio.sleep(5)


@workflow
async def awaiting_finally(ctx: Context) -> None:
    await _forever(ctx)


@workflow
async def task_groups(ctx: Context) -> None:
    async with asyncio.TaskGroup() as outer:
        outer.create_task(_forever(ctx))
        async with asyncio.TaskGroup() as inner:
            inner.create_task(_forever(ctx))
            inner.create_task(asyncio.sleep(100))
            await _forever(ctx)


@workflow
async def gathered(ctx: Context) -> None:
    await asyncio.gather(_forever(ctx), ctx.step(work, 2), asyncio.shield(ctx.step(work, 3)), ctx.receive("x"))


@workflow
async def timed(ctx: Context) -> None:
    async with asyncio.timeout(50):
        await asyncio.wait_for(_forever(ctx), 20)


@workflow
async def tokens(ctx: Context) -> None:
    async def child() -> None:
        token = VARIABLE.set(1)
        try:
            await ctx.step(work, 1)
        finally:
            VARIABLE.reset(token)

    task = asyncio.create_task(child())
    token = VARIABLE.set(2)
    try:
        await task
    finally:
        VARIABLE.reset(token)


@workflow
async def generators(ctx: Context) -> None:
    async def numbers() -> Any:
        try:
            while True:
                yield await ctx.step(work, 1)
        finally:
            await ctx.step(clean_up, 1)

    kept = numbers()
    asyncio.create_task(anext(kept))  # noqa: RUF006  # left to itself on purpose
    async for _ in numbers():
        pass


@workflow
async def synchronised(ctx: Context) -> None:
    lock, condition = asyncio.Lock(), asyncio.Condition()
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def waits() -> None:
        async with lock, condition:
            await condition.wait()

    await asyncio.gather(waits(), waits(), queue.get(), ctx.step(work, 1))


@workflow
async def unawaited(ctx: Context) -> None:
    coroutine = _forever(ctx)
    try:
        await ctx.step(work, 1)
    finally:
        other = _forever(ctx)
        asyncio.create_task(_forever(ctx))  # noqa: RUF006  # a task born while its run is dropped
        await other
        await coroutine


@workflow
async def saga(ctx: Any) -> None:
    try:
        await ctx.join({"a": _forever, "b": _forever})
    except BaseException:
        await ctx.race({"a": _forever})
        child = ctx.child("other")
        assert child.id == ""
        await child
        async for _ in ctx.loop("undo"):
            await ctx.step("undo", work, 1)


@workflow
async def in_a_loop(ctx: Context) -> None:
    async for it in ctx.loop("loop", state=0):
        try:
            it.state = await it.step(work, 1)
        finally:
            await it.send("run-2", "gone")


@workflow
async def continuing(ctx: Context) -> None:
    try:
        await ctx.step(work, 1)
    finally:
        ctx.continue_as_new()


QUIET = [
    awaiting_finally,
    task_groups,
    gathered,
    timed,
    tokens,
    generators,
    synchronised,
    unawaited,
    saga,
    in_a_loop,
    continuing,
]


@pytest.fixture
def noise(monkeypatch, caplog):
    """Collect everything Python and asyncio could complain about."""
    heard: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: heard.append(f"{event.err_msg} {event.exc_value!r}"))
    caplog.set_level(logging.DEBUG)
    yield heard
    gc.collect()
    assert heard == []
    assert caplog.records == []


@pytest.mark.parametrize("definition", QUIET, ids=lambda definition: definition.name)
def test_a_dropped_run_acts_records_and_says_nothing(definition, noise):
    """S1-42 Eviction is invisible but for plain synchronous code in `finally`."""
    before = len(ending.LIMBO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = execution(definition)
        turn = run.begin()
        seq = run.journal.next_seq
        run.drop()
        run.drop()
        journal = run.journal
        assert (journal.next_seq, journal.turn.entries, journal.turn.started, journal.turn.logs) == (seq, [], (), ())
        assert (journal.turn.ordinary, journal.turn.outcome) == (True, None)
        assert journal.renewal is None
        assert journal.open == {}
        assert run.loop.tasks == []
        assert len(run.loop._ready) == 0
        del turn, run, journal
        gc.collect()
    assert len(ending.LIMBO) == before


@pytest.mark.parametrize("definition", QUIET, ids=lambda definition: definition.name)
def test_a_run_dropped_at_any_point_goes_on_from_its_history(definition, noise):
    """S1-16 The same facts lead to the same place whether or not the run was dropped in between."""
    recording = live(definition, stop=4)
    run = execution(definition)
    run.begin()
    for at, event in enumerate(recording.events):
        run.drop()
        run = execution(definition)
        turn = run.begin(recording.stored[at], recording.unread[at])
        assert turn.entries == []
        assert event.happen(run).entries == recording.turns[at + 1][0]
    run.drop()


def test_a_coroutine_that_swallows_everything_is_kept_for_ever_rather_than_run_again(noise):
    @workflow
    async def swallows(ctx: Context) -> None:
        while True:
            try:
                await ctx.step(work, 1)
            except BaseException:  # the worst code there is
                continue

    before = len(ending.LIMBO)
    run = execution(swallows)
    run.begin()
    run.drop()
    assert len(ending.LIMBO) == before + 1
    assert run.journal.turn.entries == []


def test_a_dropped_run_is_freed_at_once():
    """Without waiting for the garbage collector: a worker drops thousands."""

    @workflow
    async def simple(ctx: Context) -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        await ctx.sleep(timedelta(days=1))
        await ctx.receive("x", timeout=timedelta(days=1))
        await ctx.step(work, 1)

    things: list[weakref.ref[Thing]] = []
    gc.disable()
    try:
        run = execution(simple)
        run.begin()
        run.drop()
        assert [thing() for thing in things] == [None]
        loop = weakref.ref(run.loop)
        del run
    finally:
        gc.enable()
    gc.collect()
    assert loop() is None


@workflow
async def parallel(ctx: Context) -> None:
    async def one(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step(work, 1), asyncio.sleep(90), asyncio.wait([asyncio.create_task(asyncio.sleep(70))])
        )

    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(50))
        await asyncio.wait_for(asyncio.shield(ctx.join({"a": one, "b": one})), 30)


@workflow
async def nested_loops(ctx: Context) -> None:
    async for _ in ctx.loop("left"):
        break
    async for it in ctx.loop("outer", state=0):
        async for inner in it.loop("inner"):
            await inner.step(work, 1)


@workflow
async def failures(ctx: Context) -> None:
    async def fails(ctx: Context) -> None:
        await ctx.receive("x", timeout=timedelta(seconds=1))

    for call in (fails, lambda ctx: ctx.join({"a": fails}), lambda ctx: asyncio.create_task(fails(ctx))):
        with contextlib.suppress(ReceiveTimeout, ExceptionGroup, JoinError):
            await call(ctx)
    with contextlib.suppress(ReceiveTimeout):
        await asyncio.gather(fails(ctx), ctx.step(work, 1))
    await ctx.step(work, 1)


LEFT_TO_THE_COLLECTOR_SINCE = {"failures": (3, 12), "generators": (3, 13)}


@pytest.mark.parametrize("definition", [*QUIET, parallel, nested_loops, failures], ids=lambda each: each.name)
def test_nothing_of_a_dropped_run_is_left_to_the_collector(definition):
    """W7 A full collection is rare: until then the garbage of a hundred thousand released runs would stay."""
    if sys.version_info >= LEFT_TO_THE_COLLECTOR_SINCE.get(definition.name, (4,)):
        pytest.skip("on this version of Python a full collection is needed")
    garbage: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        run = execution(definition)
        run.begin()
        while (due := run.next_due()) is not None and due < START + 10_000_000:
            run.fire(due)
        run.drop()
        del run
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        garbage = [f"{type(each).__name__}: {each!r:.80}" for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert garbage == []


def test_an_ended_run_is_freed_too():
    @workflow
    async def short(ctx: Context) -> int:
        thing = Thing()
        things.append(weakref.ref(thing))
        return await ctx.step(work, 1)

    things: list[weakref.ref[Thing]] = []
    run = execution(short)
    (verb,) = run.begin().started
    assert run.apply(verb.location, answer(verb), START).outcome is not None
    run.drop()
    assert things[0]() is None


def test_nothing_is_said_at_the_exit_of_a_process_that_dropped_its_runs():
    """Limbo too stays silent when the interpreter takes everything down."""
    script = """
        import asyncio
        from tests.replay import test_eviction as t
        from tests.support.driving import execution
        from holdfast import workflow

        @workflow
        async def swallows(ctx):
            while True:
                try:
                    await ctx.step(t.work, 1)
                except BaseException:
                    continue

        for definition in [*t.QUIET, swallows]:
            run = execution(definition)
            run.begin()
            run.drop()
    """
    command = [sys.executable, "-X", "dev", "-c", textwrap.dedent(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
