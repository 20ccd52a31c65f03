"""Commits of turns, and readings beside them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.contract.operations import Committed
from holdfast.contract.rows import Status
from holdfast.contract.turns import Parent, StartChild
from holdfast.stores.sqlite.statements import SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import (
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
