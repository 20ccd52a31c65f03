"""One group commit as a value: operations applied in order to rows in memory, then written in a few statements.

The rules of the contract are here and in the files beside this one, once for every database. A store begins a
transaction with no other writer, passes a `Statements` that reads and writes rows one by one or in bulk, and commits;
both ways give the same result.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.contract.limits import LimitAnswer, PauseLimit, PutLimit
from holdfast.contract.moves import Moving
from holdfast.contract.operations import (
    Acknowledge,
    Beat,
    BeatTask,
    Committed,
    Delivered,
    DropSchedule,
    Existing,
    Fenced,
    FinishTask,
    InboxMoved,
    KeepResult,
    KeyAnswer,
    KeyHeld,
    Nudge,
    Operation,
    Outcome,
    Pause,
    PauseSchedule,
    PauseWork,
    Purge,
    PutOnRecord,
    PutSchedule,
    Refused,
    Reopen,
    ReplayEvent,
    RequestCancel,
    SendMessage,
    SetAttributes,
    Started,
    Terminate,
    Tick,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import FROM_OPERATOR, UNDECIDED, InboxKind, Message, RunPlace, Status
from holdfast.contract.tokens import WriteToken
from holdfast.contract.turns import (
    CommitTurn,
    NewRun,
    PublishEvent,
    RunEnd,
    Send,
    StartRun,
    State,
    TurnEffects,
)
from holdfast.stores.rules.events import EventRules
from holdfast.stores.rules.fence import may_write
from holdfast.stores.rules.flow.lanes import LaneRules
from holdfast.stores.rules.flow.moves import refusal_of
from holdfast.stores.rules.flow.pauses import pause_work
from holdfast.stores.rules.inboxes import Inboxes
from holdfast.stores.rules.keys import KeyRules
from holdfast.stores.rules.letters import LetterRules
from holdfast.stores.rules.limits.rules import LimitRules
from holdfast.stores.rules.operators import OperatorRules
from holdfast.stores.rules.purge import PurgeRules
from holdfast.stores.rules.schedules import ScheduleRules
from holdfast.stores.rules.tasks import TaskRules
from holdfast.stores.rules.tokens import write_token
from holdfast.stores.rules.trails import TrailRules
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import StoredRun

DRIVEN = frozenset({Status.PENDING, Status.RUNNING, Status.CANCELLING, Status.COMPENSATING})
"""What a worker must be driving: a run in one of these without a living owner is due."""

_KEPT = frozenset({InboxKind.MESSAGE, InboxKind.NOTICE})
"""Inbox rows that a failed or cancelled run keeps, for when it is reopened."""


class Batch(Inboxes):
    """A batch being applied.

    What concerns more than one run has its rules in modules of its own; they share its rows and do not keep it.
    Rules that read tables which earlier operations of the batch may have changed call `flush` first.
    """

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        # Otherwise the rows of each batch would stay until a full garbage collection, which is rare.
        batch = weakref.proxy(self)
        self.events = EventRules(batch)
        self.keys = KeyRules(batch)
        self.lanes = LaneRules(batch)
        self.letters = LetterRules(batch)
        self.limits = LimitRules(batch)
        self.operators = OperatorRules(batch)
        self.tasks = TaskRules(batch)
        self.trails = TrailRules(batch)

    async def apply(self, operations: Sequence[Operation], prefetch: bool = True) -> list[Outcome]:
        """Apply operations in order and write what they changed."""
        if prefetch:
            await self._prefetch(operations)
        outcomes = [await self._apply(operation) for operation in operations]
        await self.flush()
        return outcomes

    async def _apply(self, operation: Operation) -> Outcome:
        match operation:
            case CommitTurn():
                run = self._runs.get(operation.key) or await self.run(operation.key)
                if not may_write(run, operation.epoch):
                    return Fenced(operation.key)
                if operation.inbox is not None and operation.inbox != run.inbox:
                    return InboxMoved(operation.key)
                return await self._commit(run, operation)
            case StartRun():
                started = await self._start(operation)
                if operation.audit is not None and isinstance(started, Started):
                    await self.trails.audit(operation.audit, operation.run.id, operation.run.at)
                return started
            case SendMessage():
                sent = await self._send(operation)
                return sent if operation.audit is None else await self.trails.told(operation, operation.target, sent)
            case PublishEvent():
                sent = await self.events.publish(operation)
                return sent if operation.audit is None else await self.trails.told(operation, operation.name, sent)
            case Beat():
                return await self.tasks.beat(operation)
            case FinishTask() | BeatTask():
                return await self.tasks.apply(operation)
            case KeepResult():
                return await self.keys.keep(operation)
            case Acknowledge() | ReplayEvent():
                outcome = await self.letters.apply(operation)
                return await self.trails.audited(operation.audit, operation.letter, operation.at, outcome)
            case Purge():
                outcome = await PurgeRules(self).apply(operation)
                target = operation.run or operation.what
                return await self.trails.audited(operation.audit, target, operation.at, outcome)
            case PutSchedule() | PauseSchedule() | DropSchedule():
                outcome = await ScheduleRules(self).apply(operation)
                return await self.trails.audited(operation.audit, operation.id, operation.at, outcome)
            case PauseWork():
                outcome, target = await pause_work(self, operation), f"{operation.kind} {operation.name}"
                return await self.trails.audited(operation.audit, target, operation.at, outcome)
            case WriteToken():
                outcome = await write_token(self, operation)
                return await self.trails.audited(operation.audit, f"token {operation.id}", operation.at, outcome)
            case Tick():
                return await ScheduleRules(self).tick(operation)
            case PutLimit() | PauseLimit():
                outcome = await self.limits.apply(operation)
                return await self.trails.audited(operation.audit, operation.name, operation.at, outcome)
            case Terminate():
                outcome = await self.operators.terminate(operation)
                return await self.trails.audited(operation.audit, operation.target, operation.end.at, outcome)
            case (
                RequestCancel() | Pause() | Unpause() | Nudge() | Reopen() | SetAttributes() | Unblock() | Moving()
                | PutOnRecord()
            ):  # fmt: skip
                outcome = await self.operators.apply(operation)
                target = operation.target or getattr(operation, "workflow", "")
                return await self.trails.audited(operation.audit, target, operation.at, outcome)
            case _:
                return await self.limits.apply(operation)

    # Starting.

    async def _start(self, operation: StartRun) -> Started | Existing | KeyHeld | Refused:
        taken = await self.taken(operation.run)
        if taken is not None:
            return taken
        lane = operation.run.options.lane
        if lane is not None and (refusal := await self.lanes.refusal(operation.run.workflow, lane, operation.run.at)):
            return Refused(None, refusal)
        owner = operation.run.owner
        parent = operation.run.parent
        run = await self.insert(
            operation.run, owner if owner and await self.lives(owner) else None, parent.key if parent else None
        )
        if owner:
            run.status, run.epoch = Status.RUNNING, 1
        return Started(run.key, await self._commit(run, operation.turn) if operation.turn else None)

    async def taken(self, new: NewRun) -> Existing | KeyHeld | None:
        """Return why a run cannot be inserted."""
        existing = await self.named(new.id)
        if existing is not None:
            return Existing(existing.key, existing.workflow, existing.digest, Status(existing.status))
        if new.id not in self._purged:
            await self._load_tombstones([new.id])
        purged = self._purged[new.id]
        if purged is not None and purged[2] > new.at:
            return Existing(0, purged[0], purged[1], None)
        if new.options.unique_key is not None:
            holder = await self.holder(new.workflow, new.options.unique_key)
            if holder is not None:
                return KeyHeld(holder.key, holder.id)
        return None

    async def holder(self, workflow: str, unique_key: str) -> StoredRun | None:
        """Return the open run that has a unique key."""
        fresh = self._unique.get((workflow, unique_key))
        if fresh is not None and fresh.ended is None and not fresh.decided:
            return fresh
        for row in await self.statements.read("run_by_unique", [(workflow, unique_key)]):
            found = self.adopt(row)
            if found.ended is None and not found.decided:
                return found
        return None

    def take_unique_key(self, run: StoredRun) -> None:
        """Note that a run has its unique key from here on."""
        if run.unique_key is not None:
            self._unique[run.workflow, run.unique_key] = run

    async def insert(self, new: NewRun, owner: str | None, parent: int | None) -> StoredRun:
        """Insert a run that is due, unless a worker has it, as soon as it may begin."""
        if self._last_key is None:
            rows = await self.statements.read("last_key", [()])
            self._last_key = int(rows[0][0] or 0) if rows else 0
        self._last_key += 1
        options = new.options
        begins = options.begins or new.at
        due = None if owner else begins
        deadline = begins + options.timeout if options.timeout is not None else None
        run = StoredRun(
            key=self._last_key,
            id=new.id,
            workflow=new.workflow,
            version=new.version,
            seed=new.seed,
            digest=new.digest,
            created=new.at,
            updated=new.at,
            due=due,
            owner=owner,
            deadline=deadline,
            parent_key=parent,
            parent_id=new.parent.id if new.parent else None,
            parent_location=new.parent.location if new.parent else None,
            cancel_with_parent=int(options.cancel_with_parent),
            priority=options.priority,
            begins=options.begins,
            timeout=options.timeout,
            unique_key=options.unique_key,
            actor=options.actor,
            tenant=options.tenant,
            conclusion=UNDECIDED if new.hooked else None,
        )
        self._new[run.key] = run
        self.take_unique_key(run)
        self._inputs[run.key] = new.input
        self._attributes.extend((name, value, run.key) for name, value in options.attributes.items())
        self._runs[run.key] = self._ids[run.id] = run
        if options.lane is not None:
            await self.lanes.enter(run, options.lane, new.at)
        return run

    # Turns.

    async def _commit(self, run: StoredRun, turn: CommitTurn) -> Committed:
        key = run.key
        self._woken.clear()
        if turn.renewal is not None:
            if self.letters.written:
                await self.flush()  # they quote the input that is replaced here
            self._forget(key)
            self.events.forget(run)
            if run.side_rows:
                await self.limits.forget(run, turn.at)
            self._inputs[key] = turn.renewal.input
            run.generation = turn.renewal.generation
            self.touch(run, turn.at)
        for first, last in turn.trims:
            self._trim(key, first, last)
        if turn.entries:
            self._entries.extend([(key, *entry) for entry in turn.entries])
        if turn.consumed:
            self.consume(run, turn.consumed)
        refused: dict[str, str] = {}
        refused_child = bool(turn.sends or turn.children) and await self._deliver_all(run, turn, refused)
        keys: dict[str, KeyAnswer] = {}
        given: int | None = None
        limits: dict[str, LimitAnswer] = {}
        if turn.effects is not None:
            given = await self._do_effects(run, turn.effects, turn.at, refused, keys)
            limits = await self.limits.use(run, turn.effects, turn.at, keys)
        if turn.reset_claims and run.claims:
            run.claims = 0
            self.touch(run, turn.at)
        if turn.trial and run.claims and run.claims % 2 == 0:
            run.claims += 1
            self.touch(run, turn.at)
        messages: tuple[Message, ...] = ()
        if turn.state is not None and run.place != RunPlace.WAITS:  # then it has no owner whose state it could be
            messages = await self._change_state(run, turn.state, turn.at)
        if given is not None and turn.state is None:
            messages = await self._unread_beyond(run, given)
        if refused_child and turn.end is None:
            # The parent may be parked by this very commit, and only it can tell its code of the refusal.
            run.due = turn.at if run.place != RunPlace.WAITS else None
            self.touch(run, turn.at)
        if turn.effects is not None and turn.effects.enter is not None:
            await self.lanes.arrive(run, turn.effects.enter, turn.at)
        if turn.end is not None:
            await self.end(run, turn.end)
        if turn.state is not None:
            self._woken.discard(key)  # otherwise its own new rows do not come back with the outcome
        return Committed(key, messages, refused, keys, bool(self._woken), limits)

    async def _deliver_all(self, run: StoredRun, turn: CommitTurn, refused: dict[str, str]) -> bool:
        """Deliver what a turn sends and start its children; return whether a child was refused."""
        refused_child = False
        for send in turn.sends:
            target = await self.named(send.target)
            crowded = target is not None and target.inbox >= send.max_pending and await self._crowded(target, send)
            if target is not None and target.ended is None and not crowded:
                self.put_row(target, send.row(target.inbox + 1), send.at)
                continue
            refused[send.location], words = refusal_of(send, target)
            self._rewrites.append((run.key, send.location, send.seq, words))
        for child in turn.children:
            lane, refusal = child.run.options.lane, ""
            if await self.taken(child.run) is not None:
                refusal = "taken"
            elif lane is not None:
                refusal = await self.lanes.refusal(child.run.workflow, lane, child.run.at, run)
            if not refusal:
                await self.insert(child.run, None, run.key if child.run.parent else None)
                continue
            refused[child.location] = refusal
            refused_child = True
            self._rewrites.append((run.key, child.location, child.seq, child.refusals.get(refusal, child.taken)))
        return refused_child

    async def _do_effects(
        self, run: StoredRun, effects: TurnEffects, at: Instant, refused: dict[str, str], keys: dict[str, KeyAnswer]
    ) -> int | None:
        """Do what few turns ask for; return the inbox number seen if an event was given to this very run."""
        if effects.forget_waits:
            self.events.forget(run)
        for location in effects.unwaits:
            self.events.unwait(run, location)
        for event in effects.publishes:
            if isinstance(await self.events.publish(event), Refused):
                refused[event.location] = "full"
                self._rewrites.append((run.key, event.location, event.seq, event.refusal))
        for n in effects.returns:
            await self.events.give_back(run, n, at)
        given = None
        for wait in effects.waits:
            if await self.events.wait(run, wait, at):
                given = wait.seen
        for leave in effects.leaves:
            await self.keys.leave(run, leave, at)
        for take in effects.takes:
            keys[take.location] = await self.keys.take(run, take, at)
        if effects.untasks or effects.tasks:
            await self.tasks.hand_out(run, effects, keys, at)
        if effects.version and not run.version:
            run.version = effects.version
            self.touch(run, run.updated)
        if effects.attributes:
            await self.operators.set_attributes(run, effects.attributes)
        await self.trails.evidence(run.id, effects.evidence)
        if effects.replies:
            await self.statements.write(
                "insert_replies", [(reply.message, run.key, reply.payload, at) for reply in effects.replies]
            )
        for letter in effects.letters:
            self.letters.work(run, letter, at)
        return given

    async def _change_state(self, run: StoredRun, state: State, at: Instant) -> tuple[Message, ...]:
        self.touch(run, at)
        if state.status == Status.COMPENSATING and run.status != Status.COMPENSATING:
            await self.keys.undo(run)
        run.status, run.wait, run.due, run.fingerprint = state.status, state.wait, state.due, state.fingerprint
        run.conclusion = state.conclusion or run.conclusion
        messages: tuple[Message, ...] = ()
        if run.inbox > state.seen:
            messages = await self._unread_beyond(run, state.seen)
            self._obey(run, [message.kind for message in messages if message.kind in FROM_OPERATOR], at)
        if state.error is not None:
            self._results[run.key] = (None, state.error, None, None)
        if state.released:
            run.owner = None
        if run.status == state.status and run.status in (Status.BLOCKED, Status.PAUSED):
            await self.free(run, at)
        if run.status == Status.BLOCKED:
            run.due = None
            await self.events.give_up(run, at)
        elif run.status in DRIVEN:
            # A holder declared dead may still commit until a worker claims the run; what it drives must not be left
            # with neither an owner nor a due time.
            if run.owner is not None and not await self.lives(run.owner):
                run.owner, run.lost = None, "lapse"
            if run.owner is None and run.due is None:
                run.due = at
        return messages

    def _obey(self, run: StoredRun, acts: Sequence[str], at: Instant) -> None:
        """Keep a turn from undoing what an operator asked for and it has not seen."""
        if run.status != Status.PAUSED or acts:
            run.due = at
        if InboxKind.CANCEL in acts:
            run.status = Status.CANCELLING
        elif acts and acts[-1] == InboxKind.RESUME and run.status == Status.PAUSED:
            run.status = Status.PENDING
        elif acts and acts[-1] == InboxKind.PAUSE and run.status not in (Status.CANCELLING, Status.BLOCKED):
            run.status = Status.PAUSED

    async def end(self, run: StoredRun, end: RunEnd) -> None:
        """End a run: what it has not read goes where its rules say, and its parent is told."""
        self.touch(run, end.at)
        run.status, run.ended, run.fingerprint = end.status, end.at, end.fingerprint
        run.owner = run.due = run.conclusion = None
        run.wait = run.lost = ""
        run.claims = 0
        self._results[run.key] = (end.output, end.error, end.compensation, end.failed_step)
        if run.inbox:
            unread = await self.unread(run)
            # A run that did not complete may be let go on, and finds then what it has not read.
            kept = _KEPT if end.status != Status.COMPLETED else frozenset()
            left = {
                message.n
                for message in unread
                if message.kind in kept and (message.kind == InboxKind.NOTICE or message.name not in end.unread)
            }
            self.consume(run, [message.n for message in unread if message.n not in left])
            await self.events.left_unread(run, unread, end)
        if end.compensation is not None:
            await self.keys.undo(run)
        if run.side_rows:
            await self.free(run, end.at)
            self.events.forget(run)
            self.forget_side_rows(run)
            self.touch(run, end.at)  # publishing what was unread may have written the run before this
        if run.place:
            await self.lanes.leave(run)
        if run.reopens:
            await self.letters.settle(run, end.compensation is not None)
        parent = run.parent_key and await self.run(run.parent_key)
        if parent and parent.ended is None:
            self.put(parent, InboxKind.CHILD_ENDED, run.id, "", end.payload, end.at)
        if end.status == Status.CANCELLED:
            await self.operators.cancel_following(run, end)

    async def free(self, run: StoredRun, at: Instant) -> None:
        """Give up every key and every turn that a run has or waits for: it goes no further for now."""
        if run.side_rows:
            await self.keys.free(run, at)
            await self.limits.forget(run, at)

    # Inboxes.

    async def _send(self, operation: SendMessage) -> Outcome:
        target = await self.named(operation.target)
        if target is None:
            return Refused(None)
        known = (target.key, operation.id)
        if operation.deduplicate and await self.statements.read("known_message", [known]):
            return Delivered(target.key, target.owner, duplicate=True)
        if target.ended is not None and (not operation.dead_letter or target.status == Status.MOVED):
            return Refused(Status(target.status))
        if target.ended is None and target.inbox >= operation.max_pending and await self._crowded(target, operation):
            return Refused(Status(target.status), "full")
        if operation.deduplicate:
            await self.statements.write("remember_message", [(*known, operation.at)])
        if target.ended is not None:
            self.letters.event(operation.row(0), target, operation.at)
            return Delivered(target.key)
        row = self.put_row(target, operation.row(target.inbox + 1), operation.at)
        return Delivered(target.key, target.owner, row)

    async def _crowded(self, run: StoredRun, operation: SendMessage | Send) -> bool:
        """Whether so many messages of this name wait already; counted only where there could be so many."""
        await self.flush()
        oldest = (await self.statements.read("oldest_unread", [(run.key,)]))[0][0]
        if oldest is None or run.inbox - int(oldest) + 1 < operation.max_pending:
            return False
        count = (await self.statements.read("count_unread", [(run.key, operation.name)]))[0][0]
        return int(count or 0) >= operation.max_pending

    async def flush(self) -> None:
        """Write what was changed so far."""
        await self.write_rows(
            [*self.events.pending(), *self.trails.pending(), *self.letters.pending(), *self.limits.pending()]
        )
