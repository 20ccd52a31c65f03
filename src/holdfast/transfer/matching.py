"""Runs that stand together in a file: which of them are new, which exist already, and whether they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.clock import Instant, to_datetime
from holdfast.contract.rows import Status
from holdfast.definitions import check_run_id
from holdfast.errors import CannotMove
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, StoredRun, Value
from holdfast.stores.sql.transfer import BY_ID, OF_RUNS, beginning_of, position_of
from holdfast.transfer.tables import LINKED, arrived, comparable, place_of

_PAGE = 500
_STATUSES = frozenset(Status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How an import goes: whether what is here already is left out, who asks for it and why, and when.

    Of a `snapshot` no run goes on by itself.
    """

    skip_existing: bool
    by: str
    reason: str
    now: Instant
    snapshot: bool


class RunGroup:
    """Runs that stand together in a file, with their rows; `fates` says what became of their workers."""

    def __init__(self, db: Statements, terms: Terms, fates: Mapping[str, str]) -> None:
        self._db = db
        self._terms = terms
        self._fates = fates
        self._keys: dict[int, int] = {0: 0}
        self._here: dict[int, int] = {}
        self._ids: dict[str, int] = {}
        self._left: set[int] = set()
        self._sums: dict[int, _Sum] = {}

    @property
    def known(self) -> int:
        """How many of them are here already."""
        return len(self._ids)

    async def begin(self, rows: Sequence[Row]) -> list[StoredRun]:
        """Take in the runs themselves and return those that are new, with keys of their own."""
        runs = [StoredRun(*row) for row in rows]  # type: ignore[arg-type]  # columns as in StoredRun
        ids: list[Row] = [(run.id,) for run in runs]
        here = {str(id): int(key or 0) for id, key in await self._db.read("existing_runs", ids)}
        purged = {str(id): int(until or 0) for id, _, _, until in await self._db.read("existing_tombstones", ids)}
        fresh, last = [], 0
        for run in map(_checked, runs):
            moved = arrived(run, self._fates, self._terms.snapshot)
            if run.id in here:
                self._meet(moved, here[run.id])
            elif purged.get(run.id, 0) > self._terms.now:
                self._meet_tombstone(moved)
            else:
                last = self._keys[run.key] = await self._key(last)
                fresh.append(replace(moved, key=last, parent_key=LINKED if moved.parent_key else None))
        await self._check_unique_keys(fresh)
        return fresh

    async def _key(self, last: int) -> int:
        """Return a key that no run has; the statement answers with the last one given out, as far as it knows."""
        rows = await self._db.read("last_key", [()])
        return max(last, int(rows[0][0] or 0) if rows else 0) + 1

    def _meet(self, run: StoredRun, key: int) -> None:
        self._ids[run.id] = run.key
        self._left.add(run.key)
        if not self._terms.skip_existing:
            self._here[run.key] = key
            self._sums[run.key] = _Sum(run)

    def _meet_tombstone(self, run: StoredRun) -> None:
        self._ids[run.id] = run.key
        self._left.add(run.key)
        if not self._terms.skip_existing:
            raise CannotMove(
                f"run {run.id!r} is in the file ({run.status}), but was in the database before and purged there; "
                "leave such runs out (--skip-existing)"
            )

    async def _check_unique_keys(self, fresh: Sequence[StoredRun]) -> None:
        holders = {
            (run.workflow, run.unique_key): run.id
            for run in fresh
            if run.unique_key and run.ended is None and not run.decided
        }
        for workflow, key, id in await self._db.read("existing_unique", [*holders]) if holders else []:
            raise CannotMove(
                f"run {holders[str(workflow), str(key)]!r} in the file and run {id!r} in the database are both open "
                f"and have the unique key {key!r} of workflow {workflow!r}; let one of them end first"
            )

    def sort(self, table: str, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of new runs, with the keys they have here; those of runs that are here are only compared."""
        fresh = []
        for row in rows:
            if table in BY_ID:
                number = self._ids.get(str(row[place_of(table, "run")]))
            else:
                number = int(row[0] or 0)
                if number in self._keys:
                    fresh.append((self._keys[number], *row[1:]))
                    continue
            if number is None:
                fresh.append(row)
            elif number in self._sums:
                self._sums[number].add(table, row if table in BY_ID else row[1:])
            elif number not in self._left:
                raise CannotMove(f"a row of {table} in the file belongs to no run")
        return fresh

    async def compare(self) -> None:
        """Refuse runs that are here otherwise than in the file, now that all their rows were seen."""
        for number, theirs in self._sums.items():
            mine = await self._sum(self._here[number])
            if mine.total != theirs.total:
                raise CannotMove(
                    f"run {theirs.run.id!r} is in the file ({theirs}) and in the database ({mine}), and they differ; "
                    "leave such runs out (--skip-existing), or import into another database"
                )
        self._sums.clear()

    async def _sum(self, key: int) -> _Sum:
        rows = await self._db.read("export_runs", [(key, key, key - 1, 1)])
        total = _Sum(StoredRun(*rows[0]))  # type: ignore[arg-type]  # columns as in StoredRun
        for table in OF_RUNS:
            position: Row = (key - 1, *beginning_of(table))
            while rows := await self._db.read(f"export_{table}", [(key, key, *position, _PAGE)]):
                own = rows[-1][1:] if table in BY_ID else rows[-1]
                position = (key, *(own[place_of(table, column)] for column in position_of(table)))
                for row in rows:
                    total.add(table, row[1:])
        return total


class _Sum:
    """All rows of one run as one number, whatever their order."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run
        self.total = 0
        self._entries = 0
        self.add("runs", comparable(run))

    def add(self, table: str, row: Sequence[Value]) -> None:
        """Take in a row, without its run's key."""
        if table != "event_cursors":  # these tell how many events are queued, and those are the database's own
            self._entries += table == "entries"
            digest = sha256(msgspec.json.encode((table, *row))).digest()
            self.total = (self.total + int.from_bytes(digest, "big")) % (1 << 256)

    def __str__(self) -> str:
        changed = to_datetime(self.run.updated).isoformat(timespec="seconds")
        return f"{self.run.status}, {self._entries} entries, changed {changed}"


def _checked(run: StoredRun) -> StoredRun:
    check_run_id(run.id)
    if run.status not in _STATUSES:
        raise CannotMove(f"run {run.id!r} has the status {run.status!r}, which this holdfast does not know")
    return run
