"""One run on a key space of its own, driven once at a time."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta

import pytest
from tests.support.waiting import eventually

from holdfast import Break, Context, Continue, Retry, activity, step_context, workflow
from holdfast.errors import NotOurDatabase, PayloadTooLarge, RunConflict, SchemaTooNew, StoreError, StoreUnreachable
from holdfast.kv import MemoryDriver, compact, deliver, drive, drive_due, keys, reply_to
from holdfast.limits import Limit
from holdfast.replay.entry import AttemptFailed
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

HOUR = timedelta(hours=1)


class Calls(list):
    """What bodies were called with."""

    def body(self, name):
        async def called(value=0):
            self.append(name)
            return value

        called.__name__ = called.__qualname__ = name
        return called


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def clock():
    return JumpingClock()


@pytest.fixture
def driver():
    return FaultyDriver(MemoryDriver())


def history(driver):
    return [key for key, _ in driver._driver.list(keys.ENTRY)]


async def test_a_run_is_driven_from_its_beginning_to_its_end(driver, clock, calls):
    """S1-1 S1-2 S1-13 S1-14 Every key begins with format and family; none names the run or its workflow."""
    first, second = calls.body("first"), calls.body("second")

    @workflow
    async def order(ctx: Context, amount: int) -> int:
        return await ctx.step(first, amount) + await ctx.step(second, 1)

    standing = await drive(driver, order, 6, clock=clock)
    assert (standing.state, standing.output, standing.ended, calls) == ("completed", 7, True, ["first", "second"])
    assert driver.batches == 3
    assert await drive(driver, order, clock=clock) == standing
    assert (calls, driver.batches) == (["first", "second"], 3)
    assert all(key[:1] == b"\x01" and b"order" not in key for key, _ in await driver.list(b""))


async def test_a_sleep_sets_the_alarm_and_early_wakes_write_nothing(driver, clock, calls):
    """S1-5 S1-15 S1-16 S1-31 S1-32 The deadline is fixed when the code first comes to it."""
    work = calls.body("work")

    @workflow
    async def sleeper(ctx: Context) -> str:
        await ctx.step(work)
        await ctx.sleep(HOUR)
        return "awake"

    standing = await drive(driver, sleeper, clock=clock)
    assert standing.state == "sleeping"
    assert standing.until == await driver.get_alarm()
    batches, alarms = driver.batches, len(driver.alarms)
    clock.advance(HOUR / 2)
    assert await drive(driver, sleeper, clock=clock) == standing
    assert (driver.batches, len(driver.alarms)) == (batches, alarms)
    clock.advance(HOUR / 2)
    assert (await drive(driver, sleeper, clock=clock)).output == "awake"
    assert (calls, await driver.get_alarm()) == (["work"], None)


async def test_messages_are_taken_in_order_and_deleted_by_the_batch_that_records_them(driver, clock):
    """S1-4 S1-17 S1-18 S1-43 S1-44"""

    @workflow
    async def listener(ctx: Context) -> list[int]:
        return [await ctx.receive("number") for _ in range(3)]

    standing = await drive(driver, listener, clock=clock)
    assert (standing.state, standing.waits_for, await driver.get_alarm()) == ("waiting", ("number",), None)
    assert await deliver(driver, "number", 1, clock=clock)
    assert await deliver(driver, "number", 2, id="two", clock=clock)
    assert not await deliver(driver, "number", 2, id="two", clock=clock)
    assert await driver.get_alarm() is not None
    batches = driver.batches
    assert (await drive(driver, listener, clock=clock)).state == "waiting"
    assert driver.batches == batches + 1
    assert list(await driver.list(keys.MESSAGE)) == []
    await deliver(driver, "number", 3, clock=clock)
    assert (await drive(driver, listener, clock=clock)).output == [1, 2, 3]


async def test_a_message_that_comes_while_the_run_is_driven_is_taken_before_it_stops(driver, clock):
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    @workflow
    async def listener(ctx: Context) -> str:
        await ctx.step(slow)
        return await ctx.receive("word")

    task = asyncio.ensure_future(drive(driver, listener, clock=clock))
    await began.wait()
    await deliver(driver, "word", "hello", clock=clock)
    go_on.set()
    assert (await task).output == "hello"


async def test_a_failed_attempt_is_tried_again_when_its_time_has_come(driver, clock, calls):
    """S1-20 S1-21 S1-22 Attempts are keys of their own beside the entry of the step."""

    @activity(retry=Retry(max_attempts=3, initial_interval=HOUR))
    async def shaky() -> str:
        calls.append(step_context().attempt)
        if len(calls) < 3:
            raise ConnectionError("down")
        return "up"

    @workflow
    async def trying(ctx: Context) -> str:
        return await ctx.step(shaky)

    for _ in range(2):
        assert (await drive(driver, trying, clock=clock)).state == "sleeping"
        clock.advance(2 * HOUR)
    kinds = [int(value[1 : value.index(b",")]) for key, value in await driver.list(keys.ENTRY + b"a0\0")]
    assert kinds.count(AttemptFailed.kind) == 2
    assert (await drive(driver, trying, clock=clock)).output == "up"
    assert calls == [1, 2, 3]


async def test_a_step_that_fails_for_good_fails_the_run(driver, clock):
    """S1-23 S1-34"""

    async def broken() -> None:
        raise ValueError("no such thing")

    @workflow
    async def failing(ctx: Context) -> None:
        await ctx.step(activity(retry=Retry.never)(broken))

    standing = await drive(driver, failing, clock=clock)
    assert (standing.state, standing.error.type, standing.error.message) == ("failed", "ValueError", "no such thing")
    again = await drive(driver, failing, clock=clock)
    assert (again.state, again.error) == ("failed", standing.error)


async def test_join_race_loop_and_compensation_work(driver, clock, calls):
    """S1-25 S1-26 S1-27 S1-29 S1-46 The loop's past is trimmed from the key space."""
    work, undo = calls.body("work"), calls.body("undo")

    async def count(value: int) -> int:
        return value + 1

    @workflow
    async def all_of_it(ctx: Context) -> list[object]:
        ctx.compensate(undo)
        both = await ctx.join("both", {"x": lambda c: c.step(work, "x"), "y": lambda c: c.step(work, "y")})
        won = await ctx.race("first", {"one": lambda c: c.step(work, 1), "never": lambda c: c.sleep(HOUR)})

        async def body(c: Context, total: int):
            total = await c.step(count, total)
            return Break(total) if total == 40 else Continue(total)

        total = await ctx.loop("many", body, state=0, commit_interval=10, history_every=10, history_keep=10)
        return [both, won.winner, total]

    standing = await drive(driver, all_of_it, clock=clock)
    assert standing.output == [{"x": "x", "y": "y"}, "one", 40]
    assert len([key for key in history(driver) if b"~" in key]) < 2 * 25
    assert "undo" not in calls


