"""Workers of a SQLite file: alive, dead, and gone."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.operations import Fenced
from holdfast.stores.liveness import Fate, WorkerLock
from holdfast.stores.sqlite import workers as sqlite_workers
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    entry,
    one,
    parked,
    started,
    turn,
)


@pytest.fixture(params=[0, 8], ids=["set-based", "row-by-row"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "test.db", durability="process", inline_limit=request.param)
    await store.open()
    yield store
    await store.close()


@pytest.mark.parametrize("days", [1, -1], ids=["ahead", "back"])
async def test_a_wall_clock_that_jumps_kills_no_worker_and_keeps_none_alive(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """B24 G5: leases are measured by a clock that nobody sets."""
    other = SQLiteStore(tmp_path / "test.db", durability="process")
    await other.open()
    await other.join("steady", LEASE)
    await other.join("hung", timedelta(microseconds=1))
    jumped = time.time_ns() + days * 86_400_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: jumped)
    monkeypatch.setattr(time, "time", lambda: jumped / 1e9)
    assert len(await store.take_over(NOW)) == 1
    assert other.renew("steady")
    assert not other.renew("hung")
    await other.close()


async def test_a_worker_that_renews_between_the_look_and_the_verdict_lives(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B24 G5: it looked lapsed, but was only late."""
    other = SQLiteStore(tmp_path / "test.db", durability="process")
    await other.open()
    now, look = [NOW], sqlite_workers.fates
    monkeypatch.setattr(sqlite_workers, "boot_time", lambda: now[0])
    await other.join("late", LEASE)

    def look_and_be_overtaken(*args: Any) -> dict[str, Fate]:
        found = look(*args)
        assert other.renew("late")
        return found

    now[0] += 61 * SECOND
    with monkeypatch.context() as overtaking:
        overtaking.setattr(sqlite_workers, "fates", look_and_be_overtaken)
        assert await store.take_over(NOW) == []
    assert other.renew("late")
    now[0] += 61 * SECOND
    assert len(await store.take_over(NOW)) == 1
    await other.close()


async def test_a_worker_that_left_writes_nothing_more(store: SQLiteStore) -> None:
    """G5: not even before somebody else has claimed what it handed back."""
    run = await started(store)
    await store.leave("w")
    for late in (turn(run.key, entries=[entry("a0", 1)]), turn(run.key, state=parked(NOW + SECOND))):
        await one(store, late, Fenced)
    assert await store.history(run.key) == []


@pytest.mark.parametrize("which", ["mine", "theirs"])
async def test_a_worker_is_not_taken_for_one_of_another_boot_where_the_boot_is_not_known(
    store: SQLiteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """G5: a process that cannot read which boot this is must not take over from all that could."""
    other = SQLiteStore(tmp_path / "test.db", durability="process")
    await other.open()
    with monkeypatch.context() as unknown:
        if which == "theirs":
            unknown.setattr(sqlite_workers, "boot_id", lambda: "")
        await other.join("steady", LEASE)
    with monkeypatch.context() as unknown:
        if which == "mine":
            unknown.setattr(sqlite_workers, "boot_id", lambda: "")
        assert await store.take_over(NOW) == []
    assert other.renew("steady")
    await other.close()


async def test_lock_files_of_a_database_that_was_deleted_are_removed_by_the_next_one(tmp_path: Path) -> None:
    """Their workers were killed, and with the database went what it knew of them; those of the living stay."""
    path, strange = tmp_path / "a[1].db", tmp_path / "a[1].db-worker-strange"
    for name in ("killed", "strange"):
        WorkerLock(str(path), name).release()
    other = SQLiteStore(path, durability="process")
    await other.open()
    held = WorkerLock(str(path), "not joined yet")
    await other.join("first", LEASE)
    assert lock_files(path) == {"first", "not%20joined%20yet"}
    WorkerLock(str(path), "strange").release()
    store = SQLiteStore(path, durability="process")
    await store.open()
    await store.join("second", LEASE)
    assert lock_files(path) == {"first", "not%20joined%20yet", "second"}
    assert not strange.exists()
    held.remove()
    await store.close()
    await other.close()


async def test_the_lock_file_of_a_dead_worker_stays_until_its_runs_are_taken_over(tmp_path: Path) -> None:
    """B24 Its free lock is how its death is known at once; without the file there would be only the lease."""
    path = tmp_path / "test.db"
    store = SQLiteStore(path, durability="process")
    await store.open()
    await store.join("dead", LEASE)
    lock = store._connections.locks.pop("dead")
    assert lock is not None
    lock.release()
    other = SQLiteStore(path, durability="process")
    await other.open()
    await other.join("living", LEASE)
    assert lock_files(path) == {"dead", "living"}
    assert [taken.worker for taken in await other.take_over(NOW)] == ["dead"]
    assert lock_files(path) == {"living"}
    await store.close()
    await other.close()


def lock_files(path: Path) -> set[str]:
    begin = f"{path.name}-worker-"
    return {each.name.removeprefix(begin) for each in path.parent.iterdir() if each.name.startswith(begin)}
