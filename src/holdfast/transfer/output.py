"""A file that appears under its name when it is complete, and not before; only its owner may read it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from holdfast.errors import CannotMove
from holdfast.system import fcntl


class NewFile:
    """Written beside its place under another name, `part`, which goes whatever happens.

    Args:
        path: its place.
        replace: whether it takes the place of a file that is there already.

    Raises:
        CannotMove: there is a file already, or none can be written there.
    """

    def __init__(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        self.path = Path(path)
        self.part = ""
        self._replace = replace
        self._file: IO[bytes] | None = None

    @property
    def file(self) -> IO[bytes]:
        """What is written."""
        assert self._file is not None
        return self._file

    def __enter__(self) -> Self:
        if not self._replace and self.path.exists():
            raise self._taken()
        try:
            self._sweep()
            while not self._begin():
                pass
        except OSError as error:
            raise CannotMove(f"{self.path}: cannot be written: {error.strerror}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in _with_neighbours(self.part):
            Path(name).unlink(missing_ok=True)
        self.file.close()

    def publish(self) -> None:
        """Put the file in its place for good.

        Raises:
            CannotMove: there is a file by now.
        """
        self.file.flush()
        os.fsync(self.file.fileno())
        if self._replace:
            os.replace(self.part, self.path)
        else:
            self._link()
        sync_folder(self.path.parent)

    def _begin(self) -> bool:
        """Make the part and lock it; False if it was taken for one that a dead process left."""
        number, self.part = tempfile.mkstemp(".part", f".{self.path.name}.", self.path.parent)
        self._file = os.fdopen(number, "r+b")  # closed by __exit__
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(number).st_nlink:
            return True
        self._file.close()
        return False

    def _sweep(self) -> None:
        """Remove the parts of this file that dead processes left: their locks are free."""
        for left in self.path.parent.glob(f".{_literal(self.path.name)}.*.part"):
            with open(left, "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    continue
                for name in _with_neighbours(str(left)):
                    Path(name).unlink(missing_ok=True)

    def _link(self) -> None:
        try:
            os.link(self.part, self.path)
        except FileExistsError as error:
            raise self._taken() from error
        except OSError:  # a file system without links
            if self.path.exists():
                raise self._taken() from None
            os.replace(self.part, self.path)

    def _taken(self) -> CannotMove:
        return CannotMove(f"{self.path}: there is a file already; name another, or remove it first")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _with_neighbours(part: str) -> list[str]:
    """Return a part and what SQLite may have put beside it."""
    return [f"{part}{end}" for end in ("-journal", "-wal", "-shm", "")]


def _literal(name: str) -> str:
    """Return a name as a pattern that only fits itself."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