async def test_cancel_stops_the_run_and_compensate_undoes_what_it_did(driver, clock, calls):
    undo = calls.body("undo")

    @workflow
    async def waiting(ctx: Context) -> None:
        ctx.compensate(undo)
        await ctx.receive("never")

    await drive(driver, waiting, clock=clock)
    await deliver(driver, kind="compensate", clock=clock)
    standing = await drive(driver, waiting, clock=clock)
    assert (standing.state, calls) == ("cancelled", ["undo"])
    other = MemoryDriver()
    await drive(other, waiting, clock=clock)
    await deliver(other, kind="cancel", clock=clock)
    assert (await drive(other, waiting, clock=clock)).state == "cancelled"
    assert calls == ["undo"]


async def test_code_that_ignores_a_cancel_is_stopped_after_its_grace(driver, clock):
    @workflow
    async def stubborn(ctx: Context) -> None:
        try:
            await ctx.sleep(HOUR)
        except asyncio.CancelledError:
            await ctx.sleep(timedelta(days=100))

    await drive(driver, stubborn, clock=clock)
    await deliver(driver, kind="cancel", clock=clock)
    assert (await drive(driver, stubborn, clock=clock)).state == "sleeping"
    clock.advance(HOUR)
    assert (await drive(driver, stubborn, clock=clock)).state == "cancelled"


