"""Messages: kept in order, delivered once, typed, with deadlines, before and after the wait exists."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from tests.behaviour.instants import a_moment, same

from holdfast import Context, NoSuchRun, ReceiveTimeout, RunTerminal, Status, workflow
from holdfast.errors import BadInput, InvalidDuration, InvalidId, NotSerializable, UndecodablePayload

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)

restarts = pytest.mark.parametrize("mode", ["file", "evict"])
"""For tests that stop an engine and open another on the same file."""


@dataclass
class Approval:
    by: str
    amount: int = 0


@workflow
async def take(ctx: Context, name: str, count: int) -> list[Any]:
    return [await ctx.receive(name) for _ in range(count)]


async def test_messages_of_one_name_come_in_the_order_they_were_sent(make_engine):
    """S1-18 S2-13 B13 FIFO per name, none lost, also when they come while the run waits."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 6)
    for number in range(3):
        await run.send("item", number)
    await engine.settle()
    for number in range(3, 6):
        await run.send("item", number)
        await engine.settle()
    assert await run.result() == [0, 1, 2, 3, 4, 5]


async def test_more_messages_than_a_byte_counts_come_in_order(make_engine):
    """S1-18 B13 The order is that of the numbers, not of their text or bytes."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 300)
    await asyncio.gather(*(run.send("item", number) for number in range(300)))
    taken = await run.result()
    assert (taken if engine.offers("send.together") else sorted(taken)) == list(range(300))


async def test_a_message_sent_before_the_wait_exists_is_kept(make_engine):
    """S3-13 S2-13 B12 The run is in a sleep when the message comes; its later wait finds it."""

    @workflow
    async def late(ctx: Context) -> str:
        await ctx.sleep(DAY)
        return await ctx.receive("word", str)

    engine = await make_engine(late)
    run = await engine.start(late)
    await run.send("word", "early")
    await engine.settle()
    assert await run.status() is Status.SUSPENDED
    assert await run.result() == "early"


async def test_a_message_sent_while_a_step_runs_is_there_when_the_step_is_done(make_engine):
    """S2-30 B12 A message that comes between two commits of a busy run is not lost."""
    sent = asyncio.Event()

    async def busy() -> None:
        await sent.wait()

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step(busy)
        return await ctx.receive("word", str)

    engine = await make_engine(work)
    run = await engine.start(work)
    await run.send("word", "meanwhile")
    sent.set()
    assert await run.result() == "meanwhile"


async def test_a_message_in_the_very_commit_that_parks_the_run_wakes_it_once(make_engine):
    """S2-30 S2-42 B12 Check-and-suspend is atomic: the step behind the wait runs once, in every mode."""
    bodies: list[str] = []
    engine: Any = None
    sends: list[asyncio.Task[None]] = []

    async def send_to_self(run_id: str) -> None:
        sends.append(asyncio.ensure_future(engine.get(run_id).send("go", "x")))

    async def act(word: str) -> str:
        bodies.append(word)
        await engine.get("bystander").send("item")  # which makes the worker look for runs to claim
        await asyncio.sleep(0.02)
        return word

    @workflow
    async def work(ctx: Context) -> str:
        await ctx.step(send_to_self, ctx.run_id)
        word = await ctx.receive("go", str)
        return await ctx.step(act, word)

    engine = await make_engine(work, take)
    await engine.start(take, "item", 1000, id="bystander")
    runs = [await engine.start(work) for _ in range(20)]
    assert [await run.result() for run in runs] == ["x"] * 20
    await asyncio.gather(*sends)
    assert len(bodies) == 20


async def test_several_names_give_the_oldest_message_and_keep_the_others(make_engine):
    """S2-31 C2 One winner; what the others were sent stays queued for a later wait."""

    @workflow
    async def either(ctx: Context) -> list[Any]:
        await ctx.sleep(HOUR)
        first = await ctx.receive(["yes", "no"])
        second = await ctx.receive(["no", "yes"])
        third = await ctx.receive("yes", int)
        return [first, second, third]

    engine = await make_engine(either)
    run = await engine.start(either)
    await run.send("no", 1)
    await run.send("yes", 2)
    await run.send("yes", 3)
    assert await run.result() == [["no", 1], ["yes", 2], 3]


async def test_several_names_wait_together_and_each_has_its_own_type(make_engine):
    """S2-31 S3-12 The run suspends on all names at once; the winner is decoded by its own type."""

    @workflow
    async def either(ctx: Context) -> str:
        name, value = await ctx.receive(["approval", "note"], {"approval": Approval, "note": str})
        assert isinstance(value, Approval if name == "approval" else str)
        return f"{name} {value}"

    engine = await make_engine(either)
    first, second = await engine.start(either), await engine.start(either)
    await engine.settle()
    await first.send("note", "hm")
    await second.send("approval", Approval("kim", 7))
    assert await first.result() == "note hm"
    assert await second.result() == f"approval {Approval('kim', 7)}"


async def test_a_message_is_decoded_into_the_type_asked_for_live_and_on_replay(make_engine):
    """S3-12 A dataclass comes back as that dataclass, and as the very same after a replay."""

    @workflow
    async def approve(ctx: Context) -> Approval:
        approval = await ctx.receive("approval", Approval)
        await ctx.sleep(DAY)
        assert type(approval) is Approval
        return approval

    engine = await make_engine(approve)
    run = await engine.start(approve)
    await run.send("approval", Approval("kim", 7))
    assert await run.result() == Approval("kim", 7)


async def test_a_message_of_the_wrong_type_is_an_error_in_the_workflow(make_engine):
    """The error names the message and the field, can be caught, is the same on replay, and the next one is taken."""

    @workflow
    async def strict(ctx: Context) -> list[Any]:
        try:
            await ctx.receive("approval", Approval)
        except UndecodablePayload as error:
            text = str(error)
        await ctx.sleep(DAY)
        return [text, (await ctx.receive("approval", Approval)).by]

    engine = await make_engine(strict)
    run = await engine.start(strict)
    await run.send("approval", {"by": 3})
    await run.send("approval", {"by": "kim"})
    text, by = await run.result()
    assert "approval" in text
    assert "by" in text
    assert by == "kim"


@workflow
async def wait_an_hour(ctx: Context) -> Any:
    return await ctx.receive("word", timeout=HOUR, default="nothing")


async def test_after_the_timeout_the_default_is_returned(make_engine):
    """S3-22 B13 A wait with a default ends quietly, at its deadline and not before."""
    engine = await make_engine(wait_an_hour)
    run = await engine.start(wait_an_hour)
    await engine.advance(HOUR - a_moment(engine))
    assert await run.status() is Status.SUSPENDED
    await engine.advance(a_moment(engine))
    assert await run.status() is Status.COMPLETED
    assert await run.result() == "nothing"


async def test_without_a_default_the_timeout_is_raised(make_engine):
    """B13 ReceiveTimeout names what did not come, and is a TimeoutError."""

    @workflow
    async def strict(ctx: Context) -> str:
        try:
            await ctx.receive(["yes", "no"], timeout=HOUR)
        except TimeoutError as error:
            return f"{type(error).__name__} {error}"
        return "nothing was raised"

    engine = await make_engine(strict)
    assert await engine.execute(strict) == "ReceiveTimeout no message 'yes' or 'no' came in time"


async def test_none_is_a_message_and_not_a_timeout(make_engine):
    """B13 A None payload ends the wait as a value."""

    @workflow
    async def wait(ctx: Context) -> list[Any]:
        first = await ctx.receive("word", timeout=HOUR, default="late")
        second = await ctx.receive("word", timeout=HOUR, default=None)
        third = await ctx.receive("word", timeout=HOUR, default="late")
        return [first, second, third]

    engine = await make_engine(wait)
    run = await engine.start(wait)
    await run.send("word", None)
    await engine.advance(2 * HOUR)
    assert await run.result() == [None, None, "late"]


async def test_a_timeout_of_zero_polls_once(make_engine):
    """C1 With nothing there it is over at once, without time passing; what is there is taken."""

    @workflow
    async def poll(ctx: Context) -> list[Any]:
        found = [await ctx.receive("word", timeout=timedelta(0), default="-")]
        await ctx.sleep(HOUR)
        found.append(await ctx.receive("word", timeout=timedelta(0), default="-"))
        found.append(await ctx.receive("word", timeout=timedelta(0), default="-"))
        try:
            await ctx.receive("word", timeout=timedelta(0))
        except ReceiveTimeout:
            found.append("raised")
        return found

    engine = await make_engine(poll)
    run = await engine.start(poll)
    before = engine.clock.now()
    await engine.settle()
    await run.send("word", "there")
    assert await run.result() == ["-", "there", "-", "raised"]
    assert same(engine, engine.clock.now() - before, 3_600_000_000)


@pytest.mark.parametrize(
    ("timeout", "what"),
    [
        (timedelta(seconds=-1), "negative"),
        (5, "timedelta"),
        (timedelta.max, "calendar|9999"),
        (float("nan"), "timedelta"),
    ],
)
async def test_a_timeout_that_cannot_be_waited_for_is_refused_at_the_call(make_engine, timeout, what):
    """GUARANTEES 6.16 InvalidDuration names the field; the workflow may catch it."""

    @workflow
    async def bad(ctx: Context) -> None:
        await ctx.receive("word", timeout=bad_timeout)

    bad_timeout = timeout
    engine = await make_engine(bad)
    run = await engine.start(bad)
    with pytest.raises(Exception, match=what) as caught:
        await run.result()
    assert isinstance(caught.value.__cause__, InvalidDuration)
    assert "timeout" in str(caught.value.__cause__)


@restarts
async def test_a_message_that_came_before_the_late_look_is_taken_although_the_deadline_is_past(make_engine):
    """S2-27 C1 Nobody ran while the deadline passed and then the message came: it is still taken."""
    first = await make_engine(wait_an_hour)
    run = await first.start(wait_an_hour)
    await first.stop()
    clock = first.jumping
    client = await make_engine(wait_an_hour, clock=clock, run_workflows=False)
    clock.advance(2 * HOUR)
    await client.get(run.id).send("word", "late but there")
    second = await make_engine(wait_an_hour, clock=clock)
    assert await second.get(run.id).result() == "late but there"


async def test_the_timer_of_an_old_wait_never_ends_a_new_one(make_engine):
    """S2-30 The first wait is answered; its deadline passes while the second wait is open, and means nothing to it."""

    @workflow
    async def two_waits(ctx: Context) -> list[Any]:
        first = await ctx.receive("word", timeout=HOUR, default="timeout 1")
        second = await ctx.receive("word", timeout=3 * HOUR, default="timeout 2")
        return [first, second]

    engine = await make_engine(two_waits)
    run = await engine.start(two_waits)
    await engine.advance(HOUR / 2)
    await run.send("word", "a")
    await engine.advance(2 * HOUR)
    assert await run.status() is Status.SUSPENDED
    await run.send("word", "b")
    assert await run.result() == ["a", "b"]


async def test_a_loop_with_a_timeout_does_not_take_the_message_of_the_iteration_before(make_engine):
    """C1 Each iteration has its own wait: message, timeout, message, timeout."""

    @workflow
    async def poll(ctx: Context) -> list[Any]:
        return [await ctx.receive("word", timeout=HOUR, default="-") for _ in range(4)]

    @workflow
    async def loop(ctx: Context) -> list[Any]:
        found: list[Any] = []
        async for it in ctx.loop("poll", state=list[Any](), commit_interval=1):
            it.state = [*it.state, await it.receive("word", timeout=HOUR, default="-")]
            if it.index == 3:
                found = it.state
                break
        return found

    engine = await make_engine(poll, loop)
    runs = [await engine.start(poll), await engine.start(loop)]
    await engine.settle()
    for run in runs:
        await run.send("word", "a")
    await engine.advance(HOUR * 1.5)
    for run in runs:
        await run.send("word", "b")
    for run in runs:
        assert await run.result() == ["a", "-", "b", "-"]


async def test_two_open_waits_of_one_name_are_served_in_the_order_of_their_calls(make_engine):
    """B12 B13 The wait that was called first gets the first message, whoever is awaited first."""

    @workflow
    async def both(ctx: Context) -> list[Any]:
        first, second = ctx.receive("word"), ctx.receive("word")
        return [await second, await first]

    engine = await make_engine(both)
    run = await engine.start(both)
    await engine.settle()
    await run.send("word", "one")
    await engine.settle()
    await run.send("word", "two")
    assert await run.result() == ["two", "one"]


async def test_a_wait_that_was_given_up_takes_no_message(make_engine):
    """G7 A cancelled wait does not swallow the message: the next wait gets it."""

    @workflow
    async def impatient(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                await ctx.receive("word")
        except TimeoutError:
            pass
        return await ctx.receive("word", str)

    engine = await make_engine(impatient)
    run = await engine.start(impatient)
    await engine.advance(HOUR)
    await run.send("word", "kept")
    assert await run.result() == "kept"


async def test_messages_to_two_gathered_waits_with_different_names_do_not_mix(make_engine):
    """S2-13 Each wait takes only its own names."""

    @workflow
    async def both(ctx: Context) -> list[Any]:
        return list(await asyncio.gather(ctx.receive("a"), ctx.receive("b")))

    engine = await make_engine(both)
    run = await engine.start(both)
    await run.send("b", 2)
    await engine.settle()
    await run.send("a", 1)
    assert await run.result() == [1, 2]


@restarts
async def test_a_message_that_comes_while_nobody_runs_is_delivered_after_the_restart(make_engine):
    """S2-27 S1-16 S1-17 S3-24 The inbox is in the store; a client without workers accepts the message."""
    first = await make_engine(take)
    run = await first.start(take, "word", 2)
    await run.send("word", "before")
    await first.settle()
    await first.stop()
    client = await make_engine(take, clock=first.jumping, run_workflows=False)
    await client.get(run.id).send("word", "meanwhile")
    await client.stop()
    second = await make_engine(take, clock=first.jumping)
    assert await second.get(run.id).result() == ["before", "meanwhile"]


@restarts
async def test_each_message_is_delivered_once_across_many_restarts(make_engine):
    """G7 S1-18 Consumption is recorded with the message: no restart repeats or loses one."""
    taken: list[int] = []

    async def note(number: int) -> int:
        taken.append(number)
        return number

    @workflow
    async def collect(ctx: Context) -> list[int]:
        return [await ctx.step(note, await ctx.receive("number", int)) for _ in range(10)]

    engine = await make_engine(collect)
    run = await engine.start(collect, id="collector")
    for number in range(10):
        await run.send("number", number)
        if number % 3 == 0:
            await engine.stop()
            engine = await make_engine(collect, clock=engine.jumping)
            run = engine.get("collector")
    assert await run.result() == list(range(10))
    assert taken == list(range(10))


async def test_the_history_shows_each_message_where_it_was_taken(make_engine):
    """S1-18 Consumption is a fact of the history, in order."""
    engine = await make_engine(take)
    run = await engine.start(take, "item", 2)
    await run.send("item", "a")
    await run.send("item", "b")
    await run.result()
    facts = [(entry.path, entry.kind) for entry in await run.history()]
    assert facts == [
        ("receive item", "receive"),
        ("receive item", "message"),
        ("receive item#2", "receive"),
        ("receive item#2", "message"),
    ]


async def test_a_waiting_run_says_what_it_waits_for(make_engine):
    """S2-10 S1-34 B6 waitCondition and due time are in the record."""
    engine = await make_engine(wait_an_hour)
    run = await engine.start(wait_an_hour)
    await engine.settle()
    seen = await run.describe()
    assert seen.status is Status.SUSPENDED
    assert "word" in seen.waiting_for
    assert "timer" in seen.waiting_for
    assert same(engine, seen.due_at, seen.created_at + HOUR)


@restarts
async def test_a_waiting_run_says_what_it_waits_for_after_an_orderly_stop(make_engine):
    """S2-10 S2-27 Handing a parked run back does not wipe out its wait condition."""
    first = await make_engine(wait_an_hour)
    run = await first.start(wait_an_hour)
    await first.settle()
    await first.stop()
    client = await make_engine(wait_an_hour, clock=first.jumping, run_workflows=False)
    seen = await client.get(run.id).describe()
    assert seen.status is Status.SUSPENDED
    assert "word" in seen.waiting_for


# From outside.


async def test_a_message_to_an_unknown_run_is_refused(make_engine):
    """S2-11 GUARANTEES 6.17 NoSuchRun with the id."""
    engine = await make_engine(take)
    with pytest.raises(NoSuchRun, match="nobody"):
        await engine.get("nobody").send("word", 1)


async def test_a_message_to_a_run_that_has_ended_is_refused(make_engine):
    """S2-11 GUARANTEES 6.17 RunTerminal carries the status, for each way to end."""

    @workflow
    async def end(ctx: Context, how: str) -> None:
        if how == "failed":
            raise ValueError(how)
        if how == "cancelled":
            await ctx.sleep(DAY)

    engine = await make_engine(end)
    for how in ("completed", "failed", "cancelled"):
        run = await engine.start(end, how)
        if how == "cancelled":
            await run.cancel()
        await engine.settle()
        with pytest.raises(RunTerminal, match=how) as caught:
            await run.send("word", 1)
        assert (caught.value.run_id, caught.value.status) == (run.id, how)


async def test_a_message_that_cannot_be_stored_is_refused_and_nothing_is_sent(make_engine):
    """GUARANTEES 6.1 6.11 The sender learns at once; the run gets only what was accepted."""
    engine = await make_engine(take)
    run = await engine.start(take, "word", 1)
    with pytest.raises(NotSerializable):
        await run.send("word", object())
    with pytest.raises(BadInput):
        await run.send("", 1)
    with pytest.raises(InvalidId):
        await engine.get("a/b").send("word", 1)
    await run.send("word", "fine")
    assert await run.result() == ["fine"]


async def test_a_message_to_a_blocked_run_is_kept_until_it_goes_on(make_engine):
    """G7 G13 A blocked run has not ended: what it is sent waits with it."""

    @workflow
    async def stuck(ctx: Context) -> str:
        if not fixed:
            await asyncio.Event().wait()
        return await ctx.receive("word", str)

    fixed: list[bool] = []
    engine = await make_engine(stuck)
    run = await engine.start(stuck)
    await engine.settle()
    assert await run.status() is Status.BLOCKED
    await run.send("word", "kept")
    fixed.append(True)
    assert await engine.get(run.id).recover()
    assert await run.result() == "kept"


# Between runs.


@workflow
async def tell(ctx: Context, target: str, words: list[str]) -> str:
    for word in words:
        await ctx.send(target, "item", word)
    return "sent"


async def test_one_run_sends_to_another(make_engine):
    """S1-41 S3-12 The message is delivered once, in order, and the sender goes on when it is durable."""
    engine = await make_engine(take, tell)
    receiver = await engine.start(take, "item", 3)
    await engine.settle()
    assert await engine.execute(tell, receiver.id, ["a", "b", "c"]) == "sent"
    assert await receiver.result() == ["a", "b", "c"]


async def test_a_run_may_send_to_itself(make_engine):
    """C1 S1-41 queue.send to self: it is in its own inbox like any other message."""

    @workflow
    async def echo(ctx: Context) -> list[Any]:
        await ctx.send(ctx.run_id, "word", "first")
        await ctx.send(ctx.run_id, "word", "second")
        return [await ctx.receive("word"), await ctx.receive("word")]

    engine = await make_engine(echo)
    assert await engine.execute(echo) == ["first", "second"]


async def test_a_refused_send_is_raised_at_the_await_live_and_replayed_alike(make_engine):
    """S2-11 S1-41 NoSuchRun and RunTerminal reach the workflow, and a replay raises the same."""
    seen: list[list[str]] = []

    async def note(errors: list[str]) -> None:
        seen.append(errors)

    @workflow
    async def done(ctx: Context) -> None:
        return None

    @workflow
    async def try_both(ctx: Context, ended: str) -> list[str]:
        errors: list[str] = []
        for target in ("nobody", ended):
            try:
                await ctx.send(target, "word", 1)
            except (NoSuchRun, RunTerminal) as error:
                errors.append(f"{type(error).__name__} {error.run_id} {error}")
        await ctx.step("before", note, errors)
        await ctx.sleep(DAY)
        await ctx.step("after", note, errors)
        return errors

    engine = await make_engine(done, try_both)
    ended = await engine.start(done, id="ended")
    await ended.result()
    errors = await engine.execute(try_both, "ended")
    assert errors[0].startswith("NoSuchRun nobody")
    told = engine.offers("send.ended")
    assert errors[1].startswith("RunTerminal ended" if told else "NoSuchRun ended")
    assert "(completed)" in errors[1] or not told
    assert seen == [errors, errors]


@restarts
async def test_a_send_is_not_repeated_by_a_restart(make_engine):
    """G7 S1-41 The sender is replayed after it sent; the receiver still gets one."""

    @workflow
    async def send_once(ctx: Context, target: str) -> None:
        await ctx.send(target, "item", "once")
        await ctx.sleep(DAY)
        await ctx.send(target, "item", "end")

    engine = await make_engine(take, send_once)
    receiver = await engine.start(take, "item", 2)
    sender = await engine.start(send_once, receiver.id)
    await engine.settle()
    await engine.stop()
    second = await make_engine(take, send_once, clock=engine.jumping)
    await second.get(sender.id).result()
    assert await second.get(receiver.id).result() == ["once", "end"]


async def test_sends_gathered_in_one_turn_keep_the_order_of_the_calls(make_engine):
    """B12 Sends of one turn are delivered in the order in which they were called."""

    @workflow
    async def burst(ctx: Context, target: str) -> None:
        await asyncio.gather(*(ctx.send(target, "item", number) for number in range(20)))

    engine = await make_engine(take, burst)
    receiver = await engine.start(take, "item", 20)
    await engine.execute(burst, receiver.id)
    assert await receiver.result() == list(range(20))


async def test_a_send_that_is_not_waited_for_is_still_sent(make_engine):
    """The call counts, not the await: the run may end at once."""

    @workflow
    async def fire(ctx: Context, target: str) -> None:
        sent: Any = ctx.send(target, "item", "boo")
        assert not sent.done()

    engine = await make_engine(take, fire)
    receiver = await engine.start(take, "item", 1)
    await engine.execute(fire, receiver.id)
    assert await receiver.result() == ["boo"]


async def test_two_runs_play_ping_pong(make_engine):
    """S1-41 Messages back and forth between two runs, each evicted and woken again and again."""

    @workflow
    async def player(ctx: Context, other: str, serves: bool) -> int:
        count = 0
        if serves:
            await ctx.send(other, "ball", 0)
        while count < 20:
            count = await ctx.receive("ball", int)
            try:
                await ctx.send(other, "ball", count + 1)
            except (RunTerminal, NoSuchRun):  # as which not every runtime tells an ended run
                break
        return count

    engine = await make_engine(player)
    left = await engine.start(player, "right", False, id="left")
    right = await engine.start(player, "left", True, id="right")
    assert await left.result() + await right.result() >= 39
