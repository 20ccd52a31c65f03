"""Attempts that fail: retried by policy, with every attempt counted, and the last error raised into the workflow."""

from __future__ import annotations

import asyncio
import dataclasses
import sqlite3
import sys
from datetime import timedelta
from typing import Any

import pytest
from tests.behaviour.instants import a_moment, same

from holdfast import (
    Context,
    NonRetryable,
    Retry,
    Rollback,
    RunFailed,
    Status,
    StepFailed,
    StepTimeout,
    activity,
    step_context,
    workflow,
)
from holdfast.errors import Critical, NotSerializable
from holdfast.replay import entry as entries

DAY = timedelta(days=1)
PATIENT = Retry(max_attempts=4, initial_interval=DAY, coefficient=2, max_interval=None)


async def attempts_in(run: Any) -> list[tuple[str, int]]:
    kinds = (
        entries.AttemptBegun,
        entries.AttemptFailed,
        entries.AttemptLost,
        entries.StepCompleted,
        entries.StepFailure,
    )
    return [(fact.kind, fact.entry.attempt) for fact in await run.history() if isinstance(fact.entry, kinds)]


def failing(error: BaseException, times: int = 10**9, **options: Any) -> tuple[Any, list[int]]:
    """Return an activity that raises so many times, and the list of attempt numbers it saw."""
    seen: list[int] = []

    @activity(**options)
    async def flaky() -> str:
        seen.append(step_context().attempt)
        if len(seen) <= times:
            raise error
        return f"done at {len(seen)}"

    return flaky, seen


def calling(flaky: Any) -> Any:
    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(flaky)

    return caller


async def test_a_step_is_retried_after_days_of_backoff_and_its_attempts_are_in_the_history(make_engine):
    """S0-23 S1-22 S2-37 B4 B15 G4 Delays of 1, 2 and 4 days: absolute, recorded, and over in milliseconds."""
    flaky, seen = failing(ValueError("not yet"), 3, retry=PATIENT)
    caller = calling(flaky)
    engine = await make_engine(caller)
    begun = engine.clock.now()
    run = await engine.start(caller)
    assert await run.result() == "done at 4"
    assert seen == [1, 2, 3, 4]
    assert await attempts_in(run) == [
        ("attempt failed", 1),
        ("attempt", 2),
        ("attempt failed", 2),
        ("attempt", 3),
        ("attempt failed", 3),
        ("attempt", 4),
        ("step completed", 4),
    ]
    days = [
        (fact.entry.retry_at - begun) / 86_400_000_000
        for fact in await run.history()
        if isinstance(fact.entry, entries.AttemptFailed)
    ]
    assert days == pytest.approx([1, 3, 7], abs=0.01)


