"""What a parked run's row says: words and notes, which fit into 400 bytes and come back as they were written."""

from __future__ import annotations

import asyncio
import statistics
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Retry, activity, workflow
from holdfast.contract.waits import MOST_BYTES, WaitNote, error_head, notes_of, words_of, write_wait
from holdfast.testing import TestEngine

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


@activity(retry=Retry(max_attempts=9, initial_interval=timedelta(hours=1)))
async def book_carrier(parcel: str) -> None:
    raise ConnectionError(f"503 from the carrier for {parcel}: " + "a long page of what went wrong " * 20)


@activity(queue="gpu")
async def train() -> None: ...


@workflow
async def approval(ctx: Context) -> None:
    await ctx.receive("approved")


@workflow
async def waits(ctx: Context, how: str) -> None:
    if how == "retry":
        await ctx.step(book_carrier, "parcel-7")
    elif how == "queue":
        await ctx.step(train)
    elif how == "child":
        await ctx.child(approval, id="a-child-with-a-name-of-its-own")
    elif how == "sleep":
        await ctx.sleep(timedelta(days=2))
    elif how == "several":
        await asyncio.gather(
            *(ctx.receive(f"a-message-with-a-long-name-{number}") for number in range(40)),
            ctx.step(book_carrier, "parcel-8"),
        )
    else:
        await ctx.receive(how, timeout=timedelta(days=1))


async def test_the_reason_of_a_parked_run_is_short():
    """FACES 3, S6: what its row says of why it waits is 150 bytes in the median and 400 at most."""
    ways = ["retry", "queue", "child", "sleep", "several", "approved", "picked_up"]
    async with TestEngine(workflows=[waits, approval]) as engine:
        for how in ways:
            await engine.start(waits, how, id=how)
        await engine.settle()
        found = await engine.store.heads_of(ways)
        sizes = {how: len(found[how].wait.encode()) for how in ways}
    assert statistics.median(sizes.values()) <= 150, sizes
    assert max(sizes.values()) <= MOST_BYTES == 400, sizes
    assert min(sizes.values()) > 0, sizes


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
