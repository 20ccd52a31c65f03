"""The key space of one engine: its owner, its contents, and the batches that change it.

| key | value |
|---|---|
| `Ea` | about: the numbers of this format and of the rows' schema |
| `Eo` | the owner: the process that has it open; every batch expects it unchanged |
| `Er` + table + zero byte + digest | a row |
| `Em` + table | the highest number that the table gave out |
| `Ej` + number of a piece (4 bytes) + part (4 bytes) | a piece of a change that is too large for one batch |
| `Ec` | that such a change is complete: the process that finds it applies it |

A value that is too long for the driver continues under the same key and two bytes with the number of the part.
"""

from __future__ import annotations

import functools
import inspect
import os
import secrets
import socket
import struct
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from holdfast.errors import (
    BadInput,
    NotAsExpected,
    NotOurDatabase,
    OutcomeUnknown,
    SchemaTooNew,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreReplaced,
)
from holdfast.kv.driver import Driver, Pair, answer
from holdfast.stores.keyvalue.rows import DIGEST, MARK, ROW, WAY_OUT
from holdfast.stores.sql.files import check_version
from holdfast.system import boot_id, machine, process_began

ABOUT, OWNER, PIECE, COMPLETE = b"Ea", b"Eo", b"Ej", b"Ec"
FORMAT = 1
_OTHERS = frozenset((ABOUT, OWNER, PIECE, COMPLETE, MARK))
_ONE_RUN = b"\x01"
"""How keys of the key space of a single run begin (`kv/keys.py`)."""

_PIECE = struct.Struct(">II")
_PART = struct.Struct(">H")
_MOST_BYTES = 32 << 20
"""How many bytes one batch may have."""

T = TypeVar("T")


class StoredAbout(msgspec.Struct):
    """What a key space says of itself."""

    format: int
    schema: int


class Owner(msgspec.Struct, frozen=True):
    """The process that has a key space open; `token` tells it from every other, whatever its number."""

    host: str
    boot: str
    pid: int
    token: str
    machine: str = ""
    """What tells whether its number means the same process here; unknown of one that an earlier holdfast wrote."""
    began: str = ""
    """What tells it from other processes that have its number."""

    @property
    def place(self) -> tuple[str, str, int, str, str]:
        """What tells the owner's process from every other."""
        return self.host, self.boot, self.pid, self.machine, self.began

    @property
    def is_gone(self) -> bool:
        """Whether the owner's process is known to have ended."""
        return self._is_near and process_is_gone(self.host, self.boot, self.pid, self.began)

    @property
    def is_here(self) -> bool:
        """Whether its process is known to be on this machine and to run."""
        return self.token in _ours or (self._is_near and not self.is_gone)

    @property
    def _is_near(self) -> bool:
        """Whether this process can ask after the owner: containers of one name have each their own numbers."""
        known = self.boot != boot_id() or not self.machine or self.machine == _machine()
        return self.host == socket.gethostname() and known


_machine = functools.cache(machine)
_ours: set[str] = set()
"""The tokens of the key spaces that this process has open."""
_about = msgspec.json.Decoder(StoredAbout)
_owner = msgspec.json.Decoder(Owner)
_piece = msgspec.msgpack.Decoder(tuple[dict[bytes, bytes], list[bytes]])
_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode


