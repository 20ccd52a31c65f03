"""Limits that all workers of a database share: their numbers, how attempts enter and leave them, how they are shown.

An attempt that enters a limit has a place, counted for its worker, or waits in line (`Committed.limits`). The commit
that frees a place grants it to the first in line, by priority, then in the order of arrival. It writes a `limit_turn`
inbox row (name = location, id = the limit, payload = the time from which, if that is later), and reserves a place if it
is now. A step that leaves and enters in one commit enters last. The end, pause or block of a run removes its waiters;
the death of a worker frees its places (`Store.take_over`, `Store.leave`). A turn that is not used within GRANTED_FOR
goes to the next.

An attempt in a queue enters the limit of its activity when a worker takes it (`TakeTasks`), and leaves it with its end
(`FinishTask.leave`). An attempt that has to wait is in line like a step: no worker takes it before its turn.
"""

from __future__ import annotations

import msgspec

from holdfast.clock import Clock, Instant
from holdfast.contract.rows import Task
from holdfast.contract.turns import Audit, LeaveLimit

GRANTED_FOR = 10_000_000
"""For how many microseconds a step that was given its turn may take to begin; then the next has it."""


class LimitSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The numbers of a limit; durations in microseconds."""

    at_once: int | None = None
    rate: int | None = None
    per: int = 1_000_000
    burst: int | None = None
    per_key_at_once: int | None = None
    trip_after: int | None = None
    cool_down: int = 0


class LeaveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Give back places whose attempts no commit of a run ends: their bodies outlived them, or their runs are gone."""

    leaves: list[LeaveLimit]
    at: Instant


class HeldPlaces(msgspec.Struct, frozen=True):
    """How many places of a limit and key a worker has, at least and at most (what it asked for is not answered yet)."""

    limit: str
    key: str
    least: int
    most: int


class CorrectPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has, as it knows itself: counts that say otherwise are corrected."""

    worker: str
    places: list[HeldPlaces]
    at: Instant
    now: Instant


class GrantTurns(msgspec.Struct, frozen=True, kw_only=True):
    """Give the turns of steps that did not begin in time to the next, and forget keys that are not in use.

    `opens` is the worker that is being opened. If no other is alive, no commit is late, so that all that lies ahead of
    `now` was written in another boot of the machine. However many are alive, that is so of a time that is read when no
    other can commit: as it is from `clock`, where all workers read the same one. `paused` are workflows and queues of
    which nothing begins, by kind and name: the next have the turns of their steps and attempts at once.
    """

    at: Instant
    now: Instant
    opens: str | None = None
    clock: Clock | None = None
    paused: list[tuple[str, str]] = []


class PutLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Declare a limit, or (`override`) put an operator's numbers in place of the declared ones; None clears those.

    `Done` with the JSON of the numbers before if they were others; `Done(0)` if nothing changed.
    """

    name: str
    spec: LimitSpec | None
    at: Instant
    now: Instant
    override: bool = False
    audit: Audit | None = None


class PauseLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Let nothing begin under a limit any more, from this commit on, or let it go on."""

    name: str
    paused: bool
    at: Instant
    now: Instant
    audit: Audit | None = None


class LimitAnswer(msgspec.Struct, frozen=True):
    """What became of entering a limit: entered, waits, or unknown (no engine ever declared it).

    `probe` tells that the attempt tries whether the service is back, while all others wait.
    """

    outcome: str
    probe: bool = False
    keep: bool = False
    """Whether the limit is so far from full that the worker may keep the place, for a moment, for its next attempt."""


class TakeTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Take up to `room` attempts of activities under a limit from queues, each with a place of it (`TasksTaken`).

    Those that must wait for theirs are put in line. Order, `at_once` and `oldest` as in `Store.claim_tasks`. A worker
    that is not alive gets nothing.
    """

    worker: str
    limit: str
    room: int
    queues: list[str]
    activities: list[str]
    at: Instant
    now: Instant
    at_once: dict[str, int] = {}
    oldest: bool = False


class TakenTask(msgspec.Struct, frozen=True):
    """An attempt that a worker took, the key under which it uses its limit, and whether it has a place of it."""

    task: Task
    key: str
    answer: LimitAnswer


class TasksTaken(msgspec.Struct, frozen=True):
    """The attempts that a worker took; `more`: others may wait, of which it did not look at all."""

    tasks: tuple[TakenTask, ...] = ()
    more: bool = False
    turn: Instant | None = None
    """From when on the next of those in line may begin, if one was told so."""
    woke_others: bool = False
    """Whether steps of other runs were given their turn."""


class LimitWait(msgspec.Struct, frozen=True, kw_only=True):
    """A step that waits for a limit; `granted` is from when it may begin, None while others are before it.

    Instants are those of the lease's clock. What follows `granted` is how the limit and its key stand.
    """

    location: str
    limit: str
    key: str
    since: Instant
    granted: Instant | None
    paused: bool = False
    spec: str = "{}"
    """The numbers in force."""
    invited: Instant | None = None
    """From when the first in line of its key may begin."""
    held_until: Instant = 0
    open_until: Instant | None = None


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """How a run waits to be begun: in which lane, from when on it may, and for the end of which window."""

    lane: str
    since: Instant
    first: Instant | None
    """When the first start of its debounce window was."""


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A limit as the store has it."""

    name: str
    spec: str
    override: str | None
    paused: bool
    used: int
    granted: int
    waiting: int


class LimitKeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key of a limit that is in use."""

    name: str
    key: str
    used: int
    granted: int
    waiting: int
    invited: Instant | None
    held_until: Instant
    failures: int
    open_until: Instant | None
    probe: str