async def test_a_waiting_retry_shows_what_it_waits_for_and_keeps_the_last_error(make_engine):
    """S0-58 S3-23 The failed attempt is committed, with its error, before the retry is due."""
    flaky, seen = failing(ValueError("not yet"), 1, retry=PATIENT)
    caller = calling(flaky)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    await engine.settle()
    shown = await run.describe()
    assert shown.status is Status.SUSPENDED
    assert shown.waiting_for == "retry"
    assert shown.due_at is not None
    assert shown.due_at - shown.created_at >= DAY
    (failed,) = [fact.entry for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    assert (failed.error.type, failed.error.message) == ("ValueError", "not yet")
    assert "raise error" in failed.error.traceback
    await engine.advance(DAY - timedelta(seconds=1))
    assert seen == [1]
    await engine.advance(timedelta(seconds=2))
    assert seen == [1, 2]
    assert await run.status() is Status.COMPLETED


async def test_a_retry_is_scheduled_with_the_last_error_and_the_last_attempt_fails_the_run(make_engine):
    """S4-11 Until the attempts are used up the run has a next time; then it has failed, and says why."""
    flaky, seen = failing(ValueError("not yet"), retry=Retry(max_attempts=2, initial_interval=DAY, max_interval=None))
    caller = calling(flaky)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    await engine.settle()
    shown, [step] = await run.describe(), await run.steps()
    assert (shown.status, shown.waiting_for, step.status) == (Status.SUSPENDED, "retry", "waiting")
    assert shown.due_at == step.next_attempt_at
    assert same(engine, shown.due_at, shown.created_at + DAY)
    assert (step.error.type, step.error.message) == ("ValueError", "not yet")
    await engine.advance(DAY)
    shown, [step] = await run.describe(), await run.steps()
    assert (shown.status, shown.due_at, step.status, step.next_attempt_at) == (Status.FAILED, None, "failed", None)
    assert (shown.error.type, shown.error.message) == ("ValueError", "not yet")
    await engine.advance(9 * DAY)
    assert seen == [1, 2]


async def test_exhausted_attempts_raise_the_last_error_into_the_workflow(make_engine):
    """S1-22 B2 Three attempts in all, then the error of the third."""
    seen: list[int] = []

    @activity(retry=Retry(max_attempts=3))
    def flaky() -> None:
        seen.append(1)
        raise ValueError(f"attempt {len(seen)}")

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(flaky)
        except ValueError as error:
            return f"{error} {error.__notes__[-1]}"
        return "no error"

    engine = await make_engine(caller)
    assert await engine.execute(caller) == "attempt 3 raised in step 'flaky', attempt 3"
    assert len(seen) == 3


async def test_an_uncaught_step_error_fails_the_run_with_that_error_as_the_cause(make_engine):
    """S2-33 The run's error is the step's, for whoever asks for the result."""
    flaky, seen = failing(KeyError("sku"), retry=Retry.never)
    caller = calling(flaky)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed, match="KeyError: 'sku'") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, KeyError)
    assert seen == [1]
    assert await run.status() is Status.FAILED


async def test_max_attempts_one_means_one(make_engine):
    """B2 S0-22 No second attempt, no delay."""
    flaky, seen = failing(ValueError("x"), retry=Retry(max_attempts=1))
    caller = calling(flaky)
    engine = await make_engine(caller)
    before = engine.clock.now()
    with pytest.raises(RunFailed):
        await engine.execute(caller)
    assert seen == [1]
    assert same(engine, engine.clock.now(), before)


async def test_max_retries_is_another_name_for_the_number_of_attempts(make_engine):
    """B2 N runs in all, as the seed document counts."""
    flaky, seen = failing(ValueError("x"), retry=Retry(max_retries=2))
    caller = calling(flaky)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed):
        await engine.execute(caller)
    assert seen == [1, 2]


class Declined(Exception):
    """Neither builtin nor registered."""


class SoftDeclined(Declined):
    """A subclass, for matching by base class."""


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (NonRetryable("no"), Retry()),
        (Critical("no"), Retry()),
        (Rollback("no"), Retry()),
        (Declined("no"), Retry(non_retryable=(Declined,))),
        (SoftDeclined("no"), Retry(non_retryable=(Declined,))),
        (Declined("no"), Retry(non_retryable=("Declined",))),
        (SoftDeclined("no"), Retry(non_retryable=("Declined",))),
        (SoftDeclined("no"), Retry(non_retryable=(f"{__name__}.Declined",))),
        (OSError("no"), Retry(non_retryable=("OSError",))),
        (ConnectionResetError("no"), Retry(non_retryable=("OSError",))),
        (ValueError("no"), Retry(retry_if=lambda error: not isinstance(error, ValueError))),
        (ValueError("no"), Retry(retry_if=lambda error: 1 / 0 > 0)),
        (ExceptionGroup("no", [ValueError("yes"), Critical("no")]), Retry()),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
async def test_an_error_that_is_not_worth_a_retry_fails_at_once(make_engine, mode, error, policy):
    """B27 S1-23 S1-45 S3-6 S3-26 S4-12 Marked, listed by class, name or base, or refused by the predicate."""
    flaky, seen = failing(error, retry=policy)
    caller = calling(flaky)
    # A runtime whose steps run anywhere knows errors by their classes if it is given them.
    engine = await make_engine(caller, errors=[Declined, SoftDeclined] if mode == "temporal" else [])
    with pytest.raises(RunFailed):
        await engine.execute(caller)
    assert seen == [1]