async def test_a_paused_run_does_nothing_until_it_is_resumed(driver, clock, calls):
    work = calls.body("work")

    @workflow
    async def plain(ctx: Context) -> None:
        await ctx.sleep(HOUR)
        await ctx.step(work)

    await drive(driver, plain, clock=clock)
    await deliver(driver, kind="pause", clock=clock)
    clock.advance(2 * HOUR)
    batches = driver.batches
    assert (await drive(driver, plain, clock=clock)).state == "paused"
    assert (driver.batches, calls, await driver.get_alarm()) == (batches, [], None)
    await deliver(driver, kind="resume", clock=clock)
    assert (await drive(driver, plain, clock=clock)).state == "completed"
    assert calls == ["work"]


async def test_a_second_driver_fences_the_first(clock):
    """S1-3 S1-42 Every batch of the first expects its epoch; what it has under way is given up."""
    store = MemoryDriver()
    began, go_on, ran = asyncio.Event(), asyncio.Event(), []

    async def slow() -> int:
        ran.append(step_context().attempt)
        began.set()
        await go_on.wait()
        return len(ran)

    @workflow
    async def fenced(ctx: Context) -> int:
        return await ctx.step(slow)

    first = asyncio.ensure_future(drive(store, fenced, clock=clock))
    await began.wait()
    second = asyncio.ensure_future(drive(store, fenced, clock=clock))
    await eventually(lambda: len(ran) == 2)
    go_on.set()
    standings = [(await each) for each in (first, second)]
    assert [standing.state for standing in standings] == ["evicted", "completed"]
    assert "another driver" in standings[0].error.message
    assert ran == [1, 2]


async def test_an_evicted_driver_gives_the_run_up(clock):
    """S1-42"""
    store, began = MemoryDriver(), asyncio.Event()

    done: list[int] = []

    async def slow() -> None:
        began.set()
        if not done:
            await asyncio.Event().wait()

    @workflow
    async def moved(ctx: Context) -> str:
        await ctx.step(slow)
        return "done"

    task = asyncio.ensure_future(drive(store, moved, clock=clock, patience=HOUR))
    await began.wait()
    assert await deliver(store, kind="evict", clock=clock)
    done.append(1)
    assert (await drive(store, moved, clock=clock)).state == "completed"
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_after_its_lifespan_a_run_is_given_up_in_good_order(driver, clock, calls):
    """What was under way is handed back: it counts as no crash, and is begun again by the next call."""
    may_end: list[bool] = []

    @activity(retry=Retry(crash_limit=1))
    async def long() -> str:
        calls.append(step_context().attempt)
        if not may_end:
            await asyncio.Event().wait()
        return "done"

    @workflow
    async def lasting(ctx: Context) -> str:
        return await ctx.step(long)

    while len(calls) < 4:  # on a busy machine a lifespan may be over before the step begins
        standing = await drive(driver, lasting, clock=clock, lifespan=timedelta(milliseconds=20))
        assert (standing.state, standing.until) == ("evicted", await driver.get_alarm())
    may_end.append(True)
    assert (await drive(driver, lasting, clock=clock)).output == "done"
    assert calls == sorted(set(calls)), "no number is given to two attempts"
    assert len(calls) == 5


async def test_steps_in_threads_and_all_at_once_work(driver, clock):
    def blocking(n: int) -> str:
        return f"{n} {threading.current_thread() is threading.main_thread()}"

    @workflow
    async def threads(ctx: Context) -> list[str]:
        return await asyncio.gather(*(ctx.step(blocking, n) for n in range(5)))

    assert (await drive(driver, threads, clock=clock)).output == [f"{n} False" for n in range(5)]


