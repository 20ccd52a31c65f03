"""Waits and messages: what ctx.sleep, receive, send and publish do."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.clock import FAR_FUTURE, Instant, micros
from holdfast.context.api import MISSING, Request
from holdfast.contract.rows import TERMINAL
from holdfast.contract.turns import EventRule, PublishEvent, Send
from holdfast.definitions import check_message_id, check_run_id
from holdfast.errors import (
    BadInput,
    HoldfastError,
    InvalidDuration,
    Moved,
    NoSuchRun,
    QueueFull,
    ReceiveTimeout,
    RunTerminal,
)
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.entry import encode_entry
from holdfast.replay.journal import Journal, Verb
from holdfast.replay.location import Scope, check_name
from holdfast.replay.loop import Timer, is_done

_MOVED = "moved"
_REFUSALS = ("missing", "full", *sorted(TERMINAL))


class SleepVerb(Verb):
    """A durable sleep under way."""

    __slots__ = ("timer",)
    word = "sleep"
    timer: Timer

    def forget(self) -> None:
        self.timer.cancel()

    def apply(self, entry: Any) -> None:
        self.set_result(None)


class ReceiveVerb(Verb):
    """A wait for a message."""

    __slots__ = ("default", "names", "several", "since", "timer", "types")
    word = "receive"
    default: Any
    names: list[str]
    several: bool
    since: Instant
    timer: Timer | None
    types: dict[str, Any]

    def forget(self) -> None:
        (self.journal.receivers or {}).pop(self.location, None)
        if self.timer is not None:
            self.timer.cancel()

    def apply(self, entry: Any) -> None:
        if type(entry) is entries.TimerFired:
            if self.default is not MISSING:
                self.set_result(self.default)
            else:
                self.set_exception(ReceiveTimeout(f"no message {' or '.join(map(repr, self.names))} came in time"))
            return
        try:
            value = codec.decode(bytes(entry.payload), self.types.get(entry.name, Any), f"message {entry.name!r}")
        except HoldfastError as error:
            self.set_exception(error)
            return
        self.set_result(self.outcome(entry, value))

    def outcome(self, entry: Any, value: Any) -> Any:
        """Return what the code is given for a message."""
        return (entry.name, value) if self.several else value


class RequestVerb(ReceiveVerb):
    """A wait for a message whose sender waits for an answer."""

    __slots__ = ()
    word = "receive_request"

    def outcome(self, entry: Any, value: Any) -> Any:
        return Request(value, entry.id)


class SendVerb(Verb):
    """A message on its way to another run."""

    __slots__ = ("refused", "target")
    word = "send"
    refused: str | None
    target: str

    def apply(self, entry: Any) -> None:
        if entry.refused == "missing":
            self.set_exception(NoSuchRun(self.target))
        elif entry.refused == "full":
            self.set_exception(QueueFull(f"too many messages of that name wait for run {self.target!r} already"))
        elif entry.refused.startswith(_MOVED):
            self.set_exception(Moved(self.target, entry.refused.removeprefix(_MOVED).strip()))
        elif entry.refused:
            self.set_exception(RunTerminal(self.target, entry.refused))
        else:
            self.set_result(None)


class PublishVerb(SendVerb):
    """An event on its way to the runs that wait; `target` is its name."""

    __slots__ = ()
    word = "publish"

    def apply(self, entry: Any) -> None:
        if entry.refused:
            self.set_exception(QueueFull(f"too many events {self.target!r} wait to be received"))
        else:
            self.set_result(None)


def sleep(journal: Journal, scope: Scope, deadline: Instant, name: str | None) -> SleepVerb:
    """Begin a sleep that ends at an instant, or find it in history with the deadline recorded then."""
    if deadline > FAR_FUTURE:
        raise InvalidDuration("a sleep that ends after the year 9999")
    location = journal.locate(scope, check_name(name, "sleep name") if name else "sleep", name is not None)
    verb = SleepVerb(journal, location)
    recorded = journal.begin(location, entries.SleepBegun(deadline))
    if journal.violation is not None:
        verb.timer = _nothing_timer(journal)
        return verb
    verb.timer = _timer(journal, recorded.deadline if recorded is not None else deadline, location)
    journal.open[location] = verb
    return verb


def receive(
    journal: Journal,
    scope: Scope,
    name: str | Sequence[str],
    types: Any,
    timeout: timedelta | None,
    default: Any,
    make: type[ReceiveVerb] = ReceiveVerb,
) -> ReceiveVerb:
    """Begin a wait for a message, or find it in history."""
    several = not isinstance(name, str)
    if isinstance(types, timedelta):
        raise BadInput(f"ctx.receive(): the second argument is the type; write timeout={types!r}")
    if several and not isinstance(name, Sequence):
        raise BadInput(f"ctx.receive() takes a name or a list of names, not {name!r}")
    names = [check_name(each, "message name") for each in ([name] if isinstance(name, str) else name)]
    if not names:
        raise BadInput("ctx.receive() needs at least one name")
    deadline = None
    if timeout is not None:
        deadline = journal.loop.now + journal.loop.extra + micros(timeout, "timeout")
    location = journal.locate(scope, "receive " + ",".join(names), False)
    verb = make(journal, location)
    verb.names = names
    verb.since = journal.loop.now
    verb.several = several
    verb.types = dict(types) if isinstance(types, Mapping) else dict.fromkeys(names, Any if types is None else types)
    verb.default = default
    verb.timer = None
    recorded = journal.begin(location, entries.ReceiveBegun(names, deadline))
    if journal.violation is not None:
        return verb
    if recorded is not None:
        deadline = recorded.deadline
    if deadline is not None and recorded is None and not timeout:
        # A poll ends after the commit that shows it which events are queued, not in the turn that begins it.
        journal.polls = [*(journal.polls or ()), partial(_end_poll, verb, deadline)]
    elif deadline is not None:
        verb.timer = _timer(journal, deadline, location)
    journal.open[location] = verb
    if journal.receivers is None:
        journal.receivers = {}
    journal.receivers[location] = verb
    return verb


def send(journal: Journal, scope: Scope, target: str, name: str, payload: object) -> SendVerb:
    """Send a message, or find in history that it was sent."""
    check_run_id(target)
    check_name(name, "message name")
    encoded, digest = codec.encode_with_digest(payload, f"message {name!r}")
    location = journal.locate(scope, f"send {name}", False)
    verb = SendVerb(journal, location)
    verb.target = target
    verb.refused = None
    call = entries.SendBegun(target, name, digest)
    recorded = journal.begin(location, call)
    if journal.violation is not None:
        return verb
    if recorded is None:
        seq = journal.next_seq - 1
        send = Send(
            target=target,
            name=name,
            id=f"{journal.run.id}/{journal.run.generation}/{location}",
            payload=encoded.decode(),
            at=journal.loop.now,
            location=location,
            seq=seq,
            refusals={reason: encode_entry(msgspec.structs.replace(call, refused=reason)) for reason in _REFUSALS},
        )
        journal.turn.send(send)
    elif (recorded.target, recorded.name, recorded.digest) != (target, name, digest):
        journal.mismatch(
            location, f"a send of {recorded.name!r} to {recorded.target!r}", f"one of {name!r} to {target!r}"
        )
        return verb
    else:
        verb.refused = recorded.refused
    journal.open[location] = verb
    journal.turn.start(verb)
    return verb


def publish(journal: Journal, scope: Scope, name: str, payload: object, event_id: str | None) -> PublishVerb:
    """Publish an event, or find in history that it was published."""
    check_name(name, "event name")
    check_message_id(event_id)
    encoded, digest = codec.encode_with_digest(payload, f"event {name!r}")
    location = journal.locate(scope, f"publish {name}", False)
    verb = PublishVerb(journal, location)
    verb.target = name
    verb.refused = None
    call = entries.PublishBegun(name, digest)
    recorded = journal.begin(location, call)
    if journal.violation is not None:
        return verb
    if recorded is None:
        event = PublishEvent(
            name=name,
            id=event_id or f"{journal.run.id}/{journal.run.generation}/{location}",
            payload=encoded.decode(),
            at=journal.loop.now,
            rule=EventRule(),
            deduplicate=event_id is not None,
            location=location,
            seq=journal.next_seq - 1,
            refusal=encode_entry(msgspec.structs.replace(call, refused="full")),
        )
        journal.turn.extra().publishes.append(event)
    elif recorded.digest != digest:
        journal.mismatch(location, f"an event {name!r} with another payload", f"this: {encoded[:120].decode()}")
        return verb
    else:
        verb.refused = recorded.refused
    journal.open[location] = verb
    journal.turn.start(verb)
    return verb


def _end_poll(verb: ReceiveVerb, deadline: Instant) -> None:
    if not is_done(verb) and verb.location in verb.journal.open:
        verb.timer = _timer(verb.journal, deadline, verb.location)


def _timer(journal: Journal, deadline: Instant, location: str) -> Timer:
    timer = _nothing_timer(journal)
    journal.loop.add_timer(timer, deadline, location)
    return timer


_NOWHERE = contextvars.Context()


def _nothing_timer(journal: Journal) -> Timer:
    return Timer(journal.loop, _nothing, (), _NOWHERE)


def _nothing() -> None:
    """Sleeps and receives are resolved by their verb; the timer only keeps the time."""
