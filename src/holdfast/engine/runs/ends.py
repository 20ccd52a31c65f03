"""The end of a run as it is stored: the row for its parent, and what happens to its unread messages."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import Status
from holdfast.contract.turns import EventRule, Lane, NewRun, RunEnd
from holdfast.errors import RunConflict, RunRejected
from holdfast.events import Events
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay.entry import ChildEnded, encode_entry
from holdfast.replay.turn import Ending, Outcome

_STATUS = {ending: Status(ending.value) for ending in (Ending.COMPLETED, Ending.FAILED, Ending.CANCELLED)}
"""What a run is whose turn ended so."""


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


def end_of(outcome: Outcome, rules: Rules, now: Instant, workflow: str = "", *, child: bool = True) -> RunEnd:
    """Return the end that a turn came to, as it is stored; with its workflow, if that has places.

    What a parent is told, and what follows a cancel, is left out for a run that is no `child` and was not cancelled.
    """
    error = codec.encode(outcome.error).decode() if outcome.error is not None else None
    status, payload = _STATUS[outcome.ending], ""
    if child or status is Status.CANCELLED:
        payload = encode_entry(ChildEnded(status.value, msgspec.Raw(outcome.payload or "null"), outcome.error))
    undone = codec.encode(outcome.compensation).decode() if outcome.compensation is not None else None
    return RunEnd(
        status=status,
        at=now,
        output=outcome.payload,
        error=error,
        payload=payload,
        compensation=undone,
        unread=rules.unread,
        rules=rules.republished,
        workflow=workflow,
    )


def in_its_lane(run: NewRun, rules: Rules) -> NewRun:
    """Return a new run with the end that it may bring to another of its lane."""
    lane = run.options.lane
    if lane is None or not displaces(lane):
        return run
    ending = displacing(lane, run.id, run.workflow, rules, run.at)
    return msgspec.structs.replace(run, options=msgspec.structs.replace(run.options, lane=ending))


def displaces(lane: Lane) -> bool:
    """Whether a run that enters a lane may end another."""
    return bool(lane.window) or lane.on_full == "cancel_oldest"


def displacing(lane: Lane, run_id: str, workflow: str, rules: Rules, now: Instant) -> Lane:
    """Return a lane with the end of those that a run ends there: superseded, by this one."""
    under = f" under key {lane.key!r}" if lane.key else ""
    message = f"run {run_id!r} of workflow {workflow!r} was started{under} and takes its place"
    end = cancelled_end(rules, now, ErrorData(type="Superseded", message=message, retryable=False))
    return msgspec.structs.replace(lane, end=end)


def child_refused(run_id: str, reason: str) -> tuple[str, ErrorData]:
    """Return how a child ended that was not started, and why."""
    if reason == "taken":
        return reason, error_to_data(RunConflict(run_id, "exists already and is not this child"))
    why = "as many runs of its workflow go on as may, and on_full is 'reject'"
    if reason == "ancestors":
        why = "all places of its workflow are held by runs that wait for it: its parent, or the parent's parents"
    return "rejected", error_to_data(RunRejected(run_id, f"child {run_id!r} was not started: {why}"))


def rejected(workflow: str, lane: Lane) -> str:
    """Return why a run of a workflow is refused."""
    under = f" under key {lane.key!r}" if lane.key else ""
    most = f"{lane.at_once:,} go on at once" if lane.at_once is not None else ""
    often = f"{lane.rate:,} begin within {lane.per / 1e6:g} seconds" if lane.rate is not None else ""
    said = " and ".join(filter(None, (most, often)))
    return f"workflow {workflow!r} lets {said}{under}, which are all taken, and on_full is 'reject'"


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