async def test_idempotency_keys_hold_within_the_key_space(driver, clock, calls):
    @activity(idempotency_key=lambda order: order)
    async def charge(order: str) -> int:
        calls.append(order)
        return len(calls)

    @workflow
    async def twice(ctx: Context) -> list[int]:
        return [*await asyncio.gather(ctx.step(charge, "o"), ctx.step(charge, "o")), await ctx.step(charge, "p")]

    assert (await drive(driver, twice, clock=clock, patience=HOUR)).output == [1, 1, 2]
    assert calls == ["o", "p"]


async def test_callbacks_of_activities_are_told_after_the_end_is_durable(driver, clock, calls):
    @activity(
        retry=Retry(max_attempts=2, initial_interval=timedelta(0)),
        on_start=lambda step: calls.append(f"start {step.attempt}"),
        on_success=lambda step, result: calls.append(f"success {result}"),
        on_failure=lambda step, error: calls.append(f"failure {error.message}"),
    )
    async def watched() -> str:
        if step_context().attempt == 1:
            raise OSError("once")
        return "fine"

    @workflow
    async def told(ctx: Context) -> str:
        return await ctx.step(watched)

    assert (await drive(driver, told, clock=clock)).output == "fine"
    assert calls == ["start 1", "failure once", "start 2", "success fine"]


async def test_nothing_that_a_batch_asks_for_is_done_while_it_is_being_written(clock, calls):
    """S1-13 Neither a body nor a callback, however long the batch takes."""

    class Slow(FaultyDriver):
        async def batch(self, puts, deletes=(), expect=None):
            calls.append("writing")
            for _ in range(20):
                await asyncio.sleep(0)
            await super().batch(puts, deletes, expect)
            calls.append("written")

    @activity(on_start=lambda step: calls.append("start"), on_success=lambda step, result: calls.append("success"))
    async def watched() -> None:
        calls.append("body")

    @workflow
    async def two(ctx: Context) -> None:
        await ctx.step(watched)
        await ctx.step(watched)

    assert (await drive(Slow(MemoryDriver()), two, clock=clock)).state == "completed"
    batch, attempt = ["writing", "written"], ["start", "body"]
    once = [*batch, *attempt, *batch, "success"]
    assert calls == [*once, *once, *batch]


async def test_requests_are_answered_and_attributes_evidence_and_letters_are_kept(driver, clock):
    async def broken() -> None:
        raise ValueError("in vain")

    @workflow
    async def noting(ctx: Context) -> None:
        ctx.set_attributes(city="Berlin", n=1)
        ctx.evidence("seen", {"a": 1})
        ctx.evidence("seen", {"a": 2})
        ctx.background(activity(retry=Retry.never)(broken))
        request = await ctx.receive_request("price")
        ctx.reply(request, request.payload * 2)

    await drive(driver, noting, clock=clock)
    await deliver(driver, "price", 21, id="r1", clock=clock)
    assert await reply_to(driver, "r1") is None
    assert (await drive(driver, noting, clock=clock)).state == "completed"
    assert await reply_to(driver, "r1") == 42
    assert await driver.get(keys.ATTRIBUTES) == b'{"city":"Berlin","n":1}'
    assert len(await driver.list(keys.TRAIL)) == 2
    assert [b"in vain" in value for _, value in await driver.list(keys.LETTER)] == [True]


async def test_continue_as_new_replaces_the_history(driver, clock, calls):
    work = calls.body("work")

    @workflow
    async def lives(ctx: Context, n: int) -> int:
        await ctx.step(work, n)
        if n < 5:
            ctx.continue_as_new(n + 1)
        return n

    assert (await drive(driver, lives, 0, clock=clock)).output == 5
    assert (len(calls), len(history(driver))) == (6, 4)
    assert (await drive(driver, lives, 0, clock=clock)).output == 5


