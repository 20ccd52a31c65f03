"""The open database file: whether it is still the file that was opened, and only SQLite has written to it.

A backup can replace an open database in two ways. `mv` gives its path to another file. `cp` keeps the file and replaces
its content; device and inode stay the same. In WAL mode only a checkpoint writes the database file, and the process
that makes one says so in the shared memory (`-shm`): how far it is about to copy before it begins, how far it has
copied afterwards. So if size or time of a file have changed although no checkpoint began since, another program wrote
it.

During a checkpoint, times say nothing. So after each checkpoint of this process some of the pages that it copied are
compared with the WAL, and some of those that the previous one copied with their content then: a copy over the file
would have put older pages in their place.

The descriptors used here are SQLite's own. One more of the same file could never be closed while the database is open:
closing it would drop the locks of the whole process.
"""

from __future__ import annotations

import os
import struct
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, NoReturn, TypeVar
from zlib import crc32

import apsw

from holdfast.errors import StoreCorrupt, StoreError, StoreReplaced
from holdfast.system import fcntl

T = TypeVar("T")

_UNKNOWN = -1
_SHARED = struct.Struct("=14xHII8x8s56xI28xI")
"""Page size, frames of the WAL, pages of the database, salts, frames copied, frames that a checkpoint meant to copy."""


_WAL_HEADER, _FRAME_HEADER = 32, 24
_BLOCK_SIZE, _IN_BLOCK, _LESS_IN_FIRST = 32_768, 4096, 34
"""Of the shared memory: the size of a block, the pages it lists, and how many fewer fit beside the header."""
_PATIENCE = 5.0
_MOST_FRAMES = 10_000
_SAMPLE = 20
"""How many pages of each checkpoint are compared."""


class _Shared(NamedTuple):
    """What the shared memory says."""

    page_size: int
    frames: int
    pages: int
    salts: bytes
    copied: int
    wanted: int

    @property
    def checkpoint(self) -> tuple[bytes, int, int]:
        """What is different as soon as a checkpoint begins, and again when it has ended."""
        return self.salts, self.copied, self.wanted

    @property
    def at_rest(self) -> bool:
        """Whether no checkpoint is under way, nor was one given up half way."""
        return self.copied == self.wanted


