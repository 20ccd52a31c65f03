"""What every SQL store offers to faces: bounded searches, and the state of everything besides runs."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.clock import Instant
from holdfast.contract.figures import FigureFilter, FigurePage
from holdfast.contract.heads import (
    MOST_COUNTED,
    MOST_UNREAD,
    Counted,
    EndsPage,
    HeadFilter,
    HeadPage,
    RunHead,
    WorkerAbout,
    WorkerLoad,
    WorkerRow,
)
from holdfast.contract.house import (
    MOST_LETTERS,
    MOST_NAMES,
    MOST_VALUES,
    AuditFilter,
    AuditPage,
    EventNameRow,
    EventQueueRow,
    EventWaiterRow,
    KeyHolder,
    LetterGroupRow,
    QueueRow,
)
from holdfast.contract.limits import Admission
from holdfast.contract.rows import AuditRow, EntryRow
from holdfast.contract.store import Store
from holdfast.stores.liveness import Fate
from holdfast.stores.sql import heads as searching
from holdfast.stores.sql.acts import search_acts
from holdfast.stores.sql.figures import sum_figures
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, Value, record_of

T = TypeVar("T")
Told = TypeVar("Told", WorkerAbout, WorkerLoad)
Look = Callable[[Statements], Coroutine[Any, Any, T]]

LAST_LETTER = "\U0010ffff"
_STATES = {Fate.ALIVE: "alive", Fate.HANGS: "silent", Fate.LAPSED: "silent"}


class SQLLooks(Store):
    """The reading side of a store, on the statements of queries/heads.sql and queries/house.sql."""

    looked_at = 0
    """How many rows all searches and counts of runs have looked at."""

    @abstractmethod
    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        """Read what is committed; with `together` all of it as of one moment, where it takes several statements.

        It must not take longer than a server is waited for, unless `patient`.
        """

    @abstractmethod
    async def fates(self) -> dict[str, Fate]:
        """Return what became of workers that were not declared dead and do not seem to be at work."""

    async def _read(self, statement: str, *rows: Row) -> list[Row]:
        """Return what one statement finds."""
        return await self.look(lambda db: db.read(statement, rows))

    async def heads(self, which: HeadFilter) -> HeadPage:
        page = await searching.search(self._look_on, which)
        self.looked_at += page.scanned
        return page

    async def count(self, which: HeadFilter, most: int = MOST_COUNTED) -> Counted:
        counted = await searching.count(self._look_on, which, most)
        self.looked_at += counted.scanned
        return counted

    async def ends(self, which: HeadFilter, most: int = MOST_COUNTED) -> EndsPage:
        page = await searching.ends(self._look_on, which, most)
        self.looked_at += page.scanned
        return page

    async def _look_on(self, look: Look[T]) -> T:
        """Look, and let other tasks have their turn: a search looks several times."""
        found = await self.look(look)
        await asyncio.sleep(0)
        return found

    async def heads_of(self, run_ids: Sequence[str]) -> dict[str, RunHead]:
        rows = await self._read("read_heads", *((run_id,) for run_id in run_ids)) if run_ids else []
        return {head.id: head for head in (record_of(RunHead, row) for row in rows)}

    async def purged(self, run_ids: Sequence[str], at: Instant) -> frozenset[str]:
        rows = await self._read("tombstone", *((run_id,) for run_id in run_ids)) if run_ids else []
        return frozenset(str(run_id) for run_id, _, _, expires in rows if (_int(expires) or 0) > at)

    async def workers(self) -> list[WorkerRow]:
        fates, moved = await self.fates(), self.clock.now() - self.lease_clock.now()
        found: list[WorkerRow] = []
        for name, state, host, pid, lease, heard, joined, about, load in await self._read("read_workers", ()):
            fate = Fate.ALIVE if state == "live" else Fate.DECLARED_DEAD
            found.append(
                WorkerRow(
                    id=str(name),
                    state=_STATES.get(fates.get(str(name), fate), "dead"),
                    host=str(host),
                    pid=_int(pid),
                    lease=_int(lease),
                    heard=_int(heard) + moved,
                    joined=_int(joined) + moved,
                    about=_told(str(about), WorkerAbout),
                    load=_told(str(load), WorkerLoad),
                )
            )
        return found

    async def last_acts(self, targets: Sequence[str], actions: Sequence[str]) -> dict[str, AuditRow]:
        wanted = [(target, action) for target in targets for action in actions]
        rows = await self._read("last_acts", *wanted) if wanted else []
        acts = sorted((record_of(AuditRow, row) for row in rows), key=lambda act: act.n)
        return {act.target: act for act in acts}

    async def key_holders(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], KeyHolder]:
        rows = await self._read("key_holders", *keys) if keys else []
        # A worker of an earlier version did not say since when.
        return {(str(activity), str(key)): KeyHolder(str(run), _int(at) or None) for activity, key, run, at in rows}

    async def waiting_since(self, keys: Sequence[int]) -> dict[int, Instant]:
        rows = await self._read("waiting_since", *((key,) for key in keys)) if keys else []
        return {_int(run): _int(since) for run, since in rows}

    async def facts_of_kind(self, key: int, kind: int, before: int) -> list[EntryRow]:
        return [EntryRow._make(row) for row in await self._read("read_entries_of_kind", (key, before, kind))]

    async def unread_names(self, keys: Sequence[int]) -> dict[int, tuple[str, ...]]:
        rows = await self._read("unread_names", *((key, MOST_UNREAD) for key in keys)) if keys else []
        found: dict[int, tuple[str, ...]] = {}
        for run, name, _ in rows:
            found[_int(run)] = (*found.get(_int(run), ()), str(name))
        return found

    async def attempts_given_up(self, steps: Sequence[tuple[str, str]]) -> dict[tuple[str, str], int]:
        rows = await self._read("attempts_given_up", *steps) if steps else []
        return {(str(run), str(step)): _int(attempts) for run, step, attempts in rows}

    async def takers(self, places: Sequence[tuple[int, str]]) -> dict[tuple[int, str], str]:
        rows = await self._read("takers", *places) if places else []
        return {(_int(run), str(queue)): str(owner) for run, queue, owner in rows if owner is not None}

    async def event_queues(self, names: Sequence[str]) -> dict[str, EventQueueRow]:
        rows = await self._read("read_event_queues", *((name,) for name in names)) if names else []
        return {
            str(name): EventQueueRow(_int(pending), None, None)
            if run is None
            else EventQueueRow(_int(pending), str(run), _int(at))
            for name, pending, run, at in rows
        }

    async def admissions(self, keys: Sequence[int]) -> dict[int, Admission]:
        rows = await self._read("admissions_of", *((key,) for key in keys)) if keys else []
        return {_int(key): record_of(Admission, row) for key, *row in rows}

    async def ended_counts(self) -> dict[str, int]:
        return {str(status): _int(count) for status, count in await self._read("count_ended", ())}

    async def queues(self) -> list[QueueRow]:
        async def look(db: Statements) -> tuple[list[Row], list[Row]]:
            waiting = await db.read("count_waiting_tasks", [(MOST_COUNTED, MOST_NAMES)])
            waiting = [*waiting, *await db.read("count_tasks_in_line", [(MOST_COUNTED,)])]
            return waiting, await db.read("count_taken_tasks", [(MOST_COUNTED,)])

        waiting, taken = await self.look(look, together=True)
        having = {(str(queue), str(activity)): _int(count) for queue, activity, count in taken}
        found: dict[tuple[str, str], tuple[int, Instant]] = {}
        for queue, activity, count, oldest in waiting:
            place, since = (str(queue), str(activity)), _int(oldest)
            known, before = found.get(place, (0, since))
            found[place] = (known + _int(count), min(since, before))
        return [
            QueueRow(*place, found.get(place, (0, None))[0], having.get(place, 0), found.get(place, (0, None))[1])
            for place in sorted(found.keys() | having.keys())
        ]

    async def event_names(self) -> list[EventNameRow]:
        async def look(db: Statements) -> tuple[list[Row], list[Row]]:
            queued = await db.read("queued_event_names", [(MOST_NAMES,)])
            return queued, await db.read("awaited_event_names", [(MOST_COUNTED, MOST_NAMES)])

        queued, awaited = await self.look(look, together=True)
        kept: dict[str, Row] = {str(name): tuple(rest) for name, *rest in queued}
        wanted: dict[str, Row] = {str(name): tuple(rest) for name, *rest in awaited}
        return [
            EventNameRow(name, *kept.get(name, (0, None)), *wanted.get(name, (0, None)))  # type: ignore[arg-type]  # as in EventNameRow
            for name in sorted(kept.keys() | wanted.keys())[:MOST_NAMES]
        ]

    async def event_waiters(self, name: str, limit: int = 50) -> list[EventWaiterRow]:
        rows = await self._read("read_event_waiters", (name, limit))
        return [EventWaiterRow(str(run), str(location), _int(since)) for run, location, since in rows]

    async def workflow_names(self, prefix: str = "", limit: int = MOST_NAMES) -> list[str]:
        return [str(name) for (name,) in await self._read("workflow_names", (prefix, prefix + LAST_LETTER, limit))]

    async def attribute_names(self, prefix: str = "", limit: int = MOST_NAMES) -> list[str]:
        return [str(name) for (name,) in await self._read("attribute_names", (prefix, prefix + LAST_LETTER, limit))]

    async def attribute_values(self, name: str, prefix: str = "", limit: int = MOST_VALUES) -> list[str]:
        rows = await self._read("attribute_values", (prefix, prefix + LAST_LETTER, limit, name))
        return [str(value) for (value,) in rows]

    async def acts(self, which: AuditFilter) -> AuditPage:
        return await search_acts(self._look_on, which)

    async def figures(self, which: FigureFilter) -> FigurePage:
        return await self.look(lambda db: sum_figures(db, which), together=True)

    async def letter_groups(self) -> list[LetterGroupRow]:
        async def look(db: Statements) -> list[Row]:
            return [row for kind in ("work", "event") for row in await db.read("group_letters", [(kind, MOST_LETTERS)])]

        return [record_of(LetterGroupRow, row) for row in await self.look(look)]


def _told(text: str, kind: type[Told]) -> Told:
    """Return what a worker told of itself; one of another version may tell it otherwise."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError:
        return kind()


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value
