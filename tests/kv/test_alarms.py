"""Alarms and what is delivered while a run is driven: whatever comes when, the run is woken for it."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta

import pytest
from tests.support.key_spaces import Killed

from holdfast import Context, workflow
from holdfast.clock import to_datetime
from holdfast.errors import OutcomeUnknown, StoreError, UndecodablePayload
from holdfast.kv import MemoryDriver, deliver, drive, drive_due
from holdfast.kv.driver import answer
from holdfast.kv.space import Space
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class Simple(MemoryDriver):
    """A driver that cannot compare."""

    compares = False

    def batch(self, puts, deletes=(), expect=None):
        assert expect is None
        super().batch(puts, deletes)


class Between(FaultyDriver):
    """A driver that lets something happen before its n-th call of any kind."""

    def __init__(self, driver, at, what):
        super().__init__(driver)
        self._at, self._what, self.calls = at, what, 0

    async def _meet(self):
        self.calls += 1
        if self.calls == self._at:
            await self._what()

    async def list(self, prefix):
        await self._meet()
        return await super().list(prefix)

    async def batch(self, puts, deletes=(), expect=None):
        await self._meet()
        await super().batch(puts, deletes, expect)

    async def set_alarm(self, at):
        await self._meet()
        await super().set_alarm(at)

    async def clear_alarm(self):
        await self._meet()
        await super().clear_alarm()

    async def get_alarm(self):
        await self._meet()
        return await super().get_alarm()


async def nothing() -> None: ...


@workflow
async def listener(ctx: Context) -> str:
    await ctx.step(nothing)
    return await ctx.receive("word", str, timeout=100 * HOUR)


@pytest.mark.parametrize("kind", ["message", "resume", "cancel"])
@pytest.mark.parametrize("made", [MemoryDriver, Simple])
async def test_what_is_delivered_between_any_two_calls_of_a_driver_wakes_the_run(made, kind):
    """S1-4 S1-5 S1-44 However the two meet, in the end the run has it or the alarm is due."""
    met = 0
    for at in range(1, 40):
        store, clock = made(), JumpingClock()
        if kind == "resume":
            await drive(store, listener, clock=clock)
            await deliver(store, kind="pause", clock=clock)
            await deliver(store, "word", "before", clock=clock)

        async def come(store=store, clock=clock):
            await deliver(store, "word", "hello", kind=kind, clock=clock)

        between = Between(store, at, come)
        standing = await drive(between, listener, clock=clock)
        if between.calls < at:
            assert at > 4
            break
        met += 1
        for _ in range(3):
            if standing.ended:
                break
            alarm = store.get_alarm()
            assert alarm is not None, f"lost at call {at}"
            assert alarm <= to_datetime(clock.now()), f"lost at call {at}"
            standing = await drive(store, listener, clock=clock)
        assert standing.state == ("cancelled" if kind == "cancel" else "completed"), at
    assert met > 3


@pytest.mark.parametrize("made", [MemoryDriver, Simple])
async def test_a_driver_that_comes_between_any_two_calls_of_a_delivery_leaves_the_run_woken(made):
    """S1-4 S1-5 It has looked before the message was there, and set the alarm to later."""
    for at in range(1, 20):
        store, clock = made(), JumpingClock()
        await drive(store, listener, clock=clock)

        async def come(store=store, clock=clock):
            await drive(store, listener, clock=clock)

        between = Between(store, at, come)
        assert await deliver(between, "word", "hello", clock=clock)
        if between.calls < at:
            break
        assert store.get_alarm() <= to_datetime(clock.now()), f"lost at call {at}"
        assert (await drive(store, listener, clock=clock)).output == "hello"
    assert at > 4


async def test_a_message_whose_sender_dies_after_its_batch_wakes_the_run():
    """S1-4 S1-5 The alarm is due before the message is there."""
    driver, clock = FaultyDriver(MemoryDriver()), JumpingClock()
    await drive(driver, listener, clock=clock)
    driver.lose = {driver.batches + 1}
    with pytest.raises(OutcomeUnknown):
        await deliver(driver, "word", "hello", clock=clock)
    assert await driver.get_alarm() <= to_datetime(clock.now())
    assert (await drive(driver, listener, clock=clock)).output == "hello"


async def test_messages_are_taken_in_the_order_of_their_delivery_however_the_clock_goes():
    """S1-6 S1-18 S1-19 Many at one instant, at later ones, and after the clock was set back."""
    store, clock = MemoryDriver(), JumpingClock()

    @workflow
    async def collecting(ctx: Context) -> list[int]:
        return [await ctx.receive("number", int) for _ in range(600)]

    for number in range(600):
        if number == 300:
            clock = JumpingClock(to_datetime(clock.now()) - HOUR)
        elif number > 300:
            clock.advance(timedelta(microseconds=number))
        await deliver(store, "number", number, clock=clock)
    assert (await drive(store, collecting, clock=clock)).output == list(range(600))


@pytest.mark.parametrize("made", [MemoryDriver, Simple])
async def test_a_message_with_an_id_is_delivered_once(made):
    """S1-43 Also after the run has taken it."""
    store, clock = made(), JumpingClock()

    @workflow
    async def twice(ctx: Context) -> list[str]:
        return [await ctx.receive("word", str), await ctx.receive("word", str)]

    assert await deliver(store, "word", "one", id="1", clock=clock)
    assert not await deliver(store, "word", "one", id="1", clock=clock)
    await drive(store, twice, clock=clock)
    assert not await deliver(store, "word", "one", id="1", clock=clock)
    assert await deliver(store, "word", "two", id="2", clock=clock)
    assert (await drive(store, twice, clock=clock)).output == ["one", "two"]


async def test_the_alarm_is_due_from_before_the_first_batch_until_the_last(monkeypatch):
    """S1-5 A process that dies at any batch leaves an alarm that is due; afterwards it is when the run goes on."""
    clock = JumpingClock()
    seen = []

    class Watching(FaultyDriver):
        async def batch(self, puts, deletes=(), expect=None):
            seen.append(await self.get_alarm())
            await super().batch(puts, deletes, expect)

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.step(nothing)
        await ctx.sleep(HOUR)
        await ctx.step(nothing)

    driver = Watching(MemoryDriver())
    standing = await drive(driver, sleeper, clock=clock)
    began = to_datetime(clock.now())
    assert await driver.get_alarm() == standing.until == began + HOUR
    clock.advance(HOUR)
    driver.fail = {driver.batches + 1}
    with pytest.raises(StoreError):
        await drive(driver, sleeper, clock=clock)
    assert await driver.get_alarm() == began + HOUR
    assert (await drive(driver, sleeper, clock=clock)).ended
    assert len(seen) > 4
    assert all(alarm is not None and alarm <= began + HOUR for alarm in seen)
    assert await driver.get_alarm() is None


@pytest.mark.parametrize("made", [MemoryDriver, Simple])
async def test_a_blocked_run_keeps_an_alarm_for_the_code_that_fits(made):
    """S1-37 Nothing of it is written; it is tried again a minute later, not at once and again and again."""
    store, clock = made(), JumpingClock()

    def version(name):
        @workflow(name="changing")
        async def changing(ctx: Context) -> str:
            await ctx.step(name, nothing)
            await ctx.sleep(HOUR)
            return name

        return changing

    async def one(name, space):
        return await drive(space, version(name), clock=clock)

    await drive(store, version("old"), clock=clock)
    before = store.list(b"")
    clock.advance(HOUR)
    standing = (await drive_due({"new": store}, one, clock))["new"]
    assert (standing.state, standing.until) == ("blocked", store.get_alarm())
    assert (store.list(b""), await drive_due({"new": store}, one, clock)) == (before, {})
    clock.advance(MINUTE)
    assert (await drive_due({"old": store}, one, clock))["old"].output == "old"


async def test_a_run_whose_arguments_do_not_fit_the_code_is_blocked_until_they_do():
    """S1-37 As on an engine; arguments that never fitted are refused where they are given."""
    store, clock = MemoryDriver(), JumpingClock()

    @workflow(name="changing")
    async def old(ctx: Context, number: int) -> int:
        await ctx.sleep(HOUR)
        return number

    @workflow(name="changing")
    async def new(ctx: Context, number: list[str]) -> int:
        await ctx.sleep(HOUR)
        return len(number)

    with pytest.raises(UndecodablePayload):
        await drive(store, new, 1, clock=clock)
    assert store.list(b"") == []
    await drive(store, old, 1, clock=clock)
    before = store.list(b"")
    standing = await drive(store, new, clock=clock)
    assert (standing.state, standing.error.type.endswith("UndecodablePayload")) == ("blocked", True)
    assert (store.list(b""), store.get_alarm()) == (before, standing.until)
    clock.advance(HOUR)
    assert (await drive(store, old, clock=clock)).output == 1


async def test_a_driver_that_cannot_compare_gives_the_run_up_when_it_is_asked_to():
    """S1-42 Seen when it has nothing left to do but wait; the next call goes on."""
    store, clock = Simple(), JumpingClock()
    began, go_on, ran = asyncio.Event(), asyncio.Event(), []

    async def slow() -> None:
        ran.append(1)
        began.set()
        await go_on.wait()

    @workflow
    async def moved(ctx: Context) -> str:
        await ctx.step(slow)
        return await ctx.receive("word", str)

    task = asyncio.ensure_future(drive(store, moved, clock=clock))
    await began.wait()
    assert await deliver(store, kind="evict", clock=clock)
    go_on.set()
    assert (await task).state == "evicted"
    assert store.get_alarm() is not None
    assert (await drive(store, moved, clock=clock)).state == "waiting"
    await deliver(store, kind="evict", clock=clock)
    assert (await drive(store, moved, clock=clock)).state == "evicted"
    await deliver(store, "word", "on", clock=clock)
    assert (await drive(store, moved, clock=clock)).output == "on"
    assert ran == [1]


async def test_a_pause_that_comes_while_the_run_is_driven_is_seen_when_it_waits():
    store, clock = MemoryDriver(), JumpingClock()
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    @workflow
    async def plain(ctx: Context) -> str:
        await ctx.step(slow)
        await ctx.sleep(HOUR)
        return "done"

    task = asyncio.ensure_future(drive(store, plain, clock=clock))
    await began.wait()
    await deliver(store, kind="pause", clock=clock)
    go_on.set()
    assert ((await task).state, store.get_alarm()) == ("paused", None)
    clock.advance(HOUR)
    assert (await drive(store, plain, clock=clock)).state == "paused"
    await deliver(store, kind="resume", clock=clock)
    assert (await drive(store, plain, clock=clock)).output == "done"


async def test_a_run_that_receives_is_not_waited_for_however_patient_its_driver_is():
    """What is delivered meanwhile would not be seen."""
    store, clock = MemoryDriver(), JumpingClock()
    standing = await drive(store, listener, clock=clock, patience=1000 * HOUR)
    assert (standing.state, standing.waits_for) == ("waiting", ("word",))


async def test_a_driver_that_is_fenced_before_it_does_anything_says_so():
    """S1-3 Its first batch deletes what was said of a pause; another driver was quicker."""
    store, clock = MemoryDriver(), JumpingClock()
    await drive(store, listener, clock=clock)
    await deliver(store, kind="pause", clock=clock)
    await deliver(store, kind="resume", clock=clock)

    async def other():
        await deliver(store, kind="evict", clock=clock)

    standing = await drive(Between(store, 2, other), listener, clock=clock)
    assert (standing.state, "another driver" in standing.error.message) == ("evicted", True)


class Dying(Between):
    """A driver whose process dies at its n-th call of any kind."""

    def __init__(self, driver, at):
        async def die():
            raise Killed

        super().__init__(driver, at, die)


async def test_a_driver_that_sets_its_alarm_late_takes_none_from_the_next_one_that_dies():
    """S1-3 S1-5 The first was held up, its alarm rang again, a second has gone on with the run and died."""
    met = 0
    for first in range(1, 30):
        for second in range(1, 40):
            store, clock = MemoryDriver(), JumpingClock()
            dying = Dying(store, second)

            async def another(dying=dying, store=store, clock=clock):
                await deliver(store, "word", "hello", clock=clock)
                with contextlib.suppress(Killed):
                    await drive(dying, working, clock=clock)

            between = Between(store, first, another)
            standing = await drive(between, working, clock=clock)
            if between.calls < first or dying.calls < second:
                break
            met += 1
            state = Space(store)
            await state.load()
            stored = state.state
            if stored is not None and stored.state == "running":
                alarm = store.get_alarm()
                assert alarm is not None, (first, second, standing)
                assert alarm <= to_datetime(clock.now()), (first, second, standing)
        if between.calls < first:
            break
    assert met > 50


@workflow
async def working(ctx: Context) -> str:
    await ctx.step(nothing)
    found = await ctx.receive("word", str)
    await ctx.step(nothing)
    await ctx.step(nothing)
    return found


async def test_an_alarm_that_an_earlier_driver_cleared_just_before_it_was_fenced_is_set_again():
    """S1-3 S1-5"""
    seen = []

    class Cleared(FaultyDriver):
        async def batch(self, puts, deletes=(), expect=None):
            if not self.batches:
                await answer(self._driver.clear_alarm())
            else:
                seen.append(await self.get_alarm())
            await super().batch(puts, deletes, expect)

    clock = JumpingClock()
    assert (await drive(Cleared(MemoryDriver()), working, clock=clock)).state == "waiting"
    assert len(seen) > 0
    assert all(alarm is not None and alarm <= to_datetime(clock.now()) for alarm in seen)
