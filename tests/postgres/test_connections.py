"""Connections to the server: opened, closed, cancelled, and silent."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.support.postgres_cases import Open, address, cut, elsewhere, settled, through, until_waiting
from tests.support.waiting import LONG, eventually

from holdfast.contract.operations import (
    Delivered,
    Pause,
)
from holdfast.contract.rows import RunFilter
from holdfast.errors import AuthFailed, BadInput, CannotOpen, StoreError, StoreUnreachable
from holdfast.stores.postgres.connections import ANSWER
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.conformance.samples import (
    NOW,
    message,
    row,
    started,
    turn,
    unread,
)


async def test_a_database_or_a_user_that_does_not_exist_is_told_as_that(database: str) -> None:
    """G19: a server that answers can be reached; trying again does not help."""
    with pytest.raises(CannotOpen):
        await PostgresStore(elsewhere(database, "nowhere")).open()
    with pytest.raises(AuthFailed):
        await PostgresStore(address(database).replace("postgres@", "nobody_at_all@")).open()


async def test_closing_ends_what_is_under_way(database: str, store: PostgresStore) -> None:
    """S0: neither the closing nor what waits for the database hangs."""
    other = PostgresStore(database)
    await other.open()
    run = await started(store)
    with psycopg.connect(address(database)) as holder:
        holder.execute(f'SELECT 1 FROM "{store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        waiting_ones = [asyncio.create_task(other.apply([message(run.id)])) for _ in range(3)]
        await asyncio.sleep(0.3)
        await asyncio.wait_for(other.close(), LONG)
        done, hung = await asyncio.wait(waiting_ones, timeout=LONG)
        for task in hung:
            task.cancel()
        await settled(*hung)
    assert not hung
    assert all(isinstance(task.exception(), StoreError) for task in done)


async def test_opening_twice_at_once_opens_once(database: str, side: psycopg.Connection[Any]) -> None:
    """S0: no listener is left behind."""
    store = PostgresStore(database)
    await asyncio.gather(store.open(), store.open())
    await store.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "holdfast listener"]


async def test_looking_takes_one_connection_and_listens_when_it_is_asked_what_changed(
    database: str, side: psycopg.Connection[Any]
) -> None:
    """A command that looks once need not greet the server three times."""
    store = PostgresStore(database)
    await store.open()
    await store.close()
    await store.open(look_only=True)
    try:
        assert await store.runs(RunFilter()) == []
        assert sessions(side) == 1
        store.changed()
        await eventually(lambda: sessions(side) == 2)
    finally:
        await store.close()


def sessions(side: psycopg.Connection[Any]) -> int:
    """Return how many other connections to this database there are."""
    found = side.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    ).fetchone()
    assert found is not None
    return int(found[0])


async def test_a_password_that_cannot_be_read_is_not_shown() -> None:
    """G19: the DSN password never shown."""
    with pytest.raises(BadInput) as caught:
        PostgresStore("postgresql://user:100%secret@localhost/db")
    assert "secret" not in str(caught.value)


async def test_who_cancels_leaves_the_connection_in_order(store: PostgresStore) -> None:
    """S0: cancelled anywhere between BEGIN and COMMIT, or while reading; the next one finds its own answers."""
    dice, runs = random.Random(5), [await started(store) for _ in range(4)]
    for number in range(60):
        run = dice.choice(runs)
        work: Any = dice.choice(
            [
                lambda: store.apply([message(run.id)]),  # noqa: B023
                lambda: store.apply([turn(run.key, entries=[])]),  # noqa: B023
                lambda: store.load([run.key]),  # noqa: B023
                lambda: store.get(run.id),  # noqa: B023
                lambda: store.apply([Pause(target="nobody", at=NOW)]),
                lambda: store.claim("w", NOW, 5, ["order"]),
            ]
        )
        task = asyncio.create_task(work())
        await asyncio.sleep(dice.choice([0, 0, dice.uniform(0, 0.004)]))
        task.cancel()
        await settled(task)
        other = dice.choice(runs)
        assert (await row(store, other.id)).key == other.key, number
        [outcome] = await store.apply([message(other.id)])
        assert isinstance(outcome, Delivered), number
        assert outcome.key == other.key
    for run in runs:
        assert [each.n for each in await unread(store, run.key)] == list(range(1, (await row(store, run.id)).inbox + 1))


async def test_who_is_cancelled_while_the_connection_breaks_does_not_go_on(
    store: PostgresStore, another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """S0: psycopg then raises its own error in place of the cancellation, and that must not be tried again."""
    run, other = await started(store), await another()
    with psycopg.connect(address(database)) as holder:
        holder.execute(f'SELECT 1 FROM "{store.schema}".runs WHERE key = %s FOR UPDATE', (run.key,))
        sending = asyncio.create_task(other.apply([message(run.id)]))
        await until_waiting(side)
        sending.cancel()
        cut(other._connections.writer.connection)
        done, _ = await asyncio.wait([sending], timeout=LONG)
        holder.rollback()
        await settled(sending)
    assert done
    assert sending.cancelled()


async def test_durability_is_what_the_store_says_it_is(
    another: Open, database: str, side: psycopg.Connection[Any]
) -> None:
    """G16: behind a pooler no options pass, and the role's own settings are what counts."""
    role = f"careless_{os.getpid()}"
    side.execute(f"CREATE ROLE {role} LOGIN SUPERUSER")
    side.execute(f"ALTER ROLE {role} SET synchronous_commit = off")
    store = PostgresStore(database.replace("postgres@", f"{role}@"), dialect="pooler")
    try:
        await store.open()
        [(level,)] = await store._connections.reader.use(_level)
        assert (store.durability, level) in (("power", "on"), ("process", "off"))
    finally:
        await store.close()
        side.execute(f"DROP OWNED BY {role} CASCADE")
        side.execute(f"DROP ROLE {role}")


