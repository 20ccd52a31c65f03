"""Export: one consistent view of a database, written to a file page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import astuple

from holdfast.clock import Instant, to_datetime
from holdfast.contract.rows import Status
from holdfast.definitions import check_run_id
from holdfast.errors import CannotMove, NoSuchRun
from holdfast.stores.liveness import Fate
from holdfast.stores.sql.looks import Look
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, StoredRun
from holdfast.stores.sql.transfer import BY_ID, OF_RUNS, OTHERS, beginning_of, position_of
from holdfast.transfer.endpoints import Endpoint
from holdfast.transfer.file import FORMAT, Header, Writer
from holdfast.transfer.tables import COLUMNS, ExportedWorker, place_of

RUNS_AT_ONCE = 200

FAR = (1 << 62) - 1
"""Beyond every key."""

_ROWS, _BYTES = 200, 1 << 20
"""How much of a table is read at a time: so many rows, or fewer where they are large."""

_ATTEMPTS = 100
"""How often a backup is begun if there are messages on their way at each."""

_NUMBERS = 20_000
"""How many events are put in order at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Which:
    """Which runs to export; all of them, and what belongs to none, if nothing is said.

    A `snapshot` is a copy for looking, taken while workers go on. So is every selection.
    """

    runs: Collection[str] = ()
    workflows: Collection[str] = ()
    statuses: Collection[Status] = ()
    snapshot: bool = False

    @property
    def whole(self) -> bool:
        """Whether everything is meant."""
        return not (self.runs or self.workflows or self.statuses)

    def takes(self, run: StoredRun) -> bool:
        """Tell whether a run is among them."""
        return (not self.workflows or run.workflow in self.workflows) and (
            not self.statuses or run.status in self.statuses
        )


