"""Rows as keys and values: which tables there are, what a row is stored under, and which rows a transaction changed.

A row of any table is one key: `Er`, the name of the table, a zero byte, and the digest of its primary key. Its value is
the row in msgpack, in the order of its columns. The highest number that a table ever gave out (`runs`, `events`) is a
key of its own, `Em` and the name of the table: SQLite keeps it where no hook sees it, and the row that had it may be
gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import NamedTuple

import apsw
import msgspec

from holdfast.errors import StoreCorrupt

ROW = b"Er"
MARK = b"Em"
DIGEST = 16

StoredValues = tuple[str | int | float | bytes | None, ...]

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
        identity = [row[place] for place in self.identity]
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
    rows: dict[str, list[StoredValues]] = {name: [] for name in tables}
    marks: dict[str, int] = {}
    for key, value in found.items():
        if key.startswith(MARK):
            marks[key[2:].decode()] = int(value)
            continue
        name = key[2 : key.index(b"\0")].decode()
        row = tuple(_decode(value))
        table = tables.get(name)
        if table is None or len(row) != table.width or table.key(row) != key:
            raise StoreCorrupt(f"key {key[:60]!r} holds a row that does not fit its table; restore a backup")
        rows[name].append(row)
    db.execute("BEGIN")
    for name, table in tables.items():
        db.execute(f"DELETE FROM {name}")  # noqa: S608  # a name of ours
        # In the order of the primary key, so that pages are filled one after another.
        rows[name].sort(key=lambda row, places=table.identity: [row[place] for place in places])  # type: ignore[misc]
        insert = f"INSERT INTO {name} VALUES ({', '.join('?' * table.width)})"  # noqa: S608  # a name of ours
        db.executemany(insert, rows.pop(name))
    for name, number in marks.items():
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (name,))
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (name, number))
    db.execute("COMMIT")
    return marks
