"""Looking at runs and histories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

import apsw

from holdfast.clock import Instant
from holdfast.records import (
    AuditRow,
    Counts,
    EntryRow,
    EvidenceRow,
    History,
    LetterFilter,
    LetterRow,
    Message,
    RunFilter,
    RunRow,
    ScheduleRow,
    Status,
)
from holdfast.stores.sqlite_statements import SQL, json_rows

_SEQ = itemgetter(1)
_FIELDS = RunRow.__struct_fields__
_HAS_ATTRIBUTE = (
    "EXISTS (SELECT 1 FROM attributes "
    "WHERE attributes.name = :name{number} AND attributes.value = :value{number} AND attributes.run = runs.key)"
)


def run_row(row: Sequence[object]) -> RunRow:
    """Make a record of a row of get_run or list_runs, whose columns come in the order of the record's fields."""
    values = dict(zip(_FIELDS, row, strict=True))
    values["status"] = Status(str(values["status"]))
    return RunRow(**values)  # type: ignore[arg-type]  # the columns have the types of the schema


def list_runs(db: apsw.Connection, which: RunFilter) -> list[RunRow]:
    """Return a page of runs."""
    values: dict[str, object] = {field: getattr(which, field) for field in which.__struct_fields__}
    # Of two indexes the one that fits: most runs of a workflow are completed, and few have any other status. The plus
    # keeps SQLite from using the other.
    completed = which.status is None or which.status is Status.COMPLETED
    wanted = {
        "workflow = :workflow": which.workflow is not None and completed,
        "+workflow = :workflow": which.workflow is not None and not completed,
        "status = :status": which.status is not None and (which.workflow is None or not completed),
        "+status = :status": which.status is not None and which.workflow is not None and completed,
        "runs.ended IS NULL": which.status is not None and not which.status.terminal,
        "parent_id = :parent": which.parent is not None,
        "actor = :actor": which.actor is not None,
        "tenant = :tenant": which.tenant is not None,
        "unique_key = :unique_key": which.unique_key is not None,
        "created >= :created_from": which.created_from is not None,
        "created < :created_until": which.created_until is not None,
        "runs.key < :before": which.before is not None and not which.attributes,
        "tagged.run < :before": which.before is not None and bool(which.attributes),
    }
    clauses = [clause for clause, asked in wanted.items() if asked]
    for number, (name, value) in enumerate(which.attributes.items()):
        values |= {f"name{number}": name, f"value{number}": value}
        if number:
            clauses.append(_HAS_ATTRIBUTE.replace("{number}", str(number)))
    del values["attributes"]
    statement = "list_tagged_runs" if which.attributes else "list_runs"
    sql = SQL[statement].replace("{filter}", " AND ".join(clauses) or "TRUE")
    return [run_row(row) for row in db.execute(sql, values)]


def list_letters(db: apsw.Connection, which: LetterFilter) -> list[LetterRow]:
    """Return a page of dead letters."""
    wanted = {
        "kind = :kind": which.kind is not None,
        "workflow = :workflow": which.workflow is not None,
        "run = :run": which.run is not None,
        "name = :name": which.name is not None,
        "id = :id": which.id is not None,
        "acknowledged IS NULL": which.acknowledged is False,
        "acknowledged IS NOT NULL": which.acknowledged is True,
        "id < :before": which.before is not None,
    }
    condition = " AND ".join(clause for clause, asked in wanted.items() if asked) or "TRUE"
    sql = SQL["list_letters"].replace("{filter}", condition)
    values = {field: getattr(which, field) for field in which.__struct_fields__ if field != "acknowledged"}
    return [LetterRow(**dict(zip(LetterRow.__struct_fields__, row, strict=True))) for row in db.execute(sql, values)]


def audit(db: apsw.Connection, target: str | None, after: int, limit: int) -> list[AuditRow]:
    """Return what was done, oldest first."""
    if target is None:
        rows = db.execute(SQL["read_all_audit"], (after, limit))
    else:
        rows = db.execute(SQL["read_audit"], (target, after, limit))
    return [AuditRow(**dict(zip(AuditRow.__struct_fields__, row, strict=True))) for row in rows]


def evidence(db: apsw.Connection, run: str, after: int, limit: int) -> list[EvidenceRow]:
    """Return a run's own audit trail, oldest first."""
    rows = db.execute(SQL["read_evidence"], (run, after, limit))
    return [EvidenceRow(**dict(zip(EvidenceRow.__struct_fields__, row, strict=True))) for row in rows]


def schedules(db: apsw.Connection, due: Instant | None) -> list[ScheduleRow]:
    """Return every schedule, or those with a tick at or before an instant."""
    rows = db.execute(SQL["read_schedules"]) if due is None else db.execute(SQL["read_due_schedules"], (due,))
    fields = ScheduleRow.__struct_fields__
    return [
        ScheduleRow(**{**(found := dict(zip(fields, row, strict=True))), "paused": bool(found["paused"])})
        for row in rows
    ]


def counts(db: apsw.Connection) -> Counts:
    """Return how much there is of everything."""
    return Counts(
        runs=dict(iter(db.execute(SQL["count_runs"]))),
        letters=[(kind, outcome, bool(seen), n) for kind, outcome, seen, n in db.execute(SQL["count_letters"])],
        events=dict(iter(db.execute(SQL["count_events"]))),
    )


def entries(db: apsw.Connection, key: int, statement: str) -> list[EntryRow]:
    """Return the facts of one run in order of seq."""
    return [EntryRow._make(row) for row in db.execute(SQL[statement], (key,))]


def inboxes(db: apsw.Connection, after: Mapping[int, int]) -> dict[int, list[Message]]:
    """Return unread inbox rows of runs, each beyond the number given for it."""
    found: dict[int, list[Message]] = {key: [] for key in after}
    for key, *row in db.execute(SQL["unread_json"], (json_rows([*after.items()]),)):
        found[key].append(Message._make(row))
    return found


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
