"""Callbacks of activities and hooks of workflows: told once, after the commit, and what they do changes nothing."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from tests.support.waiting import LONG, eventually

from holdfast import Context, NotReady, Retry, RunCancelled, RunFailed, Status, activity, step_context, workflow
from holdfast.declarative import graph
from holdfast.definitions import Hooks
from holdfast.errors import BadInput, RetryAfter, StepFailed
from holdfast.limits import Limit

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
CALLBACKS = ("on_start", "on_success", "on_failure", "on_failed", "on_skipped")


class Told:
    """Remembers every callback: its name, the attempt, and what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        return partial(self._note, name)

    def _note(self, name: str, context: Any, *rest: Any) -> None:
        said = tuple(getattr(value, "message", value) for value in rest)
        self.calls.append((name, context.attempt, *said))

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in CALLBACKS}

    @property
    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture
def told() -> Told:
    return Told()


def calling(body: Any, **options: Any) -> Any:
    called = activity(name="call", **options)(body)

    @workflow
    async def caller(ctx: Context) -> Any:
        found = await ctx.step(called)
        await ctx.sleep(MINUTE)
        return found

    return caller


# Of activities.


async def test_a_step_that_succeeds_tells_its_start_and_its_result_once(make_engine, told):
    """S0-29 B19 Not again when the run is replayed after its sleep."""

    async def work() -> datetime:
        return START

    caller = calling(work, **told.options)
    engine = await make_engine(caller)
    assert await engine.execute(caller) == START.isoformat().replace("+00:00", "Z")
    assert told.calls == [("on_start", 1), ("on_success", 1, START)]


async def test_every_failed_attempt_is_told_and_the_last_one_for_good(make_engine, told):
    """S0-29 on_failure for each attempt, on_failed once, when the step gives up."""

    async def fail() -> None:
        raise ConnectionError(f"no {step_context().attempt}")

    caller = calling(fail, retry=Retry(max_attempts=3, initial_interval=SECOND), **told.options)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed):
        await engine.execute(caller)
    assert told.calls == [
        ("on_start", 1),
        ("on_failure", 1, "no 1"),
        ("on_start", 2),
        ("on_failure", 2, "no 2"),
        ("on_start", 3),
        ("on_failure", 3, "no 3"),
        ("on_failed", 3, "no 3"),
    ]


async def test_a_step_that_is_skipped_tells_why_each_time(make_engine, told):
    """S0-27 S0-29 B10 The start is told only when its condition lets it."""
    answers = [NotReady("offline", MINUTE), NotReady("battery", MINUTE)]

    async def work() -> None: ...

    caller = calling(work, run_when=lambda step: answers.pop(0) if answers else True, **told.options)
    engine = await make_engine(caller)
    await engine.execute(caller)
    assert told.calls == [
        ("on_skipped", 1, "offline"),
        ("on_skipped", 1, "battery"),
        ("on_start", 1),
        ("on_success", 1, None),
    ]


async def test_a_step_that_was_skipped_too_often_failed_without_an_attempt_that_failed(make_engine, told):
    """S0-27 S0-29 B10 Its dead letter says so too."""

    async def work() -> None: ...

    caller = calling(work, run_when=lambda step: NotReady("offline"), max_skips=1, **told.options)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="more than max_skips allows: offline"):
        await engine.execute(caller)
    assert told.names == ["on_skipped", "on_failed"]
    assert len(await engine.dead_letters.list()) == 1


async def test_waiting_for_a_limit_is_no_skip(make_engine, told):
    """S0-29 Nobody's condition said no; the start is told when it starts."""

    async def work() -> None:
        if step_context().attempt == 1:
            raise RetryAfter(MINUTE, "later")

    caller = calling(work, limit="service", **told.options)
    engine = await make_engine(caller, limits=[Limit(scope="engine", name="service", rate=1, per=10 * MINUTE)])
    await engine.execute(caller)
    assert told.calls == [("on_start", 1), ("on_failure", 1, "later"), ("on_start", 2), ("on_success", 2, None)]


async def test_a_start_is_told_when_the_body_starts(make_engine, told):
    """S0-29 Not while it waits for a place."""
    free, begun = threading.Event(), threading.Event()

    def occupy() -> None:
        begun.set()
        free.wait(LONG)

    @workflow
    async def occupying(ctx: Context) -> None:
        await ctx.step(occupy)

    def work() -> None: ...

    caller = calling(work, **told.options)
    engine = await make_engine(occupying, caller, max_threads=1)
    await engine.start(occupying)
    await eventually(begun.is_set)
    run = await engine.start(caller)
    await eventually(lambda: engine.bodies == 2)
    assert told.calls == []
    free.set()
    await run.result()
    assert told.names == ["on_start", "on_success"]


