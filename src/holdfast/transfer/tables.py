"""What is transferred: the tables and their columns, and how a run changes when it arrives in another database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import astuple, replace

from holdfast.contract.rows import Status
from holdfast.stores.liveness import Fate
from holdfast.stores.sql.tables import TABLES, Columns, Row, StoredRun, columns_named

COLUMNS: Mapping[str, Columns] = {name: table.columns for name, table in TABLES.items() if name != "tokens"} | {
    "workers": columns_named("id text, pid int, host text, fate text")
}
"""The columns of each table of a file. Tokens stay: what opens one database must not open a copy of it."""

_LOSING = frozenset({Fate.DIED, Fate.VANISHED, Fate.LAPSED})

LINKED = -1
"""In place of the key of a parent that came along, until all have theirs."""

WORKED_ON = frozenset({Status.PENDING, Status.RUNNING, Status.CANCELLING, Status.COMPENSATING, Status.PAUSED})
"""What a worker that owns it works on."""


class ExportedWorker(NamedTuple):
    """A worker of the database that was exported; `fate` is a Fate."""

    id: str
    pid: int
    host: str
    fate: str


def arrived(run: StoredRun, fates: Mapping[str, str], snapshot: bool) -> StoredRun:
    """Return a run as it stands in another database: without owner, and due as if its worker had left or died.

    An open run of a snapshot goes on where it came from, so here it is paused, or blocked until it is named.
    """
    if run.ended is not None:
        return run
    owner = run.owner
    # A run that no worker ever had stays so: it is not driven before it begins.
    run = replace(run, owner=None, epoch=run.epoch + 1 if run.epoch else 0)
    if run.status == Status.MOVING:
        return run
    if snapshot:
        if run.status == Status.BLOCKED:
            return replace(run, fingerprint=None)
        return replace(run, status=Status.PAUSED, wait="", due=None, lost="", claims=0)
    if owner is None:
        return run
    lost = lost_with(fates.get(owner))
    if not lost:
        run = replace(run, claims=0)
    if run.status in WORKED_ON:
        run = replace(run, due=run.updated, lost=lost)
    return run


def place_of(table: str, column: str) -> int:
    """Return where in a row of a table a column stands."""
    return [name for name, _ in COLUMNS[table]].index(column)


def lost_with(fate: str | None) -> str:
    """Return how what a worker had was lost: crash, lapse, or nothing if it left in order or that was told before."""
    return Fate(fate).lost if fate in _LOSING else ""


def comparable(run: StoredRun) -> Row:
    """Return what must be the same for two runs to be one: all but their keys."""
    return astuple(replace(run, key=0, parent_key=None))
