"""What all SQL stores have in common: looking at runs, histories and trails."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TypeVar

from holdfast.clock import Instant
from holdfast.contract.limits import GRANTED_FOR, Admission, LimitKeyRow, LimitRow, LimitWait
from holdfast.contract.moves import MOST_SEEN, Departure, MoveRow
from holdfast.contract.rows import (
    AuditRow,
    Counts,
    EntryRow,
    EventRow,
    EvidenceRow,
    Held,
    History,
    LaneRow,
    LetterFilter,
    LetterRow,
    Message,
    PausedRow,
    RunFilter,
    RunRow,
    RunStanding,
    ScheduleRow,
    Status,
)
from holdfast.contract.tokens import TokenRow
from holdfast.stores.sql.filters import list_letters, list_runs
from holdfast.stores.sql.looks import Look, SQLLooks
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, StoredRun, Value, record_of

T = TypeVar("T")

_SEQ = itemgetter(1)
_ALL = 1 << 60


class SQLStore(SQLLooks):
    """A store whose reads are the statements of queries/reads.sql."""

    kind: str
    """The folder of its schema."""

    @abstractmethod
    def another(self) -> SQLStore:
        """Return a store of the same database that is not open yet, for work that takes long."""

    @abstractmethod
    async def exclusive(self, work: Look[T]) -> T:
        """Write in one transaction while no other process does: all or nothing."""

    async def undelivered(self, statements: Statements) -> bool:
        """Tell whether there are messages that were committed and not delivered yet (see Store.relay)."""
        return False

    async def load(self, keys: Sequence[int]) -> list[History]:
        async def look(db: Statements) -> list[History]:
            wanted: list[Row] = [(key,) for key in keys]
            facts: dict[Value, list[EntryRow]] = {key: [] for key in keys}
            make = partial(tuple.__new__, EntryRow)  # as _make, without a call for each row
            for row in await db.read("read_many_entries", wanted):
                facts[row[0]].append(make(row[1:]))
            for found in facts.values():
                found.sort(key=_SEQ)
            messages = _by_run(keys, await db.read("unread", [(key, 0) for key in keys]))
            seen = {_int(key): _int(n) for key, n in await db.read("inbox_numbers", wanted)}
            tasks: dict[Value, dict[str, int]] = {}
            for key, location, attempt in await db.read("read_tasks", wanted):
                tasks.setdefault(key, {})[str(location)] = _int(attempt)
            limits: dict[Value, dict[str, Instant | None]] = {}
            for key, location, _, _, _, granted in await db.read("read_limit_waits", wanted):
                limits.setdefault(key, {})[str(location)] = None if granted is None else _int(granted)
            return [
                History(key, facts[key], messages[key], seen.get(key, 0), tasks.get(key, {}), limits.get(key, {}))
                for key in keys
            ]

        return await self.look(look, together=True)

    async def next_called(self, workflows: Sequence[str]) -> Instant | None:
        rows = await self._read("next_called", *((workflow,) for workflow in workflows)) if workflows else []
        return min((_int(ready) for (ready,) in rows if ready is not None), default=None)

    async def lane_workflows(self) -> list[str]:
        return [str(workflow) for (workflow,) in await self._read("lane_workflows", ())]

    async def inboxes(self, after: Mapping[int, int]) -> dict[int, list[Message]]:
        return _by_run(after, await self._read("unread", *after.items()))

    async def held(self, worker: str) -> list[Held]:
        rows = await self._read("held", (worker,))
        return [Held(_int(key), _int(epoch), Status(str(status))) for key, epoch, status in rows]

    async def limited_tasks(
        self, limit: str, queues: Sequence[str], activities: Sequence[str]
    ) -> tuple[bool, Instant | None]:
        async def look(db: Statements) -> tuple[bool, Instant | None]:
            wanted: list[Row] = [(queue, activity) for queue in queues for activity in activities]
            waits = bool(wanted) and bool(await db.read("any_limited_task", wanted))
            [(turn,)] = await db.read("next_task_turn", [(limit,)])
            return waits, None if turn is None else _int(turn)

        return await self.look(look)

    async def held_tasks(self, worker: str) -> list[tuple[int, str, int]]:
        rows = await self._read("tasks_of", (worker,))
        return [(_int(run), str(location), _int(attempt)) for run, location, attempt in rows]

    async def get(self, run_id: str) -> RunRow | None:
        rows = await self._read("get_run", (run_id,))
        return record_of(RunRow, rows[0]) if rows else None

    async def standings(self, run_ids: Sequence[str]) -> dict[str, RunStanding]:
        rows = await self._read("read_standings", *((run_id,) for run_id in run_ids))
        return {
            str(id): RunStanding(Status(str(status)), _text(output), _text(error)) for id, status, output, error in rows
        }

    async def runs(self, which: RunFilter) -> list[RunRow]:
        return await self.look(lambda db: list_runs(db, which))

    async def history(
        self, key: int, *, archived: bool = False, after: int = 0, limit: int | None = None, newest: bool = False
    ) -> list[EntryRow]:
        if archived or (not after and limit is None):
            rows = await self._read("read_archive" if archived else "read_entries", (key,))
        else:
            name = "read_newest_entries" if newest else "read_entries_after"
            rows = sorted(await self._read(name, (key, after, limit or _ALL)), key=_SEQ)
        return [EntryRow._make(row) for row in rows]

    async def departure(self, key: int) -> Departure:
        async def look(db: Statements) -> Departure:
            moves = [record_of(MoveRow, row) for row in await db.read("read_move", [(key,)])]
            tasks = await db.read("read_tasks", [(key,)])
            run = StoredRun(*(await db.read("run_by_key", [(key,)]))[0])  # type: ignore[arg-type]  # as in StoredRun
            children = [StoredRun(*row) for row in await db.read("open_children", [(run.id,)])]  # type: ignore[arg-type]  # likewise
            return Departure(
                move=moves[0] if moves else None,
                waited={str(name): _int(queued) for name, queued in await db.read("waited_names", [(key,)])},
                given=[str(name) for (name,) in await db.read("given_events", [(key,)])],
                keys=[(str(activity), str(name)) for activity, name in await db.read("keys_wanted", [(key,)])],
                tasks={str(location): _int(attempt) for _, location, attempt in tasks},
                seen=[str(id) for (id,) in await db.read("last_message_ids", [(key, MOST_SEEN)])][::-1],
                children={child.id: bool(child.cancel_with_parent) for child in children},
                timeout=run.timeout,
                lost=run.lost,
                place=run.place,
            )

        return await self.look(look, together=True)

    async def letters(self, which: LetterFilter) -> list[LetterRow]:
        return await self.look(lambda db: list_letters(db, which))

    async def audit(self, target: str | None = None, after: int = 0, limit: int = 1000) -> list[AuditRow]:
        if target is None:
            rows = await self._read("read_all_audit", (after, limit))
        else:
            rows = await self._read("read_audit", (target, after, limit))
        return [record_of(AuditRow, row) for row in rows]

    async def evidence(self, run_id: str, after: int = 0, limit: int = 1000) -> list[EvidenceRow]:
        return [record_of(EvidenceRow, row) for row in await self._read("read_evidence", (run_id, after, limit))]

    async def schedules(self, due: Instant | None = None) -> list[ScheduleRow]:
        rows = await (self._read("read_schedules", ()) if due is None else self._read("read_due_schedules", (due,)))
        return [record_of(ScheduleRow, row) for row in rows]

    async def paused(self) -> list[PausedRow]:
        rows = await self._read("read_pauses", ())
        return [PausedRow(str(kind), str(name), _int(since)) for kind, name, since in rows]

    async def tokens(self) -> list[TokenRow]:
        return [record_of(TokenRow, row) for row in await self._read("read_tokens", ())]

    async def token(self, id: str) -> TokenRow | None:
        rows = await self._read("read_token", (id,))
        return record_of(TokenRow, rows[0]) if rows else None

    async def secret(self, purpose: str) -> bytes:
        [(secret,)] = await self._read("read_secret", (purpose,))
        return bytes.fromhex(str(secret))

    async def lanes(self, limit: int = 20) -> list[LaneRow]:
        return [LaneRow(*row) for row in await self._read("read_lanes", (limit,))]  # type: ignore[arg-type]  # as in LaneRow

    async def replies(self, messages: Sequence[str]) -> dict[str, str]:
        rows = await self._read("read_replies", *((message,) for message in messages))
        return {str(message): str(payload) for message, payload in rows}

    async def events(self, name: str | None = None, after: int = 0, limit: int = 1000) -> list[EventRow]:
        if name is None:
            rows = await self._read("read_all_events", (limit,))
        else:
            rows = await self._read("read_events", (name, after, limit))
        return [EventRow._make(row) for row in rows]

    async def beats(self, key: int) -> dict[str, tuple[Instant, str]]:
        rows = await self._read("read_beats", (key,))
        return {str(location): (_int(at), str(detail)) for location, at, detail in rows}

    async def limits(self) -> list[LimitRow]:
        return [record_of(LimitRow, row) for row in await self._read("read_limits", ())]

    async def limit_keys(self, name: str, limit: int = 20) -> list[LimitKeyRow]:
        return [record_of(LimitKeyRow, row) for row in await self._read("read_limit_keys", (name, limit))]

    async def limit_waits(self, key: int) -> list[LimitWait]:
        return [record_of(LimitWait, row) for row in await self._read("limit_waits_of", (key,))]

    async def admission(self, key: int) -> Admission | None:
        rows = await self._read("admission_of", (key,))
        return record_of(Admission, rows[0]) if rows else None

    async def limits_to_see_to(self, now: Instant, paused: Sequence[tuple[str, str]] = ()) -> bool:
        async def look(db: Statements) -> bool:
            if await db.read("limits_to_see_to", [(now - GRANTED_FOR, now)]):
                return True
            turns = await db.read("paused_limit_turns", paused) if paused else []
            return any(place or _int(granted) <= now for *_, granted, place, _ in turns)

        return await self.look(look)

    async def counts(self) -> Counts:
        async def look(db: Statements) -> Counts:
            runs = await db.read("count_runs", [()])
            letters = await db.read("count_letters", [()])
            events = await db.read("count_events", [()])
            return Counts(
                runs={str(status): _int(count) for status, count in runs},
                letters=[(str(kind), str(outcome), bool(seen), _int(count)) for kind, outcome, seen, count in letters],
                events={str(name): _int(count) for name, count in events},
            )

        return await self.look(look, together=True)


def _by_run(keys: Iterable[int], rows: Iterable[Row]) -> dict[int, list[Message]]:
    """Return inbox rows by their run."""
    found: dict[int, list[Message]] = {key: [] for key in keys}
    for row in rows:
        found[_int(row[0])].append(Message._make(row[1:]))
    return found


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value
