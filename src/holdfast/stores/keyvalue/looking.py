"""Looking at the directory of an engine that another process has open: its files are read, and nothing is locked."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from holdfast.errors import CannotOpen, ReadOnly
from holdfast.kv.driver import Driver, Expected, Pair
from holdfast.kv.drivers import segments

_TRIES = 20
"""Files may be written, or taken away by a compaction, while they are read; so often in a row that does not happen."""


class DirectoryLook(Driver):
    """The whole batches that the files of a directory have, as of when it is listed; nothing is ever written.

    A batch that is being written is not whole yet. One that is whole and not synced may be seen a moment before it is
    acknowledged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        if not (self.path.is_dir() and segments.segments(self.path)):
            raise CannotOpen(f"{self.path}: there is no such database")

    def get(self, key: bytes) -> bytes | None:
        return self._read().get(key)

    def list(self, prefix: bytes) -> Sequence[Pair]:
        return sorted(pair for pair in self._read().items() if pair[0] and pair[0].startswith(prefix))

    def _read(self) -> dict[bytes, bytes]:
        failed: Sequence[object] = ()
        for _ in range(_TRIES):
            try:
                before = self._files()
                batches = segments.read_all(self.path).batches
            except FileNotFoundError:
                continue
            except Exception:
                if failed != before:  # a file that is written meanwhile is not read as it was at one moment
                    failed = before
                    continue
                raise
            found: dict[bytes, bytes] = {}
            for batch in batches:
                for key in batch.deletes:
                    found.pop(key, None)
                found.update(batch.puts)
            return found
        raise CannotOpen(f"{self.path}: its files change faster than they can be read; try again")

    def _files(self) -> Sequence[object]:
        found = [(path, path.stat()) for _, path in segments.segments(self.path)]
        return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]

    def batch(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Expected | None = None
    ) -> None:
        raise self._refused()

    def set_alarm(self, at: datetime) -> None:
        raise self._refused()

    def clear_alarm(self) -> None:
        raise self._refused()

    def get_alarm(self) -> datetime | None:
        return None

    def _refused(self) -> ReadOnly:
        return ReadOnly(f"{self.path}: was opened only to look, which changes nothing")
