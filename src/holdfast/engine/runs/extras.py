"""What few turns ask for, in the form that is committed: waits for events, keys, tasks, dead letters, events."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from holdfast.clock import Instant, new_id
from holdfast.context.steps import StepVerb
from holdfast.contract.turns import Extras, NewLetter, Send, Wait
from holdfast.engine.runs.resident import Resident
from holdfast.engine.steps import keys as step_keys
from holdfast.events import Events
from holdfast.replay.turn import Ending, Turn


def extras_of(resident: Resident, turn: Turn, begin: Sequence[StepVerb], events: Events, now: Instant) -> Extras | None:
    """Return what a turn asks for beyond the ordinary, None if nothing."""
    extras, journal = turn.extras, resident.execution.journal
    asked = extras or resident.leaving or resident.letters or resident.reclaimed or resident.unversioned
    if not (
        asked
        or resident.tasks
        or resident.untasks
        or any(isinstance(verb, StepVerb) and verb.activity.settings.idempotency_key for verb in turn.started)
        or any(verb.activity.settings.idempotency_key for verb in begin)
        or any(isinstance(verb, StepVerb) and verb.activity.settings.idempotency_key for verb in turn.abandoned)
        or journal.receivers
        or resident.waiting
        or journal.inbox
    ):
        return None
    if extras is not None and extras.publishes:
        rules = (events.get(event.name).rule(event.at) for event in extras.publishes)
        extras.publishes[:] = [
            msgspec.structs.replace(event, rule=rule) for event, rule in zip(extras.publishes, rules, strict=True)
        ]
    for verb in turn.abandoned:
        if isinstance(verb, StepVerb) and verb.activity.settings.idempotency_key is not None:
            step_keys.leave(resident, verb, now)
    if resident.leaving:
        extras = extras or Extras()
        extras.leaves.extend(resident.leaving)
        resident.leaving = None
    # Steps that history knows are taken keys for when their next attempt begins, not while they wait for it.
    fresh = [verb for verb in turn.started if isinstance(verb, StepVerb) and not verb.recalled]
    takes = step_keys.takes((*fresh, *begin)) if fresh or begin else []
    if takes:
        extras = extras or Extras()
        extras.takes.extend(takes)
    if resident.tasks or resident.untasks:
        extras = extras or Extras()
        extras.tasks.extend(resident.tasks or ())
        extras.untasks.extend(resident.untasks or ())
        resident.tasks = resident.untasks = None
    if turn.outcome is None:
        extras = _waits(resident, extras, events, now)
    elif turn.outcome.ending is Ending.RENEWED:
        resident.waiting = None  # the store forgets them with the old life
    if resident.reclaimed:
        extras = msgspec.structs.replace(extras or Extras(), forget_waits=True)
        resident.reclaimed = False
    if resident.unversioned:
        extras = msgspec.structs.replace(extras or Extras(), version=resident.workflow.version)
        resident.unversioned = False
    if resident.letters:
        extras = extras or Extras()
        extras.letters.extend(resident.letters)
        resident.letters = None
    return extras


def limited(sends: Sequence[Send], events: Events) -> list[Send]:
    """Return what a turn sends, each with how many of its name may wait."""
    limits = (events.get(send.name).max_pending for send in sends)
    return [
        send if send.max_pending == limit else msgspec.structs.replace(send, max_pending=limit)
        for send, limit in zip(sends, limits, strict=True)
    ]


def _waits(resident: Resident, extras: Extras | None, events: Events, now: Instant) -> Extras | None:
    """Tell the store which receives wait, so that events find them, and give back events that none waits for."""
    journal = resident.execution.journal
    receivers = journal.receivers or {}
    known: AbstractSet[str] = resident.waiting or frozenset()
    if receivers or known:
        stale: AbstractSet[str] = resident.stale_waits or frozenset()
        resident.stale_waits = None
        fresh = [
            verb
            for location, verb in receivers.items()
            if location not in known or (stale and not stale.isdisjoint(verb.names))
        ]
        gone = [location for location in known if location not in receivers]
        if fresh or gone:
            extras = extras or Extras()
            extras.unwaits.extend(gone)
            for verb in fresh:
                rules = {name: events.get(name).rule(now, resident.created, verb.since) for name in verb.names}
                extras.waits.append(Wait(location=verb.location, since=verb.since, names=rules, seen=resident.seen))
            resident.waiting = set(receivers) or None
    if journal.inbox:
        returns = journal.unwanted_events()
        if returns:
            extras = extras or Extras()
            extras.returns.extend(returns)
    return extras


def letter(step: str, attempts: int, error: str) -> NewLetter:
    """Return a dead letter for work given up on."""
    return NewLetter(id=new_id(), step=step, attempts=attempts, error=error)
