"""Keys of a run's own key space: a byte for the format, one for the family, then what it is about.

| family | key after the two bytes | value |
|---|---|---|
| `r` the run | `about`, `input`, `state`, `output`, `error`, `epoch`, `attributes` | JSON |
| `e` history | location, a zero byte, the seq of the entry in 8 bytes | JSON array: kind, instant, fields |
| `m` messages | instant and a random number, 8 bytes each | JSON |
| `s` ids of messages that were delivered | digest of the id | the instant |
| `k` results under idempotency keys | digest of activity and key | JSON |
| `v` audit trail, `l` dead letters | number in 8 bytes | JSON |
| `a` answers to requests | id of the message that asked | JSON |

A location is text that sorts by bytes (`replay/location.py`), so what belongs to an iteration of a loop is one range. A
value that is longer than the driver takes goes on under the same key and a byte 255 with the number of the part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from hashlib import blake2b

from holdfast.errors import NotOurDatabase, SchemaTooNew

FORMAT = b"\x01"
RUN, ENTRY, MESSAGE, SEEN, RESULT, TRAIL, LETTER, ANSWER = (
    FORMAT + family for family in (b"r", b"e", b"m", b"s", b"k", b"v", b"l", b"a")
)
ABOUT, INPUT, STATE, OUTPUT, ERROR, EPOCH, ATTRIBUTES = (
    RUN + name for name in (b"about", b"input", b"state", b"output", b"error", b"epoch", b"attributes")
)
_FAMILIES = frozenset((RUN, ENTRY, MESSAGE, SEEN, RESULT, TRAIL, LETTER, ANSWER))
_NUMBER = struct.Struct(">Q")
_PART = struct.Struct(">BH")
_NOT_OURS = "use a key space of its own for each run"


def entry_key(location: str, seq: int) -> bytes:
    """Return the key of an entry."""
    return ENTRY + location.encode() + b"\0" + _NUMBER.pack(seq)


def entry_of(key: bytes) -> tuple[str, int]:
    """Return location and seq of the key of an entry."""
    location, _, seq = key[2:].partition(b"\0")
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
    """Return what to put for a value: itself, or its parts."""
    if len(value) <= longest:
        return {key: value}
    found = {key: value[:longest]}
    for place, start in enumerate(range(longest, len(value), longest), 1):
        found[key + _PART.pack(255, place)] = value[start : start + longest]
    return found


def joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Return the values by their keys, those that were put in parts put together.

    Raises:
        SchemaTooNew: a newer holdfast wrote a key.
        NotOurDatabase: a key is not one of a run's key space.
    """
    found: dict[bytes, bytes] = {}
    for key, value in pairs:
        if key[:2] not in _FAMILIES:
            _refuse(key)
        length = _own_length(key)
        if length is None or length >= len(key):
            found[key] = value
        elif key[:length] in found and _PART.unpack(key[length:])[0] == 255:
            found[key[:length]] += value
        else:
            _refuse(key)
    return found


def part_keys(pairs: Iterable[tuple[bytes, bytes]]) -> Mapping[bytes, list[bytes]]:
    """Return the keys of the parts that follow a key, by that key."""
    found: dict[bytes, list[bytes]] = {}
    for key, _ in pairs:
        length = _own_length(key)
        if length is not None and length < len(key):
            found.setdefault(key[:length], []).append(key)
    return found


def _own_length(key: bytes) -> int | None:
    """Return how long a key of its family is without the number of a part."""
    family = key[:2]
    if family == ENTRY:
        return key.find(b"\0", 2) + 9
    if family == RUN:
        end = key.find(b"\xff", 2)
        return len(key) if end < 0 else end
    return 2 + (8 if family in (TRAIL, LETTER) else 16)


def _refuse(key: bytes) -> None:
    if key[:1] > FORMAT and key[:1] < b" " and key[1:2].isalpha():
        raise SchemaTooNew(f"key {key[:40]!r} is of format {key[0]}, which a newer holdfast wrote; upgrade this one")
    raise NotOurDatabase(f"key {key[:40]!r} is not one of a run; {_NOT_OURS}")
