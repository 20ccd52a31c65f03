"""Ticks of schedules: each due tick starts its run exactly once, however many engines look."""

from __future__ import annotations

import logging

import msgspec

from holdfast.changes import Change
from holdfast.clock import Instant, new_seed, to_datetime
from holdfast.contract.operations import Done, RequestCancel, Tick
from holdfast.contract.rows import ScheduleRow
from holdfast.contract.turns import NewRun, RunOptions
from holdfast.definitions import Registry
from holdfast.engine.runs.ends import Rules, in_its_lane
from holdfast.errors import BadInput, DefinitionError
from holdfast.events import Events
from holdfast.ops.port import Port
from holdfast.payloads.codec import error_to_data
from holdfast.schedules.times import ScheduleSpec, due_ticks, jittered, next_tick, not_overlapping, run_id
from holdfast.schedules.view import readable_spec, spec_of

_logger = logging.getLogger("holdfast.engine")

_UNKNOWN_TICK = 60_000_000
"""When to look again at a schedule whose timetable cannot be read, in microseconds."""


class Ticker:
    """Starts the runs of schedules whose workflows an engine has; the others are left to other engines."""

    def __init__(self, port: Port, registry: Registry, unread: Events) -> None:
        self._port = port
        self._registry = registry
        self._events = unread
        self._put_off: dict[str, tuple[Instant, Instant]] = {}
        """Schedules that could not be started: when they had been changed last, and when to try again."""

    async def tick(self) -> Instant | None:
        """Start what is due now and return when to come back; None if nothing of ours is scheduled.

        Coming back at once (an instant that is past) means that more is due than one commit should hold.
        """
        now, known = self._port.clock.now(), set(self._registry.names())
        for row in await self._port.store.schedules(now):
            if row.workflow in known and not self._is_put_off(row, now):
                try:
                    await self._start_due(row, now)
                except (BadInput, DefinitionError) as error:
                    self._report(row, error, now)
        rows = [row for row in await self._port.store.schedules() if row.workflow in known and not row.paused]
        self._put_off = {row.id: self._put_off[row.id] for row in rows if row.id in self._put_off}
        return min((instant for row in rows if (instant := self._instant(row)) is not None), default=None)

    async def _start_due(self, row: ScheduleRow, now: Instant) -> None:
        assert row.next is not None
        spec = spec_of(row)
        due, upcoming = due_ticks(spec, row.next, now)
        runs = [self._due_run(row, spec, tick) for tick in not_overlapping(due, spec.overlap)]
        cancel = None
        if spec.overlap == "cancel":
            unread = self._events.unread
            rules = {name: self._events.get(name).rule(now) for name in unread}
            cancel = RequestCancel(target="", at=now, unread=dict(unread), rules=rules)
        operation = Tick(
            schedule=row.id,
            expected=row.next,
            next=upcoming,
            # The last run may be this tick's own, if the schedule was changed while it ticked: it must go on.
            runs=[run for run in runs if run.id != row.last_run],
            overlap=spec.overlap,
            at=now,
            cancel=cancel,
        )
        self._put_off.pop(row.id, None)
        outcome = await self._port.apply(operation)
        _logger.debug("schedule %s: %d due, %s", row.id, len(due), type(outcome).__name__)
        for run in outcome.rejected if isinstance(outcome, Done) else ():
            said = {"schedule": row.id, "reason": "full"}
            self._port.notify(
                Change(type="schedule.skipped", at=to_datetime(now), run_id=run, workflow=row.workflow, data=said)
            )

    def _due_run(self, row: ScheduleRow, spec: ScheduleSpec, tick: Instant) -> NewRun:
        options = RunOptions(begins=jittered(spec, row.id, tick), actor=actor_of(row.id))
        return self.new_run(row, run_id(row.id, tick), options)

    def new_run(self, row: ScheduleRow, run_id: str, options: RunOptions) -> NewRun:
        """Return a run of a schedule, with its input as the code at hand takes it."""
        definition = self._registry.get(row.workflow)
        # Through the types of today's code, so that it is the input that starting the run by hand would give.
        args, kwargs = definition.decode_input(row.input)
        encoded, digest = definition.encode_input(tuple(args), kwargs)
        if definition.flow is not None:
            options = msgspec.structs.replace(options, lane=definition.lane(encoded))
        run = NewRun(
            id=run_id,
            workflow=definition.name,
            version=definition.version,
            input=encoded,
            digest=digest,
            seed=new_seed(),
            at=self._port.clock.now(),
            options=options,
            hooked=definition.told_of_cancels,
        )
        return in_its_lane(run, Rules.of(self._events)) if options.lane is not None else run

    def _report(self, row: ScheduleRow, error: Exception, now: Instant) -> None:
        """Tell that a schedule cannot be started, and let it rest until its next tick."""
        spec = readable_spec(row)
        again = None if spec is None else next_tick(spec, now)
        self._put_off[row.id] = (row.updated, again if again is not None else now + _UNKNOWN_TICK)
        _logger.error("schedule %s cannot start workflow %s: %s", row.id, row.workflow, error)
        data = {"schedule": row.id, "error": error_to_data(error).brief()}
        self._port.notify(
            Change(type="run.blocked", at=to_datetime(now), workflow=row.workflow, status="blocked", data=data)
        )

    def _is_put_off(self, row: ScheduleRow, now: Instant) -> bool:
        changed, again = self._put_off.get(row.id, (None, 0))
        return changed == row.updated and now < again

    def _instant(self, row: ScheduleRow) -> Instant | None:
        if row.next is None:
            return None
        changed, again = self._put_off.get(row.id, (None, 0))
        return max(row.next, again) if changed == row.updated else row.next


def actor_of(schedule: str) -> str:
    """Return the actor by which all runs of a schedule are found; who asked for one is in the audit trail."""
    return f"schedule:{schedule}"
