"""Text that people give: every method that takes one refuses, at the call and by name, what cannot be stored."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from holdfast import Context, Engine, Event, RunHandle, workflow
from holdfast.contract.rows import RunFilter
from holdfast.engine.client.looking import Looking
from holdfast.engine.client.start import StartOptions
from holdfast.errors import BadInput
from holdfast.limits import Limit
from holdfast.ops.audit import AuditTrail
from holdfast.ops.dead_letters import DeadLetters, LetterQuery
from holdfast.schedules.service import Schedules
from holdfast.testing import TestEngine
from holdfast.texts import check_remark, check_text, printable, printable_lines

on_both_stores = pytest.mark.parametrize("mode", ["memory", "postgres"])

BAD = {
    "NUL": ("a\0b", "U+0000 at position 1"),
    "half a pair of surrogates": ("ab\ud800", "U+D800 at position 2"),
    "too long": ("x" * 5000, "5,000"),
}
THEN = datetime(2026, 1, 1, tzinfo=UTC)


@workflow
async def hear(ctx: Context) -> str:
    """Wait for a word."""
    return await ctx.receive("word", str)


SAMPLES: dict[str, Any] = {
    "workflow": hear,
    "inputs": [()],
    "arguments": {},
    "options": {},
    "timetable": {"cron": "@daily"},
    "run_id": "there",
    "name": "question",
    "action": "pause",
    "letter_id": "letter",
    "by": "kim",
    "reason": "asked for",
    "older_than": timedelta(days=1),
    "id": "daily",
    "cron": "@daily",
    "start": THEN,
    "end": THEN,
    "attributes": {"a": 1},
    "callback": print,
    "coro": None,
}
"""What is given for parameters that have to be given something."""

CHOICES = {"workflow", "action", "capability", "types", "on_conflict", "kind", "status", "catch_up", "overlap"}
"""Parameters of which only a few values mean anything: the error names those, or what is known instead."""

TEXTS_OF_FILTERS = [name for name, kind in RunFilter.__annotations__.items() if "str | None" in str(kind)]
OPTIONS = [name for name, kind in StartOptions.__annotations__.items() if "str | None" in str(kind)]
EXPANDED = {
    "Engine.start_many": OPTIONS,
    "Engine.execute": OPTIONS,
    "Engine.runs": TEXTS_OF_FILTERS,
    "Engine.bulk": TEXTS_OF_FILTERS,
    "DeadLetters.list": [name for name, kind in LetterQuery.__annotations__.items() if "bool" not in str(kind)],
    "DeadLetters.replay_all": [name for name, kind in LetterQuery.__annotations__.items() if "bool" not in str(kind)],
}
"""What stands behind `**`."""
OF_THE_WORKFLOW = {"Engine.start", "Schedules.put", "RunHandle.query"}
"""Methods whose `**` are arguments of a workflow, or of its code."""


class Case(NamedTuple):
    """A parameter that takes text."""

    method: str
    parameter: str

    def __str__(self) -> str:
        return f"{self.method}({self.parameter})"


def parameters() -> Iterator[Case]:
    """Yield every parameter of a public method that takes text."""
    for cls in (Engine, RunHandle, DeadLetters, AuditTrail, Schedules):
        members = {**vars(Looking), **vars(Engine)} if cls is Engine else vars(cls)
        for name, member in members.items():
            if name.startswith("_") or name == "backup" or not inspect.isfunction(member):  # which takes a path
                continue
            method = f"{cls.__name__}.{name}"
            for each in inspect.signature(member).parameters.values():
                if each.kind is each.VAR_KEYWORD:
                    assert method in EXPANDED or method in OF_THE_WORKFLOW, f"say what ** of {method} takes"
                    yield from (Case(method, option) for option in EXPANDED.get(method, ()))
                elif "str" in str(each.annotation) and not _is_other(each):
                    yield Case(method, each.name)


def _is_other(parameter: inspect.Parameter) -> bool:
    """Whether it takes a callback, several names, arguments of a workflow, options, or what is put on record."""
    other = parameter.name in ("on_purged", "steps", "arguments", "options", "timetable", "detail")
    return other or parameter.kind is parameter.VAR_POSITIONAL


CASES = list(parameters())


def bound(engine: Engine, method: str) -> Callable[..., Any]:
    cls, _, name = method.partition(".")
    owners = {
        "Engine": engine,
        "RunHandle": engine.get("there"),
        "DeadLetters": engine.dead_letters,
        "AuditTrail": engine.audit,
        "Schedules": engine.schedules,
    }
    made: Callable[..., Any] = getattr(owners[cls], name)
    return made


def arguments(method: Callable[..., Any], parameter: str, bad: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return what to call a method with: `bad` for one parameter, and what it must have for the others."""
    plain: list[Any] = []
    named: dict[str, Any] = {}
    given = inspect.signature(method).parameters
    instead_of_cron = {"every", *(name for name in ("id",) if name in given and given[name].default is None)}
    for each in given.values():
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            continue
        needed = each.default is each.empty or (each.name == "cron" and parameter not in instead_of_cron)
        if each.name != parameter and not needed:
            continue
        value = bad if each.name == parameter else SAMPLES[each.name]
        if each.kind is each.POSITIONAL_ONLY:
            plain.append(value)
        else:
            named[each.name] = value
    if parameter not in given:
        named[parameter] = bad
    return plain, named


