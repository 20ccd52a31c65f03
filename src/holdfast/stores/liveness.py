"""A worker's sign of life on one machine: a file it holds locked, so that its death is known without any clock."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from urllib.parse import quote

from holdfast.clock import new_id


class WorkerLock:
    """The lock file of one worker beside the database; the kernel frees it however the process dies."""

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
    """Whether a lock file is there and nobody holds it."""
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
