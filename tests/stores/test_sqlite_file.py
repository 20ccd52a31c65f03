"""The SQLite file: what is refused, what is created, what happens when it is full, gone or of another version."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
from pathlib import Path

import apsw
import apsw.ext
import pytest
from tests.support.sqlite_cases import opened

from holdfast import stores
from holdfast.contract.operations import Committed, Delivered
from holdfast.contract.rows import RunFilter, Status
from holdfast.errors import (
    CannotOpen,
    NotADatabase,
    NotOurDatabase,
    ReadOnly,
    SchemaTooNew,
    SchemaTooOld,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReplaced,
)
from holdfast.stores.sql.files import migrations, statements
from holdfast.stores.sql.tables import TABLES
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite.statements import MANY, SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import LEASE, entry, message, one, started, turn

NOBODY = 65534


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


async def refusal(path: Path, expected: type[StoreError]) -> str:
    """Open what cannot be opened; nothing in the directory may change by it."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    with pytest.raises(expected) as caught:
        await opened(path)
    assert type(caught.value) is expected
    assert str(path) in str(caught.value)
    assert (contents(path.parent) if path.parent.is_dir() else {}) == before
    return str(caught.value)


async def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert "directory" in await refusal(tmp_path, CannotOpen)


async def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    assert "missing" in await refusal(tmp_path / "missing" / "shop.db", CannotOpen)
    assert not (tmp_path / "missing").exists()


async def test_a_text_file_is_refused(path: Path) -> None:
    path.write_text("these are notes, not a database\n" * 200)
    await refusal(path, NotADatabase)
    path.write_text("short")
    await refusal(path, NotADatabase)


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("application_id", [0, 0x0F055112])
async def test_the_database_of_another_application_is_refused(path: Path, journal: str, application_id: int) -> None:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", journal)
    db.execute("CREATE TABLE theirs (x)")
    db.pragma("application_id", application_id)
    db.close()
    assert f"{application_id:#x}" in await refusal(path, NotOurDatabase)


async def test_tables_that_are_only_in_the_wal_of_another_application_are_seen(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "wal")
    db.execute("CREATE TABLE theirs (x)")
    try:
        with pytest.raises(NotOurDatabase):
            await opened(path)
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]
    finally:
        db.close()


async def test_an_empty_file_is_initialised(path: Path) -> None:
    path.touch()
    store = await opened(path)
    assert (await started(store)).status == Status.RUNNING
    await store.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
@pytest.mark.parametrize("what", ["file", "directory", "new file"])
async def test_what_cannot_be_written_is_refused_by_name(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "shop.db"
    if what != "new file":
        await (await opened(path)).close()
        path.chmod(0o444 if what == "file" else 0o666)
    folder.chmod(0o777 if what == "file" else 0o555)
    for parent in tmp_path.parents[:3]:
        parent.chmod(0o755)
    tmp_path.chmod(0o755)
    before = contents(folder)
    pid = os.fork()
    if not pid:
        os.setuid(NOBODY)
        try:
            asyncio.run(opened(path))
        except ReadOnly as error:
            os._exit(0 if str(path) in str(error) else 1)
        except BaseException:
            os._exit(2)
        os._exit(3)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert contents(folder) == before


async def test_a_newer_schema_is_refused_with_both_numbers_and_nothing_is_written(path: Path) -> None:
    """G15"""
    await (await opened(path)).close()
    known = migrations("sqlite")[-1][0]
    db = apsw.Connection(str(path))
    db.pragma("user_version", known + 2)
    db.close()
    told = await refusal(path, SchemaTooNew)
    assert f"have {known + 2}" in told
    assert f"know {known}" in told


async def test_a_file_from_before_the_first_release_is_refused_by_name(path: Path) -> None:
    """G15"""
    await (await opened(path)).close()
    first = migrations("sqlite")[0][0]
    assert first == 10
    db = apsw.Connection(str(path))
    db.pragma("user_version", first - 1)
    db.close()
    assert "before its first release (schema 9, the first is 10)" in await refusal(path, SchemaTooOld)


async def test_a_damaged_file_is_reported_as_corrupt(path: Path) -> None:
    store = await opened(path)
    for _ in range(20):
        await started(store, owner=None)
    await store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(StoreCorrupt, match=r"shop\.db"):
        await (await opened(path)).runs(RunFilter())


async def test_the_database_and_its_neighbours_are_private(path: Path) -> None:
    before = os.umask(0)
    try:
        store = await opened(path)
        await started(store)
    finally:
        os.umask(before)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(["shop.db", "shop.db-wal", "shop.db-shm", "shop.db-worker-w"], "0o600")
    await store.close()


async def test_a_file_says_that_it_is_ours(path: Path) -> None:
    await (await opened(path)).close()
    header = path.read_bytes()[:100]
    assert header[68:72] == b"HOLD"
    assert int.from_bytes(header[60:64], "big") == migrations("sqlite")[-1][0]
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


async def test_what_was_acknowledged_is_there_after_reopening(path: Path) -> None:
    """S4-1: the state a restart continues from is the one that was committed."""
    store = await opened(path)
    run = await started(store, "kept")
    await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)
    await one(store, message("kept"), Delivered)
    await store.close()
    store = await opened(path)
    [history] = await store.load([run.key])
    assert (history.entries, history.seen, len(history.messages)) == ([entry("a0", 1)], 1, 1)
    await store.close()


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
async def test_durability_is_what_was_asked_for(path: Path, durability: str, synchronous: int) -> None:
    """G16: every connection that commits syncs, unless process durability was chosen by name."""
    store = await opened(path, durability=durability)
    await store.join("w", LEASE)
    assert await asyncio.to_thread(store.renew, "w")
    connections = store._connections
    for db in (connections.writer, connections._renewer):
        assert db is not None
        assert db.pragma("synchronous") == synchronous
        assert db.pragma("journal_mode") == "wal"
    await store.close()
    assert SQLiteStore(path).durability == "power"
    with pytest.raises(ValueError, match="durability"):
        SQLiteStore(path, durability="none")


