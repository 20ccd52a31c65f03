"""What the tests of the PostgreSQL store share."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from tests.postgres.proxy import Proxy
from tests.support.waiting import LONG, eventually

from holdfast.stores.postgres.store import PostgresStore

Open = Callable[..., Awaitable[PostgresStore]]


def address(database: str) -> str:
    """Give the address of a database as libpq has it."""
    return database.partition("schema=")[0].rstrip("?&")


async def until_waiting(side: psycopg.Connection[Any], count: int = 1) -> None:
    """Wait until so many sessions wait for a lock."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() "
        "AND application_name = 'holdfast'"
    )
    await eventually(lambda: side.execute(query).fetchall()[0][0] >= count)


def cut(connection: Any) -> None:
    """Break a connection for its client; the server reads on what it was sent."""
    with socket.socket(fileno=socket.dup(connection.pgconn.socket)) as half:
        half.shutdown(socket.SHUT_RDWR)


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Wait until tasks are done, whatever became of them."""
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), LONG)


def through(proxy: Proxy, store: PostgresStore) -> PostgresStore:
    """Give another store on the same tables, behind a proxy."""
    return PostgresStore(f"{proxy.url}{'&' if '?' in proxy.url else '?'}schema={store.schema}")


def elsewhere(database: str, name: str) -> str:
    """Give the address of another database on the same server."""
    before, _, after = address(database).partition("?")
    return f"{before.rpartition('/')[0]}/{name}?{after}"
