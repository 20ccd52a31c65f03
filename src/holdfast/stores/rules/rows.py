"""The rows of one batch: those that were read, as its operations have left them, and those that are to be written.

Nothing is decided here. The rules ask for a run or for its unread rows, change them in memory, and note what to insert,
rewrite or delete; `write_rows` writes all of that in a few statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from msgspec.structs import astuple

from holdfast.clock import Instant
from holdfast.contract.moves import ArriveRuns, ExpectRuns, MarkMoving, Moving
from holdfast.contract.operations import (
    Nudge,
    Operation,
    Pause,
    PutOnRecord,
    Reopen,
    RequestCancel,
    SendMessage,
    SetAttributes,
    Terminate,
    Unpause,
)
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import (
    Row,
    StoredRun,
    changes_of,
    unusual_changes_in,
    unusual_changes_of,
    usual_changes_of,
)

_COMPLETED = (None, None, None)
"""What there is beside the output of a run that completed: no error, no compensation, no failed step."""


class BatchRows:
    """What a batch has read and will write."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self._last_key: int | None = None
        self._runs: dict[int, StoredRun] = {}
        self._as_read: dict[int, Row] = {}
        """Those runs as they are stored, as long as that is known."""
        self._ids: dict[str, StoredRun | None] = {}
        self._alive: dict[str, bool] = {}
        self._purged: dict[str, tuple[str, int, Instant] | None] = {}
        self._unique: dict[tuple[str, str], StoredRun] = {}
        self._unread: dict[int, tuple[int, list[Message]]] = {}
        """Inbox rows read before they were asked for, of each run those beyond a number."""
        self._woken: set[int] = set()
        self._clear_pending()

    def _clear_pending(self) -> None:
        self._new: dict[int, StoredRun] = {}
        self._changed: dict[int, StoredRun] = {}
        self._inputs: dict[int, str] = {}
        self._results: dict[int, tuple[str | None, ...]] = {}
        self._forgotten: dict[int, None] = {}
        self._trims: list[Row] = []
        self._entries: list[Row] = []
        self._rewrites: list[Row] = []
        self._consumed: dict[tuple[int, int], None] = {}
        self._without_side_rows: dict[int, None] = {}
        self._inbox: dict[int, dict[int, Message]] = {}
        self._attributes: list[Row] = []

    # Reading.

    async def lives(self, worker: str) -> bool:
        """Whether a worker is alive."""
        alive = self._alive.get(worker)
        if alive is None:
            alive = self._alive[worker] = bool(await self.statements.read("live_worker", [(worker,)]))
        return alive

    async def unread(self, run: StoredRun) -> tuple[Message, ...]:
        """Return all that a run has not read."""
        return await self._unread_beyond(run, 0)

    async def _unread_beyond(self, run: StoredRun, seen: int) -> tuple[Message, ...]:
        beyond, stored = self._unread.get(run.key, (seen, None))
        if stored is None or beyond > seen:
            rows = [] if run.key in self._new else await self.statements.read("unread", [(run.key, seen)])
            stored = [Message(*row[1:]) for row in rows]  # type: ignore[arg-type]  # columns as in Message
        # Both are in order, and what is new is at the end: a run may have thousands that it has seen and not read.
        pending = takewhile(lambda message: message.n > seen, reversed(self._inbox.get(run.key, {}).values()))
        older = takewhile(lambda message: message.n > seen, reversed(stored))
        unread = [*pending, *(message for message in older if (run.key, message.n) not in self._consumed)]
        return tuple(reversed(unread))

    async def run(self, key: int) -> StoredRun | None:
        """Return a run by its key."""
        if key not in self._runs:
            await self._load("run_by_key", [(key,)])
        return self._runs.get(key)

    async def named(self, id: str) -> StoredRun | None:
        """Return a run by its public id."""
        if id not in self._ids:
            self._ids[id] = None
            await self._load("run_by_id", [(id,)])
        return self._ids[id]

    async def _load(self, statement: str, rows: Sequence[Row]) -> None:
        for row in await self.statements.runs(statement, rows):
            self.adopt(row)

    def adopt(self, row: Row) -> StoredRun:
        """Return the run of a row that was read, as this batch has it."""
        run = StoredRun(*row)  # type: ignore[arg-type]  # columns as in StoredRun
        known = self._runs.setdefault(run.key, run)
        if known is run:
            self._as_read[run.key] = row
        self._ids[known.id] = known
        return known

    def forget_runs(self) -> None:
        """Read every run and every tombstone again: statements changed some beside this batch."""
        self._runs.clear()
        self._as_read.clear()
        self._ids.clear()
        self._unique.clear()
        self._purged.clear()

    async def _prefetch(self, operations: Sequence[Operation]) -> None:
        if len(operations) == 1:
            return
        turns = [operation for operation in operations if isinstance(operation, CommitTurn)]
        await self.load_keys([turn.key for turn in turns])
        naming = operations if len(turns) < len(operations) else [turn for turn in turns if turn.sends or turn.children]
        ids = dict.fromkeys(named for operation in naming for named in ids_of(operation))
        if ids:
            self._ids.update((id, None) for id in ids if id not in self._ids)
            await self._load("run_by_id", [(id,) for id in ids])
        starts = [id for operation in naming for id in new_ids_of(operation)]
        if starts:
            await self._load_tombstones(starts)
        ending = [run.parent_key for turn in turns if turn.end and (run := self._runs.get(turn.key))]
        await self.load_keys([parent for parent in ending if parent])
        moved: dict[int, int] = {}
        for turn in turns:
            if turn.state and turn.key in self._runs and self._runs[turn.key].inbox > turn.state.seen:
                moved[turn.key] = min(moved.get(turn.key, turn.state.seen), turn.state.seen)
        if moved:
            self.know_unread(moved, await self.statements.read("unread", [*moved.items()]))

    def know_runs(self, ids: Iterable[str], rows: Iterable[Row]) -> None:
        """Take in runs that were read before they were asked for; of these ids there are no others."""
        for row in rows:
            self.adopt(row)
        for id in ids:
            self._ids.setdefault(id, None)

    def know_unread(self, beyond: Mapping[int, int], rows: Iterable[Row]) -> None:
        """Take in the unread rows of runs, of each those beyond a number."""
        self._unread = {key: (n, []) for key, n in beyond.items()}
        for row in rows:
            self._unread[int(row[0] or 0)][1].append(Message(*row[1:]))  # type: ignore[arg-type]  # as in Message

    def know_purged(self, ids: Iterable[str], rows: Iterable[Row]) -> None:
        """Take in which ids belonged to runs that are gone."""
        self._purged.update(dict.fromkeys(ids))
        for id, workflow, digest, expires in rows:
            self._purged[str(id)] = (str(workflow), int(digest or 0), int(expires or 0))

    def know_alive(self, workers: Iterable[str]) -> None:
        """Take in who is alive."""
        self._alive.update((worker, True) for worker in workers)

    async def load_keys(self, keys: Iterable[int]) -> None:
        """Read many runs at once."""
        missing = [(key,) for key in dict.fromkeys(keys) if key not in self._runs]
        if missing:
            await self._load("run_by_key", missing)

    async def _load_tombstones(self, ids: Sequence[str]) -> None:
        self.know_purged(ids, await self.statements.read("tombstone", [(id,) for id in ids]))

    # Changing.

    def consume(self, run: StoredRun, numbers: Sequence[int]) -> None:
        """Delete rows of a run's inbox."""
        pending = self._inbox.get(run.key, {})
        for n in numbers:
            if n <= run.inbox:
                self._consumed[run.key, n] = None
                pending.pop(n, None)

    async def take_out(self, run: StoredRun, n: int, kind: InboxKind) -> Message | None:
        """Remove one row of a kind from a run's inbox and return it."""
        found = self._inbox.get(run.key, {}).get(n)
        if found is None and (run.key, n) not in self._consumed:
            rows = await self.statements.read("inbox_row", [(run.key, n)])
            found = Message(*rows[0]) if rows else None  # type: ignore[arg-type]  # columns as in Message
        if found is None or found.kind != kind:
            return None
        self.consume(run, [n])
        return found

    def _forget(self, key: int) -> None:
        self._forgotten[key] = None
        self._entries = [row for row in self._entries if row[0] != key]
        self._rewrites = [row for row in self._rewrites if row[0] != key]

    def bring_history(self, run: StoredRun, input: str, entries: Sequence[EntryRow]) -> None:
        """Replace a run's input and history by those that it has elsewhere."""
        self._forget(run.key)
        self._inputs[run.key] = input
        self._entries.extend((run.key, *entry) for entry in entries)

    def _trim(self, key: int, first: str, last: str) -> None:
        self._trims.append((key, first, last))
        if self._entries:
            low, high = first.encode(), last.encode()
            self._entries = [row for row in self._entries if row[0] != key or not low <= str(row[1]).encode() < high]

    def touch(self, run: StoredRun, at: Instant) -> None:
        """Note that a run changed."""
        run.updated = at
        if run.key not in self._new:
            self._changed[run.key] = run

    def note_side_rows(self, run: StoredRun) -> None:
        """Note that a run has rows in tables that its end must look into."""
        if not run.side_rows:
            run.side_rows = 1
            self.touch(run, run.updated)

    def forget_side_rows(self, run: StoredRun) -> None:
        """Note that a run has no such rows any more."""
        self._without_side_rows[run.key] = None
        run.side_rows = 0

    # Writing.

    async def write_rows(self, more: Sequence[tuple[str, Sequence[Row]]]) -> None:
        """Write what was changed so far, then more rows by the statements given."""
        inbox: list[Row] = [(key, *message) for key, rows in self._inbox.items() for message in rows.values()]
        without_side_rows: list[Row] = [(key,) for key in self._without_side_rows]
        usual, unusual = self._changes()
        outputs: list[Row] = [(key, result[0]) for key, result in self._results.items() if result[1:] == _COMPLETED]
        results: list[Row] = [(key, *result) for key, result in self._results.items() if result[1:] != _COMPLETED]
        work: list[tuple[str, Sequence[Row]]] = [
            # Before the inserts: an end gives a unique key back.
            ("update_runs_as_usual", usual),
            ("update_runs", unusual),
            ("insert_runs", [astuple(run) for run in self._new.values()]),
            ("put_inputs", [*self._inputs.items()]),
            ("put_outputs", outputs),
            ("put_results", results),
            ("forget_entries", [(key,) for key in self._forgotten]),
            ("trim_entries", self._trims),
            ("insert_entries", self._entries),
            ("rewrite_entries", self._rewrites),
            ("consume", [*self._consumed]),
            ("insert_inbox", inbox),
            ("insert_attributes", self._attributes),
            ("forget_beats", without_side_rows),
            ("forget_tasks", without_side_rows),
            *more,
        ]
        for statement, rows in work:
            if rows:
                await self.statements.write(statement, rows)
        self._unread.clear()
        self._clear_pending()

    def _changes(self) -> tuple[list[Row], list[Row]]:
        """Return the changes of runs that changed as runs usually do, and those of all others with every column."""
        usual: list[Row] = []
        unusual: list[Row] = []
        for key, run in self._changed.items():
            before = self._as_read.pop(key, None)  # from here on it is not as it was read
            if before is not None and unusual_changes_of(run) == unusual_changes_in(before):
                usual.append(usual_changes_of(run))
            else:
                unusual.append(changes_of(run))
        return usual, unusual


def ids_of(operation: Operation) -> Iterable[str]:
    """Return the ids of runs that an operation asks for."""
    match operation:
        case CommitTurn():  # nearly all are: tried first
            for send in operation.sends:
                yield send.target
            for child in operation.children:
                yield child.run.id
        case SendMessage() | RequestCancel() | Terminate() | Pause() | Unpause() | Nudge() | Reopen() | SetAttributes():
            yield operation.target
        case MarkMoving():
            yield from (leaving.id for leaving in operation.runs)
        case ExpectRuns() | ArriveRuns():
            yield from (coming.id for coming in operation.runs)
        case Moving() | PutOnRecord():
            yield operation.target
        case StartRun():
            yield operation.run.id
            if operation.turn:
                yield from ids_of(operation.turn)


def new_ids_of(operation: Operation) -> Iterable[str]:
    """Return the ids of runs that an operation inserts."""
    if isinstance(operation, StartRun):
        yield operation.run.id
        operation = operation.turn or operation
    if isinstance(operation, CommitTurn):
        for child in operation.children:
            yield child.run.id
