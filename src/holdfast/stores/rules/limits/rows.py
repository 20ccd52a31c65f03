"""The rows of limits that one batch has read and will write: limits, their keys, the places that workers have."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from holdfast.clock import Instant
from holdfast.contract.limits import LimitSpec
from holdfast.rates import SKEW
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row

encoded = msgspec.json.Encoder().encode
_instants = msgspec.json.Decoder(list[int]).decode


class LimitRecord(msgspec.Struct):
    """A row of limits."""

    name: str
    spec: str
    override: str | None
    paused: int
    used: int
    granted: int
    waiting: int
    last: int
    stale: int
    """Whether turns may be given that could not be given when they became free."""

    read: LimitSpec | None = None

    @property
    def numbers(self) -> LimitSpec:
        """The numbers in force: an operator's come first."""
        if self.read is None:
            self.read = spec_of(self.override if self.override is not None else self.spec)
        return self.read


class KeyRecord(msgspec.Struct):
    """A row of limit_keys."""

    name: str
    key: str
    used: int = 0
    granted: int = 0
    waiting: int = 0
    ready: int = 0
    """Whether its first waiter may be given its turn as far as the key is concerned."""
    head_priority: int | None = None
    head: int | None = None
    """The number of its first waiter."""
    invited: Instant | None = None
    """From when its first waiter may begin, if that was told."""
    begins: str = ""
    held_until: Instant = 0
    failures: int = 0
    open_until: Instant | None = None
    """Until when nothing begins because too many failed in a row; after that one at a time."""
    probe: str = ""
    """The worker whose attempt tries whether the service is back."""
    idle: Instant = 0
    """From when its row is of no use, if nothing uses it."""
    at: Instant = 0
    """When the last of these instants was written."""

    def seen(self, now: Instant, skew: int = SKEW) -> None:
        """Note the time; what was written in another boot of the machine is as far away as it was then."""
        if self.at > now + skew:
            moved = now - self.at
            self.begins = encoded([begin + moved for begin in self.instants]).decode() if self.begins else ""
            self.held_until = max(self.held_until + moved, 0)
            self.idle = max(self.idle + moved, 0)
            self.open_until = self.open_until + moved if self.open_until is not None else None
            self.at = now

    @property
    def instants(self) -> list[Instant]:
        """The last begins."""
        return _instants(self.begins) if self.begins else []


class Waiter(msgspec.Struct):
    """A row of limit_waiters."""

    run: int
    location: str
    name: str
    key: str
    priority: int
    n: int
    since: Instant
    granted: Instant | None
    place: int
    """Whether a place is reserved for it."""
    task: int
    """Whether it is an attempt in a queue."""


class LimitRows:
    """What a batch has read of limits."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self.limits: dict[str, LimitRecord | None] = {}
        self.keys: dict[tuple[str, str], KeyRecord] = {}
        self.counts: dict[tuple[str, str, str], int] = {}
        self.changed_limits: dict[str, LimitRecord] = {}
        self.changed_keys: dict[tuple[str, str], KeyRecord] = {}
        self.changed_counts: dict[tuple[str, str, str], None] = {}
        self._stored: dict[object, object] = {}
        """Rows as they are in the database, to write only what changed."""

    # Reading.

    def know(self, wanted: Iterable[Row], rows: Iterable[Row]) -> None:
        """Take in limits with their keys and counts, read before they were asked for; there are no others."""
        for row in rows:
            name, key, worker = str(row[0]), str(row[1]), str(row[2])
            if self.limits.get(name) is None:
                limit = self.limits[name] = LimitRecord(name, *row[3:11])  # type: ignore[arg-type]  # columns as in LimitRecord
                self._stored[name] = _counters(limit)
            if (name, key) not in self.keys:
                if row[11] is not None:
                    self.adopt((name, key, *row[11:25]))
                else:
                    self.keys[name, key] = KeyRecord(name, key)
            if (name, key, worker) not in self.counts:
                self.counts[name, key, worker] = self._stored[name, key, worker] = int(row[25] or 0)
        for row in wanted:
            self.limits.setdefault(str(row[0]), None)

    def adopt(self, row: Row) -> KeyRecord:
        """Return the key of a row that was read, as this batch has it."""
        which = str(row[0]), str(row[1])
        if which not in self.keys:
            key = self.keys[which] = KeyRecord(*row)  # type: ignore[arg-type]  # columns as in KeyRecord
            self._stored[which] = _row_of(key)[:-1]
        return self.keys[which]

    async def get(self, name: str, key: str, worker: str) -> tuple[LimitRecord, KeyRecord] | None:
        if (name, key, worker) not in self.counts and (name not in self.limits or self.limits[name] is not None):
            which: list[Row] = [(name, key, worker)]
            self.know(which, await self._statements.read("get_limit", which))
        limit = self.limits[name]
        return (limit, self.keys[name, key]) if limit is not None else None

    # Writing.

    def pending(self) -> list[tuple[str, list[Row]]]:
        """Return what is to be written, by statement."""
        if not self.changed_limits and not self.changed_counts:
            return []
        limits: list[Row] = []
        kept: list[Row] = []
        gone: list[Row] = []
        for name, limit in self.changed_limits.items():
            if self._differs(name, row := _counters(limit)):
                limits.append((name, *row))
        for which, key in self.changed_keys.items():
            row = _row_of(key)
            if key.used or key.granted or key.waiting or key.idle or key.open_until is not None:
                if self._differs(which, row[:-1]):
                    kept.append(row)
            elif self._stored.pop(which, None) is not None:
                gone.append(which)
        counts = [(which, self.counts[which]) for which in self.changed_counts]
        changed = [(which, count) for which, count in counts if self._differs(which, count)]
        self.changed_limits, self.changed_keys, self.changed_counts = {}, {}, {}
        return [
            ("put_limits", limits),
            ("put_limit_keys", kept),
            ("delete_limit_keys", gone),
            ("put_limit_counts", [(*which, count) for which, count in changed if count]),
            ("delete_limit_counts", [which for which, count in changed if not count]),
        ]

    def forget_idle(self, now: Instant) -> None:
        """Forget keys that were deleted because nothing of them matters any more."""
        for which, key in self.keys.items():
            if not (key.used or key.granted or key.waiting) and key.idle <= now:
                self.keys[which] = KeyRecord(*which)
                self._stored.pop(which, None)

    def _differs(self, which: object, row: object) -> bool:
        """Tell whether a row is not in the database as it is now; from now on it is."""
        if self._stored.get(which) == row:
            return False
        self._stored[which] = row
        return True

    async def write(self) -> None:
        """Write what changed so far, before rows are looked for."""
        for statement, rows in self.pending():
            if rows:
                await self._statements.write(statement, rows)


@lru_cache(maxsize=256)
def spec_of(text: str) -> LimitSpec:
    """Return the numbers of a limit from their JSON."""
    return msgspec.json.decode(text, type=LimitSpec)


def _counters(limit: LimitRecord) -> Row:
    return limit.used, limit.granted, limit.waiting, limit.last, limit.stale


def _row_of(key: KeyRecord) -> Row:
    return (
        key.name, key.key, key.used, key.granted, key.waiting, key.ready, key.head_priority, key.head, key.invited,
        key.begins, key.held_until, key.failures, key.open_until, key.probe, key.idle, key.at,
    )  # fmt: skip
