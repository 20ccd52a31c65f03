"""Claim, load, turn, commit, act: what moves one run after another.

The output-commit rule: a fact is handed to the code at once and the code runs ahead, but nothing a turn asks for is acted
on until the commit holding it and everything before it is durable. After any outcome but success the run in memory is
dropped; whoever claims it next replays what is durable.

Every method here is called from plain callbacks of the event loop, never inside a task, because it drives turns.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast import codec
from holdfast.clock import Clock, Instant, micros
from holdfast.codec import ErrorData, error_from_data, error_to_data
from holdfast.context.children import ChildVerb
from holdfast.context.run_context import RunContext
from holdfast.context.steps import StepVerb
from holdfast.context.waits import SendVerb
from holdfast.definitions import Registry, Workflow
from holdfast.engine.committer import Committer
from holdfast.engine.executor import Attempt, Executor
from holdfast.engine.resident import Resident
from holdfast.engine.settings import Settings
from holdfast.engine.step_context import StepContext
from holdfast.engine.suspects import SuspectTurns
from holdfast.engine.timers import Timers
from holdfast.errors import DefinitionError, NotSerializable, RunConflict, StepCrashed, UndecodablePayload
from holdfast.policy import Retry
from holdfast.records import (
    Claim,
    CommitTurn,
    Committed,
    End,
    EntryRow,
    Fenced,
    History,
    Message,
    NewRun,
    Outcome,
    Renewal,
    Started,
    StartRun,
    State,
    Status,
)
from holdfast.replay import entry as entries
from holdfast.replay.entry import encode_entry
from holdfast.replay.journal import Journal, RunInfo
from holdfast.replay.loop import Handle
from holdfast.replay.turn import Ending, Execution, Turn

_logger = logging.getLogger("holdfast.engine")
_workflow_logger = logging.getLogger("holdfast.workflow")

_EMPTY = Turn([], [], [], [], [], [], [], [], None)
_HOPELESS = (NotSerializable, UndecodablePayload, DefinitionError)
"""Failures that another attempt would only repeat."""
_STICKY_FACTS = frozenset({entries.StepCompleted.kind, entries.StepFailed.kind})


class Runner:
    """Every run this worker has in memory."""

    def __init__(
        self,
        registry: Registry,
        settings: Settings,
        clock: Clock,
        committer: Committer,
        executor: Executor,
        ended: Callable[[str, Status], None],
    ) -> None:
        self.residents: dict[int, Resident] = {}
        self.worker = ""
        self.fenced = 0
        """How many writes were refused because another worker holds the run."""
        self.released: Callable[[Instant | None], None] = lambda due: None
        """Called when a run becomes claimable by anybody, with the instant from which it wants to be."""
        self.stirred: Callable[[], None] = lambda: None
        """Called when a commit put rows into other runs' inboxes or started runs."""
        self._registry = registry
        self._settings = settings
        self._grace = micros(settings.cancel_grace)
        self._clock = clock
        self._committer = committer
        self._executor = executor
        self._ended = ended
        self._ready: deque[Handle] = deque()
        self._draw = random.random
        self._suspects = SuspectTurns()
        self.timers = Timers(clock, self._wake)
        self.stopping = False

    # Beginning.

    def start(self, run: NewRun, workflow: Workflow[Any, Any], done: Callable[[Outcome | Exception], None]) -> None:
        """Insert a run together with its first turn, and go on with it once that is durable."""
        resident = self._resident(run.id, 0, 1, workflow, run.input, 0, run.seed, run.at)
        turn = resident.execution.begin()
        if turn.children or (turn.outcome is not None and turn.outcome.ending in (Ending.BLOCKED, Ending.RENEWED)):
            # Its children need its key, which only the insert gives; a turn that ends otherwise takes the ordinary way.
            resident.execution.drop()
            self._committer.submit(StartRun(run=run), partial(self._started_plain, run, workflow, done))
            return
        resident.finishing = turn.outcome is not None
        self._activate(resident, turn)
        operation = self._operation(resident, turn)
        self._committer.submit(StartRun(run=run, turn=operation), partial(self._started, resident, turn, done))

    def _started(
        self, resident: Resident, turn: Turn, done: Callable[[Outcome | Exception], None], outcome: Outcome | Exception
    ) -> None:
        if isinstance(outcome, Started) and outcome.committed is not None:
            journal = resident.execution.journal
            resident.key = outcome.key
            journal.run = journal.run._replace(key=outcome.key)
            self.residents[outcome.key] = resident
            done(outcome)
            resident.commits += 1
            self._committed(resident, turn, (), outcome.committed)
        else:
            self._drop(resident)
            done(outcome)

    def _started_plain(
        self,
        run: NewRun,
        workflow: Workflow[Any, Any],
        done: Callable[[Outcome | Exception], None],
        outcome: Outcome | Exception,
    ) -> None:
        if isinstance(outcome, Started):
            resident = self._resident(run.id, outcome.key, 1, workflow, run.input, 0, run.seed, run.at)
            self.residents[outcome.key] = resident
            done(outcome)
            self._advance(resident, resident.execution.begin())
        else:
            done(outcome)

    def adopt(self, claim: Claim, history: History) -> None:
        """Continue a claimed run from its history."""
        now = self._clock.now()
        try:
            workflow = self._registry.get(claim.workflow, claim.version)
            begun = claim.created
            if claim.generation:
                begun = history.entries[0].at if history.entries else now
            resident = self._resident(
                claim.id, claim.key, claim.epoch, workflow, claim.input, claim.generation, claim.seed, begun
            )
        except Exception as error:
            self._block(claim.key, claim.epoch, claim.workflow, error_to_data(error))
            return
        resident.claimed = True
        resident.child = claim.parent is not None
        resident.seen = history.seen
        resident.dirty = True
        self.residents[claim.key] = resident
        never_ran = claim.epoch == 1
        if never_ran and any(message.kind == "cancel" for message in history.messages):
            self._end_outright(resident, now)
            return
        life = self._new_life(resident) if claim.generation and not history.entries else []
        turn = resident.execution.begin(history.entries, history.messages, now)
        turn.entries[:0] = life
        cancelling = resident.execution.journal.cancelling
        if turn.outcome is None and cancelling is not None and cancelling + self._grace <= now:
            self._end_outright(resident, now)
            return
        notes, begin = self._recall(resident, turn, claim.lost or "handed back", now)
        self._advance(resident, self._noted(resident, turn, notes, now), begin)

    def _resident(
        self,
        run_id: str,
        key: int,
        epoch: int,
        workflow: Workflow[Any, Any],
        encoded: str,
        generation: int,
        seed: int,
        now: Instant,
    ) -> Resident:
        args, kwargs = workflow.decode_input(encoded)

        def begin(journal: Journal) -> Any:
            return workflow.function(RunContext(journal, journal.root, workflow), *args, **kwargs)

        info = RunInfo(run_id, workflow.name, generation, seed, key)
        guarded = self._settings.development
        execution = Execution(info, begin, self._ready, now, self._registry.errors, guarded)
        resident = Resident(run_id, key, epoch, workflow, execution)
        resident.generation = generation
        return resident

    def _recall(
        self, resident: Resident, turn: Turn, lost: str, now: Instant
    ) -> tuple[list[tuple[str, entries.Entry]], list[StepVerb]]:
        """Sort out the steps that a replayed run left open: waiting for a retry, or lost with their worker."""
        notes: list[tuple[str, entries.Entry]] = []
        begin: list[StepVerb] = []
        for verb in turn.started:
            if not isinstance(verb, StepVerb) or not verb.recalled or verb.done():
                continue
            if verb.settled and verb.retry_at is not None and verb.retry_at > now:
                resident.retries[verb.location] = (verb.retry_at, verb)
                continue
            if not verb.settled:
                # A suspect runs in a child process where it can: that its worker died is no evidence against it.
                why = "bystander" if lost == "crash" and self._executor.isolates(verb) else lost
                notes.append((verb.location, entries.AttemptLost(verb.attempt, why)))
                verb.crashes += why == "crash"
                verb.lapses += why == "lapse"
                verb.settled = True
            if verb.crashes >= verb.activity.settings.retry.crash_limit:
                continue
            begin.append(verb)
        return notes, self._may_begin(resident, begin)

    def _may_begin(self, resident: Resident, verbs: Iterable[StepVerb]) -> list[StepVerb]:
        """Return the steps whose next attempt may begin now; a suspect that runs here waits for its turn."""
        ready: list[StepVerb] = []
        for verb in verbs:
            if not verb.suspect or self._executor.isolates(verb):
                ready.append(verb)
                continue
            verb.settled = True
            resident.active.add(verb.location)
            if self._suspects.ask(verb, partial(self._suspect_turn, resident, verb)):
                ready.append(verb)
        return ready

    def _suspect_turn(self, resident: Resident, verb: StepVerb) -> None:
        def begin() -> None:
            if resident.deaf or verb.done():
                self._suspects.leave(verb)
            else:
                self._advance(resident, resident.execution.note([], self._clock.now()), [verb])

        asyncio.get_running_loop().call_soon(begin)

    def _noted(
        self, resident: Resident, turn: Turn, notes: list[tuple[str, entries.Entry]], now: Instant
    ) -> Turn:
        if not notes or turn.outcome is not None:
            return turn
        turn.entries.extend(resident.execution.note(notes, now).entries)
        return turn

    # Turning.

    def take(self, key: int, messages: Sequence[Message]) -> None:
        """Hand a run in memory the inbox rows it has not seen."""
        resident = self.residents.get(key)
        if resident is None or resident.deaf:
            return
        fresh = [message for message in messages if message.n > resident.seen]
        if fresh:
            resident.seen = fresh[-1].n
            resident.dirty = True
            self._turn(resident, lambda: resident.execution.deliver(fresh, self._clock.now()))

    def _turn(self, resident: Resident, drive: Callable[[], Turn]) -> None:
        """Drive a turn and make it durable; a failure of ours gives the run back rather than leaving it stuck."""
        if resident.deaf:
            return
        try:
            turn = drive()
        except Exception as error:
            _logger.exception("a turn of run %s failed inside the engine", resident.id)
            self._lost(resident, error)
        else:
            self._advance(resident, turn)

    def _apply(self, resident: Resident, location: str, fact: entries.Entry) -> None:
        self._turn(resident, lambda: resident.execution.apply(location, fact, self._clock.now()))

    def _wake(self, resident: Resident) -> None:
        if resident.deaf:
            return
        resident.scheduled = None
        now = self._clock.now()
        cancelling = resident.execution.journal.cancelling
        if cancelling is not None and cancelling + self._grace <= now:
            self._end_outright(resident, now)
            return
        ready = [verb for at, verb in resident.retries.values() if at <= now]
        if ready:
            for verb in ready:
                del resident.retries[verb.location]
            ready = self._may_begin(resident, ready)
            self._advance(resident, self._begin_attempts(resident, ready, now), ready)
        due = resident.execution.next_due()
        if due is not None and due <= now and not resident.deaf:
            self._turn(resident, lambda: resident.execution.fire(now))
        else:
            self._schedule(resident)

    def _begin_attempts(self, resident: Resident, verbs: Iterable[StepVerb], now: Instant) -> Turn:
        notes: list[tuple[str, entries.Entry]] = []
        for verb in verbs:
            verb.attempt += 1
            verb.settled = False
            verb.retry_at = None
            notes.append((verb.location, entries.AttemptBegun(verb.attempt)))
        return resident.execution.note(notes, now)

    def _advance(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        """Make a turn durable, then act on it. `begin` are steps whose next attempt the turn counted."""
        if turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED:
            self._blocked(resident, turn)
            return
        fresh = [verb for verb in begin if verb.settled]
        if fresh and turn.outcome is None:
            turn.entries.extend(self._begin_attempts(resident, fresh, self._clock.now()).entries)
        resident.finishing = turn.outcome is not None
        self._activate(resident, turn, begin)
        operation = self._operation(resident, turn)
        resident.commits += 1
        if operation is None:
            self._committed(resident, turn, begin, Committed(resident.key))
        else:
            self._committer.submit(operation, partial(self._committed, resident, turn, begin))

    def _activate(self, resident: Resident, turn: Turn, begin: Sequence[StepVerb] = ()) -> None:
        active = resident.active
        for verb in turn.started:
            if not verb.done() and not isinstance(verb, ChildVerb) and verb.location not in resident.retries:
                active.add(verb.location)
        for verb in begin:
            active.add(verb.location)
        for verb in turn.abandoned:
            active.discard(verb.location)
            resident.retries.pop(verb.location, None)

    def _operation(self, resident: Resident, turn: Turn) -> CommitTurn | None:
        """Return what to commit for a turn, None if it changes nothing."""
        now = self._clock.now()
        state: State | None = None
        end: End | None = None
        renewal: Renewal | None = None
        outcome = turn.outcome
        if outcome is None:
            # A child may be refused by this very commit, so its parent stays until the outcome is known.
            idle = not resident.active and not turn.children
            state = resident.state(self._grace, released=self._settings.max_resident == 0 and idle)
        elif outcome.ending is Ending.RENEWED:
            renewal = Renewal(input=outcome.payload or "{}", generation=resident.generation + 1)
            resident.dirty = True
        else:
            end = _end(outcome.ending, outcome.payload, outcome.error, now)
        if not (turn.entries or turn.consumed or turn.trims or state or end or renewal):
            return None
        claimed, resident.claimed = resident.claimed, False
        return CommitTurn(
            key=resident.key,
            epoch=resident.epoch,
            at=now,
            entries=turn.entries if renewal is None else [],
            consumed=turn.consumed,
            trims=turn.trims,
            sends=turn.sends,
            children=turn.children,
            state=state,
            end=end,
            renewal=renewal,
            reset_claims=claimed,
        )

    # Acting.

    def _committed(
        self, resident: Resident, turn: Turn, begin: Sequence[StepVerb], outcome: Outcome | Exception
    ) -> None:
        resident.commits -= 1
        if resident.dropped:
            return
        if not isinstance(outcome, Committed):
            self._lost(resident, outcome)
            return
        self._log(resident, turn)
        if resident.releasing:
            if not resident.commits:
                due = self._clock.now() if outcome.messages else resident.written[2]
                self._drop(resident)
                self.released(due)
            return
        if turn.sends or turn.children or (turn.outcome is not None and resident.child):
            self.stirred()
        for verb in turn.abandoned:
            self._stop_attempt(resident, verb.location, "cancelled")
        if turn.outcome is not None:
            self._finished(resident, turn)
            return
        for verb in begin:
            if not verb.done():
                self._run_attempt(resident, verb)
        for verb in turn.started:
            if not verb.done():
                self._act(resident, verb, outcome)
        for location, reason in outcome.refused.items():
            child = resident.execution.journal.open.get(location)
            if isinstance(child, ChildVerb):
                self._refuse_child(resident, child, reason)
        if outcome.messages:
            self.take(resident.key, outcome.messages)
        self._settle(resident)

    def _act(self, resident: Resident, verb: Any, outcome: Committed) -> None:
        if isinstance(verb, StepVerb):
            if not verb.recalled:
                self._run_attempt(resident, verb)
            elif verb.settled and verb.crashes >= verb.activity.settings.retry.crash_limit:
                self._convict(resident, verb)
        elif isinstance(verb, SendVerb):
            refused = verb.refused if verb.refused is not None else outcome.refused.get(verb.location, "")
            resident.active.discard(verb.location)
            fact = entries.SendDone(refused)
            self._apply(resident, verb.location, fact)
        elif isinstance(verb, ChildVerb) and verb.refused:
            self._refuse_child(resident, verb, verb.refused)

    def _refuse_child(self, resident: Resident, verb: ChildVerb, reason: str) -> None:
        error = error_to_data(RunConflict(verb.id, "exists already and is not this child"))
        fact = entries.ChildEnded(reason, error=error)
        self._apply(resident, verb.location, fact)

    def _settle(self, resident: Resident) -> None:
        """After the last commit in flight: keep a parked run for its next timer, or let it go."""
        if resident.dropped or not resident.parked:
            if not resident.dropped:
                self._schedule(resident)
            return
        if self._settings.max_resident == 0:
            self.release(resident)
            return
        resident.touched = self._clock.now()
        self._schedule(resident)

    def _schedule(self, resident: Resident) -> None:
        due = resident.next_due(self._grace)
        if due is not None and (resident.scheduled is None or due < resident.scheduled):
            resident.scheduled = due
            self.timers.add(due, resident)

    def _finished(self, resident: Resident, turn: Turn) -> None:
        assert turn.outcome is not None
        if turn.outcome.ending is not Ending.RENEWED:
            self._drop(resident)
            self._ended(resident.id, Status(turn.outcome.ending.value))
            return
        unread = sorted(
            message for queue in (resident.execution.journal.inbox or {}).values() for message in queue
        )
        run = resident.execution.journal.run
        self._drop(resident)
        renewed = self._resident(
            resident.id,
            resident.key,
            resident.epoch,
            resident.workflow,
            turn.outcome.payload or "{}",
            resident.generation + 1,
            run.seed,
            self._clock.now(),
        )
        renewed.seen = resident.seen
        renewed.child = resident.child
        renewed.dirty = True
        self.residents[renewed.key] = renewed
        life = self._new_life(renewed)
        renewed_turn = renewed.execution.begin((), unread)
        renewed_turn.entries[:0] = life
        self._advance(renewed, renewed_turn)

    def _new_life(self, resident: Resident) -> list[EntryRow]:
        """Record when a life after the first began, so that a replay begins at the same time."""
        return resident.execution.note([("!", entries.Renewed())], resident.execution.loop.now).entries

    def _log(self, resident: Resident, turn: Turn) -> None:
        for level, text, args, scope in turn.logs:
            extra = {"run_id": resident.id, "workflow": resident.workflow.name, "scope": scope}
            _workflow_logger.log(level, f"[{resident.id}] {text}", *args, extra=extra)

    # Steps.

    def _run_attempt(self, resident: Resident, verb: StepVerb) -> None:
        if self.stopping:
            return
        path = resident.execution.journal.names.path(verb.location)
        key = f"{resident.id}:{path}"
        context = StepContext(resident.id, resident.workflow.name, path, verb.attempt, key)
        make_key = verb.activity.settings.idempotency_key
        if make_key is not None:
            try:
                context.idempotency_key = str(make_key(*verb.args, **verb.kwargs))
            except Exception as error:
                error.add_note(f"raised by idempotency_key of activity {verb.activity.name!r}")
                attempt = Attempt(self._executor, verb, resident, context, self._step_done)
                resident.attempts[verb.location] = attempt
                asyncio.get_running_loop().call_soon(attempt.finish, None, error)
                return
        resident.attempts[verb.location] = self._executor.run(verb, resident, context, self._step_done)

    def _stop_attempt(self, resident: Resident, location: str, reason: str) -> None:
        attempt = resident.attempts.pop(location, None)
        if attempt is not None:
            attempt.stop(reason)
            self._suspects.leave(attempt.verb)

    def _step_done(self, attempt: Attempt, result: bytes | None, error: BaseException | ErrorData | None) -> None:
        resident, verb = attempt.owner, attempt.verb
        resident.attempts.pop(verb.location, None)
        self._suspects.leave(verb)
        if resident.deaf or verb.done() or attempt.number != verb.attempt:
            return
        now = self._clock.now()
        resident.active.discard(verb.location)
        if result is not None:
            try:
                verb.decoded(result)
            except Exception as unfit:
                result, error = None, unfit
        if result is not None:
            self._end_step(resident, verb, entries.StepCompleted(attempt.number, msgspec.Raw(result)))
        else:
            assert error is not None
            self._step_failed(resident, attempt, error, now)

    def _step_failed(
        self, resident: Resident, attempt: Attempt, error: BaseException | ErrorData, now: Instant
    ) -> None:
        verb = attempt.verb
        policy = verb.activity.settings.retry
        if isinstance(error, ErrorData):
            data, raised = error, error_from_data(error, {**self._registry.errors, **verb.activity.errors})
        else:
            data, raised = error_to_data(error), error
        if attempt.isolated and verb.activity.settings.isolate is None:
            self._suspect_ended(resident, attempt, raised, now)
            return
        verb.failures += 1
        fatal = isinstance(raised, _HOPELESS) or not _retryable(policy, data)
        cancelled = resident.execution.journal.cancelling is not None and verb.location in resident.retries
        if not fatal and not cancelled and policy.allows(raised, verb.failures):
            retry_at = now + micros(policy.delay(verb.failures, self._draw()))
            verb.settled = True
            verb.retry_at = retry_at
            resident.retries[verb.location] = (retry_at, verb)
            note = (verb.location, entries.AttemptFailed(attempt.number, data, retry_at))
            self._advance(resident, resident.execution.note([note], now))
        else:
            self._end_step(resident, verb, entries.StepFailed(attempt.number, data))

    def _end_step(self, resident: Resident, verb: StepVerb, fact: entries.Entry) -> None:
        """Hand a step's end to the code; for a suspect, only after it is durable.

        If it is the code that crashes or hangs with this result, the step must not be blamed for ever: the next claims
        then find the result recorded and no progress, and the run is blocked.
        """
        if not verb.suspect:
            self._apply(resident, verb.location, fact)
            return
        now = self._clock.now()
        rows = resident.execution.note([(verb.location, fact)], now).entries
        cancelling = resident.execution.journal.cancelling is not None
        status = Status.CANCELLING if cancelling else Status.PENDING
        state = State(status=status, seen=resident.seen, due=now, released=True)
        operation = CommitTurn(
            key=resident.key, epoch=resident.epoch, at=now, entries=rows, state=state, reset_claims=True
        )
        self._drop(resident)
        self._committer.submit(operation, lambda outcome: self.released(now))

    def _suspect_ended(self, resident: Resident, attempt: Attempt, error: BaseException, now: Instant) -> None:
        """Judge a suspect that ran in a child process: a dead child convicts it, an exception there clears it."""
        verb = attempt.verb
        verb.settled = True
        if isinstance(error, StepCrashed):
            verb.crashes += 1
            why = "crash"
        else:
            verb.in_process = True
            why = "cleared"
        turn = resident.execution.note([(verb.location, entries.AttemptLost(attempt.number, why))], now)
        if verb.crashes >= verb.activity.settings.retry.crash_limit:
            self._advance(resident, turn)
            self._convict(resident, verb)
        else:
            self._advance(resident, turn, self._may_begin(resident, [verb]))

    def _convict(self, resident: Resident, verb: StepVerb) -> None:
        path = resident.execution.journal.names.path(verb.location)
        error = StepCrashed(f"step {path!r} crashed during execution: {verb.crashes} attempts died with their process")
        resident.active.discard(verb.location)
        self._end_step(resident, verb, entries.StepFailed(verb.attempt, error_to_data(error)))

    # Endings.

    def _blocked(self, resident: Resident, turn: Turn) -> None:
        assert turn.outcome is not None and turn.outcome.error is not None
        facts = turn.entries[:1] if turn.entries and turn.entries[0].kind in _STICKY_FACTS else []
        self._drop(resident)
        self._block(resident.key, resident.epoch, resident.workflow.name, turn.outcome.error, facts, resident.id)

    def _block(
        self, key: int, epoch: int, workflow: str, error: ErrorData, facts: Any = (), run_id: str = ""
    ) -> None:
        _logger.error("run %s is blocked: %s: %s", run_id, error.type, error.message)
        try:
            fingerprint = self._registry.get(workflow).fingerprint
        except Exception:
            fingerprint = ""
        state = State(
            status=Status.BLOCKED,
            seen=1 << 62,
            released=True,
            error=codec.encode(error).decode(),
            fingerprint=fingerprint,
        )
        operation = CommitTurn(
            key=key, epoch=epoch, at=self._clock.now(), entries=list(facts), state=state, reset_claims=True
        )
        self._committer.submit(operation, lambda outcome: self._ended(run_id, Status.BLOCKED))

    def _end_outright(self, resident: Resident, now: Instant) -> None:
        """Cancel a run that did not stop within its grace, whatever its code is doing."""
        end = End(status=Status.CANCELLED, at=now, payload=_child_payload(Status.CANCELLED, None, None))
        operation = CommitTurn(key=resident.key, epoch=resident.epoch, at=now, end=end)
        self._drop(resident)
        self._committer.submit(operation, partial(self._ended_outright, resident, Status.CANCELLED))

    def _ended_outright(self, resident: Resident, status: Status, outcome: Outcome | Exception) -> None:
        self._drop(resident)
        if isinstance(outcome, Committed):
            self._ended(resident.id, status)
            self.stirred()

    def _lost(self, resident: Resident, outcome: Outcome | Exception) -> None:
        """A commit was refused: drop the run; unless another worker has it, hand it back once the store allows."""
        self._drop(resident)
        if isinstance(outcome, Fenced):
            self.fenced += 1
            _logger.info("run %s is held by another worker now", resident.id)
            return
        _logger.error("run %s could not be committed and will be continued later: %s", resident.id, outcome)
        self._hand_back(resident, 0.5)

    def _hand_back(self, resident: Resident, pause: float) -> None:
        now = self._clock.now()
        cancelling = resident.execution.journal.cancelling is not None
        status = Status.CANCELLING if cancelling else Status.PENDING
        state = State(status=status, seen=1 << 62, due=now, released=True)
        operation = CommitTurn(key=resident.key, epoch=resident.epoch, at=now, state=state)

        def done(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, Exception) and not self.stopping:
                loop = asyncio.get_running_loop()
                loop.call_later(pause, self._hand_back, resident, min(pause * 2, 5.0))
            else:
                self.released(now)

        self._committer.submit(operation, done)

    def release(self, resident: Resident) -> None:
        """Give up a parked run: anybody may continue it when it is due."""
        if resident.deaf:
            return
        now = self._clock.now()
        state = resident.state(self._grace, released=True)
        operation = CommitTurn(key=resident.key, epoch=resident.epoch, at=now, state=state)
        due = resident.written[2]
        self._drop(resident)

        def done(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, Exception):
                self._hand_back(resident, 0.5)
            elif isinstance(outcome, Committed):
                self.released(self._clock.now() if outcome.messages else due)

        self._committer.submit(operation, done)

    def hand_back_steps(self) -> None:
        """On a graceful stop: record attempts still under way as handed back, so that they do not count as lost."""
        for resident in list(self.residents.values()):
            if resident.deaf:
                continue
            notes: list[tuple[str, entries.Entry]] = []
            for location, attempt in list(resident.attempts.items()):
                notes.append((location, entries.AttemptLost(attempt.number, "handed back")))
                self._stop_attempt(resident, location, "the worker stops")
                resident.active.discard(location)
            turn = resident.execution.note(notes, self._clock.now()) if notes else _EMPTY
            now = self._clock.now()
            status, wait, due = resident.written
            if notes or resident.active:
                status, wait, due = Status.PENDING, "", now
            if resident.execution.journal.cancelling is not None:
                status = Status.CANCELLING
            state = State(status=status, seen=resident.seen, wait=wait, due=due, released=True)
            operation = CommitTurn(
                key=resident.key, epoch=resident.epoch, at=now, entries=turn.entries, state=state, reset_claims=True
            )
            self._drop(resident)
            self._committer.submit(operation, lambda outcome: None)

    def drop_all(self) -> None:
        """Forget every run in memory; the store has them."""
        for resident in list(self.residents.values()):
            self._drop(resident)

    def _drop(self, resident: Resident) -> None:
        if resident.dropped:
            return
        resident.dropped = True
        if self.residents.get(resident.key) is resident:
            del self.residents[resident.key]
        for location in list(resident.attempts):
            self._stop_attempt(resident, location, "the run left this worker")
        self._suspects.forget(resident.execution.journal)
        resident.execution.drop()


def _retryable(policy: Retry, data: ErrorData) -> bool:
    """Tell whether an error that arrived as data, its class perhaps unknown here, may be retried by its names."""
    names = {data.type, *data.bases}
    listed = {entry if isinstance(entry, str) else codec.qualified_name(entry) for entry in policy.non_retryable}
    return "NonRetryable" not in names and not names & listed


def _end(ending: Ending, payload: str | None, error: ErrorData | None, now: Instant) -> End:
    status = Status(ending.value)
    encoded = codec.encode(error).decode() if error is not None else None
    return End(status=status, at=now, output=payload, error=encoded, payload=_child_payload(status, payload, error))


def _child_payload(status: Status, payload: str | None, error: ErrorData | None) -> str:
    raw = msgspec.Raw(payload if payload is not None else "null")
    return encode_entry(entries.ChildEnded(status.value, raw, error))
