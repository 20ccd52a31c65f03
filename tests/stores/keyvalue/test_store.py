"""The key-value store by itself: what is stored, by whom, and what becomes of it when a batch goes wrong."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from tests.support.key_spaces import Killed, OddDriver
from tests.support.waiting import eventually

from holdfast import Context, workflow
from holdfast.clock import micros
from holdfast.contract.operations import Started
from holdfast.contract.turns import StartRun
from holdfast.errors import (
    BadInput,
    HoldfastError,
    NotOurDatabase,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReplaced,
)
from holdfast.kv import DirectoryDriver, MemoryDriver, drive
from holdfast.kv.driver import answer
from holdfast.stores.keyvalue import KeyValueStore, space
from holdfast.stores.keyvalue import store as key_value_store
from holdfast.stores.keyvalue.looking import DirectoryLook
from holdfast.stores.keyvalue.rows import ChangedRows, everything, tables_of
from holdfast.stores.keyvalue.space import ABOUT, COMPLETE, OWNER
from holdfast.stores.sql.files import migrations
from holdfast.stores.sqlite.file import connect_memory
from holdfast.system import boot_time, process_began
from holdfast.testing import TestEngine
from holdfast.testing.conformance import LEASE, NOW, new_run, one, row
from holdfast.testing.drivers import FaultyDriver

RAN: list[int] = []


async def count(n: int) -> int:
    RAN.append(n)
    return n


@workflow
async def approved(ctx: Context, n: int) -> list[int]:
    first = await ctx.step(count, n)
    await ctx.sleep(timedelta(hours=1))
    added: int = await ctx.receive("approved")
    return [first, await ctx.step(count, n + added)]


async def test_a_run_goes_on_in_the_next_process_and_no_step_runs_again():
    """S0-10, S0-40, S0-41, G3: everything that the second engine knows it read from the driver."""
    RAN.clear()
    driver = MemoryDriver()
    async with TestEngine(store=KeyValueStore(driver), workflows=[approved]) as engine:
        run = await engine.start(approved, 7, id="order-1")
        await run.send("approved", 3)
    async with TestEngine(store=KeyValueStore(driver), workflows=[approved]) as engine:
        assert await engine.get("order-1").result() == [7, 10]
    assert RAN == [7, 10]


# What is stored.


def test_every_change_of_every_table_is_seen():
    """S0-41: a table that the hook does not see would be lost with the process."""
    db = connect_memory()
    tables = tables_of(db)
    assert len(tables) > 30
    changes, marks, stored = ChangedRows(tables), {}, dict(everything(db))
    db.preupdate_hook(changes.note, id="test")

    def follow() -> None:
        puts, deletes = changes.take(marks)
        stored.update(puts)
        for key in deletes:
            del stored[key]
        assert stored == dict(everything(db))

    for table in tables.values():
        columns = db.execute("SELECT name, type, pk FROM pragma_table_info(?)", (table.name,)).fetchall()
        assert table.identity, f"{table.name} has no primary key"
        rows = [[n if kind == "INTEGER" else f"{name}-{n}" for name, kind, _ in columns] for n in (1, 2, 3)]
        values = ", ".join("?" * table.width)
        db.executemany(f"INSERT INTO {table.name} VALUES ({values})", rows)
        follow()
        db.execute(f"INSERT OR REPLACE INTO {table.name} VALUES ({values})", rows[0])
        follow()
        changing = next((name for name, kind, pk in columns if not pk and kind == "TEXT"), None)
        if changing is not None:
            db.execute(f"UPDATE {table.name} SET {changing} = {changing} || 'x'")
            follow()
        moved = next(name for name, _, pk in columns if pk)
        db.execute(f"UPDATE {table.name} SET {moved} = {moved} || '0'")
        follow()
        db.execute(f"DELETE FROM {table.name}")
        follow()


def test_the_schema_has_nothing_but_tables_that_the_hook_sees():
    """S0-41: no virtual table, and no trigger, which could change rows of its own."""
    db = connect_memory()
    assert not db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' OR sql LIKE '%VIRTUAL%'").fetchall()
    numbered = {name for name, table in tables_of(db).items() if table.numbered}
    assert numbered == {"runs", "events"}


def start(id: str, **fields: Any) -> StartRun:
    return StartRun(run=new_run(id, **fields))


async def opened(driver) -> KeyValueStore:
    store = KeyValueStore(driver)
    await store.open()
    return store


async def test_numbers_that_were_given_out_are_not_given_out_again():
    """S0-41, S2-18: the run that had the highest key may be gone."""
    driver = MemoryDriver()
    store = await opened(driver)
    first = await one(store, start("a"), Started)
    await store._connections.write(lambda db: db.execute("DELETE FROM runs").fetchall())
    await store.close()
    store = await opened(driver)
    assert (await one(store, start("b"), Started)).key > first.key
    await store.close()


class SmallDriver(OddDriver):
    max_value = 1024
    max_batch = 16


async def test_values_that_are_longer_than_the_driver_takes_are_kept_in_parts():
    driver = SmallDriver()
    for size in (10_000, 900, 5_000):
        store = await opened(driver)
        await store._connections.write(
            lambda db, size=size: db.execute("INSERT OR REPLACE INTO inputs VALUES (1, ?)", ("x" * size,)).fetchall()
        )
        assert max(map(len, driver.stored().values())) <= 1024
        await store.close()
        store = await opened(driver)
        assert await store._connections.read(lambda db: db.execute("SELECT length(input) FROM inputs").get) == size
        await store._connections.write(lambda db: db.execute("UPDATE inputs SET input = 'y'").fetchall())
        await store.close()
    assert len([key for key in driver.stored() if key.startswith(b"Erinputs")]) == 1


async def test_a_driver_that_takes_too_little_is_refused():
    driver = SmallDriver()
    driver.max_value = 100
    with pytest.raises(BadInput, match="1024"):
        await opened(driver)
    assert driver.stored() == {}


# A batch that goes wrong.


async def test_nothing_is_seen_of_a_batch_that_failed():
    """G1: what the driver did not take is not in memory either, and the next batch is made as if nothing had been."""
    driver = OddDriver()
    store = await opened(driver)
    driver.do("fail")
    with pytest.raises(StoreError, match="no batch today"):
        await store.apply([start("a")])
    assert await store.get("a") is None
    await one(store, start("a"), Started)
    await store.close()
    store = await opened(driver)
    assert (await row(store, "a")).id == "a"
    await store.close()


@pytest.mark.parametrize(("how", "kept"), [("lose", False), ("lost", True)])
async def test_everything_is_read_back_when_the_answer_of_a_batch_was_lost(how, kept):
    """S0-40, G1, G3: whatever became of it, what is answered afterwards is what is stored."""
    driver = OddDriver()
    store = await opened(driver)
    await store.join("w", LEASE)
    driver.do(how)
    with pytest.raises(OutcomeUnknown):
        await store.apply([start("a", owner="w")])
    assert store.apply_now([start("b")]) is None  # it has to read first
    assert (await store.get("a") is not None) is kept
    await one(store, start("b"), Started)
    assert store.renew("w")
    await store.close()


async def test_a_process_that_is_killed_in_a_batch_leaves_all_of_it_or_nothing():
    """S0-40, G1"""
    for how, kept in (("kill", False), ("killed", True)):
        driver = OddDriver()
        store = await opened(driver)
        driver.do(how)
        with pytest.raises(Killed):
            await store.apply([start("a")])
        store._connections.space.abandon()
        again = await opened(driver)
        assert (await again.get("a") is not None) is kept
        await again.close()
        await store.close()


async def test_a_change_that_is_too_large_for_one_batch_is_made_whole_or_not_at_all():
    """G1: a process dies before and after each of its batches, and the next one finds all of it or nothing."""
    runs = [start(f"run-{n}") for n in range(40)]
    outcomes = set()
    for number in range(200):
        for how in ("kill", "killed", "fail", "lost"):
            driver = SmallDriver()
            store = await opened(driver)
            driver.do(how, after=number)
            try:
                await store.apply(runs)
            except (Killed, StoreError):
                pass
            driver.then.clear()
            if how in ("kill", "killed"):
                store._connections.space.abandon()
                await store.close()
                store = await opened(driver)
            found = [await store.get(start.run.id) is not None for start in runs]
            assert all(found) or not any(found), (how, number)
            outcomes.add(all(found))
            await store.close()
            assert not [key for key in driver.stored() if key.startswith((b"Ej", b"Ec"))] or not any(found)
        if not driver.happened:
            break
    assert outcomes == {True, False}
    assert number > 10


# Whose it is.


async def test_a_second_store_is_refused_while_the_first_has_the_key_space():
    """S0-41: one process at a time."""
    driver = MemoryDriver()
    store = await opened(driver)
    with pytest.raises(StoreBusy, match="this process has it open"):
        await opened(driver)
    await one(store, start("a"), Started)
    await store.close()
    assert OWNER not in dict(driver.list(b""))
    await (await opened(driver)).close()


async def test_a_process_that_may_still_run_elsewhere_is_fenced(monkeypatch):
    """G5: what it writes is refused, and so is what it asks."""
    driver = MemoryDriver()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    first = await opened(driver)
    await first.join("w", LEASE)
    monkeypatch.setattr(space, "_ours", set())  # as in another process
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    careful = KeyValueStore(driver)
    careful.fences = False
    with pytest.raises(StoreBusy, match="elsewhere"):
        await careful.open()
    second = await opened(driver)
    [taken] = await second.take_over(NOW)
    assert (taken.worker, taken.lost) == ("w", "lapse")  # it may have been alive: no step is blamed
    with pytest.raises(StoreReplaced, match="another process"):
        await first.take_over(NOW)
    with pytest.raises(StoreReplaced, match="another process"):
        await first.apply([start("a")])
    with pytest.raises(StoreReplaced):
        first.renew("w")
    await one(second, start("a"), Started)
    await first.close()
    await second.close()


async def test_a_process_that_lost_an_answer_does_not_take_the_key_space_back_from_the_next_one(monkeypatch):
    """G5: it was cut off, another has taken the key space meanwhile, and it is connected again."""
    driver = OddDriver()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    first = await opened(driver)
    driver.do("lose")
    with pytest.raises(OutcomeUnknown):
        await first.apply([start("a")])
    ours = space._ours
    monkeypatch.setattr(space, "_ours", set())  # as in another process
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    second = await opened(driver)
    await one(second, start("b"), Started)
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    monkeypatch.setattr(space, "_ours", ours)
    for _ in range(2):
        with pytest.raises(StoreReplaced, match="another process"):
            await first.apply([start("c")])
    await first.close()
    await one(second, start("d"), Started)
    await second.close()


async def owned_by(driver, owner):
    """Leave a key space as a process does that was killed while a worker of it ran something."""
    store = await opened(driver)
    await store.join("w", LEASE)
    await one(store, start("a", owner="w"), Started)
    store._connections.space.abandon()
    stored = dict(await answer(driver.list(b"")))
    told = {**json.loads(stored[OWNER]), **owner}
    await answer(driver.batch({OWNER: json.dumps(told).encode()}))
    await store.close()


async def test_a_process_that_has_the_number_of_an_earlier_one_does_not_keep_its_key_space():
    """S0-41: of the owner its number runs, and began at another time."""
    driver = MemoryDriver()
    await owned_by(driver, {"pid": os.getppid(), "began": "1"})
    store = KeyValueStore(driver)
    store.fences = False
    await store.open()
    [taken] = await store.take_over(NOW)
    assert (taken.worker, taken.lost) == ("w", "crash")
    await store.close()


async def test_a_killed_process_that_its_parent_does_not_ask_after_does_not_keep_its_key_space():
    """S0-41: in a container for example, where nothing does."""
    driver = MemoryDriver()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        await owned_by(driver, {"pid": child.pid, "began": process_began(child.pid)})
        with pytest.raises(StoreBusy, match=str(child.pid)):
            await opened(driver)
        child.kill()
        await eventually(lambda: process_began(child.pid) is None)
        assert child.returncode is None
        await (await opened(driver)).close()


async def test_a_process_of_another_container_of_that_name_is_not_taken_for_an_earlier_one():
    """G5: both have the same number, as containers count their processes each by themselves."""
    driver = MemoryDriver()
    await owned_by(driver, {"machine": "another"})
    careful = KeyValueStore(driver)
    careful.fences = False
    with pytest.raises(StoreBusy, match="as far as is known"):
        await careful.open()
    store = await opened(driver)
    [taken] = await store.take_over(NOW)
    assert (taken.worker, taken.lost) == ("w", "lapse")  # it may have been alive: no step is blamed
    await store.close()


async def test_whoever_had_a_directory_is_gone_when_it_can_be_opened(tmp_path):
    """S0-41: wherever that was; so an operator's command is not refused after a crash."""
    await owned_by(DirectoryDriver(tmp_path), {"host": "elsewhere"})
    store = KeyValueStore(lambda: DirectoryDriver(tmp_path))
    store.fences = False
    await store.open()
    [taken] = await store.take_over(NOW)
    assert (taken.worker, taken.lost) == ("w", "crash")
    await store.close()


