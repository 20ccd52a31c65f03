"""The file of an open SQLite store, replaced or written by another program: what is noticed, and what is left alone."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.support.sqlite_cases import opened

from holdfast.contract.operations import Committed, Delivered, Fenced, Transact
from holdfast.errors import StoreBusy, StoreClosed, StoreCorrupt, StoreError, StoreReplaced
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.stores.sqlite.watch import FileWatch
from holdfast.testing.conformance import LEASE, NOW, entry, message, one, started, turn

WHAT_TO_DO = r"remove .*shop\.db-wal and .*shop\.db-shm"


def shell(command: str, folder: Path) -> None:
    """Do something in another process, as an operator does: to open and close the file here would drop its locks."""
    subprocess.run(command, shell=True, cwd=folder, check=True)


def python(code: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


async def fill(store: SQLiteStore, key: int, pages: int, first: int = 0) -> None:
    """Write so many pages, a few at a time."""
    for number in range(first, first + pages):
        await one(store, turn(key, entries=[entry(f"d{number:04}", number, "x" * 4000)]), Committed)


@pytest.fixture
def folder(path: Path) -> Path:
    """A folder with a database that has a run, and an older copy of it."""

    async def make() -> None:
        store = await opened(path, durability="process")
        run = await started(store, "old", owner="w")
        await fill(store, run.key, 50)
        await store.close()
        shell("cp shop.db older.db", path.parent)
        store = await opened(path, durability="process")
        await fill(store, run.key, 200, first=50)
        await store.close()

    asyncio.run(make())
    return path.parent


async def old_run(store: SQLiteStore) -> int:
    await store.join("w", LEASE)
    row = await store.get("old")
    assert row is not None
    return row.key


PUT_THERE = {
    "moved": "cp older.db copy.db && mv copy.db shop.db",
    "copied": "cp older.db shop.db",
    "moved, without the wal": "cp older.db copy.db && mv copy.db shop.db && rm shop.db-wal shop.db-shm",
    "copied, without the wal": "cp older.db shop.db && rm shop.db-wal shop.db-shm",
}


@pytest.mark.parametrize("how", PUT_THERE)
async def test_nothing_is_written_into_a_restored_file(folder: Path, path: Path, how: str) -> None:
    """G14: neither by the next commits, nor by a checkpoint, nor when the store is closed."""
    store = await opened(path, durability="process")
    key = await old_run(store)
    await fill(store, key, 200, first=300)  # not so many that a checkpoint may be under way
    shell(PUT_THERE[how], folder)
    for _ in range(2):
        with pytest.raises(StoreReplaced, match=WHAT_TO_DO):
            await fill(store, key, 3000, first=1000)
    with pytest.raises(StoreReplaced, match=WHAT_TO_DO):
        await store.get("old")
    await store.close()
    assert path.read_bytes() == (folder / "older.db").read_bytes()


@pytest.mark.parametrize("how", PUT_THERE)
async def test_a_file_that_is_replaced_while_nothing_happens_is_noticed(folder: Path, path: Path, how: str) -> None:
    """G14: a worker asks so every now and then, and tells the callers that wait."""
    store = await opened(path, durability="process")
    store.changed()
    assert not store.changed()
    shell(PUT_THERE[how], folder)
    with pytest.raises(StoreReplaced, match=WHAT_TO_DO):
        store.changed()
    await store.close()
    assert path.read_bytes() == (folder / "older.db").read_bytes()


@pytest.mark.parametrize("how", PUT_THERE)
@pytest.mark.parametrize("what", ["transaction", "lease", "backup"])
async def test_no_connection_is_used_on_a_restored_file(folder: Path, path: Path, how: str, what: str) -> None:
    """G14"""
    store = await opened(path, durability="process")
    key = await old_run(store)
    await fill(store, key, 30, first=300)
    shell(PUT_THERE[how], folder)
    with pytest.raises(StoreReplaced, match=WHAT_TO_DO):
        if what == "transaction":
            await asyncio.to_thread(transact, store, key)
        elif what == "lease":
            await asyncio.to_thread(store.renew, "w")
        else:
            (folder / "backup.db").touch()
            await store.copy_to(str(folder / "backup.db"), lambda done, total: None)
    await store.close()
    assert path.read_bytes() == (folder / "older.db").read_bytes()


def transact(store: SQLiteStore, key: int) -> Delivered | Fenced:
    attempt = Transact(run=key, epoch=1, generation=0, location="a0", attempt=1, limit=timedelta(seconds=5))

    def body(db: Any) -> str:
        db.execute("CREATE TABLE IF NOT EXISTS theirs (x)")
        return "{}"

    return store.transact(attempt, body, lambda: NOW, lambda: None)


@pytest.mark.parametrize("gone", ["shop.db-wal", "shop.db-shm"])
async def test_a_file_beside_the_database_that_is_deleted_is_noticed(folder: Path, path: Path, gone: str) -> None:
    """G14: what is committed from then on would be lost with the process."""
    store = await opened(path)
    shell(f"rm {gone}", folder)
    store._connections._checked = 0
    with pytest.raises(StoreReplaced, match=f"{gone} is gone"):
        await store.apply([message("old")])
    await store.close()


@pytest.mark.parametrize(
    "done",
    [
        "chmod 640 shop.db",
        "ln shop.db other.db",
        "cat shop.db > /dev/null",
        "cp -a shop.db copy.db",
        "touch -a shop.db",
    ],
)
async def test_what_does_not_change_the_file_is_not_taken_for_a_restore(folder: Path, path: Path, done: str) -> None:
    store = await opened(path, durability="process")
    key = await old_run(store)
    await fill(store, key, 30, first=300)
    shell(done, folder)
    await fill(store, key, 30, first=400)
    assert not store.changed()
    assert not store.changed()
    await store.close()


CHECKPOINTS = """
    import sys, apsw
    db = apsw.Connection(sys.argv[1])
    modes = [apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_FULL,
             apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE]
    def insist(work):
        while True:
            try:
                return work()
            except apsw.BusyError:
                pass
    for number in range(400):
        insist(lambda: db.execute("UPDATE workers SET pid = ?", (number,)))
        insist(lambda: db.wal_checkpoint(mode=modes[number % 4]))
        if number % 100 == 0:
            insist(lambda: db.execute("VACUUM"))
    db.close()
    print("done")