async def test_every_other_error_is_retried(make_engine):
    """B27 S3-26 The default list is empty."""
    flaky, _ = failing(Declined("x"), 2, retry=Retry(non_retryable=("Other",), retry_if=lambda error: True))
    caller = calling(flaky)
    engine = await make_engine(caller)
    assert await engine.execute(caller) == "done at 3"


async def test_a_step_marked_critical_is_caught_as_itself(make_engine):
    """S1-23 S1-45 The workflow sees which of the three it was."""
    caught: list[str] = []

    async def body(kind: str) -> None:
        raise {"critical": Critical, "rollback": Rollback, "non": NonRetryable}[kind](kind)

    @workflow
    async def caller(ctx: Context) -> list[str]:
        names = []
        for kind in ("critical", "rollback", "non"):
            try:
                await ctx.step(body, kind)
            except NonRetryable as error:
                names.append(type(error).__name__)
        return names

    engine = await make_engine(caller)
    assert await engine.execute(caller) == ["Critical", "Rollback", "NonRetryable"]
    assert caught == []


async def test_a_retry_survives_a_restart_with_its_time_and_its_count(make_engine, mode):
    """B4 B15 S0-23 S1-22 G4 The budget is not reset, the absolute time is kept, and the jitter is not drawn again."""
    if mode == "memory":
        pytest.skip("nothing survives in memory")
    flaky, seen = failing(ValueError("x"), 2, retry=dataclasses.replace(PATIENT, jitter=0.5))
    caller = calling(flaky)
    engine = await make_engine(caller)
    run = await engine.start(caller, id="r")
    await engine.settle()
    (failed,) = [fact.entry for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    now = engine.jumping
    await engine.stop()

    engine = await make_engine(caller, clock=now)
    await engine.settle()
    assert seen == [1]
    wait = timedelta(microseconds=failed.retry_at - engine.clock.now())
    await engine.advance(wait - a_moment(engine))
    assert seen == [1]
    await engine.advance(a_moment(engine))
    assert seen == [1, 2]
    assert same(engine, engine.clock.now(), failed.retry_at)
    again = [fact.entry for fact in await engine.get("r").history() if isinstance(fact.entry, entries.AttemptFailed)]
    assert again[0] == failed
    await engine.stop()

    engine = await make_engine(caller, clock=now)
    assert await engine.get("r").result() == "done at 3"
    assert seen == [1, 2, 3]


async def test_a_stopped_engine_leaves_what_its_runs_wait_for_readable(make_engine, mode):
    """S3-23 After an orderly stop a parked run still shows that it waits for a retry."""
    if mode != "file":
        pytest.skip("only a run that was in memory is written again at the stop")
    flaky, _ = failing(ValueError("x"), retry=PATIENT)
    caller = calling(flaky)
    engine = await make_engine(caller)
    await engine.start(caller, id="r")
    await engine.settle()
    await engine.stop()
    engine = await make_engine(run_workflows=False)
    assert (await engine.get("r").describe()).waiting_for == "retry"


async def test_a_restart_does_not_refill_an_exhausted_budget(make_engine, mode):
    """S1-22 G4 Two failures before the restart and one after it are three."""
    if mode == "memory":
        pytest.skip("nothing survives in memory")
    flaky, seen = failing(ValueError("x"), retry=dataclasses.replace(PATIENT, max_attempts=3))
    caller = calling(flaky)
    engine = await make_engine(caller)
    await engine.start(caller, id="r")
    await engine.advance(DAY)
    assert seen == [1, 2]
    clock = engine.jumping
    await engine.stop()
    engine = await make_engine(caller, clock=clock)
    with pytest.raises(RunFailed):
        await engine.get("r").result()
    assert seen == [1, 2, 3]


async def test_jitter_is_drawn_once_for_each_retry(make_engine, monkeypatch):
    """B4 One draw per failed attempt; the answer is in the history, so a replay draws nothing."""
    flaky, _ = failing(ValueError("x"), 3, retry=dataclasses.replace(PATIENT, jitter=0.5, coefficient=1))
    caller = calling(flaky)
    draws: list[float] = []

    def draw() -> float:
        draws.append(0.75)
        return 0.75

    monkeypatch.setattr("random.random", draw)
    engine = await make_engine(caller)
    run = await engine.start(caller)
    await run.result()
    assert len(draws) == 3
    facts = [fact for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    waits = [(fact.entry.retry_at - fact.row.at) / 86_400_000_000 for fact in facts]
    assert waits == pytest.approx([1.25, 1.25, 1.25], abs=0.001)


async def test_other_branches_go_on_while_a_step_waits_for_its_retry(make_engine):
    """B15 A retry parks only the step that failed."""
    flaky, _ = failing(ValueError("x"), 1, retry=PATIENT)
    order: list[str] = []

    async def quick(name: str) -> str:
        order.append(name)
        return name

    @workflow
    async def caller(ctx: Context) -> list[str]:
        async def other() -> str:
            await ctx.step(quick, "a")
            await ctx.sleep(timedelta(hours=1))
            return await ctx.step(quick, "b")

        return list(await asyncio.gather(ctx.step(flaky), other()))

    engine = await make_engine(caller)
    run = await engine.start(caller)
    await engine.advance(timedelta(hours=2))
    assert order == ["a", "b"]
    assert await run.result() == ["done at 2", "b"]


# Errors as data: what was raised comes back as itself, live and replayed alike.


class Registered(Exception):
    def __init__(self, code: int, *, hint: str = "") -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.hint = hint


class Stubborn(Exception):
    """Its constructor cannot be called again with its args."""

    def __init__(self, first: object, second: object) -> None:
        super().__init__(f"{first}-{second}")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unregistered(Exception):
    """Unknown to the engine."""


ERRORS: dict[str, BaseException] = {
    "value": ValueError("bad", 7),
    "key": KeyError("sku"),
    "os": FileNotFoundError(2, "No such file", "/tmp/x"),
    "group": ExceptionGroup("both", [ValueError("a"), ExceptionGroup("in", [KeyError("b"), Unregistered("c")])]),
    "stop": StopIteration(3),
    "exit": SystemExit(4),
    "assertion": AssertionError(),
    "recursion": RecursionError("deep"),
    "registered": Registered(404, hint="look"),
    "stubborn": Stubborn("a", "b"),
    "unprintable": Unprintable("x"),
    "unregistered": Unregistered("who"),
    "engine-wide": sqlite3.IntegrityError("UNIQUE"),
    "critical": Critical("no"),
    "base": GeneratorExit("odd"),
}


@activity(retry=Retry.never, raises=[Registered, Stubborn, Unprintable])
def raise_it(name: str) -> None:
    raise ERRORS[name]


def described(error: BaseException) -> dict[str, Any]:
    try:
        text = str(error)
    except RuntimeError as broken:
        text = f"<{broken}>"
    return {
        "class": type(error).__qualname__,
        "text": text,
        "code": getattr(error, "code", None),
        "hint": getattr(error, "hint", None),
        "errno": getattr(error, "errno", None),
        "filename": getattr(error, "filename", None),
        "type_name": getattr(error, "type_name", None),
        "members": [described(member) for member in getattr(error, "exceptions", ())],
        "notes": list(getattr(error, "__notes__", ())),
    }


@workflow
async def catch_all(ctx: Context) -> dict[str, dict[str, Any]]:
    caught: dict[str, dict[str, Any]] = {}
    for name in ERRORS:
        try:
            await ctx.step(raise_it, name)
        except Exception as error:
            caught[name] = described(error)
    await ctx.sleep(DAY)
    again: dict[str, dict[str, Any]] = {}
    for name in ERRORS:
        try:
            await ctx.step(raise_it, name)
        except Exception as error:
            again[name] = described(error)
    for name, first in caught.items():
        first.pop("notes")
        again[name].pop("notes")
    return {"first": caught, "again": again}


async def test_an_error_comes_back_as_itself_live_and_replayed(make_engine):
    """DESIGN 5: builtin and registered classes as themselves, the rest as StepFailed with the class name.

    In always-evict mode the first half is replayed, in the others it is live: the result must be the same.
    """
    engine = await make_engine(catch_all, errors=[sqlite3.IntegrityError])
    result = await engine.execute(catch_all)
    assert result["first"] == result["again"]
    first = result["first"]
    assert {name: seen["class"] for name, seen in first.items()} == {
        "value": "ValueError",
        "key": "KeyError",
        "os": "FileNotFoundError",
        "group": "ExceptionGroup",
        "stop": "StepFailed",
        "exit": "StepFailed",
        "assertion": "AssertionError",
        "recursion": "RecursionError",
        "registered": "Registered",
        "stubborn": "Stubborn",
        "unprintable": "Unprintable",
        "unregistered": "StepFailed",
        "engine-wide": "IntegrityError",
        "critical": "Critical",
        "base": "StepFailed",
    }
    assert first["value"]["text"] == "('bad', 7)"
    assert (first["os"]["errno"], first["os"]["filename"]) == (2, "/tmp/x")
    assert (first["registered"]["code"], first["registered"]["hint"]) == (404, "look")
    assert first["stubborn"]["text"] == "a-b"
    assert first["unregistered"]["type_name"] == f"{__name__}.Unregistered"
    assert first["exit"]["type_name"] == "SystemExit"
    value, inner = first["group"]["members"]
    assert value["class"] == "ValueError"
    assert [member["class"] for member in inner["members"]] == ["KeyError", "StepFailed"]


async def test_notes_and_causes_come_back(make_engine):
    """DESIGN 5: an error brings its notes and the chain of what caused it."""

    @activity(retry=Retry.never)
    def body() -> None:
        try:
            try:
                raise KeyError("deep")
            except KeyError as error:
                error.add_note("note on the deep one")
                raise Unregistered("middle") from error
        except Unregistered:
            top = ValueError("top")
            top.add_note("order 7")
            raise top  # noqa: B904  # the implicit context is what is tested

    @workflow
    async def caller(ctx: Context) -> list[str]:
        told: list[str] = []
        try:
            await ctx.step(body)
        except ValueError as error:
            cause: BaseException | None = error
            while cause is not None:
                told.append(f"{type(cause).__name__} {cause} {getattr(cause, '__notes__', [])}")
                cause = cause.__cause__
        await ctx.sleep(DAY)
        return told

    engine = await make_engine(caller)
    assert await engine.execute(caller) == [
        "ValueError top ['order 7', \"raised in step 'body', attempt 1\"]",
        f"StepFailed {__name__}.Unregistered: middle []",
        "KeyError 'deep' ['note on the deep one']",
    ]


async def test_except_star_catches_the_members_of_a_group(make_engine):
    """DESIGN 5: a TaskGroup inside a body fails as the group that it is."""

    @activity(retry=Retry.never)
    async def body() -> None:
        async def fail(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(fail(ValueError("v")))
            group.create_task(fail(KeyError("k")))

    @workflow
    async def caller(ctx: Context) -> list[str]:
        seen = []
        try:
            await ctx.step(body)
        except* ValueError as group:
            seen += [repr(error) for error in group.exceptions]
        except* KeyError as group:
            seen += [repr(error) for error in group.exceptions]
        await ctx.sleep(DAY)
        return seen

    engine = await make_engine(caller)
    assert await engine.execute(caller) == ["ValueError('v')", "KeyError('k')"]


async def test_an_unknown_error_is_never_imported_by_its_name(make_engine):
    """GUARANTEES 5: a class that this engine does not register stays a name, though the class exists here."""
    flaky, _ = failing(Unregistered("x"), retry=Retry.never)
    caller = calling(flaky)
    engine = await make_engine(caller)
    with pytest.raises(RunFailed) as failed:
        await engine.execute(caller)
    assert type(failed.value.__cause__) is StepFailed
    assert str(failed.value.__cause__) == f"{__name__}.Unregistered: x"


async def test_a_run_that_fails_with_an_unprintable_error_still_tells_so(make_engine):
    """An error whose __str__ raises must not hide that the run failed."""
    flaky, _ = failing(Unprintable("x"), retry=Retry.never)
    caller = calling(flaky)
    engine = await make_engine(caller, errors=[Unprintable])
    with pytest.raises(RunFailed, match="Unprintable"):
        await engine.execute(caller)


@pytest.mark.parametrize("where", ["async", "thread"])
async def test_a_body_that_exits_fails_like_any_other(make_engine, where):
    """GUARANTEES 4 row 15: sys.exit() in a body is a failed attempt, retried by policy; the worker lives."""
    calls: list[int] = []

    def leave() -> str:
        calls.append(1)
        if len(calls) < 3:
            sys.exit(7)
        return "stayed"

    async def leave_async() -> str:
        return leave()

    body = leave_async if where == "async" else leave

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step("leave", body)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "stayed"
    errors = [fact.entry.error for fact in await run.history() if isinstance(fact.entry, entries.AttemptFailed)]
    assert [(error.type, error.message) for error in errors] == [("SystemExit", "7")] * 2


async def test_a_body_that_cancels_itself_fails_like_any_other(make_engine):
    """GUARANTEES 4 row 15: CancelledError out of a body nobody cancelled is a failed attempt, not a cancelled run."""
    calls: list[int] = []

    async def body() -> str:
        calls.append(1)
        if len(calls) < 2:
            raise asyncio.CancelledError("by itself")
        return "ok"

    @workflow
    async def caller(ctx: Context) -> str:
        return await ctx.step(body)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    assert await run.result() == "ok"
    assert await attempts_in(run) == [("attempt failed", 1), ("attempt", 2), ("step completed", 2)]


async def test_a_step_timeout_is_caught_as_a_timeout_error(make_engine):
    """S3-25 StepTimeout is a TimeoutError to the workflow, live and replayed."""

    @activity(retry=Retry.never, timeout=timedelta(milliseconds=5))
    async def slow() -> None:
        await asyncio.sleep(30)

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(slow)
        except TimeoutError as error:
            await ctx.sleep(DAY)
            return f"{type(error).__name__}: {error} {isinstance(error, StepTimeout)}"
        return "in time"

    engine = await make_engine(caller)
    assert await engine.execute(caller) == "StepTimeout: step 'slow' did not finish within 0:00:00.005000 True"


async def test_a_refused_result_is_not_worth_a_retry(make_engine):
    """GUARANTEES 6 case 1: the body is not run again for a result that cannot be stored."""
    calls: list[int] = []

    def fetch() -> Any:
        calls.append(1)
        return {"items": [1, 2, 3, {"fh": object()}]}

    caller = calling(fetch)
    engine = await make_engine(caller)
    with pytest.raises(
        RunFailed, match=r"object of type object at \$\.items\[3\]\.fh in the result of step 'fetch'"
    ) as e:
        await engine.execute(caller)
    assert isinstance(e.value.__cause__, NotSerializable)
    assert len(calls) == 1


@pytest.mark.parametrize("mode", ["file", "evict"])
async def test_a_retry_keeps_its_time_through_a_restart(make_engine):
    """G9 S2-27 A new worker tries again when the old one would have, neither at once nor after another delay."""
    hour = timedelta(hours=1)
    attempts: list[str] = []

    @activity(retry=Retry(initial_interval=hour, max_interval=None))
    async def flaky() -> int:
        attempts.append("attempt")
        if len(attempts) == 1:
            raise OSError("not yet")
        return len(attempts)

    @workflow
    async def work(ctx: Context) -> int:
        return await ctx.step(flaky)

    engine = await make_engine(work)
    await engine.start(work, id="r")
    for _ in range(3):
        await engine.advance(hour / 4)
        await engine.stop()
        engine = await make_engine(work, clock=engine.jumping)
        # Somebody else's cancel or message may claim it early; so does a message that nobody waits for.
        await engine.get("r").send("word")
        await engine.settle()
        assert len(attempts) == 1
    await engine.advance(hour / 4)
    assert await engine.get("r").status() is Status.COMPLETED
    assert len(attempts) == 2
