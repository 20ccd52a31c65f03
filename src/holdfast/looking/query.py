"""The filter language: one line of words that chooses runs, for the command line and every other face.

    status:failed,blocked workflow:fulfil customer=c-2210 created:-24h -status:completed is:open id:order-88*

Words are joined by AND, commas inside one by OR. `name=value` is an attribute. A word alone is the id of a run, the
beginning of ids, or a workflow.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from typing import Any

import msgspec

from holdfast.clock import Instant, from_datetime
from holdfast.contract.heads import HeadFilter, RunHead
from holdfast.contract.rows import TERMINAL, Status
from holdfast.errors import BadFilter
from holdfast.texts import check_text, shown

_TOKEN = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*")+')
_WORD = re.compile(r"(-?)([A-Za-z_]+):(.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"([^:=\s\"]+)=(.*)", re.DOTALL)
_AGO = re.compile(r"-(\d+)(s|min|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
OPEN = tuple(status for status in Status if status not in TERMINAL)
IS = ("open", "ended", "attention", "overdue")
_SYNONYMS = {
    "waiting": "suspended",
    "sleeping": "suspended",
    "done": "completed",
    "error": "failed",
    "queued": "pending",
}
OVERDUE = timedelta(minutes=1)
"""For how long a run may be due before it is overdue."""


class BadCursor(BadFilter):
    """A cursor that belongs to another filter, or to none."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A filter that was read."""

    which: HeadFilter = HeadFilter()
    word: str | None = None
    """A word alone: an id, the beginning of ids, or a workflow."""
    attention: bool = False
    """Whether only runs are meant that a person should look at."""

    @property
    def all(self) -> bool:
        """Whether it chooses every run."""
        return self == Query()


def parse(text: str, now: Instant, zone: tzinfo | None = UTC) -> Query:
    """Read a filter.

    Raises:
        BadFilter: naming the word that is not understood, and the nearest one that is.
    """
    reading = _Reading(now, zone)
    bare = _TOKEN.sub("", text).strip()
    if bare:
        raise BadFilter(f"a quotation mark is not closed: {shown(text)}")
    for token in _TOKEN.findall(text):
        word = _WORD.fullmatch(token)
        attribute = _ATTRIBUTE.fullmatch(token)
        if word is not None:
            reading.word(token, word[2], word[3], negated=bool(word[1]))
        elif attribute is not None:
            reading.attribute(attribute[1], attribute[2])
        else:
            reading.bare(token)
    return reading.result()


