"""From a turn to its commit: everything that one run wants made durable at once, as a value.

`commit_of` reads the run and changes nothing; `Resident.submitted` then notes what is on its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.bodies.keys import key_of
from holdfast.clock import Instant
from holdfast.context.steps import ORDINARY, StepVerb
from holdfast.contract.rows import Status
from holdfast.contract.turns import (
    CommitTurn,
    EnterLimit,
    Evidence,
    LeaveLimit,
    NewLetter,
    Renewal,
    RunEnd,
    Send,
    StartChild,
    State,
    TurnEffects,
    Wait,
)
from holdfast.contract.waits import WaitNote, error_head, write_wait
from holdfast.engine.runs.aside import Aside
from holdfast.engine.runs.ends import Rules, end_of, in_its_lane
from holdfast.engine.runs.records.letters import letter_of_run
from holdfast.engine.runs.records.trail import trail_of
from holdfast.engine.runs.resident import PAUSING, Resident
from holdfast.engine.steps.keys import leave_of, takes
from holdfast.events import Events
from holdfast.replay.cuts import only_undoes
from holdfast.replay.ending import first_entries
from holdfast.replay.entry import OVER_LIMIT, AttemptFailed, AttemptSkipped
from holdfast.replay.turn import Ending, Outcome, Turn

_MAX_WAITS = 5
CALLBACK = "callback"
"""What a run waits for whose end is decided."""
_NOTHING_ASIDE = Aside()


def only_plain_steps(resident: Resident, turn: Turn, own: frozenset[str] | None = None) -> bool:
    """Whether a turn did nothing but complete steps and begin plain ones, so that the run's row stays as it is.

    This is what nearly all turns do. If it is so the steps are noted as active. With `own` there may be steps that are
    plain but for a limit, unless it is one of those.
    """
    journal = resident.execution.journal
    if (
        resident.written[0] is not Status.RUNNING
        or resident.row_stale
        or resident.aside is not None
        or resident.claimed
        or resident.waiting
        or resident.phase
        or journal.receivers
        or journal.inbox
        or journal.cancelling is not None
        or journal.compensating
        or journal.run.step_trail
        or not turn.entries
        or not (turn.started or resident.active)
    ):
        return False
    for verb in turn.started:
        if type(verb) not in ORDINARY or verb.recalled:
            return False
        activity = verb.activity
        if not activity.plain and (own is None or not activity.only_limited or activity.settings.limit in own):
            return False
    for verb in turn.started:
        resident.active.add(verb.location)
    return True


def commit_of(
    resident: Resident,
    turn: Turn,
    begin: Sequence[StepVerb],
    rules: Rules,
    now: Instant,
    *,
    release: bool = False,
    returned: Sequence[int] = (),
    enters: list[EnterLimit] | tuple[()] = (),
    exits: list[LeaveLimit] | tuple[()] = (),
) -> CommitTurn | None:
    """Return what to commit for a turn, None if it changes nothing.

    `begin` are steps whose next attempt the turn counted, `returned` events that no receive waits for any more.
    With `release` a run that only waits leaves this worker with this very commit.
    """
    outcome, aside, entries = turn.outcome, resident.aside, turn.entries
    state: State | None = None
    end: RunEnd | None = None
    renewal: Renewal | None = None
    if outcome is None:
        if resident.phase is not PAUSING:  # then its row says so already, and the code does not go on
            state = state_of(resident, release and not turn.children)
    elif outcome.ending is Ending.RENEWED:
        renewal = Renewal(input=outcome.payload or "{}", generation=resident.generation + 1)
        entries = first_entries(turn.carried, now)
    else:
        end = _end_of(resident, outcome, rules, now)
    failed = turn.decided is not None or (outcome is not None and outcome.ending is Ending.FAILED)
    letters = _letters(resident, turn) if failed else []
    trail = trail_of(resident, turn.entries) if resident.execution.journal.run.step_trail else []
    effects: TurnEffects | None = None
    asked = begin or enters or exits or letters or trail or aside is not None or resident.claimed
    if asked or _asks(resident, turn, end is not None):
        effects = _effects_of(resident, turn, begin, rules, now, letters, returned, trail, enters, exits)
    consumed: Sequence[int] = turn.consumed
    aside = aside or _NOTHING_ASIDE
    if aside.rows_read and resident.phase is not PAUSING:  # a pause stays in the inbox until it is in force
        consumed = [*aside.rows_read, *consumed]
    if not (entries or consumed or turn.trims or state or end or renewal or effects):
        return None
    return CommitTurn(
        key=resident.key,
        epoch=resident.epoch,
        at=now,
        entries=entries,
        consumed=consumed,
        trims=turn.trims,
        sends=_limited(turn.sends, rules.events) if turn.sends else (),
        children=_in_lanes(turn.children, rules) if turn.children else (),
        state=state,
        end=end,
        renewal=renewal,
        reset_claims=resident.claimed,
        effects=effects,
        inbox=resident.early_row,
    )


def _end_of(resident: Resident, outcome: Outcome, rules: Rules, now: Instant) -> RunEnd:
    """Return the end that a run came to, as it is stored."""
    workflow = resident.workflow
    end = end_of(outcome, rules, now, "" if workflow.flow is None else workflow.name, child=resident.child)
    if outcome.ending is not Ending.FAILED:
        return end
    return msgspec.structs.replace(end, failed_step=_failed_step(resident, outcome), fingerprint=workflow.fingerprint)


def _letters(resident: Resident, turn: Turn) -> list[NewLetter]:
    """Return the dead letter of a run that fails, with the commit that decides it."""
    journal = resident.execution.journal
    failed = turn.decided or (turn.outcome if journal.run.conclusion is None else None)
    if failed is None or failed.ending is not Ending.FAILED or only_undoes(journal.before):
        return []
    return [letter_of_run(failed, _failed_step(resident, failed))]


def _failed_step(resident: Resident, outcome: Outcome) -> str:
    """Return the path of the call whose failure ended a run."""
    return resident.execution.journal.names.path(outcome.failed[0] if outcome.failed else "")


# The row.


def state_of(resident: Resident, released: bool = False) -> State | None:
    """Return the state to write, None when the row has it already.

    A run is released only when it does nothing but wait.
    """
    journal = resident.execution.journal
    status, wait, due, conclusion = Status.RUNNING, "", None, None
    waits = not resident.active and not resident.children_in_doubt
    if waits:
        status, wait, due = Status.SUSPENDED, waits_of(resident), resident.next_due()
    if journal.run.conclusion is not None:
        status = Status.RUNNING if journal.cancelling is None else Status.CANCELLING
        wait, conclusion = CALLBACK, Status(journal.run.conclusion.decided.status)
    elif journal.compensating:
        status = Status.COMPENSATING
    elif journal.cancelling is not None:
        status = Status.CANCELLING
    released = released and waits
    if (status, wait, due) == resident.written and not resident.row_stale and not released:
        return None
    return State(status=status, seen=resident.seen, wait=wait, due=due, released=released, conclusion=conclusion)


def waits_of(resident: Resident) -> str:
    """Return what a run waits for, in words, with notes of what they leave out."""
    journal, path = resident.execution.journal, resident.execution.journal.names.path
    steps = resident.queued or resident.retries or resident.held or resident.limited
    if not (steps or journal.receivers or journal.kids):
        return "timer" if resident.execution.next_due() is not None else ""
    receivers = list((journal.receivers or {}).values())[:_MAX_WAITS]
    waits = [f"message {','.join(verb.names)}" for verb in receivers]
    waits += [f"child {child}" for child in list(journal.kids or {})[:_MAX_WAITS]]
    for location, verb in list(resident.queued.items())[:_MAX_WAITS]:
        waits.append(f"step {path(location)} (queue {verb.activity.queue})")
    notes: list[WaitNote] = []
    if resident.retries:
        waits.append("retry")
        soonest = sorted(resident.retries.values(), key=itemgetter(0))[:_MAX_WAITS]
        notes += [_retry_note(path(verb.location), verb, at) for at, verb in soonest]
    if resident.held:
        waits.append("key")
        notes += [_key_note(path(verb.location), verb) for verb in list(resident.held.values())[:_MAX_WAITS]]
    if resident.limited:
        for name in sorted({verb.activity.settings.limit or "" for verb in resident.limited.values()})[:_MAX_WAITS]:
            waits.append(f"limit {name}")
        notes += [
            WaitNote(kind="limit", step=path(verb.location), limit=verb.activity.settings.limit or "")
            for verb in list(resident.limited.values())[:_MAX_WAITS]
        ]
    if resident.execution.next_due() is not None:
        waits.append("timer")
        if any(verb.timer is not None for verb in receivers):
            notes += [
                WaitNote(kind="message", names=tuple(verb.names), until=verb.timer.due if verb.timer else None)
                for verb in receivers
            ]
    words = "; ".join(waits)
    return write_wait(words, notes) if notes else words


def _key_note(path: str, verb: StepVerb) -> WaitNote:
    return WaitNote(kind="key", step=path, activity=verb.activity.name, key=key_of(verb) or "")


def _retry_note(path: str, verb: StepVerb, at: Instant) -> WaitNote:
    """Return what is to be said of a step that is tried again, whose condition is asked again, or whose turn comes."""
    last = getattr(verb, "last", None)  # a step that never waited has none
    limit = verb.activity.settings.limit
    if limit is not None and verb.skipped and getattr(last, "reason", OVER_LIMIT).startswith(OVER_LIMIT):
        return WaitNote(kind="retry", step=path, limit=limit, until=at)
    if isinstance(last, AttemptFailed):
        most, said = verb.activity.settings.retry.max_attempts, error_head(last.error.type, last.error.message)
        return WaitNote(kind="retry", step=path, attempt=verb.failures, of=most, until=at, error=said)
    reason = error_head("", last.reason) if isinstance(last, AttemptSkipped) else ""
    return WaitNote(kind="retry", step=path, until=at, error=reason, skipped=True)


# What is rare.


def _asks(resident: Resident, turn: Turn, ends: bool) -> bool:
    """Whether a turn may have more for the store than entries, a state or an end: waits to tell of, keys to ask for."""
    if ends:
        return bool(turn.started or turn.abandoned or turn.effects is not None)
    journal = resident.execution.journal
    return not turn.ordinary or bool(
        journal.receivers or resident.waiting or journal.inbox or any(map(_keyed, turn.started))
    )


def _keyed(verb: Any) -> bool:
    return isinstance(verb, StepVerb) and verb.activity.settings.idempotency_key is not None


def _effects_of(
    resident: Resident,
    turn: Turn,
    begin: Sequence[StepVerb],
    rules: Rules,
    now: Instant,
    letters: list[NewLetter],
    returned: Sequence[int],
    trail: list[Evidence],
    enters: Sequence[EnterLimit],
    exits: Sequence[LeaveLimit],
) -> TurnEffects | None:
    """Return what a turn asks for beyond the ordinary, None if nothing."""
    aside = resident.aside or _NOTHING_ASIDE
    # A step that history knows takes its key when its next attempt begins, not while it waits for that.
    fresh = [verb for verb in turn.started if isinstance(verb, StepVerb) and not verb.recalled]
    waits, unwaits = _waits(resident, aside, rules, now) if turn.outcome is None else ([], [])
    asked_for = fresh or begin or letters or returned or trail or enters or exits or turn.abandoned
    if not asked_for and turn.effects is None and resident.aside is None:
        waited = waits or unwaits or resident.claimed
        return TurnEffects(forget_waits=resident.claimed, waits=waits, unwaits=unwaits) if waited else None
    asked = turn.effects or TurnEffects()
    effects = TurnEffects(
        forget_waits=resident.claimed,
        waits=waits,
        unwaits=unwaits,
        returns=list(returned),
        publishes=[
            msgspec.structs.replace(event, rule=rules.events.get(event.name).rule(event.at))
            for event in asked.publishes
        ],
        attributes=asked.attributes,
        evidence=[*asked.evidence, *trail],
        replies=asked.replies,
        letters=[*aside.letters, *letters],
        takes=takes((*fresh, *begin)) if fresh or begin else [],
        leaves=[*aside.keys_given_up, *(left for verb in turn.abandoned if (left := leave_of(verb, now)) is not None)],
        tasks=list(aside.tasks),
        untasks=list(aside.withdrawn),
        version=resident.workflow.version if aside.unversioned else "",
        enters=list(enters),
        exits=list(exits),
        unlimits=list(aside.limits_withdrawn),
    )
    return effects if effects != _NO_EFFECTS else None


_NO_EFFECTS = TurnEffects()


def _waits(resident: Resident, aside: Aside, rules: Rules, now: Instant) -> tuple[list[Wait], list[str]]:
    """Return which receives wait that the store does not know of, so that events find them, and which do no more."""
    receivers = resident.execution.journal.receivers or {}
    known: set[str] = resident.waiting or set()
    waits = []
    for location, verb in receivers.items():
        if location not in known or (aside.stale_waits and not aside.stale_waits.isdisjoint(verb.names)):
            events = rules.events
            names = {name: events.get(name).rule(now, resident.created, verb.since) for name in verb.names}
            waits.append(Wait(location=verb.location, since=verb.since, names=names, seen=resident.seen))
    return waits, [location for location in known if location not in receivers]


def _in_lanes(children: Sequence[StartChild], rules: Rules) -> list[StartChild]:
    """Return the children that a turn starts, each with the end that it may bring to another of its lane."""
    return [
        child if child.run.options.lane is None else msgspec.structs.replace(child, run=in_its_lane(child.run, rules))
        for child in children
    ]


def _limited(sends: Sequence[Send], events: Events) -> list[Send]:
    """Return what a turn sends, each with how many of its name may wait."""
    limits = (events.get(send.name).max_pending for send in sends)
    return [
        send if send.max_pending == limit else msgspec.structs.replace(send, max_pending=limit)
        for send, limit in zip(sends, limits, strict=True)
    ]
