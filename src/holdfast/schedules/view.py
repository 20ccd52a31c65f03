"""A schedule as it is shown, made from its row in the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.clock import to_datetime
from holdfast.contract.rows import ScheduleRow
from holdfast.errors import BadInput
from holdfast.payloads import codec
from holdfast.schedules.times import CatchUp, Overlap, ScheduleSpec, next_tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule as it stood when it was looked at. `next_at` is None when it is over."""

    id: str
    workflow: str
    cron: str | None
    every: timedelta | None
    timezone: str
    starting: datetime
    until: datetime | None
    next_at: datetime | None
    paused: bool
    last_run: str | None
    """The id of the run that the last tick started."""
    overlap: Overlap
    catch_up: CatchUp
    jitter: timedelta
    input: Any = field(repr=False)
    created_at: datetime
    updated_at: datetime


def spec_of(row: ScheduleRow) -> ScheduleSpec:
    """Return the timetable of a schedule.

    Raises:
        UndecodablePayload: another version of holdfast wrote it.
    """
    spec: ScheduleSpec = codec.decode(row.spec, ScheduleSpec, f"the timetable of schedule {row.id!r}")
    return spec


def readable_spec(row: ScheduleRow) -> ScheduleSpec | None:
    """Return the timetable of a schedule, None if it means nothing here."""
    try:
        spec = spec_of(row)
        next_tick(spec, 0)  # its time zone may be unknown here
    except BadInput:
        return None
    return spec


def schedule_of(row: ScheduleRow) -> Schedule:
    """Return a stored schedule in its public form."""
    spec = spec_of(row)
    return Schedule(
        id=row.id,
        workflow=row.workflow,
        cron=spec.cron,
        every=timedelta(microseconds=spec.every_us) if spec.every_us is not None else None,
        timezone=spec.timezone,
        starting=to_datetime(spec.anchor),
        until=to_datetime(spec.end) if spec.end is not None else None,
        next_at=to_datetime(row.next) if row.next is not None else None,
        paused=row.paused,
        last_run=row.last_run,
        overlap=spec.overlap,
        catch_up=spec.catch_up,
        jitter=timedelta(microseconds=spec.jitter_us),
        input=codec.decode(row.input),
        created_at=to_datetime(row.created),
        updated_at=to_datetime(row.updated),
    )
