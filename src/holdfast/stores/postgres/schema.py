"""The schema in PostgreSQL: whether the server is supported, the tables exist, and this role may change them."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import AsyncConnection, errors

from holdfast.errors import CannotOpen, UnsupportedServer
from holdfast.stores.sql.files import check_current, check_version, migrations

OLDEST_SERVER = 150000
"""The oldest that the tests run on."""

_TRIES = 20


async def prepare_schema(connection: AsyncConnection[Any], schema: str, where: str) -> None:
    """Bring the tables up to date, if they are not: one process at a time, all or nothing.

    Raises:
        UnsupportedServer: it is older than we know.
        CannotOpen: its text is not UTF8.
        SchemaTooOld, SchemaTooNew: another holdfast made these tables; nothing was written.
    """
    await _check_server(connection, where)
    for number in range(_TRIES):
        try:
            await _migrate(connection, schema, where)
            return
        except (errors.UniqueViolation, errors.DuplicateObject, errors.DuplicateTable, errors.SerializationFailure):
            # Two processes made the same thing at once; the other one's is there now.
            await connection.rollback()
            if number == _TRIES - 1:
                raise


async def check_schema(connection: AsyncConnection[Any], schema: str, where: str) -> None:
    """Refuse tables that are not up to date, changing nothing.

    Raises:
        NeedsUpgrade: they are older.
        UnsupportedServer, CannotOpen, SchemaTooOld, SchemaTooNew: as above.
    """
    await _check_server(connection, where)
    check_current(await _version(connection, schema, where), "postgres", where)


async def _check_server(connection: AsyncConnection[Any], where: str) -> None:
    if connection.info.server_version < OLDEST_SERVER:
        version = connection.info.server_version // 10000
        raise UnsupportedServer(
            f"{where}: PostgreSQL {version} is too old; holdfast needs {OLDEST_SERVER // 10000} or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")  # a server tells it unasked, a pooler may not
    if encoding is None:
        [(encoding,)] = await (await connection.execute("SHOW server_encoding")).fetchall()
    if encoding != "UTF8":
        raise CannotOpen(f"{where}: the encoding of the database is {encoding}; holdfast needs UTF8")


async def _migrate(connection: AsyncConnection[Any], schema: str, where: str) -> None:
    known = migrations("postgres")[-1][0]
    if await _version(connection, schema, where) == known:
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"holdfast {schema}",))
        version = await _version(connection, schema, where)
        name = psycopg.sql.Identifier(schema)
        if version == 0:
            await connection.execute(psycopg.sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(name))
            await connection.execute(
                psycopg.sql.SQL("CREATE TABLE IF NOT EXISTS {}.migrations (number BIGINT PRIMARY KEY)").format(name)
            )
        await connection.execute(psycopg.sql.SQL("SET LOCAL search_path TO {}").format(name))
        for number, script in migrations("postgres"):
            if number > version:
                await connection.execute(script.encode())
                await connection.execute("INSERT INTO migrations (number) VALUES (%s)", (number,))


async def _version(connection: AsyncConnection[Any], schema: str, where: str) -> int:
    """Return the number of the last migration, 0 when there was none."""
    table = f'"{schema}".migrations'
    [(there,)] = await (await connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,))).fetchall()
    if not there:
        return 0
    query = psycopg.sql.SQL("SELECT coalesce(max(number), 0) FROM {}.migrations").format(psycopg.sql.Identifier(schema))
    [(version,)] = await (await connection.execute(query)).fetchall()
    check_version(version, "postgres", where)
    return int(version)
