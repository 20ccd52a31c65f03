"""Operations: what workers, callers and operators ask a store to do, and the outcomes that it returns."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import msgspec

from holdfast.clock import Instant
from holdfast.contract.limits import (
    CorrectPlaces,
    GrantTurns,
    LeaveLimits,
    LimitAnswer,
    PauseLimit,
    PutLimit,
    TakeTasks,
    TasksTaken,
)
from holdfast.contract.moves import ArriveRuns, ExpectRuns, FinishMove, ForgetArrival, GiveUpMove, MarkMoving
from holdfast.contract.rows import EntryRow, InboxKind, Message, Status
from holdfast.contract.tokens import WriteToken
from holdfast.contract.turns import (
    Audit,
    CommitTurn,
    EventRule,
    Lane,
    LeaveKey,
    LeaveLimit,
    NewLetter,
    NewRun,
    PublishEvent,
    RunEnd,
    StartRun,
)


class SendMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Put a message into a run's inbox from outside; `deduplicate` makes a second one with this id a duplicate.

    `dead_letter` keeps a message whose target has ended as a dead letter. One that a person sends carries an `audit`.
    """

    target: str
    name: str
    id: str
    payload: str
    at: Instant
    deduplicate: bool = False
    dead_letter: bool = False
    max_pending: int = 10_000
    audit: Audit | None = None

    def row(self, n: int) -> Message:
        """Return what the target finds in its inbox as number `n`."""
        return Message(n, InboxKind.MESSAGE, self.name, self.id, self.payload, self.at)


class RequestCancel(msgspec.Struct, frozen=True, kw_only=True):
    """Mark a run `cancelling` and tell its owner through the inbox; so are its children that are cancelled with it.

    A run that never began ends at once, unless it is `hooked`; `payload` is what its parent is then told. `compensate`
    asks it to undo. Refused for a run that is decided or compensating: it is ending already.
    """

    target: str
    at: Instant
    compensate: bool = False
    payload: str = ""
    unread: dict[str, str] = {}
    rules: dict[str, EventRule] = {}
    audit: Audit | None = None


class Terminate(msgspec.Struct, frozen=True, kw_only=True):
    """End a run here and now, whatever it is doing; no code of it runs. Children that are cancelled with it are.

    `decided` is how it ends as far as the caller knows. If it is decided otherwise, or was meanwhile, the answer is
    Refused with the reason "decided". `letters` are written with the end.
    """

    target: str
    end: RunEnd
    decided: Status | None = None
    letters: list[NewLetter] = []
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


class Nudge(msgspec.Struct, frozen=True, kw_only=True):
    """Let a step that waits to be tried again, or whose condition put it off, be tried now; or all such steps of a run.

    A run whose row says that such a step waits gets a `nudge` row (name = the step) and attention at once (`Delivered`,
    or `Done(0)` while the same row is unread). Refused ("nothing") if its row does not say so: it has ended, is paused,
    is running, or waits for something else. It changes when the next attempt begins, not how many there may be.
    """

    target: str
    at: Instant
    step: str = ""
    """The path of the step; empty for all."""
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
    kept: list[str] = []
    """Locations of steps that keep their results, and so what they left under their idempotency keys."""
    standing: list[str] = []
    """Paths of steps whose failure stays as it is: that deals with no letter of theirs."""
    lane: Lane | None = None
    """Where it waits for a place again, if its workflow has lanes."""
    undoing: bool = False
    """Whether it only undoes what is not undone yet: that deals with the letters of its compensations alone."""
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


class PutOnRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Write into the audit trail that a person was shown something of a run, and change nothing else.

    `Refused` if there is no such run.
    """

    target: str
    at: Instant
    audit: Audit


class PauseWork(msgspec.Struct, frozen=True, kw_only=True):
    """Let nothing of a workflow, or of a queue, begin until it is resumed; or (`paused` False) resume it."""

    kind: Literal["workflow", "queue"]
    name: str
    at: Instant
    paused: bool = True
    audit: Audit | None = None


class Acknowledge(msgspec.Struct, frozen=True, kw_only=True):
    """Mark a dead letter as seen, or forget it (`remove`)."""

    letter: str
    at: Instant
    remove: bool = False
    audit: Audit | None = None


class ReplayEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Deliver an undelivered event after all: to a run, or (`target` empty) to the runs that wait for its name."""

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


