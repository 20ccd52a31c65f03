"""The runs of one worker in memory: a fact, a turn, its commit, and acting on it. Read downwards.

The output-commit rule: a fact is handed to the code at once and the code runs ahead, but nothing a turn asks for is
acted on until the commit holding it and everything before it is durable. After any outcome but success the run in
memory is dropped; the worker that claims it next replays what is durable.
Every method is called from plain callbacks of the event loop, never inside a task, because it drives turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.bodies.executor import Executor
from holdfast.clock import Clock, micros
from holdfast.context.children import ChildVerb
from holdfast.context.steps import StepVerb
from holdfast.context.waits import SendVerb
from holdfast.contract.operations import Committed, KeepResult, Outcome, Started
from holdfast.contract.rows import Message, RunStanding, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, NewRun, StartRun
from holdfast.definitions import ActivityOptions, Registry
from holdfast.engine.runs.beats import Beats
from holdfast.engine.runs.commit import commit_of, only_plain_steps
from holdfast.engine.runs.departures import Departures
from holdfast.engine.runs.ends import Rules, child_refused
from holdfast.engine.runs.load import RunLoader
from holdfast.engine.runs.mail import Mail
from holdfast.engine.runs.news import News
from holdfast.engine.runs.outlasting import OutlastingCalls
from holdfast.engine.runs.pauses import Pauses
from holdfast.engine.runs.ports import Host
from holdfast.engine.runs.resident import DROPPED, FINISHING, PAUSING, RELEASING, Resident
from holdfast.engine.settings import Settings
from holdfast.engine.steps.attempts import Attempts
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Reporter
from holdfast.engine.worker.committer import Committer, Done
from holdfast.engine.worker.figures import Figures
from holdfast.engine.worker.timers import Timers
from holdfast.events import Events
from holdfast.limits import Limits
from holdfast.logs import Lines
from holdfast.payloads.errors import loggable
from holdfast.replay import entry as entries
from holdfast.replay.journal import CANCEL
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Ending, Turn

_logger = logging.getLogger("holdfast.engine")


class Runner:
    """Every run this worker has in memory."""

    def __init__(
        self,
        host: Host,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        store: Store,
        committer: Committer,
        executor: Executor,
        events: Events,
        reporter: Reporter,
        limits: Limits,
        queues: Queues,
        lease_clock: Clock,
        app: Callable[[], Mapping[str, Any]] | None = None,
        deadline: float | None = None,
    ) -> None:
        self.host = host
        self.residents: dict[int, Resident] = {}
        """By key; put and taken away by `keep` and `drop` alone."""
        self.ids: dict[str, Resident] = {}
        self._beginning = 0
        """How many are in memory whose first commit is under way."""
        self.queues = queues
        self._max_resident = settings.max_resident * 1.25
        """A quarter more than may stay may wait here: of these `Worker._evict` releases the longest idle."""
        self.loader = RunLoader(registry, settings)
        self._committer = committer
        self._news = News(host, reporter, queues, registry)
        self.reporter = reporter
        self.limits = limits
        self.app = app
        """What says, each time it is asked, what an attempt should know of the world."""
        self.deadline = deadline
        """When, by the event loop's clock, this engine stops: what cannot finish before that is not begun."""
        self._loop = executor.loop
        self.rules = Rules.of(events)
        self.clock = clock
        self.stopping = False
        self.figures = Figures(store, clock)
        self.beats = Beats(committer, reporter, clock, executor.loop)
        self.timers = Timers(clock, self._wake_all, micros(settings.timer_resolution))
        self.attempts = Attempts(self, executor, store, registry.errors, committer, lease_clock)
        self.outlasting = OutlastingCalls(self)
        self.departures = Departures(self, self.attempts, committer)
        self.pauses = Pauses(self.attempts, self.departures.pause)
        self.mail = Mail(self, self.attempts, self.attempts.queued, self.pauses, committer)

    # Facts: what comes to a run and lets its code go on.

    def begin(self, run: NewRun, resident: Resident, turn: Turn, done: Done) -> None:
        """Insert a run together with its first turn, and go on with it once that is durable."""
        commit = self._commit(resident, turn, ())
        self._beginning += 1
        done = self.attempts.queued.then_tell(resident, commit, done)
        begun = self.attempts.limited.then(resident, commit, partial(self._begun, resident, turn, done))
        self._committer.submit(StartRun(run=run, turn=commit), begun)

    def _begun(self, resident: Resident, turn: Turn, done: Done, outcome: Outcome | Exception) -> None:
        self._beginning -= 1
        if isinstance(outcome, Started) and outcome.committed is not None:
            resident.got_key(outcome.key)
            self.keep(resident)
            done(outcome)
            self.reporter.tell("run.started", resident)
            self._committed(resident, turn, (), outcome.committed)
        else:
            self.drop(resident)
            done(outcome)

    def out_of_grace(self, resident: Resident) -> None:
        """Stop a run that did not stop by itself, undoing what it did if that was asked for."""
        journal = resident.execution.journal
        if self.outlasting.give_up(resident):
            return
        if journal.undo_asked and journal.compensations:
            self.apply(resident, CANCEL, entries.CancelRequested(True))
        else:
            self.cancel_outright(resident)

    def cancel_outright(self, resident: Resident) -> None:
        """Cancel a run whatever its code is doing, and call the hook for that if there is one."""
        if resident.workflow.told_of_cancels:
            self.advance(resident, resident.execution.conclude(self.clock.now()))
        else:
            self.departures.cancel_outright(resident)

    def apply(self, resident: Resident, location: str, fact: entries.Entry) -> None:
        """Hand a fact to the code and make what follows durable."""
        if resident.phase:
            return
        try:
            turn = resident.execution.apply(location, fact, self.clock.now())
        except Exception as error:
            self.turn_failed(resident, error)
        else:
            self.advance(resident, turn)

    def deliver(self, resident: Resident, messages: Sequence[Message]) -> None:
        """Hand inbox rows to the code and make what follows durable."""
        self._drive(resident, resident.execution.deliver, messages)

    def _drive(self, resident: Resident, drive: Callable[..., Turn], *what: Any) -> None:
        if resident.phase:
            return
        try:
            turn = drive(*what, self.clock.now())
        except Exception as error:
            self.turn_failed(resident, error)
        else:
            self.advance(resident, turn)

    def note(self, resident: Resident, *notes: tuple[str, entries.Entry], begin: Sequence[StepVerb] = ()) -> None:
        """Record what the engine says about steps, and make it durable; the code does not see it."""
        self.advance(resident, resident.execution.note(notes, self.clock.now()), begin)

    def turn_failed(self, resident: Resident, error: Exception) -> None:
        """Give back a run whose turn failed by a fault of the engine: it must not be left stuck."""
        _logger.error("a turn of run %s failed inside the engine", resident.id, exc_info=loggable(error))
        self.departures.lost(resident, error)

    def _wake_all(self, residents: Sequence[Resident]) -> None:
        with self._committer.together():
            for resident in residents:
                self._wake(resident)

    def _wake(self, resident: Resident) -> None:
        if resident.phase:
            return
        resident.schedule(None)
        now = self.clock.now()
        grace = resident.grace_ends
        if grace is not None and grace <= now:
            self.out_of_grace(resident)
            return
        ready = [verb for at, verb in resident.retries.values() if at <= now]
        if ready:
            for verb in ready:
                del resident.retries[verb.location]
            ready = self.attempts.suspects.may_begin(resident, ready)
            self.advance(resident, self.attempts.count(resident, ready, now), ready)
        due = resident.execution.next_due()
        if due is None or due > now or resident.phase:
            self._schedule(resident)
        else:
            self._drive(resident, resident.execution.fire)

    # The commit: make a turn durable, then act on it.

    def advance(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        """Make a turn durable, then act on it. `begin` are steps whose next attempt the turn counted."""
        if turn.ordinary and not begin:
            if not self.attempts.limited.pending and only_plain_steps(resident, turn):
                at, resident.commits = turn.entries[-1].at, resident.commits + 1
                commit = CommitTurn(key=resident.key, epoch=resident.epoch, at=at, entries=turn.entries)
                self._committer.submit(commit, partial(self._plain_committed, resident, turn), resident)
                return
            if only_plain_steps(resident, turn, self.limits.own):
                resident.commits += 1
                self.attempts.limited.advance(resident, turn, partial(self._plain_committed, resident, turn))
                return
        if turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED:
            self.departures.block(resident, turn)
            return
        ended = turn.outcome or turn.decided
        cancelled = ended is not None and ended.ending is Ending.CANCELLED
        if cancelled and self.outlasting.hold(resident, turn):
            self._schedule(resident)
            return
        if begin and turn.outcome is None:
            begin = self.attempts.limited.with_room(resident, begin)
        again = [verb for verb in begin if verb.settled or verb.skipped]
        if again and turn.outcome is None:
            turn.entries.extend(self.attempts.count(resident, again, self.clock.now()).entries)
        some_commit = self._commit(resident, turn, begin)
        done: Done = partial(Runner._committed, self, resident, turn, begin)  # a bound method is one object more
        if some_commit is None:
            done(Committed(resident.key))
            return
        asked = some_commit.effects
        if asked is not None and (asked.enters or asked.exits or asked.tasks):
            done = self.attempts.limited.then(resident, some_commit, done)
            done = self.attempts.queued.then_tell(resident, some_commit, done)
        self._committer.submit(some_commit, done, resident)

    def _commit(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb]) -> CommitTurn | None:
        """Note what a turn sets going, and return what to commit for it."""
        if turn.outcome is not None:
            resident.finish()
        self._activate(resident, turn, begin)
        journal, limited = resident.execution.journal, self.attempts.limited
        returned = journal.unwanted_events() if journal.inbox and turn.outcome is None else ()
        commit = commit_of(
            resident, turn, begin, self.rules, self.clock.now(), release=self._crowded, returned=returned,
            enters=limited.enters(resident, turn, begin) if turn.started or begin else (),
            exits=limited.exits(resident) if limited.pending else (),
        )  # fmt: skip
        resident.submitted(commit)
        return commit

    def _activate(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb]) -> None:
        """Note which steps and sends are being worked on from now on, and which no more."""
        active, attempts = resident.active, self.attempts
        for verb in turn.started:
            if is_done(verb) or verb.location in resident.retries or verb.location in resident.limited:
                continue
            if isinstance(verb, ChildVerb) and not verb.refused:
                continue
            if isinstance(verb, StepVerb) and (
                verb.location in resident.queued
                or (verb.activity.queue is not None and not verb.recalled and attempts.queued.put(resident, verb))
            ):
                continue  # another worker runs it
            active.add(verb.location)
        for verb in begin:
            active.add(verb.location)
            if verb.activity.queue is not None and not is_done(verb) and attempts.queued.put(resident, verb):
                active.discard(verb.location)
        for verb in turn.abandoned:
            active.discard(verb.location)
            resident.retries.pop(verb.location, None)
            resident.held.pop(verb.location, None)
            if isinstance(verb, StepVerb):
                attempts.queued.abandon(resident, verb)
                attempts.limited.abandon(resident, verb)

    # Acting on what is durable.

    def _plain_committed(self, resident: Resident, turn: Turn, outcome: Outcome | Exception) -> None:
        """Begin the steps of a turn that did nothing else."""
        if (
            type(outcome) is not Committed
            or resident.phase
            or resident.aside is not None
            or self.reporter.listeners
            or outcome.messages
        ):
            self._committed(resident, turn, (), outcome)
            return
        resident.commits -= 1
        try:
            for verb in turn.started:
                if not is_done(verb):
                    self.attempts.begin(resident, verb, len(turn.started) == 1, outcome)
            if not resident.active or resident.timed:
                self._settle(resident)
        except Exception as error:
            _logger.exception("run %s could not be continued", resident.id)
            self.departures.lost(resident, error)

    def _committed(
        self, resident: Resident, turn: Turn, begin: Sequence[StepVerb], outcome: Outcome | Exception
    ) -> None:
        resident.answered(bool(turn.children))
        if isinstance(outcome, Committed):
            self._news.committed(resident, turn, outcome)
        if resident.phase is DROPPED:
            return
        if not isinstance(outcome, Committed):
            self.departures.lost(resident, outcome)
            return
        try:
            self._act_on(resident, turn, begin, outcome)
        except Exception as error:
            _logger.exception("run %s could not be continued", resident.id)
            self.departures.lost(resident, error)

    def _act_on(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb], outcome: Committed) -> None:
        for verb in turn.abandoned:
            if not self.outlasting.keep(resident, verb.location):
                self.attempts.stop(resident, verb.location, "cancelled")
        if resident.telling and resident.phase < FINISHING:
            self.attempts.callbacks.begin(resident, turn.entries)
        if resident.phase is RELEASING:
            if not resident.commits:
                due = self.clock.now() if outcome.messages or outcome.refused else resident.written[2]
                self.drop(resident)
                self.host.released(due)
            return
        if turn.outcome is not None:
            self._finished(resident, turn)
            return
        if outcome.refused:
            resident.was_refused()
        if resident.phase is PAUSING:
            self.pauses.check(resident)
            return
        open_verbs = resident.execution.journal.open
        refused = {at: reason for at, reason in outcome.refused.items() if isinstance(open_verbs.get(at), ChildVerb)}
        resident.active.update(refused)  # not to be let go before the code is told
        for verb in begin:
            if not is_done(verb):
                self.attempts.run(resident, verb, outcome)
        only = len(turn.started) == 1 and not begin
        for verb in turn.started:
            if not is_done(verb):
                self._act(resident, verb, outcome, only)
        for location, reason in refused.items():
            child = open_verbs.get(location)
            if isinstance(child, ChildVerb):
                self._refuse_child(resident, child, reason)
        if outcome.messages:
            self.mail.take(resident.key, outcome.messages)
        self._settle(resident)

    def _act(self, resident: Resident, verb: Any, outcome: Committed, only: bool) -> None:
        if isinstance(verb, StepVerb):
            self.attempts.go_on(resident, verb, outcome, only)
        elif isinstance(verb, SendVerb):
            refused = verb.refused if verb.refused is not None else outcome.refused.get(verb.location, "")
            resident.active.discard(verb.location)
            self.apply(resident, verb.location, entries.SendDone(refused))
        elif isinstance(verb, ChildVerb) and verb.refused:
            self._refuse_child(resident, verb, verb.refused)

    def _refuse_child(self, resident: Resident, verb: ChildVerb, reason: str) -> None:
        resident.active.discard(verb.location)
        status, error = child_refused(verb.id, reason)
        self.apply(resident, verb.location, entries.ChildEnded(status, error=error))

    def _settle(self, resident: Resident) -> None:
        """After the last commit in flight: keep a parked run for its next timer, or let it go."""
        if resident.phase is DROPPED:
            return
        if not resident.parked:
            self._schedule(resident)
        elif self._crowded:
            self.departures.release(resident)
        elif resident.written[0] is Status.RUNNING and resident.execution.journal.run.conclusion is None:
            self.note(resident)  # parked after all: what was in doubt is known now
        else:
            resident.rest(self.clock.now())
            self._schedule(resident)

    @property
    def _crowded(self) -> bool:
        """Whether a run that waits leaves memory in the very commit that says so: too many are here already."""
        return len(self.residents) + self._beginning >= self._max_resident

    def _schedule(self, resident: Resident) -> None:
        due = resident.next_due()
        due = self.timers.kept(due) if due is not None else None
        if due is not None and (resident.scheduled is None or due < resident.scheduled):
            resident.schedule(due)
            self.timers.add(due, resident)

    # Ending.

    def _finished(self, resident: Resident, turn: Turn) -> None:
        assert turn.outcome is not None
        if turn.outcome.ending is Ending.RENEWED:
            self._renew(resident, turn.outcome.payload or "{}")
            return
        error = turn.outcome.error
        if turn.outcome.ending is Ending.FAILED and error is not None:
            trace = Lines(f"\n{error.traceback}")
            _logger.warning("run %s failed: %s: %s%s", resident.id, error.type, error.message, trace)
        self.figures.run(resident, turn.outcome.ending.value, resident.execution.loop.now)
        completed = turn.outcome.ending is Ending.COMPLETED
        self.drop(resident, RunStanding(Status.COMPLETED, turn.outcome.payload) if completed else None)
        self.limits.forget(resident.key)

    def _renew(self, resident: Resident, encoded: str) -> None:
        """Begin the next life of a run, whose first entries are durable."""
        aside, unread = resident.aside, resident.execution.unread()
        assert aside is not None
        first = aside.next_life
        self.drop(resident)
        renewed = self.loader.renewed(resident, encoded, first)
        self.keep(renewed)
        self.advance(renewed, renewed.execution.begin(first, unread))

    # What attempts and departures ask.

    def too_late(self, settings: ActivityOptions) -> bool:
        """Tell whether an attempt could not finish before this engine stops."""
        if self.deadline is None:
            return False
        left = self.deadline - self._loop.time()
        return left <= (micros(settings.timeout) / 1e6 if settings.timeout else 0.0)

    def keep_result(self, kept: KeepResult) -> None:
        """Keep the late result of a step under its idempotency key."""
        self._committer.submit(kept, lambda outcome: self.host.woke_others())

    def lost(self, resident: Resident, outcome: Outcome | Exception) -> None:
        """Drop a run whose commit was not made, to be continued from what is durable."""
        self.departures.lost(resident, outcome)

    def record_and_release(self, resident: Resident, location: str, fact: entries.Entry) -> None:
        """Record a fact without letting the code go on from it; the worker that claims the run next does."""
        self.departures.record_and_release(resident, location, fact)

    # Keeping and forgetting.

    def hand_back_all(self) -> None:
        """On an orderly stop: give every run up, with the attempts it has under way."""
        for resident in list(self.residents.values()):
            if not resident.phase:
                self.outlasting.give_up(resident)
            if not resident.phase:
                self.departures.hand_back(resident)
        self.departures.free()

    def drop_all(self) -> None:
        """Forget every run in memory; the store has them."""
        for resident in list(self.residents.values()):
            self.drop(resident)
        self.departures.free()

    def keep(self, resident: Resident) -> None:
        """Have a run in memory from now on."""
        self.residents[resident.key] = self.ids[resident.id] = resident

    def drop(self, resident: Resident, standing: RunStanding | None = None) -> None:
        """Forget a run in memory; the store has it.

        Callers that wait for its end are told its standing. Without one they look: this worker tells it no more.
        """
        if resident.phase is DROPPED:
            return
        resident.drop()
        if self.residents.get(resident.key) is resident:
            del self.residents[resident.key], self.ids[resident.id]
            self.host.ended(resident.id, standing)
            if resident.workflow.flow is not None:
                self.host.look()  # there is room for another, and perhaps a place
        self.attempts.stop_all(resident, "the run left this worker")
        if resident.aside is not None:
            self.outlasting.drop(resident, "the run left this worker")
            self.attempts.callbacks.drop(resident)
        self.departures.let_go(resident, later=standing is not None and not self.stopping)
