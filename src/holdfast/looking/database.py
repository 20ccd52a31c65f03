"""The state of a database: schema, size, how many runs of each status, and which workers."""

from __future__ import annotations

import os
import shutil

import msgspec

from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.looking.views import Count
from holdfast.stores import newest_schema


class StoreView(msgspec.Struct, frozen=True, kw_only=True):
    """What a database is, which is known without looking into it."""

    kind: str
    name: str = ""
    """Of a server the name of the database, of a file its own without folder and ending."""
    durability: str


def store_view(store: Store) -> StoreView:
    """Return what a database is."""
    kind, name = str(getattr(store, "kind", "")), str(getattr(store, "name", ""))
    return StoreView(kind=kind, name=name, durability=store.durability)


class DatabaseView(msgspec.Struct, frozen=True, kw_only=True):
    """How a database is; sizes are in bytes, and only those of a file are known."""

    kind: str
    name: str = ""
    """Of a server the name of the database, of a file its own without folder and ending."""
    schema_number: int
    durability: str
    size: int | None = None
    wal: int | None = None
    """Of the write-ahead log of SQLite."""
    free: int | None = None
    """What is free on its disk."""
    runs: dict[str, Count] = {}
    """How many there are of each status that has any, counted up to 10,000."""
    workers: dict[str, int] = {}
    """How many there are by state: alive, silent, dead."""
    lag: float = 0.0
    """For how many seconds the run has been due that waits longest for a worker to take it."""


async def database_view(store: Store) -> DatabaseView:
    """Return how a database is."""
    path = getattr(store, "path", "")
    size = size_of(path)
    runs = {str(status): await store.count(HeadFilter(statuses=(status,))) for status in Status}
    workers: dict[str, int] = {}
    for worker in await store.workers():
        workers[worker.state] = workers.get(worker.state, 0) + 1
    about = store_view(store)
    due, now = await store.next_due(), store.clock.now()
    return DatabaseView(
        kind=about.kind,
        name=about.name,
        schema_number=newest_schema(about.kind),
        durability=about.durability,
        size=size,
        wal=size_of(f"{path}-wal") or 0 if size is not None else None,
        free=_free(path) if size is not None else None,
        runs={status: Count(n=counted.n, exact=counted.exact) for status, counted in runs.items() if counted.n},
        workers=workers,
        lag=round(max(now - due, 0) / 1e6, 3) if due is not None else 0.0,
    )


def _free(path: str) -> int:
    return shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free


def size_of(path: str) -> int | None:
    """Return how many bytes a file has, None if there is none."""
    try:
        if os.path.isdir(path):
            return sum(entry.stat().st_size for entry in os.scandir(path))
        return os.stat(path).st_size if path else None
    except OSError:
        return None


def bytes_said(size: int | None) -> str:
    """Return a size in the unit in which a person would say it."""
    for unit, shift in (("GB", 30), ("MB", 20), ("KB", 10)):
        if size is not None and size >= 1 << shift:
            return f"{size / (1 << shift):,.1f} {unit}"
    return f"{size or 0} bytes"
