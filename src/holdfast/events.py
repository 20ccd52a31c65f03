"""Events by name: how each is delivered, and what happens to those that no run took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from holdfast.clock import Instant, micros
from holdfast.contract.turns import EventRule
from holdfast.errors import BadInput
from holdfast.texts import check_text

Delivery = Literal["first", "all", "after_wait", "after_create"]
Unread = Literal["discard", "republish", "dead_letter"]
_LONGEST = 200
_MOST_REMEMBERED = 1000
_RESERVED = frozenset("/#~@!")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """How events (and messages) of one name are delivered.

        Engine(..., events=[Event(name="price", consume_on_read=False, expire_after=timedelta(hours=1))])

    Args:
        name: under which it is published and received; derived from `type` when left out.
        type: the class of its payload.
        consume_on_read: True gives each event to one run, False to every run that waits, now or later.
        delivery: which queued events a new waiter may take: `all` of them, none older than its wait (`after_wait`) or
            than the run itself (`after_create`); `first` gives each event to the oldest waiter alone, whatever
            `consume_on_read` says.
        expire_after: an event that no run took in this time is not delivered any more.
        on_target_ended: what becomes of a message whose run ended without reading it.
        max_pending: how many may wait under this name; more are refused with QueueFull.
    """

    name: str = ""
    type: Any = None
    consume_on_read: bool = True
    delivery: Delivery = "all"
    expire_after: timedelta | None = None
    on_target_ended: Unread = "discard"
    max_pending: int = 10_000
    _always: EventRule | None = field(default=None, init=False, repr=False, compare=False)
    """The rule, where it is the same at every instant and for every run."""

    def __post_init__(self) -> None:
        if self.type is not None and not hasattr(self.type, "__name__"):
            raise BadInput(f"the type of an Event is a class, not {self.type!r}")
        if not self.name:
            if self.type is None:
                raise BadInput("an Event needs a name, or a type to derive it from")
            object.__setattr__(self, "name", self.type.__name__)
        name = check_text(self.name, "event name", longest=_LONGEST)
        if _RESERVED.intersection(name):
            raise BadInput(f"event name {name!r} must be 1 to {_LONGEST} printable characters without / # ~ @ !")
        consume: object = self.consume_on_read
        if not isinstance(consume, bool):
            raise BadInput(f"consume_on_read of event {self.name!r} is True or False, not {consume!r}")
        for option, allowed in (
            ("delivery", ("first", "all", "after_wait", "after_create")),
            ("on_target_ended", ("discard", "republish", "dead_letter")),
        ):
            if getattr(self, option) not in allowed:
                raise BadInput(f"{option} of event {self.name!r} is one of {', '.join(allowed)}")
        if self.expire_after is not None and not micros(self.expire_after, f"expire_after of event {self.name!r}"):
            raise BadInput(f"expire_after of event {self.name!r} must be longer than zero; None means never")
        limit: object = self.max_pending
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise BadInput(f"max_pending of event {self.name!r} must be a whole number of at least 1")
        if self.expire_after is None and self.delivery in ("first", "all"):
            object.__setattr__(self, "_always", self._rule(0, 0, 0))

    @property
    def single(self) -> bool:
        """Whether each event goes to one run only."""
        return self.consume_on_read or self.delivery == "first"

    def rule(self, now: Instant, created: Instant = 0, since: Instant = 0) -> EventRule:
        """Return the rule to deliver by at an instant, to a run created then that waits since then."""
        return self._always or self._rule(now, created, since)

    def _rule(self, now: Instant, created: Instant, since: Instant) -> EventRule:
        not_before = {"after_wait": since, "after_create": created}.get(self.delivery, 0)
        expired = now - micros(self.expire_after) if self.expire_after is not None else 0
        return EventRule(
            single=self.single,
            keep=self.delivery != "after_wait",
            not_before=max(not_before, expired),
            expired=expired,
            max_pending=self.max_pending,
        )


class Events:
    """The events an engine knows; others are delivered by the defaults."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: dict[str, Event] = {}
        self._others: dict[str, Event] = {}
        """Those with the defaults: to make one takes as long as to send a message."""
        for event in events:
            given: object = event
            if not isinstance(given, Event):
                raise BadInput(f"events must be a list of Event, not {given!r}")
            if event.name in self._events:
                raise BadInput(f"two events are named {event.name!r}")
            self._events[event.name] = event
        self.unread = {
            event.name: event.on_target_ended for event in self._events.values() if event.on_target_ended != "discard"
        }

    def name_of(self, payload: object) -> str:
        """Return the name under which an object is published: its Event's, or that of its class."""
        for event in self._events.values():
            if event.type is type(payload):
                return event.name
        return type(payload).__name__

    def get(self, name: str) -> Event:
        """Return how events of a name are delivered."""
        event = self._events.get(name) or self._others.get(name)
        if event is None:
            if len(self._others) >= _MOST_REMEMBERED:
                self._others.clear()
            event = self._others[name] = Event(name=name)
        return event
