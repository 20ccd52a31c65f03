"""What moves: the tables and their columns, and what becomes of a row that arrives in another house."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec.structs import astuple, replace

from holdfast.contract.rows import Status
from holdfast.stores.liveness import Fate
from holdfast.stores.sql.files import statements
from holdfast.stores.sql.tables import Row, StoredRun

COLUMNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    name.removeprefix("bring_"): statement.columns
    for name, statement in statements("sql/transfer").items()
    if name.startswith("bring_")
} | {"workers": (("id", "text"), ("pid", "int"), ("host", "text"), ("fate", "text"))}
"""The columns of each table of a file, and their types."""

OF_RUNS: Mapping[str, Row] = {
    "inputs": (),
    "results": (),
    "entries": ("", -1),
    "archive": (-1, -1, ""),
    "inbox": (-1,),
    "attributes": ("", ""),
    "message_ids": ("",),
    "replies": ("",),
    "waiters": ("", ""),
    "cursors": ("",),
    "keys": ("", ""),
    "key_waiters": ("", "", ""),
    "heartbeats": ("",),
    "tasks": ("",),
    "dead_letters": ("",),
    "evidence": ("", -1),
}
"""The tables that have rows of runs. A position in one is the key of a run and what is said here, in that order."""

BY_ID = frozenset({"dead_letters", "evidence"})
"""Those that know a run by its public id: rows of them outlive it."""

STRAYS: Mapping[str, Row] = {
    "message_ids": ("",),
    "keys": ("", ""),
    "dead_letters": ("",),
    "evidence": ("", -1),
    "tombstones": ("",),
    "schedules": ("",),
    "audit": (-1,),
}
"""What belongs to no run that is there, and the position before the first row."""

_LOSING = frozenset({Fate.DIED, Fate.VANISHED, Fate.LAPSED})

LINKED = -1
"""In place of the key of a parent that came along, until all have theirs."""

DRIVEN = frozenset({Status.PENDING, Status.RUNNING, Status.CANCELLING, Status.COMPENSATING, Status.PAUSED})
"""What a worker that owns it works on."""


class ExportedWorker(NamedTuple):
    """A worker of the database that was exported; `fate` is a Fate."""

    id: str
    pid: int
    host: str
    fate: str


def arrived(run: StoredRun, fates: Mapping[str, str], snapshot: bool) -> StoredRun:
    """Return a run as it stands in another house: nobody's, and due as if its worker had left or was found dead.

    An open run of a snapshot goes on in the old house, so here it is paused, or blocked until it is named.
    """
    if run.ended is not None:
        return run
    owner = run.owner
    # A run that nobody ever had stays so: it is not driven before it begins.
    run = replace(run, owner=None, epoch=run.epoch + 1 if run.epoch else 0)
    if snapshot:
        if run.status == Status.BLOCKED:
            return replace(run, fingerprint=None)
        return replace(run, status=Status.PAUSED, wait="", due=None, lost="", claims=0)
    if owner is None:
        return run
    lost = lost_with(fates.get(owner))
    if not lost:
        run = replace(run, claims=0)
    if run.status in DRIVEN:
        run = replace(run, due=run.updated, lost=lost)
    return run


def lost_with(fate: str | None) -> str:
    """Return how what a worker had was lost: crash, lapse, or nothing if it left in order or that was told before."""
    return Fate(fate).lost if fate in _LOSING else ""


def comparable(run: StoredRun) -> Row:
    """Return what must be the same for two runs to be one: all but their keys."""
    return astuple(replace(run, key=0, parent=None))
