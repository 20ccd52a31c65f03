"""Looking at runs and histories, whichever database they are in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter

from holdfast.clock import Instant
from holdfast.contract.rows import (
    AuditRow,
    Counts,
    EntryRow,
    EvidenceRow,
    Held,
    History,
    LetterFilter,
    LetterRow,
    Message,
    RunFilter,
    RunRow,
    ScheduleRow,
    Standing,
    Status,
)
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Value, record_of

_SEQ = itemgetter(1)
_HAS_ATTRIBUTE = (
    "EXISTS (SELECT 1 FROM attributes "
    "WHERE attributes.name = {name} AND attributes.value = {value} AND attributes.run = runs.key)"
)


class _Conditions:
    """Conditions joined by AND, and the values of their parameters; the first is how many rows to return."""

    def __init__(self, limit: int) -> None:
        self._clauses: list[str] = []
        self.values: list[Value] = [limit]

    def value(self, value: Value) -> str:
        """Return the parameter that stands for a value."""
        self.values.append(value)
        return f"${len(self.values)}"

    def add(self, clause: str, value: Value = None) -> None:
        """Add a condition; one that has a value ends where that belongs."""
        self._clauses.append(clause if value is None else f"{clause} {self.value(value)}")

    def __str__(self) -> str:
        return " AND ".join(self._clauses) or "TRUE"


async def get(db: Statements, run_id: str) -> RunRow | None:
    """Return one run."""
    rows = await db.read("get_run", [(run_id,)])
    return record_of(RunRow, rows[0]) if rows else None


async def standings(db: Statements, run_ids: Sequence[str]) -> dict[str, Standing]:
    """Return where runs stand."""
    rows = await db.read("read_standings", [(run_id,) for run_id in run_ids])
    return {str(id): Standing(Status(str(status)), _text(output), _text(error)) for id, status, output, error in rows}


async def list_runs(db: Statements, which: RunFilter) -> list[RunRow]:
    """Return a page of runs."""
    wanted = _Conditions(which.limit)
    tagged = bool(which.attributes)
    for number, (name, json) in enumerate(which.attributes.items()):
        if number:
            wanted.add(_HAS_ATTRIBUTE.format(name=wanted.value(name), value=wanted.value(json)))
        else:
            wanted.values += (name, json)  # $2 and $3 of list_tagged_runs
    # Of two indexes the one that fits: most runs of a workflow are completed, and few have any other status.
    completed = which.status is None or which.status is Status.COMPLETED
    if which.workflow is not None:
        wanted.add(f"{'workflow' if completed else db.ignoring_indexes('workflow')} =", which.workflow)
    if which.status is not None:
        by_workflow = which.workflow is not None and completed
        wanted.add(f"{db.ignoring_indexes('status') if by_workflow else 'status'} =", which.status)
        if not which.status.terminal:
            wanted.add("runs.ended IS NULL")
    equal = {"parent_id": which.parent, "actor": which.actor, "tenant": which.tenant, "unique_key": which.unique_key}
    for column, value in equal.items():
        if value is not None:
            wanted.add(f"{column} =", value)
    if which.created_from is not None:
        wanted.add("created >=", which.created_from)
    if which.created_until is not None:
        wanted.add("created <", which.created_until)
    if which.before is not None:
        wanted.add("tagged.run <" if tagged else "runs.key <", which.before)
    rows = await db.list("list_tagged_runs" if tagged else "list_runs", str(wanted), tuple(wanted.values))
    return [record_of(RunRow, row) for row in rows]


async def list_letters(db: Statements, which: LetterFilter) -> list[LetterRow]:
    """Return a page of dead letters."""
    wanted = _Conditions(which.limit)
    equal = {"kind": which.kind, "workflow": which.workflow, "run": which.run, "name": which.name, "id": which.id}
    for column, value in equal.items():
        if value is not None:
            wanted.add(f"{column} =", value)
    if which.acknowledged is not None:
        wanted.add("acknowledged IS NOT NULL" if which.acknowledged else "acknowledged IS NULL")
    if which.before is not None:
        wanted.add("id <", which.before)
    rows = await db.list("list_letters", str(wanted), tuple(wanted.values))
    return [record_of(LetterRow, row) for row in rows]


async def audit(db: Statements, target: str | None, after: int, limit: int) -> list[AuditRow]:
    """Return what was done, oldest first."""
    if target is None:
        rows = await db.read("read_all_audit", [(after, limit)])
    else:
        rows = await db.read("read_audit", [(target, after, limit)])
    return [record_of(AuditRow, row) for row in rows]


async def evidence(db: Statements, run: str, after: int, limit: int) -> list[EvidenceRow]:
    """Return a run's own audit trail, oldest first."""
    return [record_of(EvidenceRow, row) for row in await db.read("read_evidence", [(run, after, limit)])]


