"""Which workers are alive: what can be told of them, and the signs of life that a process gives on its machine."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

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


class WorkerLock:
    """The lock file of one worker beside the database: the kernel frees it however the process dies.

    So its death is known without any clock.
    """

    def __init__(self, database: str, worker: str) -> None:
        self.path = lock_path(database, worker)
        self._fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.effective = lock(self._fd) and not is_free(self.path)

    def release(self) -> None:
        """Free the lock; harmless when it is free already."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

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
