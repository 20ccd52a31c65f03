"""Acts on a run: cancel, terminate, pause, resume, reopen, describe. One conditional write decides each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

from holdfast.contract.moves import Moving
from holdfast.contract.operations import (
    Delivered,
    Done,
    KeyHeld,
    Nudge,
    Outcome,
    Pause,
    PutOnRecord,
    Refused,
    Reopen,
    RequestCancel,
    SetAttributes,
    Terminate,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import AWAY, COMPENSATE, InboxKind, Message, RunPlace, Status
from holdfast.contract.turns import RunEnd
from holdfast.contract.waits import notes_of
from holdfast.stores.rules.flow.lanes import without_displacing
from holdfast.stores.rules.flow.moves import MoveRules
from holdfast.stores.sql.tables import StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_PAUSING = frozenset({InboxKind.PAUSE, InboxKind.RESUME})
_NOT_PAUSABLE = frozenset({Status.CANCELLING, Status.BLOCKED, Status.MOVING})


class OperatorRules:
    """The operator's verbs, on the rows of a batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def apply(
        self,
        operation: RequestCancel | Pause | Unpause | Nudge | Reopen | SetAttributes | Unblock | Moving | PutOnRecord,
    ) -> Outcome:
        """Do what an operator asked for."""
        match operation:
            case RequestCancel():
                return await self._request_cancel(operation)
            case Pause():
                return await self._pause(operation)
            case Unpause():
                return await self._unpause(operation)
            case Nudge():
                return await self._nudge(operation)
            case Reopen():
                return await self._reopen(operation)
            case SetAttributes():
                run = await self._batch.named(operation.target)
                if run is None or run.status in AWAY:
                    return Refused(Status(run.status) if run else None)
                await self.set_attributes(run, operation.attributes)
                self._batch.touch(run, operation.at)
                return Done(1)
            case Unblock():
                return await self._unblock(operation)
            case Moving():
                return await MoveRules(self._batch).apply(operation)
            case PutOnRecord():
                run = await self._batch.named(operation.target)
                return Done(1) if run is not None else Refused(None)

    # Stopping.

    async def _request_cancel(self, operation: RequestCancel) -> Outcome:
        run = await self._batch.named(operation.target)
        if run is None or run.ended is not None or _is_ending(run):
            return Refused(Status(run.status) if run else None)
        row = await self._cancel(run, operation)
        return Delivered(run.key, run.owner, row)

    async def _cancel(self, run: StoredRun, operation: RequestCancel) -> Message | None:
        batch = self._batch
        if run.status == Status.MOVING:
            return batch.put(run, InboxKind.CANCEL, "", "", COMPENSATE if operation.compensate else "", operation.at)
        begun = run.epoch or run.owner is not None
        if not begun and run.conclusion is None:
            # No worker ever had it: there is no code to tell.
            end = RunEnd(
                status=Status.CANCELLED,
                at=operation.at,
                payload=operation.payload,
                unread=operation.unread,
                rules=operation.rules,
            )
            await batch.end(run, end)
            return None
        if _is_ending(run):
            return None
        if run.place == RunPlace.WAITS:
            await batch.lanes.leave(run)  # stopping needs no place
        row = None
        if run.status != Status.CANCELLING or operation.compensate:
            if run.status == Status.BLOCKED:
                run.claims = 0
            run.status = Status.CANCELLING
            undo = COMPENSATE if operation.compensate else ""
            row = batch.put(run, InboxKind.CANCEL, "", "", undo, operation.at)
            if not begun:
                run.due = operation.at  # whenever it was to begin
        async for child in self._following(run):
            await self._cancel(child, operation)
        return row

    async def cancel_following(self, run: StoredRun, end: RunEnd) -> None:
        """Cancel what is still open of the children that go with their parent."""
        operation = RequestCancel(target="", at=end.at, payload=end.payload, unread=end.unread, rules=end.rules)
        async for child in self._following(run):
            await self._cancel(child, operation)

    async def _following(self, run: StoredRun) -> AsyncIterator[StoredRun]:
        batch = self._batch
        await batch.flush()
        for row in await batch.statements.read("following", [(run.key,)]):
            child = batch.adopt(row)
            if child.ended is None and child.status not in (Status.CANCELLING, Status.MOVING):
                yield child

    async def terminate(self, operation: Terminate) -> Outcome:
        """End a run here and now."""
        run = await self._batch.named(operation.target)
        if run is None or run.ended is not None or run.status == Status.MOVING:
            return Refused(Status(run.status) if run else None)
        if run.decided != operation.decided:
            return Refused(Status(run.status), "decided")
        owners = (run.owner,) if run.owner else ()
        for letter in operation.letters:
            self._batch.letters.work(run, letter, operation.end.at)
        await self._batch.end(run, operation.end)
        if operation.end.status != Status.CANCELLED:
            await self.cancel_following(run, operation.end)
        return Done(1, owners=owners)

    # Pausing.

    async def _pause(self, operation: Pause) -> Outcome:
        batch, run = self._batch, await self._batch.named(operation.target)
        if run is None or run.ended is not None or run.decided or run.status in _NOT_PAUSABLE:
            return Refused(Status(run.status) if run else None)
        if run.owner is not None and await batch.lives(run.owner):
            # Its worker lets what is under way finish, and gives it up then.
            row = batch.put(run, InboxKind.PAUSE, "", "", str(operation.until or ""), operation.at)
            run.status, run.due = Status.PAUSED, operation.at
            return Delivered(run.key, run.owner, row)
        if run.owner is not None:
            run.owner, run.lost = None, "lapse"
            run.epoch += 1
        # What was said before, and no worker has taken, counts no more.
        batch.consume(run, [message.n for message in await batch.unread(run) if message.kind in _PAUSING])
        run.status, run.wait = Status.PAUSED, ""
        run.due = batch.beginning(run, operation.until) if operation.until is not None else None
        if run.place == RunPlace.WAITS:
            await batch.lanes.pause(run, run.due, operation.at)
            run.due = None
        await batch.free(run, operation.at)
        batch.touch(run, operation.at)
        return Done(1)

    async def _unpause(self, operation: Unpause) -> Outcome:
        batch, run = self._batch, await self._batch.named(operation.target)
        if run is None or run.ended is not None:
            return Refused(Status(run.status) if run else None)
        # A pause that no worker has taken yet can be taken back, whatever the row says meanwhile.
        acts = [message.kind for message in await batch.unread(run) if message.kind in _PAUSING]
        told = bool(acts) and acts[-1] == InboxKind.PAUSE and run.status not in _NOT_PAUSABLE
        if run.status != Status.PAUSED and not told:
            return Refused(Status(run.status))
        if run.owner is not None or told:
            run.status = Status.RUNNING if run.owner is not None else Status.PENDING
            row = batch.put(run, InboxKind.RESUME, "", "", "", operation.at)
            run.due = operation.at
            if run.place == RunPlace.WAITS:
                await batch.lanes.resume(run, operation.at)
            return Delivered(run.key, run.owner, row)
        run.status, run.due = Status.PENDING, batch.beginning(run, operation.at)
        if run.place == RunPlace.WAITS:
            await batch.lanes.resume(run, operation.at)
        batch.touch(run, operation.at)
        return Done(1)

    async def _nudge(self, operation: Nudge) -> Outcome:
        batch, run = self._batch, await self._batch.named(operation.target)
        if run is None:
            return Refused(None)
        waiting = [note.step for note in notes_of(run.wait) if note.kind == "retry"]
        named = any(operation.step in ("", step) or not step for step in waiting)
        if run.ended is not None or run.status in (Status.PAUSED, Status.MOVING) or not named:
            return Refused(Status(run.status), "nothing")
        if any(row.kind == InboxKind.NUDGE and row.name == operation.step for row in await batch.unread(run)):
            return Done(0)
        row = batch.put(run, InboxKind.NUDGE, operation.step, "", "", operation.at)
        return Delivered(run.key, run.owner, row)

    # Reopening.

    async def _reopen(self, operation: Reopen) -> Outcome:
        refusal = await self._refuse(operation, {}, {})
        if refusal is not None:
            return refusal
        await self._reopen_all(operation)
        return Done(1)

    async def _refuse(
        self, operation: Reopen, runs: dict[int, StoredRun], holders: dict[tuple[str, str], StoredRun]
    ) -> Refused | KeyHeld | None:
        """Return why a run or one of its children cannot go on; `runs` and `holders` are those that go on with it."""
        run = await self._batch.named(operation.target)
        if operation.letter and not await self._batch.letters.is_open(operation.letter):
            return Refused(None, "letter")
        children = [await self._batch.named(child) for child in operation.unended]
        if any(child is None or child.ended is not None for child in children):
            return Refused(None, "moved")
        gone = run is None or run.ended is None or run.status == Status.MOVED
        if run is None or gone or run.epoch != operation.epoch or run.key in runs:
            return Refused(Status(run.status) if run else None, "moved")
        runs[run.key] = run
        if run.unique_key is not None:
            unique = (run.workflow, run.unique_key)
            holder = holders.get(unique) or await self._batch.holder(*unique)
            if holder is not None:
                return KeyHeld(holder.key, holder.id)
            holders[unique] = run
        for child in operation.children:
            if (refusal := await self._refuse(child, runs, holders)) is not None:
                return refusal
        return None

    async def _reopen_all(self, operation: Reopen) -> None:
        batch = self._batch
        for child in operation.children:
            await self._reopen_all(child)
        run = await batch.named(operation.target)
        assert run is not None
        await batch.flush()
        statements = batch.statements
        await statements.write("archive_entries", [(run.key, run.reopens, operation.cut)])
        for activity, key, location in await statements.read("keys_cut", [(run.key, operation.cut)]):
            if location not in operation.kept:
                await statements.write("delete_key", [(activity, key)])
        await statements.write("cut_entries", [(run.key, operation.cut)])
        await statements.write("delete_results", [(run.key,)])
        if operation.entries:
            await statements.write("insert_entries", [(run.key, *entry) for entry in operation.entries])
        run.status, run.ended, run.due, run.owner = Status.PENDING, None, operation.at, None
        run.wait = run.lost = ""
        run.claims = 0
        run.epoch += 1  # the worker that had it when it was ended must not write to its new life
        run.reopens += 1
        if run.timeout is not None:
            run.deadline = operation.at + run.timeout
        batch.touch(run, operation.at)
        batch.take_unique_key(run)
        if operation.lane is not None:
            await batch.lanes.enter(run, without_displacing(operation.lane), operation.at)
        # What it had taken comes before what it had not read, as it came.
        kept = await batch.unread(run)
        batch.consume(run, [message.n for message in kept])
        for message in (*operation.messages, *kept):
            batch.put_row(run, message, operation.at)
        await batch.letters.replayed(run, operation)

    # The rest.

    async def set_attributes(self, run: StoredRun, attributes: Mapping[str, str | None]) -> None:
        """Set searchable attributes; None removes one."""
        await self._batch.flush()
        statements = self._batch.statements
        for name, value in attributes.items():
            await statements.write("delete_attribute", [(run.key, name)])
            if value is not None:
                await statements.write("insert_attributes", [(name, value, run.key)])

    async def _unblock(self, operation: Unblock) -> Done:
        batch = self._batch
        await batch.flush()
        which = (operation.workflow, operation.fingerprint, operation.target)
        await batch.statements.write("clear_blocked_errors", [which])
        count = await batch.statements.change("unblock", (*which, operation.at))
        if count:
            batch.forget_runs()
        return Done(count)


def _is_ending(run: StoredRun) -> bool:
    """Whether a run undoes what it did, or it is decided how it ends."""
    return run.status == Status.COMPENSATING or run.decided is not None
