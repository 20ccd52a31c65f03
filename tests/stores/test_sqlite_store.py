"""SQLite under one process with threads and forks, and under several processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import apsw
import apsw.ext
import pytest
from tests.support.sqlite_cases import opened
from tests.support.waiting import eventually

from holdfast.contract.operations import Committed
from holdfast.contract.rows import RunFilter, Status
from holdfast.errors import (
    StoreBusy,
    StoreClosed,
    StoreError,
)
from holdfast.stores.sqlite import connections as sqlite_connections
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import LEASE, NOW, claim, ended, entry, message, one, row, started, turn

PRELUDE = """
    import asyncio, os, sys, time
    from holdfast.contract.turns import *
    from holdfast.contract.operations import *
    from holdfast.contract.rows import *
    from holdfast.stores.sqlite.store import SQLiteStore
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
        out, error = self.process.communicate()
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


async def test_a_small_batch_commits_on_the_event_loop_and_a_large_one_on_a_thread(store: SQLiteStore) -> None:
    run = await started(store)
    threads: list[int] = []

    def note_thread() -> bool:
        threads.append(threading.get_ident())
        return False

    store._connections.writer.set_commit_hook(note_thread)
    await eventually(lambda: store._connections.idle)  # on a busy machine the last commit was slow
    await store.apply([turn(run.key, entries=[entry("a0", 1)])])
    await store.apply([turn(run.key, entries=[entry(f"b{n}", n)]) for n in range(20)])
    store._connections.writer.set_commit_hook(None)
    assert threads[0] == threading.get_ident()
    assert threads[1] != threading.get_ident()


async def test_ends_of_many_runs_cost_few_steps_of_the_database(store: SQLiteStore) -> None:
    """W7 Only what an end changes is written: with all that may change it was 268 steps an end."""
    runs = [await started(store, f"r{n}") for n in range(100)]
    steps: list[int] = []
    writer = store._connections.writer
    writer.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda event: steps.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])
    )
    await store.apply([turn(run.key, entries=[entry("a0", 1)], end=ended()) for run in runs])
    writer.trace_v2(0, None)
    assert 0 < sum(steps) / len(runs) < 240


async def test_every_write_takes_the_write_lock_before_it_reads(store: SQLiteStore) -> None:
    """A transaction that reads first and writes later can be refused at once, whatever the patience."""
    begun: list[str] = []

    def note(cursor: object, sql: str, bindings: object) -> bool:
        begun.append(sql)
        return True

    store._connections.writer.exec_trace = note
    await store.join("w", LEASE)
    run = await started(store, owner=None)
    await claim(store)
    await store.apply([message(run.id) for _ in range(20)])
    await store.leave("w")
    store._connections.writer.exec_trace = None
    assert {sql for sql in begun if sql.startswith("BEGIN")} == {"BEGIN IMMEDIATE"}
    assert begun.count("COMMIT") == begun.count("BEGIN IMMEDIATE") >= 4


