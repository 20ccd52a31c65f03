"""A run as it is shown, made from its row in the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.clock import to_datetime
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.waits import words_of
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stood when it was looked at. Its payloads are not part of what it looks like in a log."""

    id: str
    workflow: str
    version: str
    status: Status
    waiting_for: str
    """What it waits for, empty unless it is suspended, being undone, ending or not begun; several are parted by `; `.

    `place` (its turn, or one of the places of its workflow), `timer` (a sleep, a deadline: see `due_at`), `retry` (of a
    step, or of its condition), `key` (another step has its idempotency key), `message NAME,NAME` (or an event),
    `child ID`, `step PATH (queue NAME)`. Of many messages, children or steps the first few are named. `callback`: it is
    decided how it ends, and its hook is called.
    """
    due_at: datetime | None
    input: Any = field(repr=False)
    output: Any = field(repr=False)
    error: ErrorData | None
    parent: str | None
    generation: int
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    owner: str | None
    epoch: int
    key: int = field(default=0, repr=False, compare=False)
    """Its place in the order of creation."""
    begins_at: datetime | None = None
    deadline_at: datetime | None = None
    priority: int = 0
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict, repr=False)
    reopened: int = 0
    """How often it was let go on after it had ended."""
    compensation: list[dict[str, Any]] | None = None
    """What was undone when it failed: name, status, attempts and error of each, in that order."""
    failed_step: str | None = None
    """The path of the step, child or wait whose failure ended it; None if it has not failed, or its own code raised."""
    paused: str = ""
    """What an operator paused that holds it back: `workflow NAME`, `queue NAME`, `limit NAME`, parted by `; `.

    Only `describe` tells. A run that was paused itself has the status `paused`.
    """


def run_of(row: RunRow) -> Run:
    """Return a stored run in its public form."""
    return Run(
        id=row.id,
        workflow=row.workflow,
        version=row.version,
        status=row.status,
        waiting_for=words_of(row.wait),
        due_at=to_datetime(row.due) if row.due is not None else None,
        input=codec.decode(row.input),
        output=codec.decode(row.output) if row.output is not None else None,
        error=codec.decode(row.error, ErrorData) if row.error is not None else None,
        parent=row.parent,
        generation=row.generation,
        created_at=to_datetime(row.created),
        updated_at=to_datetime(row.updated),
        ended_at=to_datetime(row.ended) if row.ended is not None else None,
        owner=row.owner,
        epoch=row.epoch,
        key=row.key,
        begins_at=to_datetime(row.begins) if row.begins is not None else None,
        deadline_at=to_datetime(row.deadline) if row.deadline is not None else None,
        priority=row.priority,
        unique_key=row.unique_key,
        actor=row.actor,
        tenant=row.tenant,
        attributes=codec.decode(row.attributes),
        reopened=row.reopens,
        compensation=codec.decode(row.compensation) if row.compensation is not None else None,
        failed_step=row.failed_step or None,
    )
