"""The app's own context: asked again before each attempt and each condition, readable on the step's context."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, NotReady, Retry, RunFailed, activity, step_context, workflow
from holdfast.errors import BadInput

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Phone:
    """The world of an app: what it says changes, and it counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_connected = True
        self.battery_level = 1.0

    def __call__(self) -> dict[str, Any]:
        self.asked += 1
        return {"is_connected": self.is_connected, "battery_level": self.battery_level, "asked": self.asked}


@pytest.fixture
def phone() -> Phone:
    return Phone()


def calling(body: Any, **options: Any) -> Any:
    called = activity(name="call", **options)(body)

    @workflow
    async def caller(ctx: Context, given: Any = None) -> Any:
        return await ctx.step(called, given)

    return caller


async def test_a_body_reads_what_the_app_says(make_engine, phone):
    """S0-11 S0-12 S0-25 Under the app's own names, in async and sync bodies alike."""

    async def look(given: Any) -> Any:
        step = step_context()
        return [step.is_connected, step.battery_level, dict(step.app)]

    def look_in_thread(given: Any) -> Any:
        return [step_context().is_connected, step_context().battery_level, dict(step_context().app)]

    first, second = calling(look), calling(look_in_thread)
    second.name = "second"
    engine = await make_engine(first, second, context=phone)
    assert await engine.execute(first) == [True, 1.0, {"is_connected": True, "battery_level": 1.0, "asked": 1}]
    phone.battery_level = 0.5
    assert await engine.execute(second) == [True, 0.5, {"is_connected": True, "battery_level": 0.5, "asked": 2}]


async def test_it_is_asked_again_for_each_attempt_and_each_condition(make_engine, phone):
    """S0-12 B10 A condition that said no is asked again with what is true then; so is each retry."""
    seen: list[Any] = []

    def online(step: Any) -> bool | NotReady:
        seen.append(("asked", step.is_connected))
        return bool(step.is_connected) or NotReady("offline", MINUTE)

    async def upload(given: Any) -> str:
        seen.append(("ran", step_context().battery_level))
        phone.battery_level /= 2
        if step_context().attempt == 1:
            raise ConnectionError
        return "uploaded"

    caller = calling(upload, run_when=online)
    phone.is_connected = False
    engine = await make_engine(caller, context=phone)
    run = await engine.start(caller)
    await engine.settle()
    assert seen == [("asked", False)]
    phone.is_connected = True
    assert await run.result() == "uploaded"
    assert seen == [("asked", False), ("asked", True), ("ran", 1.0), ("asked", True), ("ran", 0.5)]
    assert phone.asked == 3


async def test_it_is_not_asked_on_replay(make_engine, phone):
    """S0-12 A step that is over is over."""

    async def work(given: Any) -> int:
        return int(step_context().asked)

    worked = activity(work)

    @workflow
    async def twice(ctx: Context) -> list[int]:
        first = await ctx.step("one", worked, 1)
        await ctx.sleep(MINUTE)
        return [first, await ctx.step("two", worked, 2)]

    engine = await make_engine(twice, context=phone)
    assert await engine.execute(twice) == [1, 2]
    assert phone.asked == 2


async def test_a_step_knows_its_input_and_since_when_it_is_wanted(make_engine):
    """S0-25 input, now and pending_since, for conditions such as "after ten minutes"."""
    seen: list[Any] = []

    def after_ten_minutes(step: Any) -> bool | NotReady:
        seen.append((step.input, step.now - step.pending_since))
        return bool(step.now - step.pending_since >= 10 * MINUTE) or NotReady("too early", 4 * MINUTE)

    async def work(given: Any) -> str:
        return "done"

    caller = calling(work, run_when=after_ten_minutes)
    engine = await make_engine(caller, start=START)
    assert await engine.execute(caller, {"photo": 7}) == "done"
    assert seen == [({"photo": 7}, n * 4 * MINUTE) for n in range(4)]


async def test_the_input_of_a_step_with_several_arguments_is_all_of_them(make_engine):
    """S0-25"""

    async def add(first: int, second: int) -> Any:
        return step_context().input

    @workflow
    async def adding(ctx: Context) -> Any:
        return await ctx.step(add, 1, 2)

    engine = await make_engine(adding)
    assert await engine.execute(adding) == [1, 2]


async def test_what_nobody_said_is_an_attribute_error_that_says_what_is_known(make_engine, phone):
    """S0-12"""

    async def look(given: Any) -> str:
        assert not hasattr(step_context(), "signal_strength")
        try:
            return str(step_context().is_conected)
        except AttributeError as error:
            return str(error)

    caller = calling(look)
    engine = await make_engine(caller, context=phone)
    said = await engine.execute(caller)
    assert "no 'is_conected'" in said
    assert "asked, battery_level, is_connected" in said


async def test_without_a_context_there_is_nothing_to_read(make_engine):
    """S0-12"""

    async def look(given: Any) -> list[str]:
        with pytest.raises(AttributeError, match=r"Engine\(context=...\)"):
            _ = step_context().is_connected
        return list(step_context().app)

    caller = calling(look)
    engine = await make_engine(caller)
    assert await engine.execute(caller) == []


