"""Moving runs to another runtime: what a store is asked to do so that at most one side can act at any moment.

A run that is `moving` has no owner and is never due; its epoch was raised, so the worker that had it is fenced.
Messages that arrive meanwhile stay in its inbox, and are forwarded. When all of them have arrived there, the run is
`moved`: its row stays as a tombstone that names the address.

A run that comes from another runtime is `moving` here, too, from before it is closed there until it has arrived. It has
a row, which reserves its id, and an inbox for messages. A tombstone under its id becomes that row.
"""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow, InboxKind, Message, Status
from holdfast.contract.turns import Audit, Evidence, NewRun

FROM = "from "
"""What stands before the address where a run waits to arrive here (`runs.wait`)."""
ARRIVES = -1
"""The number in `MoveRow.inbox` of a run that comes from another runtime."""


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """One run of those that are marked together, as it was seen: at rest, without owner, in this epoch."""

    id: str
    epoch: int
    paused: bool = False
    """Whether it stays paused where it goes."""
    until: Instant | None = None
    """When that pause ends by itself."""


class Moving(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a move; `target` is the run, or the first of those that go together."""

    target: str
    token: str
    """Names this move, here and where the run goes: what was begun by one process is finished by another."""
    at: Instant
    audit: Audit | None = None


class MarkMoving(Moving, frozen=True, kw_only=True):
    """Let runs act here no more, all of them or none: a run with its open parent and its open children.

    They are `moving`: without owner or due time, at the next epoch; they wait for no event, and hold no key, limit or
    task. What is sent to a moving run, and a cancel, is put into its inbox and wakes no worker; all other acts are
    refused. Refused ("moved") if one is not what was seen: it has ended, has an owner, another epoch, a place or an
    unfinished task, is neither paused nor blocked, or a member of the family is missing.
    """

    runs: list[Leaving]
    address: str


class FinishMove(Moving, frozen=True, kw_only=True):
    """Leave a tombstone: the run goes on where it was moved to, and has all that was sent to it up to `seen`.

    The run is `moved`, which is an end without a result: only a purge changes it, and every act on it is refused.
    Refused ("inbox") if there is more by now; Done(0) if that was done before.
    """

    seen: int


class GiveUpMove(Moving, frozen=True, kw_only=True):
    """Let a run go on here after all, because it was not started where it was to go; Done(0) if it is not moving.

    It is due at once, at the next epoch, or paused as it was.
    """


class ExpectRuns(Moving, frozen=True, kw_only=True):
    """Let there be rows for runs that come from another runtime, all of them or none: `moving`, in no worker's hands.

    Where a run was moved to that same address from here, its tombstone becomes that row. Done(0) if all are expected by
    this token already. Refused ("taken") if one has an id that is another run's here, or is expected by another token;
    ("key") if another open run has its unique key. Parents stand before their children.
    """

    runs: list[NewRun]
    address: str


class Arriving(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it was closed where it comes from."""

    id: str
    input: str
    rows: list[EntryRow]
    """The history of its present life."""
    inbox: list[Message]
    """What its code has not taken, in order; what was sent to it here comes behind."""
    seen: list[str]
    """The ids of messages that it has had."""
    status: Status
    """Where it goes on: pending, paused or cancelling."""
    until: Instant | None = None
    generation: int = 0
    reopens: int = 0
    deadline: Instant | None = None
    attributes: dict[str, str | None] = {}
    evidence: list[Evidence] = []
    """What it put on record since it was here."""


class ArriveRuns(Moving, frozen=True, kw_only=True):
    """Let runs that were expected go on here, all of them or none: they are due at once, at the next epoch.

    Done(0) if they are there already. Refused ("moved") if they are not expected by this token.
    """

    runs: list[Arriving]


class ForgetArrival(Moving, frozen=True, kw_only=True):
    """Expect a run no more, because it ended where it was to come from; Done(0) if it is not expected by this token.

    Its row goes; one that was a tombstone is one again.
    """


class MoveRow(msgspec.Struct, frozen=True, kw_only=True):
    """A move as the store has it."""

    token: str
    address: str
    inbox: int
    """The number of the last inbox row when the run was marked: what came later is forwarded. See also ARRIVES."""
    paused: bool
    """Whether it stays paused where it goes; of a run that arrives, whether its row was a tombstone."""
    until: Instant | None
    at: Instant

    @property
    def arrives(self) -> bool:
        """Whether the run comes from that address, and does not go there."""
        return self.inbox == ARRIVES


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has in tables that no history shows, for moving it to another runtime, or saying why not."""

    move: MoveRow | None
    """How it moves, or was moved."""
    waited: dict[str, int]
    """The names that its receives wait for, and how many events are queued under each."""
    given: list[str]
    """The names of events that it was given copies of."""
    keys: list[tuple[str, str]]
    """Idempotency keys, by activity, that it waits for, because other runs hold them."""
    tasks: dict[str, int]
    """Attempts in queues, by location."""
    seen: list[str]
    """The ids of the last messages that were sent to it with one, oldest first."""
    children: dict[str, bool]
    """Its open children, and whether they are cancelled with it."""
    timeout: int | None
    """How long it may take from its beginning, in microseconds."""
    lost: str
    """How its last worker was lost: crash, lapse or nothing."""
    place: int
    """A RunPlace: whether it holds, or waits for, a place that its workflow has."""


MOST_SEEN = 2_000
"""How many ids of messages go with a run."""

FORWARDED = frozenset({InboxKind.MESSAGE, InboxKind.CANCEL})
"""What may come into the inbox of a run that is moving, and is sent after it."""
