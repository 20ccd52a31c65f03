"""Runs that come from another runtime: a row reserves the id and keeps an inbox from before the run is closed there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.contract.moves import ARRIVES, FROM, ArriveRuns, Arriving, ExpectRuns, ForgetArrival, MoveRow
from holdfast.contract.operations import Done, Existing, Outcome, Refused
from holdfast.contract.rows import InboxKind, Status
from holdfast.contract.turns import NewRun
from holdfast.stores.sql.tables import StoredRun, record_of

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_FORGET = (
    "forget_entries", "purge_inputs", "purge_attributes", "purge_message_ids", "purge_inbox", "delete_move",
    "purge_runs",
)  # fmt: skip


class ArrivalRules:
    """The arrivals of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    # Expecting.

    async def expect(self, operation: ExpectRuns) -> Outcome:
        """Let there be rows for runs that are to come."""
        batch = self._batch
        await batch.flush()
        fresh: list[tuple[NewRun, StoredRun | None]] = []
        for new in operation.runs:
            run = await batch.named(new.id)
            if run is not None and (await self._expected(run, operation.token)) is not None:
                continue
            if (refusal := await self._refusal(new, run, operation)) is not None:
                return refusal
            fresh.append((new, run))
        for new, run in fresh:
            await self._put(new, run, operation)
            if operation.audit is not None and new.id != operation.target:
                await batch.trails.audit(operation.audit, new.id, operation.at)
        return Done(len(fresh), tuple(new.id for new, _ in fresh))

    async def _refusal(self, new: NewRun, run: StoredRun | None, operation: ExpectRuns) -> Refused | None:
        batch = self._batch
        if run is not None and (run.status != Status.MOVED or run.wait != operation.address):
            return Refused(Status(run.status), "taken")
        if run is None and isinstance(known := await batch.taken(new), Existing):
            same = (known.workflow, known.digest) == (new.workflow, new.digest)
            return None if same else Refused(None, "taken")  # one that was purged here may be the one that went there
        unique = new.options.unique_key
        if unique is not None and await batch.holder(new.workflow, unique) is not None:
            return Refused(None, "key")
        return None

    async def _put(self, new: NewRun, run: StoredRun | None, operation: ExpectRuns) -> None:
        batch, returns = self._batch, run is not None
        parent = await batch.named(new.parent.id) if new.parent is not None else None
        if run is None:
            run = await batch.insert(new, None, parent.key if parent is not None else None)
        else:
            batch.take_unique_key(run)
            run.version = new.version
            if parent is not None and run.parent_key != parent.key:
                run.parent_key = parent.key  # its own tombstone is younger than that of its parent, which was purged
                await batch.statements.write("adopt_run", [(run.key, parent.key)])
        run.status, run.wait = Status.MOVING, FROM + operation.address
        run.due, run.ended = None, None
        run.epoch += 1
        batch.touch(run, operation.at)
        await batch.flush()
        await batch.statements.write("delete_move", [(run.key,)])
        row = (run.key, operation.token, operation.address, ARRIVES, int(returns), None, operation.at)
        await batch.statements.write("put_move", [row])

    async def forget(self, operation: ForgetArrival) -> Outcome:
        """Expect a run no more."""
        batch = self._batch
        await batch.flush()
        run = await batch.named(operation.target)
        move = await self._expected(run, operation.token) if run is not None else None
        if run is None or move is None:
            return Done(0)
        batch.consume(run, [row.n for row in await batch.unread(run)])
        if move.paused:
            run.status, run.wait, run.ended = Status.MOVED, move.address, operation.at
            run.epoch += 1
            batch.touch(run, operation.at)
            return Done(1)
        await batch.flush()
        for statement in _FORGET:
            await batch.statements.write(statement, [(run.key,)])
        batch.forget_runs()
        return Done(1)

    # Arriving.

    async def arrive(self, operation: ArriveRuns) -> Outcome:
        """Let runs go on here."""
        batch = self._batch
        await batch.flush()
        runs = [await batch.named(arriving.id) for arriving in operation.runs]
        coming = [run for run in runs if run is not None and await self._expected(run, operation.token) is not None]
        if not coming:
            return Done(0)
        if len(coming) < len(operation.runs):
            return Refused(Status.MOVING, "moved")
        for run, arriving in zip(coming, operation.runs, strict=True):
            await self._bring(run, arriving, operation)
            if operation.audit is not None and run.id != operation.target:
                await batch.trails.audit(operation.audit, run.id, operation.at)
        return Done(len(coming), tuple(run.id for run in coming))

    async def _bring(self, run: StoredRun, arriving: Arriving, operation: ArriveRuns) -> None:
        batch, at = self._batch, operation.at
        batch.bring_history(run, arriving.input, arriving.rows)
        here = await batch.unread(run)
        batch.consume(run, [row.n for row in here])
        known = {*arriving.seen}
        later = [row for row in here if row.kind != InboxKind.MESSAGE or row.id not in known]
        for row in (*arriving.inbox, *later):
            batch.put_row(run, row, at)
        for id in arriving.seen:
            await batch.statements.write("remember_message", [(run.key, id, at)])
        await batch.operators.set_attributes(run, arriving.attributes)
        await batch.trails.evidence(run.id, arriving.evidence)
        await batch.statements.write("delete_results", [(run.key,)])
        await batch.statements.write("delete_move", [(run.key,)])
        stops = any(row.kind == InboxKind.CANCEL for row in later)
        run.status = Status.CANCELLING if stops else arriving.status
        run.due = arriving.until if run.status == Status.PAUSED else at
        run.generation, run.reopens, run.deadline = arriving.generation, arriving.reopens, arriving.deadline
        run.wait = run.lost = ""
        run.claims = 0
        run.epoch += 1
        batch.note_woken(run)
        batch.touch(run, at)

    async def _expected(self, run: StoredRun, token: str) -> MoveRow | None:
        """Return how a run is expected by a token, None if it is not."""
        if run.status != Status.MOVING:
            return None
        rows = await self._batch.statements.read("read_move", [(run.key,)])
        move = record_of(MoveRow, rows[0]) if rows else None
        return move if move is not None and move.arrives and move.token == token else None
