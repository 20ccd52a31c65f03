"""SQL kept in files: named statements and numbered migrations, read once from the package.

A statement begins with `-- name: its_name` and one line saying what it is for. It ends where the next one begins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")


@cache
def statements(*names: str) -> Mapping[str, str]:
    """Return the statements of `queries/<name>.sql` by name, without their comments."""
    found: dict[str, str] = {}
    for file in names:
        _, *parts = _NAME.split((files("holdfast.stores") / "queries" / f"{file}.sql").read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file}.sql: statement {name} is defined twice")
            found[name] = " ".join(_COMMENT.sub("", body).split()).rstrip(";")
    return MappingProxyType(found)


@cache
def migrations(dialect: str) -> tuple[tuple[int, str], ...]:
    """Return the migrations of a dialect as (number, script), lowest first."""
    folder = files("holdfast.stores") / "migrations" / dialect
    scripts = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(sorted((int(entry.name.split("_")[0]), entry.read_text("utf-8")) for entry in scripts))
