"""Fixtures of the tests of the PostgreSQL store, and of the tools that those tests need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.servers import Server, find_servers, fresh_database, session_folder, shared_server
from tests.support.postgres_cases import Open, address
from tests.support.waiting import LONG

from holdfast.stores.postgres.store import PostgresStore


@pytest.fixture(scope="session")
def newest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = shared_server(next(iter(find_servers())), session_folder(tmp_path_factory.getbasetemp()))
    yield server
    server.leave()


@pytest.fixture
def database(newest_server: Server) -> Iterator[str]:
    """A database with one empty table, `notes (text)`."""
    with fresh_database(newest_server) as url:
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE notes (text text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        yield url


@pytest.fixture
async def another(database: str) -> AsyncIterator[Open]:
    """Give what opens stores on one database, by what is added to its address; they are closed afterwards."""
    stores: list[PostgresStore] = []

    async def open_one(added: str = "", **settings: Any) -> PostgresStore:
        store = PostgresStore(f"{database}{added}", **settings)
        await store.open()
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        await asyncio.wait_for(store.close(), LONG)


@pytest.fixture
async def store(another: Open) -> PostgresStore:
    return await another()


@pytest.fixture
def side(database: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a connection that watches, or does what somebody else does."""
    with psycopg.connect(address(database), autocommit=True) as connection:
        yield connection
        connection.rollback()
