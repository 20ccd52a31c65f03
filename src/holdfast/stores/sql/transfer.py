"""Statements of export and import, made from the columns of each table.

- `export_T` reads a page of a table, of the runs whose keys lie between two numbers ($1, $2), beyond a position;
- `export_other_T` reads a page of rows whose run does not exist, beyond a position;
- `existing_T` looks for rows that an import would conflict with;
- `import_T` writes rows.
What does not follow from the columns is written by hand, in queries/transfer.sql, and takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from holdfast.stores.sql.files import Statement, statements
from holdfast.stores.sql.tables import TABLES, Column, Row, Table, Value

BY_ID = frozenset({"dead_letters", "evidence"})
"""Tables that know a run by its public id: rows of them outlive it."""

OF_RUNS = tuple(name for name, table in TABLES.items() if name in BY_ID or Column("run", "int") in table.columns)
"""Tables that have rows of runs, in the order in which they are exported."""

OTHERS = ("message_ids", "idempotency_keys", "dead_letters", "evidence", "tombstones", "schedules", "pauses", "audit")
"""Tables that have rows of no run that is there, in the order in which they are exported."""

UNIQUE = ("replies", "idempotency_keys", "dead_letters", "evidence", "tombstones", "schedules", "audit")
"""Tables in which a row of the file may be in the way of one that is there."""

_FIRST: Mapping[str, Value] = {"int": -1, "text": ""}
_OWNERLESS = {
    "message_ids": "message_ids.run = 0 AND ",
    "idempotency_keys": "NOT EXISTS (SELECT 1 FROM runs WHERE runs.key = idempotency_keys.run) AND ",
    "dead_letters": "NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = dead_letters.run) AND ",
    "evidence": "NOT EXISTS (SELECT 1 FROM runs WHERE runs.id = evidence.run) AND ",
}
"""What tells rows that belong to no run that is there."""


def position_of(table: str) -> tuple[str, ...]:
    """Return the columns by which the rows of one run are read in order, page by page."""
    return tuple(name for name in TABLES[table].key if table in BY_ID or name != "run")


def beginning_of(table: str) -> Row:
    """Return a position before the first row."""
    types = dict(TABLES[table].columns)
    return tuple(_FIRST[types[name]] for name in position_of(table))


@cache
def with_transfers(*files: str) -> Mapping[str, Statement]:
    """Return the statements of files by name, and those of export and import that are in none of them."""
    made = {f"export_{name}": _read_of_runs(name) for name in OF_RUNS}
    made |= {f"export_other_{name}": _read_others(name) for name in (*OTHERS, "event_queues")}
    made |= {f"existing_{name}": _look_up(name, TABLES[name]) for name in UNIQUE}
    made |= {f"import_{name}": _write(name, table) for name, table in TABLES.items() if name != "events"}
    return MappingProxyType({**made, **statements(*files)})


def _write(name: str, table: Table) -> Statement:
    text = f"INSERT INTO {name} ({{columns}}) SELECT {{columns}} FROM {{rows}} AS new WHERE TRUE"
    return Statement(text, table.columns)


def _look_up(name: str, table: Table) -> Statement:
    """Return what finds rows by their key."""
    same = " AND ".join(f"{name}.{column} = wanted.{column}" for column in table.key)
    wanted = tuple(column for column in table.columns if column.name in table.key)
    return Statement(f"SELECT {_columns(name)} FROM {{rows}} AS wanted {{join}} {name} ON {same}", wanted)


def _read_of_runs(name: str) -> Statement:
    """Return what reads the rows of runs; the first column is the key of the run."""
    position = position_of(name)
    if name in BY_ID:
        order = ["runs.key", *(f"{name}.{column}" for column in position)]
        read, run = f"SELECT runs.key, {_columns(name)} FROM runs JOIN {name} ON {name}.run = runs.id", "runs.key"
    else:
        order = [f"{name}.run", *(f"{name}.{column}" for column in position)]
        read, run = f"SELECT {_columns(name)} FROM {name}", f"{name}.run"
    return Statement(f"{read} WHERE {run} BETWEEN $1 AND $2 AND {_page(order, 3)}", ())


def _read_others(name: str) -> Statement:
    columns = _columns(name).replace("idempotency_keys.run", "0")  # the run is gone, so its key means nothing
    order = [f"{name}.{column}" for column in position_of(name)]
    return Statement(f"SELECT {columns} FROM {name} WHERE {_OWNERLESS.get(name, '')}{_page(order, 1)}", ())


def _columns(name: str) -> str:
    return ", ".join(f"{name}.{column}" for column, _ in TABLES[name].columns)


def _page(order: Sequence[str], first: int) -> str:
    """Return what comes beyond a position, whose parameters begin with this number, and how much of it."""
    after = ", ".join(f"${first + number}" for number in range(len(order)))
    columns = ", ".join(order)
    return f"({columns}) > ({after}) ORDER BY {columns} LIMIT ${first + len(order)}"
