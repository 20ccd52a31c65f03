"""Claim, load, turn, commit, act: what moves one run after another.

The output-commit rule: a fact is handed to the code at once and the code runs ahead, but nothing a turn asks for is
acted on until the commit holding it and everything before it is durable. After any outcome but success the run in
memory is dropped; whoever claims it next replays what is durable.

Every method here is called from plain callbacks of the event loop, never inside a task, because it drives turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any

from holdfast.clock import Clock, Instant, micros
from holdfast.context.children import ChildVerb
from holdfast.context.steps import StepVerb
from holdfast.context.waits import SendVerb
from holdfast.contract.operations import Beat, Committed, Delivered, KeepResult, Outcome, Started
from holdfast.contract.rows import Claim, History, Message, Standing, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, End, NewRun, Renewal, StartRun, State
from holdfast.definitions import ActivityOptions, Registry, Workflow
from holdfast.engine.runs.departures import Departures
from holdfast.engine.runs.extras import extras_of, letter, limited
from holdfast.engine.runs.load import Lives
from holdfast.engine.runs.outcomes import Endings
from holdfast.engine.runs.pauses import ACTS, Pauses, standing_pause
from holdfast.engine.runs.resident import Resident
from holdfast.engine.settings import Settings
from holdfast.engine.steps.attempts import Attempts
from holdfast.engine.steps.executor import Executor
from holdfast.engine.steps.queue.served import Queues
from holdfast.engine.views.observers import Reporter
from holdfast.engine.worker.committer import Committer, Done
from holdfast.engine.worker.timers import Timers
from holdfast.errors import RunConflict
from holdfast.events import Events
from holdfast.limits import Limits
from holdfast.payloads.codec import error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.eviction import LIMBO
from holdfast.replay.execution import first_entries
from holdfast.replay.journal import CANCEL
from holdfast.replay.turn import Ending, Turn
from holdfast.replay.turn import Outcome as TurnOutcome

_logger = logging.getLogger("holdfast.engine")
_workflow_logger = logging.getLogger("holdfast.workflow")
_FOR_WORKERS = ACTS | {"key", "task"}
"""Kinds of inbox rows that the code does not see."""


class Runner:
    """Every run this worker has in memory."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        store: Store,
        committer: Committer,
        executor: Executor,
        ended: Callable[[str, Standing | None], None],
        events: Events,
        reporter: Reporter,
        limits: Limits,
        queues: Queues,
        app: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.residents: dict[int, Resident] = {}
        """By key; put and taken away by `_keep` and `drop` alone."""
        self.ids: dict[str, Resident] = {}
        self._beginning = 0
        """How many are in memory whose first commit is under way."""
        self.released: Callable[[Instant | None], None] = lambda due: None
        """Called when a run becomes claimable by anybody, with the instant from which it wants to be."""
        self.stirred: Callable[[bool], None] = lambda everybody: None
        """Called when a commit put rows into other runs' inboxes or started runs, or (True) may have ended others."""
        self.delivered: Callable[[Delivered, Message], None] = lambda outcome, message: None
        """Called when this process put a row into the inbox of one of these runs."""
        self.handed_out: Callable[[], None] = lambda: None
        """Called when attempts that this engine may take were put into queues."""
        self.queues = queues
        self._registry = registry
        self._settings = settings
        self.lives = Lives(registry, settings)
        self._committer = committer
        self._strangers: set[str] = set()
        self._events = events
        self.reporter = reporter
        self.limits = limits
        self.app = app
        """What says, anew each time, what an attempt should know of the world."""
        self.deadline: float | None = None
        """When, by the event loop's clock, this engine stops: what cannot finish before that is not begun."""
        self.loop = executor.loop
        self._thread = get_ident()
        self.endings = Endings(events)
        self.clock = clock
        self.ended = ended
        self.replied: Callable[[str], None] = lambda run_id: None
        """Called when a run answered a request."""
        self.stopping = False
        self.timers = Timers(clock, self._wake_all)
        self.attempts = Attempts(self, executor, store, registry.errors)
        self.departures = Departures(self, committer)
        self.pauses = Pauses(self)

    # Beginning.

    def start(self, run: NewRun, workflow: Workflow[Any, Any], done: Callable[[Outcome | Exception], None]) -> None:
        """Insert a run together with its first turn, and go on with it once that is durable."""
        resident = self.lives.new(run, 0, workflow)
        turn = resident.execution.begin()
        if turn.children or (turn.outcome is not None and turn.outcome.ending in (Ending.BLOCKED, Ending.RENEWED)):
            # Its children need its key, which only the insert gives; a turn that ends otherwise takes the ordinary way.
            resident.execution.drop()
            self.start_plain(run, workflow, done)
            return
        resident.finishing = turn.outcome is not None
        self._activate(resident, turn)
        operation = self._operation(resident, turn)
        self._beginning += 1
        done = self._then_tell_queues(resident, operation, done)
        self._committer.submit(StartRun(run=run, turn=operation), partial(self._started, resident, turn, done))

    def start_plain(
        self, run: NewRun, workflow: Workflow[Any, Any], done: Callable[[Outcome | Exception], None]
    ) -> None:
        """Insert a run before any code of it runs: whether it may be inserted, only the commit knows."""
        self._committer.submit(StartRun(run=run), partial(self._started_plain, run, workflow, done))

    def _started(
        self, resident: Resident, turn: Turn, done: Callable[[Outcome | Exception], None], outcome: Outcome | Exception
    ) -> None:
        self._beginning -= 1
        if isinstance(outcome, Started) and outcome.committed is not None:
            journal = resident.execution.journal
            resident.key = outcome.key
            journal.run = journal.run._replace(key=outcome.key)
            self._keep(resident)
            done(outcome)
            self.reporter.tell("run.started", resident)
            resident.commits += 1
            self._committed(resident, turn, (), outcome.committed)
        else:
            self.drop(resident)
            done(outcome)

    def _started_plain(
        self,
        run: NewRun,
        workflow: Workflow[Any, Any],
        done: Callable[[Outcome | Exception], None],
        outcome: Outcome | Exception,
    ) -> None:
        if isinstance(outcome, Started):
            resident = self.lives.new(run, outcome.key, workflow)
            self._keep(resident)
            done(outcome)
            self.reporter.tell("run.started", resident)
            self.advance(resident, resident.execution.begin())
        else:
            done(outcome)

    def adopt(self, claim: Claim, history: History) -> None:
        """Continue a claimed run from its history."""
        now = self.clock.now()
        try:
            workflow = self._registry.get(claim.workflow, claim.version)
            resident = self.lives.claimed(claim, workflow, history.entries, now)
        except Exception as error:
            self.departures.block_claim(self.lives.unreadable(claim), error_to_data(error))
            return
        resident.claimed = True
        resident.seen = history.seen
        resident.dirty = True
        self._keep(resident)
        never_ran = claim.epoch == 1
        if not claim.version:
            resident.unversioned = True
        elif workflow.version != claim.version:
            self.reporter.tell("run.skewed", resident, {"recorded": claim.version, "running": workflow.version})
        if never_ran:
            self.reporter.tell("run.started", resident)
        if never_ran and any(message.kind == "cancel" for message in history.messages):
            self.departures.cancel_outright(resident)
            return
        messages = self._set_aside_acts(resident, history.messages)
        ends = [message for message in history.messages if message.kind == "task"]
        pause = standing_pause(history.messages)
        if pause is not None:
            self.pauses.begin(resident, pause)
            return
        if claim.paused:
            self.reporter.tell("run.resumed", resident)
        life = first_entries((), now) if claim.generation and not history.entries else []
        turn = resident.execution.begin(history.entries or life, messages, now)
        turn.entries[:0] = life
        resident.reclaimed = True
        ends = self.attempts.elsewhere.recall(resident, turn, history, ends)
        begin = self.attempts.recall(resident, turn, claim.lost or "handed back", now)
        grace = resident.grace_ends
        over = turn.outcome is None and grace is not None and grace <= now
        if over:
            resident.active.add(CANCEL)  # not to be let go yet
        self.advance(resident, turn, begin)
        if over and not resident.gone:
            resident.active.discard(CANCEL)
            self._out_of_grace(resident)
        for end in ends:
            self.attempts.elsewhere.ended(resident, end)

    def _set_aside_acts(self, resident: Resident, messages: Sequence[Message]) -> list[Message]:
        """Return the inbox rows that are for the code; the others are for its workers.

        Those are deleted as read, but for the ends of attempts, which have to be recorded.
        """
        acts = [message.n for message in messages if message.kind in ACTS or message.kind == "key"]
        if acts:
            resident.taken = [*(resident.taken or ()), *acts]
        return [message for message in messages if message.kind not in _FOR_WORKERS]

    def _out_of_grace(self, resident: Resident) -> None:
        """Stop a run that did not stop by itself, undoing what it did if that was asked for."""
        journal = resident.execution.journal
        if journal.undo_asked and journal.compensations:
            self.apply(resident, CANCEL, entries.CancelRequested(True))
        else:
            self.departures.cancel_outright(resident)

    # Turning.

    def take(self, key: int, messages: Sequence[Message]) -> None:
        """Hand a run in memory the inbox rows it has not seen."""
        resident = self.residents.get(key)
        if resident is None or resident.gone:
            return
        fresh = [message for message in messages if message.n > resident.seen]
        if not fresh:
            return
        resident.seen = fresh[-1].n
        resident.dirty = True
        if resident.pausing is not None:
            self.pauses.told(resident, fresh)
            return
        ours = self._set_aside_acts(resident, fresh)
        pause = standing_pause(fresh)
        if pause is not None:
            self.pauses.begin(resident, pause)
            return
        events = {row.name for row in fresh if row.kind in ("event", "notice")}
        if events:
            resident.stale_waits = (resident.stale_waits or set()) | events
        begin = [verb for row in fresh if row.kind == "key" for verb in self.attempts.retake(resident, row.name)]
        ends = self.attempts.elsewhere.expected(resident, [row for row in fresh if row.kind == "task"])
        if begin or not (ours or ends):
            self.advance(resident, resident.execution.note([], self.clock.now()), begin)
        if ours:
            self._turn(resident, lambda: resident.execution.deliver(ours, self.clock.now()))
        for end in ends:
            self.attempts.elsewhere.ended(resident, end)

    def anticipate(self, run_id: str, message: Message) -> None:
        """Hand a message to a run that waits for it here, together with the commit that puts it into its inbox.

        That commit has been asked for just before. If a row of somebody else's is there first, the store refuses the
        turn (`Overtaken`), and the run is continued from what is durable.
        """
        resident = self.ids.get(run_id)
        if resident is not None and resident.awaits(message.name):
            resident.seen += 1
            resident.expected = resident.seen
            resident.dirty = True
            taken = [message._replace(n=resident.seen)]
            self._turn(resident, lambda: resident.execution.deliver(taken, self.clock.now()))

    def _turn(self, resident: Resident, drive: Callable[[], Turn]) -> None:
        """Drive a turn and make it durable; a failure of ours gives the run back rather than leaving it stuck."""
        if resident.deaf:
            return
        try:
            turn = drive()
        except Exception as error:
            _logger.exception("a turn of run %s failed inside the engine", resident.id)
            self.departures.lost(resident, error)
        else:
            self.advance(resident, turn)

    def apply(self, resident: Resident, location: str, fact: entries.Entry) -> None:
        """Hand a fact to the code and make what follows durable."""
        self._turn(resident, lambda: resident.execution.apply(location, fact, self.clock.now()))

    def _wake_all(self, residents: Sequence[Resident]) -> None:
        with self._committer.together():
            for resident in residents:
                self._wake(resident)

    def _wake(self, resident: Resident) -> None:
        if resident.deaf:
            return
        resident.scheduled = None
        now = self.clock.now()
        grace = resident.grace_ends
        if grace is not None and grace <= now:
            self._out_of_grace(resident)
            return
        ready = [verb for at, verb in resident.retries.values() if at <= now]
        if ready:
            for verb in ready:
                del resident.retries[verb.location]
            ready = self.attempts.may_begin(resident, ready)
            self.advance(resident, self.attempts.count(resident, ready, now), ready)
        due = resident.execution.next_due()
        if due is not None and due <= now and not resident.deaf:
            self._turn(resident, lambda: resident.execution.fire(now))
        else:
            self._schedule(resident)

    def advance(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        """Make a turn durable, then act on it. `begin` are steps whose next attempt the turn counted."""
        if turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED:
            self.departures.block(resident, turn)
            return
        fresh = [verb for verb in begin if verb.settled or verb.skipped]
        if fresh and turn.outcome is None:
            turn.entries.extend(self.attempts.count(resident, fresh, self.clock.now()).entries)
        resident.finishing = turn.outcome is not None
        self._activate(resident, turn, begin)
        operation = self._operation(resident, turn, begin)
        resident.commits += 1
        if operation is None:
            self._committed(resident, turn, begin, Committed(resident.key))
        else:
            done = self._then_tell_queues(resident, operation, partial(self._committed, resident, turn, begin))
            self._committer.submit(operation, done, resident)

    def _activate(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        active, elsewhere = resident.active, self.attempts.elsewhere
        for verb in turn.started:
            if verb.done() or verb.location in resident.retries or (isinstance(verb, ChildVerb) and not verb.refused):
                continue
            if isinstance(verb, StepVerb) and (
                (resident.queued and verb.location in resident.queued)
                or (verb.activity.queue is not None and not verb.recalled and elsewhere.hand_out(resident, verb))
            ):
                continue  # another worker's business
            active.add(verb.location)
        for verb in begin:
            active.add(verb.location)
            if verb.activity.queue is not None and not verb.done() and elsewhere.hand_out(resident, verb):
                active.discard(verb.location)
        for verb in turn.abandoned:
            active.discard(verb.location)
            resident.retries.pop(verb.location, None)
            if resident.held:
                resident.held.pop(verb.location, None)
            if (resident.queued and resident.queued.pop(verb.location, None) is not None) or _transacts(verb):
                resident.untasks = [*(resident.untasks or ()), verb.location]
            if isinstance(verb, StepVerb) and verb.activity.settings.limit is not None:
                self.limits.forget(resident.key, verb.location)

    def _operation(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> CommitTurn | None:
        """Return what to commit for a turn, None if it changes nothing."""
        now = self.clock.now()
        state: State | None = None
        end: End | None = None
        renewal: Renewal | None = None
        outcome = turn.outcome
        rows = turn.entries
        if outcome is None and resident.pausing is not None:
            pass  # its row says so already, and the code does not go on
        elif outcome is None:
            # A child may be refused by this very commit, so its parent stays until the outcome is known.
            idle = not resident.active and not turn.children and not resident.unsure
            state = resident.state(released=idle and self._crowded)
        elif outcome.ending is Ending.RENEWED:
            renewal = Renewal(input=outcome.payload or "{}", generation=resident.generation + 1)
            rows = resident.next_life = first_entries(turn.carried, now)
            resident.dirty = True
        else:
            end = self.endings.of(outcome, now)
            if outcome.ending is Ending.FAILED:
                self._give_up(resident, outcome, end)
        extras = extras_of(resident, turn, begin, self._events, now)
        consumed = turn.consumed
        if resident.taken and resident.pausing is None:  # a pause stays in the inbox until it is in force
            consumed, resident.taken = [*resident.taken, *consumed], None
        if not (rows or consumed or turn.trims or state or end or renewal or extras):
            return None
        resident.unsure += bool(turn.children)
        claimed, resident.claimed = resident.claimed, False
        expected, resident.expected = resident.expected, None
        return CommitTurn(
            key=resident.key,
            epoch=resident.epoch,
            at=now,
            entries=rows,
            consumed=consumed,
            trims=turn.trims,
            sends=limited(turn.sends, self._events) if turn.sends else (),
            children=turn.children,
            state=state,
            end=end,
            renewal=renewal,
            reset_claims=claimed,
            extras=extras,
            inbox=expected,
        )

    def _then_tell_queues(self, resident: Resident, operation: CommitTurn | None, done: Done) -> Done:
        """Let this engine look for attempts, once a commit that puts some into queues is durable."""
        if operation is None or operation.extras is None:
            return done
        ours = False
        for task in operation.extras.tasks:
            verb = (resident.queued or {})[task.location]
            ours = self.queues.takes(verb.activity, resident.id) or ours
        if not ours:
            return done

        def then(outcome: Outcome | Exception) -> None:
            done(outcome)
            self.handed_out()

        return then

    def _give_up(self, resident: Resident, outcome: TurnOutcome, end: End) -> None:
        """Keep what failed as a dead letter, written with the end of its run."""
        journal = resident.execution.journal
        failed = outcome.failed[0] if outcome.failed else ""
        given_up = letter(journal.names.path(failed), outcome.attempts, end.error or "null")
        resident.letters = [*(resident.letters or ()), given_up]

    # Acting.

    def _committed(
        self, resident: Resident, turn: Turn, begin: Sequence[StepVerb], outcome: Outcome | Exception
    ) -> None:
        resident.commits -= 1
        resident.unsure -= bool(turn.children)
        if isinstance(outcome, Committed):
            extras = turn.extras
            cancelled = turn.outcome is not None and turn.outcome.ending is Ending.CANCELLED
            if outcome.stirred or turn.children or cancelled:
                self.stirred(cancelled)
                self._warn_of_strangers(turn)
            if turn.abandoned and any(map(_queued_elsewhere, turn.abandoned)):
                self.stirred(False)  # this worker may be running what was withdrawn
            if extras is not None and extras.replies:
                self.replied(resident.id)
            if turn.logs:
                self._log(resident, turn)
            self.reporter.turn(resident, turn)
        if resident.dropped:
            return
        if not isinstance(outcome, Committed):
            self.departures.lost(resident, outcome)
            return
        try:
            self._act_on(resident, turn, begin, outcome)
        except Exception as error:
            _logger.exception("run %s could not be continued", resident.id)
            self.departures.lost(resident, error)

    def _warn_of_strangers(self, turn: Turn) -> None:
        for child in turn.children:
            name = child.run.workflow
            if name not in self.queues.workflows and name not in self._strangers:
                self._strangers.add(name)
                _logger.warning(
                    "run %s waits for a worker that %s workflow %r; this engine does not: if no other does, %s",
                    child.run.id,
                    "serves the queue of" if name in self._registry.names() else "knows",
                    name,
                    self.queues.remedy(name),
                )

    def _act_on(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb], outcome: Committed) -> None:
        for verb in turn.abandoned:
            self.attempts.stop(resident, verb.location, "cancelled")
        if resident.releasing:
            if not resident.commits:
                due = self.clock.now() if outcome.messages or outcome.refused else resident.written[2]
                self.drop(resident)
                self.released(due)
            return
        if turn.outcome is not None:
            self._finished(resident, turn)
            return
        resident.dirty = resident.dirty or bool(outcome.refused)
        if resident.pausing is not None:
            self.pauses.check(resident)
            return
        for verb in begin:
            if not verb.done():
                self.attempts.run(resident, verb, outcome.keys.get(verb.location))
        alone = len(turn.started) == 1 and not begin
        for verb in turn.started:
            if not verb.done():
                self._act(resident, verb, outcome, alone)
        for location, reason in outcome.refused.items():
            child = resident.execution.journal.open.get(location)
            if isinstance(child, ChildVerb):
                self._refuse_child(resident, child, reason)
        if outcome.messages:
            self.take(resident.key, outcome.messages)
        self._settle(resident)

    def _act(self, resident: Resident, verb: Any, outcome: Committed, alone: bool) -> None:
        if isinstance(verb, StepVerb):
            self.attempts.go_on(resident, verb, outcome.keys.get(verb.location), alone)
        elif isinstance(verb, SendVerb):
            refused = verb.refused if verb.refused is not None else outcome.refused.get(verb.location, "")
            resident.active.discard(verb.location)
            fact = entries.SendDone(refused)
            self.apply(resident, verb.location, fact)
        elif isinstance(verb, ChildVerb) and verb.refused:
            self._refuse_child(resident, verb, verb.refused)

    def _refuse_child(self, resident: Resident, verb: ChildVerb, reason: str) -> None:
        resident.active.discard(verb.location)
        error = error_to_data(RunConflict(verb.id, "exists already and is not this child"))
        fact = entries.ChildEnded(reason, error=error)
        self.apply(resident, verb.location, fact)

    def _settle(self, resident: Resident) -> None:
        """After the last commit in flight: keep a parked run for its next timer, or let it go."""
        if resident.dropped or not resident.parked:
            if not resident.dropped:
                self._schedule(resident)
            return
        if self._crowded:
            self.departures.release(resident)
            return
        if resident.written[0] is Status.RUNNING:
            # Parked after all: what it was unsure of is known now.
            self.advance(resident, resident.execution.note([], self.clock.now()))
            return
        resident.touched = self.clock.now()
        self._schedule(resident)

    @property
    def _crowded(self) -> bool:
        """Whether a run that waits leaves memory in the very commit that says so.

        A quarter more than shall stay may wait here: so much at a time can be told by how long it has been idle, see
        `Worker._evict`. More than that must not add up, whatever starts or wakes at once.
        """
        return len(self.residents) + self._beginning >= self._settings.max_resident * 1.25

    def _schedule(self, resident: Resident) -> None:
        due = resident.next_due()
        if due is not None and (resident.scheduled is None or due < resident.scheduled):
            resident.scheduled = due
            self.timers.add(due, resident)

    def _finished(self, resident: Resident, turn: Turn) -> None:
        assert turn.outcome is not None
        if turn.outcome.ending is not Ending.RENEWED:
            error = turn.outcome.error
            if turn.outcome.ending is Ending.FAILED and error is not None:
                _logger.warning("run %s failed: %s: %s\n%s", resident.id, error.type, error.message, error.traceback)
            state = self.reporter.state_of(resident)
            completed = turn.outcome.ending is Ending.COMPLETED
            self.ended(resident.id, Standing(Status.COMPLETED, turn.outcome.payload) if completed else None)
            self.drop(resident)
            self.limits.forget(resident.key)
            self.reporter.ended(resident, turn.outcome.ending.value, state, error)
            return
        journal = resident.execution.journal
        unread = [message for queue in (journal.inbox or {}).values() for message in queue]
        unread = sorted([*unread, *journal.untaken])
        assert resident.next_life
        first = resident.next_life
        self.drop(resident)
        renewed = self.lives.renewed(resident, turn.outcome.payload or "{}", first)
        self._keep(renewed)
        self.advance(renewed, renewed.execution.begin(first, unread))

    def _log(self, resident: Resident, turn: Turn) -> None:
        for level, text, args, scope in turn.logs:
            extra = {"run_id": resident.id, "workflow": resident.workflow.name, "scope": scope}
            try:
                _workflow_logger.log(level, f"[{resident.id}] {text}", *args, extra=extra)
            except Exception:
                _logger.exception("a logging handler failed; run %s goes on", resident.id)

    def too_late(self, settings: ActivityOptions) -> bool:
        """Tell whether an attempt could not finish before this engine stops."""
        if self.deadline is None:
            return False
        left = self.deadline - self.loop.time()
        return left <= (micros(settings.timeout) / 1e6 if settings.timeout else 0.0)

    def beat(self, resident: Resident, location: str, progress: str) -> None:
        """Record that a step reported progress; called from any thread."""
        if get_ident() == self._thread:
            self._beat(resident, location, progress)
        else:
            self.loop.call_soon_threadsafe(self._beat, resident, location, progress)

    def _beat(self, resident: Resident, location: str, progress: str) -> None:
        if not resident.gone:
            self.reporter.progress(resident, location, progress)
            at = self.clock.now()
            beat = Beat(key=resident.key, epoch=resident.epoch, location=location, at=at, detail=progress)
            self._committer.submit(beat, _nothing)

    def keep_result(self, kept: KeepResult) -> None:
        """Keep the late result of a step under its idempotency key."""
        self._committer.submit(kept, lambda outcome: self.stirred(False))

    def hand_back_all(self) -> None:
        """On an orderly stop: give every run up, with the attempts it has under way."""
        for resident in list(self.residents.values()):
            if not resident.deaf:
                self.departures.hand_back(resident)

    def drop_all(self) -> None:
        """Forget every run in memory; the store has them."""
        for resident in list(self.residents.values()):
            self.drop(resident)

    def _keep(self, resident: Resident) -> None:
        self.residents[resident.key] = self.ids[resident.id] = resident

    def drop(self, resident: Resident) -> None:
        """Forget a run in memory; the store has it."""
        if resident.dropped:
            return
        resident.dropped = True
        if self.residents.get(resident.key) is resident:
            del self.residents[resident.key], self.ids[resident.id]
            self.ended(resident.id, None)  # perhaps: whoever waits for it is not told by this worker any more
        self.attempts.stop_all(resident, "the run left this worker")
        stubborn = len(LIMBO)
        resident.execution.drop()
        if len(LIMBO) > stubborn:
            _logger.warning(
                "run %s of workflow %r cannot be freed: its code catches even being closed (`except BaseException` "
                "in a loop), so its memory is kept until this process ends",
                resident.id,
                resident.workflow.name,
            )


def _transacts(verb: Any) -> bool:
    """Whether the end of a step comes by the inbox, perhaps just before it is given up."""
    return isinstance(verb, StepVerb) and verb.activity.settings.transaction


def _queued_elsewhere(verb: Any) -> bool:
    return isinstance(verb, StepVerb) and verb.activity.queue is not None


def _nothing(outcome: Outcome | Exception) -> None:
    """Nobody waits for what only helps."""