class FinishTask(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that this worker took from a queue has ended: its run finds `payload` in its inbox."""

    run: int
    location: str
    attempt: int
    worker: str
    payload: str
    at: Instant
    leave: LeaveLimit | None = None
    """What it gives back of its limit, unless it is fenced."""


class BeatTask(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt that this worker took from a queue reported progress."""

    run: int
    location: str
    attempt: int
    worker: str
    at: Instant
    detail: str


class Transact(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a step whose body writes in the transaction that records its end, and may take so long for it."""

    run: int
    epoch: int
    generation: int
    location: str
    attempt: int
    limit: timedelta


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
    only those seen), queued (events no run took; `unread` says what becomes of them), keys, ids, minutes or hours
    (figures), or evidence (all that the run with the id `run` put on record, however much and old).
    """

    what: str
    before: Instant
    at: Instant
    limit: int = 100
    keep_ids: Instant = 0
    acknowledged: bool = False
    unread: dict[str, str] = {}
    run: str = ""
    look: bool = False
    """Whether only to say which runs, dead letters or queued events would go."""
    only: list[str] | None = None
    """The ids of the runs that may go, of those that would; None for all."""
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
    | Nudge
    | Reopen
    | SetAttributes
    | Unblock
    | MarkMoving
    | FinishMove
    | GiveUpMove
    | ExpectRuns
    | ArriveRuns
    | ForgetArrival
    | Acknowledge
    | ReplayEvent
    | KeepResult
    | Beat
    | FinishTask
    | BeatTask
    | PutSchedule
    | PauseSchedule
    | DropSchedule
    | Tick
    | PauseWork
    | PutOnRecord
    | WriteToken
    | Purge
    | LeaveLimits
    | TakeTasks
    | CorrectPlaces
    | GrantTurns
    | PutLimit
    | PauseLimit
)


class KeyAnswer(msgspec.Struct, frozen=True):
    """What became of taking a key: taken, held (by another), hit (with its result) or conflict (other arguments)."""

    outcome: str
    result: str = ""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """A turn is durable. `messages` are inbox rows beyond `State.seen`; `refused` maps locations to the reason."""

    key: int
    messages: tuple[Message, ...] = ()
    refused: dict[str, str] = {}
    keys: dict[str, KeyAnswer] = {}
    """The answers to `TurnEffects.takes`, by location."""
    woke_others: bool = False
    """Whether rows were put into other runs' inboxes."""
    limits: dict[str, LimitAnswer] = {}
    """The answers to `TurnEffects.enters`, by location."""


class Fenced(msgspec.Struct, frozen=True):
    """Another epoch holds the run, or it has ended; nothing of the operation was written."""

    key: int


class InboxMoved(msgspec.Struct, frozen=True):
    """A row of another process came into the inbox first; nothing of the operation was written."""

    key: int


class Started(msgspec.Struct, frozen=True, gc=False):
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
    """Run `key` was told, by this row of its inbox; `owner` is the worker to wake, if any.

    There is no row when the run knew already, ended by it, or has ended and the message is kept as a dead letter.
    """

    key: int
    owner: str | None = None
    row: Message | None = None
    duplicate: bool = False
    """The id was sent before; nothing was written."""

    @property
    def n(self) -> int:
        """The number of the row, 0 if there is none."""
        return self.row.n if self.row is not None else 0


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
    rejected: tuple[str, ...] = ()
    """Of a tick: the runs that were not started, because their workflow has as many as it may."""


Outcome = (
    Committed | Fenced | InboxMoved | Started | Existing | KeyHeld | Delivered | Published | Refused | Done | TasksTaken
)