class Export:
    """One export; a `backup` is of everything while workers go on, and its runs go on where it is restored."""

    def __init__(
        self, writer: Writer, which: Which, progress: Callable[[int, int], None], *, backup: bool = False
    ) -> None:
        self._writer = writer
        self._which = which
        self._progress = progress
        self._backup = backup
        self._size: dict[str, int] = {}
        self.snapshot = which.snapshot or not which.whole
        self.open = 0
        self.total = 0
        """How many runs there are to write, as soon as that is known."""

    async def write(self, endpoint: Endpoint, version: str, now: Instant) -> str:
        """Write everything and return the hash of the file."""
        for id in self._which.runs:
            check_run_id(id)
        workers = await endpoint.workers()
        self._refuse_living(workers)

        async def look(db: Statements) -> bool:
            if not self.snapshot and await endpoint.undelivered(db):
                return False
            self.total = await self._count(db)
            header = Header(
                holdfast=FORMAT,
                version=version,
                schema=endpoint.schema,
                exported=to_datetime(now).isoformat(),
                runs=self.total,
                snapshot=self.snapshot,
                whole=self._which.whole,
                tables={table: [name for name, _ in columns] for table, columns in COLUMNS.items()},
            )
            self._writer.begin(header)
            self._writer.put("workers", workers)
            await self._all(db)
            return True

        await self._deliver_and_look(endpoint, look)
        self._refuse_living(await endpoint.workers())
        return self._writer.end()

    async def _deliver_and_look(self, endpoint: Endpoint, look: Look[bool]) -> None:
        """Look at a moment at which no message is on its way; while callers go on, that may take some attempts."""
        for _ in range(_ATTEMPTS if self._backup else 1):
            if not self.snapshot:
                await endpoint.deliver()
            if await endpoint.look(look):
                return
        raise CannotMove("a message that was sent inside a transaction is not delivered yet; try again")

    def _refuse_living(self, workers: Sequence[ExportedWorker]) -> None:
        """Refuse to move runs that a worker may go on with here: they would run in both databases."""
        if self.snapshot or self._backup:
            return
        for worker in workers:
            if worker.fate in (Fate.ALIVE, Fate.HANGS):
                says = "is at work" if worker.fate == Fate.ALIVE else "hangs, and may go on"
                raise CannotMove(
                    f"worker {worker.id} (pid {worker.pid} on {worker.host}) {says}: stop it first, "
                    "or make a snapshot, whose open runs are paused where they arrive"
                )

    async def _all(self, db: Statements) -> None:
        self.open = 0
        if self._which.whole:
            await self._others(db, "event_queues")
            await self._events(db)
        async for runs in self._runs(db):
            self.open += sum(run.ended is None for run in runs)
            self._writer.put("runs", [astuple(run) for run in runs])
            for table in OF_RUNS:
                await self._of_runs(db, table, runs)
        if self._which.whole:
            for table in OTHERS:
                await self._others(db, table)

    async def _count(self, db: Statements) -> int:
        if self._which.whole:
            return int((await db.read("count_all_runs", [()]))[0][0] or 0)
        return sum([len(runs) async for runs in self._runs(db)])

    async def _runs(self, db: Statements) -> AsyncIterator[list[StoredRun]]:
        """Yield the runs, so many at a time that between the first and the last of them there is no other."""
        ranges = [(key, key) for key in await self._keys(db)] if self._which.runs else [(-1, FAR)]
        for first, last in ranges:
            after = first - 1
            while rows := await db.read("export_runs", [(first, last, after, RUNS_AT_ONCE)]):
                runs = [StoredRun(*row) for row in rows]  # type: ignore[arg-type]  # columns as in StoredRun
                for together in _neighbours(runs, self._which.takes):
                    yield together
                after = runs[-1].key

    async def _keys(self, db: Statements) -> list[int]:
        wanted = dict.fromkeys(self._which.runs)
        found = {str(id): int(key or 0) for id, key in await db.read("existing_runs", [(id,) for id in wanted])}
        for id in wanted:
            if id not in found:
                raise NoSuchRun(id)
        return sorted(found.values())

    async def _of_runs(self, db: Statements, table: str, runs: Sequence[StoredRun]) -> None:
        first, last = runs[0].key, runs[-1].key
        keys = {run.key for run in runs}
        position: Row = (first - 1, *beginning_of(table))
        while rows := await db.read(f"export_{table}", [(first, last, *position, self._size.get(table, 20))]):
            own = [row[1:] for row in rows] if table in BY_ID else rows
            position = (rows[-1][0], *_position(table, own[-1]))
            self._put(table, [row for found, row in zip(rows, own, strict=True) if found[0] in keys])

    async def _others(self, db: Statements, table: str) -> None:
        position = beginning_of(table)
        while rows := await db.read(f"export_other_{table}", [(*position, self._size.get(table, 20))]):
            position = _position(table, rows[-1])
            self._put(table, rows)

    async def _events(self, db: Statements) -> None:
        """Write events in the order in which they were published, under whichever names."""
        last: Row = (-1, "")
        while numbers := await db.read("order_events", [(*last, _NUMBERS)]):
            last = numbers[-1]
            while numbers:
                size = self._size.get("events", 20)
                rows = await db.read("export_events", numbers[:size])
                self._put("events", sorted(rows, key=lambda row: (row[1], row[0])))
                numbers = numbers[size:]

    def _put(self, table: str, rows: Sequence[Row]) -> None:
        size = self._writer.put(table, rows)
        if rows:
            self._size[table] = max(1, min(_ROWS, _BYTES * len(rows) // size))
        self._progress(self._writer.rows["runs"], self._writer.rows.total())


def _position(table: str, row: Row) -> Row:
    """Return where in the order of its table a row stands."""
    return tuple(row[place_of(table, column)] for column in position_of(table))


def _neighbours(runs: Sequence[StoredRun], takes: Callable[[StoredRun], bool]) -> Iterator[list[StoredRun]]:
    """Split runs where some are left out."""
    group: list[StoredRun] = []
    for run in runs:
        if takes(run):
            group.append(run)
        elif group:
            yield group
            group = []
    if group:
        yield group
