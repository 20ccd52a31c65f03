"""What a PostgreSQL database can hold, and what it refuses without harm to anything else."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import Any

import psycopg
import pytest
from tests.support.postgres_cases import Open, elsewhere

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Operation,
)
from holdfast.contract.turns import RunOptions, StartRun, TakeKey
from holdfast.definitions import check_message_id
from holdfast.engine.worker.committer import Committer
from holdfast.errors import BadData, BadInput, CannotOpen
from holdfast.stores.postgres.connections import ReconnectingConnection
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    entry,
    extra,
    message,
    new_run,
    one,
    started,
    turn,
)


@pytest.mark.parametrize("what", ["attribute", "key", "text"])
async def test_what_cannot_be_stored_spoils_nothing_else(store: PostgresStore, what: str) -> None:
    """GUARANTEES 6.3: too long for an index, or no Unicode; the rest of the group commit is made."""
    run, long = await started(store), f'"{secrets.token_hex(4000)}"'
    operations: dict[str, Operation] = {
        "attribute": StartRun(run=new_run(options=RunOptions(attributes={"a": long}))),
        "key": extra(run.key, takes=[TakeKey(activity="a", key=long, digest=1, location="a0")]),
        "text": message(run.id, id="\ud800"),
    }
    committer = Committer(store, lambda: False)
    bad, good = await asyncio.gather(
        committer.apply(operations[what]), committer.apply(message(run.id)), return_exceptions=True
    )
    assert isinstance(bad, BadData)
    assert isinstance(good, Delivered)


@pytest.mark.parametrize("id", ["\ud800", "a\0b"], ids=["half a pair", "nul"])
async def test_ids_of_messages_can_be_stored(id: str) -> None:
    """GUARANTEES 6.3: what cannot be written is refused at the door, before it spoils the batch it is in."""
    with pytest.raises(BadInput):
        check_message_id(id)


@pytest.mark.parametrize("largest", [64_000, pytest.param(64 << 20, marks=pytest.mark.slow)])
async def test_facts_of_any_number_fit_into_one_commit(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    """G1: two thousand turns of up to two megabytes each may come together; JSON ends at 256 MB."""
    monkeypatch.setattr("holdfast.stores.sql.statements.MAX_PARAMETER", largest)
    monkeypatch.setattr("holdfast.stores.postgres.commits.MAX_PARAMETER", largest)
    use = ReconnectingConnection.use
    monkeypatch.setattr(
        ReconnectingConnection, "use", lambda line, work, answer=None: use(line, work, None)
    )  # a busy machine takes long
    run, data = await started(store, owner=None), f'"{"x" * (largest // 32)}"'
    [outcome] = await store.apply([turn(run.key, 0, entries=[entry("a0", n, data) for n in range(135)])])
    assert isinstance(outcome, Committed)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_cannot_hold_every_text_is_refused(
    encoding: str, database: str, side: psycopg.Connection[Any]
) -> None:
    """GUARANTEES 6.4: or else one character spoils every batch it is in."""
    name = f"test_{encoding.lower()}_{os.getpid()}"
    side.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    store = PostgresStore(elsewhere(database, name))
    try:
        with pytest.raises(CannotOpen, match="UTF8"):
            await store.open()
    finally:
        await store.close()
        side.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_the_encoding_of_the_environment_does_not_matter(another: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """GUARANTEES 6.4"""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    store = await another()
    run = await started(store)
    assert isinstance(await one(store, message(run.id, '"€"'), Delivered), Delivered)
