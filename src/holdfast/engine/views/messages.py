"""Messages and events that wait, as they are shown: what no run has received yet, with its content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.clock import to_datetime
from holdfast.contract.rows import EventRow, InboxKind, Message
from holdfast.errors import BadInput
from holdfast.payloads import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A message that waits for its run, or an event that waits for any run to receive its name.

    A run's own list has the events that it was given as well; `event` tells them apart.
    """

    name: str
    payload: Any = field(repr=False)
    id: str
    sent_at: datetime
    event: bool
    number: int
    """Its place in the order of arrival."""


_SENT = frozenset({InboxKind.MESSAGE, InboxKind.EVENT, InboxKind.NOTICE})


def unread(rows: Iterable[Message]) -> list[Unread]:
    """Return the messages and events in a run's inbox."""
    return [
        Unread(
            name=row.name,
            payload=_payload(row.payload),
            id=row.id,
            sent_at=to_datetime(row.at),
            event=row.kind != InboxKind.MESSAGE,
            number=row.n,
        )
        for row in rows
        if row.kind in _SENT
    ]


def queued(rows: Iterable[EventRow]) -> list[Unread]:
    """Return events that wait for a run."""
    return [
        Unread(
            name=row.name,
            payload=_payload(row.payload),
            id=row.id,
            sent_at=to_datetime(row.at),
            event=True,
            number=row.n,
        )
        for row in rows
    ]


def _payload(text: str) -> Any:
    """Return a stored payload; one that cannot be read is shown as it is."""
    try:
        return codec.decode(text)
    except BadInput:
        return text
