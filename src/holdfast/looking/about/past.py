"""Past ticks of a schedule: which have a run, and why the others have none, as far as that is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.clock import Instant, from_datetime, to_datetime
from holdfast.contract.heads import RunHead
from holdfast.contract.rows import ScheduleRow
from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.schedules.times import ScheduleSpec, next_tick, run_id, ticks_between, zone_of
from holdfast.schedules.view import spec_of

MOST = 1_000
PURGED = "purged"
_AT_ONCE = 200


class PastTick(msgspec.Struct, frozen=True, kw_only=True):
    """A tick that is over; a backfill would start the run of one without a `status`."""

    at: datetime
    """In UTC."""
    local: datetime
    """In the time zone of the schedule."""
    run: str
    """The id that its run has, or would have."""
    status: str = ""
    """Of its run, `purged` if that was and its id is still kept from being used again; empty if there is none."""
    note: str = ""
    """Why there is none."""


async def past_ticks(
    store: Store, row: ScheduleRow, start: datetime | None, end: datetime | None, n: int
) -> list[PastTick]:
    """Return the ticks from `start` on and before `end`, or without a `start` the newest, in the order of time.

    Raises:
        BadInput: there are more than `n` of them in that time.
        UndecodablePayload, InvalidSchedule: its timetable means nothing here.
    """
    if not 1 <= n <= MOST:
        raise BadInput(f"n must be between 1 and {MOST:,}, not {n}")
    spec, now = spec_of(row), store.clock.now()
    last = now + 1 if end is None else min(from_datetime(end, "end"), now + 1)
    if start is None:
        ticks = _newest(spec, row.created + 1, last, n)
    else:
        ticks = ticks_between(spec, from_datetime(start, "start"), last, n + 1)
        if len(ticks) > n:
            raise BadInput(f"schedule {row.id!r} has more than {n:,} ticks in that time; ask for a shorter period")
    ids = [run_id(row.id, tick) for tick in ticks]
    known: dict[str, RunHead] = {}
    statuses: dict[str, str] = {}
    for begin in range(0, len(ids), _AT_ONCE):
        some = ids[begin : begin + _AT_ONCE]
        known |= await store.heads_of(some)
        gone = await store.purged([each for each in some if each not in known], now)
        statuses |= dict.fromkeys(gone, PURGED)
    statuses |= {head.id: str(head.status) for head in known.values()}
    zone = zone_of(spec.timezone) if spec.cron is not None else UTC
    runs = [known[each] for each in ids if each in known]
    return [
        PastTick(
            at=to_datetime(tick),
            local=to_datetime(tick).astimezone(zone),
            run=run,
            status=statuses.get(run, ""),
            note="" if run in statuses else _why_none(row, spec, tick, runs),
        )
        for tick, run in zip(ticks, ids, strict=True)
    ]


def _newest(spec: ScheduleSpec, begin: Instant, end: Instant, n: int) -> list[Instant]:
    """Return the last `n` ticks of a time, or fewer of a timetable that is not even."""
    first = next_tick(spec, end)
    second = next_tick(spec, first) if first is not None else None
    gap = second - first if first is not None and second is not None else 24 * 3600 * 1_000_000
    return ticks_between(spec, max(begin, spec.anchor, end - (n + 1) * gap), end, MOST)[-n:]


def _why_none(row: ScheduleRow, spec: ScheduleSpec, tick: Instant, runs: Sequence[RunHead]) -> str:
    if tick < row.created:
        return "it was before the schedule was put"
    open_then = next((run for run in runs if run.created <= tick and (run.ended is None or run.ended > tick)), None)
    if spec.overlap == "skip" and open_then is not None:
        return f"skipped: {open_then.id} was still open"
    return "missed: the schedule was paused, no worker was alive, or its run was purged long ago"