@pytest.mark.parametrize("how", ["fail", "lose"])
async def test_continue_as_new_takes_several_batches_for_a_long_history(clock, how):
    """S1-7 Whichever of them fails, or has its answer lost: the next life begins once, with nothing of the last."""
    ran: list[int] = []

    async def work(number: int) -> int:
        ran.append(number)
        return number

    @workflow
    async def lives(ctx: Context, life: int) -> list[int]:
        if life == 3:
            return [await ctx.step(work, 300)]
        for step in range(12):
            await ctx.step(work, life * 100 + step)
        return ctx.continue_as_new(life + 1)

    wanted = [life * 100 + step for life in range(3) for step in range(12)] + [300]
    for at in itertools.count(1):
        driver = FaultyDriver(MemoryDriver())
        driver.max_batch = driver._driver.max_batch = 16
        getattr(driver, how).add(at)
        ran.clear()
        for _ in range(2):
            try:
                standing = await drive(driver, lives, 0, clock=clock)
                break
            except StoreError:
                assert await compact(driver) >= 0  # which leaves of it what there is to be
        assert standing.output == [300]
        assert sorted(set(ran)) == wanted
        assert len(ran) <= len(wanted) + 1
        assert keys.RENEWED not in dict(await driver.list(keys.RUN))
        assert len(history(driver)) < 10
        if not driver.faults:
            assert at > 40
            return


async def test_what_needs_other_runs_is_refused_by_name_and_nothing_is_written(driver, clock, calls):
    @workflow
    async def other(ctx: Context) -> None: ...

    async def plain() -> None: ...

    @workflow
    async def child(ctx: Context) -> None:
        await ctx.child(other)

    @workflow
    async def publish(ctx: Context) -> None:
        await ctx.publish("news", 1)

    @workflow
    async def send(ctx: Context) -> None:
        await ctx.send("run-1", "news", 1)

    @workflow
    async def queue(ctx: Context) -> None:
        await ctx.step(activity(queue="mail")(plain))

    @workflow
    async def limit(ctx: Context) -> None:
        await ctx.step(activity(limit="shared")(plain))

    for refused in (child, publish, send, queue, limit):
        standing = await drive(driver, refused, clock=clock)
        assert (standing.state, driver.batches) == ("blocked", 0)
        assert refused.name in standing.error.message
        assert "run it on an Engine" in standing.error.message
    assert (
        await drive(driver, limit, clock=clock, limits=[Limit(name="shared", at_once=1, scope="engine")])
    ).state == "completed"


async def test_code_that_does_not_fit_its_history_is_blocked_and_nothing_is_written(driver, clock, calls):
    """S1-37"""
    work, wrong = calls.body("work"), calls.body("wrong")

    def version(body):
        @workflow(name="changing")
        async def changing(ctx: Context) -> None:
            await ctx.step(body)
            await ctx.sleep(HOUR)

        return changing

    await drive(driver, version(work), clock=clock)
    before = await driver.list(b"")
    standing = await drive(driver, version(wrong), clock=clock)
    assert (standing.state, await driver.list(b"")) == ("blocked", before)
    assert (await drive(driver, version(work), clock=clock)).state == "sleeping"


async def test_a_key_space_that_is_not_this_runs_is_refused_by_name_and_untouched(driver, clock, calls):
    work = calls.body("work")

    @workflow
    async def ours(ctx: Context, n: int = 0) -> None:
        await ctx.step(work)

    @workflow
    async def theirs(ctx: Context) -> None: ...

    await drive(driver, ours, 1, id="run-1", clock=clock)
    before = await driver.list(b"")
    with pytest.raises(NotOurDatabase, match="of workflow 'ours', not of 'theirs'"):
        await drive(driver, theirs, clock=clock)
    with pytest.raises(RunConflict, match="other arguments"):
        await drive(driver, ours, 2, clock=clock)
    with pytest.raises(RunConflict, match="not one of run 'run-2'"):
        await drive(driver, ours, id="run-2", clock=clock)
    assert await driver.list(b"") == before
    for foreign, error in ((b"user:1", NotOurDatabase), (b"\x02eabc", SchemaTooNew), (b"\x01zabc", NotOurDatabase)):
        other = MemoryDriver()
        other.batch({foreign: b"1"})
        with pytest.raises(error):
            await drive(other, ours, clock=clock)
        assert other.list(b"") == [(foreign, b"1")]


