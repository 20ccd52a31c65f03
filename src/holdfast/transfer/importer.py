"""Import: the rows of a checked file, written in one transaction: all of them or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import astuple

from holdfast.chains import chained
from holdfast.errors import CannotMove
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import TABLES, Row, Value
from holdfast.stores.sql.transfer import OF_RUNS
from holdfast.transfer.blocks import Blocks
from holdfast.transfer.file import Footer, Header, Reader
from holdfast.transfer.matching import RunGroup, Terms
from holdfast.transfer.tables import lost_with, place_of

_ROWS, _BYTES = 500, 1 << 20
"""How much of a table is written at a time."""

_MOST_RUNS = 10_000
"""How many runs may stand together in a file."""

_NO_WORKER = "import"
"""The owner of the tasks of a snapshot, until it is recorded that no worker runs them."""

# What must not be there twice: what it is called, and the columns in which the two may differ.
_UNIQUE: dict[str, tuple[str, frozenset[str]]] = {
    "replies": ("the answer to request", frozenset({"run"})),
    "idempotency_keys": ("idempotency key", frozenset({"run", "waiting"})),
    "dead_letters": ("dead letter", frozenset()),
    "evidence": ("the evidence of run", frozenset()),
    "tombstones": ("the id of a purged run,", frozenset()),
    "schedules": ("schedule", frozenset()),
}


class Import:
    """One file on its way into one transaction."""

    def __init__(self, db: Statements, terms: Terms, progress: Callable[[int, int], None]) -> None:
        self._db = db
        self._terms = terms
        self._progress = progress
        self._fates: dict[str, str] = {}
        self._group = RunGroup(db, terms, self._fates)
        self._owners: set[str] = set()
        self._linked = False
        self._trail = (0, "")
        self._first = True
        self._previous = ""
        self._forked: Value = ""
        self._blocks = {"runs": Blocks(), "audit": Blocks()}
        self.runs = self.skipped = self.open = 0
        self.rows: Counter[str] = Counter()

    async def write(self, reader: Reader, header: Header, footer: Footer) -> None:
        """Write everything.

        Raises:
            CannotMove: something is in the way; the transaction must not be committed.
        """
        db = self._db
        self._trail = next(((int(n or 0), str(end)) for n, end in await db.read("last_audit", [()])), (0, ""))
        self._first = not self._trail[0]
        merging = bool(await db.read("has_events_or_waiters", [()]))
        table, rows, size = "", list[Row](), 0
        for name, row in reader.rows(footer.sha256):
            full = len(rows) >= _ROWS or size >= _BYTES
            if name != table or (full and table != "runs"):
                await self._take(table, rows)
                table, rows, size = name, [], 0
            elif len(rows) >= _MOST_RUNS:
                raise CannotMove(f"{reader.path}: too many runs stand together in the file")
            rows.append(row)
            size += sum(len(value) for value in row if isinstance(value, str))
        await self._take(table, rows)
        await self._group.compare()
        if self._linked:
            await db.change("join_families", ())
        if self.rows["run_places"]:
            await db.change("open_lanes", ())
        if merging and (self.rows["events"] or self.rows["event_waiters"]):
            await db.change("wake_waiting", (self._terms.now,))
        await self._lose_tasks()
        await self._record(header, footer)

    async def _take(self, table: str, rows: Sequence[Row]) -> None:
        """Bring in rows of one table."""
        if table == "runs":
            await self._take_runs(rows)
        elif table == "workers":
            self._fates.update((str(id), str(fate)) for id, _, _, fate in rows)
        elif table == "events":
            await self._take_events(rows)
        elif table == "audit":
            await self._take_audit(rows)
        elif table:
            rows = self._kept(table, rows)
            if table in OF_RUNS:
                rows = self._group.sort(table, rows)
            if table in _UNIQUE:
                rows = await self._missing(table, rows)
            await self._bring(table, await self._seen(rows) if table == "event_cursors" else rows)
        self._progress(self.runs + self.skipped, self.rows.total())

    async def _bring(self, table: str, rows: Sequence[Row]) -> None:
        if rows:
            await self._db.write(f"import_{table}", rows)
            self.rows[table] += len(rows)

    async def _take_runs(self, rows: Sequence[Row]) -> None:
        await self._group.compare()
        self._group = RunGroup(self._db, self._terms, self._fates)
        fresh = await self._group.begin(rows)
        self.runs += len(fresh)
        self.skipped += self._group.known
        self.open += sum(run.ended is None for run in fresh)
        self._linked = self._linked or any(run.parent_key for run in fresh)
        for run in fresh:
            self._blocks["runs"].add(run.key, run.created)
        await self._bring("runs", [astuple(run) for run in fresh])

    async def _missing(self, table: str, rows: Sequence[Row]) -> list[Row]:
        """Return the rows that are not here; refuse those that are here otherwise."""
        word, loose = _UNIQUE[table]
        columns, key = TABLES[table]
        places = [place_of(table, column) for column in key]

        def name(row: Row) -> Row:
            return tuple(row[place] for place in places)

        def strict(row: Row) -> list[Value]:
            return [value for (column, _), value in zip(columns, row, strict=True) if column not in loose]

        found = await self._db.read(f"existing_{table}", [*map(name, rows)]) if rows else []
        here = {name(row): strict(row) for row in found}
        missing = []
        for row in rows:
            mine = here.get(name(row))
            if table == "evidence" and row[0] == self._forked:
                continue
            if mine is None:
                missing.append(row)
            elif mine != strict(row):
                self._forked = row[0] if table == "evidence" else ""
                if not self._terms.skip_existing:
                    which = " ".join(repr(value) for value in name(row))
                    raise CannotMove(
                        f"{word} {which} is in the file and in the database, and they differ; "
                        "leave what is there as it is (--skip-existing), or import into another database"
                    )
        return missing

    def _kept(self, table: str, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows as they are to be here: of a snapshot nothing begins by itself, and nothing waits."""
        if self._terms.snapshot:
            if table == "idempotency_waiters":
                return []
            if table == "idempotency_keys":
                return [row for row in rows if row[place_of("idempotency_keys", "result")] is not None]
            if table == "run_places":
                return [_with(row, table, held=row[place_of(table, "held")] or -1) for row in rows]
            if table == "schedules":
                return [_with(row, "schedules", paused=1) for row in rows]
            if table == "tasks":
                rows = [_with(row, "tasks", owner=_NO_WORKER) for row in rows]
        if table == "tasks":
            owner = place_of("tasks", "owner")
            rows = [
                _with(row, "tasks", owner=None) if row[owner] == "" else row for row in rows
            ]  # its limit is not here
            owners = (row[place_of("tasks", "owner")] for row in rows)
            self._owners.update(str(owner) for owner in owners if owner is not None)
        return rows

    async def _seen(self, rows: Sequence[Row]) -> list[Row]:
        """Return which events runs have seen: the file says how many they have not."""
        numbers: dict[Row, int] = {}
        for name, behind in {(name, behind) for _, name, behind in rows}:
            found = await self._db.read("seen_event", [(name, behind)])
            numbers[name, behind] = int(found[0][0] or 0) if found else 0
        return [(run, name, numbers[name, behind]) for run, name, behind in rows]

    async def _take_events(self, rows: Sequence[Row]) -> None:
        for name, _, id, payload, at in rows:
            await self._db.read("insert_event", [(name, id, payload, at)])
        for name, count in Counter(row[0] for row in rows).items():
            await self._db.write("count_event", [(name, count)])
        self.rows["events"] += len(rows)

    async def _take_audit(self, rows: Sequence[Row]) -> None:
        """Bring in a trail: as it is where there is none, else behind the one that is there, and chained to it."""
        here = {row[0]: row[-1] for row in await self._db.read("existing_audit", [row[:1] for row in rows])}
        new: list[Row] = []
        for row in rows:
            n, *said, previous, end = row
            if self._first:
                self._trail = (int(n or 0), str(end))
                new.append(row)
                continue
            if previous != self._previous or end != chained(str(previous), n, *said):  # type: ignore[arg-type]  # no null
                raise CannotMove(
                    f"the audit trail in the file is broken at its row {n}, and cannot be joined to another"
                )
            self._previous = str(end)
            if here.get(n) != end:
                new.append(self._chained(*said))
        for n, at, *_ in new:
            self._blocks["audit"].add(int(n or 0), int(at or 0))
        await self._bring("audit", new)

    def _chained(self, *said: Value) -> Row:
        """Return what was said as the next row of the trail that is here."""
        last, previous = self._trail
        end = chained(previous, last + 1, *said)  # type: ignore[arg-type]  # no null
        self._trail = (last + 1, end)
        return (last + 1, *said, previous, end)

    async def _lose_tasks(self) -> None:
        """Tell runs that the workers which had their attempts are not here."""
        batch = Batch(self._db)
        for owner in sorted(self._owners):
            await batch.tasks.lose(owner, lost_with(self._fates.get(owner)) or "handed back")
        await batch.flush()

    async def _record(self, header: Header, footer: Footer) -> None:
        """Leave a row in the audit trail: who did this, and that this file need not be imported again."""
        detail = {"runs": self.runs, "skipped": self.skipped, "snapshot": header.snapshot, "exported": header.exported}
        text = msgspec.json.encode(detail | ({"reason": self._terms.reason} if self._terms.reason else {})).decode()
        row = self._chained(self._terms.now, self._terms.by, "import", footer.sha256, text)
        await self._db.write("import_audit", [row])
        for what, blocks in self._blocks.items():
            for block in blocks.noted(self._terms.now):
                await self._db.write("insert_imported_block", [(what, *block)])


def _with(row: Row, table: str, **changed: Value) -> Row:
    """Return a row with some columns changed."""
    values = [*row]
    for column, value in changed.items():
        values[place_of(table, column)] = value
    return tuple(values)
