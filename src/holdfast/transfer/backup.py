"""Backup and restore: a whole database in a file, made while workers continue, and restored while none is running.

The backup of an SQLite database is an SQLite database. The backup of a PostgreSQL schema is an export of one moment: it
needs no other program, only the rights of a worker, and can be restored to either kind of database.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import Clock
from holdfast.contract.store import Store
from holdfast.contract.turns import Audit
from holdfast.errors import BadInput, CannotMove
from holdfast.payloads import codec
from holdfast.stores import open_store
from holdfast.stores.liveness import Fate
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sqlite import restore as sqlite_restore
from holdfast.stores.sqlite.file import MEMORY
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.texts import check_remark, check_text
from holdfast.transfer import Checked, Report, check_file, import_runs
from holdfast.transfer.endpoints import Endpoint
from holdfast.transfer.exporter import Export, Which
from holdfast.transfer.file import Writer
from holdfast.transfer.output import NewFile
from holdfast.version import __version__

Who = tuple[str, str]
"""Who asks for it, and why."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What was backed up or restored: how many runs, how many of them open, in which file of how many bytes.

    `kept` is the name under which a database is kept whose place another took.
    """

    path: str
    size: int
    runs: int
    open_runs: int
    kept: str | None = None


async def back_up(
    store: Store, file: str | os.PathLike[str], *, replace: bool = False, progress: Progress | None = None
) -> Backup:
    """Write a backup of an open store: all that was acknowledged before this was called, as of one moment.

    The file appears when it is complete; only its owner may read it. `progress` is told, in a thread, how much of how
    much is done: pages of an SQLite database, runs of a PostgreSQL one.

    Raises:
        CannotMove: there is a file and `replace` is False, or it is one that must not be replaced.
        StoreFull: there is no space; what was written is removed.
    """
    path = Path(os.path.abspath(file))  # noqa: ASYNC240  # which asks the system only where it is
    if isinstance(store, SQLiteStore):
        _refuse_own(path, store.path)
        if replace:
            _refuse_foreign(path)
        with NewFile(path, replace=replace) as new:
            runs, open_runs = await store.copy_to(new.part, progress or _quietly)
            new.publish()
    else:
        runs, open_runs = await asyncio.to_thread(asyncio.run, _export(store, path, replace, progress or _quietly))
    return Backup(path=str(path), size=os.stat(path).st_size, runs=runs, open_runs=open_runs)


async def restore(
    file: str | os.PathLike[str],
    database: str,
    *,
    replace: bool = False,
    by: str = "restore",
    reason: str = "",
    progress: Progress | None = None,
) -> Backup:
    """Make a database of a backup; its open runs go on with the first engine that is opened on it.

    No process may use the database. One that is there is replaced only if `replace` says so, and kept beside the new
    one. A schema of PostgreSQL must be empty. The audit trail says who (`by`) did it and why.

    Raises:
        CannotMove: the backup is damaged, a worker is alive or a process has the database open, or there is a database;
            nothing was changed.
    """
    check_text(by, "by", printable=False)
    check_remark(reason, "reason")
    path = _found(file)
    store = open_store(database)
    if isinstance(store, SQLiteStore) and store.in_memory and store.path != MEMORY:
        raise CannotMove(
            f"{store.path}: a backup is not restored to a key-value store; restore it to a file, then use holdfast "
            "export and holdfast import"
        )
    if isinstance(store, SQLiteStore):
        return await _restore_file(path, store.path, replace, (by, reason), progress or _quietly)
    if sqlite_restore.is_database(path):
        raise CannotMove(
            f"{path}: is a copy of an SQLite database; restore it to a file, then use holdfast export and import"
        )
    if replace:
        raise BadInput("a PostgreSQL schema is not replaced; name an empty one with ?schema=, or drop it first")
    checked = check_file(path)
    await store.open()
    try:
        await _refuse_used(store)
        report = await _import(checked, store, (by, reason), progress or _quietly)
    finally:
        await store.close()
    return Backup(path=path, size=os.stat(path).st_size, runs=report.runs, open_runs=report.open_runs)


async def _export(store: Store, path: Path, replace: bool, progress: Progress) -> tuple[int, int]:
    """Export everything through a store of its own: the engine's has other things to do."""
    with Writer(path, replace=replace) as writer:
        beside = Endpoint(store).another()
        await beside.open()
        try:
            export = Export(writer, Which(), lambda runs, rows: progress(runs, export.total), backup=True)
            await export.write(Endpoint(beside), __version__, Clock().now())
        finally:
            await beside.close()
    return writer.rows["runs"], export.open