async def test_what_a_killed_process_was_running_is_known_as_lost():
    driver = MemoryDriver()
    store = await opened(driver)
    await store.join("w", LEASE)
    await one(store, start("a", owner="w"), Started)
    store._connections.space.abandon()
    again = await opened(driver)
    [taken] = await again.take_over(NOW)
    assert (taken.worker, taken.lost) == ("w", "crash")
    await again.close()
    await store.close()


# What is not ours.


async def test_keys_of_another_program_are_refused_and_left_alone():
    driver = OddDriver()
    driver.batch({b"session:17": b"x"})
    with pytest.raises(NotOurDatabase, match="session:17"):
        await opened(driver)
    assert driver.stored() == {b"session:17": b"x"}
    driver = OddDriver()
    await (await opened(driver)).close()
    driver.batch({b"session:17": b"x"})
    before = driver.stored()
    with pytest.raises(NotOurDatabase, match="session:17"):
        await opened(driver)
    assert driver.stored() == before


async def test_the_key_space_of_a_single_run_and_that_of_an_engine_are_not_mistaken_for_each_other():
    @workflow
    async def short(ctx: Context) -> int:
        return await ctx.step(count, 1)

    driver = OddDriver()
    await drive(driver, short)
    before = driver.stored()
    with pytest.raises(NotOurDatabase, match="single run"):
        await opened(driver)
    assert driver.stored() == before
    driver = OddDriver()
    await (await opened(driver)).close()
    before = driver.stored()
    with pytest.raises(NotOurDatabase):
        await drive(driver, short)
    assert driver.stored() == before


