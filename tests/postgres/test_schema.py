"""The schema in PostgreSQL: the tables that the code believes in are those that are there, or the store is refused."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.errors import SchemaTooNew, SchemaTooOld
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql.files import migrations
from holdfast.stores.sql.tables import TABLES

QUERY = """
SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
"""
OWN = {("event_queues", "last")}
"""Columns that SQLite does not need: it numbers events by itself."""
KINDS = {"bigint": "int", "text": "text"}


async def test_the_columns_that_are_listed_are_those_of_the_database(database: str) -> None:
    """A column stands in one list and in the schema; whichever was forgotten shows here."""
    store = PostgresStore(database)
    await store.open()
    await store.close()
    with psycopg.connect(database.partition("schema=")[0].rstrip("?&")) as connection:
        for table, (columns, _) in TABLES.items():
            made = connection.execute(QUERY, (store.schema, table)).fetchall()
            ours = [(name, KINDS[kind]) for name, kind in made if (table, name) not in OWN]
            assert sorted(columns) == sorted(ours), table


@pytest.mark.parametrize(("number", "refusal"), [(9, SchemaTooOld), (1000, SchemaTooNew)])
async def test_a_schema_of_another_number_is_refused_by_name(
    number: int, refusal: type[Exception], database: str
) -> None:
    """G15: one from before the first release, and one of a newer holdfast; the first number is that of SQLite."""
    assert migrations("postgres")[0][0] == migrations("sqlite")[0][0] == 10
    store = PostgresStore(database)
    await store.open()
    await store.close()
    with psycopg.connect(database.partition("schema=")[0].rstrip("?&")) as connection:
        connection.execute(f'DELETE FROM "{store.schema}".migrations')
        connection.execute(f'INSERT INTO "{store.schema}".migrations (number) VALUES ({number})')
    with pytest.raises(refusal, match=str(number)):
        await store.open()
