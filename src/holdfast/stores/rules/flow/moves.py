"""Runs that move to another runtime: taken from their worker in one commit, and tombstones once they have arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.contract.moves import (
    ArriveRuns,
    ExpectRuns,
    FinishMove,
    ForgetArrival,
    GiveUpMove,
    Leaving,
    MarkMoving,
    MoveRow,
    Moving,
)
from holdfast.contract.operations import Done, Outcome, Refused
from holdfast.contract.rows import InboxKind, Status
from holdfast.contract.turns import Send
from holdfast.stores.rules.flow.arrivals import ArrivalRules
from holdfast.stores.sql.tables import StoredRun, record_of

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_AT_REST = frozenset({Status.PAUSED, Status.BLOCKED})


def refusal_of(send: Send, target: StoredRun | None) -> tuple[str, str]:
    """Return why a message that is sent in vain is refused, in a word, and as the sender's entry says it."""
    reason = "missing" if target is None else str(target.status) if target.ended is not None else "full"
    words = send.refusals.get(reason, send.refusals["missing"])
    if target is None or reason != Status.MOVED:
        return reason, words
    before, moved, after = words.rpartition(f'"{reason}"')
    reason = f"{reason} {target.wait}"
    return reason, before + msgspec.json.encode(reason).decode() + after if moved else words


class MoveRules:
    """The moves of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def apply(self, operation: Moving) -> Outcome:
        """Do one step of a move."""
        match operation:
            case MarkMoving():
                return await self._mark(operation)
            case ExpectRuns():
                return await ArrivalRules(self._batch).expect(operation)
            case ArriveRuns():
                return await ArrivalRules(self._batch).arrive(operation)
            case ForgetArrival():
                return await ArrivalRules(self._batch).forget(operation)
        run = await self._batch.named(operation.target)
        if run is None:
            return Refused(None)
        move = await self._move_of(run)
        if move is None or move.arrives or move.token != operation.token:
            return Done(0) if isinstance(operation, GiveUpMove) else Refused(Status(run.status), "moved")
        if run.status != Status.MOVING:
            return Done(0)
        return (
            await self._finish(run, operation)
            if isinstance(operation, FinishMove)
            else await self._give_up(run, move, operation)
        )

    async def _mark(self, operation: MarkMoving) -> Outcome:
        batch = self._batch
        await batch.flush()
        together = {leaving.id: leaving for leaving in operation.runs}
        runs = [await batch.named(id) for id in together]
        going = [run for run in runs if run is not None and await self._may_go(run, together[run.id])]
        if len(going) < len(together) or not await self._is_whole(going):
            first = runs[0] if runs else None
            return Refused(Status(first.status) if first is not None else None, "moved")
        for run in going:
            await self._take(run, together[run.id], operation)
            if operation.audit is not None and run.id != operation.target:
                await batch.trails.audit(operation.audit, run.id, operation.at)
        return Done(len(going), tuple(run.id for run in going))

    async def _may_go(self, run: StoredRun, seen: Leaving) -> bool:
        """Whether a run is as it was seen, and at rest: nothing of it is under way that could still tell."""
        if run.ended is not None or run.owner is not None or run.place or run.decided is not None:
            return False
        if run.epoch != seen.epoch or run.status not in _AT_REST:
            return False
        told = any(row.kind == InboxKind.TASK_ENDED for row in await self._batch.unread(run))
        return not told and not await self._batch.statements.read("read_tasks", [(run.key,)])

    async def _is_whole(self, runs: list[StoredRun]) -> bool:
        """Whether no open parent and no open child stays behind."""
        batch, keys = self._batch, {run.key for run in runs}
        for run in runs:
            parent = await batch.run(run.parent_key) if run.parent_key else None
            if parent is not None and parent.ended is None and parent.key not in keys:
                return False
            for row in await batch.statements.read("open_children", [(run.id,)]):
                if batch.adopt(row).key not in keys:
                    return False
        return True

    async def _take(self, run: StoredRun, seen: Leaving, operation: MarkMoving) -> None:
        batch = self._batch
        if run.side_rows:
            await batch.free(run, operation.at)
            batch.events.forget(run)
            batch.forget_side_rows(run)
        run.status, run.wait = Status.MOVING, operation.address
        run.due, run.claims = None, 0
        run.epoch += 1
        batch.touch(run, operation.at)
        row = (run.key, operation.token, operation.address, run.inbox, int(seen.paused), seen.until, operation.at)
        await batch.statements.write("put_move", [row])

    async def _finish(self, run: StoredRun, operation: FinishMove) -> Outcome:
        batch = self._batch
        if run.inbox > operation.seen:
            return Refused(Status.MOVING, "inbox")
        batch.consume(run, [row.n for row in await batch.unread(run)])
        run.status, run.ended, run.fingerprint, run.lost = Status.MOVED, operation.at, None, ""
        batch.touch(run, operation.at)
        return Done(1)

    async def _give_up(self, run: StoredRun, move: MoveRow, operation: Moving) -> Outcome:
        batch = self._batch
        await batch.flush()
        await batch.statements.write("delete_move", [(run.key,)])
        run.status, run.due, run.wait = Status.PENDING, batch.beginning(run, operation.at), ""
        if any(row.kind == InboxKind.CANCEL for row in await batch.unread(run)):
            run.status = Status.CANCELLING
        elif move.paused:
            run.status, run.due = Status.PAUSED, move.until
        run.epoch += 1
        batch.note_woken(run)
        batch.touch(run, operation.at)
        return Done(1)

    async def _move_of(self, run: StoredRun) -> MoveRow | None:
        await self._batch.flush()
        rows = await self._batch.statements.read("read_move", [(run.key,)])
        return record_of(MoveRow, rows[0]) if rows else None