class FileWatch:
    """What an open store knows of its file. May be used from any thread.

    Args:
        path: the database.
        opened: what it was when the first connection was opened; that connection is in use by now.
    """

    def __init__(self, path: str, opened: os.stat_result) -> None:
        self.path = path
        self.stat = opened
        self.verdict: StoreError | None = None
        """What was found to be wrong; it never becomes right again."""
        self._lock = threading.Lock()
        self._copying = threading.Lock()
        self._writing = False
        """Whether a checkpoint of this process is under way."""
        self._known = {"": _identity(opened)} | {part: _identity(os.stat(path + part)) for part in ("-wal", "-shm")}
        self._file: int | str = _UNKNOWN
        self._shared = _UNKNOWN
        self._changed = self._links = self._size = self._written = _UNKNOWN
        """The file as it was when nothing was wrong with it and no checkpoint was under way."""
        self._checkpoint: tuple[bytes, int, int] | None = None
        """What the shared memory said of checkpoints then."""
        self.unsure = True
        """Whether a closer look is worth its price before the next commit as well."""
        self._recent: list[int] = []
        """Some pages that the last checkpoint of this process copied, or at the end: in an older copy they differ."""
        self.check()
        self._find_descriptors()
        self.verify()
        shared = self._shared_memory()
        if shared is not None:
            pages = range(1, self._size // shared.page_size + 1 if shared.page_size else 1)
            self._recent = [*_some(pages, _SAMPLE), *pages[-_SAMPLE:]]

    def refuse(self) -> None:
        """Raise what was found to be wrong, if anything ever was."""
        if self.verdict is not None:
            raise type(self.verdict)(str(self.verdict))

    def check(self) -> None:
        """Look whether the path still names what was opened, the files beside it included.

        Raises:
            StoreReplaced: it does not; nothing may be written or acknowledged any more.
        """
        self.refuse()
        for part, known in self._known.items():
            try:
                found = os.stat(self.path + part)
            except OSError as error:
                self._condemn(f"{self.path}{part} is gone ({error.strerror})")
            if _identity(found) != known:
                self._condemn(f"another file was put in the place of {self.path}{part}", mixed=bool(part))

    def verify(self) -> None:
        """Look whether the file is as SQLite left it. Between two checkpoints this is one call of the system.

        Raises:
            StoreReplaced: it is not; nothing may be written or acknowledged any more.
        """
        try:
            now = os.stat(self._file)
        except OSError:
            self.suspect()
            return
        if (
            self.unsure or now.st_ctime_ns != self._changed or now.st_size != self._size or now.st_nlink != self._links
        ) and not self._look_closer():
            self.suspect()

    def checkpoint(self, copy: Callable[[], T]) -> T:
        """Let `copy` make a checkpoint, and look whether the file has its pages, and has those of the last one still.

        Raises:
            StoreReplaced: it has not; nothing may be written or acknowledged any more.
        """
        with self._copying:
            self.check()
            before = self._shared_memory()
            sums = {number: crc32(page) for number, page in self._pages(self._recent, before).items()}
            self.verify()
            self._writing = True
            try:
                result = copy()
                self._look_closer()  # though the time may not have moved: it does so in steps of some milliseconds
                if before is not None:
                    with self._lock:
                        self._compare(before, sums)
            except apsw.CorruptError:
                self._condemn(f"{self.path} was cut off by another program")
            finally:
                self._writing = False
        return result

    def _compare(self, before: _Shared, sums: Mapping[int, int]) -> None:
        now = self._shared_memory()
        if now is None or not now.at_rest or now.salts != before.salts or now.frames - before.copied > _MOST_FRAMES:
            return
        frames = self._last_frames(before.copied, now)
        if frames is None:
            return
        # A page that was written again meanwhile is left to the next checkpoint.
        sample = _some([number for number, frame in frames.items() if frame < now.copied], _SAMPLE)
        written, copied = self._in_wal({number: frames[number] for number in sample}, now), self._pages(sample, now)
        if written is None:
            return
        stay = [number for number in sums if number not in frames and number <= now.pages]
        left = self._pages(stay, now)
        sound = all(page == written[number] for number, page in copied.items()) and all(
            number in left and crc32(left[number]) == sums[number] for number in stay
        )
        after = self._shared_memory()
        if after is None or after.checkpoint != now.checkpoint:
            return  # another process made a checkpoint meanwhile
        if not sound:
            self._condemn(f"{self.path} was written by another program")
        self._recent = [*copied] or self._recent

    def _last_frames(self, first: int, shared: _Shared) -> dict[int, int] | None:
        """Return the pages that the WAL has from a frame on, each with the frame in which it was written last.

        The shared memory lists the pages of all frames, in blocks of which the first begins with the header.
        """
        numbers = array("I")
        try:
            frame = first
            while frame < shared.frames:
                block, place = divmod(frame + _LESS_IN_FIRST, _IN_BLOCK)
                count = min(shared.frames - frame, _IN_BLOCK - place)
                numbers.frombytes(os.pread(self._shared, 4 * count, _BLOCK_SIZE * block + 4 * place))
                frame += count
        except (OSError, ValueError):
            return None
        if len(numbers) != shared.frames - first or 0 in numbers:  # the list is being made again: no page is 0
            return None
        return dict(zip(numbers, range(first, shared.frames), strict=True))

    def _in_wal(self, frames: Mapping[int, int], shared: _Shared) -> dict[int, bytes] | None:
        """Return what the WAL has of some pages."""
        size = _FRAME_HEADER + shared.page_size
        found = {}
        try:
            with open(self.path + "-wal", "rb", buffering=0) as wal:
                for number, frame in frames.items():
                    data = os.pread(wal.fileno(), size, _WAL_HEADER + size * frame)
                    if len(data) != size or int.from_bytes(data[:4], "big") != number:
                        return None
                    found[number] = data[_FRAME_HEADER:]
        except OSError:
            self.check()
            return None
        return found

    def _pages(self, numbers: Iterable[int], shared: _Shared | None) -> dict[int, bytes]:
        """Return what some pages of the file are; those that are not in it are left out."""
        found: dict[int, bytes] = {}
        if shared is None or not isinstance(self._file, int) or _identity(self._stat()) != self._known[""]:
            return found
        for number in numbers:
            page = os.pread(self._file, shared.page_size, (number - 1) * shared.page_size)
            if len(page) == shared.page_size and number <= shared.pages:
                found[number] = page
        return found

    def suspect(self) -> None:
        """Look whether something is wrong with the file after a checkpoint of this process that may be under way.

        Raises:
            StoreReplaced: it is; nothing may be written or acknowledged any more.
        """
        if self._copying.acquire(timeout=_PATIENCE):
            self._copying.release()
        self._look_closer()

    def malformed(self, error: Exception) -> NoReturn:
        """Take note that SQLite cannot make sense of the file.

        Raises:
            StoreReplaced: it is shorter than it was, or no database any more, which it was when it was opened.
            StoreCorrupt: in any other case; nothing may be written or acknowledged any more.
        """
        if isinstance(error, apsw.NotADBError) or self._stat().st_size < self._size:
            self._condemn(f"{self.path} was written by another program")
        self.verdict = StoreCorrupt(
            f"{self.path}: the database is damaged ({error}); nothing is acknowledged any more. Stop all engines that "
            "use it, look at it with PRAGMA integrity_check, and restore a backup: holdfast restore"
        )
        raise type(self.verdict)(str(self.verdict)) from error

    def _look_closer(self) -> bool:
        """Judge what the file is; False if that can only be done after the checkpoint of this process."""
        with self._lock:
            self.check()
            before, now, after = self._shared_memory(), self._stat(), self._shared_memory()
            if before is None or after is None:
                self._settle(now, unsure=False)
                return True
            if not before.at_rest or before.checkpoint != after.checkpoint:
                self._checkpoint, self.unsure = None, True
                return not (self._writing and now.st_size < self._size)
            known, self._checkpoint = self._checkpoint, before.checkpoint
            if known == before.checkpoint and (now.st_size, now.st_mtime_ns) != (self._size, self._written):
                self._condemn(f"{self.path} was written by another program")
            if before == after and before.copied == before.frames and now.st_size < before.pages * before.page_size:
                self._condemn(f"{self.path} was cut off by another program")
            # Once all of the WAL was copied, the next commit may begin it again, which looks like a checkpoint.
            self._settle(now, unsure=after.copied >= after.frames)
            return True

    def _settle(self, now: os.stat_result, unsure: bool) -> None:
        self._size, self._written = now.st_size, now.st_mtime_ns
        self._changed, self._links = now.st_ctime_ns, now.st_nlink
        self.unsure = unsure

    def _stat(self) -> os.stat_result:
        """Return what the file is now; a descriptor that was closed and given to another file is looked for again."""
        try:
            now = os.stat(self._file)
        except OSError:
            now = None
        if now is None or _identity(now) != self._known[""]:
            self._find_descriptors()
            now = os.stat(self._file)
        return now

    def _shared_memory(self) -> _Shared | None:
        """Return what the shared memory says, or None where SQLite's descriptor of it cannot be found."""
        for _ in range(2):
            if self._shared == _UNKNOWN:
                return None
            try:
                if _identity(os.fstat(self._shared)) == self._known["-shm"]:
                    return _Shared._make(_SHARED.unpack(os.pread(self._shared, _SHARED.size, 0)))
            except (OSError, struct.error):
                pass
            self._find_descriptors()
        return None

    def _find_descriptors(self) -> None:
        """Find SQLite's own descriptors of the files; where that cannot be done, at least the path is watched."""
        self._file = _descriptor(self._known[""], self.path)
        shared = _descriptor(self._known["-shm"], "")
        self._shared = shared if isinstance(shared, int) else _UNKNOWN

    def _condemn(self, what: str, mixed: bool = True) -> NoReturn:
        during = self._writing and mixed
        when = "during a checkpoint, so that both may be mixed in it" if during else "while it was in use"
        self.verdict = StoreReplaced(
            f"{what} {when}; nothing is acknowledged any more. To restore a backup stop all engines that "
            f"use the database, put the backup in its place, remove {self.path}-wal and {self.path}-shm, and start "
            "again; holdfast restore does all of that but the stopping"
        )
        raise type(self.verdict)(str(self.verdict))


def _some(pages: Iterable[int], count: int) -> list[int]:
    """Return some pages from all over the file."""
    numbers = sorted(pages)
    return numbers[:: max(1, len(numbers) // count)]


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _descriptor(wanted: tuple[int, int], otherwise: str) -> int | str:
    """Return a descriptor of this process that can write a file, which therefore is SQLite's."""
    try:
        numbers = sorted(map(int, os.listdir("/dev/fd")))
    except (OSError, ValueError):
        return otherwise
    for number in numbers:
        try:
            if _identity(os.fstat(number)) == wanted and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR:
                return number
        except OSError:
            continue  # the descriptor of the listing itself, or one that was closed meanwhile
    return otherwise
