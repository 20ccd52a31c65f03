"""Replacing a database that no process uses by another file; the old database is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from holdfast.errors import CannotMove
from holdfast.stores.liveness import is_free, lock_path
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite.backup import copy_file
from holdfast.stores.sqlite.errors import translate
from holdfast.system import fcntl

_LOCKED_BYTES = (512, 0x40000000)
"""Where SQLite locks a file, and so do all processes that have it open: how many bytes, from where."""
_MAGIC = b"SQLite format 3\0"


def is_database(path: str) -> bool:
    """Whether a file is an SQLite database."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def copy_backup(backup: str, target: str, progress: Callable[[int, int], None]) -> tuple[int, int]:
    """Write a backup into an empty file and look whether it is whole; return how many runs it has, and how many open.

    Raises:
        CannotOpen: it is not ours, or of another version.
        CannotMove: it is damaged.
    """
    sqlite_file.check_before_opening(backup)
    try:
        alone = not Path(f"{backup}-wal").exists()
        source = apsw.Connection(
            f"{Path(backup).as_uri()}?mode=ro{'&immutable=1' if alone else ''}",
            apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI,
        )
        try:
            counted = copy_file(source, backup, target, progress)
        finally:
            source.close()
        copy = apsw.Connection(target)
        try:
            found = copy.pragma("integrity_check")
        finally:
            copy.close()
    except apsw.Error as error:
        raise translate(error, backup) from error
    if found != "ok":
        raise CannotMove(f"{backup}: the backup is damaged: {found}")
    return counted


@contextmanager
def unused(path: str) -> Iterator[Callable[[], str]]:
    """Keep every process from a database; give what keeps the file that is there under another name.

    It returns that name, and the caller then puts another file in its place. A database that can be read has nothing
    beside it by then: what was in its WAL is in the file.

    Raises:
        CannotMove: a process uses the database.
    """
    try:
        # Of a file that is none SQLite would remove the WAL.
        db = _exclusively(path) if is_database(path) else None
    except apsw.BusyError as error:
        raise _in_use(path) from error
    except apsw.Error:
        db = None
    if db is None:  # it cannot be read, which may be why another is to take its place
        with _locked(path):
            yield lambda: _keep(path, ("-wal", "-journal"))
        return
    try:
        yield lambda: _keep(path, ())
    finally:
        db.close()


def _exclusively(path: str) -> apsw.Connection:
    """Return a connection that has a database for itself, with its WAL in the file."""
    db = apsw.Connection(path, apsw.SQLITE_OPEN_READWRITE)
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    try:
        db.pragma("locking_mode", "exclusive")
        if db.pragma("journal_mode", "delete") != "delete":
            raise apsw.BusyError("another connection uses the WAL")
        db.execute("BEGIN EXCLUSIVE")
        db.execute("COMMIT")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def _locked(path: str) -> Iterator[None]:
    with open(path, "r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, *_LOCKED_BYTES)
        except OSError as error:
            raise _in_use(path) from error
        yield


def _keep(path: str, neighbours: tuple[str, ...]) -> str:
    """Give a database one more name, under which it stays."""
    number = 1
    while True:
        kept = f"{path}.replaced-{number}"
        try:
            os.link(path, kept)
            break
        except FileExistsError:
            number += 1
        except OSError:  # a file system without links
            os.rename(path, kept)
            break
    for end in neighbours:
        if os.path.exists(path + end):
            os.rename(path + end, kept + end)
    Path(f"{path}-shm").unlink(missing_ok=True)
    return kept


def _in_use(path: str) -> CannotMove:
    found = Path(path).parent.glob(f"{Path(lock_path(path, '')).name}*")
    workers = [lock.name.removeprefix(Path(lock_path(path, "")).name) for lock in found if not is_free(str(lock))]
    who = f"worker {', '.join(sorted(workers))} is at work on it" if workers else "a process has it open"
    return CannotMove(f"{path}: {who}; stop everything that uses the database first")
