"""Using schedules: declaring them, looking at them, pausing them, and starting their runs by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.clock import Instant, new_id
from holdfast.contract.operations import (
    DropSchedule,
    PauseSchedule,
    PutSchedule,
    Refused,
    Started,
)
from holdfast.contract.rows import ScheduleRow
from holdfast.contract.turns import RunOptions, StartRun
from holdfast.definitions import Registry, Workflow, check_run_id, options_given
from holdfast.engine.runs.ends import rejected
from holdfast.errors import InvalidId, NoSuchSchedule, RunRejected
from holdfast.events import Events
from holdfast.ops.port import Port, audited, check_who
from holdfast.patience import patient, within
from holdfast.payloads import codec
from holdfast.schedules.preview import TickPreview, previewed, ticks_to_fill
from holdfast.schedules.ticker import Ticker, actor_of
from holdfast.schedules.times import (
    CatchUp,
    Overlap,
    ScheduleSpec,
    next_tick,
    run_id,
)
from holdfast.schedules.times import spec as checked_spec
from holdfast.schedules.view import Schedule, readable_spec, schedule_of, spec_of
from holdfast.texts import check_text, shown

_LONGEST_ID = 200
"""So that the ids of its runs are not too long."""
_BACKFILL_AT_ONCE = 100


Timetable = list[Schedule]
Ids = list[str]
Ticks = list[TickPreview]


class Schedules:
    """The schedules of a database.

        await engine.schedules.put("nightly", report, "sales", cron="0 2 * * *", timezone="Europe/Berlin")

    The run of a tick has the id of its schedule and the tick in UTC, `nightly:20260131T010000Z`, and the actor
    `schedule:nightly`. An engine starts runs of the workflows it knows and leaves the others to other engines.

    A stored input that does not fit the workflow any more starts nothing. It is logged and told as `run.blocked`, with
    the schedule and the error as `data` and no run id, since there is no run. This engine tries it again at the next
    tick; until an engine can start it the schedule waits, and then makes up for it as `catch_up` says.
    """

    def __init__(self, port: Port, registry: Registry, unread: Events, changed: Callable[[], None]) -> None:
        """Use an engine's port; `changed` is called when a schedule was put, paused or resumed."""
        self._port = port
        self._changed = changed
        self._registry = registry
        self.ticker = Ticker(port, registry, unread)
        """Starts what is due, for an engine that runs workflows."""

    # Declaring.

    @property
    def _call_patience(self) -> float:
        return self._port.patience

    @patient
    async def put(
        self,
        id: str,
        workflow: Workflow[Any, Any] | str,
        /,
        *args: Any,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        jitter: timedelta = timedelta(0),
        catch_up: CatchUp = "latest",
        overlap: Overlap = "skip",
        starting: datetime | None = None,
        until: datetime | None = None,
        by: str | None = None,
        reason: str = "",
        **kwargs: Any,
    ) -> Schedule:
        """Create a schedule, or change the one with that id; declaring it again as it is does nothing.

        While cron line, interval, time zone and beginning stay the same it keeps its next tick. A paused one stays
        paused.

        Args:
            id: names it; the ids of its runs begin with it.
            workflow: what to run, with the arguments that follow; those whose names are taken here go by position.
            cron: five fields, six with seconds first, or an alias such as `@daily`.
            every: the interval, counted from `starting`; the first tick is one interval from now when that is left out.
            timezone: the IANA name of the zone whose wall clock a cron line means.
            jitter: each run begins later by a part of this, different for each schedule and tick.
            catch_up: what to start after an outage: the `latest` missed tick, `all` of them, or `none`.
            overlap: what to do at a tick while the run of the last one is open: `skip` the tick, `allow` both runs, or
                `cancel` the old one. Ticks that are made up for overlap as well: of `all` of them `skip` starts the
                first, `cancel` the last and `allow` each.
            starting, until: no tick is earlier, none is later.
            by, reason: who does this and why, for the audit trail.

        Raises:
            InvalidSchedule: something about the timetable means nothing; the message names it.
            BadInput: the id, the workflow or its arguments do not fit.
        """
        said = options_given(Schedules.put, locals())
        _check_id(id)
        definition = self._registry.registered(workflow, "a schedule")
        definition.refuse_ambiguous("schedules.put", said, len(args))
        timetable = {name: value for name, value in said.items() if name not in ("by", "reason")}
        return await self._declare(id, definition, definition.encode_input(args, kwargs)[0], timetable, by, reason)

    @patient
    async def put_for(
        self,
        by: str,
        id: str,
        workflow: str,
        arguments: Mapping[str, Any] | None,
        timetable: Mapping[str, Any],
        reason: str = "",
    ) -> Schedule:
        """Put a schedule for a person, with the arguments of its runs by name, apart from the options of `put`.

        Without arguments, None, they stay as the schedule of that id has them.

        Raises:
            InvalidSchedule, BadInput: as `put` does.
            NoSuchSchedule: there is none whose arguments could stay.
        """
        _check_id(id)
        definition = self._registry.registered(workflow, "a schedule")
        if arguments is None:
            encoded = (await self._row(id)).input
            definition.decode_input(encoded)
        else:
            encoded, _ = definition.encode_input((), arguments)
        return await self._declare(id, definition, encoded, timetable, by, reason)

    async def _declare(
        self,
        id: str,
        definition: Workflow[Any, Any],
        encoded: str,
        timetable: Mapping[str, Any],
        by: str | None,
        reason: str,
    ) -> Schedule:
        now = self._port.clock.now()
        wanted = checked_spec(now=now, **timetable)
        cron, every = timetable.get("cron"), timetable.get("every")
        detail = {"reason": reason or None, "workflow": definition.name, "cron": cron, "every": every}
        put = PutSchedule(
            id=id,
            workflow=definition.name,
            spec="",
            input=encoded,
            next=None,
            paused=False,
            at=now,
            audit=audited(self._port, by, "schedule.put", **detail),
        )
        return await self._put(put, wanted, timetable.get("starting") is not None)

    async def _put(self, put: PutSchedule, wanted: ScheduleSpec, anchored: bool) -> Schedule:
        """Write a schedule; it keeps the next tick of the one there is if their timetables are the same."""
        row = await self._find(put.id)
        old = None if row is None else readable_spec(row)
        if row is None or old is None or not _same_ticks(old, wanted, anchored):
            upcoming = next_tick(wanted, put.at)
        else:
            wanted = msgspec.structs.replace(wanted, anchor=old.anchor)
            if wanted == old and (row.workflow, row.input) == (put.workflow, put.input):
                return schedule_of(row)
            upcoming = _kept_tick(row.next, old, wanted, put.at)
        spec, paused = codec.encode(wanted).decode(), row is not None and row.paused
        return await self._write(msgspec.structs.replace(put, spec=spec, next=upcoming, paused=paused))

    # Looking and tending.

    @patient
    async def get(self, id: str) -> Schedule:
        """Return one schedule.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        return schedule_of(await self._row(id))

    @patient
    async def list(self) -> Timetable:
        """Return every schedule, by id."""
        return [schedule_of(row) for row in await self._port.store.schedules()]

    @patient
    async def pause(self, id: str, by: str | None = None, reason: str = "") -> Schedule:
        """Let a schedule start nothing until it is resumed.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        check_who(by, reason)
        row = await self._row(id)
        return schedule_of(row) if row.paused else await self._change(row, row.next, True, by, reason)

    @patient
    async def resume(self, id: str, by: str | None = None, reason: str = "") -> Schedule:
        """Let a paused schedule go on with the next tick; those it passed meanwhile are over, see `backfill`.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        check_who(by, reason)
        row = await self._row(id)
        if not row.paused:
            return schedule_of(row)
        return await self._change(row, next_tick(spec_of(row), self._port.clock.now()), False, by, reason)

    @patient
    async def delete(self, id: str, by: str | None = None, reason: str = "") -> None:
        """Forget a schedule; its runs stay.

        Raises:
            NoSuchSchedule: there is none with that id.
        """
        check_text(id, "schedule id", printable=False)
        audit = audited(self._port, by, "schedule.delete", reason=reason or None)
        outcome = await self._port.apply(DropSchedule(id=id, at=self._port.clock.now(), audit=audit))
        if isinstance(outcome, Refused):
            raise NoSuchSchedule(f"there is no schedule {id!r}")

    async def _change(
        self, row: ScheduleRow, upcoming: Instant | None, paused: bool, by: str | None, reason: str
    ) -> Schedule:
        audit = audited(self._port, by, "schedule.pause" if paused else "schedule.resume", reason=reason or None)
        return await self._write(
            PauseSchedule(id=row.id, paused=paused, next=upcoming, at=self._port.clock.now(), audit=audit)
        )

    async def _write(self, operation: PutSchedule | PauseSchedule) -> Schedule:
        await self._port.apply(operation)
        self._changed()
        return schedule_of(await self._row(operation.id))

    async def _row(self, id: str) -> ScheduleRow:
        check_text(id, "schedule id", printable=False)
        row = await self._find(id)
        if row is None:
            raise NoSuchSchedule(f"there is no schedule {id!r}")
        return row

    async def _find(self, id: str) -> ScheduleRow | None:
        return next((row for row in await self._port.store.schedules() if row.id == id), None)

    @patient
    async def preview(
        self,
        id: str | None = None,
        n: int = 20,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
        starting: datetime | None = None,
        until: datetime | None = None,
    ) -> Ticks:
        """Return the next ticks of a schedule, or of a timetable that is none yet, each with its local time.

        Where clocks change it is said of a tick that its time is skipped or comes twice. A paused schedule gives the
        ticks that it would have if it went on now.

        Raises:
            NoSuchSchedule: there is no such schedule.
            InvalidSchedule: something about the timetable means nothing; the message names it.
            BadInput: both are given, or `n` is not between 1 and 1,000.
        """
        row = await self._row(id) if id is not None else None
        timetable = {"cron": cron, "every": every, "timezone": timezone, "starting": starting, "until": until}
        return previewed(row, self._port.clock.now(), n, timetable)

    # Starting by hand.

    @patient
    async def trigger(self, id: str, by: str | None = None, reason: str = "") -> str:
        """Start a run now, outside the timetable, and return its id; a paused schedule is no obstacle.

        Raises:
            NoSuchSchedule: there is none with that id.
            UnknownWorkflow, UndecodablePayload: its workflow is not known here, or the stored input does not fit it.
            RunRejected: the workflow has as many runs as it may, and refuses more.
        """
        check_who(by, reason)
        row = await self._row(id)
        run = self.ticker.new_run(row, f"{id}:{new_id()}", RunOptions(actor=actor_of(id)))
        audit = audited(self._port, by, "schedule.trigger", reason=reason or None, schedule=id)
        outcome = await self._port.apply(StartRun(run=run, audit=audit))
        if isinstance(outcome, Refused) and run.options.lane is not None:
            raise RunRejected(run.id, rejected(run.workflow, run.options.lane))
        return run.id

    async def backfill(
        self, id: str, start: datetime, end: datetime, limit: int = 1000, by: str | None = None, reason: str = ""
    ) -> Ids:
        """Start the runs of past ticks from `start` on and before `end` and return the ids of those that were started.

        A tick whose run was started before, by the timetable or a backfill, is passed over. Overlap does not count.

        Raises:
            NoSuchSchedule: there is none with that id.
            UnknownWorkflow, UndecodablePayload: its workflow is not known here, or the stored input does not fit it.
            BadInput: there are more than `limit` ticks; nothing was started.
        """
        check_who(by, reason)
        row = await within(self._call_patience, self._row(id))
        ticks = ticks_to_fill(row, start, end, limit, self._port.clock.now())
        options = RunOptions(actor=actor_of(id))
        audit = audited(self._port, by, "schedule.backfill", reason=reason or None, schedule=id)
        starts = [StartRun(run=self.ticker.new_run(row, run_id(id, tick), options), audit=audit) for tick in ticks]
        started: Ids = []
        for index in range(0, len(starts), _BACKFILL_AT_ONCE):
            some = starts[index : index + _BACKFILL_AT_ONCE]
            outcomes = await asyncio.gather(*map(self._port.apply, some))
            started += [
                each.run.id for each, outcome in zip(some, outcomes, strict=True) if isinstance(outcome, Started)
            ]
        return started


def _same_ticks(old: ScheduleSpec, new: ScheduleSpec, anchored: bool) -> bool:
    """Whether the timetables are the same; a beginning that is not given is left as it was."""
    same = (old.cron, old.every_us, old.timezone) == (new.cron, new.every_us, new.timezone)
    return same and (not anchored or old.anchor == new.anchor)


def _kept_tick(upcoming: Instant | None, old: ScheduleSpec, new: ScheduleSpec, now: Instant) -> Instant | None:
    """Return the next tick of a timetable of which at most the end has moved."""
    if old.end == new.end:
        return upcoming
    if upcoming is None:
        return next_tick(new, now)
    return upcoming if new.end is None or upcoming <= new.end else None


def _check_id(id: str) -> None:
    try:
        check_run_id(id)
    except InvalidId as error:
        raise InvalidId(str(error).replace("run id", "schedule id", 1)) from None
    if len(id) > _LONGEST_ID:
        raise InvalidId(f"schedule id {shown(id)} is longer than {_LONGEST_ID} characters: its runs add the time to it")