@pytest.mark.parametrize("newer", [{"format": 2, "schema": 19}, {"format": 1, "schema": 9999}])
async def test_what_a_newer_holdfast_wrote_is_refused_and_left_alone(newer):
    driver = OddDriver()
    await (await opened(driver)).close()
    driver.batch({ABOUT: msgspec.json.encode(newer)})
    before = driver.stored()
    with pytest.raises(SchemaTooNew):
        await opened(driver)
    assert driver.stored() == before


@pytest.mark.parametrize(
    "damaged",
    [
        {ABOUT: b'{"cut'}, {OWNER: b"{}"}, {b"Emruns": b"many"}, {b"Emnone": b"1"}, {COMPLETE: b"1"},
        {b"Erruns": b"1"}, {b"Erruns\0short": b"1"}, {b"Ernone\0" + bytes(16): b"\x90"},
        {b"Erruns\0" + bytes(16): b"\x90"}, {b"Erinputs\0" + bytes(16): b"\x92\x01\xa1x"},
        {b"Erinputs\0" + bytes(16): b"\xc1"}, {b"Erinputs\0" + bytes(16) + b"\0\1": b"\x90"},
        {b"Erinputs\0" + bytes(16): b"\x92\x01", b"Erinputs\0" + bytes(16) + b"\0\2": b"\xa1x"},
    ],
)  # fmt: skip
async def test_a_key_space_that_cannot_be_read_is_refused_by_name_and_its_rows_are_left_alone(damaged):
    driver = OddDriver()
    await (await opened(driver)).close()
    driver.batch(damaged)
    before = driver.stored()
    for _ in range(2):
        with pytest.raises((StoreCorrupt, NotOurDatabase), match=r"a key space of its own|restore"):
            await opened(driver)
    assert {key: value for key, value in driver.stored().items() if key != OWNER or OWNER in damaged} == before


