"""Starts and messages enclosed in a caller's own transaction."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.rows import dict_row
from tests.support.postgres_cases import address
from tests.support.waiting import LONG

from holdfast.contract.operations import (
    Delivered,
    Done,
    Purge,
    Started,
    Terminate,
)
from holdfast.contract.rows import LetterFilter, Status
from holdfast.contract.turns import StartRun
from holdfast.errors import StoreError
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    NOW,
    ended,
    given,
    message,
    new_run,
    one,
    started,
)


async def test_an_enclosed_start_does_not_care_how_the_caller_likes_his_rows(
    store: PostgresStore, database: str
) -> None:
    """G1, G2, G7: row_factory is the caller's own business."""
    run = await started(store)
    async with await psycopg.AsyncConnection.connect(address(database), row_factory=dict_row) as theirs:
        assert isinstance(await store.enclose(theirs, message(run.id)), Delivered)
        assert isinstance(await store.enclose(theirs, StartRun(run=new_run("enclosed"))), Started)
        twice = await store.enclose(theirs, StartRun(run=new_run("enclosed")))
        assert not isinstance(twice, Started)
    assert await store.relay() == 1


async def test_an_enclosed_start_in_an_old_snapshot_comes_to_an_end(store: PostgresStore, database: str) -> None:
    """G2: in REPEATABLE READ trying again never sees the run that is in the way."""
    with psycopg.connect(address(database)) as theirs:
        theirs.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        theirs.execute("SELECT 1")
        await started(store, "taken", owner=None)
        with pytest.raises((psycopg.Error, StoreError)):
            await asyncio.wait_for(store.enclose(theirs, StartRun(run=new_run("taken"))), LONG)


async def test_a_full_inbox_keeps_no_message_to_others_in_the_outbox(store: PostgresStore, database: str) -> None:
    """G7: five hundred that cannot be delivered at present stand before one that can."""
    full, free = await started(store), await started(store)
    await one(store, message(full.id), Delivered)
    with psycopg.connect(address(database)) as theirs:
        for _ in range(500):
            await store.enclose(theirs, message(full.id, max_pending=1))
        await store.enclose(theirs, message(free.id, "7"))
    for _ in range(3):
        await store.relay()
    assert await given(store, free) == [("message", "7")]


async def test_an_enclosed_message_to_a_run_that_was_purged_is_a_dead_letter(
    store: PostgresStore, database: str
) -> None:
    """G7, G12: it was accepted, so it is not dropped silently."""
    run = await started(store)
    with psycopg.connect(address(database)) as theirs:
        assert isinstance(await store.enclose(theirs, message(run.id, "7")), Delivered)
        await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done)
        assert await one(store, Purge(what="failed", before=NOW + 1, at=NOW), Done) == Done(1, (run.id,))
    assert await store.relay() == 1
    assert [letter.payload for letter in await store.letters(LetterFilter())] == ["7"]


async def test_two_messages_of_one_id_to_runs_that_were_purged_are_two_letters(
    store: PostgresStore, database: str
) -> None:
    """G12"""
    runs = [await started(store), await started(store)]
    with psycopg.connect(address(database)) as theirs:
        for run in runs:
            await store.enclose(theirs, message(run.id, id="same"))
            await one(store, Terminate(target=run.id, end=ended(Status.FAILED)), Done)
        await one(store, Purge(what="failed", before=NOW + 1, at=NOW), Done)
    await store.relay()
    assert len(await store.letters(LetterFilter())) == 2
