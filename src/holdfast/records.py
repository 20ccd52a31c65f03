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
    """One row of a run's inbox.

    `kind` is message; event (one that this run alone was given) or notice (a copy of one that everybody gets); child
    (the end of a child run); cancel, pause, resume (somebody acts on the run); key (an idempotency key may be free).
    """

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


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What may be said about a run when it is started.

    `begins` delays it. `timeout` is how long it may take from its beginning, in microseconds. `unique_key` is held
    while the run is open, one per workflow. `attributes` are searchable: JSON values by name.
    """

    begins: Instant | None = None
    timeout: int | None = None
    priority: int = 0
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    attributes: dict[str, str] = {}
    cancel_with_parent: bool = False


NO_OPTIONS = RunOptions()


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
    options: RunOptions = NO_OPTIONS


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A message a turn sends to another run.

    `location` and `seq` name the sender's own entry for the call. If the target does not exist or has ended, that
    entry's data is replaced in the same transaction by the one of `refusals` for the reason (missing, full, or the
    target's terminal status), so that the refusal survives a crash.
    """

    target: str
    name: str
    id: str
    payload: str
    at: Instant
    location: str
    seq: int
    refusals: dict[str, str]
    max_pending: int = 10_000


class StartChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child run a turn starts; if the id is taken the entry's data is replaced by `taken`."""

    run: NewRun
    location: str
    seq: int
    taken: str


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """How events of one name are delivered, as the engine that delivers is configured.

    `single` events go to one run and are gone; others go to every waiting run and stay for later ones. A queued event
    is given to a new waiter only if it is not older than `not_before`. More than `max_pending` are refused.
    """

    single: bool = True
    keep: bool = True
    """Whether one that everybody was given stays for later waiters."""
    not_before: Instant = 0
    expired: Instant = 0
    """Events older than this are gone."""
    max_pending: int = 10_000


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A receive that waits: the names it takes, each with the rule for events queued under it."""

    location: str
    since: Instant
    names: dict[str, EventRule]
    seen: int = 0
    """The inbox number the run has taken in: messages beyond it come before any event."""


class PublishEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event by name, for whoever waits; `deduplicate` remembers the id so that a second one is not published again.

    Published by a turn, `location` and `seq` name its own entry for the call, whose data is replaced by `refusal` when
    the queue is full.
    """

    name: str
    id: str
    payload: str
    at: Instant
    rule: EventRule
    deduplicate: bool = False
    location: str = ""
    seq: int = 0
    refusal: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One item for a run's audit trail, chained by the store to the one before it."""

    id: str
    kind: str
    data: str
    at: Instant


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request, by the id of the message that asked."""

    message: str
    payload: str


class NewLetter(msgspec.Struct, frozen=True, kw_only=True):
    """Work given up on: a step (empty: the workflow itself), its attempts, its error."""

    id: str
    step: str
    attempts: int
    error: str


class TakeKey(msgspec.Struct, frozen=True, kw_only=True):
    """Take an idempotency key for the step at a location, whose arguments have this digest."""

    activity: str
    key: str
    digest: int
    location: str


class LeaveKey(msgspec.Struct, frozen=True, kw_only=True):
    """Give up a key: with a result others may have until `expires`, or without, so that another may try."""

    activity: str
    key: str
    result: str | None = None
    expires: Instant = 0


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What few turns ask for, kept apart so that the many are small."""

    forget_waits: bool = False
    """Whether only the `waits` given here stand: the run was claimed anew."""
    waits: list[Wait] = []
    unwaits: list[str] = []
    returns: list[int] = []
    """Numbers of event rows of the inbox that nobody waits for any more: somebody else may have them."""
    publishes: list[PublishEvent] = []
    attributes: dict[str, str | None] = {}
    evidence: list[Evidence] = []
    replies: list[Reply] = []
    letters: list[NewLetter] = []
    takes: list[TakeKey] = []
    leaves: list[LeaveKey] = []
    version: str = ""
    """The version of the workflow that runs, if the row does not say."""


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
    compensation: str | None = None
    unread: dict[str, str] = {}
    """What becomes of unread messages by name: republish or dead_letter; those of other names are discarded."""
    rules: dict[str, EventRule] = {}
    """The rules of the names to republish, and of events that go back to their queue."""


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
    extras: Extras | None = None


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """Insert a run; `turn` is its first turn (its key and epoch are filled in by the store), kept only if inserted."""

    run: NewRun
    turn: CommitTurn | None = None
    audit: Audit | None = None


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Who does what to a run or to the store; written in the transaction that does it."""

    actor: str
    action: str
    detail: str = ""


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Put a message into a run's inbox from outside; `deduplicate` makes a second one with this id a duplicate.

    `dead_letter` keeps a message whose target has ended as a dead letter.
    """

    target: str
    name: str
    id: str
    payload: str
    at: Instant
    deduplicate: bool = False
    dead_letter: bool = False
    max_pending: int = 10_000