async def test_commits_on_a_slow_disk_are_left_to_the_thread_for_a_while(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await started(store)
    monkeypatch.setattr(sqlite_connections, "SLOW_COMMIT", 0.0)
    await one(store, turn(run.key, entries=[entry("a0", 1)]), Committed)
    assert not store._connections.idle
    await one(store, turn(run.key, entries=[entry("a1", 2)]), Committed)
    monkeypatch.setattr(sqlite_connections, "SLOW_COMMIT", 1.0)
    store._connections._slow_until = 0.0
    assert store._connections.idle
    await one(store, turn(run.key, entries=[entry("a2", 3)]), Committed)
    assert store._connections.idle
    assert len(await store.history(run.key)) == 3


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
    for size in (1, 20):
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
    task = asyncio.ensure_future(store.apply([turn(run.key, entries=[entry(f"a{n}", n)]) for n in range(19)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.apply([message(run.id) for _ in range(19)])
    assert len(await store.history(run.key)) == 19
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


async def test_commits_wait_on_the_thread_when_they_outrun_the_checkpoints(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await started(store)
    checkpoints = store._connections.checkpoints
    assert checkpoints is not None
    monkeypatch.setattr("holdfast.stores.sqlite.checkpoints.MAX_PAGES", 0)
    checkpoints._resting.clear()
    assert not store._connections.idle
    waiting = asyncio.ensure_future(store.apply([turn(run.key, entries=[entry("a0", 1)])]))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    checkpoints._ask()
    assert await waiting == [Committed(run.key)]


async def test_the_wal_shrinks_after_a_reader_let_go_of_its_snapshot(path: Path) -> None:
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

    async def has_shrunk() -> bool:
        await commit(30)
        return wal.stat().st_size <= sqlite_file.WAL_LIMIT

    await eventually(has_shrunk)
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


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="asks Linux for its locks")
async def test_opening_a_second_store_on_a_file_does_not_drop_the_locks_of_the_first(path: Path) -> None:
    def locks() -> list[str]:
        inode = f":{path.stat().st_ino} "
        return [line for line in Path("/proc/locks").read_text().splitlines() if inode in line and "POSIX" in line]

    first = await opened(path)
    assert await first.get("nobody") is None
    assert locks()
    second = await opened(path)
    assert locks()
    await second.close()
    assert locks()
    await first.close()
    assert not locks()


async def test_stores_opened_at_the_same_time_on_one_new_file_do_not_disturb_each_other(path: Path) -> None:
    stores = [SQLiteStore(path) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    for n, store in enumerate(stores):
        await started(store, f"of-{n}", owner=None)
    assert len(await stores[0].runs(RunFilter())) == 6
    await asyncio.gather(*(store.close() for store in stores))
    assert [file.name for file in path.parent.iterdir()] == ["shop.db"]


async def test_a_batch_too_big_for_one_parameter_is_written_in_parts(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.sql.statements.MAX_PARAMETER", 2_000)
    run = await started(store)
    await store.apply([turn(run.key, entries=[entry(f"c{n}", n, "x" * 500)]) for n in range(100, 150)])
    assert [fact.seq for fact in await store.history(run.key)] == [*range(100, 150)]


async def test_a_store_can_be_opened_again_after_it_was_closed(store: SQLiteStore) -> None:
    await store.join("w", LEASE)
    assert await asyncio.to_thread(store.renew, "w")
    await store.close()
    await store.open()
    await store.open()
    await store.join("w", LEASE)
    assert await asyncio.to_thread(store.renew, "w")


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
    assert await store.take_over(NOW) == []


async def test_a_forked_child_does_not_keep_its_parents_lock(path: Path, python: Python) -> None:
    process = python(HOLDS_A_RUN.format(fork="os.fork() or time.sleep(60)"), path)
    assert process.line() == "ready"
    process.kill()
    store = await opened(path)
    taken = await eventually(lambda: store.take_over(NOW))  # the child lets go of the lock when it first runs
    assert len(taken) == 1
    await store.close()


async def test_a_killed_worker_is_known_to_be_dead_at_once(path: Path, python: Python) -> None:
    """B24, S2-28: its OS lock is free; no lease has to lapse."""
    process = python(HOLDS_A_RUN.format(fork=""), path)
    assert process.line() == "ready"
    store = await opened(path)
    await store.join("heir", LEASE)
    assert await store.take_over(NOW) == []
    process.kill()
    assert len(await store.take_over(NOW)) == 1
    [taken] = await claim(store, "heir")
    assert (taken.id, taken.lost, taken.epoch > 1) == ("lost", "crash", True)
    assert sorted(file.name for file in path.parent.glob("*-worker-*")) == ["shop.db-worker-heir"]
    assert store._connections.writer.execute("SELECT id FROM workers WHERE state = 'live'").fetchall() == [("heir",)]
    await store.close()


async def test_a_store_does_not_declare_its_own_worker_dead(store: SQLiteStore, path: Path) -> None:
    """B24: whoever can ask is alive, even if the machine slept through its lease."""
    await store.join("w", timedelta(0))
    await asyncio.sleep(0.01)
    assert await store.take_over(NOW) == []
    assert await asyncio.to_thread(store.renew, "w") is True


async def test_a_worker_of_an_earlier_boot_is_dead(store: SQLiteStore, path: Path) -> None:
    other = await opened(path)
    await started(other, "old", owner="before")
    store._connections.writer.execute("UPDATE workers SET boot = 'another'")
    assert len(await store.take_over(NOW)) == 1
    await store.join("w", LEASE)
    assert [(taken.id, taken.lost) for taken in await claim(store)] == [("old", "crash")]
    await other.close()


async def test_where_locks_do_not_work_only_the_lease_counts(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = await opened(path)
    monkeypatch.setattr("fcntl.flock", lambda fd, how: None)
    await other.join("o", LEASE)
    assert await store.take_over(NOW) == []
    assert store._connections.reader.execute("SELECT lock FROM workers").get == ""
    await other.close()


async def test_four_processes_on_one_file_never_see_a_locked_database(path: Path, python: Python) -> None:
    source = """
        async def main():
            worker = sys.argv[2]
            store = SQLiteStore(path)
            await store.open()
            await store.join(worker, LEASE)
            done = 0
            for n in range(50):
                await store.apply([StartRun(run=new_run(f"{worker}-{n}-{k}")) for k in range(4)])
                for taken in await store.claim(worker, NOW, 4, ["order"]):
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
