"""Looking at an SQLite file: no byte of it changes, and what cannot be looked at is said by name."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import apsw
import pytest

from holdfast.contract.heads import HeadFilter
from holdfast.errors import CannotOpen, NeedsUpgrade, NotADatabase, NotOurDatabase, ReadOnly, StoreReplaced
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import started


def digest(*paths: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.exists()]


async def looked_at(path: Path) -> list[str]:
    store = SQLiteStore(path)
    await store.open(look_only=True)
    try:
        return [head.id for head in (await store.heads(HeadFilter())).heads]
    finally:
        await store.close()


def unwritable(path: Path) -> None:
    """Let SQLite make no file of its own beside a database, as in a directory that is read-only."""
    path.with_name(f"{path.name}-shm").symlink_to(path.parent / "no such directory" / "shm")


@pytest.fixture
async def crashed(store: SQLiteStore, path: Path, tmp_path: Path) -> Path:
    """A copy of a database as its process would leave it when it dies: changes in the -wal, and no -shm."""
    await started(store, "order-1", owner=None)
    left = tmp_path / "left"
    left.mkdir()
    for part in ("", "-wal"):
        shutil.copy(f"{path}{part}", left / f"shop.db{part}")
    assert (left / "shop.db-wal").stat().st_size
    return left / "shop.db"


async def test_looking_changes_no_byte_of_the_database(store, path):
    await started(store, "order-1", owner=None)
    await store.close()
    before = digest(path)
    assert await looked_at(path) == ["order-1"]
    assert digest(path) == before
    await store.open()
    await started(store, "order-2", owner=None)
    wal = path.with_name("shop.db-wal")
    before = digest(path, wal)
    assert await looked_at(path) == ["order-2", "order-1"]
    assert digest(path, wal) == before


async def test_what_a_crash_left_in_the_wal_is_seen_and_stays_there(crashed):
    wal = crashed.with_name("shop.db-wal")
    before = digest(crashed, wal)
    assert await looked_at(crashed) == ["order-1"]
    assert digest(crashed, wal) == before


async def test_where_nothing_can_be_written_beside_it_a_wal_is_an_error_that_names_the_way_out(crashed):
    unwritable(crashed)
    before = digest(crashed, crashed.with_name("shop.db-wal"))
    with pytest.raises(ReadOnly, match=r"newest changes are in shop\.db-wal.*copy the database and its -wal"):
        await looked_at(crashed)
    assert digest(crashed, crashed.with_name("shop.db-wal")) == before


async def test_where_nothing_can_be_written_beside_it_a_file_without_a_wal_is_read(store, path):
    await started(store, "order-1", owner=None)
    await store.close()
    unwritable(path)
    assert await looked_at(path) == ["order-1"]


async def test_an_older_schema_is_refused_with_the_command_that_upgrades_it(store, path):
    await store.close()
    db = apsw.Connection(str(path))
    db.pragma("user_version", 12)
    db.close()
    before = digest(path)
    with pytest.raises(NeedsUpgrade, match=r"schema 12, this one has \d+.*holdfast db upgrade"):
        await looked_at(path)
    assert digest(path) == before


async def test_what_is_no_database_of_holdfast_is_refused_untouched(tmp_path):
    text, foreign, missing = tmp_path / "text", tmp_path / "foreign.db", tmp_path / "missing.db"
    text.write_text("hello, this is no database" * 10)
    db = apsw.Connection(str(foreign))
    db.execute("CREATE TABLE t (x)").fetchall()
    db.pragma("application_id", 7)
    db.close()
    before = digest(text, foreign)
    for path, error in ((text, NotADatabase), (foreign, NotOurDatabase), (missing, CannotOpen), (tmp_path, CannotOpen)):
        with pytest.raises(error):
            await looked_at(path)
    assert digest(text, foreign) == before
    assert sorted(os.listdir(tmp_path)) == ["foreign.db", "text"]


async def test_a_file_that_is_deleted_while_it_is_looked_at_is_an_error(store, path):
    await store.close()
    looking = SQLiteStore(path)
    await looking.open(look_only=True)
    try:
        path.unlink()
        with pytest.raises(StoreReplaced):
            await looking.heads(HeadFilter())
    finally:
        await looking.close()
