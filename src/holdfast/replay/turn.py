"""What one turn asks for, collected while the code runs and handed to the engine when it waits.

A list is made when it gets its first element. Most turns of most runs only complete one step and begin the next: these
are `ordinary`, so the engine knows at once that they ask for nothing else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.contract.rows import EntryRow
from holdfast.contract.turns import Send, StartChild, TurnEffects
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay.entry import Decided, Entry
from holdfast.replay.failures import Origin, origins

LogLine = tuple[int, str, tuple[Any, ...], str]
T = TypeVar("T")


class Ending(StrEnum):
    """How a turn can end a run (or this life of it)."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RENEWED = "renewed"
    BLOCKED = "blocked"


class Outcome(NamedTuple):
    """The end of a run: its encoded result, its error, or the input to go on with."""

    ending: Ending
    payload: str | None = None
    error: ErrorData | None = None
    failed: tuple[str, ...] = ()
    """The locations of the calls that the error came from, the nearest first."""
    origin: Origin = Origin()
    """What is known of the first of them."""
    compensation: list[dict[str, Any]] | None = None
    """What was undone, in that order, each with name, status (completed or failed), attempts and error."""


def decided_outcome(decided: Decided) -> Outcome:
    """Return the end of a run that was decided before its hooks were called."""
    ending = Ending(decided.status)
    payload = bytes(decided.result).decode() if ending is Ending.COMPLETED else None
    undone = msgspec.json.decode(bytes(decided.compensation))
    return Outcome(ending, payload, decided.error, tuple(decided.failed), compensation=undone)


def failure(error: BaseException) -> Outcome:
    """Return the end of a run whose code raised."""
    failed = origins(error)
    origin = next(iter(failed.values()), Origin())
    return Outcome(Ending.FAILED, error=error_to_data(error), failed=tuple(failed), origin=origin)


class Turn:
    """What a turn asks for. Nothing of it is acted on before the entries are durable."""

    __slots__ = (
        "abandoned",
        "carried",
        "children",
        "consumed",
        "decided",
        "entries",
        "effects",
        "logs",
        "ordinary",
        "outcome",
        "sends",
        "started",
        "trims",
    )

    def __init__(self) -> None:
        self.ordinary = True
        """Whether the turn asks for nothing but entries and steps to start."""
        self.entries: list[EntryRow] = []
        self.started: list[Any] | tuple[()] = ()
        """The steps, sends and children that the code called."""
        self.abandoned: list[Any] | tuple[()] = ()
        self.sends: list[Send] | tuple[()] = ()
        self.children: list[StartChild] | tuple[()] = ()
        self.trims: list[tuple[str, str]] | tuple[()] = ()
        self.consumed: list[int] | tuple[()] = ()
        """The numbers of the inbox rows that the code has taken."""
        self.logs: list[LogLine] | tuple[()] = ()
        self.outcome: Outcome | None = None
        self.decided: Outcome | None = None
        """How the run ends, once its hooks were called."""
        self.effects: TurnEffects | None = None
        """Waits, keys, attributes and the like: rare, so kept apart."""
        self.carried: list[Entry] | tuple[()] = ()
        """The compensations that a new life takes over; see `turn.first_entries`."""

    def start(self, verb: Any) -> None:
        """Ask for what a verb stands for, once the turn is durable."""
        if self.started:
            self.started.append(verb)
        else:
            self.started = [verb]

    def abandon(self, verb: Any) -> None:
        """Say that the code does not wait for a verb any more."""
        self.ordinary = False
        self.abandoned = _appended(self.abandoned, verb)

    def send(self, send: Send) -> None:
        """Send a message with the commit of this turn."""
        self.ordinary = False
        self.sends = _appended(self.sends, send)

    def start_child(self, child: StartChild) -> None:
        """Start a run with the commit of this turn."""
        self.ordinary = False
        self.children = _appended(self.children, child)

    def trim(self, first: str, end: str) -> None:
        """Delete what history has from one location up to another, what this turn recorded there included."""
        self.ordinary = False
        self.trims = _appended(self.trims, (first, end))
        self.entries = [row for row in self.entries if not first <= row.location < end]

    def consume(self, number: int) -> None:
        """Delete an inbox row with the commit of this turn."""
        self.ordinary = False
        self.consumed = _appended(self.consumed, number)

    def log(self, line: LogLine) -> None:
        """Write a line to the log once the turn is durable."""
        self.ordinary = False
        self.logs = _appended(self.logs, line)

    def extra(self) -> TurnEffects:
        """Return where this turn collects what is rare."""
        self.ordinary = False
        if self.effects is None:
            self.effects = TurnEffects()
        return self.effects


def _appended(items: list[T] | tuple[()], item: T) -> list[T]:
    if not items:
        return [item]
    items.append(item)
    return items
