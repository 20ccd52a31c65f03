"""Fixtures of the tests of the PostgreSQL tools themselves."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.postgres.servers import Server, find_servers, fresh_database, session_folder, shared_server


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