async def refused(method: Callable[..., Any], parameter: str, bad: Any) -> str:
    """Call a method with a bad text; return what the error says."""
    plain, named = arguments(method, parameter, bad)
    if method.__name__ == "bulk":
        named.setdefault("workflow", "hear")
    if method.__name__ == "start_many" and parameter == "id":
        named["id"] = lambda *given: bad
    with pytest.raises(BadInput) as raised:
        made = method(*plain, **named)
        if inspect.isasyncgen(made):
            async for _ in made:
                pass
        elif inspect.isawaitable(made):
            await made
    return str(raised.value)


@pytest.mark.parametrize("why", BAD)
@on_both_stores
async def test_text_that_cannot_be_stored_is_refused_wherever_it_is_given(make_engine, why):
    """One error, at the call; nothing of it is stored or asked for, and the audit trail stays whole."""
    engine = await make_engine(hear)
    await engine.start(hear, id="there")
    bad, said = BAD[why]
    wrong = {}
    for case in CASES:
        value: Any = [bad] if case.parameter == "types" else {bad: 1} if case.parameter == "attributes" else bad
        error = await refused(bound(engine, case.method), case.parameter, value)
        error.encode()  # an error can be printed
        if said not in error and case.parameter not in CHOICES:
            wrong[str(case)] = error
    assert wrong == {}
    assert len(CASES) > 60
    assert [run.id for run in await engine.runs()] == ["there"]
    assert (await engine.audit.verify()).checked == 0


@pytest.mark.parametrize("field", ["actor", "database", "queues", "dialect", "durability"])
@pytest.mark.parametrize("why", BAD)
def test_an_engine_refuses_such_text_too(field, why):
    bad, said = BAD[why]
    with pytest.raises(BadInput) as raised:
        TestEngine(**{field: [bad] if field == "queues" else bad})
    assert said in str(raised.value) or field in ("dialect", "durability")


@pytest.mark.parametrize("why", BAD)
def test_so_do_the_things_an_engine_is_given(why):
    bad, said = BAD[why]
    for make in (lambda: Event(name=bad), lambda: Limit(name=bad, at_once=1)):
        with pytest.raises(BadInput) as raised:
            make()
        assert said in str(raised.value)


@on_both_stores
async def test_what_an_operator_said_is_kept_as_it_was_and_the_trail_stays_whole(make_engine):
    """Every character that is accepted is stored as it is: the hash is that of what is read back."""
    engine = await make_engine(hear)
    run = await engine.start(hear, id="there")
    by, reason = (
        "J\u00fcrgen \U0001f469\u200d\U0001f4bb \u202e\x1b[2J\x85",
        "two\nlines\r\n\x7f\x1b]0;title\x07\tand more",
    )
    await run.pause(by=by, reason=reason)
    (record,) = await engine.audit.records()
    assert (record.actor, record.detail) == (by, {"reason": reason})
    assert (await engine.audit.verify()).ok


@on_both_stores
async def test_an_attribute_with_any_character_is_found_again(make_engine):
    """A value is JSON, in which NUL can be written; a name is a name."""
    engine = await make_engine(hear)
    await engine.start(hear, id="there", attributes={"odd": "a\0b\x1b\u2028"})
    assert [run.id for run in await engine.runs(attributes={"odd": "a\0b\x1b\u2028"})] == ["there"]
    assert await engine.runs(attributes={"odd": "a"}) == []
    with pytest.raises(BadInput):
        await engine.runs(attributes={"odd": "\ud800"})
    with pytest.raises(BadInput, match="1024"):
        await engine.runs(attributes={"odd": "x" * 5000})


def test_a_text_is_shown_only_at_its_beginning():
    with pytest.raises(BadInput) as raised:
        check_text("x" * 10_000_000, "name")
    assert len(str(raised.value)) < 300


def test_a_remark_may_be_empty_and_have_lines():
    assert check_remark("", "reason") == ""
    assert check_remark("a\nb", "reason") == "a\nb"
    with pytest.raises(BadInput, match="reason must be a text"):
        check_remark(7, "reason")


def test_what_is_shown_can_neither_steer_a_terminal_nor_look_like_another_line():
    assert printable("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert printable_lines("first\nsecond\r\n\x1b[2Jthird") == "first\n    second\\r\n    \\x1b[2Jthird"
