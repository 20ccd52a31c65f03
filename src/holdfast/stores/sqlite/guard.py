"""What must not happen to an open SQLite file in this process: a fork that uses it, or the stdlib module opening it.

POSIX locks belong to the process. A forked child has none of them, and `sqlite3` (another copy of SQLite) would drop
those of apsw when it closes its descriptor.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import Protocol
from urllib.parse import unquote, urlsplit

from holdfast.errors import StoreError
from holdfast.system import watch_audited

_Inode = tuple[int, int]


class Guarded(Protocol):
    """A store as the guard sees it."""

    def abandon(self) -> list[object]:
        """In a forked child: refuse further use, release locks, and return the handles that must never be closed."""
        ...


class _Process:
    """What this process has open: there is one set of POSIX locks per process, so there is one of these."""

    def __init__(self) -> None:
        self.installed = False
        self.reset()

    def reset(self) -> None:
        self.opening = threading.Lock()
        self.files: dict[_Inode, int] = {}
        self.stores: weakref.WeakSet[Guarded] = weakref.WeakSet()


_process = _Process()


def opening() -> threading.Lock:
    """Return the lock under which a file is looked at and opened, so that no other store's locks are dropped by it."""
    return _process.opening


def opened(store: Guarded, file: os.stat_result | None) -> None:
    """Guard a store, and its file unless it is in memory."""
    if not _process.installed:
        _process.installed = True
        watch_audited(["sqlite3.connect"], _refuse_stdlib)
        os.register_at_fork(after_in_child=_after_fork)
    _process.stores.add(store)
    if file is not None:
        inode = (file.st_dev, file.st_ino)
        _process.files[inode] = _process.files.get(inode, 0) + 1


def closed(store: Guarded, file: os.stat_result | None) -> None:
    """Stop guarding."""
    _process.stores.discard(store)
    if file is not None:
        inode = (file.st_dev, file.st_ino)
        _process.files[inode] = _process.files.get(inode, 1) - 1
        if _process.files[inode] <= 0:
            del _process.files[inode]


def is_open(file: os.stat_result) -> bool:
    """Whether a store of this process has that file open."""
    return (file.st_dev, file.st_ino) in _process.files


def _after_fork() -> None:
    for store in list(_process.stores):
        for handle in store.abandon():
            # Closing it in the child could checkpoint or delete the parent's WAL, even at interpreter exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    _process.reset()


def _refuse_stdlib(event: str, args: tuple[object, ...]) -> None:
    if not _process.files:
        return
    name = args[0] if args else None
    if isinstance(name, bytes):
        name = os.fsdecode(name)
    if not isinstance(name, str | os.PathLike):
        return
    path = os.fspath(name)
    if path.startswith("file:"):
        path = unquote(urlsplit(path).path)
    try:
        file = os.stat(path)
    except (OSError, ValueError):
        return
    if is_open(file):
        raise StoreError(
            f"{path} is open in holdfast: the sqlite3 module in the same process would break its locks and can corrupt "
            "the file; use apsw, or look at it from another process"
        )
