"""One run that is driven: a fact, a turn, its batch, and acting on it, until the run can only wait. Read downwards.

The output-commit rule: nothing that a turn asks for is acted on before the batch that holds it is durable. Turns are
driven from plain callbacks of the event loop, because a run has its own loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.bodies.executor import Executor
from holdfast.chains import chained
from holdfast.clock import Instant, to_datetime
from holdfast.context.code import WorkflowCode
from holdfast.context.steps import StepVerb
from holdfast.contract.rows import COMPENSATE, EntryRow, EvidenceRow, InboxKind, Message
from holdfast.definitions import Workflow
from holdfast.errors import NotAsExpected, RunBlocked, StoreError, UndecodablePayload
from holdfast.kv import keys
from holdfast.kv.alarms import wake_by
from holdfast.kv.options import DriveOptions
from holdfast.kv.space import Changes, Space, read_text, read_value
from holdfast.kv.standing import EVICTED, About, Standing, StoredMessage, StoredState, encoded, is_paused
from holdfast.kv.steps import DrivenSteps
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_to_data
from holdfast.replay import entry as entries
from holdfast.replay.ending import first_entries
from holdfast.replay.execution import Execution
from holdfast.replay.journal import CANCEL, RunInfo
from holdfast.replay.turn import Ending, Outcome, Turn

_logger = logging.getLogger("holdfast.kv")
R = TypeVar("R")
T = TypeVar("T")
_attributes = msgspec.json.Decoder(dict[str, Any])
_evidence = msgspec.json.Decoder(EvidenceRow)


class DrivenRun(Generic[R]):
    """A run in memory, from the reading of its key space to where it can only wait."""

    def __init__(self, space: Space, about: About, workflow: Workflow[..., R], options: DriveOptions) -> None:
        self._space = space
        self._about = about
        self._workflow = workflow
        self._options = options
        self._clock = options.clock
        self._loop = asyncio.get_running_loop()
        self._ends_at = None if options.lifespan is None else self._loop.time() + options.lifespan.total_seconds()
        self._woken = asyncio.Event()
        self._executor = Executor(self._loop, options.max_steps, options.max_threads, options.limits)
        self.steps = DrivenSteps(space, self._executor, self._clock, options.errors, options.context, self._woken.set)
        self._rows: dict[int, bytes] = {}
        """The keys of messages by the numbers that they were given here."""
        self._changes = Changes()
        self._due = False
        """Whether the alarm is set to now or earlier."""
        self._later: list[Message] = []
        """Messages that the code is given when what it made of those before them is durable."""
        self._most = max(space.driver.max_batch // 8, 1)
        """How many messages, and ends of attempts, one batch records."""
        self._unbegun: list[StepVerb] = []
        """Steps whose attempts are counted and are not begun any more, since the lifespan is over."""

    async def drive(self, rows: Sequence[EntryRow]) -> Standing[R]:
        """Bring the run to where its history ends, and from there as far as it comes."""
        begun = self._about.generation == 0 or not rows
        try:
            self._execution = self._made(self._about.created if begun else rows[0].at)
        except UndecodablePayload as unfit:
            if keys.ABOUT not in self._space.stored:
                raise
            return Standing("blocked", self._about.id, error=error_to_data(unfit))
        try:
            await self._space.finish_renewal()
            standing = await self._circle(rows)
        except NotAsExpected as refused:
            standing = Standing("evicted", self._about.id, error=error_to_data(refused))
        finally:
            self.steps.drop()
            self._executor.close()
            self._execution.drop()
        await asyncio.sleep(0)  # bodies that were given up see that they are cancelled
        return standing

    def _made(self, begun: Instant) -> Execution:
        about, options = self._about, self._options
        deadline = None if about.timeout is None else about.created + about.timeout
        info = RunInfo(about.id, about.workflow, about.generation, about.seed, 0, 0, deadline)
        args, kwargs = self._workflow.decode_input(self._input)
        code = WorkflowCode(self._workflow, args, kwargs)
        execution = Execution(info, code, deque(), begun, options.errors, True)
        execution.journal.activities = options.activities
        self.steps.execution = execution
        return execution

    @property
    def _input(self) -> bytes:
        return self._space.stored[keys.INPUT]

    # The circle.

    async def _circle(self, rows: Sequence[EntryRow]) -> Standing[R]:
        now = self._clock.now()
        self.steps.open_batch()
        self._later = self._numbered(self._space.messages())
        turn = await self._call(self._execution.begin, rows, self._some(), now)
        evicted = self._space.state == EVICTED
        begin = self.steps.recall(turn, now, "handed back" if evicted else "crash")
        turns, acted = [turn], False
        while True:
            last = turns[-1] if turns else None
            outcome = last.outcome if last is not None else None
            refused = self._refused(turns)
            if refused is not None:
                outcome = Outcome(Ending.BLOCKED, error=error_to_data(RunBlocked(self._about.id, refused)))
            if outcome is not None and outcome.ending is Ending.BLOCKED:
                if acted:
                    await self._keep(turns)
                return Standing("blocked", self._about.id, error=outcome.error)
            if outcome is None and begin:
                turns.append(self.steps.count(begin, self._clock.now()))
            await self._commit(turns, outcome, bool(begin))
            if outcome is not None and outcome.ending is Ending.RENEWED:
                turns, begin = await self._renewed(), []
                continue
            if outcome is not None:
                return self._ended(outcome)
            self._act(turns, begin)
            acted = True
            found = await self._next()
            if isinstance(found, Standing):
                return found
            turns, begin = found

    async def _next(self) -> tuple[list[Turn], list[StepVerb]] | Standing[R]:
        """Wait until there is something to go on from, and return the turns that come of it; or say why it stops."""
        self.steps.open_batch()
        while True:
            now = self._clock.now()
            if self._over and not self.steps.ends:
                return await self._evicted(now)
            self._woken.clear()
            if self.steps.ends:
                return await self._call(self._record, now), []
            if self._later:
                return [await self._call(self._execution.deliver, self._some(), now)], []
            due = self._next_due()
            if due is not None and due <= now:
                return await self._call(self._fire, now)
            if not self.steps.busy and not self._is_near(due, now):
                found = await self._space.new_messages()
                if not found:
                    return self._parked(due)
                if (asked := await self._asked_to_stop(found, now)) is not None:
                    return asked
                self._later = self._numbered(found)
                return [await self._call(self._execution.deliver, self._some(), self._clock.now())], []
            await self._wait(due, now)

    async def _asked_to_stop(self, found: Sequence[tuple[bytes, StoredMessage]], now: Instant) -> Standing[R] | None:
        """Return where the run stands if it was paused or evicted while it was driven."""
        evictions = [key for key, message in found if message.kind == "evict"]
        if evictions:
            for key in evictions:
                self._space.delete(self._changes, key)
            return await self._evicted(now)
        return Standing("paused", self._about.id) if is_paused(found) else None

    def _record(self, now: Instant) -> list[Turn]:
        """Record what came of attempts, up to where the code ends or cannot go on, and what fits into a batch."""
        turns: list[Turn] = []
        rows, ends = 0, self.steps.ends
        while ends and rows < 2 * self._most:
            made = self.steps.record(ends.pop(0), self._changes, now)
            turns += made
            rows += sum(len(turn.entries) for turn in made)
            if made and (made[-1].outcome is not None or self._refused(made[-1:])):
                break
        return turns

    def _some(self) -> list[Message]:
        """Take as many messages as one batch records."""
        some, self._later = self._later[: self._most], self._later[self._most :]
        return some

    def _fire(self, now: Instant) -> tuple[list[Turn], list[StepVerb]]:
        grace = self._grace_ends
        if grace is not None and grace <= now:
            journal = self._execution.journal
            if journal.undo_asked and journal.compensations and not journal.compensating:
                return [self._execution.apply(CANCEL, entries.CancelRequested(True), now)], []
            if self._workflow.told_of_cancels:
                return [self._execution.conclude(now)], []
            turn = Turn()
            turn.outcome = Outcome(Ending.CANCELLED)
            return [turn], []
        turn = self._execution.fire(now)
        return [turn], [] if turn.outcome is not None else self.steps.due(now)

    async def _wait(self, due: Instant | None, now: Instant) -> None:
        """Wait for the end of a body, or for a time to come."""
        seconds = [] if due is None else [(due - now) / 1e6]
        if self._ends_at is not None:
            seconds.append(self._ends_at - self._loop.time())
        try:
            async with asyncio.timeout(max(min(seconds), 0) if seconds else None):
                await self._woken.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            with suppress(StoreError):
                await self._evicted(self._clock.now())
            raise

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that drives a turn from a plain callback of the event loop."""
        called: asyncio.Future[T] = self._loop.create_future()

        def call() -> None:
            if called.cancelled():
                return
            try:
                called.set_result(function(*args))
            except Exception as error:
                called.set_exception(error)

        self._loop.call_soon(call)
        return await called

    # What is made durable.

    async def _commit(self, turns: Sequence[Turn], outcome: Outcome | None, begins: bool) -> None:
        changes, space = self._changes, self._space
        self._changes = Changes()
        renewed = outcome is not None and outcome.ending is Ending.RENEWED
        for turn in turns:
            for first, end in turn.trims:
                space.trim(changes, first, end)
            space.record(changes, turn.entries)  # those that a trim is not to touch were recorded after it
            for number in turn.consumed:
                space.delete(changes, self._rows[number])
            if turn.effects is not None:
                self._put_effects(changes, turn)
        self._put_letters(changes)
        if renewed:
            assert outcome is not None
            self._put_new_life(changes, turns[-1], outcome)
        else:
            space.set_state(changes, self._state(outcome, begins or any(turn.started for turn in turns)))
        if outcome is not None and outcome.ending is Ending.COMPLETED:
            changes.put(keys.OUTPUT, (outcome.payload or "null").encode())
        elif outcome is not None and outcome.error is not None:
            changes.put(keys.ERROR, encoded(outcome.error))
        if keys.ABOUT not in space.stored:
            changes.put(keys.ABOUT, encoded(self._about))
            changes.put(keys.INPUT, self._options.input)
        await self._write(changes)
        self.steps.batch_made()
        for turn in turns:
            for level, line, values, _ in turn.logs:
                _logger.log(level, "run %s: " + line, self._about.id, *values)

    async def _write(self, changes: Changes) -> None:
        """Make changes durable; from before the first of them on the run is due, in case this process dies."""
        driver, first = self._space.driver, bool(changes) and not self._due
        if first:
            self._due = True
            await wake_by(driver, self._clock.now())
        await self._space.commit(changes)
        if first and driver.compares:  # the driver before this one may have set it since; it has no batch any more
            await wake_by(driver, self._clock.now())

    def _put_effects(self, changes: Changes, turn: Turn) -> None:
        effects, space = turn.effects, self._space
        assert effects is not None
        if effects.attributes:
            stored = changes.puts.get(keys.ATTRIBUTES) or space.stored.get(keys.ATTRIBUTES) or b"{}"
            attributes = read_value(_attributes, keys.ATTRIBUTES, stored)
            for name, value in effects.attributes.items():
                attributes.pop(name, None)
                if value is not None:
                    attributes[name] = msgspec.Raw(value.encode())
            changes.put(keys.ATTRIBUTES, encoded(attributes))
        count = space.count(keys.TRAIL) + sum(key.startswith(keys.TRAIL) for key in changes.puts)
        for item in effects.evidence:
            before = changes.puts.get(keys.numbered(keys.TRAIL, count)) or space.last(keys.TRAIL)
            previous = read_value(_evidence, keys.TRAIL, before).hash if before is not None else ""
            count += 1
            fields = (self._about.id, count, item.id, item.kind, item.data, item.at)
            row = EvidenceRow(
                run=self._about.id, n=count, id=item.id, kind=item.kind, data=item.data, at=item.at,
                previous=previous, hash=chained(previous, *fields),
            )  # fmt: skip
            changes.put(keys.numbered(keys.TRAIL, count), encoded(row))
        for reply in effects.replies:
            changes.put(keys.answer_key(reply.message), reply.payload.encode())

    def _put_letters(self, changes: Changes) -> None:
        number = self._space.count(keys.LETTER) if self.steps.letters else 0
        for path, attempts, error in self.steps.letters:
            number += 1
            letter = {"step": path, "attempts": attempts, "error": error, "at": self._clock.now()}
            changes.put(keys.numbered(keys.LETTER, number), encoded(letter))
        self.steps.letters.clear()

    def _put_new_life(self, changes: Changes, turn: Turn, outcome: Outcome) -> None:
        """Replace the history by the first entries of the next life."""
        self._about = msgspec.structs.replace(self._about, generation=self._about.generation + 1)
        self._first = first_entries(turn.carried, self._clock.now())
        self._space.renew(changes, self._first)
        changes.put(keys.ABOUT, encoded(self._about))
        changes.put(keys.INPUT, (outcome.payload or "{}").encode())

    async def _renewed(self) -> list[Turn]:
        await self._space.finish_renewal()
        self._later = [*self._execution.unread(), *self._later]
        self.steps.drop()
        self._execution.drop()
        self._execution = self._made(self._first[0].at)
        self.steps.open_batch()
        return [await self._call(self._execution.begin, self._first, self._some())]

    def _state(self, outcome: Outcome | None, begins: bool) -> StoredState:
        if outcome is not None:
            return StoredState(state=outcome.ending.value)
        if self.steps.busy or begins:
            return StoredState(state="running")
        until, names = self._next_due(), self._names
        return StoredState(state="waiting" if names else "sleeping", until=until, waits_for=names)

    # Acting on what is durable.

    def _act(self, turns: Sequence[Turn], begin: Sequence[StepVerb]) -> None:
        for turn in turns:
            for verb in turn.abandoned:
                self.steps.abandon(verb.location)
        for verb in [*begin, *_started(turns)]:
            if self._over:
                self._unbegun.append(verb)
            else:
                self.steps.begin(verb)

    async def _keep(self, turns: Sequence[Turn]) -> None:
        """Record what steps achieved before the code could not go on, and hand back what is under way."""
        *before, last = turns
        kept = Turn()
        kept.entries = [row for row in last.entries[:1] if row.kind in _RESULTS]
        left = await self._call(self.steps.hand_back, self._clock.now(), _started(before))
        if before or kept.entries or left.entries:
            left.outcome = None
            await self._commit([*before, kept, left], None, False)

    def _refused(self, turns: Sequence[Turn]) -> str | None:
        """Return what a turn asks for that needs more than one run, None if nothing."""
        path, limits = self._execution.journal.names.path, self._options.limits
        for turn in turns:
            for child in turn.children:
                return f"ctx.child() at {path(child.location)!r} {_ALONE}"
            for verb in turn.started:
                if not isinstance(verb, StepVerb):
                    return f"ctx.{verb.word}() at {path(verb.location)!r} {_ALONE}"
                settings = verb.activity.settings
                if verb.activity.queue is not None:
                    return f"step {path(verb.location)!r} asks for queue {verb.activity.queue!r}, which {_ALONE}"
                if settings.transaction:
                    return f"step {path(verb.location)!r} asks for transaction=True, which {_ALONE}"
                if settings.limit is not None and not limits.is_own(settings.limit):
                    return f"step {path(verb.location)!r} asks for limit {settings.limit!r}, which {_ALONE}"
        return None

    # Where it stands.

    @property
    def _over(self) -> bool:
        return self._ends_at is not None and self._loop.time() >= self._ends_at

    @property
    def _names(self) -> list[str]:
        receivers = (self._execution.journal.receivers or {}).values()
        return sorted({name for verb in receivers for name in verb.names})

    @property
    def _grace_ends(self) -> Instant | None:
        journal = self._execution.journal
        if journal.cancelling is None or journal.compensating or journal.run.conclusion is not None:
            return None
        return journal.cancelling + self._options.grace

    def _next_due(self) -> Instant | None:
        dues = (self._execution.next_due(), self.steps.next_due(), self._grace_ends)
        return min((due for due in dues if due is not None), default=None)

    def _is_near(self, due: Instant | None, now: Instant) -> bool:
        """Whether the run goes on so soon that it is worth waiting for, and by nothing that may come before."""
        return due is not None and due - now <= self._options.patience and not self._names

    def _parked(self, due: Instant | None) -> Standing[R]:
        until, names = None if due is None else to_datetime(due), tuple(self._names)
        return Standing("waiting" if names else "sleeping", self._about.id, until=until, waits_for=names)

    async def _evicted(self, now: Instant) -> Standing[R]:
        turn = await self._call(self.steps.hand_back, now, self._unbegun)
        changes = self._changes
        self._space.record(changes, turn.entries)
        await self._write(changes)
        return Standing("evicted", self._about.id, until=to_datetime(now))

    def _ended(self, outcome: Outcome) -> Standing[R]:
        return ended_standing(self._about, self._workflow, outcome.ending.value, outcome.payload, outcome.error)

    def _numbered(self, found: Sequence[tuple[bytes, StoredMessage]]) -> list[Message]:
        """Return what was delivered as a run's inbox has it."""
        rows: list[Message] = []
        for key, message in found:
            number = len(self._rows) + 1
            self._rows[number] = key
            kind, payload = InboxKind.MESSAGE, read_text(key, message.payload)
            if message.kind in ("cancel", "compensate"):
                kind, payload = InboxKind.CANCEL, COMPENSATE if message.kind == "compensate" else ""
            elif message.kind != "message":
                continue
            rows.append(Message(number, kind, message.name, message.id, payload, message.at))
        return rows


_RESULTS = frozenset({entries.StepCompleted.kind, entries.StepFailure.kind})
_ALONE = "needs what one run in a key space of its own has not: run it on an Engine"


def _started(turns: Sequence[Turn]) -> list[StepVerb]:
    """Return the steps that the code called."""
    return [verb for turn in turns for verb in turn.started if isinstance(verb, StepVerb) and not verb.recalled]


def ended_standing(
    about: About, workflow: Workflow[..., R], state: str, output: str | bytes | None, error: ErrorData | None
) -> Standing[R]:
    """Return the standing of a run that has ended."""
    if state == "completed":
        where = f"the result of workflow {workflow.name!r}"
        return Standing("completed", about.id, codec.decode(output or "null", workflow.result_type, where))
    return Standing("failed" if state == "failed" else "cancelled", about.id, error=error)
