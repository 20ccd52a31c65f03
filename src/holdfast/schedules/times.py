"""When a schedule ticks: the arithmetic of cron lines and intervals, without a clock or a store.

A cron line has five fields (minute, hour, day of month, month, day of week) or six, with seconds *first*. Its ticks are
wall-clock times of the schedule's time zone. When clocks change it does what Debian's cron does:

- five fields that name hours and minutes (`30 2 * * *`) tick once a day, whatever the clocks do: a time that is skipped
  ticks at the end of the gap, a time that occurs twice ticks the first time;
- lines whose minute or hour begins with `*`, and all lines of six fields, tick whenever local time matches: not at all
  in a gap, twice when an hour is repeated.

Where clocks change by half an hour (only on Lord Howe Island), a line of the second kind may lose ticks on that day.

An interval counts from its anchor in real time and knows no time zone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from holdfast.clock import FAR_FUTURE, Instant, from_datetime, micros, to_datetime
from holdfast.errors import InvalidDuration, InvalidSchedule
from holdfast.texts import refuse_text

CatchUp = Literal["latest", "all", "none"]
Overlap = Literal["skip", "allow", "cancel"]

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
STILL_ON_TIME = 60_000_000
"""A tick less late than this, in microseconds, is started even when nothing missed is caught up."""

_SECOND = 1_000_000
_LONGEST_LINE = 200


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule ticks and what becomes of missed ticks; made by `spec`, kept as JSON in the store.

    Exactly one of `cron` and `every_us` is set. There are no ticks before `anchor` and none after `end`.
    """

    cron: str | None = None
    every_us: int | None = None
    timezone: str = "UTC"
    anchor: Instant
    jitter_us: int = 0
    catch_up: CatchUp = "latest"
    overlap: Overlap = "skip"
    end: Instant | None = None
    catch_up_limit: int = 1000


def spec(
    *,
    cron: str | None = None,
    every: timedelta | None = None,
    timezone: str = "UTC",
    jitter: timedelta = timedelta(0),
    catch_up: CatchUp = "latest",
    overlap: Overlap = "skip",
    starting: datetime | None = None,
    until: datetime | None = None,
    now: Instant,
) -> ScheduleSpec:
    """Check what a user said about a schedule and return it as a record.

    Args:
        cron: five fields, six with seconds first, or one of the aliases (`@daily`).
        every: the interval, counted from `starting`.
        timezone: the IANA name of the zone whose wall clock a cron line means.
        jitter: each tick is put off by a fixed part of this, different for each schedule and tick.
        catch_up: what to start after an outage: the `latest` missed tick, `all` of them, or `none`.
        overlap: what to do at a tick while the run of the last one is open.
        starting: no tick is earlier; now, when left out.
        until: no tick is later. It may be past: such a schedule is over, and declaring it again does no harm.

    Raises:
        InvalidSchedule: something means nothing; the message begins with the field.
    """
    if (cron is None) == (every is None):
        raise InvalidSchedule(f"cron, every: give one of the two, not {'neither' if cron is None else 'both'}")
    checked = ScheduleSpec(
        cron=None if cron is None else _checked_line(cron),
        every_us=None if every is None else _checked_interval(every),
        timezone=_checked_zone(timezone),
        anchor=now if starting is None else _checked_moment(starting, "starting"),
        jitter_us=_checked_duration(jitter, "jitter"),
        catch_up=_checked_choice(catch_up, "catch_up", CatchUp),
        overlap=_checked_choice(overlap, "overlap", Overlap),
        end=None if until is None else _checked_moment(until, "until"),
    )
    if checked.every_us is not None and checked.jitter_us > checked.every_us:
        raise InvalidSchedule(f"jitter: {jitter!r} is longer than the interval, so ticks would overtake each other")
    if starting is not None and until is not None and until < starting:
        raise InvalidSchedule(f"until: {until.isoformat()} is before starting, {starting.isoformat()}")
    if checked.cron is not None and _after(checked, checked.anchor - 1) is None:
        raise InvalidSchedule(f"cron: {cron!r} matches no date in the 50 years after {to_datetime(checked.anchor)}")
    return checked


