"""SQL kept in files: named statements and numbered migrations, read once from the package.

A statement begins with `-- name: its_name`, then perhaps `-- rows: column type, ...` (what it is given, see {rows} in
queries/batch.sql), then a line saying what it is for. It ends where the next one begins. Words in braces stand for what
databases say differently, or for lists of columns that would otherwise be written again and again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import NamedTuple

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_ROWS = re.compile(r"^-- rows: (.*)$", re.MULTILINE)
_COMMENT = re.compile(r"--[^\n]*")

RUN = (
    "runs.key, runs.id, runs.workflow, runs.status, runs.wait, runs.due, runs.epoch, runs.owner, runs.generation, "
    "runs.inbox, runs.claims, runs.lost, runs.digest, runs.parent, runs.fingerprint, runs.updated, runs.ended, "
    "runs.unique_key, runs.timeout, runs.deadline, runs.reopens, runs.traces, runs.begins"
)
"""The mutable part of a run, in the order of RunState."""

RUN_ROW = (
    "runs.key, runs.id, workflow, version, status, wait, due, epoch, owner, generation, seed, digest, inbox, claims, "
    "input, output, error, parent_id, created, updated, ended, begins, deadline, priority, unique_key, actor, tenant, "
    "reopens, compensation, {attributes} AS attributes"
)
"""A run with its payloads, in the order of RunRow."""


class Statement(NamedTuple):
    """A statement as it is written; `columns` are those of {rows}, each with its type (int or text)."""

    text: str
    columns: tuple[tuple[str, str], ...]

    def fill(self, words: Mapping[str, str]) -> str:
        """Return the statement with words in place of those in braces; unknown ones stay."""
        text = self.text.replace("{run}", RUN).replace("{run_row}", RUN_ROW)
        text = text.replace("{columns}", ", ".join(name for name, _ in self.columns))
        for word, meaning in words.items():
            text = text.replace("{" + word + "}", meaning)
        return text


@cache
def statements(*names: str) -> Mapping[str, Statement]:
    """Return the statements of some files by name, without their comments; `sql/batch` is sql/queries/batch.sql."""
    found: dict[str, Statement] = {}
    for file in names:
        folder, _, name = file.partition("/")
        _, *parts = _NAME.split((files("holdfast.stores") / folder / "queries" / f"{name}.sql").read_text("utf-8"))
        for name, body in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"{file}.sql: statement {name} is defined twice")
            rows = _ROWS.search(body)
            columns = [column.split() for column in rows[1].split(",")] if rows else []
            text = " ".join(_COMMENT.sub("", body).split()).rstrip(";")
            found[name] = Statement(text, tuple((column, kind) for column, kind in columns))
    return MappingProxyType(found)


@cache
def migrations(dialect: str) -> tuple[tuple[int, str], ...]:
    """Return the migrations of a dialect as (number, script), lowest first."""
    folder = files("holdfast.stores") / dialect / "migrations"
    scripts = [entry for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return tuple(sorted((int(entry.name.split("_")[0]), entry.read_text("utf-8")) for entry in scripts))
