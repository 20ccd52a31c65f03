"""The next ticks of a schedule for people: with the local time, and a note where clocks change.

Arithmetic without a clock or a store, like `schedules/times.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec

from holdfast.clock import Instant, from_datetime, to_datetime
from holdfast.contract.rows import ScheduleRow
from holdfast.errors import BadInput
from holdfast.schedules.times import ScheduleSpec, jittered, next_tick, ticks_between, zone_of
from holdfast.schedules.times import spec as checked_spec
from holdfast.schedules.view import spec_of
from holdfast.texts import shown

_DAY = 24 * 3600 * 1_000_000
_SECOND = 1_000_000
_MOST = 1_000
_LARGEST_BACKFILL = 100_000


class TickPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A tick to come."""

    at: datetime
    """In UTC."""
    local: datetime
    """In the time zone of the schedule."""
    begins_at: datetime
    """When its run begins: later than the tick by a part of the jitter."""
    change: str = ""
    """Whether clocks change here: `skipped`, the time that was meant does not exist; `repeated`, it comes twice."""
    note: str = ""
    """The same in words."""


def preview(
    spec: ScheduleSpec, after: Instant, n: int, *, id: str = "", first: Instant | None = None
) -> list[TickPreview]:
    """Return the next ticks after an instant, at most `n`; `first` is the one that the schedule waits for, if known."""
    zone = zone_of(spec.timezone) if spec.cron is not None else UTC
    ticks: list[TickPreview] = []
    last, tick = after, first if first is not None else next_tick(spec, after)
    while tick is not None and len(ticks) < n:
        change, note = _clock_change(spec, zone, last, tick)
        ticks.append(
            TickPreview(
                at=to_datetime(tick),
                local=to_datetime(tick).astimezone(zone),
                begins_at=to_datetime(jittered(spec, id, tick)),
                change=change,
                note=note,
            )
        )
        last, tick = tick, next_tick(spec, tick)
    return ticks


def _clock_change(spec: ScheduleSpec, zone: tzinfo, last: Instant, tick: Instant) -> tuple[str, str]:
    if spec.cron is None or zone is UTC:
        return "", ""
    local = to_datetime(tick).astimezone(zone)
    if local.replace(fold=1 - local.fold).utcoffset() != local.utcoffset():
        which = "second" if local.fold else "first"
        return "repeated", f"{local:%H:%M} comes twice that day, as clocks go back: this is the {which} time"
    gap = _gap(zone, max(last, tick - _DAY), tick)
    if gap is None:
        return "", ""
    # What the line means, on a clock that never changes.
    begins, ends = (from_datetime(moment.replace(tzinfo=UTC)) for moment in gap)
    plain = msgspec.structs.replace(spec, timezone="UTC", anchor=0, end=None)
    meant = ticks_between(plain, begins, ends, 2)
    if not meant:
        return "", ""
    said = (
        f"{to_datetime(meant[0]):%H:%M}" if len(meant) == 1 else f"what lies between {gap[0]:%H:%M} and {gap[1]:%H:%M}"
    )
    return "skipped", f"{said} does not exist that day: clocks go forward from {gap[0]:%H:%M} to {gap[1]:%H:%M}"


def _gap(zone: tzinfo, start: Instant, end: Instant) -> tuple[datetime, datetime] | None:
    """Return between which times on the wall there are none, if clocks go forward after `start`, by `end`."""

    def offset(at: Instant) -> timedelta:
        return to_datetime(at).astimezone(zone).utcoffset() or timedelta(0)

    before = offset(start)
    if offset(end) <= before:
        return None
    low, high = start // _SECOND, end // _SECOND
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if offset(middle * _SECOND) > before else (middle, high)
    moment = to_datetime(high * _SECOND)
    return (moment + before).replace(tzinfo=None), moment.astimezone(zone).replace(tzinfo=None)


def previewed(row: ScheduleRow | None, now: Instant, n: object, timetable: Mapping[str, Any]) -> list[TickPreview]:
    """Return the next ticks of a schedule or, where `row` is None, of a timetable by the options of `Schedules.put`.

    A paused schedule gives those that it would have if it went on now.

    Raises:
        UndecodablePayload, InvalidSchedule: the timetable means nothing.
        BadInput: both are given, or `n` is no number from 1 to 1,000.
    """
    if not isinstance(n, int) or not 1 <= n <= _MOST:
        raise BadInput(f"n must be between 1 and {_MOST:,}, not {shown(n)}")
    if row is None:
        return preview(checked_spec(now=now, **timetable), now, n)
    if timetable.get("cron") is not None or timetable.get("every") is not None:
        raise BadInput("preview a schedule by its id, or a timetable by cron= or every=, not both")
    first = row.next if not row.paused else None
    return preview(spec_of(row), now, n, id=row.id, first=first) if row.next is not None or row.paused else []


def ticks_to_fill(row: ScheduleRow, start: datetime, end: datetime, limit: int, now: Instant) -> list[Instant]:
    """Return the ticks of a schedule from `start` on and before `end`, none of which is later than now.

    Raises:
        BadInput: there are more than `limit`, or it is no number from 1 to 100,000.
        UndecodablePayload, InvalidSchedule: the timetable means nothing here.
    """
    if not 1 <= limit <= _LARGEST_BACKFILL:
        raise BadInput(f"limit must be between 1 and {_LARGEST_BACKFILL:,}, not {limit!r}")
    first, last = from_datetime(start, "start"), from_datetime(end, "end")
    ticks = ticks_between(spec_of(row), first, min(last, now + 1), limit + 1)
    if len(ticks) > limit:
        raise BadInput(f"schedule {row.id!r} has more than {limit:,} ticks in that time; backfill shorter periods")
    return ticks
