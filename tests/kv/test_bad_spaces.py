"""Key spaces that `drive` cannot read are refused by name and left as they are; values in parts stay whole."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from holdfast import Context, workflow
from holdfast.errors import HoldfastError, NotOurDatabase, SchemaTooNew, StoreCorrupt
from holdfast.kv import MemoryDriver, compact, deliver, drive, keys
from holdfast.testing import JumpingClock
from holdfast.testing.drivers import FaultyDriver

HOUR = timedelta(hours=1)


async def large(size: int) -> str:
    return "x" * size


@workflow
async def sleeper(ctx: Context, text: str = "") -> str:
    found = await ctx.step(large, 10)
    await ctx.sleep(HOUR)
    return found + text


NOT_OURS = [
    b"user:1", b"\x00", b"\x01", b"\x01e", b"\x01eabc", b"\x01e\xff\xff\x00" + bytes(8), b"\x01ea0\x00" + bytes(7),
    b"\x01r", b"\x01rname", b"\x01rabout2", b"\x01mshort", b"\x01m" + bytes(17), b"\x01s1", b"\x01v" + bytes(9),
    b"\x01ea0\x00" + bytes(8) + b"\xfe\x00\x01", b"\x01zabc", b"\xff\xff",
]  # fmt: skip


@pytest.mark.parametrize("foreign", NOT_OURS)
@pytest.mark.parametrize("begun", [False, True])
async def test_keys_of_another_program_are_refused_by_name_and_untouched(foreign, begun):
    """S1-2 S1-8 Whatever they look like; also when they come among the keys of a run."""
    driver = FaultyDriver(MemoryDriver())
    if begun:
        await drive(driver, sleeper)
    await driver.batch({foreign: b"1"})
    before, alarms = await driver.list(b""), len(driver.alarms)
    for asked in (drive(driver, sleeper), compact(driver)):
        with pytest.raises(NotOurDatabase, match="is not one of a run; use a key space of its own for each run"):
            await asked
    assert (await driver.list(b""), len(driver.alarms)) == (before, alarms)


@pytest.mark.parametrize("newer", [b"\x02eabc", b"\x02rabout", b"\x1fm"])
async def test_keys_of_a_newer_format_are_refused_by_name_and_untouched(newer):
    """S1-2"""
    driver = MemoryDriver()
    driver.batch({newer: b"1"})
    for asked in (drive(driver, sleeper), compact(driver)):
        with pytest.raises(SchemaTooNew, match=f"format {newer[0]}, which a newer holdfast wrote"):
            await asked
    assert driver.list(b"") == [(newer, b"1")]
    assert driver.get_alarm() is None


@pytest.mark.parametrize(
    "damaged",
    [keys.ABOUT, keys.STATE, keys.EPOCH, keys.entry_key("a0", 99), keys.message_key(1, 1)],
)
async def test_a_value_that_cannot_be_read_is_named(damaged):
    driver = MemoryDriver()
    await drive(driver, sleeper)
    driver.batch({damaged: b'{"cut'})
    before = driver.list(b"")
    with pytest.raises(StoreCorrupt, match=r"the value of key .* cannot be read: .*restore"):
        await drive(driver, sleeper)
    assert driver.list(b"") == before


async def test_a_damaged_key_space_never_raises_anything_but_errors_that_say_so():
    """Keys dropped, cut, grown and values changed at random: it goes on, is blocked, or is refused; all by name."""
    dice = random.Random(7)
    clock = JumpingClock()
    whole = MemoryDriver()
    whole.max_value = 40
    await drive(whole, sleeper, "t" * 100, clock=clock)
    await deliver(whole, "unread", "m" * 100, clock=clock)
    refused = 0
    for _ in range(300):
        pairs = dict(whole.list(b""))
        for key in dice.sample(sorted(pairs), 2):
            way, value = dice.randrange(6), pairs[key]
            place = dice.randrange(len(key))
            if way == 0:
                del pairs[key]
            elif way == 1:
                pairs[key[:place] + bytes([dice.randrange(256)]) + key[place + 1 :]] = pairs.pop(key)
            elif way == 2:
                pairs[key] = value[: dice.randrange(len(value) + 1)]
            elif way == 3:
                pairs[key + bytes([dice.randrange(256)])] = value
            elif way == 4:
                pairs[key] = bytes(dice.randrange(256) if dice.random() < 0.05 else byte for byte in value)
            else:
                pairs[key] = value.replace(b"1", b"2").replace(b'"', b"'", dice.randrange(2))
        driver = MemoryDriver()
        driver.max_value = 40
        driver.batch(pairs)
        try:
            await drive(driver, sleeper, clock=clock)
        except HoldfastError:
            refused += 1
            assert dict(driver.list(b"")) == pairs
    assert refused > 100


async def test_a_value_that_becomes_shorter_leaves_no_part_of_the_longer_one():
    """S1-7 The input of a run that continues as new: the parts of the old one go with the batch that replaces it."""
    store, clock = MemoryDriver(), JumpingClock()
    store.max_value = 100
    driver = FaultyDriver(store)

    @workflow
    async def shrinking(ctx: Context, text: str) -> str:
        await ctx.step(large, 1000 if len(text) > 1 else 150)
        if len(text) > 1:
            ctx.continue_as_new(text[: len(text) // 3])
        await ctx.sleep(HOUR)
        return text

    assert (await drive(driver, shrinking, "i" * 900, clock=clock)).state == "sleeping"
    clock.advance(HOUR)
    assert (await drive(driver, shrinking, clock=clock)).output == "i"
    assert [key for key, _ in store.list(keys.INPUT)] == [keys.INPUT]


async def test_a_message_in_parts_that_comes_while_the_run_is_driven_is_deleted_whole():
    """S1-18"""
    driver, clock = MemoryDriver(), JumpingClock()
    driver.max_value = 100
    began, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        began.set()
        await go_on.wait()

    @workflow
    async def listener(ctx: Context) -> str:
        await ctx.step(slow)
        text = await ctx.receive("text", str)
        await ctx.sleep(HOUR)
        return text

    task = asyncio.ensure_future(drive(driver, listener, clock=clock))
    await began.wait()
    await deliver(driver, "text", "m" * 1000, clock=clock)
    go_on.set()
    assert (await task).state == "sleeping"
    assert driver.list(keys.MESSAGE) == []
    clock.advance(HOUR)
    assert (await drive(driver, listener, clock=clock)).output == "m" * 1000


async def test_a_value_of_which_a_part_is_missing_is_refused_by_name():
    driver = MemoryDriver()
    driver.max_value = 20
    await drive(driver, sleeper, "t" * 100)
    parts = [key for key, _ in driver.list(keys.INPUT)]
    assert len(parts) > 3
    driver.batch({}, [parts[2]])
    with pytest.raises(StoreCorrupt, match=r"rinput' is there in part only"):
        await drive(driver, sleeper)


async def test_compaction_counts_the_parts_of_values_too():
    """S1-38"""
    driver, clock = MemoryDriver(), JumpingClock()
    driver.max_value = 20
    await drive(driver, sleeper, "t" * 100, clock=clock)
    clock.advance(HOUR)
    assert (await drive(driver, sleeper, clock=clock)).ended
    before = len(driver.list(b""))
    removed = await compact(driver, clock)
    assert removed == before - len(driver.list(b"")) > len("abc")


@workflow
async def noting(ctx: Context) -> None:
    ctx.set_attributes(city="Berlin")
    ctx.evidence("seen", 1)
    await ctx.sleep(HOUR)
    ctx.set_attributes(city="Bonn")
    ctx.evidence("seen", 2)
    raise ValueError("in vain")


@pytest.mark.parametrize("damaged", [keys.INPUT, keys.ATTRIBUTES, keys.numbered(keys.TRAIL, 1), keys.ERROR])
async def test_what_is_read_late_of_a_run_is_named_too_when_it_cannot_be_read(damaged):
    """S1-14 What code goes on from, and how a run ended: nothing is written upon it."""
    driver, clock = MemoryDriver(), JumpingClock()
    await drive(driver, noting, clock=clock)
    clock.advance(HOUR)
    if damaged == keys.ERROR:
        assert (await drive(driver, noting, clock=clock)).state == "failed"
    driver.batch({damaged: b'{"cut'} if damaged != keys.INPUT else {}, [damaged] if damaged == keys.INPUT else [])
    before = driver.list(b"")
    with pytest.raises(StoreCorrupt, match="restore"):
        await drive(driver, noting, clock=clock)
    assert driver.list(b"") == before


async def test_a_number_that_cannot_be_read_is_named_when_a_driver_is_evicted():
    driver = MemoryDriver()
    await drive(driver, sleeper)
    driver.batch({keys.EPOCH: b"many"})
    with pytest.raises(StoreCorrupt, match="epoch"):
        await deliver(driver, kind="evict")
