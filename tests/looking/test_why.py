"""One sentence for any run: the commonest states as they come about, on SQLite."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.waiting import eventually
from tests.support.why_cases import HOUR, approval, breaks, sleeper

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.contract.waits import MOST_BYTES
from holdfast.errors import NoSuchRun
from holdfast.looking import LocalDesk
from holdfast.looking.why import LONGEST
from holdfast.testing import JumpingClock, TestEngine
from holdfast.texts import shortened


class CardDeclinedError(Exception):
    pass


@activity(retry=Retry(max_attempts=8, initial_interval=HOUR, max_interval=HOUR, jitter=0))
async def book_carrier() -> None:
    raise CardDeclinedError("503 from the carrier, " + "which says much about it " * 20)


@activity(retry=Retry(max_attempts=2, initial_interval=timedelta(microseconds=1), jitter=0))
async def charge() -> None:
    raise CardDeclinedError("insufficient funds")


@activity(idempotency_key=lambda: "acct-17", heartbeat_timeout=HOUR)
async def keyed() -> None:
    step_context().heartbeat("61 %")
    await asyncio.Event().wait()


@activity(queue="gpu")
async def train() -> None: ...


@workflow
async def fulfil(ctx: Context) -> None:
    await ctx.step(book_carrier)


@workflow
async def pay(ctx: Context) -> None:
    await ctx.step(charge)


@workflow
async def endless(ctx: Context) -> None:
    await ctx.receive("approved")


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(approval, id="ship-204")


@workflow
async def account(ctx: Context) -> None:
    await ctx.step(keyed)


@workflow
async def training(ctx: Context) -> None:
    await ctx.step(train)


@workflow
async def either(ctx: Context) -> None:
    await asyncio.gather(ctx.receive("approved"), ctx.child(sleeper, id="other"))


@workflow
async def retried_beside_others(ctx: Context) -> None:
    await asyncio.gather(ctx.step(book_carrier), ctx.receive("approved"), ctx.sleep(2 * HOUR))


ALL = [fulfil, pay, breaks, approval, endless, parent, sleeper, account, training, either, retried_beside_others]


@pytest.fixture
async def engine(path) -> AsyncIterator[TestEngine]:
    clock = JumpingClock()
    async with TestEngine(f"sqlite:///{path}", workflows=ALL, clock=clock, stop_grace=timedelta(0)) as engine:
        engine.store.clock = clock
        yield engine


async def told(engine: TestEngine, run_id: str) -> tuple[str, str]:
    """Return the code and the sentence, and check that the list says the same."""
    desk = LocalDesk(engine.store)
    why = await desk.why(run_id, relative=True)
    assert len(why.sentence) <= LONGEST
    assert all(each.command.startswith("holdfast ") for each in why.help if each.command)
    page = await desk.heads(run_id, relative=True)
    assert page.items[0].why.code.split(".")[:2] == why.code.split(".")[:2]
    return why.code, why.sentence


async def waits(engine: TestEngine, run_id: str) -> None:
    async def look() -> bool:
        run = await engine.find(run_id)
        return run is not None and run.waiting_for != ""

    await eventually(look)


async def test_a_run_that_has_ended_says_how(engine):
    runs = [await engine.start(each, id=each.name) for each in (pay, breaks)]
    await engine.advance(timedelta(seconds=1))
    assert all([await run.status() == "failed" for run in runs])
    assert await told(engine, "pay") == (
        "failed.step", "Step `charge` gave up after 2 attempts: CardDeclinedError: insufficient funds",
    )  # fmt: skip
    assert await told(engine, "breaks") == ("failed.code", "Its code raised ValueError: the code is wrong")


async def _is_over(run) -> bool:
    return (await run.status()).is_terminal


async def test_a_step_that_is_tried_again_says_when_and_what_went_wrong(engine):
    await engine.start(fulfil, id="order-1")
    await waits(engine, "order-1")
    code, sentence = await told(engine, "order-1")
    assert code == "waiting.retry"
    begin = "Step `book_carrier` failed 1 time of 8, next attempt in 1 h: CardDeclinedError: 503 from the"
    assert sentence.startswith(begin)
    assert sentence.endswith(" says...")  # cut between words
    help = (await LocalDesk(engine.store).why("order-1")).help
    assert [each.command for each in help] == ["holdfast nudge order-1", "holdfast show order-1"]
    head = (await engine.store.heads_of(["order-1"]))["order-1"]
    assert len(head.wait.encode()) <= MOST_BYTES
    assert (await engine.find("order-1")).waiting_for == "retry"


async def test_a_wait_for_a_message_says_since_when_and_until_when(engine):
    run = await engine.start(approval, id="order-1")
    await engine.start(endless, id="order-2")
    await waits(engine, "order-1")
    await waits(engine, "order-2")
    assert await told(engine, "order-1") == (
        "waiting.message", "Waits for message `approved` since 0.0 s; gives up in 1 d",
    )  # fmt: skip
    assert await told(engine, "order-2") == ("waiting.message", "Waits for message `approved` since 0.0 s")
    await run.send("aproved", 1)
    assert await told(engine, "order-1") == (
        "waiting.message.similar",
        "Waits for message `approved` since 0.0 s; a message `aproved` is in its inbox unread: is that the one?",
    )


async def test_a_wait_for_a_child_says_what_the_child_waits_for(engine):
    await engine.start(parent, id="order-1")
    await waits(engine, "ship-204")
    await waits(engine, "order-1")
    assert await told(engine, "order-1") == (
        "waiting.child",
        "Waits for child `ship-204`, which waits for message `approved` since 0.0 s; gives up in 1 d",
    )
    why = await LocalDesk(engine.store).why("order-1")
    assert [(each.run, each.code) for each in why.chain] == [("ship-204", "waiting.message")]
    [head] = (await LocalDesk(engine.store).heads("workflow:parent")).items
    assert [each.run for each in head.why.chain] == ["ship-204"]


async def test_a_sleep_says_until_when(engine):
    await engine.start(sleeper, id="order-1")
    await waits(engine, "order-1")
    code, sentence = await told(engine, "order-1")
    assert code == "waiting.sleep"
    assert sentence.endswith(", for 18 h more")


async def test_a_key_that_is_held_names_its_holder(engine):
    await engine.start(account, id="first")
    await eventually(lambda: _running(engine, "first"))
    await engine.start(account, id="second")
    await waits(engine, "second")
    code, sentence = await told(engine, "second")
    assert code == "waiting.key"
    begin = "Step `keyed` waits for idempotency key `acct-17`, held by `first` for 0.0 s, which runs on worker"
    assert sentence.startswith(begin)
    code, sentence = await told(engine, "first")
    assert code == "running.step"
    assert sentence.startswith(f"Step `keyed`, attempt 1, since 0.0 s on `{socket.gethostname()}:{os.getpid()}`;")
    assert '"61 %"' in sentence


async def _running(engine: TestEngine, run_id: str) -> bool:
    key = (await engine.store.heads_of([run_id]))[run_id].key
    return bool(await engine.store.beats(key))


async def test_what_people_did_is_named_with_the_reason(engine):
    paused = await engine.start(endless, id="order-1")
    cancelled = await engine.start(endless, id="order-2")
    await waits(engine, "order-1")
    await waits(engine, "order-2")
    await paused.pause(by="lena", reason="bank down, INC-7")
    await paused.set_attributes({"size": 3}, by="mia")
    await cancelled.cancel(by="kim", reason="ordered twice")
    await eventually(lambda: _is_over(cancelled))
    await eventually(lambda: _has_status(paused, "paused"))
    assert await told(engine, "order-1") == ("paused", "Paused by lena 0.0 s ago: bank down, INC-7")
    assert await told(engine, "order-2") == ("cancelled", "Cancelled by kim: ordered twice; nothing was undone")


async def _has_status(run, status: str) -> bool:
    return await run.status() == status


async def test_a_queue_a_later_start_and_several_waits_are_told(engine):
    await engine.start(training, id="order-1")
    await engine.start(sleeper, id="order-2", delay=9 * HOUR)
    await engine.start(either, id="order-3")
    await waits(engine, "order-1")
    await waits(engine, "order-3")
    assert (await told(engine, "order-1"))[0] == "waiting.queue.nobody"
    assert (await told(engine, "order-2"))[0] == "pending.later"
    assert await told(engine, "order-3") == (
        "waiting.several", "Waits for message `approved` or child `other`; whichever comes first moves it",
    )  # fmt: skip


async def test_of_several_a_step_that_is_tried_again_says_when_and_is_no_timer_beside_itself(engine):
    await engine.start(retried_beside_others, id="order-1")
    await engine.settle()
    failed = "Step `book_carrier` failed 1 time of 8, next attempt in 1 h"
    said = (
        f"{failed}; it waits for message `approved`, too: CardDeclinedError: 503 from the carrier, which says much..."
    )
    assert await told(engine, "order-1") == ("waiting.several", said)
    assert (await LocalDesk(engine.store).why("order-1")).subject == {"step": "book_carrier"}


async def test_a_run_that_no_worker_takes_says_that_none_is_alive(path):
    clock = JumpingClock()
    async with TestEngine(f"sqlite:///{path}", workflows=ALL, clock=clock, run_workflows=False) as client:
        client.store.clock = clock
        await client.start(sleeper, id="order-1")
        code, sentence = await told(client, "order-1")
        assert (code, sentence) == ("pending.nobody", "No worker can take it: none is alive")
        await client.flow.pause(workflow="sleeper", by="lena")
        assert (await told(client, "order-1"))[0] == "waiting.paused"
        await client.flow.resume(workflow="sleeper", by="lena")
        clock.advance(timedelta(minutes=4))
        code, sentence = await told(client, "order-1")
        assert (code, sentence) == ("overdue", "It was due 4 min ago and no worker took it: none is alive")


async def test_a_run_that_is_not_there_is_an_error(engine):
    with pytest.raises(NoSuchRun, match="there is no run 'nobody'"):
        await LocalDesk(engine.store).why("nobody")


@given(st.text(max_size=60), st.integers(8, 40))
def test_a_text_is_cut_between_words_and_never_longer_than_asked(text, most):
    cut = shortened(text, most)
    assert len(cut) <= most
    assert cut == text or (cut.endswith("...") and text.startswith(cut.removesuffix("...")))


def test_a_word_is_cut_only_where_it_fills_half_of_the_room():
    assert shortened("the carrier is being maintained", 24) == "the carrier is being..."
    assert shortened("a" * 30, 10) == "aaaaaaa..."
    assert shortened("it fits", 7) == "it fits"