async def test_a_value_that_is_longer_than_the_driver_takes_is_spread_over_several_keys(clock):
    store = MemoryDriver()
    store.max_value = 100

    async def large() -> str:
        return "x" * 1000

    @workflow
    async def spread(ctx: Context, text: str) -> str:
        found = await ctx.step(large)
        return found + await ctx.receive("more") + text

    await drive(store, spread, "i" * 500, clock=clock)
    await deliver(store, "more", "m" * 300, clock=clock)
    assert (await drive(store, spread, clock=clock)).output == "x" * 1000 + "m" * 300 + "i" * 500
    assert max(len(value) for _, value in store.list(b"")) == 100
    assert store.list(keys.MESSAGE) == []
    await compact(store)
    assert store.list(keys.ENTRY) == []


async def test_an_answer_that_is_longer_than_the_driver_takes_is_read_whole(driver, clock):
    driver.max_value = 100

    @workflow
    async def asked(ctx: Context) -> None:
        request = await ctx.receive_request("price")
        ctx.reply(request, request.payload * 200)

    await deliver(driver, "price", "answer", id="r1", clock=clock)
    assert (await drive(driver, asked, clock=clock)).state == "completed"
    assert await reply_to(driver, "r1") == "answer" * 200
    assert await reply_to(driver, "r") is None


async def test_a_value_that_would_have_too_many_parts_is_refused_by_name(clock):
    driver = MemoryDriver()
    driver.max_value = 10
    with pytest.raises(PayloadTooLarge, match="65536 parts of 10 bytes are the most"):
        await deliver(driver, "text", "x" * 1_000_000, clock=clock)
    assert driver.list(b"") == []


async def test_compaction_removes_what_no_replay_reads_and_says_how_much(driver, clock, calls):
    """S1-38 The run goes on from what is left as if nothing had happened."""

    @activity(retry=Retry(max_attempts=9, initial_interval=timedelta(0)))
    async def shaky() -> int:
        calls.append("shaky")
        if len(calls) < 4:
            raise OSError
        return len(calls)

    @workflow
    async def compacted(ctx: Context) -> int:
        found = await ctx.step(shaky)
        await ctx.sleep(HOUR)
        return found

    await drive(driver, compacted, clock=clock)
    before = len(await driver.list(b""))
    removed = await compact(driver, clock)
    assert removed == 6
    assert len(await driver.list(b"")) == before - removed
    assert await compact(driver, clock) == 0
    clock.advance(HOUR)
    assert (await drive(driver, compacted, clock=clock)).output == 4
    left = len(history(driver))
    assert await compact(driver, clock) == left
    assert (await drive(driver, compacted, clock=clock)).output == 4
    assert history(driver) == []


async def test_drive_due_wakes_what_is_due_and_nothing_else(clock, calls):
    """S1-5 One scheduler for many runs, by their names."""

    @workflow
    async def sleeper(ctx: Context, hours: int) -> int:
        await ctx.sleep(hours * HOUR)
        return hours

    spaces = {f"run {hours}": MemoryDriver() for hours in (3, 2, 1)}
    for name, space in spaces.items():
        await drive(space, sleeper, int(name[-1]), clock=clock)

    async def one(name, space):
        calls.append(name)
        return await drive(space, sleeper, clock=clock)

    assert await drive_due(spaces, one, clock) == {}
    clock.advance(2 * HOUR)
    standings = await drive_due(spaces, one, clock)
    assert {name: standing.output for name, standing in standings.items()} == {"run 1": 1, "run 2": 2}
    assert calls == ["run 1", "run 2"], "the earliest first"
    assert await drive_due(spaces, one, clock) == {}


