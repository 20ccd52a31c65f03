"""The file of an export: JSON lines, a header, a line per row, and a footer with the hash of all before it."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from holdfast.errors import CannotMove
from holdfast.stores.sql.tables import Row, Value
from holdfast.transfer.output import NewFile

FORMAT = 1

MOST = 256 << 20
"""How many bytes a line may have; a file with a longer one was not written by us."""

LATER: Mapping[tuple[str, str], Value] = {
    ("dead_letters", "failures"): 0,
    ("dead_letters", "arguments"): None,
    ("dead_letters", "compensation"): 0,
    ("dead_letters", "idempotent"): 0,
    ("results", "failed_step"): None,
    ("runs", "conclusion"): None,
    ("runs", "place"): 0,
    ("tasks", "limit_key"): "",
}
"""Columns that came after the first schema, each after those that its table had, and what rows hold from before it."""

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
_GZIP = b"\x1f\x8b"
_encode = msgspec.json.Encoder().encode


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line. `holdfast` is the number of the format, `runs` how many there are in the file.

    A `snapshot` is a copy for looking: the originals stay where they are, and go on there. One that is `whole` has what
    belongs to no single run, too. `tables` are the columns of each table, in the order of the rows.
    """

    holdfast: int
    version: str
    schema: int
    exported: str
    runs: int
    snapshot: bool
    whole: bool
    tables: dict[str, list[str]]


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """The last line: how many rows there are of each table, and the hash of everything before it."""

    rows: dict[str, int]
    sha256: str


class Writer:
    """Writes an export, which appears when it is complete; gzipped if its name ends in .gz."""

    def __init__(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        self.path: Path = Path(path)
        self.rows: Counter[str] = Counter()
        self._new = NewFile(path, replace=replace)
        self._out: IO[bytes] | gzip.GzipFile | None = None
        self._hash = hashlib.sha256()

    def __enter__(self) -> Self:
        self._new.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._new.__exit__(kind, error, trace)

    def begin(self, header: Header) -> None:
        """Write the first line; whatever was written before is forgotten."""
        raw = self._new.file
        raw.seek(0)
        raw.truncate()
        self._hash = hashlib.sha256()
        self.rows.clear()
        if self.path.name.endswith(".gz"):
            self._out = gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0)
        else:
            self._out = raw
        self._line(_encode(header))

    def put(self, table: str, rows: Sequence[Row]) -> int:
        """Write rows of a table and return how many bytes they took."""
        size = 0
        for row in rows:
            size += self._line(_encode((table, *row)))
        self.rows[table] += len(rows)
        return size

    def end(self) -> str:
        """Write the last line, put the file in its place for good, and return the hash."""
        assert self._out is not None
        digest = self._hash.hexdigest()
        self._out.write(_encode(_footer(self.rows, digest)) + b"\n")
        if isinstance(self._out, gzip.GzipFile):
            self._out.close()
        self._new.publish()
        return digest

    def _line(self, line: bytes) -> int:
        assert self._out is not None
        line += b"\n"
        self._hash.update(line)
        self._out.write(line)
        return len(line)


