"""What an engine reports to its observers: one small record for each change that became durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that happened to a run, told once, after it was committed; never on replay.

    `type` is one of
        run.started run.pending run.running run.suspended run.paused run.resumed run.reopened run.cancelling
        run.compensating run.completed run.failed run.cancelled run.blocked
        run.moving run.moved (it goes on at another place; told to those who follow it)
        run.skewed (it runs under another version than it began with)
        step.started step.completed step.failed step.skipped step.progress attempt.failed attempt.lost
        compensation.started compensation.completed compensation.failed
        message.received attributes.set evidence.added deadletter.added purged
        limit.paused limit.resumed limit.overridden limit.restored workflow.paused workflow.resumed queue.paused
        queue.resumed (an operator did it; `data` has its name)
        schedule.skipped (a tick whose workflow has as many runs as it may; `data` has the schedule)
        callback.error (a callback of the user's raised; `data` has the error and the change it was given)
    """

    type: str
    at: datetime
    run_id: str = ""
    workflow: str = ""
    step: str = ""
    """The path of the step in its run."""
    attempt: int = 0
    status: str = ""
    data: dict[str, Any] = field(default_factory=dict, repr=False)
    """More about it: error (type and message), result, name of a message, what a suspended run waits for, ..."""


def step_name(path: str) -> str:
    """Return the name of the step at a path, the same in every branch, iteration and repetition.

    >>> step_name("orders/~3/charge#2")
    'charge'
    """
    return path.rpartition("/")[2].partition("#")[0]