async def _level(connection: Any) -> list[Any]:
    return list(await (await connection.execute("SHOW synchronous_commit")).fetchall())


async def test_closing_does_not_wait_for_a_hint(store: PostgresStore, database: str) -> None:
    """G14: with a server that fell silent."""
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.get(run.id)
        await far.apply([message(run.id)])
        proxy.black_hole()
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(far.close())
        done, _ = await asyncio.wait([closing], timeout=ANSWER / 2)
        proxy.heal()
        await settled(closing)
    assert done


async def test_loading_a_run_comes_to_an_end(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: with a server that fell silent."""
    monkeypatch.setattr("holdfast.stores.postgres.database.ANSWER", 1.0)
    run = await started(store)
    with Proxy(address(database)) as proxy:
        far = through(proxy, store)
        await far.open()
        await far.load([run.key])
        proxy.black_hole()
        loading = asyncio.create_task(far.load([run.key]))
        done, _ = await asyncio.wait([loading], timeout=LONG)
        loading.cancel()
        proxy.heal()
        await settled(loading)
        await far.close()
    assert done


async def test_what_a_new_connection_does_not_answer_is_not_asked_again(store: PostgresStore) -> None:
    """Only a connection that was there before may be the one that is silent."""
    asked: list[Any] = []

    async def ask(connection: Any) -> None:
        asked.append(connection)
        await connection.execute("SELECT pg_sleep(600)")

    async def answered(connection: Any) -> None:
        await connection.execute("SELECT 1")

    connections = store._connections
    for was_there, times in ((False, 1), (True, 2)):
        await connections.reader.drop()
        if was_there:
            await connections.read(answered)
        asked.clear()
        with pytest.raises(StoreUnreachable, match=r"no answer within 0\.2 s"):
            await connections.read(ask, 0.2)
        assert len(asked) == times


async def test_a_user_without_rights_is_told_so(
    database: str, store: PostgresStore, side: psycopg.Connection[Any]
) -> None:
    """Looking does not speak of writing."""
    name = f"looker_{os.getpid()}"
    side.execute(f"CREATE ROLE {name} LOGIN")
    try:
        for look_only in (True, False):
            with pytest.raises(CannotOpen, match="this user has no right to what was asked"):
                await PostgresStore(database.replace("postgres@", f"{name}@")).open(look_only=look_only)
    finally:
        side.execute(f"DROP ROLE {name}")
