"""Promises of the store that only a fault, a race or another process puts to the test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.operations import Committed, Fenced
from holdfast.contract.rows import Status
from holdfast.contract.turns import Parent, StartChild
from holdfast.stores.liveness import Fate
from holdfast.stores.sqlite import workers as sqlite_workers
from holdfast.stores.sqlite.statements import SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import (
    LEASE,
    NOW,
    SECOND,
    claim,
    entry,
    message,
    new_run,
    one,
    parked,
    row,
    started,
    turn,
    unread,
)


@pytest.fixture(params=[0, 8], ids=["set-based", "row-by-row"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "test.db", durability="process", inline_limit=request.param)
    await store.open()
    yield store
    await store.close()


async def test_a_parent_parked_by_the_commit_that_refuses_its_child_is_due_at_once(store: SQLiteStore) -> None:
    """G1 S2-24: only the parent can tell its code of the refusal, and its worker may die right after the commit."""
    run, other = await started(store), await started(store)
    child = StartChild(
        run=new_run(other.id, parent=Parent(run.key, run.id, "a0")), location="a0", seq=1, taken='"taken"'
    )
    released = parked(NOW + 90 * SECOND, released=True)
    parting = turn(run.key, entries=[entry("a0", 1)], children=[child], state=released)
    outcome = await one(store, parting, Committed)
    assert outcome.refused == {"a0": "taken"}
    found = await row(store, run.id)
    assert (found.status, found.due) == (Status.SUSPENDED, NOW)
    assert [taken.key for taken in await claim(store)] == [run.key]


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
    assert await store.take_over(NOW) == 1
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
        assert await store.take_over(NOW) == 0
    assert other.renew("late")
    now[0] += 61 * SECOND
    assert await store.take_over(NOW) == 1
    await other.close()


async def test_a_worker_that_left_writes_nothing_more(store: SQLiteStore) -> None:
    """G5: not even before somebody else has claimed what it handed back."""
    run = await started(store)
    await store.leave("w")
    for late in (turn(run.key, entries=[entry("a0", 1)]), turn(run.key, state=parked(NOW + SECOND))):
        await one(store, late, Fenced)
    assert await store.history(run.key) == []


async def test_what_is_read_together_is_of_one_moment(store: SQLiteStore, tmp_path: Path) -> None:
    """G7 B12: a history, its inbox and how much of that was seen fit together, whoever commits in between."""
    run = await started(store)
    other = SQLiteStore(tmp_path / "test.db", durability="process")
    await other.open()

    def look(db: Any) -> tuple[int, list[Any]]:
        [(_, number)] = db.execute(SQL["inbox_numbers"], (run.key,)).fetchall()
        assert other.apply_now([message(run.id)]) is not None
        return number, db.execute(SQL["unread"], (run.key, 0)).fetchall()

    assert await store._connections.read(look) == (0, [])
    assert len(await unread(store, run.key, 0)) == 1
    await other.close()
