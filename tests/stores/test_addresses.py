"""How the address of a database may be written."""

from __future__ import annotations

import pytest

from holdfast.errors import BadInput
from holdfast.stores import open_store, read_address
from holdfast.stores.postgres.address import address_of


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:////var/lib/shop.db", "/var/lib/shop.db"),
        ("sqlite:///:memory:", ":memory:"),
        ("sqlite+pysqlite:///shop.db", "shop.db"),
        ("sqlite+aiosqlite:////var/lib/shop.db", "/var/lib/shop.db"),
        ("SQLite+aiosqlite:///:memory:", ":memory:"),
        ("shop.db", "shop.db"),
        ("/var/lib/a@b.db", "/var/lib/a@b.db"),
        ("sqlite:////var/lib/a:b@c.db", "/var/lib/a:b@c.db"),
    ],
)
def test_a_file_may_be_written_as_other_libraries_write_it(address: str, path: str) -> None:
    assert read_address(address) == ("sqlite", path)


@pytest.mark.parametrize(
    "scheme",
    [
        "postgresql",
        "postgres",
        "postgresql+psycopg",
        "postgresql+psycopg_async",
        "postgresql+psycopg2",
        "postgresql+asyncpg",
        "postgresql+pg8000",
        "PostgreSQL+AsyncPG",
    ],
)
def test_a_server_may_be_written_as_other_libraries_write_it(scheme: str) -> None:
    """The driver that is named there is not used: holdfast has its own."""
    kind, address = read_address(f"{scheme}://kim:secret@host:5433/shop?schema=a")
    assert (kind, address) == ("postgresql", "postgresql://kim:secret@host:5433/shop?schema=a")
    assert address_of(address).shown == "postgresql://kim@host:5433/shop"


def test_an_option_that_asyncpg_calls_otherwise_is_understood() -> None:
    _, address = read_address("postgresql+asyncpg://kim@host/shop?schema=a&ssl=verify-full")
    assert address == "postgresql://kim@host/shop?schema=a&sslmode=verify-full"


@pytest.mark.parametrize(
    "address",
    ["postgresql:///shop?host=/tmp", "postgresql://a:1,b:2/shop", "postgresql://kim@[::1]:5432/shop", "postgresql:///"],
)
def test_servers_at_sockets_in_groups_and_by_number_are_understood(address: str) -> None:
    assert address_of(address).shown.startswith("postgresql://")


@pytest.mark.parametrize(
    "address", ["", "mysql://host/db", "sqlite://", "sqlite+aiosqlite:///", "a" * 4001, b"shop.db"]
)
def test_what_names_no_database_is_refused(address: str) -> None:
    with pytest.raises(BadInput):
        open_store(address)


async def test_a_server_is_reached_by_an_address_of_another_library(empty_database: str) -> None:
    store = open_store(empty_database.replace("postgresql://", "postgresql+asyncpg://", 1))
    await store.open()
    assert await store.schedules() == []
    await store.close()
