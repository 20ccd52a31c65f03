"""The files of a directory driver: batches in append-only segments, each batch with its number, length and checksum.

A segment is `00000001.log`: a line that says what it is, then batches. A batch is a head of 24 bytes (number, length,
CRC of both and of the body), then the body. Numbers rise by one, across segments too, so a missing batch is noticed. A
*base* begins with a batch that has everything so far, so nothing before it is read any more; other segments continue
the one before them. A batch at the very end that is cut short or does not match its checksum was being written when the
process or the machine stopped: it was never acknowledged, and is dropped. Anywhere else this is damage, which is
refused by name. Zeros at the end are room for later batches, because syncing a file that does not grow takes about half
the time. They are not a batch, because the checksum of one that begins with zeros is not zero.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.errors import SchemaTooNew, StoreCorrupt

BASE = b"holdfast key space 1 base\n"
NEXT = b"holdfast key space 1 next\n"
_ANY = re.compile(rb"holdfast key space (\d+) ")
_HEAD = struct.Struct(">QQQ")
_NAME = re.compile(r"\d{8}\.log")
BEGUN = ".new"
"""How a segment is called while it is written, in place of `.log`."""

Body = tuple[dict[bytes, bytes], list[bytes]]
_decoder = msgspec.msgpack.Decoder(Body)
_encoder = msgspec.msgpack.Encoder()


class WrittenBatch(NamedTuple):
    """What one batch put and deleted."""

    number: int
    puts: dict[bytes, bytes]
    deletes: list[bytes]


class Read(NamedTuple):
    """What a segment has: its whole batches, and where they end in the file."""

    batches: list[WrittenBatch]
    end: int
    torn: bool
    """Whether a batch follows that was not written whole."""


class SegmentsRead(NamedTuple):
    """What the segments of a folder say."""

    batches: list[WrittenBatch]
    segment: int
    """The number of the last segment, 0 if there is none."""
    end: int
    """Where its whole batches end."""
    torn: bool
    superseded: list[Path]
    """Segments before the last base."""


def segment_path(folder: Path, number: int) -> Path:
    """Return the file of a segment."""
    return folder / f"{number:08d}.log"


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the segments of a folder in their order."""
    return [(int(path.stem), path) for path in sorted(folder.iterdir()) if _NAME.fullmatch(path.name)]


def begun(folder: Path) -> list[Path]:
    """Return the segments that a process was writing when it ended: nothing of them was ever read."""
    return [path for path in folder.iterdir() if path.suffix == BEGUN and _NAME.fullmatch(f"{path.stem}.log")]


def read_all(folder: Path) -> SegmentsRead:
    """Return what the segments of a folder say, from the last base on.

    Raises:
        StoreCorrupt: a segment or a batch is missing or damaged, and it is not the very last batch.
        SchemaTooNew: a newer holdfast wrote one.
    """
    found = segments(folder)
    if not found:
        return SegmentsRead([], 0, 0, False, [])
    first = max((place for place, (_, path) in enumerate(found) if _is_base(path)), default=None)
    for _, path in found[first or 0 :]:
        _refuse_newer(path)
    if first is None:
        raise StoreCorrupt(f"{found[0][1]}: the segment before it is lost; {_WAY_OUT}")
    batches: list[WrittenBatch] = []
    follows, part = -1, Read([], 0, False)
    for place in range(first, len(found)):
        number, path = found[place]
        if number != found[first][0] + place - first:
            raise StoreCorrupt(f"{path}: the segment before it is lost; {_WAY_OUT}")
        part = read(path, follows, last=place == len(found) - 1)
        batches += part.batches
        follows = batches[-1].number
    return SegmentsRead(batches, found[-1][0], part.end, part.torn, [path for _, path in found[:first]])


def _is_base(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(BASE)) == BASE


def packed(number: int, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> bytes:
    """Return a batch as it is appended to a segment."""
    body = _encoder.encode((dict(puts), list(deletes)))
    return _HEAD.pack(number, len(body), _checksum(number, body)) + body


def read(path: Path, follows: int, last: bool) -> Read:
    """Return the batches of a segment; `follows` is the number of the batch before it, -1 for a base."""
    data = path.read_bytes()
    base = data.startswith(BASE)
    if not base and not data.startswith(NEXT):
        _refuse_beginning(path, data, last)
        return Read([], 0, True)
    batches: list[WrittenBatch] = []
    at, written = len(BASE), len(data.rstrip(b"\0") if data.endswith(b"\0") else data)
    while at < written or (base and not batches):
        batch, after = _batch_at(data, at)
        if batch is None:
            if last and (batches or not base) and not _any_batch(data, at + 1, follows):
                return Read(batches, at, True)
            raise StoreCorrupt(f"{path}: the batch after number {follows}, at byte {at}, is damaged; {_WAY_OUT}")
        if batch.number != follows + 1 and follows >= 0:
            lost = f"batch {batch.number} follows batch {follows}, and those between are lost"
            raise StoreCorrupt(f"{path}: {lost}; {_WAY_OUT}")
        batches.append(batch)
        follows, at = batch.number, after
    return Read(batches, at, False)


_WAY_OUT = "restore the directory from a backup"


def _refuse_newer(path: Path) -> None:
    with path.open("rb") as file:
        found = _ANY.match(file.read(len(BASE)))
    if found is not None and found[1] != b"1":
        raise SchemaTooNew(f"{path}: is of format {found[1].decode()}, which a newer holdfast wrote; upgrade this one")


def _refuse_beginning(path: Path, data: bytes, last: bool) -> None:
    if not (last and NEXT.startswith(data)):
        raise StoreCorrupt(f"{path}: does not begin as a segment of a key space does; {_WAY_OUT}")


def _batch_at(data: bytes, at: int) -> tuple[WrittenBatch | None, int]:
    if at + _HEAD.size > len(data):
        return None, at
    number, length, checksum = _HEAD.unpack_from(data, at)
    start, end = at + _HEAD.size, at + _HEAD.size + length
    if end > len(data) or _checksum(number, data[start:end]) != checksum:
        return None, at
    puts, deletes = _decoder.decode(data[start:end])
    return WrittenBatch(number, puts, deletes), end


def _any_batch(data: bytes, start: int, follows: int) -> bool:
    """Tell whether a whole batch with a later number stands after a damaged one: then this is no torn end."""
    for at in range(start, len(data) - _HEAD.size + 1):
        number = _HEAD.unpack_from(data, at)[0]
        if follows < number <= follows + 1_000_000 and _batch_at(data, at)[0] is not None:
            return True
    return False


def _checksum(number: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack(">QQ", number, len(body))))
