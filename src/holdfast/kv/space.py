"""The key space of one run in memory: what is stored, and the batches that change it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeVar

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow
from holdfast.errors import StoreCorrupt
from holdfast.kv import keys
from holdfast.kv.driver import Driver, answer, check_sizes
from holdfast.kv.standing import About, StoredMessage, StoredResult, StoredState, encoded

_about = msgspec.json.Decoder(About)
_state = msgspec.json.Decoder(StoredState)
_message = msgspec.json.Decoder(StoredMessage)
_result = msgspec.json.Decoder(StoredResult)
_entry = msgspec.json.Decoder(tuple[int, int, msgspec.Raw])
_number = msgspec.json.Decoder(int)
_rows = msgspec.json.Decoder(list[EntryRow])
T = TypeVar("T")


def read_value(decoder: msgspec.json.Decoder[T], key: bytes, value: bytes) -> T:
    """Return what a key holds.

    Raises:
        StoreCorrupt: it cannot be read.
    """
    try:
        return decoder.decode(value)
    except ValueError as error:  # also where text is no UTF-8
        raise StoreCorrupt(f"the value of key {key[:40]!r} cannot be read: {error}; {keys.WAY_OUT}") from error


def read_text(key: bytes, value: bytes | msgspec.Raw) -> str:
    """Return text that a key holds.

    Raises:
        StoreCorrupt: it is none.
    """
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise StoreCorrupt(f"the value of key {key[:40]!r} cannot be read: {error}; {keys.WAY_OUT}") from error


def read_number(key: bytes, value: bytes) -> int:
    """Return the number that a key holds.

    Raises:
        StoreCorrupt: it is none.
    """
    return read_value(_number, key, value)


def read_state(stored: bytes | None) -> StoredState | None:
    """Return where a run stands.

    Raises:
        StoreCorrupt: it cannot be read.
    """
    return read_value(_state, keys.STATE, stored) if stored is not None else None


async def stored_value(driver: Driver, key: bytes) -> bytes | None:
    """Return the value of a key with all its parts, None if there is none.

    Raises:
        StoreCorrupt: a part is missing.
    """
    return keys.joined(await answer(driver.list(key)))[0].get(key)


class Changes:
    """What the next batch puts and deletes."""

    __slots__ = ("deletes", "puts")

    def __init__(self) -> None:
        self.puts: dict[bytes, bytes] = {}
        self.deletes: set[bytes] = set()

    def put(self, key: bytes, value: bytes) -> None:
        """Put a key."""
        self.puts[key] = value
        self.deletes.discard(key)

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.puts.pop(key, None)
        self.deletes.add(key)

    def __bool__(self) -> bool:
        return bool(self.puts or self.deletes)


class Space:
    """The key space of one run: read once, then written through."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.stored: dict[bytes, bytes] = {}
        """All keys but those of the history, with their values."""
        self.history: dict[str, list[int]] = {}
        """The seqs of the entries that are stored, by location."""
        self.epoch = 0
        """How many batches of drivers there were: each expects what the one before it left."""
        self._parts: dict[bytes, list[bytes]] = {}

    async def load(self) -> list[EntryRow]:
        """Read everything, and return the history in order of seq.

        Raises:
            SchemaTooNew: a newer holdfast wrote it.
            NotOurDatabase: there are keys of another program.
            StoreCorrupt: a value cannot be read.
        """
        found, self._parts = keys.joined(await answer(self.driver.list(b"")))
        rows: list[EntryRow] = []
        for key, value in found.items():
            if key.startswith(keys.ENTRY):
                location, seq = keys.entry_of(key)
                kind, at, data = read_value(_entry, key, value)
                rows.append(EntryRow(location, seq, kind, at, read_text(key, data)))
                self.history.setdefault(location, []).append(seq)
            else:
                self.stored[key] = value
        rows.sort(key=attrgetter("seq"))
        if keys.RENEWED in self.stored:
            rows = read_value(_rows, keys.RENEWED, self.stored[keys.RENEWED])
        self.epoch = read_number(keys.EPOCH, self.stored.get(keys.EPOCH, b"0"))
        if rows and keys.ABOUT not in self.stored:
            raise StoreCorrupt(f"the key space has a history and does not say of which run; {keys.WAY_OUT}")
        if keys.ABOUT in self.stored and keys.INPUT not in self.stored:
            raise StoreCorrupt(f"the key space has a run and not its input; {keys.WAY_OUT}")
        return rows

    @property
    def about(self) -> About | None:
        """What is known of the run from its beginning, None if it has not begun."""
        stored = self.stored.get(keys.ABOUT)
        return read_value(_about, keys.ABOUT, stored) if stored is not None else None

    @property
    def state(self) -> StoredState | None:
        """Where the run stands."""
        return read_state(self.stored.get(keys.STATE))

    def messages(self) -> list[tuple[bytes, StoredMessage]]:
        """Return what was delivered and not taken, in order."""
        return [(key, read_value(_message, key, value)) for key, value in self._family(keys.MESSAGE)]

    async def new_messages(self) -> list[tuple[bytes, StoredMessage]]:
        """Return what was delivered since the space was read."""
        found, parts = keys.joined(await answer(self.driver.list(keys.MESSAGE)))
        fresh = {key: value for key, value in found.items() if key not in self.stored}
        self.stored.update(fresh)
        self._parts.update(parts)
        return [(key, read_value(_message, key, value)) for key, value in sorted(fresh.items())]

    async def is_taken(self) -> bool:
        """Tell whether another driver has written since."""
        return self.driver.compares and await answer(self.driver.get(keys.EPOCH)) != self.stored.get(keys.EPOCH)

    def result(self, key: bytes, now: Instant) -> StoredResult | None:
        """Return what a step left under an idempotency key, unless it has expired."""
        stored = self.stored.get(key)
        result = read_value(_result, key, stored) if stored is not None else None
        return result if result is not None and result.expires > now else None

    def count(self, family: bytes) -> int:
        """Return how many items a family has."""
        return len(self._family(family))

    def last(self, family: bytes) -> bytes | None:
        """Return the value of the last item of a family."""
        items = self._family(family)
        return items[-1][1] if items else None

    def _family(self, family: bytes) -> list[tuple[bytes, bytes]]:
        return sorted((key, value) for key, value in self.stored.items() if key.startswith(family))

    # Writing.

    def record(self, changes: Changes, rows: Iterable[EntryRow]) -> None:
        """Put entries."""
        for row in rows:
            changes.put(keys.entry_key(row.location, row.seq), f"[{row.kind},{row.at},{row.data}]".encode())
            self.history.setdefault(row.location, []).append(row.seq)

    def trim(self, changes: Changes, first: str, end: str) -> None:
        """Delete the entries from one location up to another."""
        for location in [location for location in self.history if first <= location < end]:
            self._forget(changes, location)

    def renew(self, changes: Changes, first: Sequence[EntryRow]) -> None:
        """Replace the history by the first entries of the next life; by more batches than this one if it is long."""
        if sum(map(len, self.history.values())) + len(changes.puts) > self.driver.max_batch // 2:
            changes.put(keys.RENEWED, encoded(first))
            return
        for location in list(self.history):
            self._forget(changes, location)
        self.record(changes, first)

    async def finish_renewal(self) -> int:
        """Delete what there still is of the life before this one, if there is; return how many keys."""
        if keys.RENEWED not in self.stored:
            return 0
        first, deleted, changes = read_value(_rows, keys.RENEWED, self.stored[keys.RENEWED]), 0, Changes()
        for location, seqs in list(self.history.items()):
            for seq in seqs:
                self.delete(changes, keys.entry_key(location, seq))
                if len(changes.deletes) >= self.driver.max_batch // 2:
                    deleted += len(changes.deletes)
                    await self.commit(changes)
                    changes = Changes()
        deleted += len(changes.deletes)
        self.history.clear()
        self.record(changes, first)
        self.delete(changes, keys.RENEWED)
        await self.commit(changes)
        return deleted

    def _forget(self, changes: Changes, location: str) -> None:
        for seq in self.history.pop(location):
            self.delete(changes, keys.entry_key(location, seq))

    def delete(self, changes: Changes, key: bytes) -> None:
        """Delete a key with all its parts."""
        changes.delete(key)
        for part in self._parts.pop(key, ()):
            changes.delete(part)

    def set_state(self, changes: Changes, state: StoredState) -> None:
        """Put where the run stands, unless that is stored."""
        value = encoded(state)
        if self.stored.get(keys.STATE) != value:
            changes.put(keys.STATE, value)

    async def commit(self, changes: Changes) -> None:
        """Make changes durable, as the driver that has the run.

        Each batch raises the epoch that it expects. So one that comes late, its answer long given up, is refused after
        any other; and a driver that read the space before it came is refused after it.

        Raises:
            NotAsExpected: another driver has the run now.
            StoreError: as `Driver.batch` does.
        """
        if not changes:
            return
        driver, expect = self.driver, None
        if driver.compares:
            expect = {keys.EPOCH: self.stored.get(keys.EPOCH)}
            changes.put(keys.EPOCH, b"%d" % (self.epoch + 1))
        puts: dict[bytes, bytes] = {}
        for key, value in changes.puts.items():
            split = keys.parts(key, value, driver.max_value)
            puts.update(split)
            changes.deletes.update(self._parts.pop(key, ()))
            if len(split) > 1:
                self._parts[key] = [part for part in split if part != key]
        changes.deletes.difference_update(puts)
        check_sizes(driver, puts, changes.deletes)
        await answer(driver.batch(puts, changes.deletes, expect))
        self.epoch += driver.compares
        for key in changes.deletes:
            self.stored.pop(key, None)
        self.stored.update((key, value) for key, value in changes.puts.items() if not key.startswith(keys.ENTRY))