class _Reading:
    """What was read so far."""

    def __init__(self, now: Instant, zone: tzinfo | None) -> None:
        self._now = now
        self._zone = zone
        self._fields: dict[str, Any] = {}
        self._statuses: set[Status] | None = None
        self._attributes: dict[str, str] = {}
        self._word: str | None = None
        self._attention = False

    def result(self) -> Query:
        fields = dict(self._fields)
        if self._statuses is not None:
            if not self._statuses:
                raise BadFilter("no run has a status that meets all of this filter")
            fields["statuses"] = tuple(status for status in Status if status in self._statuses)
        return Query(
            which=HeadFilter(**fields, attributes=self._attributes), word=self._word, attention=self._attention
        )

    def bare(self, token: str) -> None:
        if self._word is not None:
            raise BadFilter(
                f"two words stand alone, {shown(self._word)} and {shown(token)}: only one can be an id; "
                'quote what belongs together, as in waiting:"message approved"'
            )
        self._word = _unquoted(token)

    def attribute(self, name: str, value: str) -> None:
        check_text(name, "the name of an attribute")
        self._attributes[name] = _json(value)

    def word(self, token: str, name: str, value: str, *, negated: bool) -> None:
        read = _WORDS.get(name)
        if read is None:
            raise BadFilter(f"{shown(token)}: there is no filter {name!r}{_nearest(name, _WORDS)}")
        if negated and name not in ("status", "workflow"):
            raise BadFilter(f"{shown(token)}: only status and workflow can be excluded, as in -status:completed")
        if not value:
            raise BadFilter(f"{shown(token)}: {name}: needs a value, as in {EXAMPLES[name]}")
        read(self, name, value, negated)

    def status(self, name: str, value: str, negated: bool) -> None:
        given = set()
        for each in value.split(","):
            if each not in list(Status):
                near = [_SYNONYMS[each]] if each in _SYNONYMS else _near(each, list(Status))
                hint = f"; did you mean {near[0]}?" if near else ""
                raise BadFilter(f"status {shown(each)} is none of {', '.join(Status)}{hint}")
            given.add(Status(each))
        self._narrow(set(Status) - given if negated else given)

    def _narrow(self, statuses: set[Status]) -> None:
        self._statuses = statuses if self._statuses is None else self._statuses & statuses

    def workflow(self, name: str, value: str, negated: bool) -> None:
        field = "not_workflows" if negated else "workflows"
        self._once(name, field, tuple(_unquoted(each) for each in value.split(",")))

    def text(self, name: str, value: str, negated: bool) -> None:
        self._once(name, {"key": "unique_key"}.get(name, name), _unquoted(value))

    def id(self, name: str, value: str, negated: bool) -> None:
        if not value.endswith("*"):
            self._word = _unquoted(value)
            return
        begins = _unquoted(value[:-1])
        if not begins:
            raise BadFilter(f"id:{value} is every run: write how its id begins, as in {EXAMPLES[name]}")
        self._once(name, "id_prefix", begins)

    def what(self, name: str, value: str, negated: bool) -> None:
        if value not in IS:
            raise BadFilter(f"is:{value} is not known{_nearest(value, IS)}; there are {', '.join(IS)}")
        if value == "attention":
            self._attention = True
        elif value == "overdue":
            self._fields["due_until"] = self._now - int(OVERDUE.total_seconds() * 1e6)
        else:
            self._narrow(set(OPEN) if value == "open" else set(TERMINAL))

    def moment(self, name: str, value: str, negated: bool) -> None:
        begin, dots, end = value.partition("..")
        if not begin and not end:
            raise BadFilter(f"{name}:{value} names no time, as in {EXAMPLES[name]}")
        if name == "quiet" and dots:
            raise BadFilter(f"quiet:{value}: nothing happened since one time, as in {EXAMPLES[name]}")
        first: Instant | None = None
        last: Instant | None = None
        if begin:
            first, after = self._span(name, begin)
            last = None if dots or begin.startswith("-") else after
        if end:
            before, after = self._span(name, end)
            last = before if end.startswith("-") else after
        if name == "quiet":
            self._once(name, "quiet_since", first)
            return
        if first is not None and last is not None and last <= first:
            raise BadFilter(f"{name}:{value} ends before it begins")
        self._once(name, f"{name}_from", first)
        self._once(name, f"{name}_until", last)

    def _span(self, name: str, said: str) -> tuple[Instant, Instant]:
        """Return the first instant that is meant, and the one after the last: a date is a day."""
        try:
            back = time_back(said)
        except OverflowError:
            raise BadFilter(f"{name}:{said} is too far in the past") from None
        if back is not None:
            return self._now - int(back.total_seconds() * 1e6), self._now
        try:
            moment = datetime.fromisoformat(said)
        except ValueError:
            raise BadFilter(
                f"{name}:{said} is no time; write -24h (or s, min, h, d, w), 2026-11-01, 2026-11-01T09:30, "
                "or two of them with .. between"
            ) from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=self._zone) if self._zone is not None else moment.astimezone()
        length = timedelta(days=1) if len(said) <= len("2026-11-01") else timedelta(seconds=1)
        return from_datetime(moment), from_datetime(moment + length)

    def _once(self, name: str, field: str, value: object) -> None:
        if value is None:
            return
        if self._fields.get(field, value) != value:
            raise BadFilter(f"{name}: is given twice; write one, or a,b for either")
        self._fields[field] = value