async def test_a_damaged_key_space_never_raises_anything_but_errors_that_say_so():
    """Keys dropped, cut, grown and values changed at random: it opens, or is refused by name."""
    dice = random.Random(7)
    whole = OddDriver()
    async with TestEngine(store=KeyValueStore(whole), workflows=[approved]) as engine:
        await engine.start(approved, 1)
        await engine.settle()
    refused = 0
    for _ in range(300):
        pairs = whole.stored()
        for key in dice.sample(sorted(pairs), 2):
            way, value = dice.randrange(4), pairs[key]
            place = dice.randrange(len(key))
            if way == 0:
                del pairs[key]
            elif way == 1:
                pairs[key[:place] + bytes([dice.randrange(256)]) + key[place + 1 :]] = pairs.pop(key)
            elif way == 2:
                pairs[key] = value[: dice.randrange(len(value) + 1)]
            else:
                pairs[key] = bytes(dice.randrange(256) if dice.random() < 0.1 else byte for byte in value)
        driver = MemoryDriver()
        driver.batch(pairs)
        store = KeyValueStore(driver)
        try:
            await store.open()
        except HoldfastError:
            refused += 1
            left = {key: value for key, value in driver.list(b"") if key != OWNER}
            assert left == {key: value for key, value in pairs.items() if key != OWNER}
        else:
            await store.close()
    assert refused > 100


