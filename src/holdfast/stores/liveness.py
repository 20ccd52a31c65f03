"""Which workers are alive: what can be told of them, and the signs of life that a process gives on its machine."""

from __future__ import annotations

import fcntl
import os
import time
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from holdfast.clock import new_id


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
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.effective = not is_free(self.path)
        except OSError:
            self.effective = False

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
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def boot_id() -> str:
    """Return which boot of the machine this is, as far as it says."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def boot_time() -> int:
    """Return microseconds since boot, counting time the machine was suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def machine() -> str:
    """Return what tells whether a process id of another process means the same process here; random if nothing does."""
    try:
        return f"{boot_id()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return new_id()


def process_exists(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
