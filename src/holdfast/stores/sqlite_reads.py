"""Looking at runs and histories."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

import apsw

from holdfast.records import EntryRow, History, Message, RunFilter, RunRow, Status
from holdfast.stores.sqlite_statements import SQL, json_rows

_SEQ = itemgetter(1)
_FIELDS = RunRow.__struct_fields__


def run_row(row: Sequence[object]) -> RunRow:
    """Make a record of a row of get_run or list_runs, whose columns come in the order of the record's fields."""
    values = dict(zip(_FIELDS, row, strict=True))
    values["status"] = Status(str(values["status"]))
    return RunRow(**values)  # type: ignore[arg-type]  # the columns have the types of the schema


def list_runs(db: apsw.Connection, which: RunFilter) -> list[RunRow]:
    """Return a page of runs."""
    wanted = {
        "workflow = :workflow": which.workflow is not None,
        "status = :status": which.status is not None,
        "runs.ended IS NULL": which.status is not None and not which.status.terminal,
        "parent_id = :parent": which.parent is not None,
        "runs.key < :before": which.before is not None,
    }
    condition = " AND ".join(clause for clause, asked in wanted.items() if asked) or "TRUE"
    sql = SQL["list_runs"].replace("{filter}", condition)
    values = {field: getattr(which, field) for field in which.__struct_fields__}
    return [run_row(row) for row in db.execute(sql, values)]


def entries(db: apsw.Connection, key: int) -> list[EntryRow]:
    """Return the facts of one run in order of seq."""
    return [EntryRow._make(row) for row in db.execute(SQL["read_entries"], (key,))]


def inbox(db: apsw.Connection, key: int, after: int) -> list[Message]:
    """Return unread inbox rows."""
    return [Message._make(row) for row in db.execute(SQL["read_inbox"], (key, after))]


def load(db: apsw.Connection, keys: Sequence[int]) -> list[History]:
    """Return what claimed runs need to continue."""
    wanted = json_rows(keys)
    facts: dict[int, list[EntryRow]] = {key: [] for key in keys}
    messages: dict[int, list[Message]] = {key: [] for key in keys}
    for key, *row in db.execute(SQL["read_many_entries"], (wanted,)):
        facts[key].append(EntryRow._make(row))
    for key, *row in db.execute(SQL["read_many_inboxes"], (wanted,)):
        messages[key].append(Message._make(row))
    seen: dict[int, int] = dict(iter(db.execute(SQL["inbox_numbers"], (wanted,))))
    for found in facts.values():
        found.sort(key=_SEQ)
    return [History(key, facts[key], messages[key], seen.get(key, 0)) for key in keys]