async def test_rows_of_an_older_schema_are_brought_up_to_date_whole_or_not_at_all():
    """S0-41: as the tables of an SQL database are."""
    [*older, _] = migrations("sqlite")
    db = apsw.Connection(":memory:")
    for _, script in older:
        db.execute(script)
    db.execute("INSERT INTO inputs VALUES (1, 'kept')")
    old = dict(everything(db)) | {ABOUT: msgspec.json.encode({"format": 1, "schema": older[-1][0]})}
    for how in ("kill", "killed", ""):
        driver = OddDriver()
        driver.batch(old)
        if how:
            driver.do(how, after=1)  # the first makes this process the owner
            with pytest.raises(Killed):
                await opened(driver)
        store = await opened(driver)
        assert await store._connections.read(lambda db: db.execute("SELECT input FROM inputs").get) == "kept"
        assert await store.secret("selections")
        assert msgspec.json.decode(driver.stored()[ABOUT])["schema"] == migrations("sqlite")[-1][0]
        await store.close()


# While a driver is waited for.


class SlowDriver(FaultyDriver):
    """A driver whose batches wait until they are let go on."""

    def __init__(self, driver: MemoryDriver) -> None:
        super().__init__(driver)
        self.let = asyncio.Event()
        self.let.set()
        self.waiting = asyncio.Event()

    async def batch(self, *args: Any) -> None:
        self.waiting.set()
        await self.let.wait()
        await super().batch(*args)


