"""The database file: whether it is holdfast's, can be written, and has a known schema."""

from __future__ import annotations

import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from holdfast.errors import CannotOpen, NotADatabase, NotOurDatabase, ReadOnly, StoreBusy, StoreReplaced
from holdfast.stores.sql.files import check_current, check_version, migrations
from holdfast.stores.sqlite import guard as sqlite_guard

APPLICATION_ID = 0x484F4C44
"""`HOLD`: how a file says that it is ours."""

MEMORY = ":memory:"

WAL_LIMIT = 8 << 20
"""How many bytes of a WAL that grew (a reader held it) are kept once it starts over."""

_MAGIC = b"SQLite format 3\0"
_HEADER = struct.Struct(">60xI4xI28xB2xH")  # user_version, application_id, type and cell count of the schema page
_EMPTY_SCHEMA = (0x0D, 0)

_empty = threading.local()
"""A database in memory with its schema and nothing else; a forked process makes one of its own."""

T = TypeVar("T")


def check_before_opening(path: str) -> None:
    """Refuse a path that cannot become our database, touching nothing.

    SQLite itself would leave files beside a foreign database. The header is read by hand, but not while this process
    has the file open: closing any descriptor of it would drop SQLite's locks.

    Raises:
        CannotOpen: or one of its subclasses.
    """
    folder = Path(path).parent
    try:
        found: os.stat_result | None = os.stat(path)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise CannotOpen(f"{path}: {error.strerror}") from error
    if not folder.is_dir():
        raise CannotOpen(f"{path}: the directory {folder} does not exist; create it first")
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise CannotOpen(f"{path}: is a directory, not a database file")
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise CannotOpen(f"{path}: is not a regular file")
    if found is not None and not os.access(path, os.R_OK | os.W_OK):
        raise ReadOnly(f"{path}: the file cannot be written by this user")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReadOnly(f"{path}: the directory {folder} cannot be written, and SQLite needs files of its own there")
    if found is not None and found.st_size and not sqlite_guard.is_open(found):
        with open(path, "rb") as file:
            _check_header(path, file.read(_HEADER.size))


def _check_header(path: str, header: bytes) -> None:
    if not header.startswith(_MAGIC) or len(header) < _HEADER.size:
        raise NotADatabase(f"{path}: the file is not an SQLite database")
    version, application_id, *schema = _HEADER.unpack(header)
    empty = tuple(schema) == _EMPTY_SCHEMA
    _check_identity(path, application_id, version, empty or Path(f"{path}-journal").exists())


def _check_identity(path: str, application_id: int, version: int, empty: bool) -> None:
    if application_id != APPLICATION_ID and not (application_id == 0 and empty):
        raise NotOurDatabase(f"{path}: belongs to another application (application_id {application_id:#x})")
    check_version(version, "sqlite", path)


def connect_memory() -> apsw.Connection:
    """Make a database in memory, with its schema: a copy of one that this thread keeps, which takes a fiftieth."""
    process = os.getpid()
    empty: apsw.Connection | None = getattr(_empty, "database", None)
    if empty is None or _empty.process != process:
        empty = apsw.Connection(MEMORY)
        migrate(empty, MEMORY)
        _empty.database, _empty.process = empty, process
    db = apsw.Connection(MEMORY, statementcachesize=200)
    with db.backup("main", empty, "main") as copy:
        copy.step()
    return db


def connect(
    path: str, durability: str, patience: float, expected: os.stat_result | None = None
) -> tuple[apsw.Connection, os.stat_result]:
    """Open or create the database and bring its schema up to date; return what the file was when it was opened.

    Where another connection is open already, `expected` says to which file.
    """
    if expected is None:
        check_before_opening(path)
        _create(path)
    opened = expected or os.stat(path)
    db = reconnect(path, durability, patience, lambda: check_same(path, opened))
    try:
        if db.readonly("main"):
            raise ReadOnly(f"{path}: the database cannot be written by this user")
        insist(lambda: migrate(db, path), patience, path)
        mode = insist(lambda: db.pragma("journal_mode", "wal"), patience, path)
        if mode != "wal":
            raise CannotOpen(f"{path}: this file system does not support SQLite's write-ahead log; use a local disk")
    except BaseException:
        close(db, whole=True)
        raise
    return db, opened