async def schedules(db: Statements, due: Instant | None) -> list[ScheduleRow]:
    """Return every schedule, or those with a tick at or before an instant."""
    rows = await (db.read("read_schedules", [()]) if due is None else db.read("read_due_schedules", [(due,)]))
    return [record_of(ScheduleRow, row) for row in rows]


async def counts(db: Statements) -> Counts:
    """Return how much there is of everything."""
    runs = await db.read("count_runs", [()])
    letters = await db.read("count_letters", [()])
    events = await db.read("count_events", [()])
    return Counts(
        runs={str(status): _int(count) for status, count in runs},
        letters=[(str(kind), str(outcome), bool(seen), _int(count)) for kind, outcome, seen, count in letters],
        events={str(name): _int(count) for name, count in events},
    )


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


async def entries(db: Statements, key: int, statement: str) -> list[EntryRow]:
    """Return the facts of one run in order of seq."""
    return [EntryRow._make(row) for row in await db.read(statement, [(key,)])]


async def inboxes(db: Statements, after: Mapping[int, int]) -> dict[int, list[Message]]:
    """Return unread inbox rows of runs, each beyond the number given for it."""
    found: dict[int, list[Message]] = {key: [] for key in after}
    for key, *row in await db.read("unread", [*after.items()]):
        found[_int(key)].append(Message._make(row))
    return found


async def load(db: Statements, keys: Sequence[int]) -> list[History]:
    """Return what claimed runs need to continue."""
    facts: dict[int, list[EntryRow]] = {key: [] for key in keys}
    wanted = [(key,) for key in keys]
    for key, *row in await db.read("read_many_entries", wanted):
        facts[_int(key)].append(EntryRow._make(row))
    messages = await inboxes(db, dict.fromkeys(keys, 0))
    seen = {_int(key): _int(inbox) for key, inbox in await db.read("inbox_numbers", wanted)}
    tasks: dict[int, dict[str, int]] = {}
    for key, location, attempt in await db.read("read_tasks", wanted):
        tasks.setdefault(_int(key), {})[str(location)] = _int(attempt)
    for found in facts.values():
        found.sort(key=_SEQ)
    return [History(key, facts[key], messages[key], seen.get(key, 0), tasks.get(key, {})) for key in keys]


async def held(db: Statements, worker: str) -> list[Held]:
    """Return the runs a worker owns."""
    return [
        Held(_int(key), _int(epoch), Status(str(status))) for key, epoch, status in await db.read("held", [(worker,)])
    ]


async def held_tasks(db: Statements, worker: str) -> list[tuple[int, str, int]]:
    """Return the tasks a worker has taken."""
    rows = await db.read("tasks_of", [(worker,)])
    return [(_int(run), str(location), _int(attempt)) for run, location, attempt in rows]


async def replies(db: Statements, messages: Sequence[str]) -> dict[str, str]:
    """Return the answers there are to requests."""
    rows = await db.read("read_replies", [(message,) for message in messages])
    return {str(message): str(payload) for message, payload in rows}


async def beats(db: Statements, key: int) -> dict[str, tuple[Instant, str]]:
    """Return when the steps of a run last reported progress."""
    return {str(location): (_int(at), str(detail)) for location, at, detail in await db.read("read_beats", [(key,)])}
