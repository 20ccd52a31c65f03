"""The inbox of a run in memory: messages and events that no receive has taken yet, by name.

Under each name the run's own messages come first, then events and notices, each in the order of their numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Protocol, TypeVar

from holdfast.contract.rows import InboxKind, Message

Inbox = dict[str, deque[Message]]


class Receiver(Protocol):
    """A receive that waits."""

    @property
    def names(self) -> Sequence[str]:
        """What it takes."""
        ...


ReceiverT = TypeVar("ReceiverT", bound=Receiver)


def put(inbox: Inbox, message: Message) -> None:
    """Add a message or an event."""
    queue = inbox.setdefault(message.name, deque())
    if message.kind == InboxKind.MESSAGE and queue and queue[-1].kind != InboxKind.MESSAGE:
        queue.insert(sum(waiting.kind == InboxKind.MESSAGE for waiting in queue), message)
    else:
        queue.append(message)


def match(inbox: Inbox, receivers: Iterable[ReceiverT]) -> tuple[ReceiverT, Message] | None:
    """Take the oldest message that a receive waits for, or else event; receives are served in order of their calls."""
    for receiver in receivers:
        message = take(inbox, receiver.names)
        if message is not None:
            return receiver, message
    return None


def take(inbox: Inbox, names: Sequence[str]) -> Message | None:
    """Take the first message with one of these names; an event only if there is no message."""
    heads = [queue[0] for name in names if (queue := inbox.get(name))]
    if not heads:
        return None
    message = min(heads, key=_order)
    queue = inbox[message.name]
    queue.popleft()
    if not queue:
        del inbox[message.name]
    return message


def take_events(inbox: Inbox, wanted: Container[str]) -> list[int]:
    """Take the events whose names are not wanted, and return their numbers."""
    taken: list[int] = []
    for name in [name for name in inbox if name not in wanted]:
        if inbox[name][-1].kind == InboxKind.MESSAGE:
            continue  # events come after messages
        events = [message.n for message in inbox[name] if message.kind == InboxKind.EVENT]
        if events:
            taken += events
            kept = deque(message for message in inbox[name] if message.kind != InboxKind.EVENT)
            if kept:
                inbox[name] = kept
            else:
                del inbox[name]
    return sorted(taken)


def _order(message: Message) -> tuple[bool, int]:
    return message.kind != InboxKind.MESSAGE, message.n