async def _restore_file(backup: str, database: str, replace: bool, who: Who, progress: Progress) -> Backup:
    _refuse_place(backup, database, replace)
    with NewFile(database, replace=replace) as new:
        runs, open_runs = await _fill(backup, new.part, who, progress)
        kept = await asyncio.to_thread(_put, new, database)
    return Backup(path=database, size=os.stat(database).st_size, runs=runs, open_runs=open_runs, kept=kept)


async def _fill(backup: str, target: str, who: Who, progress: Progress) -> tuple[int, int]:
    """Make a database of a backup of either kind in an empty file."""
    if sqlite_restore.is_database(backup):
        runs, open_runs = await asyncio.to_thread(sqlite_restore.copy_backup, backup, target, progress)
        await _record(target, os.path.basename(backup), runs, who)
        return runs, open_runs
    checked = check_file(backup)
    store = SQLiteStore(target)
    await store.open()
    try:
        report = await _import(checked, store, who, progress)
    finally:
        await store.close()
    return report.runs, report.open_runs


async def _record(target: str, backup: str, runs: int, who: Who) -> None:
    """Leave a row in the audit trail of a restored copy, as an import does: by whom it was restored, and why."""
    by, reason = who
    detail = codec.encode({"runs": runs} | ({"reason": reason} if reason else {})).decode()
    await put_on_record(SQLiteStore(target), Audit(actor=by, action="restore", detail=detail), backup)


async def put_on_record(store: Store, act: Audit, target: str) -> None:
    """Leave a row in the audit trail of a store that is not open."""
    await store.open()

    async def change(db: Statements) -> None:
        batch = Batch(db)
        await batch.trails.audit(act, target, Clock().now())
        await batch.flush()

    try:
        await Endpoint(store).change(change)
    finally:
        await store.close()


async def _import(checked: Checked, store: Store, who: Who, progress: Progress) -> Report:
    by, reason = who
    total = checked.header.runs
    return await import_runs(checked, store, by=by, reason=reason, progress=lambda runs, rows: progress(runs, total))


def _put(new: NewFile, database: str) -> str | None:
    """Put a database in its place, and return the name under which one that is there is kept."""
    if not os.path.exists(database):
        new.publish()
        return None
    with sqlite_restore.unused(database) as keep:
        kept = keep()
        new.publish()
        return kept


def _found(file: str | os.PathLike[str]) -> str:
    path = os.path.abspath(file)
    if not os.path.isfile(path):
        raise CannotMove(f"{path}: there is no such file")
    return path


def _refuse_place(backup: str, database: str, replace: bool) -> None:
    """Refuse what cannot become a database, or is one."""
    if database == MEMORY:
        raise BadInput("a backup is restored to a file or a schema, not to memory")
    if not os.path.exists(database):
        _refuse_leftovers(database)
    elif os.path.samefile(backup, database):
        raise CannotMove(f"{database}: is the backup itself")
    elif not replace:
        raise CannotMove(f"{database}: there is a database; to put the backup in its place say replace (--replace)")


def _refuse_own(path: Path, database: str) -> None:
    """Refuse to write over the database or what belongs to it."""
    if database == MEMORY:
        return
    own = Path(database).resolve()
    wanted = path.resolve()
    same = wanted.exists() and own.exists() and os.path.samefile(wanted, own)
    if same or wanted == own or (wanted.parent == own.parent and wanted.name.startswith(f"{own.name}-")):
        raise CannotMove(f"{path}: belongs to the database itself; name another file")


def _refuse_foreign(path: Path) -> None:
    """Refuse to replace what is not a backup, or may be a database in use."""
    if not path.exists():
        return
    if not path.is_file() or (path.stat().st_size and not sqlite_restore.is_database(str(path))):
        raise CannotMove(f"{path}: is not a backup; name another file")
    if any(Path(f"{path}{end}").exists() for end in ("-wal", "-shm", "-journal")):
        raise CannotMove(f"{path}: seems to be a database in use; name another file")


def _refuse_leftovers(database: str) -> None:
    """Refuse a place where the WAL of another database would be taken for that of the backup."""
    for end in ("-wal", "-shm", "-journal"):
        if os.path.exists(database + end):
            raise CannotMove(
                f"{database}{end} is there without its database, and SQLite would put it into the restored one; "
                "move it away first"
            )


async def _refuse_used(store: Store) -> None:
    endpoint = Endpoint(store)
    for worker in await endpoint.workers():
        if worker.fate in (Fate.ALIVE, Fate.HANGS):
            raise CannotMove(f"worker {worker.id} (pid {worker.pid} on {worker.host}) is alive: stop it first")
    if await endpoint.look(lambda db: db.read("count_all_runs", [()])) != [(0,)]:
        raise CannotMove("there are runs in the database; restore to an empty one, or use holdfast import to add to it")


def _quietly(done: int, total: int) -> None:
    """Report no progress."""