def next_tick(spec: ScheduleSpec, after: Instant) -> Instant | None:
    """Return the first tick strictly after an instant; None if there is none before `end` or the year's end of 9999."""
    tick = _after(spec, max(after, spec.anchor - 1))
    return None if tick is None or (spec.end is not None and tick > spec.end) else tick


def due_ticks(spec: ScheduleSpec, next: Instant, now: Instant) -> tuple[list[Instant], Instant | None]:
    """Return the ticks to start now, oldest first, and the tick to wait for after them.

    `next` is the tick the schedule waits for. Nothing is due before it. Of several due ticks, `latest` starts the last;
    `none` too, but only if it is less than a minute late; `all` starts each, at most `catch_up_limit` at a time: when
    more are due, the tick to wait for is the first of those, and asking again at once gives them. However long the
    outage, the work is bounded by that limit.
    """
    if now < next:
        return [], next
    if spec.catch_up == "all":
        due: list[Instant] = []
        waiting: Instant | None = next
        while waiting is not None and waiting <= now and len(due) < spec.catch_up_limit:
            due.append(waiting)
            waiting = next_tick(spec, waiting)
        return due, waiting
    last = _last_tick(spec, next, now)
    late = spec.catch_up == "none" and now - last >= STILL_ON_TIME
    return [] if late else [last], next_tick(spec, last)


def ticks_between(spec: ScheduleSpec, start: Instant, end: Instant, limit: int) -> list[Instant]:
    """Return the first `limit` ticks with start <= tick < end, for a backfill.

    Ticks before the schedule's anchor count: it is the past that is filled. To go on, ask again from the last + 1.
    """
    ticks: list[Instant] = []
    tick = _after(spec, max(start, 0) - 1)
    last = end - 1 if spec.end is None else min(end - 1, spec.end)
    while tick is not None and tick <= last and len(ticks) < limit:
        ticks.append(tick)
        tick = _after(spec, tick)
    return ticks


def not_overlapping(ticks: list[Instant], overlap: Overlap) -> list[Instant]:
    """Return which of several ticks that are due at once have runs: what they would leave if they came one by one."""
    return {"skip": ticks[:1], "cancel": ticks[-1:], "allow": ticks}[overlap]


def run_id(schedule: str, tick: Instant) -> str:
    """Return the id of the run of a tick: the schedule's id and the tick in UTC, in ISO's basic form."""
    moment = to_datetime(tick)
    fraction = f".{moment.microsecond:06d}" if moment.microsecond else ""
    return f"{schedule}:{moment:%Y%m%dT%H%M%S}{fraction}Z"


def jittered(spec: ScheduleSpec, schedule_id: str, tick: Instant) -> Instant:
    """Return when to begin what a tick starts: put off by less than the jitter, the same in every engine."""
    digest = blake2b(f"{tick}/{schedule_id}".encode(), digest_size=8).digest()
    return tick + (spec.jitter_us * int.from_bytes(digest) >> 64)


def _after(spec: ScheduleSpec, after: Instant) -> Instant | None:
    """Return the first tick strictly after an instant, before the anchor too and beyond the end."""
    if after >= FAR_FUTURE:
        return None
    if spec.every_us is not None:
        tick = after + spec.every_us - (after - spec.anchor) % spec.every_us
        return tick if tick <= FAR_FUTURE else None
    # In the second of two equal hours cronsim answers with the first one's ticks, which are past: go on from there.
    return next((tick for tick in _cron_ticks(spec, after) if tick > after), None)


def _cron_ticks(spec: ScheduleSpec, after: Instant) -> Iterator[Instant]:
    from cronsim import CronSim  # when the first line of cron is read, not whenever this is imported

    assert spec.cron is not None
    try:
        for moment in CronSim(spec.cron, to_datetime(after).astimezone(zone_of(spec.timezone))):
            tick = from_datetime(moment)
            if tick > FAR_FUTURE:
                return
            yield tick
    except OverflowError:  # the calendar ends
        return


