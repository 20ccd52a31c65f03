"""A copy of an open database: SQLite's online backup, of one moment, while commits continue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.errors import StoreClosed
from holdfast.stores.liveness import Fate
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import guard as sqlite_guard
from holdfast.stores.sqlite import workers as sqlite_workers
from holdfast.stores.sqlite.connections import SQLiteConnections, transact
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.statements import SQL

T = TypeVar("T")
Progress = Callable[[int, int], None]

_PAGES = 500
"""How many pages are copied at a time."""
_PATIENCE = 5.0


async def copy_database(connections: SQLiteConnections, target: str, progress: Progress) -> tuple[int, int]:
    """Write a copy of an open database into an empty file; return how many runs are in it, and how many are open.

    The copy is the database at the moment at which this begins. It needs no other file beside it, and no worker holds
    anything in it. `progress` is told how many pages of how many were copied, in a thread. A copy that failed, or was
    cancelled, is left as far as it came.
    """
    connections.ready()
    if connections.file is None:
        return copy_file(connections.writer, connections.path, target, progress)
    stopped = threading.Event()

    def told(done: int, total: int) -> None:
        if stopped.is_set():
            raise StoreClosed("the copy was given up")
        progress(done, total)

    return await _in_thread(lambda: _copy_beside(connections, target, told), stopped.set)


def _copy_beside(connections: SQLiteConnections, target: str, progress: Progress) -> tuple[int, int]:
    """Copy on a connection of its own that reads one moment, so that no commit waits, and none makes it begin again."""
    assert connections.file is not None
    path = connections.path
    try:
        source = connections.another()
    except apsw.Error as error:
        raise translate(error, path) from error
    reading = _Reading(source)
    sqlite_guard.opened(reading, connections.file.stat)
    try:
        source.execute("BEGIN")
        sqlite_file.insist(lambda: source.execute("SELECT count(*) FROM sqlite_schema").get, _PATIENCE, path)
        return _copy(source, path, target, connections.file.verify, progress)
    finally:
        source.close()
        sqlite_guard.closed(reading, connections.file.stat)


class _Reading:
    """A connection that is read, as the guard sees it."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def abandon(self) -> list[object]:
        return [self.connection]


def copy_file(source: apsw.Connection, path: str, target: str, progress: Progress) -> tuple[int, int]:
    """Write what a connection reads into an empty file; return how many runs are in it, and how many are open."""
    return _copy(source, path, target, lambda: None, progress)


def _copy(
    source: apsw.Connection, path: str, target: str, verify: Callable[[], None], progress: Progress
) -> tuple[int, int]:
    copy = apsw.Connection(target, apsw.SQLITE_OPEN_READWRITE)
    try:
        copy.pragma("locking_mode", "exclusive")
        copy.pragma("journal_mode", "off")
        copy.pragma("synchronous", "off")
        with copy.backup("main", source, "main") as backup:
            while not backup.done:
                backup.step(_PAGES)
                progress(backup.page_count - backup.remaining, backup.page_count)
        verify()
        copy.pragma("journal_mode", "delete")
        sqlite_file.migrate(copy, path)
        transact(copy, lambda db: _release_all(db, Path(path).parent))
        [(runs, ended)] = copy.execute("SELECT count(*), count(ended) FROM runs").fetchall()
        return int(runs or 0), int(runs or 0) - int(ended or 0)
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
        raise translate(error, target, copy.system_errno) from error
    except apsw.Error as error:
        raise translate(error, path) from error
    finally:
        copy.close()


def _release_all(db: apsw.Connection, folder: Path) -> None:
    """Hand back what workers hold, but for those known to have died: the engine that opens the copy tells by itself."""
    died = {worker for worker, fate in sqlite_workers.fates(db, folder).items() if fate is Fate.DIED}
    for worker, *_ in db.execute(SQL["live_leases"]).fetchall():
        if worker not in died:
            sqlite_workers.leave(db, str(worker))


async def _in_thread(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Do something in a thread, and wait for its end even if the caller is cancelled."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([doing])
        doing.exception()  # it was given up
        raise
