"""The end of a run in the form that is stored: what its parent is told, what becomes of what it has not read."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import Status
from holdfast.contract.turns import EventRule, RunEnd
from holdfast.events import Events
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay.entry import ChildEnded, encode_entry
from holdfast.replay.turn import Outcome


class Rules(NamedTuple):
    """What an engine's events say about commits, worked out once."""

    events: Events
    unread: dict[str, str]
    """What becomes of messages that a run has not read when it ends, by name."""
    republished: dict[str, EventRule]

    @classmethod
    def of(cls, events: Events) -> Rules:
        """Return the rules of an engine with these events."""
        unread: dict[str, str] = dict(events.unread)
        return cls(events, unread, {name: events.get(name).rule(0) for name in unread})


def end_of(outcome: Outcome, rules: Rules, now: Instant) -> RunEnd:
    """Return the end that a turn came to, as it is stored."""
    error = codec.encode(outcome.error).decode() if outcome.error is not None else None
    told = ChildEnded(outcome.ending.value, msgspec.Raw(outcome.payload or "null"), outcome.error)
    undone = codec.encode(outcome.compensation).decode() if outcome.compensation is not None else None
    return RunEnd(
        status=Status(outcome.ending.value),
        at=now,
        output=outcome.payload,
        error=error,
        payload=encode_entry(told),
        compensation=undone,
        unread=rules.unread,
        rules=rules.republished,
    )


def cancelled_end(rules: Rules, now: Instant, error: ErrorData | None = None) -> RunEnd:
    """Return the end of a run that is stopped whatever its code is doing."""
    return RunEnd(
        status=Status.CANCELLED,
        at=now,
        error=codec.encode(error).decode() if error is not None else None,
        payload=encode_entry(ChildEnded(Status.CANCELLED.value, error=error)),
        unread=rules.unread,
        rules=rules.republished,
    )
