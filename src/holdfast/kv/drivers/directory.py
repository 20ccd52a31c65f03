"""A driver over a directory of plain files: no dependency, one fsync a batch, one process at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from holdfast.clock import from_datetime, to_datetime
from holdfast.errors import (
    CannotOpen,
    OutcomeUnknown,
    ReadOnly,
    StoreBusy,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReplaced,
)
from holdfast.kv.driver import Driver, Expected, Pair, check_sizes
from holdfast.kv.drivers import segments
from holdfast.kv.drivers.folders import check_place, file_identity, refuse_foreign_folder
from holdfast.kv.drivers.forks import keep_to_this_process
from holdfast.kv.drivers.memory import SortedKeys
from holdfast.system import lock

_ALARM = b""
"""The key of the alarm: no key of a caller is empty."""
_LOCK_TRIES, _LOCK_PAUSE = 25, 0.02
"""How often, and after how many seconds, the lock of a directory is tried again."""
_WASTE = 1024 * 1024
"""How many bytes of batches may be superseded before they are written again without those."""
_BLOCK, _BLOCKS = 4 * 1024, 64 * 1024
"""By how many bytes a file grows, at first and later: a sync takes longer when it has changed how long the file is."""


class DirectoryDriver(Driver):
    """One key space in a directory, read into memory when it is opened.

    Every batch is appended to a file and synced before `batch` returns. When more than half of what is on disk is
    superseded, the next batch is followed by a compaction.

    Raises:
        CannotOpen: the path is not one of a folder.
        NotOurDatabase: the folder has files of another program, and no key space.
        StoreBusy: another process, or another driver of this one, has the directory open.
        StoreCorrupt: a batch that was acknowledged is missing or damaged.
        SchemaTooNew: a newer holdfast wrote it.
    """

    compares = True
    exclusive = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._file = self._lock = -1
        self._keys = SortedKeys()
        self._again = 0
        """Up to where the file may grow before a compaction is tried again that failed."""
        try:
            _make_folder(self.path)
            if not segments.segments(self.path):
                refuse_foreign_folder(self.path, {"lock", *(path.name for path in segments.begun(self.path))})
            self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except PermissionError as error:
            raise ReadOnly(f"{self.path}: {error}") from error
        except OSError as error:
            raise CannotOpen(f"{self.path}: {error}") from error
        if not _locked(self._lock):
            os.close(self._lock)
            raise StoreBusy(f"{self.path}: another driver has it open; one process at a time may write a key space")
        try:
            self._open()
        except BaseException:
            self._let_go()
            raise
        keep_to_this_process(self)

    def _open(self) -> None:
        space = segments.read_all(self.path)
        self._number = 0
        for batch in space.batches:
            self._keys.apply(batch.puts, batch.deletes)
            self._number = batch.number
        self._segment, self._end = space.segment, space.end
        self._live = sum(map(len, self._keys.values)) + sum(map(len, self._keys.values.values()))
        if not space.segment:
            self.compact()
            return
        self._file = os.open(self._path(), os.O_RDWR | os.O_CLOEXEC)
        if space.torn:
            os.ftruncate(self._file, self._end)
        self._size = os.fstat(self._file).st_size
        self._identity = file_identity(self._file)
        os.fsync(self._file)  # the last batch may be one of a process that was killed before it had synced it
        for path in [*space.superseded, *segments.begun(self.path)]:
            path.unlink()
        if not self._end:  # a segment that was only begun
            self.compact()

    def _path(self) -> Path:
        return segments.segment_path(self.path, self._segment)

    def get(self, key: bytes) -> bytes | None:
        return self._keys.values.get(key) if key else None

    def list(self, prefix: bytes) -> Sequence[Pair]:
        return [pair for pair in self._keys.list(prefix) if pair[0]]

    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        check_sizes(self, puts, deletes)
        self._keys.check(expect)
        self._append(puts, deletes)

    def set_alarm(self, at: datetime) -> None:
        self._append({_ALARM: str(from_datetime(at)).encode()}, ())

    def clear_alarm(self) -> None:
        if _ALARM in self._keys.values:
            self._append({}, (_ALARM,))

    def get_alarm(self) -> datetime | None:
        stored = self._keys.values.get(_ALARM)
        return to_datetime(int(stored)) if stored is not None else None

    def _append(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        if self._file < 0:
            raise StoreClosed(f"{self.path}: the driver is closed, or was inherited through a fork: open one here")
        data = segments.packed(self._number + 1, puts, deletes)
        try:
            self._make_room(self._end + len(data))
            _write(self._file, data, self._end)
        except OSError as error:
            self._undo(error)
        try:
            _sync(self._file)
        except OSError as error:
            self._let_go()  # what is on disk is known only to one that reads it again
            raise OutcomeUnknown(f"{self._path()}: could not be synced: {error}; open the directory again") from error
        try:
            check_place(self._path(), self._identity)
        except StoreReplaced:
            self._let_go()
            raise
        self._number, self._end = self._number + 1, self._end + len(data)
        old = sum(len(key) + len(self._keys.values[key]) for key in {*puts, *deletes} if key in self._keys.values)
        self._live += sum(len(key) + len(value) for key, value in puts.items()) - old
        self._keys.apply(puts, deletes)
        if self._end > max(2 * self._live + _WASTE, self._again):
            self._again = self._end + _WASTE
            with contextlib.suppress(StoreError):  # the batch is durable; it is tried again when there is more
                self.compact()

    def _make_room(self, end: int) -> None:
        """Write zeros behind a batch, so that the next ones do not change how long the file is."""
        if end <= self._size:
            return
        step = _BLOCK if end < _BLOCKS else _BLOCKS
        size = -(-end // step) * step
        os.pwrite(self._file, bytes(size - end), end)
        self._size = size

    def _undo(self, error: OSError) -> None:
        """Take back what was written of a batch, and say that nothing was."""
        try:
            os.ftruncate(self._file, self._end)
            self._size = self._end
        except OSError:
            self._let_go()  # the torn batch is dropped by whatever opens the directory next
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        kind = StoreFull if full else StoreError
        raise kind(f"{self._path()}: nothing of the batch was written: {error}") from error

    def compact(self) -> int:
        """Write all that there is to a new segment and remove the others; return how many bytes that gave back."""
        path = segments.segment_path(self.path, self._segment + 1)
        begun = path.with_suffix(segments.BEGUN)
        data = segments.BASE + segments.packed(self._number, self._keys.values, ())
        file = -1
        try:
            file = os.open(begun, os.O_CREAT | os.O_TRUNC | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _write(file, data, 0)
            os.fsync(file)
            begun.rename(path)
            before = self._replace(file, len(data))
        except OSError as error:
            if file >= 0:
                os.close(file)
            with contextlib.suppress(OSError):
                begun.unlink()
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            raise (StoreFull if full else StoreError)(f"{path}: {error}") from error
        except BaseException:
            if file not in (-1, self._file):
                os.close(file)
            self._let_go()  # what is appended to the old segment now is lost if there is a new one
            raise
        for _, old in segments.segments(self.path)[:-1]:
            with contextlib.suppress(OSError):
                old.unlink()
        return before - len(data)

    def _replace(self, file: int, end: int) -> int:
        """Append to a new segment from now on; return how long the old one was."""
        old, before = self._file, self._end
        self._file, self._segment, self._end, self._size, self._again = file, self._segment + 1, end, end, 0
        self._identity = file_identity(file)
        try:
            if old >= 0:
                os.close(old)
            _sync_folder(self.path)
        except OSError as error:
            # What is appended now may be in a file that a crash takes back.
            raise OutcomeUnknown(f"{self.path}: could not be synced: {error}; open the directory again") from error
        return before

    def close(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)  # the room is for a process that has it open
        self._let_go()

    def abandon(self) -> None:
        """In a forked child: be of no use, and do not keep the lock when the parent lets go of it."""
        self._let_go()

    def _let_go(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


def _locked(descriptor: int) -> bool:
    """Take the lock, after a moment if need be: a child that a killed process has just begun keeps it until it runs."""
    for _ in range(_LOCK_TRIES):
        if lock(descriptor):
            return True
        time.sleep(_LOCK_PAUSE)
    return False


_sync = getattr(os, "fdatasync", os.fsync)
"""Not on macOS."""


def _write(file: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, at)
        view, at = view[written:], at + written


def _make_folder(path: Path) -> None:
    """Make a folder and those above it, so that a power cut takes none of them back."""
    if path.is_dir():
        return
    _make_folder(path.parent)
    path.mkdir(exist_ok=True)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
