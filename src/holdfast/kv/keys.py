"""Keys of a run's own key space: a byte for the format, one for the family, then the subject.

| family | key after the two bytes | value |
|---|---|---|
| `r` the run | `about`, `input`, `state`, `output`, `error`, `epoch`, `attributes` | JSON |
| `r` for a while | `renewed`: another life has begun; the history is that of the last | JSON: its first entries |
| `e` history | location, a zero byte, the seq of the entry in 8 bytes | JSON array: kind, instant, fields |
| `m` messages | instant and a random number, 8 bytes each | JSON |
| `s` ids of messages that were delivered | digest of the id | the instant |
| `k` results under idempotency keys | digest of activity and key | JSON |
| `v` audit trail, `l` dead letters | number in 8 bytes | JSON |
| `a` answers to requests | digest of the id of the message that asked | JSON |

A location is text that sorts by bytes (`replay/location.py`), so the entries of an iteration of a loop are one range. A
value that is too long for the driver continues under the same key and a byte 255 with the number of the part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import NoReturn

from holdfast.errors import NotOurDatabase, PayloadTooLarge, SchemaTooNew, StoreCorrupt

FORMAT = b"\x01"
RUN, ENTRY, MESSAGE, SEEN, RESULT, TRAIL, LETTER, ANSWER = (
    FORMAT + family for family in (b"r", b"e", b"m", b"s", b"k", b"v", b"l", b"a")
)
ABOUT, INPUT, STATE, OUTPUT, ERROR, EPOCH, ATTRIBUTES, RENEWED = (
    RUN + name for name in (b"about", b"input", b"state", b"output", b"error", b"epoch", b"attributes", b"renewed")
)
_RUN = frozenset((ABOUT, INPUT, STATE, OUTPUT, ERROR, EPOCH, ATTRIBUTES, RENEWED))
_LENGTHS = {**dict.fromkeys((MESSAGE, SEEN, RESULT, ANSWER), 2 + 16), **dict.fromkeys((TRAIL, LETTER), 2 + 8)}
_NUMBER = struct.Struct(">Q")
_PART = struct.Struct(">BH")
_MOST_PARTS = 65_536
WAY_OUT = "restore the key space from a backup"
_NOT_OURS = "use a key space of its own for each run"


def entry_key(location: str, seq: int) -> bytes:
    """Return the key of an entry."""
    return ENTRY + location.encode() + b"\0" + _NUMBER.pack(seq)


def entry_of(key: bytes) -> tuple[str, int]:
    """Return location and seq of the key of an entry."""
    location, _, seq = key[2:].partition(b"\0")
    if not location.isascii():
        _refuse(key)
    return location.decode(), _NUMBER.unpack(seq)[0]


def message_key(stamp: int, noise: int) -> bytes:
    """Return the key of a message: they are taken in the order of their stamps."""
    return MESSAGE + _NUMBER.pack(stamp) + _NUMBER.pack(noise)


def stamp_of(key: bytes) -> int:
    """Return the stamp of a message."""
    stamp: int = _NUMBER.unpack_from(key, 2)[0]
    return stamp


def seen_key(message_id: str) -> bytes:
    """Return the key under which it is remembered that a message was delivered."""
    return SEEN + blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def result_key(activity: str, key: str) -> bytes:
    """Return the key of what a step left under its idempotency key."""
    return RESULT + blake2b(f"{len(activity)}:{activity}{key}".encode(), digest_size=16).digest()


def answer_key(message_id: str) -> bytes:
    """Return the key of the answer to a request."""
    return ANSWER + blake2b(message_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def numbered(family: bytes, number: int) -> bytes:
    """Return the key of one item of a trail or of a list of letters."""
    return family + _NUMBER.pack(number)


def parts(key: bytes, value: bytes, longest: int) -> dict[bytes, bytes]:
    """Return what to put for a value: itself, or its parts.

    Raises:
        PayloadTooLarge: it has too many.
    """
    if len(value) <= longest:
        return {key: value}
    if len(value) > longest * _MOST_PARTS:
        raise PayloadTooLarge(f"a value of {len(value)} bytes, and {_MOST_PARTS} parts of {longest} bytes are the most")
    found = {key: value[:longest]}
    for place, start in enumerate(range(longest, len(value), longest), 1):
        found[key + _PART.pack(255, place)] = value[start : start + longest]
    return found


def joined(pairs: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], dict[bytes, list[bytes]]]:
    """Return the values by their keys, those that were put in parts put together, and the keys of those parts.

    Raises:
        SchemaTooNew: a newer holdfast wrote a key.
        NotOurDatabase: a key is not one of a run's key space.
        StoreCorrupt: a part of a value is missing.
    """
    found: dict[bytes, bytes] = {}
    others: dict[bytes, list[bytes]] = {}
    for key, value in pairs:
        own = _own_length(key)
        if own == len(key):
            found[key] = value
            continue
        if not own or own != len(key) - _PART.size or key[own] != 255:
            _refuse(key)
        owner = key[:own]
        before = others.setdefault(owner, [])
        if owner not in found or _PART.unpack(key[own:])[1] != len(before) + 1:
            raise StoreCorrupt(f"the value of key {owner[:40]!r} is there in part only; {WAY_OUT}")
        found[owner] += value
        before.append(key)
    return found, others


def _own_length(key: bytes) -> int:
    """Return how long a key of its family is without the number of a part, 0 if it is not of the shape of one."""
    family = key[:2]
    if family == ENTRY:
        end = key.find(b"\0", 3)
        return end + 9 if end > 0 else 0
    if family == RUN:
        name, _, _ = key.partition(b"\xff")
        return len(name) if name in _RUN else 0
    return _LENGTHS.get(family, 0)


def _refuse(key: bytes) -> NoReturn:
    if key[:1] > FORMAT and key[:1] < b" " and key[1:2].isalpha():
        raise SchemaTooNew(f"key {key[:40]!r} is of format {key[0]}, which a newer holdfast wrote; upgrade this one")
    raise NotOurDatabase(f"key {key[:40]!r} is not one of a run; {_NOT_OURS}")
