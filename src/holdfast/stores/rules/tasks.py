"""Tasks: attempts of steps that wait in a queue for whichever worker serves it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Instant
from holdfast.contract.operations import (
    Beat,
    BeatTask,
    Committed,
    Delivered,
    Fenced,
    FinishTask,
    KeyAnswer,
    Outcome,
    Transact,
)
from holdfast.contract.rows import InboxKind
from holdfast.contract.turns import TurnEffects
from holdfast.stores.rules.fence import may_write
from holdfast.stores.sql.tables import Row, StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


class TaskRules:
    """The tasks of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def hand_out(self, run: StoredRun, effects: TurnEffects, keys: Mapping[str, KeyAnswer], at: Instant) -> None:
        """Let attempts wait for a worker, in place of those at their locations."""
        statements = self._batch.statements
        gone: list[Row] = [(run.key, location) for location in effects.untasks]
        if gone:
            await statements.write("delete_tasks", gone)
            if run.inbox:
                await self._refuse(run, effects.untasks)
            await self._batch.limits.forget_tasks(run, effects.untasks, at)
        self._batch.note_side_rows(run)
        for task in effects.tasks:
            answer = keys.get(task.location)
            if answer is None or answer.outcome == "taken":
                what = (task.attempt, task.queue, task.activity, task.payload, task.priority, at, task.limit_key)
                await statements.write("put_task", [(run.key, task.location, *what)])

    async def _refuse(self, run: StoredRun, locations: Sequence[str]) -> None:
        """Delete what came of attempts just before they were given up: a new life of the run has the same locations."""
        unread = await self._batch.unread(run)
        self._batch.consume(
            run, [each.n for each in unread if each.kind == InboxKind.TASK_ENDED and each.name in locations]
        )

    async def apply(self, operation: FinishTask | BeatTask) -> Outcome:
        """Take what the worker that has a task says of it."""
        batch, statements = self._batch, self._batch.statements
        # The run first: whatever deletes its tasks has it, too.
        run = await batch.run(operation.run)
        place = (operation.run, operation.location)
        rows = await statements.read("get_task", [place])
        mine = rows and rows[0] == (operation.attempt, operation.worker)
        if run is None or run.ended is not None or not mine:
            return Fenced(operation.run)
        if isinstance(operation, BeatTask):
            await statements.write("put_beat", [(*place, operation.at, operation.detail)])
            return Committed(run.key)
        await statements.write("delete_tasks", [place])
        what = (operation.location, str(operation.attempt), operation.payload, operation.at)
        row = batch.put(run, InboxKind.TASK_ENDED, *what)
        if operation.leave is not None:
            await batch.limits.leave(operation.leave, operation.at)
        return Delivered(run.key, run.owner, row)

    async def beat(self, beat: Beat) -> Outcome:
        """Record that a step that its run's owner runs reported progress."""
        batch = self._batch
        run = await batch.run(beat.key)
        if not may_write(run, beat.epoch):
            return Fenced(beat.key)
        batch.note_side_rows(run)
        await batch.statements.write("put_beat", [(run.key, beat.location, beat.at, beat.detail)])
        return Committed(run.key)

    async def may_record(self, attempt: Transact) -> StoredRun | None:
        """Return the run of an attempt that is to run in this transaction, None if it is another's by now."""
        run = await self._batch.run(attempt.run)
        return run if may_write(run, attempt.epoch) and run.generation == attempt.generation else None

    async def record(self, run: StoredRun, attempt: Transact, payload: str, at: Instant) -> Delivered:
        """Tell a run what came of an attempt that ran in this transaction."""
        row = self._batch.put(run, InboxKind.TASK_ENDED, attempt.location, str(attempt.attempt), payload, at)
        await self._batch.flush()
        return Delivered(run.key, run.owner, row)

    async def lose(self, worker: str, how: str, at: Instant | None = None) -> None:
        """Tell the runs whose attempts a worker had that it will not finish them."""
        batch = self._batch
        lost = await batch.statements.read("tasks_of", [(worker,)])
        await batch.load_keys(int(run or 0) for run, _, _ in lost)
        for run, location, attempt in lost:
            waiting = await batch.run(int(run or 0))
            if waiting is not None and waiting.ended is None:
                batch.put(
                    waiting,
                    InboxKind.TASK_ENDED,
                    str(location),
                    str(attempt),
                    f'{{"lost":"{how}"}}',
                    waiting.updated if at is None else at,
                )
        if lost:
            await batch.statements.write("delete_tasks", [(run, location) for run, location, _ in lost])
