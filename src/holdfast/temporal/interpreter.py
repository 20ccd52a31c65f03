"""The Temporal workflow: it passes happenings to a turn, keeps the entries that come back, and makes their commands.

It never runs a user's code: turns are made in a local activity (`turns`), and Temporal records their answers. So
Temporal's replay runs only this file, and changed code meets holdfast's own history by holdfast's own rules. For open
histories this file must always make the same commands; `tests/temporal/golden` checks that. A change needs a new number
in the run's input, `wire.VERSION`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import msgspec
from temporalio import workflow
from temporalio.common import RawValue, RetryPolicy

from holdfast.clock import from_datetime
from holdfast.temporal.leaving import ASKED, RunExit
from holdfast.temporal.other_runs import begin_child, cancel_children, send, send_cancel
from holdfast.temporal.sdk import TAGS, Alarms, Process, end_of, failure_of, now, quietly, seed_of, stopped_before, tags
from holdfast.temporal.wire import (
    ACTS,
    TURN,
    VERSION,
    Begin,
    Carry,
    ChildToStart,
    Happening,
    Row,
    RunEnded,
    Sending,
    TurnAnswer,
    TurnInput,
    ahead_in,
    data_of,
    linked,
    packed,
    raw,
    result_of,
    said,
    unpacked,
)

_FOR_EVER = timedelta(days=3650)
_TURN_TAKES = timedelta(minutes=10)
_ONCE = RetryPolicy(maximum_attempts=1)
_SEEN = 2_000
"""How many ids of messages are remembered."""
_BATCH = 200
"""How many happenings one turn is given."""


class Interpreter:
    """One execution of one run."""

    def __init__(self, turns: Process) -> None:
        self.turns = turns
        self.info = workflow.info()
        self.done: asyncio.Future[RunEnded | None] = asyncio.get_running_loop().create_future()
        """How the run ended; None: it goes on in another execution."""
        self.input = raw(b"{}")
        self.carry = Carry()
        self.rows: list[Row] = []
        self.inbox: dict[int, list[Any]] = {}
        self.seen: dict[str, None] = {}
        self.happenings: deque[Happening] = deque()
        self.number = 0
        self.turning: Any = None
        """The local activity that makes a turn."""
        self.failures = 0
        """How often in a row a turn was not made."""
        self.attempts: dict[str, tuple[Begin, Any]] = {}
        self.held_back: deque[Begin] = deque()
        self.waiting: dict[str, ChildToStart | Sending] = {}
        """Children and messages on their way, by location."""
        self.begun: dict[str, tuple[Begin, Any]] = {}
        """The attempts whose end no turn took, those that were given up, too, by location."""
        self.alarms = Alarms(self._fire)
        self.paused = False
        self.pause: asyncio.TimerHandle | None = None
        self.blocked = ""
        self.answer = TurnAnswer(taken=0)
        self.ended: RunEnded | None = None
        self.cancel_seen = False
        self.early: list[tuple[str, str, str, str]] | None = []
        """What came before the input was known."""
        self.leaving = RunExit(self)

    @property
    def key(self) -> str:
        """What names this execution."""
        return self.info.run_id

    @property
    def run_id(self) -> str:
        """What names the run."""
        return self.info.workflow_id

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Temporal's own, whose timers and order its history repeats."""
        return asyncio.get_running_loop()

    # The workflow of Temporal's.

    async def run(self, args: Sequence[RawValue]) -> RawValue:
        self.input = args[0] if args else self.input
        self.carry = carry = unpacked(args[1], Carry) if len(args) > 1 else self.carry
        if carry.version > VERSION:
            raise RuntimeError(f"run {self.run_id} was begun by a newer holdfast: its workers must be as new")
        self.rows = list(carry.rows)
        self.inbox = {row[0]: list(row) for row in carry.inbox}
        self.seen = dict.fromkeys(carry.seen)
        self.turns.entered(self.key, self)
        try:
            started = self.turns.time_of(from_datetime(self.info.workflow_start_time))
            if await self._is_cancelled_before(started + carry.delay):
                self.ended = RunEnded(status="cancelled", told='["cancelled"]' if carry.parent else "")
                return await self._finish(self.ended)
            carry.begun = carry.begun or now()
            if carry.timeout is not None and carry.deadline is None:
                carry.deadline = carry.begun + carry.timeout
            carry.seed = carry.seed or seed_of(self.info.first_execution_run_id)
            early, self.early = self.early or [], None
            if carry.paused and not any(kind in ("resume", "cancel") for kind, *_ in early):
                self._act("pause", msgspec.json.encode(carry.paused_until).decode())
            carry.paused = False
            self._open(early)
            await self._until_done()
            return await self._finish(self.done.result())
        finally:
            self.turns.left(self.key)

    def _open(self, early: list[tuple[str, str, str, str]]) -> None:
        """Let the first turn begin, with all that came before it."""
        together = self.carry.version >= 5
        self.turning = True if together else None
        self._put(Happening("begin", now()))
        asked = workflow.cancellation_reason() if together else None
        if asked is not None:
            self._cancel(asked)
        for mail in early:
            if mail[0] != "resume":
                self.mail(*mail)
        if together:
            self.turning = None
            self._pump()

    async def _is_cancelled_before(self, begins: int) -> bool:
        """Wait for the time at which the run begins, which a signal brings no nearer: whether it ends without that."""
        if not self.carry.delay or begins <= now():  # a server ends its own delay with a cancel, or a signal
            return False
        self.alarms.due = begins
        cancelled = await stopped_before(begins, lambda: any(mail[0] == "cancel" for mail in self.early or ()))
        self.alarms.due, self.cancel_seen = None, workflow.cancellation_reason() is not None
        return cancelled

    async def _until_done(self) -> None:
        while not self.done.done():
            try:
                await asyncio.shield(self.done)
            except asyncio.CancelledError:
                reason = workflow.cancellation_reason()
                if self.cancel_seen or reason is None:
                    raise  # evicted from memory: that is no cancel
                self.cancel_seen = True
                self._cancel(reason if reason.startswith("{") else "{}")

    async def _finish(self, ended: RunEnded | None) -> RawValue:
        if ended is None:
            left = await self.leaving.result()
            return left or self._another(self.input, self.carry.generation, self.rows)
        await self._last_words(ended)
        if ended.status == "cancelled" and ended.compensation and self.carry.version >= 2:
            workflow.upsert_memo({"compensation": ended.compensation})
        if ended.status == "renewed":
            self._another(raw(ended.payload), self.carry.generation + 1, ended.rows)
        if ended.status == "completed":
            return raw(ended.payload)
        if ended.status == "cancelled" and self.cancel_seen:
            raise asyncio.CancelledError
        raise failure_of(ended)

    async def _last_words(self, ended: RunEnded) -> None:
        """Let what was sent last go out, and tell those who wait, before Temporal closes the execution."""
        await workflow.wait_condition(lambda: not self.waiting)
        if ended.status == "renewed":
            return
        self.leaving.refuse_requests()
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self.carry.parent:
            told = raw(ended.told, id=f"{self.run_id}/{self.carry.reopens}")
            await quietly(workflow.get_external_workflow_handle(self.carry.parent).signal(ACTS + "child", told))

    def _another(self, encoded: RawValue, generation: int, rows: Sequence[Row]) -> NoReturn:
        """Go on in another execution of the same run: what the SDK raises for that never comes back here."""
        self._take_in(self.happenings)
        workflow.continue_as_new(args=[encoded, packed(self.carried(generation, rows))])

    def carried(self, generation: int, rows: Sequence[Row]) -> Carry:
        """Return what another execution needs to go on from here."""
        carry = self.carry
        same = generation == carry.generation
        return msgspec.structs.replace(
            carry,
            generation=generation,
            begun=carry.begun if same else now(),
            delay=0,
            rows=list(rows),
            inbox=[(n, *row[1:]) for n, row in self.inbox.items()],
            seen=list(self.seen)[-_SEEN:],
        )

    # What comes from outside.

    def told(self, name: str, args: Sequence[RawValue]) -> None:
        """Take a signal: a message, the end of a child, or what a caller does to the run."""
        value = args[0] if args else raw(b"null")
        data, given = data_of(value).decode(), said(value, "id")
        if name == ACTS + "child":
            child = given.rpartition("/")[0]
            self.carry.children.pop(child, None)
            self.mail("child_ended", child, "", data)
        elif name == ACTS + "cancel":
            self._cancel(data)
        elif name.startswith(ACTS):
            self._act(name.removeprefix(ACTS), data)
        else:
            self.mail("message", name, given, data)

    def mail(self, kind: str, name: str, given: str, data: str) -> None:
        """Put a row into the run's inbox, for the next turn."""
        if self.early is not None:
            self.early.append((kind, name, given, data))
            return
        if given:
            if given in self.seen:
                return
            self.seen[given] = None
        carry = self.carry
        carry.numbers += 1
        fields = [carry.numbers, kind, name, given or f"{self.key}/{carry.numbers}", data, now()]
        self._put(Happening("mail", now(), n=carry.numbers, data=msgspec.json.encode(fields).decode()))

    def _cancel(self, data: str) -> None:
        for telling in cancel_children(self.carry.children):
            self._then(telling, quietly(send_cancel(telling)))
        undo = '{"compensate":true}' if '"compensate":true' in data else "{}"
        if self.paused:
            self._act("resume", "")
        if self.blocked and self.turning is None and self.carry.version >= 2 and not self.done.done():
            self._end(RunEnded(status="cancelled", told='["cancelled"]' if self.carry.parent else ""))
        else:
            self.mail("cancel", "", "", undo)

    def _act(self, what: str, data: str) -> None:
        if what == "pause":
            self.paused = True
            until: int | None = msgspec.json.decode(data)
            if self.pause is not None:
                self.pause.cancel()
            wait = max((until - now()) / 1e6, 0.001) if until is not None else 0
            self.pause = self.loop.call_later(wait, self._act, "resume", "") if until is not None else None
            self.carry.paused_until = until
            self._remember()
        elif what in ("resume", "recover"):
            if self.early is not None:
                self.early.append(("resume", "", "", ""))
            changed = self.paused or bool(self.blocked)
            self.paused, self.blocked = False, "" if what == "recover" else self.blocked
            if self.pause is not None:
                self.pause.cancel()
                self.pause = None
            if changed:
                self._remember()
            self._pump()
        elif what == "attributes":
            self._set_attributes(msgspec.json.decode(data))
        elif what == "nudge":
            self._put(Happening("nudge", now(), data=msgspec.json.decode(data)))
        elif what in ASKED:
            self.leaving.told(what, data)

    # Turns: one after another, each with all that has happened since the last.

    def _put(self, happening: Happening) -> None:
        self._note(happening)
        self._pump()

    def _note(self, happening: Happening) -> None:
        if self.alarms.unmet.count:
            self.alarms.unmet.count -= 1
            self._take_in([happening])
        else:
            self.happenings.append(happening)

    def _pump(self) -> None:
        if self.leaving.token:
            self.leaving.look()
            return
        if not self.happenings or not self.is_idle():
            return
        happenings = [self.happenings[n] for n in range(min(len(self.happenings), _BATCH))]
        batch = TurnInput(self.number, happenings, self._length())
        self.turning = workflow.start_local_activity(
            TURN,
            packed(batch),
            start_to_close_timeout=_TURN_TAKES,
            retry_policy=_ONCE,
            result_type=RawValue,
        )
        self.turning.add_done_callback(self._turned)

    def is_idle(self) -> bool:
        """Whether a turn may be made now."""
        busy = self.turning is not None or self.early is not None or self.ended is not None or self.done.done()
        return not (busy or self.paused or self.blocked or self.leaving.token)

    def _turned(self, turning: Any) -> None:
        self.turning = None
        if turning.cancelled():
            return  # evicted
        if turning.exception() is not None:
            # Its worker stopped, or let the run go meanwhile: nothing was recorded, and the next one makes it.
            self.failures += 1
            self.loop.call_later(min(2.0 ** (self.failures - 4), 60.0), self._pump)
            return
        self._answered(unpacked(turning.result(), TurnAnswer))

    def _answered(self, answer: TurnAnswer) -> None:
        self.failures = 0
        self.number += 1
        met = min(answer.taken, len(self.happenings))
        self.alarms.unmet.count += answer.taken - met
        self._take_in([self.happenings.popleft() for _ in range(met)])
        self._take(answer)
        if answer.blocked:
            self._block(answer.blocked)
        self._pump()

    def _take_in(self, taken: Iterable[Happening]) -> None:
        """Put what was sent into the inbox, unless a turn has consumed it; forget attempts whose end was taken."""
        for each in taken:
            begun = self.begun.get(each.location)
            if each.kind == "end" and begun is not None and begun[0].attempt == each.n:
                del self.begun[each.location]
            elif each.kind == "mail" and each.n not in self.alarms.unmet.consumed:
                self.inbox[each.n] = msgspec.json.decode(each.data)
            elif each.kind == "mail":
                self.alarms.unmet.consumed.remove(each.n)

    def _take(self, answer: TurnAnswer) -> None:
        self.answer = answer
        for low, high in answer.trims:
            self.rows = [row for row in self.rows if not low <= row[0] < high]
        self.rows += answer.rows
        for number in answer.consumed:
            if self.inbox.pop(number, None) is None:
                self.alarms.unmet.consumed.add(number)
        if answer.stop:
            self._stop(answer.stop, answer.ended is not None)
        if answer.attributes:
            self._set_attributes(answer.attributes)
        self.carry.evidence = linked(answer.evidence, self.carry.evidence)
        self.leaving.reply(answer.replies)
        for child in answer.children:
            self._then(child, begin_child(self, child))
        for message in answer.sends:
            self._then(message, send(message, self.waiting))
        if answer.ended is not None:
            self._end(answer.ended)
        elif not answer.blocked and self._long() and self._may_leave():
            self.done.set_result(None)  # what the turn begins is begun by the next execution, which finds it recorded
        else:
            self.held_back.extend(answer.begin)
            self._begin()
            self.alarms.keep(answer.due, answer.at if self.carry.version >= 5 else None)
            if answer.more:
                self._put(Happening("more", now()))

    def _end(self, ended: RunEnded) -> None:
        self.ended = ended
        self.alarms.stop()
        self.held_back.clear()
        self.done.set_result(ended)
        if not workflow.unsafe.is_replaying():
            self.turns.said_end(self.run_id, ended)

    def _length(self) -> int:
        """Say whether the history is too long: 1, and 2 if it is twice as long."""
        length, limit = self.info.get_current_history_length(), self.carry.rules.history_limit
        return (length > limit or self.info.is_continue_as_new_suggested()) + (length > 2 * limit)

    def _long(self) -> int:
        return self.answer.long if self.carry.version >= 5 else self._length()

    def _may_leave(self) -> bool:
        """Whether nothing is under way that the next execution could not hear of; what was sent goes along."""
        attempts = self.begun if self.carry.version >= 5 else self.attempts
        if attempts or self.waiting or self.leaving.replies or self.paused or self.leaving.token:
            return False
        return not self.happenings or (self.carry.version >= 5 and all(each.kind == "mail" for each in self.happenings))

    def _block(self, error: str) -> None:
        """Park the run: its history is as it was, and `recover` tries again what could not be done."""
        self.blocked = error
        self._remember()

    def _remember(self) -> None:
        """Tell callers that look without a worker: a blocked or paused run says so in its memo."""
        paused = (self.carry.paused_until or True) if self.paused else None
        workflow.upsert_memo({"blocked": self.blocked or None, "paused": paused})

    def _set_attributes(self, given: dict[str, str | None]) -> None:
        kept = {**self.carry.attributes, **given}
        self.carry.attributes = {name: value for name, value in kept.items() if value is not None}
        if self.turns.tagging:
            workflow.upsert_search_attributes([TAGS.value_set(tags(self.carry.attributes))])

    # Time.

    def _fire(self, at: int) -> None:
        self._put(Happening("due", now() if self.carry.version < 5 else max(now(), at)))

    # Steps: each attempt is an activity of its own; what comes of it is judged by the next turn.

    def _begin(self) -> None:
        if self.leaving.token or (self._long() > 1 and self.attempts):
            return  # begun by the next execution, once what is under way has ended
        while self.held_back and len(self.attempts) < self.carry.rules.pending:
            self._try(self.held_back.popleft())

    def _try(self, begin: Begin) -> None:
        lease = timedelta(microseconds=self.carry.rules.lease)
        longest = timedelta(microseconds=begin.timeout) + lease if begin.timeout else _FOR_EVER
        handle = workflow.start_activity(
            begin.activity,
            args=[raw(bytes(begin.call)), begin.attempt],
            activity_id=begin.path if begin.attempt == 1 else f"{begin.path} (attempt {begin.attempt})",
            task_queue=begin.queue or None,
            start_to_close_timeout=longest,
            heartbeat_timeout=lease,
            retry_policy=_ONCE,
            result_type=RawValue,
        )
        self.attempts[begin.location] = (begin, handle)
        self.begun[begin.location] = (begin, handle)
        handle.add_done_callback(partial(self._tried, begin))

    def _tried(self, begin: Begin, handle: Any) -> None:
        current = self.attempts.get(begin.location) == (begin, handle)
        if handle.cancelled() or not (current or self.carry.version >= 5):
            return  # evicted, or given up
        error = handle.exception()
        end = end_of(error) if error is not None else result_of(data_of(handle.result()))
        ahead = ahead_in(handle.result()) if error is None and self.carry.version >= 3 else None
        if ahead is not None and (ahead.number != self.number or self.happenings or not self.is_idle()):
            ahead = None  # something else came first, and the turn was made without it
        self._note(Happening("end", now(), begin.location, begin.attempt, end))
        if current:
            del self.attempts[begin.location]  # in this order: see Turns
        self._begin()
        if ahead is not None:
            ahead.answer.long = self._length()
            self._answered(ahead.answer)
        self._pump()

    def _stop(self, locations: Sequence[str], ends: bool) -> None:
        """Give attempts up, even one that has ended by now: a replay may hear of its end after this, see Alarms."""
        self.held_back = deque(begin for begin in self.held_back if begin.location not in locations)
        begun = [self.begun[location] for location in locations if location in self.begun]
        if begun and self.carry.version >= 5 and not ends:
            self.loop.call_later(0.001, lambda: [handle.cancel() for _, handle in begun])
        for begin, handle in begun:
            if self.attempts.pop(begin.location, None) is not None:
                self.turns.stop(self.key, begin.path)
                if self.carry.version < 5:
                    handle.cancel()

    # Children and messages.

    def _then(self, what: ChildToStart | Sending, coming: Coroutine[Any, Any, Happening | None]) -> None:
        self.waiting[what.location] = what

        def ended(task: asyncio.Task[Happening | None]) -> None:
            happening = task.result() if not task.cancelled() else None
            if happening is not None:
                self._note(happening)
            self.waiting.pop(what.location, None)
            self._pump()

        self.loop.create_task(coming).add_done_callback(ended)
