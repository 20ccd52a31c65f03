"""Frozen rows that cross the store line.

Payloads are JSON text, already encoded; the store never looks inside. Instants are microseconds (see `clock`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.clock import Instant


class Status(StrEnum):
    """Where a run stands. `completed`, `failed` and `cancelled` are terminal."""

    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    COMPENSATING = "compensating"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    BLOCKED = "blocked"

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class EntryRow(NamedTuple):
    """One fact of a run's history as stored: `location` sorts by bytes, `seq` orders the run's facts."""

    location: str
    seq: int
    kind: int
    at: Instant
    data: str


class Message(NamedTuple):
    """One row of a run's inbox. `kind` is message, child (the end of a child run) or cancel."""

    n: int
    kind: str
    name: str
    id: str
    payload: str
    at: Instant


class Parent(msgspec.Struct, frozen=True):
    """The call that started a child run."""

    key: int
    id: str
    location: str


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to insert. With `owner` it is claimed by that worker at once (status running, epoch 1)."""

    id: str
    workflow: str
    version: str
    input: str
    digest: int
    seed: int
    at: Instant
    parent: Parent | None = None
    owner: str | None = None


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A message a turn sends to another run.

    `location` and `seq` name the sender's own entry for the call. If the target does not exist or has ended, that
    entry's data is replaced in the same transaction by the one of `refusals` for the reason (missing, or the target's
    terminal status), so that the refusal survives a crash.
    """

    target: str
    name: str
    id: str
    payload: str
    at: Instant
    location: str
    seq: int
    refusals: dict[str, str]


class StartChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child run a turn starts; if the id is taken the entry's data is replaced by `taken`."""

    run: NewRun
    location: str
    seq: int
    taken: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is doing now, written when it changes.

    `seen` is the inbox number the run has taken in; if the inbox has moved since, `due` is stored as due at once and
    the new rows come back with the outcome. `released` gives up ownership (the run was evicted or handed back).
    """

    status: Status
    seen: int
    wait: str = ""
    due: Instant | None = None
    released: bool = False
    error: str | None = None
    fingerprint: str | None = None


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a run: releases it, empties its inbox, and delivers `payload` to its parent's inbox if it has one."""

    status: Status
    at: Instant
    output: str | None = None
    error: str | None = None
    payload: str = ""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Continue-as-new: forget the history, keep id, inbox and owner, begin again with this input."""

    input: str
    generation: int


class CommitTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one run wants made durable at once, fenced by its epoch."""

    key: int
    epoch: int
    at: Instant
    entries: list[EntryRow] = []
    consumed: list[int] = []
    trims: list[tuple[str, str]] = []
    sends: list[Send] = []
    children: list[StartChild] = []
    state: State | None = None
    end: End | None = None
    renewal: Renewal | None = None
    reset_claims: bool = False


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """Insert a run; `turn` is its first turn (its key and epoch are filled in by the store), kept only if inserted."""

    run: NewRun
    turn: CommitTurn | None = None


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Put a message into a run's inbox from outside."""

    target: str
    name: str
    id: str
    payload: str
    at: Instant


class RequestCancel(msgspec.Struct, frozen=True, kw_only=True):
    """Mark a run `cancelling` and tell its owner through the inbox."""

    target: str
    at: Instant


class Unblock(msgspec.Struct, frozen=True, kw_only=True):
    """Make blocked runs runnable again: those of `workflow` blocked under another `fingerprint`, or one `target`."""

    at: Instant
    workflow: str = ""
    fingerprint: str = ""
    target: str = ""


Operation = CommitTurn | StartRun | SendMessage | RequestCancel | Unblock


class Committed(msgspec.Struct, frozen=True):
    """A turn is durable. `messages` are inbox rows beyond `State.seen`; `refused` maps locations to the reason."""

    key: int
    messages: tuple[Message, ...] = ()
    refused: dict[str, str] = {}


class Fenced(msgspec.Struct, frozen=True):
    """Another epoch holds the run, or it has ended; nothing of the operation was written."""

    key: int


class Started(msgspec.Struct, frozen=True):
    """The run was inserted; `committed` is the outcome of its first turn."""

    key: int
    committed: Committed | None = None


class Existing(msgspec.Struct, frozen=True):
    """The id was taken; nothing was written."""

    key: int
    workflow: str
    digest: int
    status: Status


class Delivered(msgspec.Struct, frozen=True):
    """The message is in the inbox of run `key` as number `n`; `owner` is the worker to wake, if any."""

    key: int
    n: int
    owner: str | None


class Refused(msgspec.Struct, frozen=True):
    """Nothing was written. `status` is the terminal status of the target, or None when there is no such run."""

    status: Status | None


class Unblocked(msgspec.Struct, frozen=True):
    """How many blocked runs were made runnable."""

    count: int


Outcome = Committed | Fenced | Started | Existing | Delivered | Refused | Unblocked


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A run taken by a worker. `lost` is crash or lapse when it was taken from a worker that died or hung."""

    key: int
    id: str
    epoch: int
    workflow: str
    version: str
    input: str
    seed: int
    generation: int
    status: Status
    lost: str
    claims: int
    created: Instant
    parent: str | None


class History(msgspec.Struct, frozen=True):
    """What a claimed run needs to continue: facts in order of seq, unread inbox rows, the number they go up to."""

    key: int
    entries: list[EntryRow]
    messages: list[Message]
    seen: int


class Held(NamedTuple):
    """A run that a worker owns, as far as the store knows."""

    key: int
    epoch: int
    status: Status


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the store has it, for people and programs that look."""

    key: int
    id: str
    workflow: str
    version: str
    status: Status
    wait: str
    due: Instant | None
    epoch: int
    owner: str | None
    generation: int
    seed: int
    digest: int
    inbox: int
    claims: int
    input: str
    output: str | None
    error: str | None
    parent: str | None
    created: Instant
    updated: Instant
    ended: Instant | None


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first; `before` is the key of the last run of the previous page."""

    workflow: str | None = None
    status: Status | None = None
    parent: str | None = None
    limit: int = 100
    before: int | None = None
