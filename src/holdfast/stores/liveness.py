"""Which workers are alive: what is known about them, and the signs of life that a process gives on its machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable
from enum import StrEnum
from glob import escape
from pathlib import Path
from urllib.parse import quote

import msgspec

from holdfast.contract.rows import Claim
from holdfast.system import lock

RECENT_DEATH = 60_000_000
"""For how many microseconds the death of a worker counts when another dies: see Claim.deaths."""


class Fate(StrEnum):
    """What became of a worker, as far as can be told."""

    ALIVE = "alive"
    HANGS = "hangs"
    """Its lease lapsed, but its process is there and may go on."""
    LAPSED = "lapsed"
    """Its lease lapsed, and nothing else is known."""
    VANISHED = "vanished"
    """Its lease lapsed, and its connection is gone."""
    DIED = "died"
    """Its process is gone, whatever its lease says."""
    DECLARED_DEAD = "declared dead"
    """What it was running was freed already."""

    @property
    def lost(self) -> str:
        """How the runs and attempts of such a worker were lost: crash or lapse."""
        return "crash" if self in (Fate.DIED, Fate.VANISHED) else "lapse"


def with_deaths(claims: Iterable[Claim], deaths: int) -> list[Claim]:
    """Return claims in which those of a worker that died tell how many did of late."""
    return [claim if claim.died is None else msgspec.structs.replace(claim, deaths=deaths) for claim in claims]


class WorkerLock:
    """The lock file of one worker beside the database: the kernel frees it however the process dies.

    So its death is known without any clock.
    """

    def __init__(self, database: str, worker: str) -> None:
        self.path = lock_path(database, worker)
        self._releasing = threading.Lock()
        self._fd = self._opened()
        while not self._is_named():  # it was taken for one that a dead worker left, and removed before it was locked
            os.close(self._fd)
            self._fd = self._opened()
        self.effective = self._locked and not is_free(self.path)

    def _opened(self) -> int:
        descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self._locked = lock(descriptor)
        return descriptor

    def _is_named(self) -> bool:
        try:
            return os.stat(self.path).st_ino == os.fstat(self._fd).st_ino
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Free the lock; harmless when it is free already.

        The thread that keeps the lease may do so at the same time as the event loop's. A descriptor that both of them
        close would by then be another file's.
        """
        with self._releasing:
            descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)

    def remove(self) -> None:
        """Free the lock and delete its file."""
        Path(self.path).unlink(missing_ok=True)
        self.release()


def lock_path(database: str, worker: str) -> str:
    """Return the path of a worker's lock file."""
    return f"{database}-worker-{quote(worker, safe='')}"


def remove_lock(database: str, worker: str) -> None:
    """Delete the lock file a dead worker left."""
    Path(lock_path(database, worker)).unlink(missing_ok=True)


def remove_strays(database: str, known: Callable[[], Container[str]]) -> None:
    """Delete lock files beside a database whose workers are gone and which it does not know: it was deleted meanwhile.

    `known` gives the names of the lock files that it knows; asked after a file was found free, it misses no worker that
    had joined.
    """
    begin = Path(lock_path(database, ""))
    for path in begin.parent.glob(f"{escape(begin.name)}*"):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if lock(descriptor) and path.name not in known():
                path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


def is_free(path: str) -> bool:
    """Whether a lock file is there and no process holds it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return lock(fd)
    finally:
        os.close(fd)
