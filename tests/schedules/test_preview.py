"""The next ticks of a schedule: local times, and a word where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, workflow
from holdfast.clock import from_datetime
from holdfast.errors import BadInput, InvalidSchedule, NoSuchSchedule
from holdfast.looking import LocalDesk
from holdfast.schedules.preview import preview
from holdfast.schedules.times import spec
from holdfast.testing import TestEngine


@workflow
async def report(ctx: Context) -> None: ...


def told(cron: str, after: datetime, n: int, timezone: str = "Europe/Berlin") -> list[tuple[str, str]]:
    at = from_datetime(after)
    ticks = preview(spec(cron=cron, timezone=timezone, now=at), at, n)
    return [(f"{tick.local:%d %H:%M%z}", tick.change) for tick in ticks]


SPRING, AUTUMN = datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC)


def test_a_time_that_does_not_exist_ticks_at_the_end_of_the_gap_and_says_so():
    assert told("30 2 * * *", SPRING, 3) == [("28 02:30+0100", ""), ("29 03:00+0200", "skipped"), ("30 02:30+0200", "")]
    at = from_datetime(SPRING)
    notes = [tick.note for tick in preview(spec(cron="30 2 * * *", timezone="Europe/Berlin", now=at), at, 3)]
    assert notes == ["", "02:30 does not exist that day: clocks go forward from 02:00 to 03:00", ""]


def test_ticks_that_are_left_out_in_a_gap_are_told_at_the_next_one():
    found = told("*/30 * * * *", datetime(2026, 3, 29, 0, 20, tzinfo=UTC), 3)
    assert found == [("29 01:30+0100", ""), ("29 03:00+0200", "skipped"), ("29 03:30+0200", "")]


def test_a_time_that_comes_twice_says_which_it_is():
    assert told("30 2 * * *", AUTUMN, 2) == [("25 02:30+0200", "repeated"), ("26 02:30+0100", "")]
    found = told("30 * * * *", datetime(2026, 10, 24, 23, 45, tzinfo=UTC), 3)
    assert found == [("25 02:30+0200", "repeated"), ("25 02:30+0100", "repeated"), ("25 03:30+0100", "")]
    at = from_datetime(AUTUMN)
    [tick] = preview(spec(cron="30 2 * * *", timezone="Europe/Berlin", now=at), at, 1)
    assert tick.note == "02:30 comes twice that day, as clocks go back: this is the first time"


def test_a_day_on_which_clocks_change_says_nothing_of_other_times():
    assert told("0 12 * * *", SPRING, 2) == [("28 12:00+0100", ""), ("29 12:00+0200", "")]
    assert told("0 12 * * *", AUTUMN + timedelta(hours=12), 1) == [("25 12:00+0100", "")]
    assert told("30 2 29 3 *", datetime(2026, 4, 1, tzinfo=UTC), 1) == [("29 02:30+0200", "")]
    assert told("30 2 * * *", SPRING, 2, "UTC") == [("28 02:30+0000", ""), ("29 02:30+0000", "")]


async def test_a_schedule_and_a_timetable_are_previewed_by_engine_and_desk():
    start = datetime(2026, 3, 28, 12, tzinfo=UTC)
    async with TestEngine(workflows=[report], start=start) as engine:
        engine.store.clock = engine.jumping
        desk = LocalDesk(engine.store)
        await engine.schedules.put(
            "nightly", report, cron="30 2 * * *", timezone="Europe/Berlin", jitter=timedelta(hours=1)
        )
        ticks = await engine.schedules.preview("nightly", 2)
        assert [tick.at for tick in ticks] == [
            datetime(2026, 3, 29, 1, tzinfo=UTC),
            datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
        ]
        assert ticks[0].change == "skipped"
        assert all(tick.at <= tick.begins_at < tick.at + timedelta(hours=1) for tick in ticks)
        assert await desk.preview("nightly", 2) == ticks
        await engine.schedules.pause("nightly")
        assert await desk.preview("nightly", 2) == ticks
        every = await engine.schedules.preview(every=timedelta(hours=5), n=2)
        assert [tick.at - start for tick in every] == [timedelta(hours=5), timedelta(hours=10)]
        assert await desk.preview(every=timedelta(hours=5), n=2) == every
        for asked in (engine.schedules, desk):
            with pytest.raises(NoSuchSchedule):
                await asked.preview("other")
            with pytest.raises(InvalidSchedule, match="cron, every: give one of the two, not neither"):
                await asked.preview()
            with pytest.raises(BadInput, match="not both"):
                await asked.preview("nightly", cron="0 2 * * *")
            with pytest.raises(BadInput, match="n must be between 1 and 1,000, not 0"):
                await asked.preview("nightly", 0)