async def test_the_app_cannot_hide_what_a_step_is(make_engine):
    """S0-25 Names of the step's own context win; the app's are under `app`."""

    async def look(given: Any) -> list[Any]:
        step = step_context()
        return [step.attempt, step.app["attempt"], step.run_id]

    caller = calling(look)
    engine = await make_engine(caller, context=lambda: {"attempt": "mine", "run_id": "mine"})
    assert await engine.execute(caller, id="r") == [1, "mine", "r"]


async def test_a_body_cannot_change_what_the_next_one_is_told(make_engine):
    """S0-12 Each gets a mapping of its own."""
    world = {"level": 1}

    async def change(given: Any) -> int:
        step_context().app["level"] = 99  # type: ignore[index]  # nothing stops Python
        return world["level"]

    caller = calling(change)
    engine = await make_engine(caller, context=lambda: world)
    assert await engine.execute(caller) == 1


@pytest.mark.parametrize("wrong", ["raises", "none", "text"])
async def test_a_context_that_fails_is_an_attempt_that_failed(make_engine, wrong):
    """S0-12 It is retried like any other failure, and says whose it was."""
    asked: list[int] = []

    def context() -> Any:
        asked.append(1)
        if len(asked) > 1:
            return {"fine": True}
        if wrong == "raises":
            raise LookupError("no battery")
        return None if wrong == "none" else "text"

    ran: list[int] = []

    async def work(given: Any) -> bool:
        ran.append(step_context().attempt)
        return bool(step_context().fine)

    caller = calling(work)
    engine = await make_engine(caller, context=context)
    run = await engine.start(caller)
    assert await run.result() is True
    assert ran == [2]
    (step,) = await run.steps()
    assert (step.attempts, step.failures) == (2, 1)


async def test_a_context_that_always_fails_fails_the_run_and_is_named(make_engine):
    """S0-12"""

    def context() -> Any:
        raise LookupError("no battery")

    async def work(given: Any) -> None: ...

    caller = calling(work, retry=Retry.never)
    engine = await make_engine(caller, context=context)
    run = await engine.start(caller)
    with pytest.raises(RunFailed, match="no battery"):
        await run.result()
    (step,) = await run.steps()
    assert any("Engine(context=...)" in note for note in step.error.notes)


def test_a_context_is_a_plain_function():
    """S0-11 An async one would never be awaited; a mapping would never change."""

    async def later() -> dict[str, Any]:
        return {}

    for wrong in (later, {"is_connected": True}):
        with pytest.raises(BadInput, match="context must be a"):
            Engine(":memory:", context=wrong)


async def test_an_engine_is_told_all_it_needs_at_once_and_recovers_while_it_opens(make_engine, mode):
    """S0-11 Database, context and callbacks are arguments; what an engine before it left is gone on with unasked."""
    if mode == "memory":
        pytest.skip("nothing is left of it")
    begun = asyncio.Event()

    async def look(given: Any) -> str:
        begun.set()
        if step_context().attempt == 1:
            await asyncio.sleep(60)
        return str(step_context().where)

    caller = calling(look)
    first = await make_engine(caller, context=lambda: {"where": "here"}, stop_grace=timedelta(0))
    await first.start(caller, id="r")
    await begun.wait()
    await first.stop()
    told: list[str] = []
    second = await make_engine(
        caller, context=lambda: {"where": "there"}, on_change=lambda change: told.append(change.type)
    )
    await second.settle()
    assert await second.get("r").result() == "there"
    assert told[-1] == "run.completed"


async def test_every_engine_has_a_context_of_its_own(make_engine, mode):
    """S0-12 S0-60 A foreground and a background engine see their own worlds."""
    if mode == "memory":
        pytest.skip("one file, two engines")

    async def look(given: Any) -> str:
        return str(step_context().where)

    caller = calling(look)
    first = await make_engine(caller, context=lambda: {"where": "foreground"})
    assert await first.execute(caller) == "foreground"
    await first.stop()
    second = await make_engine(caller, context=lambda: {"where": "background"})
    assert await second.execute(caller) == "background"


def look_in_child(given: Any) -> list[Any]:
    """Read the context in a child process."""
    return [step_context().is_connected, step_context().attempt, hasattr(step_context(), "camera")]


async def test_a_body_in_a_child_process_reads_it_too(make_engine, phone):
    """S0-12 S0-25 As far as JSON carries it."""
    caller = calling(look_in_child, isolate="process")
    engine = await make_engine(caller, context=lambda: {**phone(), "camera": object()})
    assert await asyncio.wait_for(engine.execute(caller, 7), LONG) == [True, 1, False]


async def test_a_compensation_reads_it_too(make_engine, phone):
    """S0-12 Undoing is a step like any other."""
    seen: list[Any] = []

    async def work(given: Any) -> None: ...

    async def undo(given: Any) -> None:
        seen.append(step_context().is_connected)

    @workflow
    async def failing(ctx: Context) -> None:
        await ctx.step(work, 1)
        ctx.compensate(undo, 1)
        raise ValueError("no")

    engine = await make_engine(failing, context=phone)
    with pytest.raises(RunFailed):
        await engine.execute(failing)
    assert seen == [True]