async def test_a_deleted_file_is_noticed(store: SQLiteStore, path: Path) -> None:
    await started(store)
    path.unlink()
    store._connections._checked = 0
    for _ in range(2):
        with pytest.raises(StoreReplaced, match=r"shop\.db"):
            await store.apply([message("x")])


async def test_a_swapped_file_is_noticed(store: SQLiteStore, path: Path, tmp_path: Path) -> None:
    await started(store)
    shutil.copy(path, tmp_path / "other.db")
    os.replace(tmp_path / "other.db", path)
    store._connections._checked = 0
    with pytest.raises(StoreReplaced, match="another file"):
        await store.get("x")


async def test_a_full_disk_is_reported_and_work_goes_on_when_there_is_space(store: SQLiteStore) -> None:
    """G14"""
    run = await started(store)
    db = store._connections.writer
    pages = db.pragma("page_count")
    db.pragma("max_page_count", pages)
    big = "x" * 100_000
    for batch in (1, 20):
        with pytest.raises(StoreFull, match=r"shop\.db"):
            await store.apply([turn(run.key, entries=[entry(f"a{n}", n, big)]) for n in range(batch)])
        assert not db.in_transaction
    assert await store.history(run.key) == []
    db.pragma("max_page_count", 1_000_000)
    await one(store, turn(run.key, entries=[entry("a0", 1, big)]), Committed)
    assert len(await store.history(run.key)) == 1


async def test_a_file_size_limit_is_reported_as_a_full_disk(path: Path) -> None:
    """G14: nothing acknowledged is lost, at whatever write the limit strikes."""
    store = await opened(path)
    run = await started(store)
    acknowledged = failures = 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for step in range(40):
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000 + 4096 * step, limits[1]))
            try:
                await one(store, turn(run.key, entries=[entry(f"a{step}", step, "x" * 9000)]), Committed)
                acknowledged += 1
            except StoreFull:
                failures += 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failures
    await one(store, turn(run.key, entries=[entry("b10", 99)]), Committed)
    assert len(await store.history(run.key)) == acknowledged + 1
    await store.close()


async def test_a_failing_migration_leaves_the_database_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G15: atomic."""
    await (await opened(path)).close()
    known = migrations("sqlite")
    before = path.read_bytes()
    broken = (*known, (known[-1][0] + 1, "CREATE TABLE extra (x); CREATE TABLE runs (x);"))
    monkeypatch.setattr(sqlite_file, "migrations", lambda dialect: broken)
    with pytest.raises(StoreError, match="already exists"):
        await opened(path)
    assert path.read_bytes()[100:] == before[100:]
    good = (*known, (known[-1][0] + 1, "CREATE TABLE extra (x);"))
    monkeypatch.setattr(sqlite_file, "migrations", lambda dialect: good)
    store = await opened(path)
    assert store._connections.writer.pragma("user_version") == known[-1][0] + 1
    await store.close()


def test_every_statement_has_a_name_and_a_description() -> None:
    files = [*Path(stores.__file__).parent.glob("*/queries/*.sql")]
    assert {file.parent.parent.name for file in files} == {"sql", "sqlite", "postgres"}
    for file in files:
        parts = file.read_text().split("-- name: ")[1:]
        assert len(parts) == len(statements(f"{file.parent.parent.name}/{file.stem}"))
        for part in parts:
            assert part.splitlines()[1].startswith("-- "), part


async def test_the_columns_that_are_listed_are_those_of_the_database(store: SQLiteStore) -> None:
    """A column stands in one list and in the schema; whichever was forgotten shows here."""
    for table, (columns, key) in TABLES.items():
        made = store._connections.reader.execute("SELECT name, type FROM pragma_table_info(?)", (table,)).fetchall()
        kinds = {"INTEGER": "int", "TEXT": "text"}
        assert {column.name for column in columns} >= {*key}
        assert sorted(columns) == sorted((name, kinds[str(kind)]) for name, kind in made), table


async def test_no_statement_reads_a_whole_table(store: SQLiteStore) -> None:
    db = store._connections.reader
    assert len(MANY) > 20
    for name, text in [*SQL.all().items(), *MANY.all().items()]:
        if (
            name == "count_runs"
            or name.startswith(("import_", "export_", "existing_"))
            or name in statements("sql/transfer")
        ):
            continue  # counts all of them by an index of its own, when somebody asks for the figures
        filters = {"list_letters": "id < ?2", "list_acts": "n < ?2"} | dict.fromkeys(
            ("probe_attributes", "reach_attributes"), "tagged.name = ?2 AND tagged.value = ?2"
        )
        filters |= dict.fromkeys((f"sum_figures_by_{each}" for each in ("step", "workflow", "time")), "workflow = ?5")
        sql = text.replace("{filter}", filters.get(name, "runs.key < ?2"))
        bindings = apsw.ext.query_info(db, sql).bindings_count
        values = (["[]"] if text in MANY.values() else [0]) * bindings
        plan = [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        whole = [
            step
            for step in plan
            if re.match(r"SCAN (runs|entries|inbox|inputs|results)\b(?! USING INDEX runs_blocked)", step)
        ]
        assert not whole, (name, plan)
