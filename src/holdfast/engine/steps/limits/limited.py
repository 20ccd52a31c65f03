"""Steps under limits that all workers share: asking for a place, waiting for a turn, giving back what a worker has.

The commit that begins an attempt asks for its place, if this worker has room to run it; the commit that ends the
attempt gives the place back. A separate operation gives back places that no commit of a run can, because a body
outlived its attempt or the run is gone. Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.bodies.attempt import Attempt, Kind, kind_of
from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, Instant
from holdfast.context.steps import StepVerb
from holdfast.contract.limits import CorrectPlaces, HeldPlaces, LeaveLimits, LimitAnswer
from holdfast.contract.operations import Committed, Outcome, Started
from holdfast.contract.rows import Message
from holdfast.contract.turns import CommitTurn, EnterLimit, LeaveLimit, TurnEffects
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.resident import DROPPED, Resident
from holdfast.engine.steps.limits.kept import KeptPlaces, Pair
from holdfast.engine.steps.limits.keys import key_of
from holdfast.engine.steps.limits.places import LimitPlace, TaskPlaces
from holdfast.engine.worker.committer import Committer, Done
from holdfast.errors import UnknownLimit
from holdfast.replay import entry as entries
from holdfast.replay.entry import OVER_LIMIT
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Turn

_MOST_REMEMBERED = 10_000
Step = tuple[Resident, str]
"""A run in memory, and a location."""


class LimitEnds(Protocol):
    """The attempts of steps, as limits see them."""

    def run(self, resident: Resident, verb: StepVerb) -> None:
        """Run an attempt as soon as there is room for it, and it has its place."""
        ...

    def fail(self, resident: Resident, verb: StepVerb, error: Exception) -> None:
        """End a step that can never begin."""
        ...

    def put_off(self, resident: Resident, verb: StepVerb, reason: str, check_at: Instant) -> None:
        """Let a step wait until an instant."""
        ...


class LimitedSteps:
    """The steps, of all runs in memory, whose activities name a limit that is shared."""

    def __init__(self, runs: Runs, executor: Executor, committer: Committer, clock: Clock, ends: LimitEnds) -> None:
        self._runs = runs
        self._executor = executor
        self._committer = committer
        self.clock = clock
        """The lease's."""
        self._own = runs.limits.own
        self._run, self._fail, self._put_off = ends.run, ends.fail, ends.put_off
        self._held: dict[Resident, dict[str, LimitPlace]] = {}
        self.tasks = TaskPlaces(self._outlives, self.give_back, clock)
        """Those of attempts from queues."""
        self._kept = KeptPlaces(self.give_back, clock)
        self.pending: dict[Resident, list[LeaveLimit]] = {}
        """What the next commits of runs give back."""
        self._asked: dict[Pair, int] = {}
        """What commits in flight ask for."""
        self._asked_again: dict[tuple[int, str], bool] = {}
        """Steps of runs that were claimed and had been told when they may begin; whether they were answered since.
        The last few: other workers may begin them, and one that is forgotten asks once more."""
        self._outlived: Counter[tuple[str, str, str]] = Counter()
        self._reserved: dict[Step, tuple[Kind, StepVerb]] = {}
        """Steps for which there is room here until their question is answered."""
        self.doubt = False
        """Whether the store may count places for this worker that it does not have."""
        self.used = False
        """Whether any step here ever asked for a place."""

    # Asking.

    def of(self, verb: object) -> str | None:
        """Return the shared limit that an attempt of a step has to enter, None if there is none."""
        if not isinstance(verb, StepVerb):
            return None
        limit = verb.activity.settings.limit
        return None if limit is None or limit in self._own or verb.activity.queue is not None else limit

    def shared(self, verb: StepVerb) -> str | None:
        """Return the shared limit of a step, whether it is entered here or where its queue is served."""
        limit = verb.activity.settings.limit
        return None if limit is None or limit in self._own else limit

    def with_room(self, resident: Resident, begin: Sequence[StepVerb]) -> list[StepVerb]:
        """Return the steps whose next attempt may be counted now; the others wait until there is room here."""
        ready: list[StepVerb] = []
        for verb in begin:
            if self.of(verb) is None or is_done(verb) or key_of(verb) is None or self._reserve(resident, verb):
                ready.append(verb)
            else:
                resident.active.add(verb.location)
                self._run(resident, verb)
        return ready

    def enters(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb]) -> list[EnterLimit]:
        """Return what the commit of a turn asks for: places for the attempts it begins that could run at once."""
        asked: list[EnterLimit] = []
        for verb in turn.started:
            if isinstance(verb, StepVerb) and verb.activity.settings.limit is not None and not verb.recalled:
                self._ask_for(resident, turn, verb, asked)
        for verb in begin:
            self._ask_for(resident, turn, verb, asked)
        return asked

    def _ask_for(self, resident: Resident, turn: Turn, verb: StepVerb, asked: list[EnterLimit]) -> None:
        limit = self.of(verb)
        if limit is None:
            return
        wanted = turn.outcome is None and not is_done(verb) and not self.has_place(resident, verb)
        key = key_of(verb) if wanted else None
        if key is None:  # if it cannot be made the attempt meets the same error, and fails with it
            self._unreserve(resident, verb)
        elif self._reserve(resident, verb):
            worker = self._runs.host.id
            asked.append(
                EnterLimit(
                    limit=limit,
                    key=key,
                    location=verb.location,
                    worker=worker,
                    now=self.clock.now(),
                    priority=verb.activity.settings.priority,
                    counted=self._kept.take((limit, key), worker),
                )
            )

    def _reserve(self, resident: Resident, verb: StepVerb) -> bool:
        """Keep room here for an attempt until it is known whether it may begin; False if there is none."""
        step = (resident, verb.location)
        if step in self._reserved:
            return True
        kind = kind_of(self._executor.stand_in(verb.activity))
        if not self._executor.reserve(kind):
            return False
        self._reserved[step] = kind, verb
        return True

    def _unreserve(self, resident: Resident, verb: StepVerb) -> None:
        reserved = self._reserved.pop((resident, verb.location), None)
        if reserved is not None:
            self._executor.unreserve(reserved[0])

    def then(self, resident: Resident, commit: CommitTurn | None, done: Done) -> Done:
        """Take the answers to what a commit asks for, before anything else is done with them."""
        effects = commit.effects if commit is not None else None
        if effects is None or not (effects.enters or effects.exits):
            return done
        enters, exits = effects.enters, effects.exits
        self.used = True
        asked = self._asked
        for enter in enters:
            pair = (enter.limit, enter.key)
            asked[pair] = asked.get(pair, 0) + 1

        def then(outcome: Outcome | Exception) -> None:
            committed = outcome.committed if isinstance(outcome, Started) else outcome
            answers: Mapping[str, LimitAnswer] = committed.limits if isinstance(committed, Committed) else {}
            if not isinstance(committed, Committed) and (exits or isinstance(outcome, Exception)):
                self.doubt = True
            for enter in enters:
                asked[enter.limit, enter.key] -= 1
                kind, verb = self._reserved.pop((resident, enter.location))
                self._executor.unreserve(kind)
                answer = answers.get(enter.location)
                self._kept.answered(enter, answer, not isinstance(outcome, Exception))
                if answer is not None and answer.outcome == "entered":
                    self._entered(resident, verb, _place(enter, answer))
                elif answer is not None and (resident.key, enter.location) in self._asked_again:
                    self._asked_again[resident.key, enter.location] = True
            done(outcome)
            if resident.phase is DROPPED:
                self.dropped(resident)
            self._executor.fill()

        return then

    def _entered(self, resident: Resident, verb: StepVerb, place: LimitPlace) -> None:
        """Note the place of an attempt; it is left at once if its step was given up meanwhile, or its run pauses."""
        self._asked_again.pop((resident.key, verb.location), None)
        if resident.phase or is_done(verb):
            self._kept.left(place, "")
            self.give_back([place.leave(self.clock.now())])
        else:
            self._held.setdefault(resident, {})[verb.location] = place

    def advance(self, resident: Resident, turn: Turn, done: Done) -> None:
        """Commit a turn that only completes steps and begins some that are plain but for a limit."""
        enters, exits, rows = self.enters(resident, turn, ()), self.exits(resident), turn.entries
        effects = TurnEffects(enters=enters, exits=[*exits]) if enters or exits else None
        commit = CommitTurn(key=resident.key, epoch=resident.epoch, at=rows[-1].at, entries=rows, effects=effects)
        self._committer.submit(commit, self.then(resident, commit, done), resident)

    def must_ask(self, resident: Resident, verb: StepVerb) -> bool:
        """Tell whether an attempt has to ask for its place before anything else is asked."""
        return self.of(verb) is not None and not self.has_place(resident, verb)

    def has_place(self, resident: Resident, verb: StepVerb) -> bool:
        """Tell whether the present attempt of a step has its place."""
        return verb.location in self._held.get(resident, ())

    def admits(self, resident: Resident, verb: StepVerb) -> bool:
        """Tell whether an attempt that has got room here may begin; else ask for its place, or put it off."""
        limit, soon = verb.activity.settings.limit or "", asyncio.get_running_loop().call_soon
        if self._runs.limits.is_own(limit):
            now = self._runs.clock.now()
            turn = self._runs.limits.turn_of(limit, (resident.key, verb.location), now)
            if turn > now:
                soon(self._put_off, resident, verb, f"{OVER_LIMIT}{limit!r}", turn)
            return turn <= now
        if self.has_place(resident, verb) or key_of(verb) is None:
            return True
        if self._reserve(resident, verb):
            soon(self._ask, resident, verb)
        return False

    def _ask(self, resident: Resident, verb: StepVerb) -> None:
        if resident.phase or is_done(verb):
            self._unreserve(resident, verb)
            self._executor.fill()
        else:
            self._runs.note(resident, begin=[verb])

    # Waiting.

    def refused(self, resident: Resident, verb: StepVerb, answer: LimitAnswer) -> None:
        """Let a step wait that has no place, or fail it if there is no such limit."""
        resident.active.discard(verb.location)
        limit = verb.activity.settings.limit
        if answer.outcome == "unknown":
            path = resident.execution.journal.names.path(verb.location)
            self._fail(resident, verb, unknown_limit(path, limit or ""))
            return
        verb.skipped = True
        came = resident.limit_wait(verb)
        if came:
            resident.active.add(verb.location)  # not to be let go: its turn has come
        now = self._runs.clock.now()
        self._runs.note(resident, (verb.location, entries.AttemptSkipped(f"{OVER_LIMIT}{limit!r}", now)))
        for row in came:
            self._runs.note(resident, begin=self.turn_came(resident, row))

    def turns_came(self, resident: Resident, rows: Sequence[Message]) -> list[StepVerb]:
        """Return the steps that wait here and may begin now."""
        return [verb for row in rows for verb in self.turn_came(resident, row)]

    def turn_came(self, resident: Resident, row: Message) -> list[StepVerb]:
        """Return the step that waits here, if it may begin now; if it may later, let it wait until then."""
        verb = resident.limit_turn(row)
        if verb is None or is_done(verb):
            return []
        due = int(row.payload) if row.payload else 0
        if due > self._runs.clock.now():
            resident.active.discard(verb.location)
            verb.retry_at = due
            resident.retries[verb.location] = (due, verb)
            return []
        resident.active.add(verb.location)
        return [verb]

    def recall(
        self, resident: Resident, verb: StepVerb, granted: Instant | None, notes: list[tuple[str, entries.Entry]]
    ) -> bool:
        """Let a step of a run that was claimed go on waiting; False if its turn has come, or it is to ask again.

        It asks until it was answered once in this engine's life: the instant that it was told may be one of another
        boot of the machine.
        """
        now = self._runs.clock.now()
        if not verb.settled and not verb.skipped:  # its worker was lost before it had noted that it waits
            reason = f"{OVER_LIMIT}{verb.activity.settings.limit!r}"
            notes.append((verb.location, entries.AttemptSkipped(reason, now)))
        verb.skipped = True
        if granted is None:
            resident.limit_wait(verb)
            return True
        due = now + granted - self.clock.now()
        if granted < 0 or due <= now:
            return False
        if not self._asked_again.setdefault((resident.key, verb.location), False):
            if len(self._asked_again) > _MOST_REMEMBERED:
                del self._asked_again[next(iter(self._asked_again))]
            return False
        resident.retries[verb.location] = (due, verb)
        return True

    def was_in_line(self, verb: StepVerb) -> bool:
        """Tell whether a step that is not in line any more was there last: it asks again, whatever the clock says."""
        last = verb.last
        over = isinstance(last, entries.AttemptSkipped) and last.reason.startswith(OVER_LIMIT)
        return verb.skipped and over and self.of(verb) is not None

    def withdraw_done(self, resident: Resident, limits: Mapping[str, Instant | None]) -> None:
        """Let steps wait no longer that the code gave up while it was replayed."""
        open_verbs = resident.execution.journal.open
        done = [location for location in limits if (verb := open_verbs.get(location)) is None or is_done(verb)]
        if done:
            resident.withdraw_limits(done, self.clock.now())

    def abandon(self, resident: Resident, verb: StepVerb) -> None:
        """Let a step that the code gave up wait no longer, and others have its turn."""
        if verb.activity.settings.limit is None:
            return
        self._runs.limits.forget(resident.key, verb.location)
        waited = resident.limited.pop(verb.location, None) is not None
        asks = (resident, verb.location) in self._reserved  # and may be put in line by the answer
        if (waited or asks or verb.skipped) and self.of(verb) is not None:
            resident.withdraw_limits([verb.location], self.clock.now())

    # Giving back.

    def left(
        self, resident: Resident, verb: StepVerb, verdict: str = "", hold: int | None = None, crashed: bool = False
    ) -> None:
        """Give back the place of an attempt with the commit that records its end, which comes next."""
        held = self._held.get(resident)
        place = held.pop(verb.location, None) if held is not None else None
        if place is not None:
            if not held:
                del self._held[resident]
            if self._kept.left(place, verdict):
                return
            self._leave(resident, place.leave(self.clock.now(), int(not place.outlived), verdict, hold))
        elif crashed and self.shared(verb) is not None and (key := key_of(verb)) is not None:
            leave = LeaveLimit(
                limit=verb.activity.settings.limit or "",
                key=key,
                worker="",
                now=self.clock.now(),
                places=0,
                verdict=verdict,
                hold=hold,
            )
            self._leave(resident, leave)

    def _leave(self, resident: Resident, leave: LeaveLimit) -> None:
        self.pending.setdefault(resident, []).append(leave)

    def exits(self, resident: Resident) -> list[LeaveLimit] | tuple[()]:
        """Take the places that a run has to give back, for its next commit."""
        return self.pending.pop(resident, ())

    def lost(self, resident: Resident, verb: StepVerb, loss: entries.AttemptLost) -> None:
        """Give back the place of an attempt of which nothing came; its crash says something of the service."""
        crashed = loss.why == "crash"
        self.left(resident, verb, "failed" if crashed else "", crashed=crashed)

    def hold(self, resident: Resident, verb: StepVerb, retry_at: Instant) -> None:
        """Give back the place of an attempt that was told to come back later, and let no other ask before that."""
        limit = verb.activity.settings.limit
        self.left(resident, verb, hold=max(retry_at - self._runs.clock.now(), 0))
        if limit is not None and self._runs.limits.is_own(limit):
            self._runs.limits.hold(limit, retry_at)

    def body_left(self, run: Resident, attempt: Attempt) -> None:
        """Note that an attempt has ended: if its body goes on, it has its place until that has ended, too."""
        place = self._held.get(run, {}).get(attempt.verb.location)
        if place is not None and attempt.going:
            self._outlives(place, attempt)

    def stopped(self, run: Resident, attempt: Attempt) -> None:
        """Give back the place of an attempt that was given up, as soon as its body is gone."""
        place = self._held.get(run, {}).pop(attempt.verb.location, None)
        if place is None:
            return
        self._kept.left(place, "")
        if attempt.going and not place.outlived:
            self._outlives(place, attempt)
        elif not place.outlived:
            self.give_back([place.leave(self.clock.now())])

    def _outlives(self, place: LimitPlace, attempt: Attempt) -> None:
        which = (place.limit, place.key, place.worker)
        place.outlived = True
        self._outlived[which] += 1

        def gone() -> None:
            self._outlived[which] -= 1
            self.give_back([place.leave(self.clock.now())])

        attempt.when_gone(gone)

    def dropped(self, resident: Resident) -> None:
        """Give back what a run has that is not in memory any more."""
        if resident not in self._held and resident not in self.pending:
            return
        now = self.clock.now()
        places = self._held.pop(resident, {}).values()
        for place in places:
            self._kept.left(place, "")
        leaves = [place.leave(now) for place in places if not place.outlived]
        self.give_back([*leaves, *self.exits(resident)])

    def give_back(self, leaves: list[LeaveLimit]) -> None:
        """Give back places that no commit of a run does."""
        if not leaves:
            return

        def told(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, Exception):
                self.doubt = True
            self._runs.host.woke_others()

        self._committer.submit(LeaveLimits(leaves=leaves, at=self._runs.clock.now()), told)

    def close(self) -> None:
        """Give back nothing more: the worker leaves."""
        self._kept.close()

    # What the store should count.

    def correction(self) -> CorrectPlaces:
        """Return what this worker has, so that the store can correct its counts."""
        worker = self._runs.host.id
        least: Counter[Pair] = Counter()
        for places in self._held.values():
            least.update(
                (place.limit, place.key) for place in places.values() if place.worker == worker and not place.outlived
            )
        least.update(self.tasks.held(worker))
        least.update(self._kept.of(worker))
        for (limit, key, whose), count in self._outlived.items():
            if whose == worker:
                least[limit, key] += count
        for pair in [pair for pair, count in self._asked.items() if not count]:
            del self._asked[pair]
        held = [
            HeldPlaces(*pair, least[pair], least[pair] + self._asked.get(pair, 0)) for pair in {*least, *self._asked}
        ]
        self.doubt = False
        return CorrectPlaces(worker=worker, places=held, at=self._runs.clock.now(), now=self.clock.now())


def _place(enter: EnterLimit, answer: LimitAnswer) -> LimitPlace:
    return LimitPlace(enter.limit, enter.key, enter.worker, answer.probe, answer.keep)


def unknown_limit(step: str, limit: str) -> UnknownLimit:
    """Return the error of a step whose limit no engine declares."""
    return UnknownLimit(
        f"step {step!r}: no engine on this database declares the limit {limit!r}: add "
        f"Limit(name={limit!r}, ...) to Engine(limits=[...])"
    )


def entered(verb: StepVerb, outcome: Committed) -> bool:
    """Tell whether the commit that counts an attempt gave it its place."""
    answer = outcome.limits.get(verb.location)
    return answer is not None and answer.outcome == "entered"
