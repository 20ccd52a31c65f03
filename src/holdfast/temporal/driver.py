"""One run's code in memory: takes what happened, one thing after another, and collects what its turns ask for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from holdfast.clock import Instant
from holdfast.context.children import ChildVerb
from holdfast.context.code import WorkflowCode
from holdfast.context.steps import StepVerb
from holdfast.context.waits import PublishVerb, SendVerb
from holdfast.contract.rows import EntryRow, Message
from holdfast.contract.turns import StartChild
from holdfast.definitions import Registry
from holdfast.engine.runs.ends import child_refused
from holdfast.engine.steps.queue.wire import TaskEnd, new_task, read_call, read_end
from holdfast.errors import NotOffered
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.ending import first_entries
from holdfast.replay.execution import Execution
from holdfast.replay.journal import CANCEL
from holdfast.replay.loop import is_done
from holdfast.replay.turn import Ending, Outcome, Turn
from holdfast.temporal.judging import end_of_attempt
from holdfast.temporal.known import Known
from holdfast.temporal.wire import (
    MOST_BYTES,
    VERSION,
    AttemptCall,
    Begin,
    Carry,
    ChildToStart,
    Happening,
    RunEnded,
    Sending,
    TurnAnswer,
    TurnInput,
    is_cancel,
    mail_of,
    too_large,
)

_logger = logging.getLogger("holdfast.workflow")
_own_logger = logging.getLogger("holdfast.temporal")
_MOST_BEGUN = 500_000
"""How many bytes of arguments one answer carries; what is left is begun by the next one."""


class Whereabouts(NamedTuple):
    """Where a run is: its entries, the inbox rows its code was given and has not taken, what is under way."""

    rows: list[EntryRow]
    inbox: list[Message]
    under_way: set[str]
    carry: Carry
    queue: str


class Workplace(Protocol):
    """What the worker knows that has the code in memory."""

    registry: Registry
    known: Known
    local_functions: bool
    live: dict[tuple[str, str], Any]
    lent: dict[tuple[str, str], Any]
    on_given_up: Callable[[str, str | None], None]
    queue_of: Callable[[str], str]


class Blocked(Exception):
    """The code cannot go on from here."""

    def __init__(self, error: ErrorData) -> None:
        super().__init__(error.message)
        self.error = error


class RunDriver:
    """Drives one `Execution`. Called only from plain callbacks of the event loop."""

    def __init__(self, turns: Workplace, execution: Execution, code: WorkflowCode, place: Whereabouts) -> None:
        self.turns = turns
        self.execution = execution
        self.code = code
        self.place = place
        self.number = 0
        """Of the batch that it can take next."""
        self.retries: dict[str, tuple[Instant, StepVerb]] = {}
        self.ready: list[StepVerb] = []
        """Steps whose attempt is counted and was not handed over yet."""
        self.answer = TurnAnswer(taken=0)
        self.now: Instant = 0

    @property
    def run_id(self) -> str:
        return self.execution.journal.run.id

    def begin(self, batch: TurnInput) -> None:
        """Bring the code to where its entries end; what it asks for then is part of the first answer.

        A run that is cancelled before its first turn ends without it, unless a hook is to be told of that.
        """
        self.now = self.execution.loop.now
        before = not self.place.rows and any(mail.kind == "mail" and is_cancel(mail) for mail in batch.happenings)
        if before and self.place.carry.version >= 5 and not self.code.concludes("cancelled"):
            self._end(Outcome(Ending.CANCELLED), ())
            return
        self._advance(self.execution.begin(self.place.rows, self.place.inbox, None))

    def take(self, batch: TurnInput) -> TurnAnswer:
        """Take what happened, in order, and return what came of it."""
        self.answer.taken = 0
        for happening in batch.happenings:
            self.now, recorded = max(self.now, happening.at), len(self.answer.rows)
            try:
                if self.answer.ended is None:
                    self._take(happening)
                    recorded = -1
                    self._fire()
            except Blocked as blocked:
                self.answer.blocked = codec.encode(blocked.error).decode()
                # What left no trace is kept, and taken again once the code is put right.
                self.answer.taken += len(self.answer.rows) != recorded
                break
            self.answer.taken += 1
        self._hand_over()
        self.answer.at, self.answer.long = self.now, batch.long
        answer, self.answer = self.answer, TurnAnswer(taken=0)
        self._describe(answer)
        return answer

    def _take(self, happening: Happening) -> None:
        execution, kind = self.execution, happening.kind
        if kind == "mail":
            self._advance(execution.deliver([mail_of(happening)], self.now))
        elif kind == "end":
            verb = execution.journal.open.get(happening.location)
            if isinstance(verb, StepVerb) and not is_done(verb) and verb.attempt == happening.n:
                self._ended(verb, read_end(happening.data))
        elif kind == "sent":
            self._apply(happening.location, entries.SendDone(happening.data))
        elif kind == "refused":
            self._refuse_child(happening.location, happening.data)
        elif kind == "nudge":
            path = execution.journal.names.path
            for at in [at for at in self.retries if happening.data in ("", path(at))]:
                self._try_again(self.retries.pop(at)[1])

    def _fire(self) -> None:
        """Do what time asks for: timers, retries, the end of the grace."""
        execution = self.execution
        for location, (at, verb) in list(self.retries.items()):
            if at <= self.now:
                del self.retries[location]
                self._try_again(verb)
        due = execution.next_due()
        while self.answer.ended is None and due is not None and due <= self.now:
            self._advance(execution.fire(self.now))
            due, before = execution.next_due(), due
            if due == before:
                break
        grace = self._grace_ends()
        if self.answer.ended is None and grace is not None and grace <= self.now:
            journal = execution.journal
            if journal.undo_asked and journal.compensations:
                self._apply(CANCEL, entries.CancelRequested(True))
            elif self.code.concludes("cancelled"):
                self._advance(execution.conclude(self.now))
            else:
                self._end(Outcome(Ending.CANCELLED), ())
                self.answer.stop += [at for at in self.place.under_way if at in journal.open]

    def _grace_ends(self) -> Instant | None:
        journal = self.execution.journal
        if journal.cancelling is None or journal.compensating or journal.run.conclusion is not None:
            return None
        return journal.cancelling + self.place.carry.rules.grace

    # Turns.

    def _apply(self, location: str, fact: entries.Entry) -> None:
        self._advance(self.execution.apply(location, fact, self.now))

    def _note(self, verb: StepVerb, *marks: entries.Entry) -> None:
        self._advance(self.execution.note([(verb.location, mark) for mark in marks], self.now))

    def _advance(self, turn: Turn) -> None:
        """Add what a turn asks for to the answer.

        Raises:
            Blocked: the code cannot go on; nothing of the turn is kept.
        """
        answer = self.answer
        if turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED:
            assert turn.outcome.error is not None
            raise Blocked(turn.outcome.error)
        if turn.effects is not None and turn.effects.publishes:
            raise Blocked(error_to_data(NotOffered("ctx.publish()", "publish", "send to the runs by id: ctx.send()")))
        for low, high in turn.trims:
            answer.rows = [row for row in answer.rows if not low <= row[0] < high]
            answer.trims.append((low, high))
        answer.rows += [(*row,) for row in turn.entries]
        answer.consumed += turn.consumed
        self._log(turn)
        for verb in turn.abandoned:
            self._give_up(verb)
        if turn.effects is not None:
            answer.attributes.update(turn.effects.attributes)
            answer.evidence += [(item.id, item.kind, item.data, item.at) for item in turn.effects.evidence]
            answer.replies += [(reply.message, reply.payload) for reply in turn.effects.replies]
        for send in turn.sends:
            answer.sends.append(Sending(send.location, send.target, send.name, send.id, send.payload))
            self.place.under_way.add(send.location)
        for child in turn.children:
            answer.children.append(self._child(child))
            self.place.under_way.add(child.location)
        for started in turn.started:
            if not is_done(started):
                self._start(started)
        if turn.outcome is not None:
            self._end(turn.outcome, turn.carried)

    def _start(self, verb: Any) -> None:
        if isinstance(verb, StepVerb):
            if not verb.recalled:
                self.ready.append(verb)
            elif verb.location not in self.place.under_way:
                self._recall(verb)
        elif isinstance(verb, SendVerb) and not isinstance(verb, PublishVerb):
            if verb.location not in self.place.under_way:
                self._apply(verb.location, entries.SendDone(verb.refused or ""))
        elif isinstance(verb, ChildVerb) and verb.refused:
            self._refuse_child(verb.location, verb.refused)

    def _recall(self, verb: StepVerb) -> None:
        """Go on with a step that entries know and that nothing is under way for."""
        if (kept := verb.kept) is not None and kept.kind in entries.STEP_ENDS:
            self._apply(verb.location, kept)
        elif (verb.settled or verb.skipped) and verb.retry_at is not None:
            self.retries[verb.location] = (verb.retry_at, verb)
        elif verb.settled or verb.skipped:
            self._try_again(verb)
        else:
            self.ready.append(verb)  # its call was recorded and its attempt not begun

    def _refuse_child(self, location: str, reason: str) -> None:
        verb = self.execution.journal.open.get(location)
        if isinstance(verb, ChildVerb):
            status, error = child_refused(verb.id, reason)
            self._apply(location, entries.ChildEnded(status, error=error))

    def _give_up(self, verb: Any) -> None:
        self.retries.pop(verb.location, None)
        if isinstance(verb, StepVerb):
            if verb in self.ready:
                self.ready.remove(verb)
            self.answer.begin = [begin for begin in self.answer.begin if begin.location != verb.location]
            self.answer.stop.append(verb.location)
            self.turns.on_given_up(self.run_id, self.execution.journal.names.path(verb.location))

    def _end(self, outcome: Outcome, carried: Sequence[entries.Entry]) -> None:
        names = self.execution.journal.names
        rows: list[Any] = []
        if outcome.ending is Ending.RENEWED:
            rows = [(*row,) for row in first_entries(carried, self.now)]
        told = ""
        if self.place.carry.parent and outcome.ending is not Ending.RENEWED:
            payload = msgspec.Raw(outcome.payload or "null")
            told = entries.encode_entry(entries.ChildEnded(outcome.ending.value, payload, outcome.error))
        if outcome.payload is not None and len(outcome.payload) > MOST_BYTES:
            what = f"the result of run {self.run_id!r}"
            outcome = Outcome(Ending.FAILED, error=error_to_data(too_large(what, len(outcome.payload))))
        self.answer.ended = RunEnded(
            status=outcome.ending.value,
            payload=outcome.payload or "",
            error=codec.encode(outcome.error).decode() if outcome.error is not None else "",
            compensation=codec.encode(outcome.compensation).decode() if outcome.compensation is not None else "",
            failed_step=names.path(outcome.failed[0]) if outcome.failed else "",
            rows=rows,
            told=told,
        )

    # Steps.

    def _ended(self, verb: StepVerb, end: TaskEnd) -> None:
        self.place.under_way.discard(verb.location)
        judged = end_of_attempt(verb, end, self.now, self.turns.registry.errors)
        if judged.mark is not None:
            self._note(verb, judged.mark)
        if judged.fact is not None:
            self._apply(verb.location, judged.fact)
        elif judged.retry_at is None:
            self._try_again(verb)
        else:
            self.retries[verb.location] = (judged.retry_at, verb)

    def _try_again(self, verb: StepVerb) -> None:
        """Count another attempt; one that was put off before it ran keeps its number."""
        if is_done(verb):
            return
        verb.attempt += verb.settled
        verb.settled = verb.skipped = False
        verb.retry_at, verb.began = None, self.now
        self._note(verb, entries.AttemptBegun(verb.attempt))
        self.ready.append(verb)

    def _hand_over(self) -> None:
        """Put the attempts that are ready into the answer, as many as fit."""
        size = 0
        while self.ready and self.answer.ended is None and size < _MOST_BEGUN:
            verb = self.ready.pop(0)
            if is_done(verb):
                continue
            try:
                begin = self._attempt(verb)
            except Exception as error:
                end = TaskEnd(error=error_to_data(error))
                self._ended(verb, end)
                self._fire()
                continue
            size += len(bytes(begin.call))
            self.place.under_way.add(verb.location)
            self.answer.begin.append(begin)
        self.answer.more = bool(self.ready) and self.answer.ended is None

    def _attempt(self, verb: StepVerb) -> Begin:
        settings, path = verb.activity.settings, self.execution.journal.names.path(verb.location)
        workflow = self.execution.journal.run.workflow
        if self.turns.local_functions:
            self.turns.live[self.run_id, path] = self.turns.lent[self.run_id, path] = verb.activity
        else:
            self.turns.known.check(workflow, verb.activity, path)
        call = self._call(verb, path)
        if len(call) > MOST_BYTES:
            raise too_large(f"the arguments of step {path!r}", len(call))
        queue = self.turns.queue_of(settings.queue) if settings.queue else ""
        name = str.__str__(settings.name)  # which may be of a class of its own
        return Begin(verb.location, verb.attempt, path, name, queue, msgspec.Raw(call))

    def _call(self, verb: StepVerb, path: str) -> bytes:
        made = read_call(new_task(verb).payload)
        call = AttemptCall(
            arguments=made.arguments,
            called_at=made.called_at,
            key="" if made.key == f"{self.run_id}:{path}" else made.key,
            own_key=made.own_key,
            timeout=made.timeout,
            heartbeat_timeout=made.heartbeat_timeout,
            suspect=made.suspect,
            in_process=made.in_process,
        )
        return msgspec.json.encode(call)

    def _child(self, start: StartChild) -> ChildToStart:
        run, carry = start.run, self.place.carry
        begins = Carry(
            version=VERSION,
            seed=run.seed,
            digest=run.digest,
            workflow_version=run.version,
            timeout=run.options.timeout,
            attributes=dict(run.options.attributes),
            parent=self.run_id,
            rules=carry.rules,
        )
        known = run.workflow in self.turns.registry.names()
        queue = self.turns.registry.get(run.workflow).queue if known else self.place.queue
        return ChildToStart(
            start.location,
            run.id,
            run.workflow,
            self.turns.queue_of(queue),
            run.input,
            msgspec.json.encode(begins).decode(),
            run.options.cancel_with_parent,
        )

    # What is said of it.

    def _describe(self, answer: TurnAnswer) -> None:
        journal = self.execution.journal
        if answer.ended is not None:
            return
        due = self.execution.next_due()
        times = [due, self._grace_ends(), *(at for at, _ in self.retries.values())]
        answer.due = min((at for at in times if at is not None), default=None)
        waits = [f"message {','.join(verb.names)}" for verb in list((journal.receivers or {}).values())[:5]]
        waits += [f"child {child}" for child in list(journal.kids or {})[:5]]
        waits += ["retry"] if self.retries else []
        waits += ["timer"] if due is not None else []
        busy = answer.begin or any(isinstance(journal.open.get(at), StepVerb) for at in self.place.under_way)
        if journal.compensating:
            answer.status = "compensating"
        elif journal.cancelling is not None:
            answer.status = "cancelling"
        elif not busy:
            answer.status = "suspended"
        answer.wait = "" if busy else "; ".join(waits)

    def _log(self, turn: Turn) -> None:
        workflow = self.execution.journal.run.workflow
        for level, text, args, scope in turn.logs:
            extra = {"run_id": self.run_id, "workflow": workflow, "scope": scope}
            try:
                _logger.log(level, f"[{self.run_id}] {text}", *args, extra=extra)
            except Exception:
                _own_logger.exception("a logging handler failed; run %s goes on", self.run_id)
