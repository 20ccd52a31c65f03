"""The tables that every database has: their columns are listed here once, and statements and rows are made from them.

A new column is a field of its record here (or in `contract/rows.py`), and a migration with the next number beside each
database.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import get_annotations
from operator import attrgetter, itemgetter
from typing import Annotated, NamedTuple, TypeVar, get_type_hints

import msgspec

from holdfast.clock import Instant
from holdfast.contract.figures import BOUNDS
from holdfast.contract.heads import ERROR_HEAD, RunHead
from holdfast.contract.moves import MoveRow
from holdfast.contract.rows import (
    UNDECIDED,
    AuditRow,
    Claim,
    EntryRow,
    EvidenceRow,
    LetterRow,
    Message,
    RunRow,
    ScheduleRow,
    Status,
)
from holdfast.contract.tokens import TokenRow

T = TypeVar("T")
Record = TypeVar("Record", bound=msgspec.Struct)

Value = str | int | None
Row = tuple[Value, ...]

_NUMBERS = frozenset({"int", "bool", "Instant"})
_WORD = re.compile(r"\w+")

Changing = Annotated[T, "changing"]
"""A column that changes while a run lives; all others are written once, when it is inserted."""
Usual = Annotated[T, "usual"]
"""A column that changes whenever a run parks, wakes or ends: nearly all changes are of these alone."""


class StoredRun(msgspec.Struct, gc=False):
    """A row of `runs`, which a batch reads, changes and writes back.

    What the columns mean is said in the first migration of each database (`migrations/0010_initial.sql`).
    """

    key: int
    id: str
    workflow: str
    version: Changing[str]
    seed: int
    digest: int
    created: Instant
    updated: Usual[Instant]
    status: Usual[str] = Status.PENDING
    wait: Usual[str] = ""
    due: Usual[Instant | None] = None
    epoch: Changing[int] = 0
    owner: Usual[str | None] = None
    generation: Changing[int] = 0
    inbox: Usual[int] = 0
    claims: Usual[int] = 0
    lost: Changing[str] = ""
    fingerprint: Changing[str | None] = None
    ended: Usual[Instant | None] = None
    deadline: Changing[Instant | None] = None
    reopens: Changing[int] = 0
    side_rows: Changing[int] = 0
    parent_key: int | None = None
    parent_id: str | None = None
    parent_location: str | None = None
    cancel_with_parent: int = 0
    priority: int = 0
    begins: Instant | None = None
    timeout: int | None = None
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    conclusion: Changing[str | None] = None
    place: Changing[int] = 0

    @property
    def decided(self) -> str | None:
        """How it ends, once that is decided."""
        return self.conclusion if self.conclusion != UNDECIDED else None


class Column(NamedTuple):
    """A column and its type, `int` or `text`."""

    name: str
    type: str


Columns = tuple[Column, ...]


def columns_of(record: type) -> Columns:
    """Return the columns that a record has as fields."""
    return tuple(Column(name, "int" if _is_number(said) else "text") for name, said in _annotations(record).items())


def _annotations(record: type) -> Mapping[str, str]:
    """Return how the fields of a record are annotated, as it is written: to evaluate it takes a command 15 ms."""
    return {name: str(getattr(said, "__forward_arg__", said)) for name, said in get_annotations(record).items()}


def _is_number(annotation: str) -> bool:
    return not _NUMBERS.isdisjoint(_WORD.findall(annotation))


def record_of(record: type[Record], row: Sequence[object]) -> Record:
    """Make a record of a row whose columns are its fields, in their order."""
    values = dict(zip(record.__struct_fields__, row, strict=True))
    for name, kind in _converted(record):
        values[name] = kind(values[name])
    return record(**values)


@cache
def _converted(record: type) -> tuple[tuple[str, type], ...]:
    """Return the fields of a record that are something else than their column."""
    return tuple((name, hint) for name, hint in get_type_hints(record).items() if hint in (Status, bool))


RUN = columns_of(StoredRun)


def _marked(*marks: str) -> Columns:
    """Return the key of a run and its columns that are marked."""
    said = _annotations(StoredRun)
    return tuple(column for column in RUN if column.name == "key" or said[column.name].startswith(marks))


CHANGING, USUAL = _marked("Changing[", "Usual["), _marked("Usual[")
"""The key of a run and its columns that change; and those of them that change often."""

changes_of = attrgetter(*(name for name, _ in CHANGING))
"""Return the columns of a run that change, as a row."""

usual_changes_of = attrgetter(*(name for name, _ in USUAL))
"""Return the columns of a run that change often, as a row."""

unusual_changes_of = attrgetter(*(name for name, _ in CHANGING if name not in dict(USUAL)))
"""Return those of the columns of a run that change, and do so seldom."""

unusual_changes_in = itemgetter(
    *(place for place, (name, _) in enumerate(RUN) if name in dict(CHANGING) and name not in dict(USUAL))
)
"""Return the same of a row of `runs` as it was read."""


class Table(NamedTuple):
    """The columns of a table, and those that name one row."""

    columns: Columns
    key: tuple[str, ...]


def _table(columns: str, key: str) -> Table:
    return Table(columns_named(columns), tuple(key.split()))


def columns_named(said: str) -> Columns:
    """Return columns that are written as `name type, name type`."""
    return tuple(Column(*column.split()) for column in said.split(","))


def _of_run(record: type, key: str) -> Table:
    return Table((Column("run", "int"), *columns_of(record)), ("run", *key.split()))


TABLES: Mapping[str, Table] = {
    "runs": Table(RUN, ("key",)),
    "inputs": _table("run int, input text", "run"),
    "results": _table("run int, output text, error text, compensation text, failed_step text", "run"),
    "entries": _of_run(EntryRow, "location seq"),
    "archive": _table(
        "run int, reopens int, seq int, location text, kind int, at int, data text", "run reopens seq location"
    ),
    "inbox": _of_run(Message, "n"),
    "attributes": _table("run int, name text, value text", "run name value"),
    "message_ids": _table("run int, id text, at int", "run id"),
    "replies": _table("run int, message text, payload text, at int", "message"),
    "event_waiters": _table("run int, location text, name text, since int", "run location name"),
    "event_cursors": _table("run int, name text, n int", "run name"),
    "idempotency_keys": _table(
        "run int, activity text, key text, digest int, location text, result text, expires int, waiting int",
        "activity key",
    ),
    "idempotency_waiters": _table("run int, activity text, key text, location text", "run activity key location"),
    "heartbeats": _table("run int, location text, at int, detail text", "run location"),
    "tasks": _table(
        "run int, location text, attempt int, queue text, activity text, payload text, priority int, at int, "
        "owner text, limit_key text",
        "run location",
    ),
    "run_places": _table("run int, workflow text, lane text, held int, priority int, since int, first int", "run"),
    "moves": _of_run(MoveRow, ""),
    "dead_letters": Table(columns_of(LetterRow), ("id",)),
    "evidence": Table(columns_of(EvidenceRow), ("run", "n")),
    "tombstones": _table("id text, workflow text, digest int, expires int", "id"),
    "schedules": Table(columns_of(ScheduleRow), ("id",)),
    "pauses": _table("kind text, name text, since int", "kind name"),
    "tokens": Table(columns_of(TokenRow), ("id",)),
    "events": _table("name text, n int, id text, payload text, at int", "name n"),
    "event_queues": _table("name text, pending int", "name"),
    "audit": Table(columns_of(AuditRow), ("n",)),
}
"""The tables that statements are made for and that, but for `tokens`, move with an export. Not here, because nothing is
made of their columns: `workers`, which are the database's own; limits, whose statements and records stand side by side
in `queries/limits.sql` and `rules/limits/rows.py`; figures (`figures.py`); `event_takers`, which are
the database's own, too."""


