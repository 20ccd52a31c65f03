"""Errors of PostgreSQL: every psycopg error becomes one of holdfast's own errors; a password is never shown."""

from __future__ import annotations

import re

import psycopg
from psycopg import errors

from holdfast.errors import (
    AuthFailed,
    BadData,
    CannotOpen,
    Contended,
    ReadOnly,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreUnreachable,
)

AGAIN = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.UniqueViolation,
    errors.LockNotAvailable,
)
"""What another attempt meets differently: another process was faster. No statement of ours violates a key otherwise."""

UNPREPARED = (errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement)
"""A prepared statement is not there: the connection leads to another session than before."""

GONE = (
    errors.ReadOnlySqlTransaction,
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)
"""What a new connection, perhaps to another server, may not meet."""


_NO_ENTRY = re.compile(r'role ".*" does not exist|no pg_hba.conf entry')


def is_lost(error: psycopg.Error, connection: psycopg.BaseConnection[object]) -> bool:
    """Tell whether a connection is of no use any more."""
    if isinstance(error, GONE) or connection.closed or connection.broken:
        return True
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def translate(error: psycopg.Error, where: str) -> StoreError:
    """Return the typed error for what PostgreSQL reported."""
    said = " ".join(str(error).split())
    state = error.sqlstate or ""
    refusal = _refused(error, said, where) if not state or state[:2] in ("28", "3D") else None
    if refusal is not None:
        return refusal
    if isinstance(error, errors.DiskFull | errors.OutOfMemory):
        return StoreFull(f"{where}: the server has no space left ({said})")
    if isinstance(error, errors.InsufficientPrivilege):
        return ReadOnly(f"{where}: this user has no right to what was asked ({said})")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return ReadOnly(f"{where}: the database cannot be written by this user ({said})")
    if isinstance(error, errors.LockNotAvailable | errors.UniqueViolation):
        return Contended(f"{where}: a transaction that is still open holds what was needed ({said})")
    if isinstance(error, AGAIN):
        return StoreBusy(f"{where}: others kept what was needed locked ({said})")
    if isinstance(error, psycopg.DataError) or state[:2] in ("22", "54"):
        return BadData(f"{where}: a value cannot be stored ({said})")
    if isinstance(error, psycopg.OperationalError) and (not state or state[:2] in ("08", "53", "57")):
        return StoreUnreachable(f"{where}: the server cannot be reached ({said})")
    return StoreError(f"{where}: {type(error).__name__}: {said}")


def _refused(error: psycopg.Error, said: str, where: str) -> StoreError | None:
    """Return why a connection was refused for good; at that time only the text tells."""
    state = error.sqlstate or ""
    if isinstance(error, errors.InvalidCatalogName) or re.search(r'database ".*" does not exist', said):
        return CannotOpen(f"{where}: there is no such database; create it first")
    password = not state and error.pgconn is not None and (error.pgconn.needs_password or error.pgconn.used_password)
    if state.startswith("28") or (not state and _NO_ENTRY.search(said)) or (password and "password" in said):
        return AuthFailed(f"{where}: the server refused the user or the password")
    return None


def refuses_options(error: psycopg.Error) -> bool:
    """Tell whether a pooler would not let settings of the session pass."""
    return isinstance(error, psycopg.OperationalError) and "startup parameter" in str(error)