def _last_tick(spec: ScheduleSpec, known: Instant, now: Instant) -> Instant:
    """Return the last tick that is not later than now, given one that is not.

    By bisection and not by cronsim's way backwards, which overlooks the tick of an hour that is being repeated.
    """
    now = now if spec.end is None else max(min(now, spec.end), known)
    if spec.every_us is not None:
        return max(known, now - (now - spec.anchor) % spec.every_us)
    seconds = range(known // _SECOND, now // _SECOND + 1)
    too_late = bisect_right(seconds, now, key=lambda second: _after(spec, second * _SECOND) or FAR_FUTURE + 1)
    return known if too_late == 0 else max(known, _after(spec, seconds[too_late - 1] * _SECOND) or known)


def zone_of(name: str) -> tzinfo:
    """Return a time zone by its IANA name.

    Raises:
        InvalidSchedule: there is none of that name here.
    """
    if name == "UTC":
        return UTC  # which needs no database of time zones, and is what cronsim is fastest with
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        known = zoneinfo.available_timezones()
        if not known:
            reason = "this machine has no time zone database; install your system's tzdata, or `pip install tzdata`"
        else:
            from difflib import get_close_matches  # for this error only

            by_lower = {zone.lower(): zone for zone in sorted(known)}
            close = get_close_matches(name.lower(), by_lower, n=1)
            hint = f"did you mean {by_lower[close[0]]!r}?" if close else "use an IANA name such as 'Europe/Berlin'"
            reason = f"no time zone has that name; {hint}"
        raise InvalidSchedule(f"timezone: {name!r}: {reason}") from error


def _checked_zone(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidSchedule(f"timezone: must be an IANA name such as 'Europe/Berlin', not {name!r}")
    if name:
        refuse_text(name, "timezone", error=InvalidSchedule)
    if name == "localtime":
        raise InvalidSchedule("timezone: 'localtime' is another zone on each machine; use its IANA name")
    zone_of(name)
    return name


def _checked_line(line: Any) -> str:
    if not isinstance(line, str) or len(line) > _LONGEST_LINE:
        given = f", not {len(line):,}" if isinstance(line, str) else ""
        raise InvalidSchedule(f"cron: must be text of at most {_LONGEST_LINE} characters{given}, such as '0 6 * * MON'")
    if line:
        refuse_text(line, "cron", longest=_LONGEST_LINE, printable=False, error=InvalidSchedule)
    from cronsim import CronSim, CronSimError  # as above

    fields = " ".join(line.split())
    if fields.startswith("@"):
        alias = ALIASES.get(fields.lower())
        if alias is None:
            raise InvalidSchedule(f"cron: {line!r} is not one of {' '.join(ALIASES)}; for an interval use every=")
        return alias
    try:
        CronSim(fields, datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidSchedule(
            f"cron: {line!r}: {str(error).lower()}; five fields are minute, hour, day of month, month and day of week, "
            "six begin with the second"
        ) from error
    return fields


def _checked_interval(every: timedelta) -> int:
    interval = _checked_duration(every, "every")
    if interval == 0:
        raise InvalidSchedule("every: an interval must be longer than zero")
    return interval


def _checked_duration(duration: timedelta, field: str) -> int:
    try:
        return micros(duration, field)
    except InvalidDuration as error:
        raise InvalidSchedule(str(error)) from error


def _checked_moment(moment: datetime, field: str) -> Instant:
    try:
        instant = from_datetime(moment, field)
    except InvalidDuration as error:
        raise InvalidSchedule(str(error)) from error
    if not 0 <= instant <= FAR_FUTURE:
        raise InvalidSchedule(f"{field}: {moment!r} is outside the years 1970 to 9999")
    return instant


def _checked_choice(value: Any, field: str, choices: Any) -> Any:
    if value not in get_args(choices):
        raise InvalidSchedule(f"{field}: {value!r} is not one of {', '.join(get_args(choices))}")
    return value
