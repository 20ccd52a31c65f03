"""A run in memory: its execution, how much of it is written, and what it has under way.

Only this package assigns the attributes of a Resident. Other packages read them, and report by its methods what
happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

from holdfast.bodies.attempt import Attempt
from holdfast.bodies.context import StepContext
from holdfast.clock import Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import EntryRow, Message, Status
from holdfast.contract.turns import CommitTurn, LeaveKey, NewLetter, NewTask
from holdfast.definitions import Workflow
from holdfast.engine.runs.aside import Aside, Pausing, Telling, extended
from holdfast.replay.execution import Execution
from holdfast.replay.turn import Turn

T = TypeVar("T")
Row = tuple[Status, str, Instant | None]
"""What a run's row says of it: its status, what it waits for, and when it is due."""


class Phase(IntEnum):
    """How far a run in memory has come on its way out; it only moves forward."""

    LIVE = 0
    PAUSING = 1
    """Nothing more begins and the code does not go on; what is under way ends and is recorded."""
    FINISHING = 2
    """The end of this life is in flight: nothing may be recorded any more."""
    RELEASING = 3
    """A commit is in flight after which any worker may claim the run: nothing may be recorded any more."""
    DROPPED = 4


LIVE, PAUSING, FINISHING, RELEASING, DROPPED = Phase


_NO_VERBS: dict[str, StepVerb] = {}
_NO_ATTEMPTS: dict[str, Attempt] = {}
_NOTHING_TOLD: dict[str, Telling] = {}


