"""What a step may take and return: the bad inputs of GUARANTEES 6, met through the engine."""

from __future__ import annotations

import asyncio
import io
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, Retry, RunFailed, Status, activity, workflow
from holdfast.errors import (
    NaiveDatetime,
    NotSerializable,
    NumberTooLong,
    PayloadTooLarge,
    TooDeep,
    UndecodablePayload,
)
from holdfast.payloads.codec import MAX_BYTES
from holdfast.replay import entry as entries

DAY = timedelta(days=1)


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def cyclic() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "object": (
        lambda: {"items": [0, 1, 2, {"fh": object()}]},
        NotSerializable,
        r"object of type object at \$\.items\[3\]\.fh",
    ),
    "file": (lambda: {"items": [0, 1, 2, {"fh": io.StringIO()}]}, NotSerializable, r"StringIO at \$\.items\[3\]\.fh"),
    "lambda": (lambda: [lambda: 0], NotSerializable, r"object of type function at \$\[0\]"),
    "nan": (lambda: {"score": math.nan}, NotSerializable, r"NaN at \$\.score"),
    "inf": (lambda: {"score": [-math.inf]}, NotSerializable, r"Infinity at \$\.score\[0\]"),
    "surrogate": (lambda: {"name": "\ud800"}, NotSerializable, r"invalid Unicode .* at \$\.name"),
    "naive": (lambda: {"at": datetime(2024, 1, 1)}, NaiveDatetime, r"naive datetime at \$\.at .*add a timezone"),  # noqa: DTZ001
    "int key": (lambda: {"by": {1: "a"}}, NotSerializable, r"dict key of type int at \$\.by"),
    "tuple key": (lambda: {(1, 2): "a"}, NotSerializable, r"dict key of type tuple at \$"),
    "deep": (lambda: nested(100_000), TooDeep, "nested deeper than 64"),
    "cycle": (cyclic, TooDeep, "cut the cycle"),
    "long int": (lambda: {"n": 10**5000}, NumberTooLong, r"integer above 4,300 digits at \$\.n"),
    "large": (lambda: "x" * (MAX_BYTES + 1), PayloadTooLarge, r"2,097,155 > 2,097,152 at the result of step 'fetch'"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_result_that_cannot_come_back_equal_fails_the_step_once(make_engine, case):
    """GUARANTEES 6 cases 1-3, 5-9: a clear error with the path, non-retryable, the body not run again."""
    make, kind, pattern = BAD[case]
    calls: list[int] = []

    @activity(retry=Retry(max_attempts=5))
    def fetch() -> Any:
        calls.append(1)
        return make()

    @workflow
    async def caller(ctx: Context) -> list[str]:
        try:
            await ctx.step(fetch)
        except NotSerializable as error:
            await ctx.sleep(DAY)
            return [type(error).__name__, str(error)]
        return []

    engine = await make_engine(caller)
    run = await engine.start(caller)
    name, said = await run.result()
    assert name == kind.__name__
    assert re.search(pattern, said)
    assert "the result of step 'fetch'" in said
    assert len(calls) == 1
    assert "attempt failed" not in [fact.kind for fact in await run.history()]


@pytest.mark.parametrize("case", BAD)
async def test_an_argument_that_cannot_be_stored_is_refused_where_the_step_is_called(make_engine, case):
    """GUARANTEES 6 cases 1-3, 5-9: nothing of the call is recorded, and the workflow may catch the error and go on."""
    make, kind, _ = BAD[case]
    calls: list[int] = []

    async def take(value: Any) -> str:
        calls.append(1)
        return "taken"

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(take, make())
        except NotSerializable as error:
            return f"{type(error).__name__} {await ctx.step(take, 1)}"
        return "accepted"

    engine = await make_engine(caller)
    assert await engine.execute(caller) == f"{kind.__name__} taken"
    assert len(calls) == 1


@dataclass
class Everything:
    text: str
    number: int
    big: int
    price: Decimal
    when: datetime
    wait: timedelta
    id: UUID
    raw: bytes
    tags: frozenset[str]
    pair: tuple[int, str]
    nothing: None = None


GOOD: dict[str, Any] = {
    "nul": "a\0b\0",
    "unicode": "\U0001f600 \u202e x",
    "empty": "",
    "2^63": 2**63,
    "4,300 digits": 10**4299,
    "float": 0.1 + 0.2,
    "minus zero": -0.0,
    "just below 2 MB": "x" * (MAX_BYTES - 2),
    "depth 64": nested(64),
    "false": False,
    "none": None,
    "keys": {"": 1, "a b": 2, "\0": 3},
}


@pytest.mark.parametrize("case", GOOD)
async def test_what_is_accepted_comes_back_equal(make_engine, case):
    """GUARANTEES 6 cases 4, 7, 8, 9: NUL, 2^63, depth 64 and 2 MB are fine, live and replayed."""
    value = GOOD[case]

    def echo() -> Any:
        return value

    @workflow
    async def caller(ctx: Context) -> bool:
        live = await ctx.step(echo)
        await ctx.sleep(DAY)
        return live == value and repr(live)[:100] == repr(value)[:100]

    engine = await make_engine(caller)
    assert await engine.execute(caller) is True


async def test_a_typed_result_comes_back_equal_with_every_type(make_engine):
    """GUARANTEES 6 case 5: aware datetimes keep their offset; typed records come back as themselves."""
    value = Everything(
        "a\0b",
        1,
        2**63,
        Decimal("1.10"),
        datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        timedelta(days=-1, microseconds=7),
        UUID(int=7),
        b"\x00\xff",
        frozenset({"a", "b"}),
        (1, "x"),
    )

    async def make() -> Everything:
        return value

    async def echo(value: Everything, *, at: datetime) -> Everything:
        assert at == datetime(2024, 1, 1, tzinfo=UTC)
        return value

    @workflow
    async def caller(ctx: Context) -> bool:
        made = await ctx.step(make)
        await ctx.sleep(DAY)
        echoed = await ctx.step(echo, made, at=datetime(2024, 1, 1, tzinfo=UTC))
        return echoed == made == value and made.when.utcoffset() == timedelta(hours=5, minutes=30)

    engine = await make_engine(caller)
    assert await engine.execute(caller) is True


async def test_a_result_that_does_not_fit_its_annotation_fails_the_step_once(make_engine):
    """GUARANTEES 6: refused before it is recorded, so that no replay ever meets it; the body is not run again."""
    calls: list[int] = []

    async def lie() -> Everything:
        calls.append(1)
        return {"text": 5}  # type: ignore[return-value]

    @workflow
    async def caller(ctx: Context) -> str:
        try:
            await ctx.step(lie)
        except UndecodablePayload as error:
            return str(error)
        return "accepted"

    engine = await make_engine(caller)
    run = await engine.start(caller)
    said = await run.result()
    assert "Expected `str`, got `int`" in said
    assert "$.text" in said
    assert calls == [1]
    assert not [fact for fact in await run.history() if isinstance(fact.entry, entries.StepCompleted)]


class Opaque:
    """Nothing that JSON could fill."""


async def test_an_annotation_that_nothing_can_be_decoded_to_fails_the_step_once(make_engine):
    """GUARANTEES 6: a definition that cannot work is not tried again."""
    calls: list[int] = []

    async def lie() -> Opaque:
        calls.append(1)
        return {}  # type: ignore[return-value]

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(lie)

    engine = await make_engine(caller)
    with pytest.raises(RunFailed, match="Opaque cannot be decoded from JSON"):
        await engine.execute(caller)
    assert len(calls) <= 1


async def test_a_body_that_recurses_without_end_fails_like_any_other(make_engine):
    """GUARANTEES 4 row 15 (recursion 10^5): RecursionError is the step's error, its traceback stays small."""

    def recurse(depth: int) -> int:
        return recurse(depth + 1) + 1 if depth < 100_000 else depth

    @workflow
    async def caller(ctx: Context) -> int:
        return await ctx.step(activity(retry=Retry.never)(recurse), 0)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed, match="RecursionError") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, RecursionError)
    (fact,) = [fact for fact in await run.history() if isinstance(fact.entry, entries.StepFailure)]
    assert len(fact.row.data) < 30_000
    assert await run.status() is Status.FAILED


