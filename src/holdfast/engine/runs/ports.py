"""What the parts of this package need of each other, as protocols: so a constructor shows exactly what a part needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.clock import Clock, Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Delivered, KeepResult, Outcome
from holdfast.contract.rows import Message, RunStanding
from holdfast.contract.turns import LeaveLimit
from holdfast.definitions import ActivityOptions
from holdfast.engine.runs.beats import Beats
from holdfast.engine.runs.ends import Rules
from holdfast.engine.runs.resident import Resident
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Reporter
from holdfast.engine.worker.figures import Figures
from holdfast.limits import Limits
from holdfast.replay.entry import Entry
from holdfast.replay.turn import Turn


class Host(Protocol):
    """The worker, as its runs see it: told what a commit means for others."""

    id: str
    """Its present name in the store."""

    def released(self, due: Instant | None) -> None:
        """Any worker may claim a run now, or from an instant on."""
        ...

    def woke_others(self, *, may_have_ended: bool = False) -> None:
        """A commit put rows into the inboxes of other runs or started runs, or may even have ended some."""
        ...

    def tasks_queued(self) -> None:
        """Attempts that this worker may take were put into queues."""
        ...

    def delivered(self, outcome: Delivered) -> None:
        """This process put a row into the inbox of a run."""
        ...

    def look(self) -> None:
        """Runs in memory may have inbox rows that only the store knows."""
        ...

    def ended(self, run_id: str, standing: RunStanding | None) -> None:
        """A run ended, or left this worker and may end in another."""
        ...

    def replied(self, run_id: str) -> None:
        """A run answered a request."""
        ...


class PausingRuns(Protocol):
    """Runs on their way to being paused, as those see them that end something which was under way."""

    def check(self, resident: Resident) -> None:
        """Let a run go if it is pausing and nothing of it is under way any more."""
        ...


class Runs(Protocol):
    """The runner, as those see it that have a run in hand."""

    clock: Clock
    rules: Rules
    limits: Limits
    queues: Queues
    reporter: Reporter
    figures: Figures
    beats: Beats
    host: Host
    app: Callable[[], Mapping[str, Any]] | None
    deadline: float | None
    stopping: bool
    residents: dict[int, Resident]
    ids: dict[str, Resident]

    @property
    def pauses(self) -> PausingRuns:
        """The runs that are pausing."""
        ...

    def advance(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        """Make a turn durable, then act on it."""
        ...

    def apply(self, resident: Resident, location: str, fact: Entry) -> None:
        """Hand a fact to the code and make what follows durable."""
        ...

    def turn_failed(self, resident: Resident, error: Exception) -> None:
        """Give back a run whose turn failed by a fault of the engine."""
        ...

    def deliver(self, resident: Resident, messages: Sequence[Message]) -> None:
        """Hand inbox rows to the code and make what follows durable."""
        ...

    def note(self, resident: Resident, *notes: tuple[str, Entry], begin: Sequence[StepVerb] = ()) -> None:
        """Record what the engine says about steps, and make it durable; the code does not see it."""
        ...

    def drop(self, resident: Resident) -> None:
        """Forget a run in memory; the store has it."""
        ...

    def too_late(self, settings: ActivityOptions) -> bool:
        """Tell whether an attempt could not finish before this engine stops."""
        ...

    def keep_result(self, kept: KeepResult) -> None:
        """Keep the late result of a step under its idempotency key."""
        ...

    def lost(self, resident: Resident, outcome: Outcome | Exception) -> None:
        """Drop a run whose commit was not made, to be continued from what is durable."""
        ...

    def record_and_release(self, resident: Resident, location: str, fact: Entry) -> None:
        """Record a fact without letting the code go on from it; the worker that claims the run next does."""
        ...


class Steps(Protocol):
    """The attempts of steps, as the parts see them that let runs pause, leave and take messages."""

    def stop_queued(self, resident: Resident) -> None:
        """Give up the attempts of a run that have no place to run yet."""
        ...

    def stop_all(self, resident: Resident, reason: str) -> None:
        """Give up every attempt of a run."""
        ...

    def hand_back(self, resident: Resident) -> list[tuple[str, Entry]]:
        """Stop what is under way and return the notes that say so."""
        ...

    def key_is_free(self, resident: Resident, location: str) -> list[StepVerb]:
        """Return the step that waits for a key here, to try again."""
        ...

    def nudged(self, resident: Resident, rows: Sequence[Message]) -> list[StepVerb]:
        """Return the steps that wait to be tried again here and that an operator wants tried now."""
        ...

    def turns_came(self, resident: Resident, rows: Sequence[Message]) -> list[StepVerb]:
        """Return the steps that wait for a limit here and may begin."""
        ...

    def exits(self, resident: Resident) -> Sequence[LeaveLimit]:
        """Take the places of limits that a run has to give back, for its next commit."""
        ...
