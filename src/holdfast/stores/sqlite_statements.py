"""The two ways SQLite runs the statements of a batch: row by row, or many rows in one JSON parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import apsw
import msgspec

from holdfast.stores.run_state import Row, Value
from holdfast.stores.sql_files import statements

SQL: Mapping[str, str] = statements("sqlite_batch", "sqlite_many", "sqlite_claims", "sqlite_workers", "sqlite_reads")

MAX_PARAMETER = 64 << 20
"""How many characters one parameter may have; SQLite refuses a thousand million bytes."""

_encode = msgspec.json.Encoder().encode


def json_rows(rows: Sequence[object]) -> str:
    """Encode rows as one parameter for json_each."""
    return _encode(rows).decode()


class PlainStatements:
    """One prepared statement per row: cheapest for a few rows."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        execute, sql = self._db.execute, SQL[name]
        return [found for row in rows for found in execute(sql, row)]

    def write(self, name: str, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            self._db.execute(SQL[name], rows[0])
        else:
            self._db.executemany(SQL[name], rows)

    def change(self, name: str, row: Row) -> int:
        self._db.execute(SQL[name], row)
        return self._db.changes()


class SetStatements(PlainStatements):
    """One statement for all rows where there is such a form; SQLite then works without the interpreter lock."""

    def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        sql = SQL.get(f"{name}_json")
        if sql is None or len(rows) == 1:
            return super().read(name, rows)
        return [*self._db.execute(sql, (json_rows(rows),))]

    def write(self, name: str, rows: Sequence[Row]) -> None:
        sql = SQL.get(f"{name}_json")
        if sql is None or len(rows) == 1:
            super().write(name, rows)
            return
        parameter = json_rows(rows)
        if len(parameter) <= MAX_PARAMETER:
            self._db.execute(sql, (parameter,))
        else:
            middle = len(rows) // 2
            self.write(name, rows[:middle])
            self.write(name, rows[middle:])