async def test_an_error_with_huge_contents_is_stored_cut_to_size(make_engine):
    """GUARANTEES 5 (limits) Neither message, args, notes nor members can make a history entry too large."""

    @activity(retry=Retry.never)
    def explode() -> None:
        error = ValueError("x" * 300_000, {"y": "z" * 300_000})
        error.add_note("n" * 300_000)
        raise ExceptionGroup("many", [error] * 50)

    @workflow
    async def caller(ctx: Context) -> None:
        await ctx.step(explode)

    engine = await make_engine(caller)
    run = await engine.start(caller)
    with pytest.raises(RunFailed) as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, ExceptionGroup)
    assert sum(len(fact.row.data) for fact in await run.history()) < MAX_BYTES


async def test_a_broken_value_does_not_break_its_neighbours(make_engine):
    """One bad result is one failed step; steps gathered with it are recorded as ever."""

    async def make(number: int) -> Any:
        return object() if number == 3 else number

    @workflow
    async def caller(ctx: Context) -> list[Any]:
        results = await asyncio.gather(*(ctx.step(make, number) for number in range(6)), return_exceptions=True)
        await ctx.sleep(DAY)
        return [result if isinstance(result, int) else type(result).__name__ for result in results]

    engine = await make_engine(caller)
    assert await engine.execute(caller) == [0, 1, 2, "NotSerializable", 4, 5]