async def test_callbacks_see_the_step_they_are_told_of(make_engine):
    """S0-25 S0-29 Run, step, attempt, input and the app's own context, like the body itself."""
    seen: list[tuple[Any, ...]] = []

    def on_success(step: Any, result: int) -> None:
        seen.append((step.run_id, step.step, step.attempt, step.input, step.battery, result))

    @activity(on_success=on_success)
    def double(number: int) -> int:
        return 2 * number

    @workflow
    async def doubling(ctx: Context) -> int:
        return await ctx.step(double, 21)

    engine = await make_engine(doubling, context=lambda: {"battery": 0.5})
    run = await engine.start(doubling, id="d-1")
    assert await run.result() == 42
    assert seen == [("d-1", "double", 1, 21, 0.5, 42)]


async def test_a_success_is_told_after_it_is_durable(make_engine, told):
    """S0-29 B19 When it is called, whoever reads the database sees the result."""
    found: list[Any] = []
    looking: list[asyncio.Task[Any]] = []

    async def work() -> str:
        return "done"

    def on_success(step: Any, result: str) -> None:
        async def look() -> None:
            found.extend(step.status for step in await engine.get("r").steps())

        looking.append(asyncio.ensure_future(look()))

    caller = calling(work, on_success=on_success)
    engine = await make_engine(caller)
    await engine.start(caller, id="r")
    await engine.settle()
    await asyncio.gather(*looking)
    assert found == ["completed"]


async def test_callbacks_that_raise_change_nothing_and_are_reported(make_engine):
    """B19 S0-29 Each of the five raises: the run goes its way, and callback.error says who raised what."""
    asked: list[int] = []

    def broken(*args: Any) -> None:
        raise ZeroDivisionError("in a callback")

    async def work() -> int:
        if step_context().attempt == 1:
            raise ConnectionError
        return step_context().attempt

    def ready(step: Any) -> bool:
        asked.append(1)
        return len(asked) > 1

    caller = calling(work, run_when=ready, **dict.fromkeys(CALLBACKS, broken))
    engine = await make_engine(caller)
    told: list[Any] = []
    engine.subscribe(lambda change: told.append(change) if change.type == "callback.error" else None)
    run = await engine.start(caller)
    assert await run.result() == 2
    assert len(told) == 5  # skipped, started, failed, started, succeeded
    assert {change.run_id for change in told} == {run.id}
    assert {change.data["error"] for change in told} == {"ZeroDivisionError: in a callback"}
    assert "broken" in told[0].data["callback"]


async def test_a_callback_that_raises_does_not_keep_the_unique_key(make_engine):
    """B19"""

    def broken(*args: Any) -> None:
        raise ZeroDivisionError

    async def fail() -> None:
        raise ValueError("no")

    caller = calling(fail, retry=Retry.never, on_failed=broken)
    caller.hooks = Hooks(on_failed=broken)
    engine = await make_engine(caller)
    for _ in range(2):
        run = await engine.start(caller, unique_key="one at a time")
        with pytest.raises(RunFailed):
            await run.result()


async def test_callbacks_are_told_of_a_result_that_another_step_left(make_engine, told):
    """S0-29 S3-9 The body did not run, so no start; but the step succeeded."""

    async def pay() -> str:
        return "paid"

    caller = calling(pay, idempotency_key=lambda: "order 7", **told.options)
    engine = await make_engine(caller)
    await engine.execute(caller)
    told.calls.clear()
    await engine.execute(caller)
    assert told.calls == [("on_success", 1, "paid")]


async def test_every_step_of_a_callback_s_activity_is_told_apart(make_engine, told):
    """S0-29 Many at once in one run."""

    async def work(number: int) -> int:
        return number

    watched = activity(on_success=told.on_success)(work)

    @workflow
    async def fan(ctx: Context) -> list[int]:
        return list(await asyncio.gather(*(ctx.step(watched, number) for number in range(20))))

    engine = await make_engine(fan)
    await engine.execute(fan)
    assert sorted(call[2] for call in told.calls) == list(range(20))


