"""Make the files of one schema, once: `python -m tests.golden.make sqlite|postgres ADDRESS`.

Each folder schema_N has runs of every kind in a file of each store, as a worker that was killed left them, with the
code that continues them. A later schema gets a folder of its own beside them. What is there is never made again.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import apsw
import psycopg
from psycopg import sql
from tests.golden.schema_10 import story

from holdfast.clock import to_datetime
from holdfast.stores.sql.files import migrations
from holdfast.stores.sql.tables import TABLES

FOLDER = Path(__file__).parent / "schema_10"
SQLITE, POSTGRES, EXPECTED = FOLDER / "sqlite.db.gz", FOLDER / "postgres.sql.gz", FOLDER / "expected.json"
HERE = str(Path(__file__).parent.parent.parent)
"""What tracebacks in the files must not say: where they were made."""
NOT_DUMPED = {"migrations", "name_locks"}
"""Tables whose rows the schema itself inserts."""


async def make_sqlite() -> dict[str, Any]:
    """Make the SQLite file and return how its runs end."""
    with tempfile.TemporaryDirectory() as folder:
        path, kept = Path(folder) / "work.db", Path(folder) / "kept.db"

        async def keep() -> None:
            source, copy = apsw.Connection(str(path)), apsw.Connection(str(kept))
            with copy.backup("main", source, "main") as backup:
                backup.step()
            copy.close()
            source.close()

        clock = await story.make(f"sqlite:///{path}", keep)
        await story.tell(f"sqlite:///{kept}", clock)
        db = apsw.Connection(str(kept))
        for table, (columns, _) in TABLES.items():
            for column in (column.name for column in columns if column.type == "text"):
                db.execute(f"UPDATE {table} SET {column} = replace({column}, ?, '/app')", (HERE,))
        # Wherever it is opened, its workers are dead.
        db.execute("UPDATE workers SET boot = 'another boot', host = 'another host', pid = 1")
        db.execute("VACUUM")
        db.close()
        _write(SQLITE, kept.read_bytes())
        now = to_datetime(clock.now())
        return {"now": now.isoformat(), "runs": await story.finish(f"sqlite:///{kept}", now)}


async def make_postgres(address: str) -> dict[str, Any]:
    """Make the dump of a PostgreSQL schema, in an empty database, and return how its runs end."""
    killed: list[str] = []

    async def keep() -> None:
        killed.extend(_dump(address, "work"))

    clock = await story.make(_in_schema(address, "work"), keep)
    load(address, "told", "\n".join(killed).encode())
    await story.tell(_in_schema(address, "told"), clock)
    # Wherever it is loaded, its workers are dead.
    dead = {"machine": "another machine", "session": 0, "session_begun": "", "lease_until": 1}
    _write(POSTGRES, "\n".join(_dump(address, "told", **dead, host="another host", pid=1)).encode())
    load(address, "kept", gzip.decompress(POSTGRES.read_bytes()))
    now = to_datetime(clock.now())
    return {"now": now.isoformat(), "runs": await story.finish(_in_schema(address, "kept"), now)}


def _in_schema(address: str, schema: str) -> str:
    return f"{address}{'&' if '?' in address else '?'}schema={schema}"


def _dump(address: str, schema: str, **of_workers: Any) -> list[str]:
    """Return a schema and all its rows as statements, without its name; workers with some columns as they are given."""
    lines = ["CREATE TABLE migrations (number BIGINT PRIMARY KEY);"]
    for number, script in migrations("postgres"):
        lines += [script, f"INSERT INTO migrations (number) VALUES ({number});"]
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name"
    with psycopg.connect(address) as connection:
        for (table,) in connection.execute(query, (schema,)).fetchall():
            if table in NOT_DUMPED:
                continue
            cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table)))
            columns = [column.name for column in cursor.description or ()]
            for row in cursor.fetchall():
                values = dict(zip(columns, row, strict=True)) | (of_workers if table == "workers" else {})
                said = ", ".join(sql.Literal(value).as_string(connection) for value in values.values())
                lines.append(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({said});".replace(HERE, "/app"))
    return lines


def load(address: str, schema: str, dump: bytes) -> None:
    """Load a dump into a schema without tables."""
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        connection.execute(dump)


def _write(path: Path, data: bytes) -> None:
    if path.exists():
        raise SystemExit(f"{path} is there, and is kept for ever: a new schema gets a folder of its own")
    path.write_bytes(gzip.compress(data, mtime=0))


async def main() -> None:
    """Make one file, and note how its runs end."""
    store = sys.argv[1]
    expected = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    expected[store] = await (make_sqlite() if store == "sqlite" else make_postgres(sys.argv[2]))
    EXPECTED.write_text(json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
