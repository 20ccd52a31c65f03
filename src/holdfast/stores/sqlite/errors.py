"""Errors of SQLite: every apsw error becomes one of holdfast's own errors, which names the file."""

from __future__ import annotations

import errno

import apsw

from holdfast.errors import (
    CannotOpen,
    NotADatabase,
    ReadOnly,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReplaced,
)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def translate(error: apsw.Error, path: str, system_errno: int = 0) -> StoreError:
    """Return the typed error for what SQLite reported; `system_errno` is the connection's."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path}: another process keeps the database locked")
        case apsw.FullError():
            return StoreFull(f"{path}: the disk is full; free some space, nothing acknowledged is lost")
        case apsw.IOError() if system_errno in _NO_SPACE:
            return StoreFull(f"{path}: no space to write ({errno.errorcode[system_errno]})")
        case apsw.ReadOnlyError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_READONLY_DBMOVED:
            return StoreReplaced(f"{path}: the file was moved or deleted while in use")
        case apsw.ReadOnlyError() | apsw.PermissionsError():
            return ReadOnly(f"{path}: the database cannot be written; check the modes of the file and its directory")
        case apsw.NotADBError():
            return NotADatabase(f"{path}: the file is not an SQLite database")
        case apsw.CorruptError():
            return StoreCorrupt(f"{path}: the database is damaged ({error})")
        case apsw.CantOpenError():
            return CannotOpen(f"{path}: cannot be opened ({error})")
        case _:
            return StoreError(f"{path}: {type(error).__name__}: {error}")
