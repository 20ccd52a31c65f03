"""Figures of one worker: it counts runs and steps that end on it, and adds them to the common ones every ten seconds.

Counting must cost a step almost nothing: see `complete`. A worker counts what its process saw. So a crash loses the
last ten seconds, and a step whose end was refused because another worker has its run is counted by both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from holdfast.clock import Clock, Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.figures import BOUNDS, CLAIMED, MINUTE, Figure
from holdfast.contract.rows import Claim
from holdfast.contract.store import Store
from holdfast.engine.runs.resident import Resident
from holdfast.errors import StoreBusy, StoreError, StoreFull
from holdfast.replay import entry as entries
from holdfast.replay.turn import Turn

_logger = logging.getLogger("holdfast.engine")
_EVERY = 10.0
_MOST_STEPS = 1_000
"""How many names of steps are told apart between two additions: names made up at run time must not fill the store."""
_OTHER = "(other)"
_MOST_KEPT = 20_000
"""How many figures are kept for later while the store cannot take them."""
_BUCKETS = len(BOUNDS)
_FIRST_BOUND, _FIRST_PLACE, _LAST_PLACE = BOUNDS[0], 2, 2 + _BUCKETS
"""Counters are a list: how often, how long in all, one for each bucket, and one for what is in none of them."""

Counters = list[int]
_Key = tuple[Instant, str, str, str]


class Counting(Protocol):
    """The runner, as `complete` sees it."""

    clock: Clock
    figures: Figures

    def advance(self, resident: Resident, turn: Turn) -> None:
        """Make a turn durable, then act on it."""
        ...

    def turn_failed(self, resident: Resident, error: Exception) -> None:
        """Give back a run whose turn failed by a fault of the engine."""
        ...


def complete(runs: Counting, resident: Resident, step: StepVerb, fact: entries.StepCompleted) -> None:
    """Hand the result of an ordinary step to the code, as `Runs.apply` does, and count it.

    Nothing is called for that: of an ordinary step each call shows in what it costs.
    """
    now, figures, workflow = runs.clock.now(), runs.figures, resident.workflow.name
    if now >= figures.until:
        figures.turn_over(now)
    name = step.activity.name if step.__class__ is StepVerb else step.name
    try:
        counters = figures.completed[workflow][name]
    except KeyError:
        counters = figures.completed_of(workflow, name)
    took, place, bound = now - step.began, _FIRST_PLACE, _FIRST_BOUND
    if took > bound:
        while took > bound and place < _LAST_PLACE:
            place += 1
            bound <<= 2
    elif took < 0:  # the clock was set back
        took = 0
    counters[0] += 1
    counters[1] += took
    counters[place] += 1
    try:
        turn = resident.execution.apply(step.location, fact, now)
    except Exception as error:
        runs.turn_failed(resident, error)
    else:
        runs.advance(resident, turn)


class Figures:
    """The counters of one worker."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.completed: dict[str, dict[str, Counters]] = {}
        """Attempts with which their step completed, by workflow and step, in the minute that ends with `until`."""
        self.until: Instant = 0
        self._others: dict[tuple[str, str, str], Counters] = {}
        """All else that is counted in this minute: workflow, step and outcome."""
        self._before: dict[_Key, Counters] = {}
        """Of earlier minutes."""
        self._names: set[tuple[str, str]] = set()
        self._added_at: float | None = None

    # Counting.

    def completed_of(self, workflow: str, step: str) -> Counters:
        """Return the counters of a step that is counted for the first time in this minute."""
        name = self._name(workflow, step)
        return self.completed.setdefault(workflow, {}).setdefault(name, [0] * (_LAST_PLACE + 1))

    def ended(self, verb: StepVerb, fact: entries.Entry, now: Instant) -> None:
        """Count the last attempt of a step."""
        self.attempt(verb, "completed" if type(fact) is entries.StepCompleted else "failed", now)

    def attempt(self, verb: StepVerb, outcome: str, now: Instant) -> None:
        """Count an attempt of a step."""
        self._count(verb.journal.run.workflow, verb.name, outcome, now - verb.began, now)

    def run(self, resident: Resident, outcome: str, now: Instant) -> None:
        """Count the end of a run."""
        execution = resident.execution
        began = resident.created if execution.journal.run.generation else execution.loop.origin
        self._count(resident.workflow.name, "", outcome, now - began, now)

    def claimed(self, claims: Iterable[Claim]) -> None:
        """Count how long runs were due before they were claimed."""
        now = self._clock.now()
        for claim in claims:
            if claim.due is not None:
                self._count(claim.workflow, "", CLAIMED, now - claim.due, now)

    def _count(self, workflow: str, step: str, outcome: str, took: int, now: Instant) -> None:
        if now >= self.until:
            self.turn_over(now)
        key = (workflow, self._name(workflow, step) if step else "", outcome)
        try:
            counters = self._others[key]
        except KeyError:
            counters = self._others[key] = [0] * (_LAST_PLACE + 1)
        if took <= 0:  # the clock was set back, or another worker's is ahead
            took = place = 0
        else:
            place = ((took - 1) // _FIRST_BOUND).bit_length() + 1 >> 1  # each bound is four times the one before
        counters[0] += 1
        counters[1] += took
        counters[_FIRST_PLACE + place if place < _BUCKETS else _LAST_PLACE] += 1

    def _name(self, workflow: str, step: str) -> str:
        if (workflow, step) not in self._names:
            if len(self._names) >= _MOST_STEPS:
                return _OTHER
            self._names.add((workflow, step))
        return step

    def turn_over(self, now: Instant) -> None:
        """Begin to count in another minute."""
        minute = self.until - MINUTE
        done = [
            ((minute, workflow, step, "completed"), counters)
            for workflow, steps in self.completed.items()
            for step, counters in steps.items()
        ]
        done += [((minute, *key), counters) for key, counters in self._others.items()]
        self.completed, self._others = {}, {}
        self._keep(done)
        self.until = now // MINUTE * MINUTE + MINUTE

    def _keep(self, counted: Iterable[tuple[_Key, Counters]]) -> None:
        for key, counters in counted:
            known = self._before.get(key)
            self._before[key] = counters if known is None else [a + b for a, b in zip(known, counters, strict=True)]
        while len(self._before) > _MOST_KEPT:
            del self._before[next(iter(self._before))]

    # Adding.

    def due(self, now: float) -> bool:
        """Tell, by the clock of the event loop, whether what was counted is to be added; then it counts as done."""
        if self._added_at is None:
            self._added_at = now
        if now - self._added_at < _EVERY:
            return False
        self._added_at = now
        return bool(self.completed or self._others or self._before)

    async def add(self) -> None:
        """Add what was counted to the figures of all workers; nothing is written if that is nothing."""
        self.turn_over(self._clock.now())
        counted, self._before, self._names = self._before, {}, set()
        if not counted:
            return
        try:
            await self._store.add_figures(
                [Figure(*key, each[0], each[1], tuple(each[_FIRST_PLACE:_LAST_PLACE])) for key, each in counted.items()]
            )
        except (StoreBusy, StoreFull):
            self._keep(counted.items())  # nothing of it was added: later
        except StoreError as error:
            _logger.info(
                "figures of the last seconds are left out, for it is not known whether they were added: %s", error
            )
