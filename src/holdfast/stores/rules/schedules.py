"""Schedules: each tick starts its runs exactly once, whichever worker comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.contract.operations import Done, DropSchedule, Outcome, PauseSchedule, PutSchedule, Refused, Tick
from holdfast.contract.turns import Audit

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


class ScheduleRules:
    """The schedules, for one operation."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def apply(self, operation: PutSchedule | PauseSchedule | DropSchedule) -> Outcome:
        """Create, change, pause or forget a schedule."""
        await self._batch.flush()
        statements = self._batch.statements
        if isinstance(operation, PauseSchedule):
            row = (operation.id, int(operation.paused), operation.next, operation.at)
            count = await statements.change("pause_schedule", row)
            return Done(count) if count else Refused(None)
        if isinstance(operation, DropSchedule):
            count = await statements.change("delete_schedule", (operation.id,))
            return Done(count) if count else Refused(None)
        put = (operation.id, operation.workflow, operation.spec, operation.input, operation.next)
        await statements.write("put_schedule", [(*put, int(operation.paused), operation.at)])
        return Done(1)

    async def tick(self, operation: Tick) -> Outcome:
        """Start the runs of a tick, unless another worker had it."""
        batch = self._batch
        await batch.flush()
        rows = await batch.statements.read("get_schedule", [(operation.schedule,)])
        if not rows or rows[0][0] != operation.expected or rows[0][1]:
            return Refused(None, "tick")
        last = str(rows[0][2]) if rows[0][2] is not None else None
        runs = operation.runs
        previous = await batch.named(last) if last is not None else None
        if runs and previous is not None and previous.ended is None:
            if operation.overlap == "skip":
                runs = []
            elif operation.overlap == "cancel" and operation.cancel is not None:
                await batch.operators.apply(msgspec.structs.replace(operation.cancel, target=previous.id))
        started, rejected = [], []
        for run in runs:
            if await batch.taken(run) is not None:
                continue
            lane = run.options.lane
            if lane is not None and await batch.lanes.refusal(run.workflow, lane, run.at):
                detail = msgspec.json.encode({"reason": "full", "run": run.id}).decode()
                said = Audit(actor=run.options.actor or "", action="schedule.skip", detail=detail)
                await batch.trails.audit(said, operation.schedule, operation.at)
                rejected.append(run.id)
                continue
            await batch.insert(run, None, None)
            started.append(run.id)
            last = run.id
        await batch.statements.write("tick_schedule", [(operation.schedule, operation.next, last, operation.at)])
        return Done(len(started), tuple(started), rejected=tuple(rejected))
