"""Rows of the store, as frozen records.

Payloads are JSON text, already encoded; the store never looks inside. Instants are microseconds (see `clock`).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from holdfast.clock import Instant


class Status(StrEnum):
    """Where a run stands. `completed`, `failed` and `cancelled` are terminal, and `moved` is here."""

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
    MOVING = "moving"
    """On its way to another runtime: it acts here no more."""
    MOVED = "moved"
    """It goes on in another runtime; its row names the address."""

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended."""
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.MOVED})
AWAY = frozenset({Status.MOVING, Status.MOVED})
"""Where operators are sent to the other side."""
UNDECIDED = "open"
"""The conclusion of a run whose code is told of a cancel even if it never began, until it is decided how it ends."""


class EntryRow(NamedTuple):
    """One fact of a run's history as stored: `location` sorts by bytes, `seq` orders the run's facts."""

    location: str
    seq: int
    kind: int
    at: Instant
    data: str


class InboxKind(StrEnum):
    """What a row of an inbox tells its run."""

    MESSAGE = "message"
    EVENT = "event"
    """An event that this run alone was given."""
    NOTICE = "notice"
    """A copy of an event that every waiting run is given."""
    CHILD_ENDED = "child_ended"
    """A child has ended; the name is its id."""
    CANCEL = "cancel"
    """An operator, or the end of the parent, asks the run to stop; the payload says whether to compensate."""
    PAUSE = "pause"
    """An operator pauses the run; the payload says until when."""
    RESUME = "resume"
    """An operator lets the run go on."""
    KEY_FREED = "key_freed"
    """An idempotency key may be free; the name is the location of the step that waits for it."""
    TASK_ENDED = "task_ended"
    """An attempt has ended that another worker, or a transaction, ran; the name is its location, the id its number."""
    LIMIT_TURN = "limit_turn"
    """A step that waits for a limit may begin; the name is its location, the id the limit, the payload from when on."""
    NUDGE = "nudge"
    """An operator wants a step tried now that waits to be tried again; the name is its path, empty for all of them."""


FOR_CODE = frozenset({InboxKind.MESSAGE, InboxKind.EVENT, InboxKind.NOTICE, InboxKind.CHILD_ENDED, InboxKind.CANCEL})
"""Rows that become facts of the workflow's code; the others the worker that has the run takes for itself."""

FROM_OPERATOR = frozenset({InboxKind.CANCEL, InboxKind.PAUSE, InboxKind.RESUME})
"""Rows that say what an operator asks of the run."""

COMPENSATE = '{"compensate":true}'
"""The payload of a request to cancel that asks to undo what was done."""


class Message(NamedTuple):
    """One row of a run's inbox; `kind` is an InboxKind."""

    n: int
    kind: str
    name: str
    id: str
    payload: str
    at: Instant


class RunPlace(IntEnum):
    """Whether a run holds one of the places that its workflow has (`runs.place`)."""

    NONE = 0
    """It needs none."""
    WAITS = 1
    """No worker may claim it, until it is its turn."""
    HOLDS = 2


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A run taken by a worker. `lost` is crash or lapse when it was taken from a worker that died or hung.

    `died` is when a worker that died was last known to be alive, `deaths` how many workers died of late, itself among
    them.
    """

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
    begins: Instant | None = None
    deadline: Instant | None = None
    reopens: int = 0
    paused: bool = False
    """Whether it was paused until now."""
    died: Instant | None = None
    deaths: int = 0
    place: int = 0
    due: Instant | None = None
    """Since when it was due."""


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a step that a worker took from a queue."""

    run: int
    run_id: str
    workflow: str
    location: str
    attempt: int
    queue: str
    activity: str
    payload: str


class History(msgspec.Struct, frozen=True):
    """What a claimed run needs to continue: facts in order of seq, unread inbox rows, the number they go up to."""

    key: int
    entries: list[EntryRow]
    messages: list[Message]
    seen: int
    tasks: dict[str, int] = {}
    """Attempts that wait in a queue or were taken from one: their numbers by location."""
    limits: dict[str, Instant | None] = {}
    """Steps that wait for a limit, by location: from when they may begin, None while others are before them."""


class Held(NamedTuple):
    """A run that a worker owns, as far as the store knows."""

    key: int
    epoch: int
    status: Status


class TakenOver(NamedTuple):
    """A worker that was declared dead, and the ids of the runs it was running, which any worker may claim now."""

    worker: str
    lost: str
    """How: crash or lapse."""
    runs: list[str]


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
    begins: Instant | None = None
    deadline: Instant | None = None
    priority: int = 0
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    reopens: int = 0
    compensation: str | None = None
    attributes: str = "{}"
    """A JSON object of the searchable attributes."""
    failed_step: str | None = None
    """The path of the call whose failure ended it, empty if its own code raised."""
    conclusion: str | None = None
    """How it ends, while its hooks are called; otherwise None, or UNDECIDED."""
    fingerprint: str | None = None
    """Of the code that it was blocked under, or failed."""


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first; `before` is the key of the last run of the previous page."""

    workflow: str | None = None
    status: Status | None = None
    parent: str | None = None
    actor: str | None = None
    tenant: str | None = None
    unique_key: str | None = None
    attributes: dict[str, str] = {}
    """JSON values that the attributes of these names must have."""
    created_from: Instant | None = None
    created_until: Instant | None = None
    limit: int = 100
    before: int | None = None


class LetterRow(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter: work given up on, or an event that could not be delivered.

    `target_status` and `sent` are those of an event; `outcome` says what became of replaying it: empty, replayed,
    completed, failed, cancelled. What follows it is as in NewLetter.
    """

    id: str
    kind: str
    run: str
    workflow: str
    step: str
    name: str
    attempts: int
    error: str | None
    payload: str
    target_status: str
    sent: Instant | None
    at: Instant
    acknowledged: Instant | None
    outcome: str
    failures: int = 0
    arguments: str | None = None
    compensation: bool = False
    idempotent: bool = False


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list, newest first; `before` is the id of the last of the previous page."""

    kind: str | None = None
    workflow: str | None = None
    run: str | None = None
    name: str | None = None
    acknowledged: bool | None = None
    id: str | None = None
    limit: int = 100
    before: str | None = None


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """Something an operator or a program did, chained to what was done before it."""

    n: int
    at: Instant
    actor: str
    action: str
    target: str
    detail: str
    previous: str
    hash: str


class EvidenceRow(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a run's audit trail, chained to the one before it."""

    run: str
    n: int
    id: str
    kind: str
    data: str
    at: Instant
    previous: str
    hash: str


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as the store has it."""

    id: str
    workflow: str
    spec: str
    input: str
    next: Instant | None
    paused: bool
    last_run: str | None
    created: Instant
    updated: Instant


class EventRow(NamedTuple):
    """An event that waits for a run to receive its name."""

    n: int
    name: str
    id: str
    payload: str
    at: Instant


class PausedRow(NamedTuple):
    """A workflow or a queue (`kind`) of which nothing begins, and since when."""

    kind: str
    name: str
    since: Instant


class LaneRow(NamedTuple):
    """How many runs of a workflow with one key wait for their turn or for a place, and hold one."""

    workflow: str
    key: str
    waiting: int
    holding: int
    since: Instant | None
    """From when the first that waits may begin."""


class RunStanding(NamedTuple):
    """Where a run stands and, if it has ended, what came of it."""

    status: Status
    output: str | None = None
    error: str | None = None


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of everything: runs by status, dead letters by (kind, outcome, seen), queued events by name."""

    runs: dict[str, int]
    letters: list[tuple[str, str, bool, int]]
    events: dict[str, int]
