"""The arithmetic of schedules: cron lines, intervals, clock changes, outages."""

from __future__ import annotations

import sys
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.clock import FAR_FUTURE, Instant, from_datetime, to_datetime
from holdfast.errors import BadInput, InvalidSchedule
from holdfast.schedules.times import ScheduleSpec, due_ticks, jittered, next_tick, spec, ticks_between

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR
NOW = from_datetime(datetime(2026, 1, 1, tzinfo=UTC))

LINES = [
    "30 2 * * *", "0 0 * * *", "*/15 * * * *", "0-59 0-23 * * *", "15 1,2,3 * * *", "0 30 2 * * *", "*/20 * * * * *",
    "0 */2 * * MON", "0 12 L * *", "0 0 29 2 *", "0 9 * * MON#1", "* * * * * *",
]  # fmt: skip
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/Havana", "Africa/Cairo", "Asia/Kolkata"]


def local(zone: str, *moment: int, fold: int = 0) -> Instant:
    return from_datetime(datetime(*moment, tzinfo=ZoneInfo(zone), fold=fold))  # type: ignore[misc, arg-type]  # year, month, ...


def cron(line: str, zone: str = "UTC", **changes: object) -> ScheduleSpec:
    return msgspec.structs.replace(spec(cron=line, timezone=zone, now=0), **changes)


def every(seconds: float, **changes: object) -> ScheduleSpec:
    return msgspec.structs.replace(spec(every=timedelta(seconds=seconds), now=NOW), **changes)


def ticks(schedule: ScheduleSpec, after: Instant, count: int) -> list[Instant]:
    found: list[Instant] = []
    while len(found) < count:
        tick = next_tick(schedule, found[-1] if found else after)
        assert tick is not None
        found.append(tick)
    return found


def days(schedule: ScheduleSpec, after: Instant, count: int) -> list[str]:
    """The next ticks in UTC."""
    return [to_datetime(tick).strftime("%m-%d %H:%M") for tick in ticks(schedule, after, count)]


cron_specs = st.builds(cron, st.sampled_from(LINES), st.sampled_from(ZONES))
interval_specs = st.builds(every, st.integers(1, 10**7).map(lambda number: number / 100))
specs = cron_specs | interval_specs
# Around the clock changes of 2026 as well as anywhere.
instants = st.one_of(
    st.integers(0, FAR_FUTURE - 150 * YEAR),  # 32 times the 29 February are to come
    *[
        st.integers(change - 6 * HOUR, change + 6 * HOUR)
        for change in (
            from_datetime(datetime(2026, 3, 29, 1, tzinfo=UTC)),
            from_datetime(datetime(2026, 10, 25, 1, tzinfo=UTC)),
            from_datetime(datetime(2026, 3, 8, 7, tzinfo=UTC)),
            from_datetime(datetime(2026, 11, 1, 6, tzinfo=UTC)),
        )
    ],
)


def test_a_spec_survives_the_store_as_json() -> None:
    """S0-54"""
    schedule = spec(
        cron="@daily",
        timezone="Europe/Berlin",
        jitter=timedelta(minutes=5),
        catch_up="all",
        overlap="cancel",
        starting=datetime(2026, 2, 1, tzinfo=UTC),
        until=datetime(2027, 2, 1, tzinfo=UTC),
        now=NOW,
    )
    assert schedule.jitter_us == 300 * SECOND
    assert msgspec.json.decode(msgspec.json.encode(schedule), type=ScheduleSpec) == schedule