class RequestCancel(msgspec.Struct, frozen=True, kw_only=True):
    """Mark a run `cancelling` and tell its owner through the inbox; so are its children that are cancelled with it.

    A run that never began ends at once; `payload` is what its parent is then told. `compensate` asks it to undo.
    """

    target: str
    at: Instant
    compensate: bool = False
    payload: str = ""
    unread: dict[str, str] = {}
    rules: dict[str, EventRule] = {}
    audit: Audit | None = None


class Terminate(msgspec.Struct, frozen=True, kw_only=True):
    """End a run here and now, whatever it is doing; no code of it runs. Children that are cancelled with it are."""

    target: str
    end: End
    audit: Audit | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Let a run begin nothing more until it is resumed, or until an instant."""

    target: str
    at: Instant
    until: Instant | None = None
    audit: Audit | None = None


class Unpause(msgspec.Struct, frozen=True, kw_only=True):
    """Let a paused run go on."""

    target: str
    at: Instant
    audit: Audit | None = None


class Reopen(msgspec.Struct, frozen=True, kw_only=True):
    """Let an ended run go on from an earlier point of its history.

    Facts from `cut` on are archived, `entries` are appended after those before it, `messages` are put into the inbox
    again. `epoch` is the one seen when the cut was decided: if it moved, nothing is done. `children` are reopened with
    it, all or none.
    """

    target: str
    epoch: int
    cut: int
    at: Instant
    entries: list[EntryRow] = []
    messages: list[Message] = []
    children: list[Reopen] = []
    letter: str = ""
    """The dead letter on whose behalf: if it was dealt with meanwhile, nothing is done."""
    unended: list[str] = []
    """Children that were open when the cut was decided: if one has ended since, nothing is done."""
    audit: Audit | None = None


class SetAttributes(msgspec.Struct, frozen=True, kw_only=True):
    """Set searchable attributes of a run, ended or not; a value of None removes one."""

    target: str
    attributes: dict[str, str | None]
    at: Instant
    audit: Audit | None = None


class Unblock(msgspec.Struct, frozen=True, kw_only=True):
    """Make blocked runs runnable again: those of `workflow` blocked under another `fingerprint`, or one `target`."""

    at: Instant
    workflow: str = ""
    fingerprint: str = ""
    target: str = ""
    audit: Audit | None = None


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Mark a dead letter as seen, or forget it (`remove`)."""

    letter: str
    at: Instant
    remove: bool = False
    audit: Audit | None = None


class ReplayEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Deliver an undelivered event after all: to a run, or (`target` empty) to whoever waits for its name."""

    letter: str
    at: Instant
    target: str = ""
    rule: EventRule = EventRule()
    audit: Audit | None = None


class KeepResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that came too late for its run but may serve the next attempt, if the key is still the run's."""

    run: int
    leave: LeaveKey


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """A step reported progress."""

    key: int
    epoch: int
    location: str
    at: Instant
    detail: str


class PutSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Create a schedule or change one; `next` is its first tick. `schedule.spec` is the engine's own business."""

    id: str
    workflow: str
    spec: str
    input: str
    next: Instant | None
    paused: bool
    at: Instant
    audit: Audit | None = None


class PauseSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Pause a schedule, or let it go on with the tick given; the rest of it stays as it is."""

    id: str
    paused: bool
    next: Instant | None
    at: Instant
    audit: Audit | None = None


class DropSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """Forget a schedule; its runs stay."""

    id: str
    at: Instant
    audit: Audit | None = None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Start the runs of one tick, exactly once: only while the schedule's next tick is still `expected`.

    `overlap` says what becomes of it while the last run is open: allow; skip; cancel (the old one is asked to stop).
    """

    schedule: str
    expected: Instant
    next: Instant | None
    runs: list[NewRun]
    overlap: str
    at: Instant
    cancel: RequestCancel | None = None


class Purge(msgspec.Struct, frozen=True, kw_only=True):
    """Delete up to `limit` rows of one kind that are older than an instant.

    `what` is a terminal status (runs, leaving tombstones until `keep_ids`), work or event (dead letters; `acknowledged`
    only those seen), queued (events nobody took; `unread` says what becomes of them), keys, ids.
    """

    what: str
    before: Instant
    at: Instant
    limit: int = 100
    keep_ids: Instant = 0
    acknowledged: bool = False
    unread: dict[str, str] = {}
    audit: Audit | None = None


Operation = (
    CommitTurn
    | StartRun
    | SendMessage
    | PublishEvent
    | RequestCancel
    | Terminate
    | Pause
    | Unpause
    | Reopen
    | SetAttributes
    | Unblock
    | Acknowledge
    | ReplayEvent
    | KeepResult
    | Beat
    | PutSchedule
    | PauseSchedule
    | DropSchedule
    | Tick
    | Purge
)


class KeyAnswer(msgspec.Struct, frozen=True):
    """What became of taking a key: taken, held (by another), hit (with its result) or conflict (other arguments)."""

    outcome: str
    result: str = ""


class Committed(msgspec.Struct, frozen=True):
    """A turn is durable. `messages` are inbox rows beyond `State.seen`; `refused` maps locations to the reason."""

    key: int
    messages: tuple[Message, ...] = ()
    refused: dict[str, str] = {}
    keys: dict[str, KeyAnswer] = {}
    """The answers to `Extras.takes`, by location."""
    stirred: bool = False
    """Whether rows were put into other runs' inboxes."""


class Fenced(msgspec.Struct, frozen=True):
    """Another epoch holds the run, or it has ended; nothing of the operation was written."""

    key: int


class Started(msgspec.Struct, frozen=True):
    """The run was inserted; `committed` is the outcome of its first turn."""

    key: int
    committed: Committed | None = None


class Existing(msgspec.Struct, frozen=True):
    """The id was taken; nothing was written. A run that was purged has neither key nor status."""

    key: int
    workflow: str
    digest: int
    status: Status | None


class KeyHeld(msgspec.Struct, frozen=True):
    """An open run of the same workflow has this unique key; nothing was written."""

    key: int
    id: str


class Delivered(msgspec.Struct, frozen=True):
    """The message is in the inbox of run `key` as number `n`; `owner` is the worker to wake, if any."""

    key: int
    n: int
    owner: str | None
    duplicate: bool = False
    """The id was sent before; nothing was written."""


class Published(msgspec.Struct, frozen=True):
    """The event was given to so many runs; none: it is queued. `duplicate`: its id was published before."""

    runs: int
    duplicate: bool = False


class Refused(msgspec.Struct, frozen=True):
    """Nothing was written. `status` is where the target stands, which forbids it; None when there is no such thing.

    `reason` is full when a queue has no room, `moved` when the target is no longer what was decided on, `tick` when
    another worker had it.
    """

    status: Status | None
    reason: str = ""


class Done(msgspec.Struct, frozen=True):
    """An operation took effect on so many rows; `ids` name them where that matters."""

    count: int
    ids: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    """Workers to wake because of it."""


Outcome = Committed | Fenced | Started | Existing | KeyHeld | Delivered | Published | Refused | Done


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
    begins: Instant | None = None
    deadline: Instant | None = None
    reopens: int = 0
    paused: bool = False
    """Whether it was paused until now."""


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
    completed, failed, cancelled.
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
    """Something somebody did, chained to what was done before it."""

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


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """How much there is of everything: runs by status, dead letters by (kind, outcome, seen), queued events by name."""

    runs: dict[str, int]
    letters: list[tuple[str, str, bool, int]]
    events: dict[str, int]
