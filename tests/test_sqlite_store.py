"""What is particular to SQLite: the file, its neighbours, its locks, and several processes on it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import apsw.ext
import pytest

from holdfast.errors import (
    CannotOpen,
    NotADatabase,
    NotOurDatabase,
    ReadOnly,
    SchemaTooNew,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReplaced,
)
from holdfast.records import (
    Committed,
    Delivered,
    RunFilter,
    Status,
)
from holdfast.stores import sqlite_file
from holdfast.stores.sql_files import migrations, statements
from holdfast.stores.sqlite import SQLiteStore
from holdfast.testing.conformance import LEASE, NOW, claim, entry, message, one, row, started, turn

NOBODY = 65534

PRELUDE = """
    import asyncio, os, sys, time
    from holdfast.records import *
    from holdfast.stores.sqlite import SQLiteStore
    from holdfast.testing.conformance import LEASE, NOW, claim, ended, entry, message, new_run, one, row, started, turn
    path = sys.argv[1]
"""

HOLDS_A_RUN = """
    async def main():
        store = SQLiteStore(path)
        await store.open()
        await started(store, "lost")
        {fork}
        print("ready", flush=True)
        await asyncio.sleep(60)
    asyncio.run(main())
"""

Python = Callable[..., "Interpreter"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(path, durability="process")
    await store.open()
    yield store
    await store.close()


async def opened(path: Path, **options: object) -> SQLiteStore:
    store = SQLiteStore(path, **options)  # type: ignore[arg-type]
    await store.open()
    return store


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


class Interpreter:
    """Another process with our code; what it prints is read line by line."""

    def __init__(self, source: str, path: Path, *args: str) -> None:
        code = textwrap.dedent(PRELUDE) + textwrap.dedent(source)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(path), *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def finish(self) -> str:
        """Wait for its end, which must be a good one, and return what it printed."""
        out, error = self.process.communicate(timeout=50)
        assert (self.process.returncode, error) == (0, "")
        return out

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def python() -> Iterator[Callable[..., Interpreter]]:
    with contextlib.ExitStack() as stack:

        def start(source: str, path: Path, *args: str) -> Interpreter:
            return stack.enter_context(contextlib.closing(Interpreter(source, path, *args)))

        yield start


# ---- what cannot be opened (bad input 18)


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


async def test_a_damaged_file_is_reported_as_corrupt(path: Path) -> None:
    store = await opened(path)
    for _ in range(20):
        await started(store, owner=None)
    await store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    store = await opened(path)
    with pytest.raises(StoreCorrupt, match=r"shop\.db"):
        await store.runs(RunFilter())
    await store.close()


# ---- the file


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
    """S0-1, S4-1"""
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
    for batch in (1, 10):
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


# ---- migrations


async def test_eight_processes_that_create_one_database_apply_each_migration_once(path: Path, python: Python) -> None:
    """G15"""
    source = """
        async def main():
            store = SQLiteStore(path)
            await store.open()
            await started(store, f"run-of-{os.getpid()}", owner=None)
            await store.close()
        asyncio.run(main())
    """
    processes = [python(source, path) for _ in range(8)]
    for process in processes:
        process.finish()
    store = await opened(path)
    assert len(await store.runs(RunFilter())) == 8
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
    folder = Path(sqlite_file.__file__).parent / "queries"
    for file in folder.glob("*.sql"):
        parts = file.read_text().split("-- name: ")[1:]
        assert len(parts) == len(statements(file.stem))
        for part in parts:
            assert part.splitlines()[1].startswith("-- "), part


async def test_no_statement_reads_a_whole_table(store: SQLiteStore) -> None:
    db = store._connections.reader
    for name, text in statements("sqlite_batch", "sqlite_claims", "sqlite_workers", "sqlite_reads").items():
        sql = text.replace("{filter}", "runs.key < :before")
        bindings = apsw.ext.query_info(db, sql).bindings_count
        values = {"limit": 1, "before": 9} if name == "list_runs" else ("[]",) * bindings
        plan = [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
        whole = [
            step
            for step in plan
            if re.match(r"SCAN (runs|entries|inbox|inputs|results)\b(?! USING INDEX runs_blocked)", step)
        ]
        assert not whole, (name, plan)


# ---- one process


async def test_a_small_batch_commits_on_the_event_loop_and_a_large_one_on_a_thread(store: SQLiteStore) -> None:
    run = await started(store)
    threads: list[int] = []

    def note_thread() -> bool:
        threads.append(threading.get_ident())
        return False

    store._connections.writer.set_commit_hook(note_thread)
    await store.apply([turn(run.key, entries=[entry("a0", 1)])])
    await store.apply([turn(run.key, entries=[entry(f"b{n}", n)]) for n in range(10)])
    store._connections.writer.set_commit_hook(None)
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


async def test_a_lock_held_by_another_connection_never_blocks_the_event_loop(store: SQLiteStore, path: Path) -> None:
    run = await started(store)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(store.apply([turn(run.key, entries=[entry("a0", 1)])]))
    ticks = 0
    for _ in range(20):
        await asyncio.sleep(0.005)
        ticks += 1
    assert not waiting.done()
    assert store.changed() is False
    assert (await row(store, run.id)).key == run.key
    other.execute("COMMIT")
    other.close()
    assert await waiting == [Committed(run.key)]
    assert ticks == 20


async def test_a_lock_held_too_long_is_reported_and_nothing_is_written(path: Path) -> None:
    store = await opened(path, patience=timedelta(milliseconds=50))
    run = await started(store)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    for size in (1, 10):
        with pytest.raises(StoreBusy, match=r"shop\.db"):
            await store.apply([turn(run.key, entries=[entry(f"a{n}", n)]) for n in range(size)])
    with pytest.raises(StoreBusy):
        await asyncio.to_thread(store.renew, "w")
    other.execute("ROLLBACK")
    other.close()
    assert await store.history(run.key) == []
    await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)
    await store.close()


async def test_a_batch_whose_caller_gave_up_is_still_committed_and_the_store_stays_usable(store: SQLiteStore) -> None:
    run = await started(store)
    task = asyncio.ensure_future(store.apply([turn(run.key, entries=[entry(f"a{n}", n)]) for n in range(9)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.apply([message(run.id) for _ in range(9)])
    assert len(await store.history(run.key)) == 9
    assert store._connections.idle


async def test_the_wal_stays_short_under_steady_commits(path: Path) -> None:
    store = await opened(path, durability="process")
    run = await started(store)
    wal = path.with_name("shop.db-wal")
    largest = 0
    for n in range(3000):
        await store.apply([turn(run.key, entries=[entry(f"d{n:04}", n, "x" * 3000)])])
        largest = max(largest, wal.stat().st_size)
    assert 4_000_000 < largest < 30_000_000
    await store.close()


async def test_the_wal_shrinks_after_a_reader_let_go_of_its_snapshot(path: Path) -> None:
    """Guarantees, row 14: a long reader holds the WAL back and no longer."""
    store = await opened(path, durability="process")
    run = await started(store)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entries").fetchall()
    wal = path.with_name("shop.db-wal")
    n = 0

    async def commit(times: int) -> None:
        nonlocal n
        for _ in range(times):
            n += 1
            await store.apply([turn(run.key, entries=[entry(f"e{n:05}", n, "x" * 20_000)])])

    await commit(900)
    assert wal.stat().st_size > 2 * sqlite_file.WAL_LIMIT
    assert reader.execute("SELECT count(*) FROM entries").get == 0
    reader.execute("COMMIT")
    reader.close()
    for _ in range(100):
        await commit(30)
        await asyncio.sleep(0.005)
        if wal.stat().st_size <= sqlite_file.WAL_LIMIT:
            break
    assert wal.stat().st_size <= sqlite_file.WAL_LIMIT
    await store.close()


async def test_the_stdlib_module_is_kept_away_from_an_open_file(store: SQLiteStore, path: Path, tmp_path: Path) -> None:
    for name in (path, str(path), f"file:{path}?mode=ro", os.fsencode(path)):
        with pytest.raises(StoreError, match="sqlite3"):
            sqlite3.connect(name, uri=True)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with pytest.raises(StoreError, match="sqlite3"):
        sqlite3.connect(link)
    sqlite3.connect(tmp_path / "unrelated.db").close()
    sqlite3.connect(":memory:").close()
    await store.close()
    sqlite3.connect(path).close()


async def test_two_stores_on_one_file_in_one_process_keep_their_locks(path: Path, python: Python) -> None:
    first, second = await opened(path), await opened(path)
    await second.close()
    python(
        "import apsw; db = apsw.Connection(path); db.execute('SELECT 1 FROM runs').fetchall(); db.close()", path
    ).finish()
    assert path.with_name("shop.db-wal").exists(), "another process took itself for the last one and removed the WAL"
    assert (await started(first)).status == Status.RUNNING
    await first.close()


async def test_a_forked_child_cannot_use_the_store_and_does_no_harm(store: SQLiteStore, path: Path) -> None:
    run = await started(store)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            store.changed()
        except StoreClosed as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)
    assert await store.take_over(NOW) == 0


async def test_a_forked_child_does_not_keep_its_parents_lock(path: Path, python: Python) -> None:
    process = python(HOLDS_A_RUN.format(fork="os.fork() or time.sleep(60)"), path)
    assert process.line() == "ready"
    process.kill()
    store = await opened(path)
    assert await store.take_over(NOW) == 1
    await store.close()


# ---- several processes


async def test_a_killed_worker_is_known_to_be_dead_at_once(path: Path, python: Python) -> None:
    """B24, S2-28: its OS lock is free; no lease has to lapse."""
    process = python(HOLDS_A_RUN.format(fork=""), path)
    assert process.line() == "ready"
    store = await opened(path)
    await store.join("heir", LEASE)
    assert await store.take_over(NOW) == 0
    process.kill()
    assert await store.take_over(NOW) == 1
    [taken] = await claim(store, "heir")
    assert (taken.id, taken.lost, taken.epoch > 1) == ("lost", "crash", True)
    assert sorted(file.name for file in path.parent.glob("*-worker-*")) == ["shop.db-worker-heir"]
    assert store._connections.writer.execute("SELECT id FROM workers").fetchall() == [("heir",)]
    await store.close()


async def test_a_worker_of_an_earlier_boot_is_dead(store: SQLiteStore, path: Path) -> None:
    other = await opened(path)
    await started(other, "old", owner="before")
    store._connections.writer.execute("UPDATE workers SET boot = 'another'")
    assert await store.take_over(NOW) == 1
    await store.join("w", LEASE)
    assert [(taken.id, taken.lost) for taken in await claim(store)] == [("old", "crash")]
    await other.close()


async def test_where_locks_do_not_work_only_the_lease_counts(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await opened(path)
    monkeypatch.setattr("fcntl.flock", lambda fd, how: None)
    await other.join("o", LEASE)
    assert await store.take_over(NOW) == 0
    assert store._connections.reader.execute("SELECT lock FROM workers").get == ""
    await other.close()


async def test_four_processes_on_one_file_never_see_a_locked_database(path: Path, python: Python) -> None:
    """S0-60: several engines beside each other."""
    source = """
        async def main():
            worker = sys.argv[2]
            store = SQLiteStore(path)
            await store.open()
            await store.join(worker, LEASE)
            done = 0
            for n in range(50):
                await store.apply([StartRun(run=new_run(f"{worker}-{n}-{k}")) for k in range(4)])
                for taken in await store.claim(worker, NOW, 4, ["order"], ""):
                    await store.apply([turn(taken.key, taken.epoch, entries=[entry("a0", 1)])])
                    [outcome] = await store.apply([turn(taken.key, taken.epoch, end=ended())])
                    assert isinstance(outcome, Committed), outcome
                    done += 1
                await asyncio.to_thread(store.renew, worker)
            await store.leave(worker)
            await store.close()
            print(done)
        asyncio.run(main())
    """
    processes = [python(source, path, f"w{n}") for n in range(4)]
    done = sum(int(process.finish()) for process in processes)
    store = await opened(path)
    completed = await store.runs(RunFilter(status=Status.COMPLETED, limit=1000))
    assert len(completed) == done > 100
    assert len(await store.runs(RunFilter(limit=1000))) == 800
    await store.close()