class EngineSpace:
    """The key space behind a driver. `found` is what was read last, by whole values."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver = driver
        self.name = name
        self.schema = 0
        """The number of the schema that its rows have, 0 if it is empty."""
        self._mine: bytes | None = None
        self._parts: dict[bytes, int] = {}
        """How many parts the values have that have more than one."""
        self.before_is_gone: bool | None = None
        """Whether the process that had it before is known to have ended; None if none had it."""
        self.waits = False
        """Whether the driver has to be waited for: then the event loop goes on meanwhile."""

    # Reading.

    async def look(self) -> dict[bytes, bytes]:
        """Return all rows and highest numbers, changing nothing.

        Raises:
            SchemaTooNew: a newer holdfast wrote it.
            NotOurDatabase: there are keys of another program, or those of a single run.
        """
        stored = self._checked(await self._list(b""))
        if COMPLETE in stored:
            for puts, deletes in _pieces(stored):
                stored.update(puts)
                for key in deletes:
                    stored.pop(key, None)
        return self._joined(stored)

    async def take(self, fences: bool = True, again: bool = False) -> dict[bytes, bytes]:
        """Make this process the owner and return all rows and highest numbers.

        A process of another machine that may still have it open is fenced, or, unless `fences`, left alone. A change
        that was complete and not made is made first, one that was not complete is forgotten. `again` says that this
        process had it: if another has taken it meanwhile, that is not undone.

        Raises:
            StoreReplaced: another process has taken it meanwhile.
            StoreBusy: another process of this machine, or another store of this one, has it open.
            SchemaTooNew, NotOurDatabase: as `look`.
        """
        stored = self._checked(await self._list(b""))
        before = stored.get(OWNER)
        if before is not None:
            had = self._decoded(_owner, OWNER, before)
            if again and had.place != _this_process().place:
                raise self._fenced()
            self._refuse_owner(had, fences)
            self.before_is_gone = self.driver.exclusive or had.is_gone
        owner = _this_process()
        mine = _json(owner)
        expect = {OWNER: before} if self.driver.compares else None
        try:
            await self._ask(self.driver.batch({OWNER: mine}, (), expect))
        except NotAsExpected as error:
            raise StoreBusy(f"{self.name}: another process opened it at the same moment; try again") from error
        self._mine = mine
        _ours.add(owner.token)
        if before is not None:  # it may have been written until now, by a process that is fenced from now on
            stored = self._checked(await self._list(b""))
        if COMPLETE in stored:
            await self._make(list(_pieces(stored)))
            stored = self._checked(await self._list(b""))
        await self._forget([key for key in stored if key.startswith(PIECE)])
        return self._joined(stored)

    def _refuse_owner(self, owner: Owner, fences: bool) -> None:
        if owner.token in _ours:
            who = "this process"
        elif self.driver.exclusive:
            return
        elif owner.is_here:
            who = f"process {owner.pid} of this machine"
        elif not fences and not owner.is_gone:
            who = f"process {owner.pid} of {owner.host}, as far as is known,"
        else:
            return
        raise StoreBusy(
            f"{self.name}: {who} has it open; one process at a time may have an engine on a key space: ask that one, "
            "through its dashboard for example, or stop it first"
        )

    async def _list(self, prefix: bytes) -> Sequence[Pair]:
        return await self._ask(self.driver.list(prefix))

    async def _ask(self, given: T | Awaitable[T]) -> T:
        self.waits |= inspect.isawaitable(given)
        return await answer(given)

    @property
    def _token(self) -> str:
        return _owner.decode(self._mine).token if self._mine is not None else ""

    def _checked(self, pairs: Sequence[Pair]) -> dict[bytes, bytes]:
        stored = dict(pairs)
        if ABOUT in stored:
            about = self._decoded(_about, ABOUT, stored[ABOUT])
            if about.format > FORMAT:
                raise SchemaTooNew(
                    f"{self.name}: the format of its keys is newer than this holdfast (have {about.format}, know "
                    f"{FORMAT}); upgrade holdfast"
                )
            check_version(about.schema, "sqlite", self.name)
            self.schema = about.schema
        for key in stored:
            if not (key[:2] == ROW and b"\0" in key) and key[:2] not in _OTHERS:
                self._refuse(key)
        if ABOUT not in stored and stored.keys() - {OWNER}:
            self._refuse(min(stored.keys() - {OWNER}))
        return stored

    def _decoded(self, decoder: msgspec.json.Decoder[T], key: bytes, value: bytes) -> T:
        try:
            return decoder.decode(value)
        except ValueError as error:  # also where text is no UTF-8
            raise StoreCorrupt(f"{self.name}: the value of key {key!r} cannot be read: {error}; {WAY_OUT}") from error

    def _refuse(self, key: bytes) -> None:
        if key.startswith(_ONE_RUN):
            raise NotOurDatabase(f"{self.name}: is the key space of a single run, which `drive` continues")
        raise NotOurDatabase(f"{self.name}: key {key[:40]!r} is not one of an engine; use a key space of its own")

    def _joined(self, stored: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return rows and highest numbers by their keys, those that were put in parts put together."""
        self._parts.clear()
        parts: list[bytes] = []
        others: list[bytes] = []
        for key in stored:
            if key[:2] == ROW:
                if len(key) != key.index(b"\0") + 1 + DIGEST:
                    parts.append(key)
            elif key[:2] != MARK:
                others.append(key)
        for key in others:
            del stored[key]
        for key in sorted(parts):
            owner = key[: _own_length(key)]
            part = key[len(owner) :]
            if len(part) != _PART.size or owner not in stored or part != _PART.pack(self._parts.get(owner, 1)):
                raise StoreCorrupt(f"{self.name}: a part of the value of key {owner!r} is missing; {WAY_OUT}")
            stored[owner] += stored.pop(key)
            self._parts[owner] = self._parts.get(owner, 1) + 1
        return stored

    # Writing.

    async def write(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes], schema: int = 0) -> None:
        """Make a change durable, all of it or nothing.

        Raises:
            StoreReplaced: another process is the owner now; nothing was written.
            OutcomeUnknown: it may have been written.
            StoreError: any other: nothing was written.
        """
        parts: dict[bytes, int] = {}
        if self._parts or any(len(value) > self.driver.max_value for value in puts.values()):
            puts, deletes, parts = self._split(puts, deletes)
        if schema:
            puts = {**puts, ABOUT: _json(StoredAbout(FORMAT, schema))}
        if len(puts) + len(deletes) <= self.driver.max_batch and _size(puts) <= _MOST_BYTES:
            await self._batch(puts, deletes)
        else:
            await self._write_large(puts, deletes)
        self.schema = schema or self.schema
        self._parts |= parts

    async def release(self) -> None:
        """Let another process have it."""
        token = self._token
        try:
            if self._mine is not None:
                await self._batch({}, [OWNER])
        finally:
            self._mine = None
            _ours.discard(token)

    def abandon(self) -> None:
        """Be the owner no more, as far as this process is concerned; what is stored stays."""
        _ours.discard(self._token)
        self._mine = None

    async def check_owner(self) -> None:
        """Find out whether this process is still the owner.

        Raises:
            StoreReplaced: it is not.
        """
        if self.driver.compares and await self._ask(self.driver.get(OWNER)) != self._mine:
            raise self._fenced()

    async def _batch(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        if not puts and not deletes:
            return
        try:
            await self._ask(self.driver.batch(puts, deletes, {OWNER: self._mine} if self.driver.compares else None))
        except NotAsExpected as error:
            raise self._fenced() from error

    def _fenced(self) -> StoreReplaced:
        return StoreReplaced(
            f"{self.name}: another process has opened it since, and this one may write no more; one process at a time "
            "may have an engine on a key space"
        )

    def _split(
        self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]
    ) -> tuple[dict[bytes, bytes], list[bytes], dict[bytes, int]]:
        """Return what to put and delete where values are, or were, longer than the driver takes; and their parts."""
        longest = self.driver.max_value
        split: dict[bytes, bytes] = {}
        gone, parts = list(deletes), dict.fromkeys(deletes, 1)
        for key, value in puts.items():
            pieces = [value[start : start + longest] for start in range(0, len(value), longest)]
            split.update((_part_key(key, number), piece) for number, piece in enumerate(pieces))
            parts[key] = len(pieces)
        for key, left in parts.items():
            gone += [_part_key(key, number) for number in range(left, self._parts.get(key, 1))]
        return split, gone, {key: left for key, left in parts.items() if left > 1 or key in self._parts}

    async def _write_large(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes]) -> None:
        """Make a change that is too large for one batch: note all of it, say that it is complete, then make it."""
        await self._forget([key for key, _ in await self._list(PIECE)])
        pieces = list(_cut(puts, deletes, self.driver.max_batch - 1))
        longest = min(self.driver.max_value, _MOST_BYTES)
        for number, piece in enumerate(pieces):
            data = _pack(piece)
            for part, start in enumerate(range(0, len(data), longest)):
                await self._batch({PIECE + _PIECE.pack(number, part): data[start : start + longest]}, ())
        await self._batch({COMPLETE: b"%d" % len(pieces)}, ())
        try:
            await self._make(pieces)
            await self._forget([key for key, _ in await self._list(PIECE)])
        except StoreReplaced:
            raise
        except StoreError as error:
            raise OutcomeUnknown(
                f"{self.name}: a large change is durable and not made yet; it is made when the key space is read again"
            ) from error

    async def _make(self, pieces: Sequence[tuple[Mapping[bytes, bytes], Sequence[bytes]]]) -> None:
        """Make a change that is complete; doing it again changes nothing."""
        for puts, deletes in pieces[:-1]:
            await self._batch(puts, deletes)
        puts, deletes = pieces[-1]
        await self._batch(puts, [*deletes, COMPLETE])

    async def _forget(self, keys: Iterable[bytes]) -> None:
        left = iter(keys)
        while some := list(islice(left, self.driver.max_batch)):
            await self._batch({}, some)


