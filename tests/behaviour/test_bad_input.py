"""Bad input: every one gets a clear error at the call, and nothing is stored."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, Retry, RunFailed, Status, activity, workflow
from holdfast.errors import (
    BadInput,
    DefinitionError,
    DuplicateName,
    InvalidDuration,
    InvalidId,
    NaiveDatetime,
    NonDeterministic,
    NotSerializable,
    NumberTooLong,
    PayloadTooLarge,
    TooDeep,
)
from holdfast.testing import TestEngine

HOUR = timedelta(hours=1)


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    await ctx.sleep(HOUR)
    return await ctx.step("same", same, value)


async def same(value: Any) -> Any:
    return value


@dataclass
class Order:
    id: int
    amount: float


@workflow
async def pay(ctx: Context, order: Order, currency: str, *, express: bool = False) -> str:
    return f"{order.id} {currency} {express}"


# Values, as input and on their way through a step.


@pytest.mark.parametrize(
    "value",
    [
        "a\0b",
        "\0",
        {"a\0key": "\0"},
        2**63,
        -(2**63) - 1,
        10**4000,
        "\u202e\u2028\ufeff\U0001f600",
        "",
        [],
        {},
        {"": None},
        1e308,
        -0.0,
        0.1 + 0.2,
        True,
        None,
    ],
    ids=lambda value: ascii(value)[:20],
)
async def test_odd_but_sound_values_come_back_equal(make_engine, value):
    """GUARANTEES 6.4 6.8 NUL in strings, integers beyond 64 bits, odd Unicode: accepted and returned equal."""
    engine = await make_engine(echo)
    run = await engine.start(echo, value)
    result = await run.result()
    assert result == value
    assert type(result) is type(value)
    assert (await run.describe()).input == {"value": value}


async def test_an_aware_datetime_keeps_its_offset(make_engine):
    """GUARANTEES 6.5 Through input, step and result."""

    @workflow
    async def at(ctx: Context, moment: datetime) -> datetime:
        await ctx.sleep(HOUR)
        return await ctx.step(pass_on, moment)

    engine = await make_engine(at)
    for zone in (UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-3))):
        moment = datetime(2030, 5, 6, 7, 8, 9, 123456, tzinfo=zone)
        result = await engine.execute(at, moment)
        assert result == moment
        assert result.utcoffset() == moment.utcoffset()


async def pass_on(moment: datetime) -> datetime:
    return moment


def nested(depth: int) -> Any:
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


BAD_VALUES: list[tuple[Any, type[Exception], str]] = [
    (datetime(2030, 1, 1), NaiveDatetime, "timezone|time zone"),  # noqa: DTZ001  # that it is naive is the point
    ({1: "a"}, NotSerializable, "key"),
    ({("a", "b"): 1}, NotSerializable, "key"),
    ({None: 1}, NotSerializable, "key"),
    ({"deep": [{"x": {1: 2}}]}, NotSerializable, r"\$\.(value\.)?deep\[0\]\.x"),
    (nested(65), TooDeep, "64"),
    (nested(100_000), TooDeep, "64"),
    (10**5000, NumberTooLong, "digits"),
    ("x" * 2_097_152, PayloadTooLarge, "2,097,152"),
    (float("nan"), NotSerializable, "NaN"),
    (float("-inf"), NotSerializable, "(?i)inf"),
    ("\ud800", NotSerializable, "Unicode"),
    (object(), NotSerializable, "object"),
]


@pytest.mark.parametrize(("value", "error", "what"), BAD_VALUES, ids=[f"{n}" for n in range(len(BAD_VALUES))])
async def test_an_input_that_cannot_be_stored_is_refused_and_nothing_is_stored(make_engine, value, error, what):
    """GUARANTEES 6.2 6.3 6.5 6.6 6.7 6.8 6.9 The error says where and names the workflow; no run exists."""
    engine = await make_engine(echo)
    with pytest.raises(error, match=what) as caught:
        await engine.start(echo, value, id="bad")
    assert "echo" in str(caught.value)
    assert not engine.offers("lists") or await engine.runs() == []
    await engine.start(echo, "good", id="bad")


async def test_a_payload_of_exactly_the_limit_is_accepted(make_engine):
    """GUARANTEES 6.9 5 One over, one under."""
    engine = await make_engine(echo)
    text = "x" * (2_097_152 - len('{"value":""}'))
    run = await engine.start(echo, text)
    with pytest.raises(PayloadTooLarge, match="2,097,153"):
        await engine.start(echo, text + "x")
    assert await run.result() == text


async def test_a_cyclic_value_is_refused(make_engine):
    """GUARANTEES 6.7 A list inside itself has no end; the process lives."""
    engine = await make_engine(echo)
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(NotSerializable):
        await engine.start(echo, cycle)
    assert await engine.execute(echo, 1) == 1


# Ids and names.


BAD_IDS = ["", "x" * 256, "a/b", "a\0b", "a\nb", "..", ".", "a b", "a\u202eb", "\u00e9", "a\\b", "a?b", "a#b", "%00", 7]


async def test_a_run_id_outside_the_alphabet_is_refused(make_engine):
    """GUARANTEES 6.11 InvalidId lists the allowed set, from every verb that takes an id."""
    engine = await make_engine(echo)
    for run_id in BAD_IDS:
        for call in (
            lambda run_id: engine.start(echo, 1, id=run_id),
            lambda run_id: engine.get(run_id).send("word"),
            lambda run_id: engine.get(run_id).cancel(),
            lambda run_id: engine.get(run_id).recover(),
        ):
            with pytest.raises(InvalidId, match="A-Z a-z 0-9"):
                await call(run_id)
        with pytest.raises(InvalidId):
            engine.get(run_id)
        assert not engine.offers("lists") or await engine.runs() == [], run_id


@pytest.mark.parametrize("run_id", ["x" * 255, "a", "a.b", "...a", "A:b@c=d+e~f-g_1", "0"])
async def test_a_run_id_inside_the_alphabet_is_accepted(make_engine, run_id):
    """GUARANTEES 6.11 One under the limit, and every allowed character."""
    engine = await make_engine(echo)
    assert await engine.execute(echo, 1, id=run_id) == 1


@pytest.mark.parametrize("name", ["", "a/b", "a#b", "x" * 201, "a\nb", None, 3])
async def test_a_name_that_would_confuse_locations_is_refused(make_engine, name):
    """GUARANTEES 6.11 S1-10 Names of messages, from outside and inside."""

    @workflow
    async def ask(ctx: Context) -> list[str]:
        refused = []
        for call in (lambda: ctx.receive(name), lambda: ctx.send("x", name), lambda: ctx.receive(["ok", name])):
            try:
                await call()
            except (BadInput, TypeError) as error:
                refused.append(type(error).__name__)
        return refused

    engine = await make_engine(ask)
    run = await engine.start(ask)
    assert await run.result() == ["BadInput"] * 3
    with pytest.raises(BadInput):
        await engine.get("x").send(name)


async def test_an_explicit_name_used_twice_is_refused(make_engine):
    """B11 The error names the name and the line; derived names are numbered instead."""

    @workflow
    async def twice(ctx: Context) -> None:
        await ctx.sleep(HOUR, name="nap")
        await ctx.sleep(HOUR, name="nap")

    engine = await make_engine(twice)
    with pytest.raises(RunFailed, match=r"'nap' is used twice.*test_bad_input\.py:\d+") as caught:
        await engine.execute(twice)
    assert isinstance(caught.value.__cause__, DuplicateName)


async def test_receiving_no_name_at_all_is_refused(make_engine):
    """GUARANTEES 6.14 An empty list would wait for ever."""

    @workflow
    async def ask(ctx: Context) -> None:
        await ctx.receive([])

    engine = await make_engine(ask)
    with pytest.raises(RunFailed, match="at least one name"):
        await engine.execute(ask)


# Definitions.


def test_a_workflow_must_be_async():
    """GUARANTEES 6.13 Told when it is declared, with file and line."""
    with pytest.raises(DefinitionError, match=r"'plain' \(.*test_bad_input\.py:\d+\) must be `async def`"):

        @workflow
        def plain(ctx: Context) -> None: ...


def test_a_workflow_is_decorated_once():
    """GUARANTEES 6.13 Twice the same decorator, or both kinds: told with file and line."""
    with pytest.raises(DefinitionError, match=r"already decorated \(.*test_bad_input\.py:\d+\)"):

        @workflow
        @workflow
        async def twice(ctx: Context) -> None: ...

    with pytest.raises(DefinitionError, match="already decorated"):

        @workflow
        @activity
        async def both(ctx: Context) -> None: ...


def test_two_workflows_with_one_name_are_refused_with_both_lines():
    """GUARANTEES 6.13 At registration, with both file:line; the same one twice is fine, another version too."""

    @workflow(name="task")
    async def first(ctx: Context) -> None: ...

    @workflow(name="task")
    async def second(ctx: Context) -> None: ...

    @workflow(name="task", version="2")
    async def third(ctx: Context) -> None: ...

    with pytest.raises(DefinitionError, match="two workflows are named 'task'") as caught:
        TestEngine(workflows=[first, second])
    lines = [inspect.unwrap(one.function).__code__.co_firstlineno for one in (first, second)]
    for line in lines:
        assert f"test_bad_input.py:{line}" in str(caught.value)
    TestEngine(workflows=[first, first, third])


def test_only_workflows_are_registered():
    """GUARANTEES 6.13 A plain function or an activity in workflows=[...] is refused with advice."""

    async def plain(ctx: Context) -> None: ...

    for wrong in (plain, activity(plain), "plain", None):
        with pytest.raises(DefinitionError, match="@workflow"):
            TestEngine(workflows=[wrong])


def test_a_workflow_takes_a_context_and_named_parameters():
    """GUARANTEES 6.13 6.14 No parameter, *args and **kwargs are refused at the declaration."""
    with pytest.raises(DefinitionError, match="Context"):

        @workflow
        async def nothing() -> None: ...

    with pytest.raises(DefinitionError, match="args"):

        @workflow
        async def many(ctx: Context, *args: int) -> None: ...

    with pytest.raises(DefinitionError, match="options"):

        @workflow
        async def keywords(ctx: Context, **options: int) -> None: ...


def test_an_unknown_setting_is_refused():
    """GUARANTEES 6 A misspelt option is told by name."""
    with pytest.raises(BadInput, match="max_residents"):
        Engine(":memory:", max_residents=3)


# Arguments.


@pytest.mark.parametrize(
    ("args", "kwargs", "what"),
    [
        ((), {}, "order"),
        ((Order(1, 2.0),), {}, "currency"),
        ((Order(1, 2.0), "EUR", True), {}, "too many positional"),
        ((Order(1, 2.0), "EUR"), {"expres": True}, "expres"),
        ((Order(1, 2.0), 7), {}, "currency"),
        (({"id": "one", "amount": 2}, "EUR"), {}, r"order\.id"),
        (({"id": 1}, "EUR"), {}, "amount"),
        ((None, "EUR"), {}, "order"),
        ((Order(1, 2.0), "EUR"), {"express": "yes"}, "express"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_and_nothing_is_stored(make_engine, args, kwargs, what):
    """GUARANTEES 6.14 BadInput at start names the parameter; no run exists and the id is free."""
    engine = await make_engine(pay)
    with pytest.raises(BadInput, match=what) as caught:
        await engine.start(pay, *args, id="p", **kwargs)
    assert "pay" in str(caught.value)
    assert not engine.offers("lists") or await engine.runs() == []
    assert await engine.execute(pay, Order(1, 2.0), "EUR", id="p") == "1 EUR False"


async def test_a_mapping_that_fits_is_as_good_as_the_dataclass(make_engine):
    """GUARANTEES 6.14 Input is decoded by the annotations, so both are the same input."""
    engine = await make_engine(pay)
    first = await engine.start(pay, {"id": 1, "amount": 2.0}, "EUR", id="p")
    second = await engine.start(pay, Order(1, 2.0), currency="EUR", id="p")
    assert await first.result() == await second.result() == "1 EUR False"


# Code that must not be in a workflow.


def test_a_workflow_that_reads_the_clock_is_refused_when_it_is_registered():
    """GUARANTEES 6.15 With the line and what to use instead."""

    @workflow
    async def clocked(ctx: Context) -> float:
        return time.time()

    line = clocked.function.__code__.co_firstlineno + 2
    with pytest.raises(NonDeterministic, match=rf"time\.time.*test_bad_input\.py:{line}.*ctx\.now\(\)"):
        TestEngine(workflows=[clocked])


def test_a_workflow_that_throws_dice_is_refused_when_it_is_registered():
    """GUARANTEES 6.15 random, datetime.now and time.sleep too."""

    @workflow
    async def dice(ctx: Context) -> float:
        return random.random()

    @workflow
    async def clocked(ctx: Context) -> str:
        return datetime.now(UTC).isoformat()

    @workflow
    async def naps(ctx: Context) -> None:
        time.sleep(1)

    with pytest.raises(NonDeterministic, match=r"ctx\.random"):
        TestEngine(workflows=[dice])
    with pytest.raises(NonDeterministic, match=r"ctx\.now"):
        TestEngine(workflows=[clocked])
    with pytest.raises(NonDeterministic, match=r"ctx\.sleep"):
        TestEngine(workflows=[naps])


async def test_io_in_workflow_code_is_refused_and_told_with_the_line(make_engine, tmp_path):
    """GUARANTEES 6.15 A file and asyncio I/O, also behind `except`: the run does not go on, its neighbours do."""
    path = tmp_path / "file.txt"

    @workflow(check=False)
    async def files(ctx: Context) -> str:
        return path.write_text("x")

    @workflow(check=False)
    async def connects(ctx: Context) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    @workflow(check=False)
    async def hides(ctx: Context) -> str:
        try:
            await asyncio.open_connection("127.0.0.1", 9)
        except Exception:
            return "nothing happened"
        return "connected"

    engine = await make_engine(files, connects, hides, echo)
    for which in (files, connects, hides):
        run = await engine.start(which)
        with pytest.raises(Exception, match=r"test_bad_input\.py:\d+"):
            await run.result()
        assert await run.status() in (Status.BLOCKED, Status.FAILED)
    assert not path.exists()
    assert await engine.execute(echo, 1) == 1


# Durations and counts.

NUMBER: Any = 30


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: activity(timeout=timedelta(seconds=-1))(same), "timeout"),
        (lambda: activity(timeout=NUMBER)(same), "timeout"),
        (lambda: activity(heartbeat_timeout=timedelta(seconds=-1))(same), "heartbeat_timeout"),
        (lambda: activity(timeout=timedelta.max)(same), "timeout"),
        (lambda: Retry(initial_interval=timedelta(seconds=-1)), "initial_interval"),
        (lambda: Retry(max_interval=NUMBER), "max_interval"),
    ],
)
def test_a_duration_that_makes_no_sense_is_refused_where_it_is_given(make, what):
    """GUARANTEES 6.16 InvalidDuration with the field, when the activity or policy is declared."""
    with pytest.raises(InvalidDuration, match=what):
        make()


@pytest.mark.parametrize("attempts", [-1, 0, 1.5, "3"])
def test_a_number_of_attempts_that_makes_no_sense_is_refused(attempts):
    """GUARANTEES 6.16 A retry count of -1 is told with its field."""
    with pytest.raises(BadInput, match="max_attempts"):
        Retry(max_attempts=attempts)


@pytest.mark.parametrize(
    "settings",
    [{"stop_grace": timedelta(seconds=-1)}, {"lease": 30}, {"cancel_grace": timedelta.max}, {"lease": timedelta(0)}],
    ids=str,
)
def test_a_setting_of_the_engine_that_makes_no_sense_is_refused(settings):
    """GUARANTEES 6.16 Told when the engine is made, with the field, and not by a worker that dies later."""
    with pytest.raises(BadInput, match=next(iter(settings))):
        Engine(":memory:", **settings)


async def test_a_step_that_raises_what_cannot_be_raised_into_a_coroutine_harms_nobody(make_engine):
    """GUARANTEES 4.15 StopIteration, GeneratorExit, KeyboardInterrupt from a sync body: a failed step, worker alive."""

    @activity(retry=Retry(max_attempts=1))
    def odd(how: str) -> None:
        raise {"stop": StopIteration, "generator": GeneratorExit, "astop": StopAsyncIteration}[how]("odd")

    @workflow
    async def work(ctx: Context, how: str) -> None:
        await ctx.step(odd, how)

    engine = await make_engine(work, echo)
    for how in ("stop", "generator", "astop"):
        run = await engine.start(work, how)
        with pytest.raises(RunFailed):
            await run.result(timedelta(seconds=LONG))
    assert await engine.execute(echo, 1) == 1


@pytest.mark.parametrize("mode", ["memory", "file"])
async def test_the_context_of_a_run_is_of_no_use_outside_it(make_engine):
    """GUARANTEES 6.15 Kept by somebody and called from a task of the application: refused, the run unharmed."""
    kept: list[Context] = []

    @workflow
    async def leak(ctx: Context) -> str:
        kept.append(ctx)
        await ctx.sleep(HOUR)
        return "fine"

    engine = await make_engine(leak)
    run = await engine.start(leak)
    await engine.settle()
    with pytest.raises(NonDeterministic, match="only in workflow code"):
        kept[0].step(same, 1)
    assert await run.result() == "fine"
