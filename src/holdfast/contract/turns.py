"""What the owner of a run wants made durable at once: a turn and its parts, or a new run.

These values never refer back to their holders, and there are thousands of them while many runs wake at once. So the
garbage collector ignores the largest of them: `gc=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow, InboxKind, Message, Status


class Parent(msgspec.Struct, frozen=True):
    """The call that started a child run."""

    key: int
    id: str
    location: str


class Lane(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a run waits for its turn and for a place: among the runs of its workflow with the same key.

    `at_once` may hold a place at the same time, and `rate` begin within `per` microseconds; None is any number. When
    they are all taken a new run waits, is refused (`reject`), or stops the oldest (`cancel_oldest`). With a debounce
    `window` a new run begins that much later, at most `longest` after the first of the window, and ends the one that
    waits under its key. Whatever it ends, ends as `end` says; `rejection` ends the run itself where there is no caller
    to be refused.
    """

    key: str = ""
    at_once: int | None = None
    rate: int | None = None
    per: int = 0
    on_full: Literal["wait", "reject", "cancel_oldest"] = "wait"
    window: int = 0
    longest: int = 0
    end: RunEnd | None = None
    rejection: RunEnd | None = None


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
    lane: Lane | None = None
    """Where it waits, if its workflow has a key, a limit or a debounce window."""


NO_OPTIONS = RunOptions()


class NewRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    hooked: bool = False
    """Whether its code is to be told if it is cancelled before it began."""


class Send(msgspec.Struct, frozen=True, kw_only=True):
    """A message a turn sends to another run.

    `location` and `seq` name the sender's own entry for the call. If the target does not exist or has ended, that
    entry's data is replaced in the same transaction by the one of `refusals` for the reason (missing, full, or the
    target's terminal status; behind `moved` stands the address), so that the refusal survives a crash.
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

    def row(self, n: int) -> Message:
        """Return what the target finds in its inbox as number `n`."""
        return Message(n, InboxKind.MESSAGE, self.name, self.id, self.payload, self.at)


class StartChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child run a turn starts; if the id is taken the entry's data is replaced by `taken`.

    If there is no place for it, it is replaced by the one of `refusals` for the reason (full, ancestors).
    """

    run: NewRun
    location: str
    seq: int
    taken: str
    refusals: dict[str, str] = {}


class EventRule(msgspec.Struct, frozen=True, kw_only=True):
    """How events of one name are delivered, as the engine that delivers is configured.

    `single` events go to one run and are gone; others go to every waiting run and stay for later ones. A queued event
    is given to a new waiter only if it is not older than `not_before`. More than `max_pending` are refused.
    """

    single: bool = True
    keep: bool = True
    """Whether one that every waiting run was given stays for later ones."""
    not_before: Instant = 0
    expired: Instant = 0
    """Events older than this are gone."""
    max_pending: int = 10_000

    @property
    def kind(self) -> InboxKind:
        """What a run that is given such an event finds in its inbox."""
        return InboxKind.EVENT if self.single else InboxKind.NOTICE


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A receive that waits: the names it takes, each with the rule for events queued under it."""

    location: str
    since: Instant
    names: dict[str, EventRule]
    seen: int = 0
    """The inbox number the run has taken in: messages beyond it come before any event."""


class PublishEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event by name, for runs that wait; `deduplicate` remembers the id so that a second one is not published again.

    Published by a turn, `location` and `seq` name its own entry for the call, whose data is replaced by `refusal` when
    the queue is full. Published by a person, it carries an `audit`.
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
    audit: Audit | None = None


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
    """Work given up on: a step (empty: the workflow itself), its attempts, its error.

    `attempts` is the number of the last one, `failures` how many of them threw or timed out. `arguments` are those of
    the step, a JSON object by the names of its parameters. `idempotent` tells whether its activity says so.
    """

    id: str
    step: str
    attempts: int
    error: str
    failures: int = 0
    arguments: str | None = None
    compensation: bool = False
    idempotent: bool = False


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


class NewTask(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a step that any worker serving its queue may run; `payload` has its arguments."""

    location: str
    attempt: int
    queue: str
    activity: str
    payload: str
    priority: int = 0
    limit_key: str = ""
    """The key under which it uses the limit of its activity, if that has one."""


class EnterLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Take a place of a limit for the attempt at a location, or wait for one; `now` is the lease's time."""

    limit: str
    key: str
    location: str
    worker: str
    now: Instant
    priority: int = 0
    counted: int = 0
    """How many places the worker knows are counted for it, if it kept one that the attempt is to have; else 0."""


class LeaveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What the end of an attempt means for its limit.

    It gives back so many `places` of a worker. `verdict` is what the attempt says of the service: `ok`, `failed` (it
    raised, timed out or crashed), or nothing. With `hold` the service said to come back after so many microseconds.
    """

    limit: str
    key: str
    worker: str
    now: Instant
    places: int = 1
    verdict: str = ""
    hold: int | None = None
    probe: bool = False
    """Whether the attempt was to try whether the service is back."""


class TurnEffects(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a turn changes besides its own history and state: rare, so kept apart."""

    forget_waits: bool = False
    """Whether only the `waits` given here stand: the run was claimed again."""
    waits: list[Wait] = []
    unwaits: list[str] = []
    returns: list[int] = []
    """Numbers of event rows of the inbox that the run no longer waits for: another run may have them."""
    publishes: list[PublishEvent] = []
    attributes: dict[str, str | None] = {}
    evidence: list[Evidence] = []
    replies: list[Reply] = []
    letters: list[NewLetter] = []
    takes: list[TakeKey] = []
    leaves: list[LeaveKey] = []
    tasks: list[NewTask] = []
    """Attempts for other workers; one whose step did not get its key in this commit is left out."""
    untasks: list[str] = []
    """Locations whose attempt is given up: no worker begins it any more, and what comes of it is refused."""
    version: str = ""
    """The version of the workflow that runs, if the row does not say."""
    enters: list[EnterLimit] = []
    """Limits that attempts enter; one whose step did not get its key in this commit does not."""
    exits: list[LeaveLimit] = []
    unlimits: list[tuple[str, Instant]] = []
    """Locations of steps that wait for a limit no longer, and the lease's time, for those that wait after them."""
    enter: Lane | None = None
    """The lane that a run enters after it was claimed: it was started where its workflow was not known."""


class State(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    conclusion: Status | None = None
    """How the run ends, once it is decided: from then on it has no unique key, and only its hooks are called."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The end of a run: releases it, empties its inbox, and delivers `payload` to its parent's inbox if it has one."""

    status: Status
    at: Instant
    output: str | None = None
    error: str | None = None
    payload: str = ""
    compensation: str | None = None
    failed_step: str | None = None
    """The path of the call whose failure ended it, empty if its own code raised."""
    fingerprint: str | None = None
    """Of the code that it failed under."""
    unread: dict[str, str] = {}
    """What becomes of unread messages by name: republish or dead_letter; those of other names are discarded."""
    rules: dict[str, EventRule] = {}
    """The rules of the names to republish, and of events that go back to their queue."""
    workflow: str = ""
    """Its workflow, if it may hold a place: those who wait in its lane are looked for."""


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    """Continue-as-new: forget the history, keep id, inbox and owner, begin again with this input."""

    input: str
    generation: int


class CommitTurn(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything one run wants made durable at once, fenced by its epoch."""

    key: int
    epoch: int
    at: Instant
    entries: Sequence[EntryRow] = ()
    consumed: Sequence[int] = ()
    trims: Sequence[tuple[str, str]] = ()
    sends: Sequence[Send] = ()
    children: Sequence[StartChild] = ()
    state: State | None = None
    end: RunEnd | None = None
    renewal: Renewal | None = None
    reset_claims: bool = False
    trial: bool = False
    """Whether it says that the run, taken alone, is about to be driven: see Store.claim."""
    effects: TurnEffects | None = None
    inbox: int | None = None
    """The number its inbox must have come to, if it takes a row that an operation just before it puts there."""


class StartRun(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Insert a run; `turn` is its first turn (its key and epoch are filled in by the store), kept only if inserted."""

    run: NewRun
    turn: CommitTurn | None = None
    audit: Audit | None = None


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Who does what to a run or to the store; written in the transaction that does it."""

    actor: str
    action: str
    detail: str = ""
