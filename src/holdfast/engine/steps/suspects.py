"""Suspects: which losses are evidence against a step, and whose turn it is to run alone.

Suspects that cannot run in a child process run on this worker one after another. Each begins its attempt only when no
other is under way, so a third loss convicts the step that ran, and none that only waited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from holdfast.bodies.executor import Executor
from holdfast.context.steps import OUTLIVED, StepVerb
from holdfast.contract.rows import Claim
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import Resident
from holdfast.errors import StepCrashed
from holdfast.replay import entry as entries
from holdfast.replay.journal import Journal
from holdfast.replay.loop import is_done

RECENT = 60_000_000
"""For how many microseconds after its beginning an attempt is blamed for the death of its process."""
_UNTIL_CLAIMED = 2.0
"""For how many seconds a suspect's run is waited for that was released with its result."""


class Suspects:
    """The steps, of all runs in memory, that may have killed their worker."""

    def __init__(self, runs: Runs, executor: Executor) -> None:
        self._runs = runs
        self._executor = executor
        self.turns = SuspectTurns()

    @property
    def judging(self) -> bool:
        """Whether a suspect is running in this process, which would be blamed for its death."""
        return self.turns.holder is not None

    def counted_loss(self, verb: StepVerb, why: str, claim: Claim | None = None) -> entries.AttemptLost:
        """Count an attempt that was lost, and return the note that says so; the claim tells how its worker died."""
        if why == "crash" and self._executor.isolates(verb):
            why = "bystander"  # it ran in a child process: that the worker died is no evidence against it
        elif why == "crash" and claim is not None and claim.died is not None and claim.died - verb.began > RECENT:
            why = "outlived"  # it did no harm for long: what ended the process was another, or came from outside
        elif why == "crash" and claim is not None and claim.deaths > verb.crashes + verb.outlived + 1:
            why = "outage"  # workers die that did not run it, too
        verb.crashes += why == "crash"
        verb.outlived += why in OUTLIVED
        verb.lapses += why == "lapse"
        verb.settled = True
        if why != "handed back":  # that is no fault of it
            self._runs.figures.attempt(verb, "lost", self._runs.clock.now())
        return entries.AttemptLost(verb.attempt, why)

    def judged(self, verb: StepVerb, error: BaseException) -> entries.AttemptLost:
        """Judge a suspect that ran in a child process: a dead child convicts it, an exception there clears it."""
        crashed = isinstance(error, StepCrashed)
        verb.settled = True
        verb.crashes += crashed
        verb.in_process = not crashed
        self._runs.figures.attempt(verb, "lost" if crashed else "retried", self._runs.clock.now())
        return entries.AttemptLost(verb.attempt, "crash" if crashed else "cleared")

    def may_begin(self, resident: Resident, verbs: Iterable[StepVerb]) -> list[StepVerb]:
        """Return the steps whose next attempt may begin now; a suspect that runs here waits for its turn."""
        ready: list[StepVerb] = []
        for verb in verbs:
            if not verb.suspect or verb.activity.queue is not None or self._executor.isolates(verb):
                ready.append(verb)  # the worker that takes it from its queue sees to it itself
                continue
            verb.settled = verb.settled or not verb.skipped  # one that was skipped has not run, and keeps its number
            resident.active.add(verb.location)
            if self.turns.ask(verb, partial(self._turn_of, resident, verb)):
                ready.append(verb)
        return ready

    def leave(self, verb: StepVerb) -> None:
        """Give the turn to the next; harmless for a step that does not have it."""
        if self.turns.holder is not None:
            self.turns.leave(verb)

    def wait_for_code(self, run: int) -> None:
        """Give no turn until the code of a run has seen what a suspect of it returned, which may end this process.

        Another worker may be the one that goes on with it, so this does not wait for long.
        """
        self.turns.hold(run)
        asyncio.get_running_loop().call_later(_UNTIL_CLAIMED, self.turns.release, run)

    def _turn_of(self, resident: Resident, verb: StepVerb) -> None:
        def begin() -> None:
            if resident.phase or is_done(verb):
                self.turns.leave(verb)
            elif not self.turns.put_back(verb, partial(self._turn_of, resident, verb)):
                self._runs.note(resident, begin=[verb])

        asyncio.get_running_loop().call_soon(begin)


class SuspectTurns:
    """Whose turn it is."""

    def __init__(self) -> None:
        self.holder: StepVerb | None = None
        """The step that has the turn."""
        self._queue: deque[tuple[StepVerb, Callable[[], None]]] = deque()
        self._held: set[int] = set()
        """The runs whose code may end this process just now."""

    def hold(self, run: int) -> None:
        """Give no turn until `release`: the code of this run may end this process."""
        self._held.add(run)

    def release(self, run: int) -> None:
        """Give turns again, unless another run is waited for; harmless for one that is not."""
        if run in self._held:
            self._held.discard(run)
            self._give()

    def ask(self, verb: StepVerb, go: Callable[[], None]) -> bool:
        """Return True if the step may begin now; otherwise `go` is called when it may."""
        if self.holder is None and not self._held:
            self.holder = verb
            return True
        self._queue.append((verb, go))
        return False

    def put_back(self, verb: StepVerb, go: Callable[[], None]) -> bool:
        """Take back the turn of a step that has not begun, if none may be given now; it is the next."""
        if not self._held:
            return False
        self._queue.appendleft((verb, go))
        self.leave(verb)
        return True

    def leave(self, verb: StepVerb) -> None:
        """Give the turn to the next; harmless for a step that does not have it."""
        if self.holder is verb:
            self.holder = None
            self._give()

    def _give(self) -> None:
        if self.holder is None and self._queue and not self._held:
            self.holder, go = self._queue.popleft()
            go()

    def forget(self, journal: Journal) -> None:
        """Withdraw every step of a run that leaves this worker."""
        if self._queue:
            self._queue = deque((verb, go) for verb, go in self._queue if verb.journal is not journal)
        if self.holder is not None and self.holder.journal is journal:
            self.leave(self.holder)
