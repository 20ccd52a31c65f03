"""A driver over LMDB (extra `lmdb`): a memory-mapped file of one machine, a transaction a batch, synced."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from holdfast.clock import from_datetime, to_datetime
from holdfast.errors import (
    CannotOpen,
    MissingExtra,
    NotAsExpected,
    OutcomeUnknown,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
)
from holdfast.kv.driver import Driver, Expected, Pair, check_sizes
from holdfast.kv.drivers.folders import FileIdentity, check_place, file_identity, refuse_foreign_folder
from holdfast.kv.drivers.forks import keep_to_this_process

_ALARM = b"alarm"
_SPACE = b"space "
"""With what the names of key spaces begin: LMDB keeps them as keys of the one that has no name."""
_FIRST_SIZE = 16 * 1024 * 1024
_MOST_SPACES = 10_000
"""How many named key spaces of one environment may be open at once: every transaction costs a little for each."""


class _Environments:
    """The environments that are open in this process: LMDB lets a process open each only once."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._open: dict[tuple[int, str], tuple[Any, FileIdentity | None, int]] = {}

    def open(self, lmdb: Any, path: str) -> tuple[Any, FileIdentity | None]:
        """Return the environment of a folder, the one that this process has open if it has; and which file that is."""
        place = (os.getpid(), os.path.realpath(path))
        with self._mutex:
            environment, identity, users = self._open.get(place, (None, None, 0))
            if environment is None:
                environment = lmdb.open(path, map_size=_FIRST_SIZE, max_dbs=_MOST_SPACES)
                identity = file_identity(_file_of(path))
                # The size of a map that another process has grown is taken over.
                environment.set_mapsize(0)
                if environment.info()["map_size"] < _FIRST_SIZE:
                    environment.set_mapsize(_FIRST_SIZE)
                environment.reader_check()  # those of killed processes keep the place of a reader
            self._open[place] = (environment, identity, users + 1)
            return environment, identity

    def close(self, environment: Any) -> None:
        """Close an environment that no other driver uses."""
        with self._mutex:
            for place, (other, identity, users) in list(self._open.items()):
                if other is environment and users > 1:
                    self._open[place] = (environment, identity, users - 1)
                elif other is environment:
                    del self._open[place]
                    environment.close()


_environments = _Environments()


def is_environment(path: str) -> bool:
    """Tell whether a folder has an environment of LMDB."""
    return os.path.exists(_file_of(path))


def _file_of(path: str) -> str:
    return os.path.join(path, "data.mdb")