async def test_nothing_is_seen_of_a_batch_before_the_driver_has_it():
    """G1: reads that come meanwhile wait, and so do writes, each for its turn."""
    driver = SlowDriver(MemoryDriver())
    store = await opened(driver)
    driver.let.clear()
    driver.waiting.clear()
    writing = asyncio.create_task(store.apply([start("a")]))
    await driver.waiting.wait()
    reading = asyncio.create_task(store.get("a"))
    second = asyncio.create_task(store.apply([start("b")]))
    await asyncio.sleep(0)
    assert not reading.done()
    assert store.apply_now([start("c")]) is None
    driver.let.set()
    assert isinstance((await writing)[0], Started)
    assert (await reading) is not None
    assert isinstance((await second)[0], Started)
    await store.close()


async def test_a_batch_under_way_is_finished_though_its_caller_is_cancelled():
    """G1"""
    driver = SlowDriver(MemoryDriver())
    store = await opened(driver)
    driver.let.clear()
    driver.waiting.clear()
    writing = asyncio.create_task(store.apply([start("a")]))
    await driver.waiting.wait()
    writing.cancel()
    await asyncio.sleep(0)
    assert writing.cancelled() or writing.cancelling()
    driver.let.set()
    assert (await row(store, "a")).id == "a"
    await store.close()


async def test_when_a_worker_last_said_that_it_lives_is_stored(monkeypatch):
    """G4: a step that had run for long when its process died is not blamed for it."""
    driver = MemoryDriver()
    store = await opened(driver)
    await store.join("w", LEASE)
    before = store._connections.writer.execute("SELECT lease_until FROM workers").get
    later = boot_time() + micros(LEASE)
    monkeypatch.setattr(key_value_store, "boot_time", lambda: later)
    assert store.renew("w", '{"running":3}')
    assert await store.take_over(NOW) == []
    await store.close()
    store = await opened(driver)
    [(until, load)] = store._connections.writer.execute("SELECT lease_until, load FROM workers").fetchall()
    assert (until, load) == (later + micros(LEASE), '{"running":3}')
    assert until > before
    await store.close()


# While it is only looked at.


def test_a_file_that_is_written_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    """A page was read before one batch was in it and the next page after another was: that is no damage."""
    driver = DirectoryDriver(tmp_path)
    for number in range(3):
        driver.batch({b"k%d" % number: b"v" * 5000})
    looking, whole, reads = DirectoryLook(tmp_path), Path.read_bytes, []

    def while_it_is_written(path: Path) -> bytes:
        reads.append(path)
        data = whole(path)
        return data[:5100] + bytes(4000) + data[9100:] if len(reads) == 1 else data

    monkeypatch.setattr(Path, "read_bytes", while_it_is_written)
    assert [key for key, _ in looking.list(b"k")] == [b"k0", b"k1", b"k2"]
    assert len(reads) == 2
    monkeypatch.setattr(Path, "read_bytes", lambda path: whole(path)[:5100] + bytes(4000) + whole(path)[9100:])
    with pytest.raises(StoreCorrupt):
        looking.list(b"k")
    driver.close()


class SlowlyListed(FaultyDriver):
    async def list(self, prefix: bytes) -> Any:
        await asyncio.sleep(0)
        return await super().list(prefix)


async def test_those_who_look_at_the_same_time_have_it_read_once(monkeypatch):
    driver = SlowlyListed(MemoryDriver())
    await (await opened(driver)).close()
    store = KeyValueStore(driver)
    await store.open(look_only=True)
    monkeypatch.setattr(store._connections, "_again", 0.0)
    before = driver.reads
    assert await asyncio.gather(*(store.get("a") for _ in range(5))) == [None] * 5
    assert driver.reads - before == 1
    await store.close()
