"""Faults that tests inject into a real store: they happen where they are asked for, and are counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.sqlite_cases import opened

from holdfast.contract.operations import SendMessage
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.errors import StoreBusy, StoreError, StoreFull
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import Faults, TestEngine
from holdfast.testing.conformance.samples import LEASE, NOW, claim, message, new_run, started, turn


async def test_nothing_happens_unless_asked_for(store: SQLiteStore) -> None:
    faults = Faults(store)
    run = await started(store)
    assert await store.get(run.id) == run
    assert isinstance(store, SQLiteStore)
    assert (faults.injected, faults.commits) == (0, 1)
    assert faults.calls["get"] == 2


async def test_what_fails_is_not_done_and_what_loses_its_answer_is(store: SQLiteStore) -> None:
    faults = Faults(store)
    failure, lost = faults.fail(), faults.lose_answer(skip=0)
    with pytest.raises(StoreError, match="apply fails"):
        await store.apply([StartRun(run=new_run("a"))])
    assert await store.get("a") is None
    assert (failure.injected, lost.injected) == (1, 0)
    with pytest.raises(StoreError, match="outcome is unknown"):
        await store.apply([StartRun(run=new_run("b"))])
    assert await store.get("b") is not None
    await store.apply([StartRun(run=new_run("c"))])
    assert (failure.injected, lost.injected, faults.injected) == (1, 1, 2)
    assert (failure.over, lost.over) == (True, True)


async def test_only_what_is_named_is_hit_and_only_so_often(store: SQLiteStore) -> None:
    run = await started(store)
    faults = Faults(store)
    fault = faults.fail(2, only=SendMessage, skip=1, every=2, error=StoreBusy("not now"))
    for number in range(3):
        await store.apply([StartRun(run=new_run(f"r{number}"))])
    hit = []
    for _ in range(6):
        try:
            await store.apply([message(run.id)])
            hit.append(False)
        except StoreBusy:
            hit.append(True)
    assert hit == [False, True, False, True, False, False]
    assert fault.injected == 2


async def test_a_batch_is_hit_by_one_of_several_operations_in_it(store: SQLiteStore) -> None:
    run = await started(store)
    faults = Faults(store)
    fault = faults.fail(None, only=(CommitTurn, SendMessage))
    with pytest.raises(StoreError):
        await store.apply([StartRun(run=new_run()), turn(run.key)])
    fault.heal()
    await store.apply([turn(run.key)])
    assert fault.injected == 1


async def test_other_methods_can_be_hit_by_what_they_are_asked_or_answer(store: SQLiteStore) -> None:
    await store.join("w", LEASE)
    faults = Faults(store)
    asked = faults.fail(at="get", only=lambda run_id: run_id == "b")
    answered = faults.lose_answer(at="claim")
    assert await store.get("a") is None
    with pytest.raises(StoreError):
        await store.get("b")
    assert await claim(store, now=NOW) == []
    assert answered.injected == 0, "an empty answer is not missed"
    await store.apply([StartRun(run=new_run(at=NOW - 1))])
    with pytest.raises(StoreError):
        await claim(store, now=NOW)
    assert (asked.injected, answered.injected) == (1, 1)
    assert len(await store.held("w")) == 1


async def test_what_is_held_waits_until_it_is_released_or_fails(store: SQLiteStore) -> None:
    faults = Faults(store)
    hold = faults.hold(only=StartRun)
    starting = asyncio.create_task(store.apply([StartRun(run=new_run("a"))]))
    await hold.happened()
    assert await store.get("a") is None
    hold.release()
    await starting
    assert await store.get("a") is not None
    hold = faults.hold(moment="after")
    starting = asyncio.create_task(store.apply([StartRun(run=new_run("b"))]))
    await hold.happened()
    assert await store.get("b") is not None
    hold.release(StoreError("after all this time"))
    with pytest.raises(StoreError, match="after all this time"):
        await starting


async def test_something_else_can_be_done_in_the_middle(store: SQLiteStore) -> None:
    faults = Faults(store)

    async def start_it() -> None:
        await store.apply([StartRun(run=new_run("a"))])

    fault = faults.call(start_it, at="get", moment="after")
    assert await store.get("a") is None
    assert fault.injected == 1
    assert await store.get("a") is not None


async def test_on_a_full_disk_nothing_is_committed_until_there_is_room(store: SQLiteStore) -> None:
    faults = Faults(store)
    full = faults.fill()
    for _ in range(3):
        with pytest.raises(StoreFull):
            await store.apply([StartRun(run=new_run("a"))])
    faults.heal()
    await store.apply([StartRun(run=new_run("a"))])
    assert full.injected == 3


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_what_died_writes_nothing_more(path: Path, moment: str) -> None:
    store = await opened(path)
    faults = Faults(store)
    faults.die(2, moment)  # type: ignore[arg-type]  # one of the two
    await store.apply([StartRun(run=new_run("a"))])
    with pytest.raises(StoreError, match="dead"):
        await store.apply([StartRun(run=new_run("b"))])
    for call in (store.apply([StartRun(run=new_run("c"))]), store.leave("w"), claim(store)):
        with pytest.raises(StoreError, match="dead"):
            await call
    assert faults.dead
    await store.close()
    after = await opened(path)
    assert [bool(await after.get(name)) for name in "abc"] == [True, moment == "after", False]
    await after.close()


async def test_a_store_of_any_kind_takes_faults(database: str) -> None:
    store = PostgresStore(database)
    await store.open()
    faults = Faults(store)
    faults.lose_answer()
    with pytest.raises(StoreError):
        await store.apply([StartRun(run=new_run("a"))])
    assert await store.get("a") is not None
    await store.close()


async def test_commits_that_an_engine_makes_at_once_are_seen_too(path: Path) -> None:
    store = SQLiteStore(path)
    faults = Faults(store)
    async with TestEngine(store=store) as engine:
        before = faults.commits
        await engine.publish("news")
        assert faults.commits == before + 1
        fault = faults.fail()
        with pytest.raises(StoreError):
            await engine.publish("news")
        assert fault.injected == 1
        assert faults.commits == before + 1
