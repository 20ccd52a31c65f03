"""The two ways SQLite runs the statements of a batch: row by row, or many rows in one JSON parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence

import apsw
import msgspec

from holdfast.stores.sql.files import Filled, Statement
from holdfast.stores.sql.statements import in_pieces
from holdfast.stores.sql.tables import LISTS, Row, Value
from holdfast.stores.sql.transfer import with_transfers

_WORDS = {
    "join": "CROSS JOIN",  # in SQLite this fixes the order of the loops
    "greatest": "max",
    "for_update": "",
    "skip_locked": "",
    "attributes": "(SELECT json_group_object(name, json(value)) FROM attributes WHERE attributes.run = runs.key)",
    "error_type": "results.error ->> '$.type'",
    "error_message": "results.error ->> '$.message'",
    "letter_error_type": "dead_letters.error ->> '$.type'",
    "letter_error_message": "dead_letters.error ->> '$.message'",
}
_ROWS = "(SELECT {values} FROM jsonb_each(jsonb(?)))"
_PARAMETER = re.compile(r"\$(\d+)")
_encode = msgspec.json.Encoder().encode
_rows_in = msgspec.json.Decoder(list[tuple[Value, ...]]).decode


def _one_row(statement: Statement) -> str:
    parameters = ", ".join(f"?{number} AS {name}" for number, (name, _) in enumerate(statement.columns, 1))
    return _PARAMETER.sub(r"?\1", statement.fill({**_WORDS, "rows": f"(SELECT {parameters})"}))


def _many_rows(statement: Statement) -> str:
    if not statement.columns:
        return ""
    values = ", ".join(f"value ->> {number} AS {name}" for number, (name, _) in enumerate(statement.columns))
    return statement.fill({**_WORDS, "rows": _ROWS.replace("{values}", values)})


_READ = with_transfers(
    "sql/batch",
    "sql/many",
    "sql/claims",
    "sql/reads",
    "sql/heads",
    "sqlite/heads",
    "sql/house",
    "sql/figures",
    "sql/tokens",
    "sql/moves",
    "sql/workers",
    "sql/transfer",
    "sql/limits",
    "sql/lanes",
    "sqlite/hot",
    "sqlite/claims",
    "sqlite/workers",
)
SQL = Filled(_READ, _one_row)
MANY = Filled(_READ, _many_rows)
"""The same for many rows; empty where a statement has no such form."""


class _InOneRow(dict[str, str]):
    """Statements that return many runs as one row of JSON, made when they are asked for.

    Each row that SQLite returns takes the interpreter lock and gives it back: beside a busy thread, two thousand runs
    took as long as that was busy, and in one row they take 7 ms.
    """

    def __missing__(self, name: str) -> str:
        columns = LISTS["run"]
        sql = MANY[name].replace(f"SELECT {columns} FROM", f"SELECT json_group_array(json_array({columns})) FROM", 1)
        self[name] = sql
        return sql


IN_ONE_ROW = _InOneRow()


def json_rows(rows: Sequence[object]) -> str:
    """Encode rows as one parameter for json_each."""
    return _encode(rows).decode()


class PlainStatements:
    """One prepared statement per row: cheapest for a few rows."""

    weighs_indexes = False

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    async def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        execute, sql = self._db.execute, SQL[name]
        return [found for row in rows for found in execute(sql, row)]

    async def runs(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        return await self.read(name, rows)

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        if len(rows) == 1:
            self._db.execute(SQL[name], rows[0])
        else:
            self._db.executemany(SQL[name], rows)

    async def change(self, name: str, row: Row) -> int:
        self._db.execute(SQL[name], row)
        return self._db.changes()

    async def list(self, name: str, conditions: str, values: Row) -> list[tuple[Value, ...]]:
        sql = SQL[name].replace("{filter}", _PARAMETER.sub(r"?\1", conditions))
        return [*self._db.execute(sql, values)]

    def ignoring_indexes(self, column: str) -> str:
        return f"+{column}"


class SetStatements(PlainStatements):
    """One statement for all rows where there is such a form; SQLite then works without the interpreter lock."""

    async def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        sql = MANY[name]
        if not sql or len(rows) == 1:
            return await super().read(name, rows)
        return [*self._db.execute(sql, (json_rows(rows),))]

    async def runs(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        if len(rows) == 1:
            return await self.read(name, rows)
        [(found,)] = self._db.execute(IN_ONE_ROW[name], (json_rows(rows),))
        return _rows_in(found)

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        sql = MANY[name]
        if not sql or len(rows) == 1:
            await super().write(name, rows)
            return
        for parameter in in_pieces(rows, json_rows):
            self._db.execute(sql, (parameter,))

    async def insert(self, name: str, rows: Sequence[Row]) -> int:
        before = self._db.total_changes()
        await self.write(name, rows)
        return self._db.total_changes() - before
