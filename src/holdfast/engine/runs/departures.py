"""How a run leaves this worker: released, handed back, blocked, cancelled outright, or lost.

Each drops the run from memory and then makes its last commit. If the store cannot take it, the run is handed back as
soon as possible: a run that this worker owns but does not have in memory would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

import msgspec

from holdfast.contract.operations import Committed, Fenced, InboxMoved, Outcome
from holdfast.contract.rows import EntryRow, Held, Status
from holdfast.contract.turns import CommitTurn, Lane, RunEnd, State, TurnEffects
from holdfast.engine.runs.commit import state_of
from holdfast.engine.runs.ends import cancelled_end, displaces, displacing, rejected
from holdfast.engine.runs.ports import Runs, Steps
from holdfast.engine.runs.records.trail import trail_of
from holdfast.engine.runs.resident import Resident
from holdfast.engine.worker.committer import Committer
from holdfast.logs import Lines
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.ending import LIMBO
from holdfast.replay.turn import Turn

_logger = logging.getLogger("holdfast.engine")
_ALL_SEEN = 1 << 62
_MANY = 500
_FREED_AFTER, _FREED_FOR, _FREED_EVERY = 0.1, 0.002, 0.02
"""After how many seconds completed runs are freed, and for how long of each so many seconds."""
_NOT_FREED = """run %s of workflow %r cannot be freed: its code catches even being closed (`except BaseException` in a \
loop), so its memory is kept until this process ends"""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 5.0
_STICKY_FACTS = frozenset({entries.StepCompleted.kind, entries.StepFailure.kind})


class Departures:
    """The ways out of memory."""

    def __init__(self, runs: Runs, steps: Steps, committer: Committer) -> None:
        self._runs = runs
        self._steps = steps
        self._committer = committer
        self.fenced = 0
        """How many writes were refused because another worker holds the run."""
        self.overtaken = 0
        """How often a message that a run was handed early turned out not to be its next."""
        self._completed: deque[Resident] = deque()
        """Runs that are not in memory any more but for what is to be freed of them."""

    def let_go(self, resident: Resident, *, later: bool) -> None:
        """Free what a run that is dropped has in memory: of one that completed `later`, after others have completed.

        To free ten thousand runs takes a tenth of the time in which they wake and complete. It is done at once where
        few outcomes are handed out, and for what has more than its own task, because closing a task may run code.
        """
        if not later or self._committer.in_hand < _MANY or len(resident.execution.loop.tasks) > 1:
            _free(resident)
            return
        if not self._completed:
            asyncio.get_running_loop().call_later(_FREED_AFTER, self._free_some)
        self._completed.append(resident)

    def free(self) -> None:
        """Free all that is left of completed runs."""
        while self._completed:
            _free(self._completed.popleft())

    def _free_some(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + _FREED_FOR
        while self._completed and loop.time() < until:
            _free(self._completed.popleft())
        if self._completed:
            loop.call_later(_FREED_EVERY, self._free_some)

    def release(self, resident: Resident) -> None:
        """Give up a parked run: any worker may continue it when it is due."""
        self._leave(resident, (), state_of(resident, released=True))

    def record_and_release(self, resident: Resident, location: str, fact: entries.Entry) -> None:
        """Record a fact without letting the code go on from it; the worker that claims the run next does."""
        now = self._runs.clock.now()
        rows = resident.execution.note([(location, fact)], now).entries
        state = State(status=_waiting_status(resident), seen=resident.seen, due=now, released=True)
        self._leave(resident, rows, state)

    def hand_back(self, resident: Resident) -> None:
        """Give up a run on an orderly stop, with the attempts it has under way."""
        notes = self._steps.hand_back(resident)
        now = self._runs.clock.now()
        rows = resident.execution.note(notes, now).entries if notes else []
        status, wait, due = resident.written
        if notes or resident.active or resident.children_in_doubt:
            status, wait, due = _waiting_status(resident), "", now
        self._leave(resident, rows, State(status=status, seen=resident.seen, wait=wait, due=due, released=True))

    def pause(self, resident: Resident) -> None:
        """Let a run go that was asked to pause and has nothing under way any more."""
        pausing = resident.pausing
        assert pausing is not None
        now = self._runs.clock.now()
        status, due = Status.PAUSED, pausing.until
        if pausing.cancelled or pausing.resumed:
            status, due = (Status.CANCELLING if pausing.cancelled else _waiting_status(resident)), now
        state = State(status=status, seen=resident.seen, due=due, released=True)
        self._leave(resident, (), state, paused=status is Status.PAUSED)

    def enter_lane(self, resident: Resident, lane: Lane) -> None:
        """Let a run wait for its turn that was claimed before it was in a lane: it was started without its code."""
        now, rules, workflow = self._runs.clock.now(), self._runs.rules, resident.workflow.name
        if displaces(lane):
            lane = displacing(lane, resident.id, workflow, rules, now)
        error = ErrorData(type="RunRejected", message=rejected(workflow, lane), retryable=False)
        if lane.on_full == "reject":
            lane = msgspec.structs.replace(lane, rejection=cancelled_end(rules, now, error))
        state = State(status=Status.PENDING, seen=resident.seen, wait="place", released=True)
        self._leave(resident, (), state, enter=lane)

    def block(self, resident: Resident, turn: Turn) -> None:
        """Stop a run whose code cannot continue its history; what a step achieved meanwhile is kept."""
        assert turn.outcome is not None
        assert turn.outcome.error is not None
        facts = turn.entries[:1] if turn.entries and turn.entries[0].kind in _STICKY_FACTS else []
        self._runs.drop(resident)
        self.block_claim(resident, turn.outcome.error, facts)

    def block_claim(self, run: Resident, error: ErrorData, facts: Sequence[EntryRow] = ()) -> None:
        """Write that a run is blocked."""
        _logger.error("run %s is blocked: %s: %s", run.id, error.type, Lines(error.message))
        state = State(
            status=Status.BLOCKED,
            seen=_ALL_SEEN,
            released=True,
            error=codec.encode(error).decode(),
            fingerprint=run.workflow.fingerprint,
        )
        self._leave(run, facts, state, Status.BLOCKED, error=error)

    def cancel_outright(self, resident: Resident) -> None:
        """Cancel a run that did not stop within its grace, whatever its code is doing."""
        end = cancelled_end(self._runs.rules, self._runs.clock.now())
        self._leave(resident, (), None, Status.CANCELLED, end)

    def lost(self, resident: Resident, outcome: Outcome | Exception) -> None:
        """A commit was refused: drop the run; unless another worker has it, hand it back once the store allows."""
        self._runs.drop(resident)
        if isinstance(outcome, Fenced):
            self.fenced += 1
            _logger.info("run %s is held by another worker now", resident.id)
            return
        resident.lose()
        if isinstance(outcome, InboxMoved):
            self.overtaken += 1
            self._hand_back_later(resident, _FIRST_PAUSE)
            return
        _logger.error("run %s could not be committed and will be continued later: %s", resident.id, outcome)
        self._hand_back_later(resident, _FIRST_PAUSE)

    def give_back(self, run: Held) -> None:
        """Let any worker continue a run that the store says is ours but that is not in memory."""
        now = self._runs.clock.now()
        status = run.status if run.status in (Status.CANCELLING, Status.COMPENSATING) else Status.PENDING
        state = State(status=status, seen=_ALL_SEEN, due=now, released=True)
        operation = CommitTurn(key=run.key, epoch=run.epoch, at=now, state=state, reset_claims=True)
        self._committer.submit(operation, lambda outcome: self._runs.host.released(now))

    def _leave(
        self,
        resident: Resident,
        rows: Sequence[EntryRow],
        state: State | None,
        ended: Status | None = None,
        end: RunEnd | None = None,
        paused: bool = False,
        error: ErrorData | None = None,
        enter: Lane | None = None,
    ) -> None:
        runs, aside = self._runs, resident.aside
        effects: TurnEffects | None = None
        trail = trail_of(resident, rows)
        exits = self._steps.exits(resident)
        if trail or exits or (aside is not None and (aside.keys_given_up or aside.letters)):
            keys, letters = (aside.keys_given_up, aside.letters) if aside is not None else ((), ())
            effects = TurnEffects(leaves=list(keys), letters=list(letters), evidence=trail, exits=[*exits])
        if enter is not None:
            effects = TurnEffects(enter=enter)  # none of its code has run
        operation = CommitTurn(
            key=resident.key,
            epoch=resident.epoch,
            at=runs.clock.now(),
            entries=list(rows),
            consumed=aside.rows_read if aside is not None else [],
            state=state,
            end=end,
            reset_claims=bool(rows)
            or end is not None
            or ended is not None
            or resident.pausing is not None
            or enter is not None,
            effects=effects,
        )
        runs.drop(resident)
        if ended is not None:
            runs.limits.forget(resident.key)

        def done(outcome: Outcome | Exception) -> None:
            if isinstance(outcome, Committed) and (outcome.woke_others or enter is not None):
                runs.host.woke_others(may_have_ended=enter is not None)
            if isinstance(outcome, Exception):
                self.lost(resident, outcome)
            elif isinstance(outcome, Fenced):
                self.fenced += 1
            elif isinstance(outcome, Committed) and ended is not None:
                data = {"error": error.brief()} if error is not None else None
                if ended is Status.CANCELLED:
                    runs.figures.run(resident, ended.value, operation.at)
                runs.reporter.tell(f"run.{ended}", resident, data, status=str(ended))
                runs.host.ended(resident.id, None)
                runs.host.woke_others(may_have_ended=ended is Status.CANCELLED)
            elif isinstance(outcome, Committed) and state is not None:
                if paused:
                    runs.reporter.tell("run.paused", resident)
                runs.host.released(runs.clock.now() if outcome.messages else state.due)

        self._committer.submit(operation, done, resident)

    def _hand_back_later(self, resident: Resident, pause: float) -> None:
        now = self._runs.clock.now()
        state = State(status=_waiting_status(resident), seen=_ALL_SEEN, due=now, released=True)
        operation = CommitTurn(key=resident.key, epoch=resident.epoch, at=now, state=state, reset_claims=True)

        def done(outcome: Outcome | Exception) -> None:
            if not isinstance(outcome, Exception):
                # Refused, it may have ended by the commit that seemed to fail: callers that wait for it look again.
                self._runs.host.released(now)
                self._runs.host.woke_others(may_have_ended=True)
            else:
                asyncio.get_running_loop().call_later(pause, again)

        def again() -> None:
            if not self._runs.stopping:  # then the worker hands back all it has
                self._hand_back_later(resident, min(pause * 2, _LONGEST_PAUSE))

        self._committer.submit(operation, done)


def _waiting_status(resident: Resident) -> Status:
    journal = resident.execution.journal
    if journal.run.conclusion is not None:
        return Status.RUNNING if journal.cancelling is None else Status.CANCELLING
    if journal.compensating:
        return Status.COMPENSATING
    return Status.PENDING if journal.cancelling is None else Status.CANCELLING


def _free(resident: Resident) -> None:
    stubborn = len(LIMBO)
    resident.execution.drop()
    if len(LIMBO) > stubborn:
        _logger.warning(_NOT_FREED, resident.id, resident.workflow.name)
