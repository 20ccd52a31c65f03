"""Filters of runs and dead letters as conditions of a statement."""

from __future__ import annotations

from holdfast.contract.rows import LetterFilter, LetterRow, RunFilter, RunRow, Status
from holdfast.stores.sql.conditions import Conditions
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import record_of

_HAS_ATTRIBUTE = (
    "EXISTS (SELECT 1 FROM attributes "
    "WHERE attributes.name = {name} AND attributes.value = {value} AND attributes.run = runs.key)"
)


async def list_runs(db: Statements, which: RunFilter) -> list[RunRow]:
    """Return a page of runs."""
    wanted = Conditions(which.limit)
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
        if not which.status.is_terminal:
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
    wanted = Conditions(which.limit)
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