async def test_a_key_space_that_fails_keeps_no_other_run_from_being_driven(clock):
    """S1-5 Whether its alarm cannot be read or its run cannot be driven; which it was is said."""

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(HOUR)

    class Unreachable(MemoryDriver):
        def get_alarm(self):
            raise StoreUnreachable("its server is down")

    foreign, sound = MemoryDriver(), MemoryDriver()
    for space in (foreign, sound):
        await drive(space, sleeper, clock=clock)
    clock.advance(HOUR)
    foreign.batch({b"user:1": b"1"})
    spaces = {"down": Unreachable(), "foreign": foreign, "sound": sound}
    with pytest.raises(ExceptionGroup) as caught:
        await drive_due(spaces, lambda _, space: drive(space, sleeper, clock=clock), clock)
    notes = [note for error in caught.value.exceptions for note in error.__notes__]
    assert notes == ["raised while the alarm of run 'down' was read", "raised while run 'foreign' was driven"]
    assert sound.get_alarm() is None, "it was driven to its end"


async def test_a_batch_that_fails_or_whose_answer_is_lost_loses_nothing_at_any_batch(clock):
    """S1-7 S1-13 Each batch in turn, both ways: recorded steps are not run again, and the result is the same."""

    async def add(n: int) -> int:
        ran.append(n)
        return n + 1

    @workflow
    async def adding(ctx: Context) -> int:
        total = 0
        for _ in range(5):
            total = await ctx.step(add, total)
        await ctx.sleep(HOUR)
        return await ctx.step(add, total)

    for number in range(1, 10):
        for way in ("fail", "lose"):
            ran: list[int] = []
            driver = FaultyDriver(MemoryDriver())
            getattr(driver, way).add(number)
            output = None
            for _ in range(4):
                try:
                    standing = await drive(driver, adding, clock=clock)
                except StoreError:
                    recorded = set(ran[:-1])
                    continue
                clock.advance(HOUR)
                output = standing.output
                if standing.ended:
                    break
            assert (output, sorted(set(ran))) == (6, list(range(6)))
            assert driver.faults == (number <= driver.batches)
            assert len(ran) <= 7
            if driver.faults:
                assert all(ran.count(n) == 1 for n in recorded)


async def test_a_thousand_steps_are_a_thousand_and_one_batches(driver, clock, calls):
    """S1-31 As many as an engine makes commits: each has the end of a step and the beginning of the next."""
    work = calls.body("work")

    @workflow
    async def long(ctx: Context) -> int:
        for number in range(1000):
            await ctx.step(work, number)
        return number

    assert (await drive(driver, long, clock=clock)).output == 999
    assert (len(calls), driver.batches) == (1000, 1001)


async def test_steps_that_end_together_are_recorded_by_one_batch(driver, clock, calls):
    work = calls.body("work")

    @workflow
    async def wide(ctx: Context) -> int:
        return len(await asyncio.gather(*(ctx.step(work, number) for number in range(50))))

    assert (await drive(driver, wide, clock=clock)).output == 50
    assert driver.batches < 20


async def test_what_comes_together_is_spread_over_batches_that_the_driver_takes(clock, calls):
    """S1-7 S1-18 Many messages at once, and many steps that end in one moment; each batch is within its bound."""
    work, driver = calls.body("work"), FaultyDriver(MemoryDriver())
    driver.max_batch = driver._driver.max_batch = 32

    @workflow
    async def crowded(ctx: Context, lives: int) -> int:
        total = sum([await ctx.receive("number", int) for _ in range(150)])

        async def branch(inner: Context) -> int:
            return await inner.step(work, 1) + await inner.step(work, 1)

        found = await ctx.join("all", {f"b{number}": branch for number in range(8)})
        if lives:
            ctx.continue_as_new(lives - 1)
        return total + sum(found.values())

    for number in range(300):
        await deliver(driver, "number", number, clock=clock)
    assert (await drive(driver, crowded, 1, clock=clock)).output == sum(range(150, 300)) + 16
    assert len(calls) == 32
    assert list(await driver.list(keys.MESSAGE)) == []
