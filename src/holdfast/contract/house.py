"""What faces read from a store besides runs: queues, events, the audit trail and dead letters by their cause."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import AuditRow

MOST_NAMES = 1_000
"""How many names (queues, events, workflows) one question returns."""
MOST_VALUES = 20
"""How many values of an attribute one question returns unless it is said otherwise."""
MOST_LETTERS = 10_000
"""How many dead letters are looked at to group them: the newest."""


class QueueRow(NamedTuple):
    """Attempts of one activity in one queue; `waiting` and `taken` are counted up to MOST_COUNTED."""

    queue: str
    activity: str
    waiting: int
    taken: int
    oldest: Instant | None
    """Since when the one that waits longest does."""


class EventNameRow(NamedTuple):
    """Events of one name: how many are queued, and how many receives wait, counted up to MOST_COUNTED."""

    name: str
    queued: int
    oldest: Instant | None
    """When the oldest that is queued was published."""
    waiting: int
    since: Instant | None
    """Since when the receive waits that waits longest."""


class EventWaiterRow(NamedTuple):
    """A receive that waits for a name: the id of its run, its location, and since when."""

    run: str
    location: str
    since: Instant


class EventQueueRow(NamedTuple):
    """Events of one name: how many are queued, and the id of the run that was given the last, if it is still there."""

    pending: int
    taker: str | None
    taken: Instant | None
    """When it was given that."""


class KeyHolder(NamedTuple):
    """The id of the run that holds an idempotency key, and since when, if that is known."""

    run: str
    since: Instant | None


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of the audit trail to show, newest first; `before` is the number to go on below."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    at_from: Instant | None = None
    at_until: Instant | None = None
    limit: int = 50
    before: int | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of the audit trail that were found, and how far was looked for them, as in HeadPage."""

    rows: list[AuditRow]
    next: int | None
    partial: bool = False
    scanned: int = 0


class LetterGroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """Open dead letters with one cause; `message` is the beginning of it where the class of the error says nothing."""

    kind: str
    workflow: str
    step: str
    name: str
    error_type: str
    message: str
    count: int
    first: Instant
    last: Instant
    newest: str
    """The id of the newest."""
