"""A run while a batch changes it, and the rows it is read from and written as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.clock import Instant
from holdfast.contract.turns import NewRun

Value = str | int | None
Row = tuple[Value, ...]


class RunState:
    """The mutable part of a run, as `run_by_key` reads it."""

    __slots__ = (
        "key", "id", "workflow", "status", "wait", "due", "epoch", "owner", "generation", "inbox", "claims", "lost",
        "digest", "parent", "fingerprint", "updated", "ended", "unique_key", "timeout", "deadline", "reopens", "traces",
        "begins", "new", "dirty",
    )  # fmt: skip

    key: int
    id: str
    workflow: str
    status: str
    wait: str
    due: Instant | None
    epoch: int
    owner: str | None
    generation: int
    inbox: int
    claims: int
    lost: str
    digest: int
    parent: int | None
    fingerprint: str | None
    updated: Instant
    ended: Instant | None
    unique_key: str | None
    timeout: int | None
    deadline: Instant | None
    reopens: int
    traces: int
    begins: Instant | None

    def __init__(self, row: Sequence[Any]) -> None:
        (
            self.key, self.id, self.workflow, self.status, self.wait, self.due, self.epoch, self.owner, self.generation,
            self.inbox, self.claims, self.lost, self.digest, self.parent, self.fingerprint, self.updated, self.ended,
            self.unique_key, self.timeout, self.deadline, self.reopens, self.traces,
            self.begins,
        ) = row  # fmt: skip
        self.new: NewRun | None = None
        self.dirty = False


def new_row(run: RunState, new: NewRun) -> Row:
    """Return the parameters of `insert_runs`."""
    parent, options = new.parent, new.options
    return (
        run.key, run.id, run.workflow, new.version, run.status, run.wait, run.due, run.epoch, run.owner,
        run.generation, run.inbox, run.claims, run.lost, new.seed, run.digest, run.parent,
        parent.id if parent else None, parent.location if parent else None,
        run.fingerprint, new.at, run.updated, run.ended, options.priority, options.begins, options.timeout,
        run.deadline, options.unique_key, options.actor, options.tenant, int(options.cancel_with_parent), run.reopens,
        run.traces,
    )  # fmt: skip


def changed_row(run: RunState) -> Row:
    """Return the parameters of `update_runs`."""
    return (
        run.key, run.status, run.wait, run.due, run.owner, run.generation, run.inbox, run.claims, run.lost,
        run.fingerprint, run.updated, run.ended, run.epoch, run.deadline, run.reopens, run.traces,
    )  # fmt: skip