def _this_process() -> Owner:
    pid = os.getpid()
    return Owner(socket.gethostname(), boot_id(), pid, secrets.token_hex(8), _machine(), process_began(pid) or "")


def process_is_gone(host: str, boot: str, pid: int, began: str = "") -> bool:
    """Whether a process that had the key space before this one is known to have ended.

    One of this process's own number was an earlier process, in a container for example, or left the key space.
    """
    if host != socket.gethostname():
        return False
    if boot != boot_id() or pid == os.getpid():
        return True
    now = process_began(pid)
    return now is None or bool(began and now and began != now)


def check_driver(driver: Driver) -> None:
    """Refuse a driver that takes too little to keep an engine's rows.

    Raises:
        BadInput: it says what is too small.
    """
    if driver.max_key < 64 or driver.max_value < 1024 or driver.max_batch < 16:
        raise BadInput(
            f"{type(driver).__name__} takes keys of {driver.max_key} bytes, values of {driver.max_value} and batches "
            f"of {driver.max_batch} keys; an engine needs 64, 1024 and 16"
        )


def _own_length(key: bytes) -> int:
    """Return how long a key is without the number of a part."""
    return len(key) if key.startswith(MARK) else key.index(b"\0") + 1 + DIGEST


def _part_key(key: bytes, number: int) -> bytes:
    return key + _PART.pack(number) if number else key


