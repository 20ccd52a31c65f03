"""Completions of the filter language at the cursor, with names and values from the database."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.looking.query import EXAMPLES, IS

_MOST = 20
_IDS = 5
"""How many ids of runs are offered beside words."""
_LONGEST = 8_192
_TIMES = ("-1h", "-24h", "-7d", "-30d", "..-7d")
_WAITS = ("message", "child", "retry", "step", "timer", "limit", "key")
_VALUE = re.compile(r"(-?)([A-Za-z_]+):(.*)", re.DOTALL)
_BARE = re.compile(r'[^\s",]+')


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """What may be written; `kind` says what it is: word, status, workflow, attribute, value, run, time or wait."""

    text: str
    kind: str


class Suggestions(msgspec.Struct, frozen=True, kw_only=True):
    """What may be written instead of the part of a filter from `start` up to `end`."""

    start: int
    end: int
    items: list[Suggestion]


Values = Callable[[str, str], Awaitable[list[str]]]
"""Returns the values of an attribute that begin so, as the filter language writes them."""


async def suggest(store: Store, values: Values, text: str, at: int | None) -> Suggestions:
    """Return what may stand where a filter is written.

    Raises:
        BadInput: the place is not in the text, or the text is very long.
    """
    end = len(text) if at is None else at
    if not 0 <= end <= len(text) <= _LONGEST:
        raise BadInput(f"at must be between 0 and {len(text)}, the length of a filter of at most {_LONGEST:,} letters")
    start = _begin(text, end)
    begun = text[start:end]
    word = _VALUE.fullmatch(begun)
    if word is not None and word[2] in EXAMPLES:
        before, last = _parted(word[3]) if word[2] in ("status", "workflow") else ("", word[3])
        kind, found = await _of_word(store, word[2], last.lstrip('"'))
        items = [Suggestion(text=f"{word[1]}{word[2]}:{before}{each}", kind=kind) for each in found]
    elif "=" in begun:
        name, _, value = begun.partition("=")
        found = await values(name, value)
        items = [Suggestion(text=f"{name}={each}", kind="value") for each in found]
    else:
        items = await _bare(store, begun)
    return Suggestions(start=start, end=end, items=items[:_MOST])


def _begin(text: str, end: int) -> int:
    """Return where the part begins that is written at a place: blanks inside of quotation marks belong to it."""
    start, quoted = 0, False
    for place, letter in enumerate(text[:end]):
        if letter == '"' and (place == 0 or text[place - 1] != "\\"):
            quoted = not quoted
        elif letter.isspace() and not quoted:
            start = place + 1
    return start


def _parted(value: str) -> tuple[str, str]:
    before, comma, last = value.rpartition(",")
    return f"{before}{comma}", last


async def _of_word(store: Store, word: str, begun: str) -> tuple[str, list[str]]:
    """Return what may follow a word, and what it is."""
    if word == "status":
        return "status", _beginning(list(Status), begun)
    if word == "is":
        return "word", _beginning(IS, begun)
    if word in ("created", "ended", "quiet"):
        return "time", _beginning(_TIMES, begun)
    if word == "waiting":
        return "wait", _beginning(_WAITS, begun)
    if word == "workflow":
        return "workflow", [_quoted(name) for name in await store.workflow_names(begun, _MOST)]
    if word in ("id", "parent"):
        return "run", await _ids(store, begun.rstrip("*"), _MOST)
    return "word", []


async def _bare(store: Store, begun: str) -> list[Suggestion]:
    """Return what a word may become that stands alone: a filter, an attribute, a workflow, the id of a run."""
    minus, name = ("-", begun[1:]) if begun.startswith("-") else ("", begun)
    words = [f"{each}:" for each in EXAMPLES if not minus or each in ("status", "workflow")]
    whole = [] if minus else [f"is:{each}" for each in IS]
    found = [Suggestion(text=f"{minus}{each}", kind="word") for each in _beginning([*words, *whole], name)]
    if minus:
        return found
    names = await store.attribute_names(name, _MOST)
    found += [Suggestion(text=f"{each}=", kind="attribute") for each in names if _BARE.fullmatch(each)]
    if name:
        workflows = await store.workflow_names(name, _MOST)
        found += [Suggestion(text=f"workflow:{_quoted(each)}", kind="workflow") for each in workflows]
        found += [Suggestion(text=each, kind="run") for each in await _ids(store, name, _IDS)]
    return found


async def _ids(store: Store, begun: str, most: int) -> list[str]:
    page = await store.heads(HeadFilter(id_prefix=begun or None, limit=most))
    return [head.id for head in page.heads]


def _beginning(names: Sequence[str], begun: str) -> list[str]:
    return [str(name) for name in names if str(name).startswith(begun)]


def _quoted(name: str) -> str:
    return name if _BARE.fullmatch(name) else msgspec.json.encode(name).decode()