_WORDS: dict[str, Callable[[_Reading, str, str, bool], None]] = {
    "status": _Reading.status,
    "workflow": _Reading.workflow,
    "id": _Reading.id,
    "is": _Reading.what,
    "created": _Reading.moment,
    "ended": _Reading.moment,
    "quiet": _Reading.moment,
    "waiting": _Reading.text,
    "tenant": _Reading.text,
    "actor": _Reading.text,
    "parent": _Reading.text,
    "version": _Reading.text,
    "key": _Reading.text,
}
EXAMPLES = {
    "status": "status:failed,blocked", "workflow": "workflow:fulfil", "id": "id:order-88*", "is": "is:open",
    "created": "created:-24h", "ended": "ended:..-7d", "quiet": "quiet:-2d", "waiting": 'waiting:"message approved"',
    "tenant": "tenant:acme", "actor": "actor:kim", "parent": "parent:order-7", "version": "version:2",
    "key": "key:o-88405",
}  # fmt: skip
"""How each word of the language is written."""


def time_back(said: str) -> timedelta | None:
    """Return how long ago `-24h` is, None of a moment that is written otherwise.

    Raises:
        OverflowError: nothing is that long ago.
    """
    ago = _AGO.fullmatch(said)
    return timedelta(**{_UNITS[ago[2]]: int(ago[1])}) if ago is not None else None


def _near(word: str, known: Any) -> list[str]:
    return get_close_matches(word.lower(), [str(each) for each in known], n=1, cutoff=0.5)


def _nearest(word: str, known: Any) -> str:
    found = _near(word, known)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(map(str, known))}"


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return str(_decoded(text))
    return text


def _json(value: str) -> str:
    """Return the JSON of an attribute's value: a number, true, false, null or a quoted text as it is, else a text."""
    try:
        given = msgspec.json.decode(value)
    except msgspec.DecodeError:
        given = value
    if isinstance(given, dict | list):
        given = value
    return msgspec.json.encode(given).decode()


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text[1:-1]


def meets(head: RunHead, which: HeadFilter) -> bool:
    """Whether a run that was found otherwise meets the conditions of a filter, as the store judges them."""
    same = (("parent", which.parent), ("actor", which.actor), ("tenant", which.tenant), ("version", which.version))
    between = (
        (head.created, which.created_from, which.created_until),
        (head.ended, which.ended_from, which.ended_until),
        (head.updated, None, which.quiet_since),
    )
    has = msgspec.json.decode(head.attributes) if which.attributes else {}
    wanted = {name: msgspec.json.decode(value) for name, value in which.attributes.items()}
    return (
        (not which.statuses or head.status in which.statuses)
        and (not which.workflows or head.workflow in which.workflows)
        and head.workflow not in which.not_workflows
        and head.id.startswith(which.id_prefix or "")
        and all(value is None or getattr(head, name) == value for name, value in same)
        and (which.unique_key is None or head.unique_key == which.unique_key)
        and all(name in has and (type(has[name]), has[name]) == (type(value), value) for name, value in wanted.items())
        and all(_inside(at, start, end) for at, start, end in between)
        and (which.due_until is None or (head.ended is None and head.due is not None and head.due <= which.due_until))
        and (which.waiting is None or head.wait.startswith(which.waiting))
    )


def _inside(at: Instant | None, start: Instant | None, end: Instant | None) -> bool:
    if start is None and end is None:
        return True
    return at is not None and (start is None or at >= start) and (end is None or at < end)


# Cursors: the key to go on below, and which filter it belongs to.


def _digest(which: str) -> str:
    return f"{zlib.crc32(which.encode()):08x}"


def cursor_at(key: int, which: str) -> str:
    """Return a cursor: the key to go on below, for this filter alone."""
    return base64.urlsafe_b64encode(msgspec.json.encode([1, key, _digest(which)])).decode().rstrip("=")


def read_cursor(cursor: str, which: str) -> int:
    """Return the key to go on below.

    Raises:
        BadCursor: the cursor belongs to another filter, or to none.
    """
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        version, key, digest = msgspec.json.decode(text, type=tuple[int, int, str])
    except ValueError:
        raise BadCursor("the cursor is not one that holdfast gave; begin without it") from None
    if version != 1 or digest != _digest(which) or abs(key) >= 2**63:
        raise BadCursor("the cursor belongs to another filter; begin without it, or repeat the filter it came with")
    return key
