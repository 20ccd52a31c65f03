"""Idempotency keys of steps: the commit that begins an attempt takes one, the commit that ends the step gives it up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from holdfast.bodies.keys import key_of
from holdfast.clock import Instant, micros
from holdfast.context.steps import StepVerb
from holdfast.contract.operations import KeepResult, KeyAnswer
from holdfast.contract.turns import LeaveKey, TakeKey
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import Resident
from holdfast.errors import KeyConflict
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.loop import is_done


class KeyEnds(Protocol):
    """The attempts of steps, as keys see them."""

    def succeeded(self, resident: Resident, verb: StepVerb, result: bytes, keep_key: bool = False) -> Exception | None:
        """End a step with a result; return what is wrong with it if it does not fit."""
        ...

    def fail(self, resident: Resident, verb: StepVerb, error: Exception) -> None:
        """End a step that did not run and never will."""
        ...


class KeyedSteps:
    """The steps, of all runs in memory, that have a key."""

    def __init__(self, runs: Runs, ends: KeyEnds) -> None:
        self._runs = runs
        self._ends = ends

    def is_free(self, resident: Resident, location: str) -> list[StepVerb]:
        """Return the step that waits for a key here, to try again."""
        verb = resident.key_is_free(location)
        if verb is None or is_done(verb):
            return []
        resident.active.add(location)
        return [verb]

    def not_taken(self, resident: Resident, verb: StepVerb, answer: KeyAnswer) -> None:
        """Do without running a body: another step holds the key, or has left a result, or had other arguments."""
        resident.active.discard(verb.location)
        resident.queued.pop(verb.location, None)  # the store has left it out
        if answer.outcome == "held":
            verb.settled = True
            freed = resident.hold(verb)
            if freed:
                resident.active.add(verb.location)  # not to be let go: it tries again at once
            self._runs.note(resident, (verb.location, entries.AttemptLost(verb.attempt, "held")))
            if freed:
                self._runs.note(resident, begin=self.is_free(resident, verb.location))
            return
        if answer.outcome == "hit":
            unfit = self._ends.succeeded(resident, verb, answer.result.encode(), keep_key=True)
            if unfit is not None:
                self._ends.fail(resident, verb, unfit)
            return
        path = resident.execution.journal.names.path(verb.location)
        error = KeyConflict(f"step {path!r}: its idempotency key was used with other arguments")
        self._ends.fail(resident, verb, error)

    def give_up(self, resident: Resident, verb: StepVerb, now: Instant, result: bytes | None = None) -> None:
        """Give up the key of a step with the next commit of its run, with or without a result."""
        left = leave_of(verb, now, result)
        if left is not None:
            resident.give_up_key(left)

    def late(self, run: int, verb: StepVerb, result: bytes) -> None:
        """Keep a result that came after its attempt was given up, for the next attempt to find."""
        key = key_of(verb)
        if key is not None:
            settings = verb.activity.settings
            expires = self._runs.clock.now() + micros(settings.idempotency_ttl)
            left = LeaveKey(activity=settings.name, key=key, result=result.decode(), expires=expires)
            self._runs.keep_result(KeepResult(run=run, leave=left))


def takes(verbs: Iterable[object]) -> list[TakeKey]:
    """Return the keys that steps need before they may run."""
    wanted: list[TakeKey] = []
    for verb in verbs:
        if not isinstance(verb, StepVerb) or is_done(verb) or verb.activity.settings.idempotency_key is None:
            continue
        key = key_of(verb)
        if key is not None:
            _, digest = codec.encode_with_digest((verb.args, verb.kwargs), f"the arguments of {verb.activity.name!r}")
            wanted.append(TakeKey(activity=verb.activity.name, key=key, digest=digest, location=verb.location))
    return wanted


def leave_of(verb: object, now: Instant, result: bytes | None = None) -> LeaveKey | None:
    """Return what gives up the key of a step that has ended; a result is kept for steps that ask for it later."""
    key = key_of(verb) if isinstance(verb, StepVerb) else None
    if key is None:
        return None
    assert isinstance(verb, StepVerb)
    settings = verb.activity.settings
    kept = result.decode() if result is not None else None
    return LeaveKey(activity=settings.name, key=key, result=kept, expires=now + micros(settings.idempotency_ttl))
