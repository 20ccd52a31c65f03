"""What a parked run's row says: words and notes, which fit into 400 bytes and come back as they were written."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from holdfast.contract.waits import MOST_BYTES, WaitNote, error_head, notes_of, words_of, write_wait

RETRY = WaitNote(
    kind="retry", step="book_carrier", attempt=3, of=8, until=1_763_280_000_000_000, error="CarrierDown: 503"
)
KEY = WaitNote(kind="key", step="charge", activity="charge", key="acct-17")


def test_words_stay_words_and_notes_say_more():
    wait = write_wait("message approved; retry; key", [RETRY, KEY])
    assert words_of(wait) == "message approved; retry; key"
    assert notes_of(wait) == [RETRY, KEY, WaitNote(kind="message", names=("approved",))]
    assert notes_of("") == []


def test_words_alone_are_understood_as_earlier_versions_wrote_them():
    wait = "message a,b; child ship-1; step train (queue gpu); retry; limit openai; timer"
    assert notes_of(wait) == [
        WaitNote(kind="message", names=("a", "b")),
        WaitNote(kind="child", names=("ship-1",)),
        WaitNote(kind="queue", step="train", queue="gpu"),
        WaitNote(kind="retry"),
        WaitNote(kind="limit", limit="openai"),
        WaitNote(kind="timer"),
    ]


def test_a_reason_is_short():
    one = [len(write_wait("retry", [RETRY]).encode()), len(write_wait("key", [KEY]).encode()), len("message approved")]
    assert statistics.median(one) <= 150


@given(st.lists(st.builds(WaitNote, kind=st.just("retry"), step=st.text(max_size=300), error=st.text(max_size=300))))
def test_no_reason_is_longer_than_it_may_be(notes):
    assert len(write_wait("retry", notes).encode()) <= MOST_BYTES


@given(st.text(), st.text())
def test_the_head_of_an_error_is_one_short_line(kind, message):
    head = error_head(kind, message)
    assert len(head) <= 80
    assert "\n" not in error_head("shop.Error", message)
