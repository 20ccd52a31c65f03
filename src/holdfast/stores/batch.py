"""One group commit as a value: operations applied in order to rows in memory, then written in a few statements.

The rules of the contract live here and nowhere else. A store begins a transaction that nobody can write beside, hands
in a `Statements` that reads and writes rows one by one or in bulk, and commits; both ways give the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.clock import Instant
from holdfast.records import (
    Committed,
    CommitTurn,
    Delivered,
    End,
    Existing,
    Fenced,
    Message,
    NewRun,
    Operation,
    Outcome,
    Refused,
    RequestCancel,
    Send,
    SendMessage,
    Started,
    StartRun,
    State,
    Status,
    Unblock,
    Unblocked,
)
from holdfast.stores.run_state import Row, RunState, Value, changed_row, new_row

DRIVEN = frozenset({Status.PENDING, Status.RUNNING, Status.CANCELLING, Status.COMPENSATING})
"""What somebody must be working on: a run in one of these without a living owner is due."""


class Statements(Protocol):
    """Named statements of one transaction, each run for every row of parameters."""

    def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]: ...

    def write(self, name: str, rows: Sequence[Row]) -> None: ...

    def change(self, name: str, row: Row) -> int: ...


class Batch:
    """A batch being applied."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._last_key: int | None = None
        self._runs: dict[int, RunState] = {}
        self._ids: dict[str, RunState | None] = {}
        self._alive: dict[str, bool] = {}
        self._unread: dict[int, list[Message]] = {}
        self._clear_pending()

    def _clear_pending(self) -> None:
        self._touched: list[RunState] = []
        self._inputs: dict[int, str] = {}
        self._results: dict[int, tuple[str | None, str | None]] = {}
        self._forgotten: dict[int, None] = {}
        self._trims: list[Row] = []
        self._entries: list[Row] = []
        self._rewrites: list[Row] = []
        self._consumed: list[tuple[int, int]] = []
        self._emptied: dict[int, None] = {}
        self._inbox: dict[int, list[Message]] = {}

    def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Apply operations in order and write what they changed."""
        self._prefetch(operations)
        outcomes = [self._apply(operation) for operation in operations]
        self._write()
        return outcomes

    def _apply(self, operation: Operation) -> Outcome:
        match operation:
            case CommitTurn():
                run = self._run(operation.key)
                if run is None or run.ended is not None or run.epoch != operation.epoch:
                    return Fenced(operation.key)
                return self._commit(run, operation)
            case StartRun():
                return self._start(operation)
            case SendMessage():
                target = self._named(operation.target)
                if target is None or target.ended is not None:
                    return Refused(Status(target.status) if target else None)
                self._deliver(target, "message", operation)
                return Delivered(target.key, target.inbox, target.owner)
            case RequestCancel():
                return self._cancel(operation)
            case Unblock():
                return self._unblock(operation)

    def _start(self, operation: StartRun) -> Started | Existing:
        existing = self._named(operation.run.id)
        if existing is not None:
            return Existing(existing.key, existing.workflow, existing.digest, Status(existing.status))
        owner = operation.run.owner
        parent = operation.run.parent
        run = self._insert(
            operation.run, owner if owner and self._lives(owner) else None, parent.key if parent else None
        )
        if owner:
            run.status, run.epoch = Status.RUNNING, 1
        return Started(run.key, self._commit(run, operation.turn) if operation.turn else None)

    def _insert(self, new: NewRun, owner: str | None, parent: int | None) -> RunState:
        if self._last_key is None:
            rows = self._statements.read("last_key", [()])
            self._last_key = int(rows[0][0] or 0) if rows else 0
        self._last_key += 1
        due = None if owner else new.at
        run = RunState((
            self._last_key, new.id, new.workflow, Status.PENDING, "", due, 0, owner, 0, 0, 0, "", new.digest, parent,
            None, new.at, None,
        ))  # fmt: skip
        run.new, run.dirty = new, True
        self._touched.append(run)
        self._inputs[run.key] = new.input
        self._runs[run.key] = self._ids[run.id] = run
        return run

    def _commit(self, run: RunState, turn: CommitTurn) -> Committed:
        key = run.key
        if turn.renewal is not None:
            self._forget(key)
            self._inputs[key] = turn.renewal.input
            run.generation = turn.renewal.generation
            self._touch(run, turn.at)
        for first, last in turn.trims:
            self._trim(key, first, last)
        if turn.entries:
            self._entries.extend([(key, *entry) for entry in turn.entries])
        if turn.consumed:
            self._consume(run, turn.consumed)
        refused: dict[str, str] = {}
        refused_child = False
        for send in turn.sends:
            target = self._named(send.target)
            if target is not None and target.ended is None:
                self._deliver(target, "message", send)
                continue
            reason = refused[send.location] = "missing" if target is None else str(target.status)
            self._rewrites.append((key, send.location, send.seq, send.refusals[reason]))
        for child in turn.children:
            if self._named(child.run.id) is None:
                self._insert(child.run, None, key if child.run.parent else None)
                continue
            refused[child.location] = "taken"
            refused_child = True
            self._rewrites.append((key, child.location, child.seq, child.taken))
        if turn.reset_claims and run.claims:
            run.claims = 0
            self._touch(run, turn.at)
        messages = self._change_state(run, turn.state, turn.at) if turn.state is not None else ()
        if refused_child and turn.end is None:
            # The parent may be parked by this very commit, and only it can tell its code of the refusal.
            run.due = turn.at
            self._touch(run, turn.at)
        if turn.end is not None:
            self._end(run, turn.end)
        return Committed(key, messages, refused)

    def _change_state(self, run: RunState, state: State, at: Instant) -> tuple[Message, ...]:
        self._touch(run, at)
        run.status, run.wait, run.due, run.fingerprint = state.status, state.wait, state.due, state.fingerprint
        messages: tuple[Message, ...] = ()
        if run.inbox > state.seen:
            messages = self._unread_beyond(run, state.seen)
            run.due = at
            if any(message.kind == "cancel" for message in messages):
                run.status = Status.CANCELLING
        if state.error is not None:
            self._results[run.key] = (None, state.error)
        if state.released:
            run.owner = None
        if run.status == Status.BLOCKED:
            run.due = None
        elif run.status in DRIVEN:
            # A holder declared dead may still commit until somebody claims the run; what it drives must not be left
            # with neither an owner nor a due time.
            if run.owner is not None and not self._lives(run.owner):
                run.owner, run.lost = None, "lapse"
            if run.owner is None and run.due is None:
                run.due = at
        return messages

    def _end(self, run: RunState, end: End) -> None:
        self._touch(run, end.at)
        run.status, run.ended = end.status, end.at
        run.owner = run.due = None
        run.wait = run.lost = ""
        run.claims = 0
        self._results[run.key] = (end.output, end.error)
        if run.inbox:
            self._emptied[run.key] = None
            self._inbox.pop(run.key, None)
        parent = run.parent and self._run(run.parent)
        if parent and parent.ended is None:
            self._put(parent, "child", run.id, "", end.payload, end.at)

    def _cancel(self, operation: RequestCancel) -> Delivered | Refused:
        run = self._named(operation.target)
        if run is None or run.ended is not None:
            return Refused(Status(run.status) if run else None)
        if run.status != Status.CANCELLING:
            if run.status == Status.BLOCKED:
                run.claims = 0
            run.status = Status.CANCELLING
            self._put(run, "cancel", "", "", "", operation.at)
        return Delivered(run.key, run.inbox, run.owner)

    def _unblock(self, operation: Unblock) -> Unblocked:
        self._write()
        which = (operation.workflow, operation.fingerprint, operation.target)
        self._statements.change("clear_blocked_errors", which)
        count = self._statements.change("unblock", (*which, operation.at))
        if count:
            self._runs.clear()
            self._ids.clear()
        return Unblocked(count)

    def _deliver(self, run: RunState, kind: str, what: SendMessage | Send) -> None:
        self._put(run, kind, what.name, what.id, what.payload, what.at)

    def _put(self, run: RunState, kind: str, name: str, id: str, payload: str, at: Instant) -> None:
        run.inbox += 1
        if run.status != Status.BLOCKED and (run.due is None or run.due > at):
            run.due = at
        self._inbox.setdefault(run.key, []).append(Message(run.inbox, kind, name, id, payload, at))
        self._touch(run, at)

    def _consume(self, run: RunState, numbers: Sequence[int]) -> None:
        self._consumed.extend((run.key, n) for n in numbers if n <= run.inbox)
        pending = self._inbox.get(run.key)
        if pending:
            self._inbox[run.key] = [message for message in pending if message.n not in numbers]

    def _forget(self, key: int) -> None:
        self._forgotten[key] = None
        self._entries = [row for row in self._entries if row[0] != key]
        self._rewrites = [row for row in self._rewrites if row[0] != key]

    def _trim(self, key: int, first: str, last: str) -> None:
        self._trims.append((key, first, last))
        if self._entries:
            low, high = first.encode(), last.encode()
            self._entries = [row for row in self._entries if row[0] != key or not low <= str(row[1]).encode() < high]

    def _touch(self, run: RunState, at: Instant) -> None:
        run.updated = at
        if not run.dirty:
            run.dirty = True
            self._touched.append(run)

    def _lives(self, worker: str) -> bool:
        alive = self._alive.get(worker)
        if alive is None:
            alive = self._alive[worker] = bool(self._statements.read("live_worker", [(worker,)]))
        return alive

    def _unread_beyond(self, run: RunState, seen: int) -> tuple[Message, ...]:
        stored = self._unread.get(run.key)
        if stored is None:
            rows = [] if run.new else self._statements.read("unread", [(run.key, seen)])
            stored = [Message(*row[1:]) for row in rows]  # type: ignore[arg-type]  # columns as in Message
        taken = {n for key, n in self._consumed if key == run.key}
        unread = [message for message in stored if message.n not in taken] + self._inbox.get(run.key, [])
        return tuple(message for message in unread if message.n > seen)

    def _run(self, key: int) -> RunState | None:
        if key not in self._runs:
            self._load("run_by_key", [(key,)])
        return self._runs.get(key)

    def _named(self, id: str) -> RunState | None:
        if id not in self._ids:
            self._ids[id] = None
            self._load("run_by_id", [(id,)])
        return self._ids[id]

    def _load(self, statement: str, rows: Sequence[Row]) -> None:
        for row in self._statements.read(statement, rows):
            run = RunState(row)
            if run.key not in self._runs:
                self._runs[run.key] = run
            self._ids[run.id] = self._runs[run.key]

    def _prefetch(self, operations: Sequence[Operation]) -> None:
        if len(operations) == 1:
            return
        turns = [operation for operation in operations if isinstance(operation, CommitTurn)]
        self._fetch_keys(turn.key for turn in turns)
        ids = dict.fromkeys(named for operation in operations for named in _ids_of(operation))
        if ids:
            self._ids.update((id, None) for id in ids if id not in self._ids)
            self._load("run_by_id", [(id,) for id in ids])
        ending = [self._runs[turn.key].parent for turn in turns if turn.end and turn.key in self._runs]
        self._fetch_keys(parent for parent in ending if parent)
        moved: dict[int, int] = {}
        for turn in turns:
            if turn.state and turn.key in self._runs and self._runs[turn.key].inbox > turn.state.seen:
                moved[turn.key] = min(moved.get(turn.key, turn.state.seen), turn.state.seen)
        if moved:
            self._unread = {key: [] for key in moved}
            for row in self._statements.read("unread", [*moved.items()]):
                self._unread[int(row[0] or 0)].append(Message(*row[1:]))  # type: ignore[arg-type]  # as above

    def _fetch_keys(self, keys: Iterable[int]) -> None:
        missing = [(key,) for key in dict.fromkeys(keys) if key not in self._runs]
        if missing:
            self._load("run_by_key", missing)

    def _write(self) -> None:
        write = self._statements.write
        new = [new_row(run, run.new) for run in self._touched if run.new]
        changed = [changed_row(run) for run in self._touched if not run.new]
        inbox: list[Row] = [(key, *message) for key, messages in self._inbox.items() for message in messages]
        work: list[tuple[str, Sequence[Row]]] = [
            ("insert_runs", new),
            ("update_runs", changed),
            ("put_inputs", [*self._inputs.items()]),
            ("put_results", [(key, *result) for key, result in self._results.items()]),
            ("forget_entries", [(key,) for key in self._forgotten]),
            ("trim_entries", self._trims),
            ("insert_entries", self._entries),
            ("rewrite_entries", self._rewrites),
            ("consume", self._consumed),
            ("empty_inbox", [(key,) for key in self._emptied]),
            ("insert_inbox", inbox),
        ]
        for statement, rows in work:
            if rows:
                write(statement, rows)
        for run in self._touched:
            run.new, run.dirty = None, False
        self._unread.clear()
        self._clear_pending()


def _ids_of(operation: Operation) -> Iterable[str]:
    match operation:
        case SendMessage() | RequestCancel():
            yield operation.target
        case StartRun():
            yield operation.run.id
            if operation.turn:
                yield from _ids_of(operation.turn)
        case CommitTurn():
            for send in operation.sends:
                yield send.target
            for child in operation.children:
                yield child.run.id