async def test_a_step_whose_worker_was_lost_is_told_of_again_only_as_it_goes_on(make_engine, told, mode):
    """S0-29 A restart tells the start of the next attempt, and what was told before stays told once."""
    if mode == "memory":
        pytest.skip("nothing is left of it")

    async def work() -> int:
        if step_context().attempt == 1:
            await asyncio.sleep(60)
        return step_context().attempt

    caller = calling(work, **told.options)
    engine = await make_engine(caller, stop_grace=timedelta(0))
    await engine.start(caller, id="r")
    while not told.calls:  # noqa: ASYNC110  # there is nothing to be told by
        await asyncio.sleep(0.001)
    await engine.stop()
    second = await make_engine(caller, clock=engine.jumping)
    assert await second.get("r").result() == 2
    assert told.calls == [("on_start", 1), ("on_start", 2), ("on_success", 2, 2)]


@pytest.mark.parametrize("field", CALLBACKS)
def test_a_callback_is_a_function(field):
    """S0-29 B35 Plain or async."""

    async def later(*args: Any) -> None: ...

    activity(**{field: later})(lambda: None)
    with pytest.raises(BadInput, match=f"{field} of activity"):
        activity(**{field: "notify"})(lambda: None)


# Of workflows.


class Ends:
    """Remembers which hook was called with what."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    @property
    def hooks(self) -> Hooks:
        return Hooks(
            on_complete=lambda run, state: self.calls.append(("complete", run, state)),
            on_failed=lambda run, state, error: self.calls.append(("failed", run, state, error.message)),
            on_cancelled=lambda run, state: self.calls.append(("cancelled", run, state)),
        )


def hooked(ends: Ends) -> Any:
    @workflow
    async def process(ctx: Context, how: str) -> str:
        state: dict[str, Any] = {"how": how}
        ctx.on_query("state", lambda: state)
        state["word"] = await ctx.receive("word", str)
        if state["word"] == "fail":
            raise StepFailed("Broken", "as told")
        if state["word"] == "linger":
            while True:
                try:
                    await ctx.sleep(timedelta(days=1))
                except asyncio.CancelledError:
                    continue
        return how

    process.hooks = ends.hooks
    return process


async def test_each_end_of_a_run_calls_its_hook_with_what_it_had_accumulated(make_engine):
    """S0-29 B19 on_complete, on_failed with the error, on_cancelled; once each."""
    ends = Ends()
    process = hooked(ends)
    engine = await make_engine(process)
    done, failed, cancelled = [await engine.start(process, "x", id=name) for name in ("done", "failed", "cancelled")]
    await done.send("word", "go")
    assert await done.result() == "x"
    await failed.send("word", "fail")
    with pytest.raises(RunFailed):
        await failed.result()
    await cancelled.cancel()
    with pytest.raises(RunCancelled):
        await cancelled.result()
    await engine.settle()
    assert [call[:2] for call in ends.calls] == [("complete", "done"), ("failed", "failed"), ("cancelled", "cancelled")]
    assert ends.calls[0][2] == {"how": "x", "word": "go"}
    assert ends.calls[1][2] == {"how": "x", "word": "fail"}
    assert "as told" in ends.calls[1][3]
    assert ends.calls[2][2] == {"how": "x"}


async def test_workflows_of_code_and_graphs_declare_their_hooks_as_sequences_do(make_engine):
    """S0-29 S0-2 Where the workflow is declared, with the same names and the same arguments."""
    calls: list[tuple[Any, ...]] = []
    hooks: dict[str, Any] = {
        "on_complete": lambda run, state: calls.append(("complete", run, state)),
        "on_failed": lambda run, state, error: calls.append(("failed", run, state, error.type)),
        "on_cancelled": lambda run, state: calls.append(("cancelled", run, state)),
    }

    @workflow(**hooks)
    async def process(ctx: Context, fails: bool) -> str:
        ctx.on_query("state", lambda: {"fails": fails})
        if fails:
            raise LookupError("as told")
        return await ctx.receive("word", str)

    def fetch() -> int:
        return 1

    def build(input: Any) -> int:
        return 1 // input

    drawn = graph("drawn", {fetch: [], build: [fetch]}, retry=Retry.never, **hooks)
    engine = await make_engine(process, drawn)
    done = await engine.start(process, False, id="done")
    await done.send("word", "go")
    assert await done.result() == "go"
    stopped = await engine.start(process, False, id="stopped")
    await engine.settle()
    await stopped.cancel()
    await engine.settle()
    for flow, given, name in ((process, True, "failed"), (drawn, 0, "broken")):
        with pytest.raises(RunFailed):
            await engine.execute(flow, given, id=name)
    await engine.execute(drawn, 1, id="built")
    await engine.settle()
    assert calls == [
        ("complete", "done", {"fails": False}),
        ("cancelled", "stopped", {"fails": False}),
        ("failed", "failed", {"fails": True}, "LookupError"),
        ("failed", "broken", {"fetch": 1}, "ZeroDivisionError"),
        ("complete", "built", {"fetch": 1, "build": 1}),
    ]


async def test_a_run_that_is_cancelled_out_of_grace_calls_its_hook(make_engine):
    """S0-29 B7"""
    ends = Ends()
    process = hooked(ends)
    engine = await make_engine(process, cancel_grace=MINUTE)
    run = await engine.start(process, "x", id="r")
    await run.send("word", "linger")
    await engine.settle()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result()
    await engine.settle()
    assert [call[:2] for call in ends.calls] == [("cancelled", "r")]


async def test_a_run_that_is_terminated_calls_its_hook(make_engine):
    """S0-29 B7"""
    ends = Ends()
    process = hooked(ends)
    engine = await make_engine(process)
    run = await engine.start(process, "x", id="r")
    await engine.settle()
    await run.terminate()
    await engine.settle()
    assert await run.status() is Status.CANCELLED
    assert [call[:2] for call in ends.calls] == [("cancelled", "r")]


async def test_a_run_that_is_cancelled_before_it_began_calls_its_hook(make_engine):
    """S0-29 B7"""
    ends = Ends()
    process = hooked(ends)
    engine = await make_engine(process)
    run = await engine.start(process, "x", id="r", delay=MINUTE)
    await engine.settle()
    await run.cancel()
    await engine.settle()
    assert await run.status() is Status.CANCELLED
    assert [call[:2] for call in ends.calls] == [("cancelled", "r")]


async def test_hooks_that_raise_change_nothing_and_are_reported(make_engine):
    """S0-29 B19"""

    def broken(*args: Any) -> None:
        raise ZeroDivisionError("in a hook")

    process = hooked(Ends())
    process.hooks = Hooks(on_complete=broken, on_failed=broken, on_cancelled=broken)
    engine = await make_engine(process)
    told: list[Any] = []
    engine.subscribe(lambda change: told.append(change.data["error"]) if change.type == "callback.error" else None)
    for word, wanted in (("go", Status.COMPLETED), ("fail", Status.FAILED), ("", Status.CANCELLED)):
        run = await engine.start(process, "x")
        await (run.send("word", word) if word else run.cancel())
        await engine.advance(MINUTE)
        assert await run.status() is wanted
    assert told == ["ZeroDivisionError: in a hook"] * 3 * Retry.default.max_attempts


async def test_a_state_that_cannot_be_told_is_none(make_engine):
    """S0-29 B19 Without the query there is no state to tell; a query that fails is reported, and the run ends."""
    ends = Ends()

    @workflow
    async def plain(ctx: Context) -> int:
        return 1

    @workflow
    async def odd(ctx: Context) -> int:
        def state() -> int:
            raise LookupError("no state")

        ctx.on_query("state", state)
        return 2

    plain.hooks = odd.hooks = ends.hooks
    engine = await make_engine(plain, odd)
    assert await engine.execute(plain, id="plain") == 1
    assert await engine.execute(odd, id="odd") == 2
    assert ends.calls == [("complete", "plain", None), ("complete", "odd", None)]


async def test_hooks_are_called_once_though_the_run_is_reopened(make_engine):
    """S0-29 Each end is told: the failure, and after the retry the completion."""
    ends = Ends()
    broken = [True]

    async def work() -> int:
        if broken:
            raise ValueError("no")
        return 1

    caller = calling(work, retry=Retry.never)
    caller.hooks = ends.hooks
    engine = await make_engine(caller)
    run = await engine.start(caller, id="r")
    with pytest.raises(RunFailed):
        await run.result()
    broken.clear()
    await run.retry()
    assert await run.result() == 1
    assert [call[0] for call in ends.calls] == ["failed", "complete"]


def test_a_hook_is_a_function():
    """S0-29 B35 Plain or async."""
    for field in ("on_complete", "on_failed", "on_cancelled"):
        with pytest.raises(BadInput, match=field):
            Hooks(**{field: "notify"})