def connect_to_look(path: str, patience: float) -> tuple[apsw.Connection, os.stat_result]:
    """Open the database so that nothing of it is ever written; SQLite may put a `-shm` and an empty `-wal` beside it.

    Where not even that can be written, the file is read as it is, unless it has a `-wal` with changes.

    Raises:
        ReadOnly: there is such a `-wal`, and no way to read it.
    """
    opened = _look_before_opening(path)
    try:
        return _look_at(path, "mode=ro", patience), opened
    except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
        if _size(f"{path}-wal"):
            raise ReadOnly(
                f"{path}: its newest changes are in {Path(path).name}-wal, which SQLite can read only where it may "
                "write beside it; look as the user that runs the workers, or copy the database and its -wal to a "
                "directory of your own"
            ) from error
    return _look_at(path, "immutable=1", patience), opened


def _look_at(path: str, how: str, patience: float) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    db = apsw.Connection(f"file:{quote(path)}?{how}", flags, statementcachesize=200)
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        db.set_busy_timeout(0)
        db.pragma("cache_size", -16_000)
        check_current(insist(lambda: _checked_version(db, path), patience, path), "sqlite", path)
    except BaseException:
        db.close()
        raise
    return db


def _look_before_opening(path: str) -> os.stat_result:
    """Refuse a path that is not our database, touching nothing."""
    try:
        found = os.stat(path)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise CannotOpen(f"{path}: {'there is no such database' if missing else error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise CannotOpen(f"{path}: is not a database file")
    if not os.access(path, os.R_OK):
        raise CannotOpen(f"{path}: the file cannot be read by this user")
    if not sqlite_guard.is_open(found):
        with open(path, "rb") as file:
            _check_header(path, file.read(_HEADER.size))
    return found


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _create(path: str) -> None:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass
    except PermissionError as error:
        raise ReadOnly(f"{path}: the file cannot be created") from error


def reconnect(path: str, durability: str, patience: float, check: Callable[[], None]) -> apsw.Connection:
    """Open one more connection to a database that is known to be in order.

    `check` raises when the path does not name the file that is meant. It is asked before the file is opened and again
    before the connection is used: the first statement on another file could copy the WAL of this one into it. And once
    more when the file is no longer locked, as it is while a backup is restored.
    """
    check()
    db = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE, statementcachesize=200)
    try:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        check()
        insist(lambda: _configure(db, durability), patience, path)
        check()
    except BaseException:
        close(db, whole=False)
        raise
    return db


def close(db: apsw.Connection, whole: bool) -> None:
    """Close a connection; the last one of a database that is whole puts the WAL into it and removes the WAL."""
    if whole:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
    db.close()


def check_same(path: str, opened: os.stat_result) -> None:
    """Raise StoreReplaced unless a path names the file that it named before."""
    try:
        now: os.stat_result | None = os.stat(path)
    except OSError:
        now = None
    if now is None or (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino):
        raise StoreReplaced(f"{path}: another file replaced the database while it was being opened; try again")


def _configure(db: apsw.Connection, durability: str) -> None:
    db.set_busy_timeout(0)
    db.pragma("synchronous", "full" if durability == "power" else "normal")
    db.pragma("wal_autocheckpoint", 0)
    db.pragma("journal_size_limit", WAL_LIMIT)
    db.pragma("cache_size", -16_000)


def insist(work: Callable[[], T], patience: float, path: str) -> T:
    """Do something until the lock is free, pausing a few milliseconds between attempts.

    Raises:
        StoreBusy: it was not free within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    pause = 0.0005
    while True:
        try:
            return work()
        except apsw.BusyError as error:
            if time.monotonic() >= deadline:
                raise StoreBusy(f"{path}: another process keeps the database locked") from error
        jitter = time.monotonic_ns() % 1000 / 1000
        time.sleep(pause * (0.5 + jitter))
        pause = min(pause * 1.5, 0.01)


def migrate(db: apsw.Connection, path: str) -> None:
    """Bring the schema up to date, in one transaction."""
    version = _checked_version(db, path)
    if version == migrations("sqlite")[-1][0]:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = _checked_version(db, path)
        for number, script in migrations("sqlite"):
            if number > version:
                db.execute(script)
                db.execute(f"PRAGMA user_version = {number}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _checked_version(db: apsw.Connection, path: str) -> int:
    version = int(db.pragma("user_version"))
    empty = db.execute("SELECT count(*) FROM sqlite_schema").get == 0
    _check_identity(path, int(db.pragma("application_id")), version, empty)
    return version
