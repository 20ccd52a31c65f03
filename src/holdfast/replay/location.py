"""Locations: where in a workflow a fact belongs.

For people a location is a path of names from the run's root: `charge`, `parallel/x/work`, `outer/~0/inner`, `work#2`.
In a stored key each name is a number (its position in the run's list of names), and every number carries its length, so
that keys sort by bytes as paths do by value: `a0`, `a4/a5/a6`, `a2/~a0/a3`, `a0#a2`. A key's descendants are exactly
the keys that start with it and a slash, which makes "iterations 0 to 9 of this loop" one range.

Compensations lie outside the tree of calls, because they outlive the loop or branch that registered them: `^a0` is the
first of the run's stack, and undoing it is the step `^a0/a7`, for people `undo#0/release`. `$a0` is the end of the run
(`$a1` after it was reopened), and its hook the step `$a0/a8`, for people `end#0/on_complete`. `@` is the run's
deadline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from holdfast.errors import BadInput
from holdfast.texts import refuse_text

MAX_NAME = 200
_KEPT = 100
_FORBIDDEN = ("/", "#", "~", "@", "!")
_STRUCTURE = re.compile(f"[{''.join(_FORBIDDEN)}]")
DEADLINE = "@"


def number(value: int) -> str:
    """Return digits that sort by bytes as the numbers do: a0 ... a9, b10 ... b99, c100 ..."""
    if value < len(_SMALL):
        return _SMALL[value]
    digits = str(value)
    return chr(96 + len(digits)) + digits


_SMALL: tuple[str, ...] = ()
_SMALL = tuple(number(value) for value in range(1000))


def check_name(name: Any, what: str = "name") -> str:
    """Return a name fit for a location.

    Raises:
        BadInput: it is empty, too long, not printable, or contains one of the characters that structure locations.
    """
    fits = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
    if not fits:
        refuse_text(name, what, longest=MAX_NAME)
    if _STRUCTURE.search(name):
        raise BadInput(f"{what} {name!r} must not contain {' '.join(_FORBIDDEN)}")
    return str(name)


def valid_name(text: str) -> str:
    """Return a name for steps, branches, loops and messages that is made of any text: the text itself if it is one.

    What a name must not contain becomes a dash, and a few digits at the end keep different texts different.

    Raises:
        BadInput: it is no text.
    """
    if not isinstance(text, str):
        refuse_text(text, "name", longest=MAX_NAME)
    if 0 < len(text) <= MAX_NAME and text.isprintable() and not _STRUCTURE.search(text):
        return text
    kept = "".join(letter if letter.isprintable() else "-" for letter in _STRUCTURE.sub("-", text[:_KEPT])).strip()
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{kept or 'name'}-{digest}"


_NOT_LISTED: list[str] = []


class Names:
    """The names of one run, numbered in order of first use."""

    __slots__ = ("_known", "codes")

    def __init__(self) -> None:
        self.codes: dict[str, str] = {}
        """The key of each name that was used."""
        self._known: list[str] = _NOT_LISTED
        """The same by number, once a location is to be read."""

    def key(self, name: str) -> str | None:
        """Return the key of a name, None if it has not been used yet."""
        return self.codes.get(name)

    def add(self, name: str) -> str:
        """Give a new name the next number and return its key."""
        key = self.codes[name] = number(len(self.codes))
        return key

    def path(self, location: str) -> str:
        """Return the readable path of a location key."""
        if not location:
            return ""
        if len(self._known) < len(self.codes):
            self._known = [*self.codes]
        return "/".join(_segment(part, self._known) for part in location.split("/"))


def _segment(part: str, known: list[str]) -> str:
    if part.startswith("~"):
        return f"~{part[2:]}"
    if part.startswith("@"):
        return f"timer#{part[2:]}" if part != DEADLINE else "deadline"
    if part.startswith("^"):
        return f"undo#{part[2:]}"
    if part.startswith("$"):
        return f"end#{part[2:]}"
    if not part[:1].isalpha():
        return {"*": "cancel", "!": "state"}.get(part, part)
    name, _, repeat = part.partition("#")
    index = int(name[1:])
    text = known[index] if index < len(known) else f"?{index}"
    return f"{text}#{repeat[1:]}" if repeat else text


class Scope:
    """A place that holds names: the root, a branch of a join or race, an iteration of a loop, or one compensation."""

    __slots__ = (
        "_memo",
        "called",
        "counts",
        "ended",
        "loop",
        "made",
        "outer",
        "prefix",
        "random",
        "timers",
        "together",
        "uuids",
    )

    def __init__(self, prefix: str = "", outer: Scope | None = None, loop: object = None) -> None:
        self.prefix = prefix
        self.outer = outer
        """The scope around an `async for` iteration, with which it shares its task; None in other scopes."""
        self.loop = loop
        """The loop of an `async for` iteration."""
        self.made = 0
        """How many tasks and verbs were created here."""
        self.counts: dict[str, int] | None = None
        """How often each name was used here."""
        self.called: str | list[str] = ""
        """The steps, children, joins, races and loops (with a slash at the end) called here side by side."""
        self.ended: str | list[str] = ""
        """Those that ended here since the last call, in that order, and that no compensation undoes yet."""
        self.together: object = None
        """The compensations registered here for calls that were made side by side."""
        self._memo: dict[str, bool] | None = None
        self.timers = 0
        self.uuids = 0
        self.random: object = None

    def repeat(self, name: str) -> int:
        """Count one more use of a name here and return which it is."""
        counts = self.counts
        if counts is None:
            counts = self.counts = {}
        n = counts.get(name, 0) + 1
        counts[name] = n
        return n

    def note_call(self, location: str) -> None:
        """Note the call of something that a compensation may undo."""
        if self.ended:
            self.called, self.ended = location, ""
        else:
            self.called = with_another(self.called, location) if self.called else location

    def note_end(self, location: str) -> None:
        """Note the end of something that was called here."""
        self.ended = with_another(self.ended, location) if self.ended else location

    def memo(self, name: str) -> bool | None:
        """Return the answer remembered under a name."""
        return self._memo.get(name) if self._memo else None

    def remember(self, name: str, answer: bool) -> None:
        """Keep an answer for as long as the scope lives."""
        self._memo = {**(self._memo or {}), name: answer}

    def next_timer(self) -> str:
        """Return the location of the next asyncio timer created here."""
        self.timers += 1
        return f"{self.prefix}@{number(self.timers)}"


def with_another(calls: str | list[str], location: str) -> list[str]:
    """Return one more call beside those that there are."""
    if isinstance(calls, str):
        return [calls, location]
    calls.append(location)
    return calls


def name_key(prefix: str, name: str, repeat: int) -> str:
    """Return the location of the `repeat`-th use of a name key under a prefix."""
    return f"{prefix}{name}#{number(repeat)}" if repeat > 1 else prefix + name


def iteration_prefix(loop: str, iteration: int) -> str:
    """Return the prefix of everything inside one iteration of a loop."""
    return f"{loop}/~{number(iteration)}/"


def iterations(loop: str, first: int, end: int) -> tuple[str, str]:
    """Return the range of locations inside iterations first ... end - 1 of a loop."""
    return f"{loop}/~{number(first)}", f"{loop}/~{number(end)}"


def checkpoint_location(loop: str) -> str:
    """Return where a loop keeps its state."""
    return f"{loop}/!"


def compensation_location(index: int) -> str:
    """Return where the compensation at this index of the run's stack is kept."""
    return f"^{number(index)}"


def end_location(reopens: int) -> str:
    """Return where the end is kept that a run came to after so many reopenings."""
    return f"${number(reopens)}"


def repeats_beside(location: str, others: Iterable[str]) -> bool:
    """Tell whether a name was used again right beside a location, as a plain loop does."""
    beside = location[: location.rfind("/") + 1]
    rest = (other[len(beside) :] for other in others if other.startswith(beside))
    return any("#" in each and "/" not in each for each in rest)


def is_undoing(location: str) -> bool:
    """Tell whether a location is part of undoing: a compensation, or a step of one."""
    return location.startswith("^")


def is_ending(location: str) -> bool:
    """Tell whether a location is part of the end of a run: how it was decided, or a hook."""
    return location.startswith("$")


def inside(location: str, ancestor: str) -> bool:
    """Tell whether a location lies strictly under another."""
    return location.startswith(ancestor + "/")
