"""Completions of the filter language, and the names that they are made of."""

from __future__ import annotations

from holdfast.contract.rows import Status
from holdfast.web.resources.house import ListView
from holdfast.web.routing import ApiAnswer, ApiCall, Nothing

_MOST = 20
_WORDS = ("status:", "workflow:", "id:", "is:", "created:", "ended:", "waiting:", "version:", "parent:", "tenant:",
          "actor:", "key:")  # fmt: skip
_KNOWN = {
    "status": tuple(str(status) for status in Status),
    "is": ("open", "ended", "attention", "overdue"),
    "created": ("-1h", "-24h", "-7d", "-30d"),
    "ended": ("-1h", "-24h", "-7d", "-30d"),
    "waiting": ("message", "retry", "child", "timer", "key", "limit"),
}


class PrefixQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How names begin."""

    prefix: str = ""


class ValuesQuery(PrefixQuery, frozen=True, kw_only=True):
    """Which values of an attribute."""

    name: str


class SuggestQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A filter, and where in it a person writes."""

    q: str = ""
    at: int | None = None
    """How many characters stand before the cursor; at its end if it is not said."""


async def suggest(call: ApiCall) -> ApiAnswer:
    before = call.query.q[: call.query.at] if call.query.at is not None else call.query.q
    word = before.split(" ")[-1]
    return ApiAnswer(ListView[str]((await _completions(call, word))[:_MOST]))


async def _completions(call: ApiCall, word: str) -> list[str]:
    """Return the words of a filter that begin as one does."""
    desk, bare = call.desk, word.removeprefix("-")
    minus = word[: len(word) - len(bare)]
    name, colon, value = bare.partition(":")
    if colon and "=" not in name:
        before, comma, last = value.rpartition(",")
        found = await desk.workflows(last) if name == "workflow" else _KNOWN.get(name, ())
        return [f"{minus}{name}:{before}{comma}{each}" for each in found if each.startswith(last)]
    name, equals, value = bare.partition("=")
    if equals:
        return [f"{minus}{name}={each}" for each in await _values(call, name, value)]
    words = [f"{minus}{each}" for each in _WORDS if each.startswith(bare)]
    return [*words, *(f"{each}=" for each in await desk.attributes(bare) if not minus)]


async def workflows(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[str](await call.desk.workflows(call.query.prefix)))


async def attributes(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[str](await call.desk.attributes(call.query.prefix)))


async def values(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[str](await _values(call, call.query.name, call.query.prefix)))


async def _values(call: ApiCall, name: str, prefix: str) -> list[str]:
    return [] if call.redaction.hides(name) else await call.desk.attribute_values(name, prefix)
