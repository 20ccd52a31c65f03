"""The filter language: what it reads, and what it says when it cannot."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import from_datetime
from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import TERMINAL, Status
from holdfast.errors import BadFilter, BadInput
from holdfast.looking.query import BadCursor, Query, cursor_at, parse, read_cursor

NOW = from_datetime(datetime(2026, 11, 16, 12, tzinfo=UTC))


def back(**span: int) -> int:
    return NOW - int(timedelta(**span).total_seconds() * 1e6)


def day(text: str, zone: str = "UTC") -> int:
    return from_datetime(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        ("status:failed,blocked", {"statuses": (Status.FAILED, Status.BLOCKED)}),
        ("-status:completed status:completed,failed", {"statuses": (Status.FAILED,)}),
        ("is:open -status:paused", {"statuses": tuple(s for s in Status if s not in {*TERMINAL, Status.PAUSED})}),
        ("workflow:fulfil,report", {"workflows": ("fulfil", "report")}),
        ("-workflow:report", {"not_workflows": ("report",)}),
        ("id:order-88*", {"id_prefix": "order-88"}),
        ("customer=c-2210 size=3", {"attributes": {"customer": '"c-2210"', "size": "3"}}),
        ('customer="3" open=true', {"attributes": {"customer": '"3"', "open": "true"}}),
        ("tenant:acme actor:kim", {"tenant": "acme", "actor": "kim"}),
        ("parent:order-7 version:2 key:o-1", {"parent": "order-7", "version": "2", "unique_key": "o-1"}),
        ('waiting:"message approved"', {"waiting": "message approved"}),
        ("created:-24h", {"created_from": back(hours=24)}),
        ("created:-24h..-2h", {"created_from": back(hours=24), "created_until": back(hours=2)}),
        ("created:2026-11-01", {"created_from": day("2026-11-01"), "created_until": day("2026-11-02")}),
        ("created:2026-11-01..2026-11-03", {"created_from": day("2026-11-01"), "created_until": day("2026-11-04")}),
        ("ended:..-7d", {"ended_until": back(days=7)}),
        ("ended:2026-11-01T09:30:00+02:00..", {"ended_from": day("2026-11-01T07:30")}),
        ("quiet:-2d", {"quiet_since": back(days=2)}),
        ("is:overdue", {"due_until": back(minutes=1)}),
    ],
)
def test_a_filter_is_read(text, fields):
    assert parse(text, NOW) == Query(which=HeadFilter(**fields))


def test_a_word_alone_is_an_id_or_a_workflow():
    assert parse("order-7", NOW) == parse("id:order-7", NOW) == Query(word="order-7")
    assert parse("fulfil status:failed", NOW) == Query(word="fulfil", which=HeadFilter(statuses=(Status.FAILED,)))
    assert parse("is:attention", NOW).attention


def test_a_date_is_a_day_of_the_zone_that_is_asked_from():
    query = parse("created:2026-11-01", NOW, ZoneInfo("America/New_York"))  # clocks are put back on that day
    assert query.which.created_from == day("2026-11-01", "America/New_York")
    assert query.which.created_until == day("2026-11-02", "America/New_York")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stauts:failed", "there is no filter 'stauts'; did you mean status?"),
        ("status:faild", "did you mean failed?"),
        ("status:waiting", "did you mean suspended?"),
        ("is:opne", "did you mean open?"),
        ("created:yesterday", "created:yesterday is no time; write -24h"),
        ("created:-24x", "is no time"),
        ("created:-99999999999w", "too far in the past"),
        ("status:", "needs a value, as in status:failed,blocked"),
        ("-tenant:acme", "only status and workflow can be excluded"),
        ("one two", "two words stand alone"),
        ('waiting:"message', "a quotation mark is not closed"),
        ("status:failed -status:failed", "no run has a status that meets all of this filter"),
        ("tenant:a tenant:b", "tenant: is given twice"),
    ],
)
def test_what_cannot_be_read_is_named_with_what_was_probably_meant(text, said):
    with pytest.raises(BadFilter, match=re.escape(said)):
        parse(text, NOW)


@given(st.text(max_size=60))
def test_no_text_makes_it_fail_otherwise(text):
    with suppress(BadInput):
        parse(text, NOW)


def test_a_cursor_names_a_key_that_a_run_can_have():
    which = "status:failed"
    assert read_cursor(cursor_at(7, which), which) == 7
    for cursor, said in (
        (cursor_at(10**30, which), "not one that holdfast gave|belongs to another filter"),
        (cursor_at(7, "status:paused"), "belongs to another filter"),
    ):
        with pytest.raises(BadCursor, match=said):
            read_cursor(cursor, which)