"""


async def test_checkpoints_of_another_process_are_not_taken_for_a_restore(folder: Path, path: Path) -> None:
    """G14"""
    store = await opened(path, durability="process")
    key = await old_run(store)
    other = asyncio.ensure_future(asyncio.to_thread(python, CHECKPOINTS, path))
    number = 1000
    while not other.done():
        with suppress(StoreBusy):  # whatever else is busy here, the other process may have the lock for long
            await fill(store, key, 1, first=number)
            number += 1
        store.changed()
        await asyncio.sleep(0)
    assert await other == "done"
    assert number > 1000
    await fill(store, key, 10, first=5000)
    await store.close()
    assert python(INTEGRITY, path) == "ok"


INTEGRITY = """
    import sys, apsw
    print(apsw.Connection(sys.argv[1]).pragma("integrity_check"))
"""


async def test_two_stores_on_a_file_do_not_take_each_other_for_a_restore(folder: Path, path: Path) -> None:
    """G14: nor does one that is closed take the descriptors away from the other."""
    first, second = await opened(path, durability="process"), await opened(path, durability="process")
    key = await old_run(second)
    await fill(second, key, 1500, first=1000)
    await first.get("old")
    await first.close()
    await fill(second, key, 1500, first=3000)
    assert isinstance(second.changed(), bool)
    await second.close()
    assert python(INTEGRITY, path) == "ok"


async def test_a_database_that_is_damaged_in_one_place_acknowledges_nothing_any_more(folder: Path, path: Path) -> None:
    """G14: whatever damaged it, and though what is asked for next is in order."""
    shell("dd if=/dev/urandom of=shop.db bs=4096 seek=90 count=70 conv=notrunc status=none", folder)
    store = await opened(path, durability="process")
    key = await old_run(store)
    await store.apply([message("old")])
    with pytest.raises(StoreCorrupt, match="PRAGMA integrity_check"):
        await store.history(key)
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="restore a backup"):
            await store.apply([message("old")])
    await store.close()
    with pytest.raises(StoreClosed):
        await store.apply([message("old")])


async def test_a_store_that_is_closed_leaves_the_wal_of_a_restored_set_alone(folder: Path, path: Path) -> None:
    """G14: a database and its WAL, copied together, are restored together."""
    store = await opened(path, durability="process")
    shell(
        "cp older.db copy.db && mv copy.db shop.db && rm shop.db-shm && echo theirs > wal && mv wal shop.db-wal", folder
    )
    with pytest.raises(StoreError):
        await store.apply([message("old")])
        store.changed()
    await store.close()
    assert path.read_bytes() == (folder / "older.db").read_bytes()
    assert (folder / "shop.db-wal").read_text() == "theirs\n"


@pytest.mark.parametrize("rows", [300, 6000], ids=["one block", "two blocks"])
def test_a_copy_over_the_file_while_a_checkpoint_is_made_is_noticed_by_its_pages(path: Path, rows: int) -> None:
    """The shared memory says which page is in which frame of the WAL, in blocks of some four thousand."""
    writer = apsw.Connection(str(path))
    try:
        writer.pragma("journal_mode", "wal")
        writer.wal_autocheckpoint(0)
        writer.execute("CREATE TABLE filled (number, filler)")
        writer.wal_checkpoint()
        shell("cp shop.db before.db", path.parent)
        watch = FileWatch(str(path), path.stat())
        with writer:
            writer.executemany("INSERT INTO filled VALUES (?, zeroblob(3900))", [(number,) for number in range(rows)])
        watch.checkpoint(writer.wal_checkpoint)  # a page that is as SQLite wrote it
        with writer:
            writer.execute("UPDATE filled SET number = number + 1")

        def copy_over() -> None:
            writer.wal_checkpoint()
            shell("truncate -r shop.db before.db && dd if=before.db of=shop.db conv=notrunc status=none", path.parent)

        with pytest.raises(StoreReplaced, match="another program"):
            watch.checkpoint(copy_over)
    finally:
        writer.close()


def test_a_frame_whose_page_the_shared_memory_does_not_tell_is_left_to_the_next_checkpoint(path: Path) -> None:
    """SQLite clears the list when it goes over the WAL again: a page of number 0 is none."""
    writer = apsw.Connection(str(path))
    try:
        writer.pragma("journal_mode", "wal")
        writer.wal_autocheckpoint(0)
        writer.execute("CREATE TABLE filled (number, filler)")
        writer.wal_checkpoint()
        watch = FileWatch(str(path), path.stat())
        with writer:
            writer.executemany("INSERT INTO filled VALUES (?, zeroblob(3900))", [(number,) for number in range(30)])

        def forget() -> None:
            writer.wal_checkpoint()
            with open(f"{path}-shm", "r+b") as shared:
                shared.seek(4 * 34)  # behind the header: the page of the first frame
                shared.write(bytes(4 * 10))

        watch.checkpoint(forget)
        assert watch.verdict is None
    finally:
        writer.close()