class LMDBDriver(Driver):
    """One key space in an LMDB environment, of its own or, by `name`, one of many in an environment that is shared.

    Many drivers of a process may share one environment; the last that is closed closes it.

    The map begins small and is doubled when it is full, up to `largest` bytes; then a batch raises StoreFull. Several
    processes may open the same environment: LMDB lets one write at a time.

    Raises:
        MissingExtra: the package lmdb is not installed.
        CannotOpen: the path is not one of an environment, or cannot be written.
        NotOurDatabase: the folder has files of another program, and no environment.
        StoreBusy: 126 others read it at this moment.
    """

    max_key = 510
    """LMDB's limit of 511 bytes, less the byte that keeps keys apart from the alarm."""
    compares = True

    def __init__(self, path: str | os.PathLike[str], name: str = "", *, largest: int = 2**40) -> None:
        try:
            import lmdb
        except ImportError as error:
            raise MissingExtra("LMDBDriver", "lmdb") from error
        self._lmdb: Any = lmdb
        self.path: str = os.fspath(path)
        self._largest = largest
        self._environment: Any = None
        try:
            os.makedirs(self.path, exist_ok=True)
            if not is_environment(self.path):
                refuse_foreign_folder(self.path, {"lock.mdb"})
            self._environment, self._identity = _environments.open(lmdb, self.path)
            self._space = self._environment.open_db(_SPACE + name.encode()) if name else None
        except CannotOpen:
            raise
        except lmdb.ReadersFullError as error:
            raise self._crowded() from error
        except (lmdb.Error, OSError) as error:
            self.close()
            raise CannotOpen(f"{self.path}: {error}") from error
        keep_to_this_process(self)

    def get(self, key: bytes) -> bytes | None:
        return self._read(b"k" + key)

    def _read(self, key: bytes) -> bytes | None:
        with self._reading(), self._begun(write=False) as transaction:
            found: bytes | None = transaction.get(key, db=self._space)
            return found

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except self._lmdb.Error as error:
            raise StoreCorrupt(f"{self.path}: cannot be read: {error}; restore it from a backup") from error

    def list(self, prefix: bytes) -> Sequence[Pair]:
        found: list[Pair] = []
        start = b"k" + prefix
        with self._reading(), self._begun(write=False) as transaction, transaction.cursor(db=self._space) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if not key.startswith(start):
                        break
                    found.append((key[1:], value))
        return found

    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        check_sizes(self, puts, deletes)
        kept = {b"k" + key: value for key, value in puts.items()}
        self._write(kept, [b"k" + key for key in deletes], {b"k" + key: value for key, value in (expect or {}).items()})

    def set_alarm(self, at: datetime) -> None:
        self._write({_ALARM: str(from_datetime(at)).encode()}, [], {})

    def clear_alarm(self) -> None:
        if self._read(_ALARM) is not None:
            self._write({}, [_ALARM], {})

    def get_alarm(self) -> datetime | None:
        stored = self._read(_ALARM)
        return to_datetime(int(stored)) if stored is not None else None

    def _write(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes], expect: Expected) -> None:
        while True:
            try:
                self._transact(puts, deletes, expect)
                return
            except self._lmdb.MapFullError as error:
                self._grow(error)

    def _transact(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes], expect: Expected) -> None:
        transaction = self._begun(write=True)
        try:
            for key, value in expect.items():
                if transaction.get(key, db=self._space) != value:
                    raise NotAsExpected(
                        f"key {key[1:]!r} has another value than the batch expects: another driver wrote it"
                    )
            for key in deletes:
                transaction.delete(key, db=self._space)
            for key, value in puts.items():
                transaction.put(key, value, db=self._space)
        except (self._lmdb.MapFullError, NotAsExpected):
            transaction.abort()
            raise
        except self._lmdb.Error as error:
            transaction.abort()
            raise StoreError(f"{self.path}: nothing of the batch was written: {error}") from error
        try:
            transaction.commit()
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.DiskError as error:
            raise OutcomeUnknown(f"{self.path}: the batch could not be synced: {error}") from error
        except self._lmdb.Error as error:
            full = "No space left" in str(error)
            raise (StoreFull if full else OutcomeUnknown)(f"{self.path}: {error}") from error
        check_place(_file_of(self.path), self._identity)

    def _grow(self, full: Exception) -> None:
        if self._environment.reader_check():
            return  # what only killed processes were reading is free
        size = self._environment.info()["map_size"]
        if size >= self._largest:
            raise StoreFull(f"{self.path}: its {size} bytes are full, and `largest` allows no more") from full
        self._environment.set_mapsize(min(size * 2, self._largest))

    def _begun(self, write: bool) -> Any:
        if self._environment is None:
            raise StoreClosed(f"{self.path}: the driver is closed, or was inherited through a fork: open one here")
        while True:
            try:
                return self._environment.begin(write=write)
            except self._lmdb.MapResizedError:  # by another process
                self._environment.set_mapsize(0)
            except self._lmdb.ReadersFullError as error:
                if not self._environment.reader_check():
                    raise self._crowded() from error

    def _crowded(self) -> StoreBusy:
        return StoreBusy(f"{self.path}: as many read it as LMDB lets at once; try again")

    def abandon(self) -> None:
        """In a forked child: be of no use. The environment stays open, since closing it would be felt by the parent."""
        self._environment = None

    def close(self) -> None:
        if self._environment is not None:
            _environments.close(self._environment)
        self._environment = None
