"""Fixtures of the tests of stores: SQLite files, and PostgreSQL servers that are started when a test asks for one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.postgres import servers
from tests.sqlite_cases import opened

from holdfast.stores.sqlite import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = await opened(path, durability="process")
    yield store
    await store.close()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Give the address of a database of this process on a real server that all test processes share.

    It is the newest PostgreSQL there is, or the one that HOLDFAST_POSTGRES names.
    """
    version = os.environ.get("HOLDFAST_POSTGRES") or next(iter(servers.find_servers()), "18")
    if version not in servers.find_servers():
        pytest.skip(f"there is no PostgreSQL {version} on this machine")
    server = servers.shared_server(version, servers.session_folder(tmp_path_factory.getbasetemp()))
    with servers.fresh_database(server) as url:
        yield url
    server.leave()


@pytest.fixture
def database(postgres: str) -> Iterator[str]:
    """Give the address of an empty schema, dropped after the test."""
    with servers.fresh_schema(postgres) as schema:
        yield f"{postgres}{'&' if '?' in postgres else '?'}schema={schema}"
