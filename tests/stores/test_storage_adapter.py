"""What a storage adapter of the mobile engine does, done with the operations of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.contract.operations import Acknowledge, Committed, Delivered, Done, KeyHeld, Purge, Started
from holdfast.contract.rows import LetterFilter, RunFilter, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import NewLetter
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance.samples import NOW, end, extra, one, row, started
from holdfast.testing.conformance.tasks import a_task, finish, handed_out, take
from holdfast.testing.conformance.uniqueness import keyed

LATER = NOW + 1


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = SQLiteStore(":memory:")
    await store.open()
    yield store
    await store.close()


async def test_executions_are_saved_found_by_id_and_status_and_deleted(store: Store) -> None:
    """S0-40 save/get/getByStatus/delete Execution; purgeExecutions({olderThanMs, status[]}) says how many."""
    assert await store.get("r1") is None
    for number in (1, 2, 3):
        await started(store, f"r{number}")
    await end(store, await row(store, "r1"))
    await end(store, await row(store, "r2"), Status.FAILED)
    by_status = {status: [run.id for run in await store.runs(RunFilter(status=status))] for status in Status}
    assert {status: ids for status, ids in by_status.items() if ids} == {
        Status.COMPLETED: ["r1"],
        Status.FAILED: ["r2"],
        Status.RUNNING: ["r3"],
    }
    assert (await one(store, Purge(what="completed", before=NOW, at=LATER), Done)).count == 0
    assert (await one(store, Purge(what="completed", before=LATER, at=LATER), Done)).count == 1
    assert await store.get("r1") is None
    assert [run.id for run in await store.runs(RunFilter())] == ["r3", "r2"]


async def test_a_unique_key_is_set_once_found_and_deleted_with_the_end_of_its_holder(store: Store) -> None:
    """S0-40 set/get/delete UniqueKey: setting one that an open run has is refused."""
    first = await one(store, keyed("first"), Started)
    assert await one(store, keyed("second"), KeyHeld) == KeyHeld(first.key, "first")
    assert [run.id for run in await store.runs(RunFilter(unique_key="k"))] == ["first"]
    await end(store, await row(store, "first"))
    await one(store, keyed("second"), Started)


async def test_activity_tasks_are_listed_claimed_once_and_ended(store: Store) -> None:
    """S0-40 S0-41 Pending tasks by priority up to a limit; claimActivityTask gives a task or nothing; forExecution."""
    run = await handed_out(store, a_task("a0"), a_task("a1", priority=5), a_task("a2", priority=1))
    assert set((await store.load([run.key]))[0].tasks) == {"a0", "a1", "a2"}
    assert [task.location for task in await take(store, limit=2)] == ["a1", "a2"]
    assert sorted(location for _, location, _ in await store.held_tasks("v")) == ["a1", "a2"]
    assert [task.location for task in await take(store)] == ["a0"]
    assert await take(store) == []
    await one(store, finish(run, "a1"), Delivered)
    assert sorted(location for _, location, _ in await store.held_tasks("v")) == ["a0", "a2"]


async def test_dead_letters_are_saved_listed_acknowledged_and_purged(store: Store) -> None:
    """S0-40 S0-38 save/get/unacked/ack/delete; purgeDeadLetters says how many."""
    run = await started(store)
    letters = [NewLetter(id=id, step="s", attempts=1, error="e") for id in ("a", "b")]
    await one(store, extra(run.key, letters=letters), Committed)

    async def ids(**which: object) -> list[str]:
        return sorted(letter.id for letter in await store.letters(LetterFilter(**which)))  # type: ignore[arg-type]  # its fields

    assert (await ids(), await ids(id="a")) == (["a", "b"], ["a"])
    assert await one(store, Acknowledge(letter="a", at=LATER), Done) == Done(1)
    assert await ids(acknowledged=False) == ["b"]
    purged = await one(store, Purge(what="work", before=LATER, at=LATER, acknowledged=True), Done)
    assert (purged.count, await ids()) == (1, ["b"])