def _listed(table: str, record: type, exceptions: Mapping[str, str] | None = None) -> str:
    """Return the columns that a record is made from, those of the table unless said otherwise."""
    others = exceptions or {}
    return ", ".join(others.get(name, f"{table}.{name}") for name, _ in columns_of(record))


_FIGURES = ("n", "total", *(f"b{place}" for place in range(len(BOUNDS))))

LISTS: Mapping[str, str] = {
    "run": _listed("runs", StoredRun),
    "run_changes": ", ".join(f"{name} = new.{name}" for name, _ in CHANGING if name != "key"),
    "run_usual_changes": ", ".join(f"{name} = new.{name}" for name, _ in USUAL if name != "key"),
    "run_row": _listed(
        "runs",
        RunRow,
        {
            "input": "inputs.input",
            "output": "results.output",
            "error": "results.error",
            "compensation": "results.compensation",
            "failed_step": "results.failed_step",
            "parent": "runs.parent_id",
            "attributes": "{attributes}",
        },
    ),
    "head": _listed(
        "runs",
        RunHead,
        {
            "parent": "runs.parent_id",
            "attributes": "{attributes}",
            "error_type": "{error_type}",
            "error_message": f"substr({{error_message}}, 1, {ERROR_HEAD})",
            "failed_step": "results.failed_step",
            "compensated": "CASE WHEN results.compensation IS NULL THEN 0 ELSE 1 END",
        },
    ),
    "claim": _listed(
        "runs",
        Claim,
        {
            "input": "inputs.input",
            "parent": "runs.parent_id",
            "lost": "taken.lost",
            "paused": f"CASE WHEN taken.status = '{Status.PAUSED}' THEN 1 ELSE 0 END",
            "due": "taken.due",
            "died": "CASE WHEN taken.lost = 'crash' THEN taken.due END",
            "deaths": "0",  # counted afterwards, where a worker died
        },
    ),
    # How a run fares that is taken now: see Store.claim.
    "taken": "CASE WHEN runs.claims = 0 THEN 1 ELSE (runs.claims + 1) / 2 * 2 END",
    # Of a parent that is there, and is not another run that was given its id later, only that it is.
    # One that waits for a limit asks again where it arrives: lines do not move.
    "moved_run": _listed(
        "runs",
        StoredRun,
        {
            "parent_key": "CASE WHEN family.id = runs.parent_id THEN 1 END",
            "due": "CASE WHEN runs.due IS NULL AND EXISTS "
            "(SELECT 1 FROM limit_waiters WHERE limit_waiters.run = runs.key) THEN runs.updated ELSE runs.due END",
        },
    ),
    "entry": _listed("entries", EntryRow),
    "figure_sums": ", ".join(f"CAST(sum({name}) AS BIGINT)" for name in _FIGURES),
    "figure_additions": ", ".join(f"{name} = figures.{name} + excluded.{name}" for name in _FIGURES),
    "archived_entry": _listed("archive", EntryRow),
    "message": _listed("inbox", Message),
    "event": ", ".join(f"events.{name}" for name, _ in TABLES["events"].columns),
    "letter": _listed("dead_letters", LetterRow),
    "audit_row": _listed("audit", AuditRow),
    "evidence_row": _listed("evidence", EvidenceRow),
    "schedule": _listed("schedules", ScheduleRow),
    "move": _listed("moves", MoveRow),
    "token": _listed("tokens", TokenRow),
    "token_columns": ", ".join(name for name, _ in columns_of(TokenRow)),
}
"""What stands for the columns of a record in a statement, in the order of its fields."""