class Reader:
    """Reads an export: all of it is checked before the first row is believed, and once more while they are used."""

    footer: Footer

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._later: dict[str, list[Value]] = {}
        """What the columns of a table hold that the file does not have yet."""

    def check(self, known: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[Header, Footer]:
        """Read the whole file and return what it says of itself; `known` are the tables and the types of their columns.

        Raises:
            CannotMove: it is no export, or of a newer holdfast, or one byte of it is not as it was written.
        """
        header: Header | None = None
        types: dict[str, list[type]] = {}
        for number, line in self._lines():
            if header is None:
                header = self._header(line)
                types = self._types(header, known)
                continue
            table, *row = self._row(number, line) or [None]
            if table in types:
                row += self._later.get(table, ())
            if table not in types or len(row) != len(types[table]) or not all(map(_fits, row, types[table])):
                raise self._damaged(number)
        if header is None or self.footer.rows.get("runs", 0) != header.runs:
            raise CannotMove(f"{self.path}: the file is not an export of holdfast")
        return header, self.footer

    def rows(self, sha256: str) -> Iterator[tuple[str, Row]]:
        """Yield each row with its table.

        Raises:
            CannotMove: at the end, if the file is not the one that was checked.
        """
        for number, line in self._lines():
            if number > 1:
                table, *row = self._row(number, line)
                yield table, (*row, *self._later.get(table, ()))
        if self.footer.sha256 != sha256:
            raise CannotMove(f"{self.path}: the file was changed while it was read")

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines, numbered from 1, without the last, which must be what the others make it."""
        digest, rows = hashlib.sha256(), Counter[str]()
        previous, number = b"", 0
        try:
            with self._open() as file:
                while line := file.readline(MOST):
                    if previous:
                        number += 1
                        digest.update(previous)
                        if number > 1:
                            rows[_table(previous)] += 1
                        yield number, previous
                    previous = line
        except (OSError, EOFError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise CannotMove(f"{self.path}: cannot be read: {error.strerror}") from error
            raise CannotMove(f"{self.path}: the file is damaged or cut off: {error}") from error
        self.footer = _footer(rows, digest.hexdigest())
        if previous != _encode(self.footer) + b"\n":
            if not number and not previous.startswith(b'{"holdfast":'):
                raise CannotMove(f"{self.path}: the file is not an export of holdfast")
            raise CannotMove(f"{self.path}: the file is damaged or cut off: its last line does not fit the others")

    def _open(self) -> IO[bytes] | gzip.GzipFile:
        with open(self.path, "rb") as file:
            zipped = file.read(2) == _GZIP
        return gzip.open(self.path, "rb") if zipped else open(self.path, "rb")

    def _header(self, line: bytes) -> Header:
        try:
            number = msgspec.json.decode(line, type=_Format).holdfast
        except _UNREADABLE as error:
            raise CannotMove(f"{self.path}: the file is not an export of holdfast") from error
        if number > FORMAT:
            raise CannotMove(
                f"{self.path}: written by a newer holdfast (format {number}, this one knows {FORMAT}); upgrade this one"
            )
        try:
            return msgspec.json.decode(line, type=Header)
        except _UNREADABLE as error:
            raise CannotMove(f"{self.path}: the header cannot be read: {error}") from error

    def _types(self, header: Header, known: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, list[type]]:
        for table, columns in header.tables.items():
            ours = [name for name, _ in known.get(table, ())]
            if not ours or not set(columns) <= set(ours):
                what = next((f"{table}.{column}" for column in columns if ours and column not in ours), table)
                raise CannotMove(f"{self.path}: written by a newer holdfast, which has {what}; upgrade this one")
            if columns != ours[: len(columns)] or any((table, later) not in LATER for later in ours[len(columns) :]):
                raise CannotMove(f"{self.path}: written by holdfast {header.version}, whose {table} were others")
            self._later[table] = [LATER[table, later] for later in ours[len(columns) :]]
        return {table: [_TYPES[kind] for _, kind in known[table]] for table in header.tables}

    def _row(self, number: int, line: bytes) -> list[Any]:
        try:
            row = msgspec.json.decode(line, type=list)
        except _UNREADABLE as error:
            raise self._damaged(number) from error
        return row

    def _damaged(self, number: int) -> CannotMove:
        return CannotMove(f"{self.path}: line {number} is damaged")


class _Format(msgspec.Struct, frozen=True):
    holdfast: int


_TYPES = {"int": int, "text": str}


def _fits(value: object, wanted: type) -> bool:
    return value is None or (type(value) is wanted and (not isinstance(value, int) or value.bit_length() < 64))


def _table(line: bytes) -> str:
    """Return the table of a line without decoding all of it: `["entries",...`."""
    return line[2 : line.find(b'"', 2)].decode("utf-8", "replace")


def _footer(rows: Counter[str], sha256: str) -> Footer:
    return Footer(rows={table: rows[table] for table in sorted(rows) if rows[table]}, sha256=sha256)
