"""The schema in PostgreSQL: the tables that the code believes in are those that are there."""

from __future__ import annotations

import psycopg

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.tables import TABLES

QUERY = """
SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""
OWN = {("event_queues", "last")}
"""Columns that SQLite does not need: it numbers events by itself."""
KINDS = {"bigint": "int", "text": "text"}


async def test_the_columns_that_are_listed_are_those_of_the_database(database: str) -> None:
    """S1-36: a column stands in one list and in the schema; whichever was forgotten shows here."""
    store = PostgresStore(database)
    await store.open()
    await store.close()
    with psycopg.connect(database.partition("schema=")[0].rstrip("?&")) as connection:
        for table, (columns, _) in TABLES.items():
            made = connection.execute(QUERY, (store.schema, table)).fetchall()
            ours = [(name, KINDS[kind]) for name, kind in made if (table, name) not in OWN]
            assert sorted(columns) == sorted(ours), table