def _size(puts: Mapping[bytes, bytes]) -> int:
    return sum(map(len, puts.values()))


def _cut(
    puts: Mapping[bytes, bytes], deletes: Collection[bytes], most: int
) -> Iterator[tuple[dict[bytes, bytes], list[bytes]]]:
    """Yield a change in pieces, each small enough for a batch."""
    piece: dict[bytes, bytes] = {}
    size = 0
    for key, value in puts.items():
        if piece and (len(piece) >= most or size + len(value) > _MOST_BYTES):
            yield piece, []
            piece, size = {}, 0
        piece[key] = value
        size += len(value)
    if piece:
        yield piece, []
    left = iter(deletes)
    while some := list(islice(left, most)):
        yield {}, some


def _pieces(stored: Mapping[bytes, bytes]) -> Iterator[tuple[dict[bytes, bytes], list[bytes]]]:
    """Yield the pieces of a change that is complete."""
    data: dict[int, bytes] = {}
    for key in sorted(key for key in stored if key.startswith(PIECE)):
        number = _PIECE.unpack(key[len(PIECE) :])[0]
        data[number] = data.get(number, b"") + stored[key]
    try:
        for number in range(int(stored[COMPLETE])):
            yield _piece.decode(data[number])
    except (KeyError, ValueError) as error:  # DecodeError is a ValueError
        raise StoreCorrupt(f"a large change that is complete cannot be read: {error!r}; {WAY_OUT}") from error
