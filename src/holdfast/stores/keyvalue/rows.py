"""Rows as keys and values: the tables, the key of a row, and which rows a transaction changed.

A row of any table is one key: `Er`, the name of the table, a zero byte, and the digest of its primary key. Its value is
the row in msgpack, in the order of its columns. The highest number that a table ever gave out (`runs`, `events`) is a
separate key, `Em` and the name of the table: SQLite keeps it where no hook sees it, and the row that had it may be
gone.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

import apsw
import msgspec

from holdfast.errors import StoreCorrupt

ROW = b"Er"
MARK = b"Em"
DIGEST = 16
WAY_OUT = "restore a backup"

SQLiteValue = str | int | float | bytes | None
StoredValues = Sequence[SQLiteValue]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list).decode


class KeyedTable(NamedTuple):
    """What is known of a table."""

    name: str
    prefix: bytes
    width: int
    """How many columns it has."""
    identity: tuple[int, ...]
    """Which of them are its primary key."""
    numbered: bool
    """Whether it gives out numbers that are never given out again."""

    def key(self, row: StoredValues) -> bytes:
        """Return the key that a row is stored under."""
        return self.key_of([row[place] for place in self.identity])

    def key_of(self, identity: Sequence[SQLiteValue]) -> bytes:
        """Return the key of the row that has a primary key."""
        return self.prefix + blake2b(_encode(identity), digest_size=DIGEST).digest()


def tables_of(db: apsw.Connection) -> Mapping[str, KeyedTable]:
    """Return the tables of a database by their names, all but those of SQLite itself."""
    found: dict[str, KeyedTable] = {}
    names = db.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    )
    for name, sql in names.fetchall():
        columns = db.execute("SELECT pk FROM pragma_table_info(?) ORDER BY cid", (name,)).fetchall()
        places = sorted((pk, place) for place, (pk,) in enumerate(columns) if pk)
        prefix = ROW + str(name).encode() + b"\0"
        identity = tuple(place for _, place in places)
        found[str(name)] = KeyedTable(str(name), prefix, len(columns), identity, "AUTOINCREMENT" in str(sql))
    return found


class ChangedRows:
    """The rows that a transaction has changed so far, as SQLite tells of them before it changes each.

    SQLite tells nothing of tables of its own and of virtual ones; it does of tables without rowid, of rows that REPLACE
    removes, and of a DELETE without conditions. Nothing is taken back when a savepoint is rolled back: no statement of
    a store makes one.
    """

    def __init__(self, tables: Mapping[str, KeyedTable]) -> None:
        self._tables = tables
        self._rows: dict[bytes, StoredValues | None] = {}
        self._marks: dict[str, int] = {}

    def note(self, update: apsw.PreUpdate) -> None:
        """Note one row that is about to change: what SQLite calls for each."""
        table = self._tables[update.table_name]
        old, new = update.old, update.new
        if old is not None and (new is None or any(old[place] != new[place] for place in table.identity)):
            self._rows[table.key(old)] = None
        if new is not None:
            self._rows[table.key(new)] = new
            if old is None and table.numbered:
                number = new[table.identity[0]]
                assert isinstance(number, int)
                self._marks[table.name] = max(number, self._marks.get(table.name, 0))

    def clear(self) -> None:
        """Forget what was noted."""
        self._rows.clear()
        self._marks.clear()

    def take(self, marks: dict[str, int]) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return what to put and what to delete, and note nothing of it any more; `marks` are raised."""
        puts = {key: _encode(row) for key, row in self._rows.items() if row is not None}
        deletes = [key for key, row in self._rows.items() if row is None]
        for name, number in self._marks.items():
            if number > marks.get(name, 0):
                marks[name] = number
                puts[MARK + name.encode()] = b"%d" % number
        self.clear()
        return puts, deletes


def everything(db: apsw.Connection) -> Iterator[tuple[bytes, bytes]]:
    """Yield every row and every highest number of a database as keys and values."""
    for table in tables_of(db).values():
        for row in db.execute(f"SELECT * FROM {table.name}"):  # noqa: S608  # a name of ours
            yield table.key(row), _encode(row)
    for name, number in db.execute("SELECT name, seq FROM sqlite_sequence"):
        yield MARK + str(name).encode(), b"%d" % int(str(number))


def fill(db: apsw.Connection, found: Mapping[bytes, bytes]) -> dict[str, int]:
    """Put stored rows, and nothing else, into a database that has their tables; return the highest numbers.

    Raises:
        StoreCorrupt: a row does not fit its table, or its key does not fit the row.
    """
    tables = tables_of(db)
    keys: dict[bytes, list[bytes]] = {table.prefix: [] for table in tables.values()}
    marks: dict[str, int] = {}
    for key in found:
        if key.startswith(MARK):
            name, number = _mark(key, found[key], tables)
            marks[name] = number
        elif (of_table := keys.get(key[:-DIGEST])) is not None:
            of_table.append(key)
        else:
            raise _unfit(key)
    db.execute("BEGIN")
    for name, table in tables.items():
        db.execute(f"DELETE FROM {name}")  # noqa: S608  # a name of ours
        insert = f"INSERT INTO {name} VALUES ({', '.join('?' * table.width)})"  # noqa: S608  # a name of ours
        with _without_collections():
            rows = _rows(table, keys.pop(table.prefix), found)
            try:
                db.executemany(insert, rows)
            except (apsw.Error, TypeError, OverflowError) as error:
                raise StoreCorrupt(f"a row does not fit its table {name}: {error}; {WAY_OUT}") from error
    for name, number in marks.items():
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, number))
    db.execute("COMMIT")
    return marks


def _rows(table: KeyedTable, keys: list[bytes], found: Mapping[bytes, bytes]) -> list[list[SQLiteValue]]:
    """Return the rows of a table in the order of its primary key, so that pages are filled one after another."""
    rows: list[list[SQLiteValue]] = []
    identity_of, key_of = itemgetter(*table.identity), table.key_of
    alone = len(table.identity) == 1
    for key in keys:
        try:
            row = _decode(found[key])
        except ValueError as error:  # also where its text is no UTF-8
            raise _unfit(key) from error
        if len(row) != table.width:
            raise _unfit(key)
        identity = identity_of(row)
        if key_of((identity,) if alone else identity) != key:
            raise _unfit(key)
        rows.append(row)
    rows.sort(key=identity_of)
    return rows


def _mark(key: bytes, value: bytes, tables: Mapping[str, KeyedTable]) -> tuple[str, int]:
    """Return the name of a table and the highest number that it gave out."""
    name = key[2:].decode("ascii", "replace")
    if name not in tables or not value.isdigit():
        raise StoreCorrupt(f"key {key[:60]!r} is not the highest number of a table; {WAY_OUT}")
    return name, int(value)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Let Python look for no cycles among very many rows, which have none."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _unfit(key: bytes) -> StoreCorrupt:
    return StoreCorrupt(f"key {key[:60]!r} holds a row that does not fit its table; {WAY_OUT}")
