"""SQL kept in files: named statements and numbered migrations, read once from the package.

A statement begins with `-- name: its_name`, then optionally `-- rows: column type, ...` or `-- rows: table` (its
parameters, see {rows} in queries/batch.sql), then a line with its purpose. It ends where the next one begins. Words in
braces stand for what databases write differently, or for lists of columns (`tables.LISTS`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import CannotOpen, NeedsUpgrade, SchemaTooNew, SchemaTooOld
from holdfast.stores.sql.tables import CHANGING, LISTS, TABLES, USUAL, Columns, columns_named

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_ROWS = re.compile(r"^-- rows: (.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")
_OF_RUNS = {"changes of runs": CHANGING, "usual changes of runs": USUAL}


class Statement(NamedTuple):
    """A statement as it is written; `columns` are those of {rows}."""

    text: str
    columns: Columns

    def fill(self, words: Mapping[str, str]) -> str:
        """Return the statement with words in place of those in braces; unknown ones stay."""
        columns = ", ".join(name for name, _ in self.columns)
        text = self.text
        for word, meaning in {**LISTS, "columns": columns, **words}.items():
            text = text.replace("{" + word + "}", meaning)
        return text


class Filled(dict[str, str]):
    """Statements by name in the words of one database, each made when it is first asked for: a command needs ten."""

    def __init__(self, statements: Mapping[str, Statement], fill: Callable[[Statement], str]) -> None:
        super().__init__()
        self._statements = statements
        self._fill = fill

    def __missing__(self, name: str) -> str:
        made = self[name] = self._fill(self._statements[name])
        return made

    def all(self) -> Mapping[str, str]:
        """Return every statement."""
        return {name: self[name] for name in self._statements if self[name]}


@cache
def statements(*names: str) -> Mapping[str, Statement]:
    """Return the statements of some files by name, without their comments; `sql/batch` is sql/queries/batch.sql."""
    found: dict[str, Statement] = {}
    for file in names:
        folder, _, name = file.partition("/")
        _, *parts = _NAME.split((_package() / folder / "queries" / f"{name}.sql").read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file}.sql: statement {name} is defined twice")
            rows = _ROWS.search(body)
            text = " ".join(_COMMENT.sub("", body).split()).rstrip(";")
            found[name] = Statement(text, _columns(rows[1].strip()) if rows else ())
    return MappingProxyType(found)


def _columns(said: str) -> Columns:
    """Return the columns of rows: those of a table, what changes of a run, or those that are named."""
    if said in _OF_RUNS:
        return _OF_RUNS[said]
    return TABLES[said].columns if said in TABLES else columns_named(said)


def check_version(version: int, kind: str, where: str) -> None:
    """Refuse a schema of another number than this code can bring up to date; 0 is a database without tables.

    Raises:
        SchemaTooOld: it was made before the first release.
        SchemaTooNew: a newer holdfast made it.
    """
    first, last = migrations(kind)[0][0], migrations(kind)[-1][0]
    if 0 < version < first:
        raise SchemaTooOld(
            f"{where}: made by a holdfast before its first release (schema {version}, the first is {first}); "
            "begin with a new database"
        )
    if version > last:
        raise SchemaTooNew(
            f"{where}: the schema is newer than this holdfast (have {version}, know {last}); upgrade holdfast"
        )


def check_current(version: int, kind: str, where: str) -> None:
    """Refuse a schema that is not the newest, where nothing may be written.

    Raises:
        NeedsUpgrade: it is older.
        CannotOpen: there are no tables at all.
    """
    check_version(version, kind, where)
    last = migrations(kind)[-1][0]
    if version == 0:
        raise CannotOpen(f"{where}: this database has no tables of holdfast yet; an engine creates them when it opens")
    if version < last:
        raise NeedsUpgrade(
            f"{where}: an older holdfast made this database (schema {version}, this one has {last}), and looking "
            "changes nothing; upgrade it with: holdfast db upgrade"
        )


@cache
def migrations(dialect: str) -> tuple[tuple[int, str], ...]:
    """Return the migrations of a dialect as (number, script), lowest first."""
    folder = _package() / dialect / "migrations"
    scripts = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(sorted((int(entry.name.split("_")[0]), entry.read_text("utf-8")) for entry in scripts))


def _package() -> Path | Traversable:
    """Return the folder of the stores."""
    here = Path(__file__).parents[1]
    if here.is_dir():
        return here
    from importlib.resources import files  # only for a package in a zip file: it is a tenth of what a command loads

    return files("holdfast.stores")
