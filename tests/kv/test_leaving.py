"""How a driver leaves a run that has not ended: nothing that a step achieved is lost, and nothing counts as a crash."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from functools import partial

import pytest
from tests.support.key_spaces import Killed
from tests.support.waiting import LONG

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.clock import to_datetime
from holdfast.errors import NotOurDatabase, StoreError
from holdfast.kv import MemoryDriver, deliver, drive
from holdfast.kv.space import Space
from holdfast.replay import entry as entries
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

HOUR = timedelta(hours=1)
MINUTES = timedelta(minutes=2)
RAN: list[object] = []


@pytest.fixture(autouse=True)
def _nothing_ran():
    RAN.clear()


@pytest.fixture
def clock():
    return JumpingClock()


async def note(value: object) -> object:
    RAN.append(value)
    return value


async def lost(driver) -> list[str]:
    """Return why attempts were lost, as recorded."""
    rows = [row for row in await Space(driver).load() if row.kind == entries.AttemptLost.kind]
    return [entries.decode_entry(row.kind, row.data).why for row in rows]


@workflow
async def other(ctx: Context) -> None: ...


async def test_what_a_step_achieved_is_kept_though_the_code_then_asks_for_what_there_is_not(clock):
    """S1-14 S1-41 It is not done again each time the blocked run is tried."""

    @workflow(name="growing")
    async def asking(ctx: Context) -> None:
        await ctx.step("one", note, 1)
        await ctx.child(other)

    @workflow(name="growing")
    async def put_right(ctx: Context) -> list[object]:
        return [await ctx.step("one", note, 1), await ctx.step("two", note, 2)]

    driver = MemoryDriver()
    for _ in range(5):
        assert (await drive(driver, asking, clock=clock)).state == "blocked"
        clock.advance(MINUTES)
    assert RAN == [1]
    assert (await drive(driver, put_right, clock=clock)).output == [1, 2]
    assert RAN == [1, 2]


async def test_what_runs_beside_the_step_that_blocks_a_run_is_handed_back(clock):
    """S1-14 Neither lost with its process nor forgotten, whatever had ended before and at the same moment."""
    end = asyncio.Event()

    async def slow(value: object) -> object:
        RAN.append(value)
        await end.wait()
        return value

    def version(wrong: bool):
        @workflow(name="branching")
        async def branching(ctx: Context) -> list[object]:
            async def branch(inner: Context, number: int):
                first = await inner.step(note, number)
                if wrong and number == 1:
                    await inner.child(other)
                return [first, await inner.step(note, number + 10)]

            branches = {f"b{number}": partial(branch, number=number) for number in range(3)}
            both = await asyncio.gather(ctx.join("all", branches), ctx.step("slow", slow, "slow"))
            return [*both[0].values(), both[1]]

        return branching

    driver = MemoryDriver()
    for _ in range(4):
        assert (await drive(driver, version(True), clock=clock)).state == "blocked"
        assert "crash" not in await lost(driver)
        clock.advance(MINUTES)
    end.set()
    standing = await drive(driver, version(False), clock=clock)
    assert (standing.state, standing.output) == ("completed", [[0, 10], [1, 11], [2, 12], "slow"])
    assert [RAN.count(each) for each in (0, 1, 10, 11, 12)] == [1] * 5
    assert RAN.count(2) <= 2, "it had ended at the same moment, and was handed back"


async def test_a_body_that_outlasts_the_lifespan_and_ends_all_the_same_is_recorded(clock):
    """S1-14 A body that keeps the event loop busy is over before anything can be handed back."""

    async def busy(number: int) -> int:
        RAN.append((number, step_context().attempt))
        end = time.monotonic() + 0.02
        while time.monotonic() < end:
            pass
        return number

    @workflow
    async def heavy(ctx: Context) -> int:
        return sum([await ctx.step(busy, number) for number in range(6)])

    driver = FaultyDriver(MemoryDriver())
    lives = 0
    while not (standing := await drive(driver, heavy, clock=clock, lifespan=timedelta(milliseconds=10))).ended:
        lives += 1
        assert (standing.state, standing.until) == ("evicted", await driver.get_alarm())
        assert lives < 1000, "a busy machine takes some lives in which nothing begins"
    assert (standing.output, lives > 3) == (15, True)
    assert [(number, 1) for number in range(6)] == RAN, "each body ran once, by the number that it was given first"
    assert await lost(driver) == []


async def test_what_an_evicted_driver_had_under_way_counts_as_no_crash(clock):
    """S1-42 However often the run is moved to another host."""
    driver, began, tasks = MemoryDriver(), asyncio.Event(), []

    @activity(retry=Retry(crash_limit=1))
    async def long() -> int:
        RAN.append(step_context().attempt)
        began.set()
        if len(RAN) < 6:
            await asyncio.Event().wait()
        return 7

    @workflow
    async def moved(ctx: Context) -> int:
        return await ctx.step(long)

    for _ in range(5):
        began.clear()
        tasks.append(asyncio.ensure_future(drive(driver, moved, clock=clock)))
        await asyncio.wait_for(began.wait(), LONG)
        assert await deliver(driver, kind="evict", clock=clock)
    assert (await drive(driver, moved, clock=clock)).output == 7
    for task in tasks:  # each thinks that it has the run
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert sorted(set(RAN)) == RAN, "no number is given to two attempts"
    assert not await deliver(driver, kind="evict", clock=clock), "it has ended"


async def test_a_driver_that_is_cancelled_hands_back_what_is_under_way(clock):
    """A host that gives a run ten seconds by a timeout of its own kills no step by that."""
    driver = MemoryDriver()

    @activity(retry=Retry(crash_limit=1))
    async def long() -> int:
        RAN.append(step_context().attempt)
        if len(RAN) < 4:
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()
        return 7

    @workflow
    async def limited(ctx: Context) -> int:
        return await ctx.step(long)

    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:  # which is over once the body is under way
                await drive(driver, limited, clock=clock)
        assert driver.get_alarm() <= to_datetime(clock.now())
    assert (await drive(driver, limited, clock=clock)).output == 7
    assert set(await lost(driver)) == {"handed back"}


@pytest.mark.parametrize("how", ["fail", "lose"])
async def test_a_callback_is_told_whichever_batch_goes_wrong(clock, how):
    """S1-13 Also when the process ended after the end of the attempt was kept and before the callback was told."""

    @activity(
        on_success=lambda step, result: RAN.append(result),
        on_failure=lambda step, error: RAN.append(error.message),
        retry=Retry(max_attempts=2, initial_interval=timedelta(0)),
    )
    async def watched() -> int:
        if step_context().attempt == 1:
            raise OSError("once")
        return 7

    @workflow
    async def telling(ctx: Context) -> int:
        return await ctx.step(watched)

    for at in range(1, 12):
        RAN.clear()
        driver = FaultyDriver(MemoryDriver())
        getattr(driver, how).add(at)
        for _ in range(2):
            try:
                standing = await asyncio.wait_for(drive(driver, telling, clock=clock), LONG)
                break
            except StoreError:
                continue
        assert (standing.output, set(RAN) - {"once"}) == (7, {7}), at
        if not driver.faults:
            break
    assert at > 5


async def test_nothing_is_delivered_into_the_key_space_of_an_engine(clock):
    """S1-4 S1-8 Which the engine would then take for one that is not its own."""
    driver = MemoryDriver()
    store = KeyValueStore(driver)
    await store.open()
    before = driver.list(b"")
    for kind in ("message", "evict"):
        with pytest.raises(NotOurDatabase):
            await deliver(driver, "word", 1, kind=kind, clock=clock)
    assert (driver.list(b""), driver.get_alarm()) == (before, None)
    await store.close()
    await store.open()
    await store.close()


class Late(MemoryDriver):
    """A driver that keeps back its n-th batch, tells nothing of it, and makes it when it is told to."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at, self.batches, self.kept = at, 0, None

    def batch(self, puts, deletes=(), expect=None):
        self.batches += 1
        if self.batches == self._at:
            self.kept = (dict(puts), list(deletes), expect)
            raise Killed
        super().batch(puts, deletes, expect)

    def arrive(self):
        if self.kept is None:
            return False
        kept, self.kept = self.kept, None
        try:
            super().batch(*kept)
        except StoreError:
            return False
        return True


async def test_a_batch_that_arrives_after_the_next_driver_has_read_the_space_is_seen(clock):
    """S1-3 S1-7 A server that hung takes it at last: the driver that did not see it writes nothing upon it."""

    @workflow
    async def several(ctx: Context) -> list[object]:
        return [await ctx.step(note, number) for number in range(4)]

    arrived = 0
    for at in range(1, 6):
        RAN.clear()
        driver = Late(at)
        with pytest.raises(Killed):
            await drive(driver, several, id="run", clock=clock)
        load = Space.load

        async def read_and_then_it_comes(space, driver=driver, load=load):
            nonlocal arrived
            rows = await load(space)
            arrived += driver.arrive()
            return rows

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Space, "load", read_and_then_it_comes)
            standing = await drive(driver, several, id="run", clock=clock)
            if driver.kept is None and standing.state == "evicted":
                assert driver.get_alarm() <= to_datetime(clock.now())
                standing = await drive(driver, several, id="run", clock=clock)
        assert standing.output == [0, 1, 2, 3], at
        seqs = [row.seq for row in await Space(driver).load()]
        assert len(seqs) == len(set(seqs)), "no two entries have one number"
    assert arrived > 3
