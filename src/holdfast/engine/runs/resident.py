"""A run in memory: its execution, what of it is written, and the attempts it has under way."""

from __future__ import annotations

from typing import Any

from holdfast.clock import Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import EntryRow, Status
from holdfast.contract.turns import LeaveKey, NewLetter, NewTask, State
from holdfast.definitions import Activity, Workflow
from holdfast.engine.steps.context import StepContext
from holdfast.engine.steps.executor import Attempt
from holdfast.replay.execution import Execution

_MAX_WAITS = 5


class Pausing:
    """A run that begins nothing more and waits for what is under way to end."""

    __slots__ = ("cancelled", "resumed", "until", "withheld")

    def __init__(self, until: Instant | None) -> None:
        self.until = until
        self.resumed = False
        """Whether it shall go on at once after all."""
        self.cancelled = False
        """Whether it was asked to stop meanwhile."""
        self.withheld = False
        """Whether facts were recorded that the code has not seen."""


class Resident:
    """One run owned by this worker under one epoch."""

    __slots__ = (
        "_grace",
        "active",
        "attempts",
        "child",
        "claimed",
        "commits",
        "created",
        "dirty",
        "dropped",
        "epoch",
        "execution",
        "expected",
        "finishing",
        "freed",
        "generation",
        "held",
        "id",
        "key",
        "leaving",
        "letters",
        "lost",
        "next_life",
        "pausing",
        "queued",
        "reclaimed",
        "releasing",
        "retries",
        "scheduled",
        "seen",
        "stale_waits",
        "taken",
        "tasks",
        "told",
        "touched",
        "unsure",
        "untasks",
        "unversioned",
        "waiting",
        "watched",
        "workflow",
        "written",
    )

    def __init__(
        self, run_id: str, key: int, epoch: int, workflow: Workflow[Any, Any], execution: Execution, grace: int
    ) -> None:
        self._grace = grace
        self.id = run_id
        self.key = key
        self.epoch = epoch
        self.workflow = workflow
        self.execution = execution
        self.generation = 0
        self.created: Instant = 0
        self.child = False
        """Whether a parent waits for its end."""
        self.seen = 0
        self.expected: int | None = None
        """The number of a message that the code has before the commit that puts it into the inbox."""
        self.written: tuple[Status, str, Instant | None] = (Status.RUNNING, "", None)
        """The state in the run's row, as far as it is known."""
        self.told: tuple[Status, str, Instant | None] | None = None
        """The state that those who watch were told of last."""
        self.dirty = False
        """Whether somebody else may have changed the row's due time since."""
        self.claimed = False
        """Whether a claim is still counted against the run."""
        self.commits = 0
        self.active: set[str] = set()
        """Locations of steps and sends that are being worked on."""
        self.unsure = 0
        """Commits in flight that start children, any of which they may refuse."""
        self.attempts: dict[str, Attempt] = {}
        self.retries: dict[str, tuple[Instant, StepVerb]] = {}
        self.scheduled: Instant | None = None
        self.freed: set[str] | None = None
        """Locations whose key was said to be free before it was known here that they wait for it."""
        self.held: dict[str, StepVerb] | None = None
        """Steps that wait for an idempotency key that another step holds."""
        self.queued: dict[str, StepVerb] | None = None
        """Steps whose attempt is in a queue, or with the worker that took it from there."""
        self.tasks: list[NewTask] | None = None
        """Attempts to put into queues with the next commit."""
        self.untasks: list[str] | None = None
        """Locations of attempts to withdraw with the next commit."""
        self.leaving: list[LeaveKey] | None = None
        """Idempotency keys to give up with the next commit."""
        self.letters: list[NewLetter] | None = None
        """Dead letters to write with the next commit."""
        self.waiting: set[str] | None = None
        """Locations of receives that the store knows to be waiting."""
        self.stale_waits: set[str] | None = None
        """Names of events that came: the store may have deleted the wait of another receive than took them."""
        self.taken: list[int] | None = None
        """Numbers of inbox rows that the engine itself has acted on, to be deleted with the next commit."""
        self.watched: dict[str, tuple[Activity[..., Any], StepContext]] | None = None
        """Steps whose activities want to be told what becomes of them."""
        self.next_life: list[EntryRow] | None = None
        """The first entries of the life that follows this one."""
        self.reclaimed = False
        """Whether the store may have waits of it that are over: nobody but the store knows what they were."""
        self.unversioned = False
        """Whether the row does not say yet which version of the workflow runs: a client without the code started it."""
        self.pausing: Pausing | None = None
        """How far the run has come on its way to being paused."""
        self.touched: Instant = 0
        self.releasing = False
        """Whether a commit is in flight after which anybody may claim the run: nothing may go on here."""
        self.finishing = False
        """Whether the end of this life is in flight: the code does not go on, whatever comes."""
        self.lost = False
        """Whether a commit of it failed: later ones would leave a gap in its history and must not be made."""
        self.dropped = False

    def next_due(self) -> Instant | None:
        """Return when this run wants attention without anybody asking: a timer, a retry, the end of its grace."""
        candidates = [at for at, _ in self.retries.values()]
        timer = self.execution.next_due()
        if timer is not None:
            candidates.append(timer)
        grace = self.grace_ends
        if grace is not None:
            candidates.append(grace)
        return min(candidates) if candidates else None

    @property
    def grace_ends(self) -> Instant | None:
        """When a run that was asked to stop is stopped whatever it is doing; undoing takes the time it takes."""
        journal = self.execution.journal
        if journal.cancelling is None or journal.compensating:
            return None
        return journal.cancelling + self._grace

    @property
    def deaf(self) -> bool:
        """Whether nothing may be handed to the code any more."""
        return self.gone or self.pausing is not None

    @property
    def gone(self) -> bool:
        """Whether nothing of it may be recorded any more."""
        return self.dropped or self.releasing or self.finishing

    @property
    def parked(self) -> bool:
        """Whether nothing is being done for the run: it only waits."""
        return not self.active and not self.commits

    def awaits(self, name: str) -> bool:
        """Whether nothing is under way for the run but its wait for a message of this name."""
        journal = self.execution.journal
        if self.deaf or not self.parked or journal.inbox or not journal.receivers:
            return False
        return any(name in verb.names for verb in journal.receivers.values())

    def state(self, released: bool = False) -> State | None:
        """Return the state to write, None when the row has it already."""
        journal = self.execution.journal
        status, wait, due = Status.RUNNING, "", None
        if not self.active and not self.unsure:
            status, wait, due = Status.SUSPENDED, self._waits(), self.next_due()
        if journal.compensating:
            status = Status.COMPENSATING
        elif journal.cancelling is not None:
            status = Status.CANCELLING
        wanted = (status, wait, due)
        if wanted == self.written and not self.dirty and not released:
            return None
        self.written = wanted
        self.dirty = False
        self.releasing = released
        return State(status=status, seen=self.seen, wait=wait, due=due, released=released)

    def _waits(self) -> str:
        journal = self.execution.journal
        waits = [f"message {','.join(verb.names)}" for verb in list((journal.receivers or {}).values())[:_MAX_WAITS]]
        waits += [f"child {child}" for child in list(journal.kids or {})[:_MAX_WAITS]]
        for location, verb in list((self.queued or {}).items())[:_MAX_WAITS]:
            waits.append(f"step {journal.names.path(location)} (queue {verb.activity.queue})")
        if self.retries:
            waits.append("retry")
        if self.held:
            waits.append("key")
        if self.execution.next_due() is not None:
            waits.append("timer")
        return "; ".join(waits)