def test_what_is_left_out_has_safe_defaults() -> None:
    """S0-54: one late tick after an outage, no two runs at once, counted from now."""
    schedule = spec(every=timedelta(hours=1), now=NOW)
    assert (schedule.timezone, schedule.anchor, schedule.jitter_us, schedule.end) == ("UTC", NOW, 0, None)
    assert (schedule.catch_up, schedule.overlap, schedule.catch_up_limit) == ("latest", "skip", 1000)


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("cron", {"cron": "61 * * * *"}, "bad minute"),
        ("cron", {"cron": "* * *"}, "five fields"),
        ("cron", {"cron": ""}, "five fields"),
        ("cron", {"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ("cron", {"cron": "* * */20 * 1L"}, "matches no date"),
        ("cron", {"cron": "@reboot"}, "@hourly"),
        ("cron", {"cron": "@every 5m"}, "every="),
        ("cron", {"cron": "0" * 5000 + " * * * *"}, "at most 200"),
        ("cron", {"cron": 5}, "must be text"),
        ("cron, every", {}, "neither"),
        ("cron, every", {"cron": "@daily", "every": timedelta(1)}, "both"),
        ("every", {"every": timedelta(0)}, "longer than zero"),
        ("every", {"every": timedelta(seconds=-1)}, "negative"),
        ("every", {"every": 60}, "timedelta(seconds=60)"),
        ("timezone", {"cron": "@daily", "timezone": "Europe/Berln"}, "'Europe/Berlin'"),
        ("timezone", {"cron": "@daily", "timezone": "america/new_york"}, "'America/New_York'"),
        ("timezone", {"cron": "@daily", "timezone": "Europe"}, "no time zone"),
        ("timezone", {"cron": "@daily", "timezone": "/etc/passwd"}, "no time zone"),
        ("timezone", {"cron": "@daily", "timezone": ""}, "IANA"),
        ("timezone", {"cron": "@daily", "timezone": "localtime"}, "each machine"),
        ("timezone", {"cron": "@daily", "timezone": None}, "IANA"),
        ("jitter", {"cron": "@daily", "jitter": timedelta(-1)}, "negative"),
        ("jitter", {"every": timedelta(seconds=5), "jitter": timedelta(seconds=6)}, "overtake"),
        ("catch_up", {"cron": "@daily", "catch_up": "some"}, "latest, all, none"),
        ("overlap", {"cron": "@daily", "overlap": "queue"}, "skip, allow, cancel"),
        ("starting", {"cron": "@daily", "starting": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 - it is refused
        ("starting", {"cron": "@daily", "starting": datetime(1969, 1, 1, tzinfo=UTC)}, "1970"),
        ("until", {"cron": "@daily", "until": "tomorrow"}, "aware datetime"),
        (
            "until",
            {
                "cron": "@daily",
                "starting": datetime(2026, 5, 1, tzinfo=UTC),
                "until": datetime(2026, 4, 1, tzinfo=UTC),
            },
            "before starting",
        ),
    ],
)
def test_nonsense_is_refused_naming_the_field(field: str, given: dict, words: str) -> None:
    """S0-54, bad input 16"""
    with pytest.raises(InvalidSchedule) as caught:
        spec(**given, now=NOW)
    assert str(caught.value).startswith(field)
    assert words in str(caught.value)
    assert isinstance(caught.value, BadInput)


@given(st.text("0123456789*/-,#LW@? SUNMOJA\x00²", max_size=30))
@example("0 0 * * 1#2/2")
@example("0 0 LW/2 * *")
def test_no_cron_line_makes_anything_but_a_schedule_or_an_invalid_schedule(line: str) -> None:
    """Bad input 16"""
    try:
        schedule = spec(cron=line, now=NOW)
    except InvalidSchedule:
        return
    assert (next_tick(schedule, NOW) or 0) > NOW


def test_a_machine_without_time_zones_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad input 16: UTC needs no database."""
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    try:
        with pytest.raises(InvalidSchedule, match="pip install tzdata"):
            spec(cron="@daily", timezone="Europe/Berlin", now=NOW)
        # A schedule that another machine declared is met by a worker without the database.
        with pytest.raises(InvalidSchedule, match="pip install tzdata"):
            next_tick(ScheduleSpec(cron="0 0 * * *", timezone="Europe/Berlin", anchor=NOW), NOW)
        assert next_tick(spec(cron="@daily", now=NOW), NOW) == NOW + 24 * HOUR
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize(
    ("alias", "first"),
    [
        ("@yearly", "01-01"), ("@annually", "01-01"), ("@monthly", "02-01"), ("@weekly", "01-04"),
        ("@daily", "01-02"), ("@midnight", "01-02"), ("@DAILY", "01-02"), ("@hourly", "01-01 01"),
        (" @Hourly ", "01-01 01"),
    ],
)  # fmt: skip
def test_an_alias_stands_for_its_line(alias: str, first: str) -> None:
    """S0-54"""
    (tick,) = days(spec(cron=alias, now=NOW), NOW, 1)
    assert tick.startswith(first)
    assert tick.endswith(":00")


def test_six_fields_begin_with_the_second() -> None:
    """S0-54"""
    found = ticks(spec(cron="*/20 0 6 * * *", now=NOW), NOW, 4)
    assert [tick - NOW for tick in found] == [6 * HOUR + seconds * SECOND for seconds in (0, 20, 40)] + [30 * HOUR]


@pytest.mark.parametrize(
    ("zone", "day", "end_of_gap", "day_after"),
    [
        ("Europe/Berlin", (2026, 3, 28, 12), "03-29 01:00", "03-30 00:30"),
        ("America/New_York", (2026, 3, 7, 12), "03-08 07:00", "03-09 06:30"),
    ],
)
def test_a_time_that_is_skipped_ticks_at_the_end_of_the_gap(zone: str, day: tuple, end_of_gap: str, day_after: str):
    """S0-54, GUARANTEES row 9: 02:30 does not exist on that day; 03:00 is the first time that does."""
    after = local(zone, *day)
    assert days(cron("30 2 * * *", zone), after, 2) == [end_of_gap, day_after]
    # Several skipped times make one tick, and a tick due at the end of the gap anyway is not repeated.
    assert days(cron("0,15,30 2,3 * * *", zone), after, 2)[0] == end_of_gap
    assert len(ticks_between(cron("0,15,30 2,3 * * *", zone), after, after + 20 * HOUR, 9)) == 3
    # A line that follows the clock on the wall has nothing to match.
    assert days(cron("0 30 2 * * *", zone), after, 1) == [day_after]
    assert days(cron("*/30 2 * * *", zone), after, 2)[1] == day_after


@pytest.mark.parametrize(
    ("zone", "day", "hour", "first", "second", "day_after"),
    [
        ("Europe/Berlin", (2026, 10, 24, 12), 2, "10-25 00:30", "10-25 01:30", "10-26 01:30"),
        ("America/New_York", (2026, 10, 31, 12), 1, "11-01 05:30", "11-01 06:30", "11-02 06:30"),
    ],
)
def test_a_time_that_comes_twice_ticks_once_unless_the_line_follows_the_wall(
    zone: str, day: tuple, hour: int, first: str, second: str, day_after: str
) -> None:
    """S0-54, GUARANTEES row 9"""
    after = local(zone, *day)
    assert days(cron(f"30 {hour} * * *", zone), after, 2) == [first, day_after]
    assert days(cron(f"0 30 {hour} * * *", zone), after, 3) == [first, second, day_after]
    half_past = cron("30 * * * *", zone)
    assert {first, second} < set(days(half_past, after, 20))
    assert {later - earlier for earlier, later in pairwise(ticks(half_past, after, 20))} == {HOUR}


def test_asked_in_the_repeated_hour_the_past_tick_is_neither_next_nor_lost() -> None:
    """S0-54, GUARANTEES row 9: cronsim 2.8 alone answers with the past tick forwards and overlooks it backwards."""
    daily = cron("30 2 * * *", "Europe/Berlin")
    again = local("Europe/Berlin", 2026, 10, 25, 2, 10, fold=1)
    ticked = local("Europe/Berlin", 2026, 10, 25, 2, 30)
    tomorrow = local("Europe/Berlin", 2026, 10, 26, 2, 30)
    assert next_tick(daily, again) == tomorrow
    assert due_ticks(daily, ticked - 25 * HOUR, again) == ([ticked], tomorrow)


def test_an_interval_knows_no_clock_changes() -> None:
    """S0-54, GUARANTEES row 9"""
    start = local("Europe/Berlin", 2026, 3, 28, 12)
    daily = spec(every=timedelta(days=1), timezone="Europe/Berlin", starting=to_datetime(start), now=NOW)
    assert ticks(daily, NOW, 3) == [start, start + 24 * HOUR, start + 48 * HOUR]


def test_an_interval_counts_from_its_start() -> None:
    """S0-54"""
    hourly = spec(every=timedelta(hours=1), now=NOW)
    assert ticks(hourly, NOW, 2) == [NOW + HOUR, NOW + 2 * HOUR]
    assert next_tick(hourly, NOW + HOUR + 7) == NOW + 2 * HOUR
    later = spec(every=timedelta(hours=1), starting=to_datetime(NOW + 90 * SECOND), now=NOW)
    assert ticks(later, NOW, 2) == [NOW + 90 * SECOND, NOW + 90 * SECOND + HOUR]


def test_no_tick_is_before_the_start_or_after_the_end() -> None:
    """S0-54"""
    schedule = spec(
        cron="0 6 * * *",
        starting=datetime(2026, 3, 1, 6, tzinfo=UTC),
        until=datetime(2026, 3, 3, 6, tzinfo=UTC),
        now=NOW,
    )
    assert days(schedule, NOW, 3) == ["03-01 06:00", "03-02 06:00", "03-03 06:00"]
    assert next_tick(schedule, local("UTC", 2026, 3, 3, 6)) is None
    over = spec(cron="@daily", until=to_datetime(NOW - YEAR), now=NOW)
    assert next_tick(over, NOW) is None


@pytest.mark.parametrize("schedule", [cron("@hourly", "Pacific/Kiritimati"), cron("@daily"), every(3600)])
def test_the_calendar_ends_quietly(schedule: ScheduleSpec) -> None:
    """S0-54, GUARANTEES row 9: 9999"""
    last = next_tick(schedule, FAR_FUTURE - 25 * HOUR)
    while last is not None and (tick := next_tick(schedule, last)) is not None:
        last = tick
    assert last is not None
    assert FAR_FUTURE - 25 * HOUR < last <= FAR_FUTURE
    assert next_tick(schedule, FAR_FUTURE) is None
    assert next_tick(schedule, FAR_FUTURE * 3) is None


def test_a_tick_beyond_the_calendar_is_none() -> None:
    """S0-54, GUARANTEES row 9: 9999"""
    assert next_tick(cron("30 * * * *"), FAR_FUTURE - HOUR // 2) is None
    assert next_tick(every(3600), FAR_FUTURE - 1) == FAR_FUTURE
    assert next_tick(every(3600, anchor=NOW + 1), FAR_FUTURE - 1) is None
    assert next_tick(cron("@yearly", "Asia/Tokyo"), local("Asia/Tokyo", 9999, 1, 1)) is None


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize("at", [0, 2**31 * SECOND - SECOND])
def test_the_ends_of_old_clocks_are_nothing_special(zone: str, at: Instant) -> None:
    """GUARANTEES row 9: 1970, 2038"""
    assert ticks(cron("* * * * * *", zone), at - 1, 3) == [at, at + SECOND, at + 2 * SECOND]


@given(specs, instants)
def test_the_next_tick_is_always_later_and_none_lies_between(schedule: ScheduleSpec, after: Instant) -> None:
    """S0-54, GUARANTEES row 9"""
    found = ticks(schedule, after, 4)
    assert after < found[0] < found[1] < found[2] < found[3]
    between = (found[0] + found[1]) // 2
    assert next_tick(schedule, max(after, found[0] - 1)) == found[0]
    assert next_tick(schedule, between) == found[1]


class TestOutages:
    """What is started when the engine looks late."""

    def test_nothing_is_due_before_the_tick(self) -> None:
        """S0-54, G9; also when the clock is set back."""
        assert due_ticks(cron("@hourly"), NOW, NOW - 1) == ([], NOW)
        assert due_ticks(cron("@hourly"), NOW, NOW - YEAR) == ([], NOW)

    @pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
    def test_a_tick_on_time_is_started(self, catch_up: str) -> None:
        """S0-54"""
        for late in (0, 1, 59 * SECOND):
            assert due_ticks(cron("@hourly", catch_up=catch_up), NOW, NOW + late) == ([NOW], NOW + HOUR)

    @pytest.mark.parametrize("schedule", [cron("@hourly"), every(3600)])
    @pytest.mark.parametrize(
        ("catch_up", "started"),
        [("latest", [NOW + 3 * HOUR]), ("none", []), ("all", [NOW + hours * HOUR for hours in range(4)])],
    )
    def test_missed_ticks_are_started_as_the_policy_says(self, schedule, catch_up: str, started: list) -> None:
        """S0-54"""
        schedule = msgspec.structs.replace(schedule, catch_up=catch_up)
        assert due_ticks(schedule, NOW, NOW + 3 * HOUR + 120 * SECOND) == (started, NOW + 4 * HOUR)

    def test_none_starts_the_last_of_many_when_it_is_hardly_late(self) -> None:
        """S0-54"""
        schedule = cron("@hourly", catch_up="none")
        assert due_ticks(schedule, NOW, NOW + 3 * HOUR + 59 * SECOND) == ([NOW + 3 * HOUR], NOW + 4 * HOUR)
        assert due_ticks(schedule, NOW, NOW + 3 * HOUR + 60 * SECOND) == ([], NOW + 4 * HOUR)

    @pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
    @pytest.mark.parametrize("schedule", [cron("* * * * * *", "Europe/Berlin"), every(1)])
    def test_a_year_of_missed_seconds_costs_no_more_than_the_limit(
        self, schedule: ScheduleSpec, catch_up: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """S0-54"""
        asked = []

        class Counted(CronSim):
            def __next__(self) -> datetime:
                asked.append(1)
                return super().__next__()

        monkeypatch.setattr("cronsim.CronSim", Counted)
        schedule = msgspec.structs.replace(schedule, catch_up=catch_up, catch_up_limit=100)
        started, following = due_ticks(schedule, NOW, NOW + YEAR)
        assert len(asked) <= 100
        if catch_up == "all":
            assert started == [NOW + number * SECOND for number in range(100)]
            assert following == NOW + 100 * SECOND
        else:
            assert started == [NOW + YEAR]
            assert following == NOW + YEAR + SECOND

    @pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
    def test_an_ended_schedule_has_no_tick_after_its_end(self, catch_up: str) -> None:
        """S0-54"""
        schedule = every(3600, catch_up=catch_up, end=NOW + 2 * HOUR)
        started, following = due_ticks(schedule, NOW, NOW + YEAR)
        assert started == {"latest": [NOW + 2 * HOUR], "none": [], "all": [NOW, NOW + HOUR, NOW + 2 * HOUR]}[catch_up]
        assert following is None

    @given(cron_specs | st.builds(every, st.integers(1, 10**7)), instants, st.data())
    def test_all_neither_loses_nor_repeats_a_tick_however_the_calls_are_split(
        self, schedule: ScheduleSpec, begin: Instant, data: st.DataObject
    ) -> None:
        """S0-54, GUARANTEES row 9: the clock goes forward and back between the calls."""
        schedule = msgspec.structs.replace(schedule, catch_up="all", catch_up_limit=data.draw(st.integers(1, 5)))
        expected = ticks(schedule, begin, 12)
        looks = data.draw(st.lists(st.integers(begin, expected[8]), max_size=12))
        started: list[Instant] = []
        waiting: Instant | None = expected[0]
        for now in [*looks, *[expected[8]] * 9]:
            assert waiting is not None
            due, waiting = due_ticks(schedule, waiting, now)
            assert all(tick <= now for tick in due)
            started += due
        assert started == expected[:9]
        assert waiting == expected[9]

    @given(specs, instants, st.integers(0, 30), st.integers(0, HOUR))
    def test_latest_is_the_last_of_all(self, schedule: ScheduleSpec, begin: Instant, missed: int, late: int) -> None:
        """S0-54, GUARANTEES row 9"""
        *due, following = ticks(schedule, begin, missed + 2)
        now = min(due[-1] + late, following - 1)
        assert due_ticks(schedule, due[0], now) == ([due[-1]], following)


class TestBackfills:
    """Ticks of a stretch of time."""

    def test_the_past_before_the_schedule_was_made_can_be_filled(self) -> None:
        """S0-54"""
        for schedule in (spec(cron="@hourly", now=NOW), every(3600)):
            assert ticks_between(schedule, NOW - 2 * HOUR, NOW + HOUR, 10) == [NOW - 2 * HOUR, NOW - HOUR, NOW]

    def test_the_limit_cuts_the_end_and_the_rest_can_be_asked_for(self) -> None:
        """S0-54"""
        first = ticks_between(every(3600), NOW, NOW + 5 * HOUR, 3)
        rest = ticks_between(every(3600), first[-1] + 1, NOW + 5 * HOUR, 3)
        assert first + rest == [NOW + hours * HOUR for hours in range(5)]

    def test_an_empty_stretch_has_no_ticks(self) -> None:
        """S0-54"""
        assert ticks_between(every(1), NOW, NOW, 3) == []
        assert ticks_between(every(1), NOW, NOW - HOUR, 3) == []
        assert ticks_between(every(3600, end=NOW), NOW, NOW + YEAR, 3) == [NOW]
        assert ticks_between(cron("@yearly"), -(10**18), 1, 3) == [0]


@given(st.text(), instants, st.integers(0, YEAR))
def test_jitter_is_less_than_asked_for_and_the_same_for_everybody(name: str, tick: Instant, jitter: int) -> None:
    """S0-54"""
    schedule = cron("@daily", jitter_us=jitter)
    moment = jittered(schedule, name, tick)
    assert moment == jittered(schedule, name, tick)
    assert tick <= moment < tick + max(1, jitter)


def test_jitter_spreads_schedules_and_ticks() -> None:
    """S0-54"""
    schedule = cron("@daily", jitter_us=HOUR)
    by_schedule = [jittered(schedule, f"report-{number}", NOW) - NOW for number in range(200)]
    by_tick = [jittered(schedule, "report", NOW + number) - NOW - number for number in range(200)]
    for offsets in (by_schedule, by_tick):
        assert len(set(offsets)) == 200
        assert 0.4 * HOUR < sum(offsets) / 200 < 0.6 * HOUR