class Resident:
    """One run owned by this worker under one epoch."""

    __slots__ = (
        "active",
        "announced",
        "aside",
        "attempts",
        "child",
        "children_in_doubt",
        "claimed",
        "commits",
        "created",
        "early_row",
        "epoch",
        "execution",
        "grace",
        "id",
        "idle_since",
        "key",
        "lost",
        "phase",
        "retries",
        "row_stale",
        "scheduled",
        "seen",
        "waiting",
        "workflow",
        "written",
    )

    def __init__(
        self, run_id: str, key: int, epoch: int, workflow: Workflow[Any, Any], execution: Execution, grace: int
    ) -> None:
        self.id = run_id
        self.key = key
        self.epoch = epoch
        self.workflow = workflow
        self.execution = execution
        self.grace = grace
        self.created: Instant = 0
        self.child = False
        """Whether a parent waits for its end."""
        self.phase = LIVE
        self.claimed = False
        """Whether it asked for no commit since it was claimed: a claim is still counted against it, and the store may
        have waits of it that are over, and alone knows which."""
        self.lost = False
        """Whether a commit of it failed: later ones would leave a gap in its history and must not be made."""
        self.commits = 0
        """How many of its commits are in flight."""
        self.children_in_doubt = 0
        """How many of those start children, which the store may refuse."""
        self.seen = 0
        """The number of the last inbox row that it has."""
        self.early_row: int | None = None
        """The number of a message that the code has before the commit that puts it into the inbox."""
        self.written: Row = (Status.RUNNING, "", None)
        """What the run's row says, as far as it is known."""
        self.announced: Row | None = None
        """What observers were last told that it says."""
        self.row_stale = False
        """Whether another process may have changed the row's due time since."""
        self.active: set[str] = set()
        """Locations of steps and sends that are being worked on."""
        self.attempts: dict[str, Attempt] = {}
        self.retries: dict[str, tuple[Instant, StepVerb]] = {}
        self.scheduled: Instant | None = None
        """When the run is to be woken, as far as the timers know."""
        self.idle_since: Instant = 0
        self.waiting: set[str] | None = None
        """Locations of receives that the store knows to be waiting."""
        self.aside: Aside | None = None

    # Looking.

    @property
    def generation(self) -> int:
        """How often the run has continued as new."""
        return self.execution.journal.run.generation

    @property
    def parked(self) -> bool:
        """Whether nothing is being done for the run: it only waits."""
        return not self.active and not self.commits

    @property
    def pausing(self) -> Pausing | None:
        """How far the run has come on its way to being paused."""
        return self.aside.pausing if self.aside is not None else None

    @property
    def held(self) -> dict[str, StepVerb]:
        """Steps that wait for an idempotency key that another step holds."""
        return self.aside.held if self.aside is not None else _NO_VERBS

    @property
    def limited(self) -> dict[str, StepVerb]:
        """Steps that wait for a limit that is shared."""
        return (self.aside.limited if self.aside is not None else None) or _NO_VERBS

    @property
    def queued(self) -> dict[str, StepVerb]:
        """Steps whose attempt is in a queue, or with the worker that took it from there."""
        return self.aside.queued if self.aside is not None else _NO_VERBS

    @property
    def telling(self) -> dict[str, Telling]:
        """What activities are being told of their attempts."""
        return (self.aside.telling if self.aside is not None else None) or _NOTHING_TOLD

    @property
    def outlasting(self) -> dict[str, Attempt]:
        """Attempts of a cancelled run that nothing can interrupt."""
        return (self.aside.outlasting if self.aside is not None else None) or _NO_ATTEMPTS

    @property
    def end_is_held(self) -> bool:
        """Whether the code has ended, and only such attempts are waited for."""
        return self.aside is not None and self.aside.held_end is not None

    def awaits(self, name: str) -> bool:
        """Whether nothing is under way for the run but its wait for a message of this name."""
        journal = self.execution.journal
        if self.phase or not self.parked or journal.inbox or not journal.receivers:
            return False
        return any(name in verb.names for verb in journal.receivers.values())

    @property
    def grace_ends(self) -> Instant | None:
        """When a run that was asked to stop is stopped whatever it is doing; undoing and hooks take their time."""
        journal = self.execution.journal
        ending = journal.compensating or journal.run.conclusion is not None
        if journal.cancelling is None or (ending and not self.end_is_held):
            return None
        return journal.cancelling + self.grace

    def next_due(self) -> Instant | None:
        """Return when the run wants attention by itself: a timer, a retry, the end of its grace."""
        due = self.execution.next_due()
        for at, _ in self.retries.values():
            if due is None or at < due:
                due = at
        if self.execution.journal.cancelling is not None:
            grace = self.grace_ends
            if grace is not None and (due is None or grace < due):
                due = grace
        return due

    @property
    def timed(self) -> bool:
        """Whether the run may have a due time: a timer, a retry, the end of its grace."""
        execution = self.execution
        return bool(self.retries or execution.loop.heap or execution.journal.cancelling is not None)

    # What happened to the run.

    def set_aside(self) -> Aside:
        """Return where the run keeps what it has only at times."""
        if self.aside is None:
            self.aside = Aside()
        return self.aside

    def was_claimed(self, seen: int, versioned: bool) -> None:
        """Note that the run came from the store, with inbox rows up to this number."""
        self.claimed = True
        if not versioned:
            self.set_aside().unversioned = True
        self.seen = seen
        self.row_stale = True

    def got_key(self, key: int) -> None:
        """Note the key that the store gave to a run when it was inserted."""
        journal = self.execution.journal
        self.key = key
        journal.run = journal.run._replace(key=key)

    def saw_rows(self, last: int, early: bool = False) -> None:
        """Note that the run has the inbox rows up to a number; the store may have moved its due time for them."""
        self.seen = last
        self.row_stale = True
        if early:
            self.early_row = last

    def read_rows(self, numbers: Iterable[int]) -> None:
        """Delete inbox rows, which the engine itself has acted on, with the next commit."""
        aside = self.set_aside()
        aside.rows_read = extended(aside.rows_read, numbers)

    def events_came(self, names: set[str]) -> None:
        """Tell the store again, with the next commit, which receives wait for events of these names."""
        self.set_aside().stale_waits |= names

    def begin_pause(self, until: Instant | None) -> Pausing:
        """Let the run begin nothing more."""
        pausing = self.set_aside().pausing = Pausing(until)
        self.phase = max(self.phase, PAUSING)
        return pausing

    def add_letter(self, letter: NewLetter) -> None:
        """Write a dead letter with the next commit."""
        aside = self.set_aside()
        aside.letters = extended(aside.letters, [letter])

    def outlasts(self, attempt: Attempt) -> None:
        """Note that an attempt goes on which nothing can interrupt."""
        aside = self.set_aside()
        if aside.outlasting is None:
            aside.outlasting = {}
        aside.outlasting[attempt.verb.location] = attempt

    def hold_end(self, turn: Turn) -> None:
        """Keep the end of the run until such attempts have ended."""
        self.set_aside().held_end = turn
        self.active.update(self.outlasting)  # not to be let go before that

    def end_held(self) -> Turn | None:
        """Take the end that was kept."""
        turn = self.aside.held_end if self.aside is not None else None
        if self.aside is not None:
            self.aside.held_end = None
        return turn

    def add_to_end(self, rows: Sequence[EntryRow]) -> None:
        """Record more with the end that is kept."""
        assert self.aside is not None
        assert self.aside.held_end is not None
        self.aside.held_end.entries.extend(rows)

    def give_up_key(self, key: LeaveKey) -> None:
        """Give up an idempotency key with the next commit."""
        aside = self.set_aside()
        aside.keys_given_up = extended(aside.keys_given_up, [key])

    def nudge(self, paths: set[str]) -> list[StepVerb]:
        """Take the steps that wait to be tried again: those of some paths, or all if an empty one is among them."""
        path = self.execution.journal.names.path
        ready = [verb for _, verb in self.retries.values() if paths & {"", path(verb.location)}]
        for verb in ready:
            del self.retries[verb.location]
        return ready

    def hold(self, verb: StepVerb) -> bool:
        """Let a step wait for a key that another step holds; tell whether that was said to be free meanwhile."""
        aside = self.set_aside()
        aside.held[verb.location] = verb
        freed = verb.location in aside.keys_freed
        aside.keys_freed -= {verb.location}
        return freed

    def key_is_free(self, location: str) -> StepVerb | None:
        """Return the step that waits for a key here; None if it is not known yet to wait, which is remembered."""
        verb = self.held.pop(location, None)
        if verb is None:
            # The commit that asked for it may not be answered yet: the news can come before the answer.
            self.set_aside().keys_freed |= {location}
        return verb

    def limit_wait(self, verb: StepVerb) -> list[Message]:
        """Let a step wait for a limit; return its turn if that came already."""
        aside = self.set_aside()
        aside.limited = {**(aside.limited or {}), verb.location: verb}
        row = aside.turns.pop(verb.location, None) if aside.turns is not None else None
        return [row] if row is not None else []

    def limit_turn(self, row: Message) -> StepVerb | None:
        """Return the step whose turn came; None if it is not known yet to wait: then the turn is kept."""
        verb = self.limited.pop(row.name, None)
        if verb is None and row.name in self.retries and self.retries[row.name][1].skipped:
            _, verb = self.retries.pop(row.name)  # it was told another time before
        if verb is None:
            aside = self.set_aside()
            aside.turns = {**(aside.turns or {}), row.name: row}
        return verb

    def withdraw_limits(self, locations: Iterable[str], now: Instant) -> None:
        """Let steps wait for their limits no longer, with the next commit."""
        aside = self.set_aside()
        aside.limits_withdrawn = extended(aside.limits_withdrawn, ((location, now) for location in locations))

    def queue_attempt(self, verb: StepVerb, task: NewTask | None = None) -> None:
        """Note that the attempt of a step is in a queue; with a task it is put there by the next commit."""
        aside = self.set_aside()
        aside.queued[verb.location] = verb
        if task is not None:
            aside.tasks = extended(aside.tasks, [task])

    def withdraw_attempts(self, locations: Iterable[str]) -> None:
        """Take attempts out of their queues with the next commit."""
        aside = self.set_aside()
        aside.withdrawn = extended(aside.withdrawn, locations)

    def call_back(self, verb: StepVerb, context: StepContext) -> None:
        """Remember what callbacks of a step's activity are given when they are told what comes of an attempt."""
        aside = self.set_aside()
        aside.contexts = {**(aside.contexts or {}), verb.location: context}

    def take_context(self, location: str) -> StepContext | None:
        """Return what was remembered for that."""
        contexts = self.aside.contexts if self.aside is not None else None
        return contexts.pop(location, None) if contexts else None

    def tell(self, location: str, telling: Telling) -> None:
        """Note what the activity of a step is being told."""
        aside = self.set_aside()
        aside.telling = {**(aside.telling or {}), location: telling}

    def schedule(self, due: Instant | None) -> None:
        """Note when the timers wake the run."""
        self.scheduled = due

    def rest(self, now: Instant) -> None:
        """Note that the run has nothing to do."""
        self.idle_since = now

    def announce(self) -> None:
        """Note that observers were told what the row says."""
        self.announced = self.written

    # Its commits.

    def submitted(self, commit: CommitTurn | None) -> None:
        """Note that a commit is on its way to the store: what it writes is written, as far as this worker knows."""
        self.commits += 1
        if commit is None:
            return
        if commit.children:
            self.children_in_doubt += 1
        state = commit.state
        if state is not None:
            self.written = (state.status, state.wait, state.due)
            self.row_stale = False
            if state.released:
                self.phase = max(self.phase, RELEASING)
        self.early_row = None
        self.claimed = False
        if commit.effects is not None and (commit.effects.waits or commit.effects.unwaits):
            self.waiting = set(self.execution.journal.receivers or ()) or None
        aside = self.aside
        if aside is not None:
            aside.written(self.phase is PAUSING)
            if aside.empty:
                self.aside = None
        if commit.renewal is not None:
            self.set_aside().next_life = list(commit.entries)

    def answered(self, commit_children: bool) -> None:
        """Note that the store answered a commit."""
        self.commits -= 1
        self.children_in_doubt -= commit_children

    def was_refused(self) -> None:
        """Note that the row may not say what was asked for: the store refused a part."""
        self.row_stale = True

    def finish(self) -> None:
        """Note that the end of this life is in flight."""
        self.phase = max(self.phase, FINISHING)

    def drop(self) -> None:
        """Note that the run is not in memory any more."""
        self.phase = DROPPED

    def lose(self) -> None:
        """Refuse every later commit of the run."""
        self.lost = True
