"""The attempts of steps: begun, counted, retried, lost, and what their ends mean for the run.

Like the runner, called only from plain callbacks of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import msgspec

from holdfast.bodies.admission import asking, is_counted, not_ready
from holdfast.bodies.attempt import Attempt
from holdfast.bodies.context import StepContext
from holdfast.bodies.executor import Executor
from holdfast.bodies.judging import convicted, conviction, judge, misfit, raised_by, skipped_too_often
from holdfast.clock import Clock, Instant, micros
from holdfast.context.steps import StepVerb
from holdfast.contract.operations import Committed
from holdfast.contract.rows import Claim, InboxKind, Message
from holdfast.contract.store import Store
from holdfast.definitions import NotReady
from holdfast.engine.runs.ports import Runs
from holdfast.engine.runs.records.letters import letter_of_step
from holdfast.engine.runs.resident import FINISHING, PAUSING, Resident
from holdfast.engine.steps.callbacks import StepCallbacks
from holdfast.engine.steps.keys import KeyedSteps
from holdfast.engine.steps.limits.keys import made_key
from holdfast.engine.steps.limits.limited import LimitedSteps, entered
from holdfast.engine.steps.queue.outgoing import QueuedSteps
from holdfast.engine.steps.suspects import Suspects
from holdfast.engine.steps.transactions import TransactionalBodies
from holdfast.engine.worker.committer import Committer
from holdfast.engine.worker.figures import complete
from holdfast.logs import Lines
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.entry import STOPPED
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Turn

_logger = logging.getLogger("holdfast.engine")

Notes = list[tuple[str, entries.Entry]]


class Attempts:
    """The steps of all runs in memory."""

    def __init__(
        self,
        runs: Runs,
        executor: Executor,
        store: Store,
        errors: dict[str, type[BaseException]],
        committer: Committer,
        lease_clock: Clock,
    ) -> None:
        self._runs = runs
        self._executor = executor
        self._errors = errors
        self.suspects = Suspects(runs, executor)
        self._draw = random.random
        self._transactions = TransactionalBodies(runs, executor.loop, store, self._left)
        self.callbacks = StepCallbacks(runs, executor, self.context)
        self.queued = QueuedSteps(runs, self)
        """Those whose attempts are in queues."""
        self.keyed = KeyedSteps(runs, self)
        """Those that have an idempotency key."""
        self.limited = LimitedSteps(runs, executor, committer, lease_clock, self)
        """Those under limits that workers share."""
        self.exits = self.limited.exits

    # Beginning.

    def recall(
        self, resident: Resident, turn: Turn, claim: Claim, now: Instant, limits: Mapping[str, Instant | None]
    ) -> list[StepVerb]:
        """Sort out the steps that a replayed run left open; return those whose next attempt may begin.

        Steps that wait for a retry go on waiting, and so do those whose attempt is in a queue, or that wait for a
        limit. The others were lost with their worker, as the claim tells, which is noted in the turn.
        """
        notes: Notes = []
        begin: list[StepVerb] = []
        for verb in turn.started:
            if not isinstance(verb, StepVerb) or not verb.recalled or is_done(verb):
                continue
            if verb.location in limits and self.limited.recall(resident, verb, limits[verb.location], notes):
                continue
            due = verb.retry_at or 0
            if (verb.settled or verb.skipped) and due > now and not self.limited.was_in_line(verb):
                resident.retries[verb.location] = (due, verb)
                continue
            if verb.location in resident.queued:
                continue
            if (kept := verb.kept) is not None:
                self.callbacks.again(resident, verb, kept, partial(self._record, resident, verb, kept))
                continue
            if not verb.settled and not verb.skipped:
                loss = self.suspects.counted_loss(verb, claim.lost or "handed back", claim)
                notes.append((verb.location, loss))
                self.limited.lost(resident, verb, loss)
            if not convicted(verb):
                begin.append(verb)
        if notes and turn.outcome is None:
            turn.entries.extend(resident.execution.note(notes, now).entries)
        self.limited.withdraw_done(resident, limits)
        return self.suspects.may_begin(resident, begin)

    def count(self, resident: Resident, verbs: Iterable[StepVerb], now: Instant) -> Turn:
        """Count another attempt of each step; it may run once that is durable.

        One whose last attempt did not run because its condition said not now gets the same number again.
        """
        notes: Notes = []
        for verb in verbs:
            if not verb.settled and not verb.skipped:
                continue
            verb.attempt += verb.settled
            verb.settled = verb.skipped = False
            verb.retry_at = None
            verb.began = now
            notes.append((verb.location, entries.AttemptBegun(verb.attempt)))
        return resident.execution.note(notes, now)

    def begin(self, resident: Resident, verb: StepVerb, only: bool, outcome: Committed) -> None:
        """Run the first attempt of a step that is plain, but for a limit; `only`: the turn has begun nothing else."""
        runs, plain = self._runs, verb.activity.plain
        if runs.app is not None or runs.deadline is not None or not (plain or entered(verb, outcome)):
            self.run(resident, verb, outcome, only)
        elif not runs.stopping and not resident.phase:
            context = StepContext(resident.id, resident.workflow.name, verb.attempt, verb, runs.clock, self._progress)
            attempt = Attempt(self._executor, verb, resident, context, self._done)
            resident.attempts[verb.location] = attempt
            if not plain:
                attempt.limit = None  # its place is counted in the store
            self._executor.run_plain(attempt, only, not plain)
        else:
            self._not_begun(resident, verb)

    def run(self, resident: Resident, verb: StepVerb, outcome: Committed | None = None, only: bool = False) -> None:
        """Run the attempt of a step that was counted last, if its key, its limit and its condition allow.

        The outcome of that commit has the answers. `only` tells that the turn has begun nothing else.
        """
        runs = self._runs
        if resident.phase:
            return
        answer = outcome.keys.get(verb.location) if outcome is not None and outcome.keys else None
        limit = outcome.limits.get(verb.location) if outcome is not None and outcome.limits else None
        if limit is not None and limit.outcome != "entered":
            self.suspects.leave(verb)
            self.limited.refused(resident, verb, limit)
            return
        if runs.stopping and verb.activity.queue is None and (answer is None or answer.outcome == "taken"):
            self._not_begun(resident, verb)
            return
        context = self.context(resident, verb)
        if answer is not None and answer.outcome != "taken":
            if answer.outcome != "held":
                self.call_back(resident, verb, context)
            self.keyed.not_taken(resident, verb, answer)
            return
        settings = verb.activity.settings
        try:
            if verb.activity.queue is not None:
                self.queued.committed(resident, verb)
                return
            if settings.idempotency_key is not None:
                with asking("idempotency_key", settings):
                    key = settings.idempotency_key(*verb.args, **verb.kwargs)
                if key is not None:
                    context.idempotency_key = verb.idempotency_key(str(key))
            made_key(verb)  # where that fails, so does the attempt
            why = None if self.limited.must_ask(resident, verb) else not_ready(context, settings, runs.app)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            attempt = self._attempt(verb, resident, context)
            asyncio.get_running_loop().call_soon(attempt.finish, None, error)
            return
        if why is not None:
            self.call_back(resident, verb, context)
            self.skip(resident, verb, why)
            return
        gated = settings.limit is not None or verb.activity.watched or runs.deadline is not None
        admit = partial(self._admit, resident, context) if gated else None
        inside = self._transactions if settings.transaction else None
        self._executor.run(self._attempt(verb, resident, context), admit, inside, only, first=limit is not None)

    def _not_begun(self, resident: Resident, verb: StepVerb) -> None:
        """Note that an attempt was counted and does not begin here: the next worker begins it by that number."""
        if resident.phase or is_done(verb) or verb.settled or verb.skipped:
            return
        now = self._runs.clock.now()
        verb.skipped = True
        resident.active.add(verb.location)  # the run is not let go before the worker stops, and is due then
        self.keyed.give_up(resident, verb, now)
        self.limited.left(resident, verb)
        self._runs.note(resident, (verb.location, entries.AttemptSkipped(STOPPED, now)))

    def _attempt(self, verb: StepVerb, resident: Resident, context: StepContext) -> Attempt:
        attempt = Attempt(self._executor, verb, resident, context, self._done)
        resident.attempts[verb.location] = attempt
        settings = verb.activity.settings
        if self.limited.of(verb) is not None:
            attempt.limit = None  # its place is counted in the store
        if settings.idempotency_key is not None:
            attempt.late = partial(self.keyed.late, resident.key, verb)
        if settings.on_start is not None:
            attempt.opening = partial(self._runs.reporter.observers.call, settings.on_start, resident.id, context)
        return attempt

    def context(self, resident: Resident, verb: StepVerb) -> StepContext:
        """Return what the present attempt of a step, or a callback that is told of it, may know."""
        return StepContext(resident.id, resident.workflow.name, verb.attempt, verb, self._runs.clock, self._progress)

    def go_on(self, resident: Resident, verb: StepVerb, outcome: Committed, only: bool) -> None:
        """After the commit that has it in its history: run a new step, or fail one that crashed too often."""
        if not verb.recalled:
            if verb.activity.plain:
                self.begin(resident, verb, only, outcome)
            else:
                self.run(resident, verb, outcome, only)
        elif verb.settled and convicted(verb):
            self._convict(resident, verb)

    # Waiting.

    def key_is_free(self, resident: Resident, location: str) -> list[StepVerb]:
        """Return the step that waits for a key here, to try again."""
        return self.keyed.is_free(resident, location)

    def turns_came(self, resident: Resident, rows: Sequence[Message]) -> list[StepVerb]:
        """Return the steps that wait for a limit here and may begin."""
        return self.suspects.may_begin(resident, self.limited.turns_came(resident, rows))

    def nudged(self, resident: Resident, rows: Sequence[Message]) -> list[StepVerb]:
        """Return the steps that wait to be tried again here and that an operator wants tried now."""
        wanted = {row.name for row in rows if row.kind == InboxKind.NUDGE}
        return self.suspects.may_begin(resident, resident.nudge(wanted)) if wanted else []

    def skip(self, resident: Resident, verb: StepVerb, why: NotReady) -> None:
        """Ask a step's condition again later; its attempt has not run and is not counted again."""
        now = self._runs.clock.now()
        resident.active.discard(verb.location)
        verb.skips += 1
        failure = skipped_too_often(verb, why.reason)
        if failure is not None:
            self._end(resident, verb, failure)
            return
        self._settle(resident, verb, entries.AttemptSkipped(why.reason, now + micros(why.retry_in)))

    def put_off(self, resident: Resident, verb: StepVerb, reason: str, check_at: Instant) -> None:
        """Let a step whose attempt was counted but has not run wait, durably and without a slot."""
        if resident.phase or is_done(verb):
            return
        now = self._runs.clock.now()
        resident.active.discard(verb.location)
        verb.skipped, verb.retry_at, verb.last = True, check_at, entries.AttemptSkipped(reason, check_at)
        resident.retries[verb.location] = (check_at, verb)
        self.keyed.give_up(resident, verb, now)
        self.limited.left(resident, verb)
        self._runs.note(resident, (verb.location, verb.last))

    def _admit(self, resident: Resident, context: StepContext, attempt: Attempt) -> bool:
        """Tell whether an attempt that has got its place may begin: it may have waited for it for long."""
        verb, settings = attempt.verb, attempt.verb.activity.settings
        assert isinstance(verb, StepVerb)
        if self._runs.too_late(settings):
            asyncio.get_running_loop().call_soon(self._not_begun, resident, verb)
            return self._refuse(resident, attempt)
        if settings.limit is not None and not self.limited.admits(resident, verb):
            return self._refuse(resident, attempt)
        self.call_back(resident, verb, context)
        return True

    def _refuse(self, resident: Resident, attempt: Attempt) -> bool:
        resident.attempts.pop(attempt.verb.location, None)
        return False

    def call_back(self, resident: Resident, verb: StepVerb, context: StepContext) -> None:
        """Remember the activity to be told what becomes of a step, if it wants to be."""
        if verb.activity.watched:
            resident.call_back(verb, context)

    def _progress(self, context: StepContext, detail: str, told: Callable[[object], None]) -> None:
        """Make durable that a step reported progress; called from any thread."""
        resident, verb = self._runs.ids.get(context.run_id), context.verb
        gone = resident is None or verb is None or resident.execution.journal is not verb.journal
        if resident is None or verb is None or gone or resident.phase >= FINISHING or is_done(verb):
            told(None)
        else:
            self._runs.beats.record(resident, verb.location, detail, told)

    def stop_queued(self, resident: Resident) -> None:
        """Give up the attempts of a run that have no place to run yet; they are handed back when it goes on."""
        for location, attempt in list(resident.attempts.items()):
            if not self._executor.runs(attempt):
                self.stop(resident, location, "the run is paused")

    def stop(self, resident: Resident, location: str, reason: str) -> None:
        """Give up the attempt at a location, if one is under way."""
        attempt = resident.attempts.pop(location, None)
        if attempt is not None:
            attempt.stop(reason)
            self.limited.stopped(resident, attempt)
            self._left(attempt)

    def _left(self, attempt: Attempt) -> None:
        attempt.owner.attempts.pop(attempt.verb.location, None)
        self.suspects.leave(attempt.verb)

    def stop_all(self, resident: Resident, reason: str) -> None:
        """Give up every attempt of a run that leaves this worker."""
        for location in list(resident.attempts):
            self.stop(resident, location, reason)
        self.suspects.turns.forget(resident.execution.journal)
        self.limited.dropped(resident)

    def hand_back(self, resident: Resident) -> Notes:
        """Stop what is under way and return the notes that say so: an orderly stop does not count as a loss."""
        notes: Notes = []
        for location, attempt in list(resident.attempts.items()):
            if not attempt.begun:
                if not attempt.verb.settled and not attempt.verb.skipped:  # else it has not even asked for its limit
                    notes.append((location, entries.AttemptSkipped(STOPPED, self._runs.clock.now())))
            elif attempt.inside is None:  # what is inside a transaction may still be committed
                notes.append((location, entries.AttemptLost(attempt.number, "handed back")))
            self.stop(resident, location, "the worker stops")
        if resident.commits:
            told = {location for location, _ in notes}
            notes += [
                (location, entries.AttemptSkipped(STOPPED, self._runs.clock.now()))
                for location in sorted(resident.active - told - resident.telling.keys())
                if is_counted(resident.execution.journal.open.get(location))
            ]
        return notes

    # Ending.

    def _done(self, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        resident, verb = attempt.owner, attempt.verb
        resident.attempts.pop(verb.location, None)
        if verb.activity.settings.limit is not None:
            self.limited.body_left(resident, attempt)
        if self.suspects.turns.holder is not None:
            self.suspects.leave(verb)
        if resident.phase >= FINISHING or is_done(verb) or attempt.number != verb.attempt:
            self.limited.stopped(resident, attempt)
            self._runs.pauses.check(resident)
            return
        resident.active.discard(verb.location)
        if result is not None:
            error = self.succeeded(resident, verb, result)
        if error is not None:
            self.failed(resident, verb, error, isolated=attempt.isolated)

    def succeeded(self, resident: Resident, verb: StepVerb, result: bytes, keep_key: bool = False) -> Exception | None:
        """End a step with a result; return what is wrong with it if it does not fit."""
        try:
            verb.value = verb.activity.decode(result)
        except Exception as unfit:
            return misfit(verb, unfit)
        fact = entries.StepCompleted(verb.attempt, msgspec.Raw(result))
        if verb.activity.plain and not resident.phase and not verb.recalled:
            complete(self._runs, resident, verb, fact)
        elif verb.activity.only_limited and not resident.phase and not verb.recalled:
            self.limited.left(resident, verb, "ok")
            complete(self._runs, resident, verb, fact)
        else:
            self._end(resident, verb, fact, keep_key)
        return None

    def failed(
        self, resident: Resident, verb: StepVerb, error: BaseException | ErrorData, *, isolated: bool = False
    ) -> None:
        """End an attempt that failed, and the step with it if no other may follow.

        `isolated` tells that it ran in a child process because it was a suspect.
        """
        now = self._runs.clock.now()
        data, raised = raised_by(error, verb.activity, self._errors)
        if isolated:
            self._lose(resident, verb, self.suspects.judged(verb, raised))
            return
        judged = judge(verb, data, raised, now, self._draw)
        entry = judged.entry
        if judged.postponed:
            assert isinstance(entry, entries.AttemptFailed)
            self.limited.hold(resident, verb, entry.retry_at)  # no other step under its limit asks before that
            self._settle(resident, verb, entry)
            return
        self.limited.left(resident, verb, "failed" if judged.transient else "")
        if isinstance(entry, entries.StepFailure):
            self._end(resident, verb, entry)
            return
        step = resident.execution.journal.names.path(verb.location)
        _logger.info("run %s: attempt %d of step %r failed: %r", resident.id, verb.attempt, step, entry.error.message)
        self._settle(resident, verb, entry)

    def _settle(self, resident: Resident, verb: StepVerb, entry: entries.Entry) -> None:
        """Record what came of an attempt, after its activity was told if it wants to be."""
        if not self.callbacks.hold(resident, verb, entry, partial(self._record, resident, verb, entry)):
            self._record(resident, verb, entry)

    def _record(self, resident: Resident, verb: StepVerb, entry: entries.Entry) -> None:
        if isinstance(entry, entries.AttemptSkipped):
            self.put_off(resident, verb, entry.reason, entry.check_at)
        elif isinstance(entry, entries.AttemptFailed):
            verb.failures += not entry.error.postpones
            verb.settled, verb.retry_at, verb.last = True, entry.retry_at, entry
            resident.retries[verb.location] = (entry.retry_at, verb)
            self._runs.figures.attempt(verb, "retried", self._runs.clock.now())
            self._runs.note(resident, (verb.location, entry))
        else:
            self._ended(resident, verb, entry)

    def fail(self, resident: Resident, verb: StepVerb, error: Exception) -> None:
        """End a step that did not run and never will; a key it asked for is another's."""
        self._end(resident, verb, entries.StepFailure(verb.attempt, error_to_data(error)), keep_key=True)

    def _end(self, resident: Resident, verb: StepVerb, fact: entries.Entry, keep_key: bool = False) -> None:
        """End a step, after its activity was told if it wants to be."""
        self.limited.left(resident, verb, "ok" if isinstance(fact, entries.StepCompleted) else "")
        if not self.callbacks.hold(resident, verb, fact, partial(self._ended, resident, verb, fact, keep_key)):
            self._ended(resident, verb, fact, keep_key)

    def _ended(self, resident: Resident, verb: StepVerb, fact: entries.Entry, keep_key: bool = False) -> None:
        """Hand a step's end to the code; for a suspect, only after it is durable.

        If it is the code that crashes or hangs with this result, the step must not be blamed for ever: the next claims
        then find the result recorded and no progress, and the run is blocked. A run that is pausing only records it.
        """
        if verb.activity.settings.idempotency_key is not None and not keep_key:
            result = bytes(fact.result) if isinstance(fact, entries.StepCompleted) else None
            self.keyed.give_up(resident, verb, self._runs.clock.now(), result)
        self._runs.figures.ended(verb, fact, self._runs.clock.now())
        if isinstance(fact, entries.StepFailure) and (verb.on_its_own or verb.location.startswith("^")):
            resident.add_letter(letter_of_step(verb, fact))
            path, error = resident.execution.journal.names.path(verb.location), fact.error
            _logger.error("run %s: %s failed for good: %s: %s", resident.id, path, error.type, Lines(error.message))
        if resident.phase is PAUSING:
            pausing = resident.pausing
            assert pausing is not None
            notes: Notes = [] if pausing.withheld else [("!", entries.Withheld())]
            pausing.withheld = True
            self._runs.note(resident, *notes, (verb.location, fact))
        elif verb.suspect:
            self.suspects.wait_for_code(resident.key)
            self._runs.record_and_release(resident, verb.location, fact)
        else:
            self._runs.apply(resident, verb.location, fact)

    # Losses.

    def lost(self, resident: Resident, verb: StepVerb, why: str) -> None:
        """End an attempt of which nothing came, as `why` says, and begin the next, unless it crashed too often."""
        self._lose(resident, verb, self.suspects.counted_loss(verb, why))

    def _lose(self, resident: Resident, verb: StepVerb, loss: entries.AttemptLost) -> None:
        self.limited.lost(resident, verb, loss)
        if convicted(verb):
            resident.active.add(verb.location)  # not to be let go yet
            self._runs.note(resident, (verb.location, loss))
            self._convict(resident, verb)
        else:
            turn = resident.execution.note([(verb.location, loss)], self._runs.clock.now())
            self._runs.advance(resident, turn, self.suspects.may_begin(resident, [verb]))

    def _convict(self, resident: Resident, verb: StepVerb) -> None:
        resident.active.discard(verb.location)
        self.call_back(resident, verb, self.context(resident, verb))
        self._end(resident, verb, conviction(verb))
