"""What a desk on a store shows besides runs: workers, queues, events, names, the audit trail, dead letters."""

from __future__ import annotations

import asyncio
from copy import copy
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from holdfast.clock import Instant, from_datetime, to_datetime
from holdfast.contract.heads import HeadFilter
from holdfast.contract.house import MOST_VALUES, AuditFilter
from holdfast.contract.rows import TERMINAL, LetterFilter, ScheduleRow, Status
from holdfast.contract.store import Store
from holdfast.errors import BadInput, NoSuchLetter, NoSuchSchedule
from holdfast.looking.desk import AuditAsked, Desk, FiguresAsked
from holdfast.looking.views import (
    AuditPageView,
    AuditView,
    BodyView,
    EventNameView,
    EventPage,
    EventView,
    EventWaiterView,
    HeldBackView,
    LetterDetail,
    LetterGroup,
    LetterView,
    QueueView,
    ScheduleView,
    StatusCount,
    VerdictView,
    WorkerView,
)
from holdfast.payloads import codec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from holdfast.definitions import Registry
    from holdfast.engine.engine import Engine
    from holdfast.looking.about.chain import ChainPage
    from holdfast.looking.about.figures import FiguresView
    from holdfast.looking.about.graph import GraphView
    from holdfast.looking.about.inputs import InputView
    from holdfast.looking.about.past import PastTick
    from holdfast.looking.about.suggesting import Suggestions
    from holdfast.looking.about.versions import VersionView
    from holdfast.looking.acting.limits import LimitView
    from holdfast.looking.database import DatabaseView, StoreView
    from holdfast.looking.views import HouseFinding
    from holdfast.schedules.preview import TickPreview

_MOST = 1_000
_LAST = 2**63 - 1
_WAITERS = 50
_COUNTED_EVERY = 10_000_000


class EndedCounts:
    """How many runs have ended, counted at most every ten seconds: that looks at all of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted: dict[str, int] = {}
        self._at: Instant | None = None
        self._counting = asyncio.Lock()

    async def look(self) -> tuple[dict[str, int], Instant]:
        """Return the counts, and when they were made."""
        async with self._counting:
            now = self._store.clock.now()
            if self._at is None or not 0 <= now - self._at < _COUNTED_EVERY:
                self._counted, self._at = await self._store.ended_counts(), now
            return self._counted, self._at


class LocalHouse(Desk):
    """The part of a desk on a store that is not about single runs."""

    def __init__(
        self,
        store: Store,
        *,
        zone: tzinfo | None = UTC,
        code: Registry | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._code = code
        self._zone = zone
        self._ended = EndedCounts(store)
        self._discreet = False

    def in_zone(self, zone: tzinfo | None) -> Self:
        other = copy(self)
        other._zone = zone
        return other

    def discreet(self) -> Self:
        other = copy(self)
        other._discreet = True
        return other

    @property
    def _now(self) -> Instant:
        return self._store.clock.now()

    async def letters(
        self, *, limit: int = 50, seen: bool | None = False, workflow: str | None = None, before: str | None = None
    ) -> list[LetterView]:
        from holdfast.looking.letters import letter_view

        check_limit(limit)
        which = LetterFilter(acknowledged=seen, limit=limit, workflow=workflow, before=before)
        return [letter_view(row) for row in await self._store.letters(which)]

    async def letter(self, letter_id: str) -> LetterDetail:
        from holdfast.looking.letters import letter_detail

        found = await self._store.letters(LetterFilter(id=letter_id, limit=1))
        if not found:
            raise NoSuchLetter(f"there is no dead letter {letter_id!r}")
        return letter_detail(found[0])

    async def letter_groups(self) -> list[LetterGroup]:
        from holdfast.looking.letters import groups_of

        return groups_of(await self._store.letter_groups())

    async def store(self) -> StoreView:
        from holdfast.looking.database import store_view

        return store_view(self._store)

    async def database(self) -> DatabaseView:
        from holdfast.looking.database import database_view

        return await database_view(self._store)

    async def doctor(self) -> list[HouseFinding]:
        from holdfast.looking.doctor import examine

        return await examine(self._store)

    async def workers(self) -> list[WorkerView]:
        return [
            WorkerView(
                id=row.id,
                state=row.state,
                host=row.host,
                pid=row.pid,
                heard_at=to_datetime(row.heard),
                joined_at=to_datetime(row.joined),
                holdfast=row.about.holdfast,
                python=row.about.python,
                queues=row.about.queues,
                workflows={each: of for each, of in row.about.workflows.items() if row.about.advances(each)},
                unserved=row.about.unserved,
                max_steps=row.about.max_steps,
                steps=row.load.steps,
                runs=row.load.runs,
                bodies=[
                    BodyView(run=each.run, step=each.step, attempt=each.attempt, since=to_datetime(each.since))
                    for each in row.load.bodies
                ],
            )
            for row in await self._store.workers()
        ]

    async def versions(self) -> list[VersionView]:
        from holdfast.looking.about.versions import version_views

        return await version_views(self._store)

    async def inputs(self) -> list[InputView]:
        from holdfast.looking.about.inputs import input_views

        return input_views(self._code)

    async def graph(self, workflow: str) -> GraphView:
        from holdfast.looking.about.graph import graph_view

        return await graph_view(self._store, workflow, self._code)

    async def figures(self, **which: Unpack[FiguresAsked]) -> FiguresView:
        from holdfast.looking.about.figures import figure_views

        return await figure_views(self._store, **which)

    async def counts(self) -> list[StatusCount]:
        now = self._now
        counted: dict[Status, tuple[int, bool, Instant]] = {}
        for status in Status:
            if status not in TERMINAL:
                n, exact, _ = await self._store.count(HeadFilter(statuses=(status,)))
                counted[status] = (n, exact, now)
        ended, as_of = await self._ended.look()
        for status in sorted(TERMINAL):
            counted[status] = (ended.get(status, 0), True, as_of)
        return [
            StatusCount(status=str(status), n=n, exact=exact, as_of=to_datetime(at))
            for status, (n, exact, at) in counted.items()
        ]

    async def queues(self) -> list[QueueView]:
        paused = {row.name for row in await self._store.paused() if row.kind == "queue"}
        alive = [worker.about.queues for worker in await self._store.workers() if worker.state == "alive"]
        return [
            QueueView(
                queue=row.queue,
                activity=row.activity,
                waiting=row.waiting,
                taken=row.taken,
                oldest=moment(row.oldest),
                paused=row.queue in paused,
                workers=sum(row.queue in queues for queues in alive),
            )
            for row in await self._store.queues()
        ]

    async def event_names(self) -> list[EventNameView]:
        from holdfast.looking.control import rule_words

        known = self._engine._events if self._engine is not None else None
        return [
            EventNameView(
                name=row.name,
                queued=row.queued,
                waiting=row.waiting,
                oldest=moment(row.oldest),
                since=moment(row.since),
                rule=rule_words(known.get(row.name)) if known is not None else "",
            )
            for row in await self._store.event_names()
        ]

    async def events(self, name: str, *, after: int = 0, limit: int = 50) -> EventPage:
        check_limit(limit)
        check_place("after", after)
        rows = await self._store.events(name, after, limit + 1)
        queued = [
            EventView(n=row.n, name=row.name, id=row.id, payload=codec.decode(row.payload), at=to_datetime(row.at))
            for row in rows[:limit]
        ]
        waiting = [
            EventWaiterView(run=row.run, since=to_datetime(row.since))
            for row in await self._store.event_waiters(name, _WAITERS)
        ]
        return EventPage(name=name, queued=queued, waiting=waiting, next=queued[-1].n if len(rows) > limit else None)

    async def workflows(self, prefix: str = "") -> list[str]:
        return await self._store.workflow_names(prefix)

    async def attributes(self, prefix: str = "") -> list[str]:
        return await self._store.attribute_names(prefix)

    async def attribute_values(self, name: str, prefix: str = "") -> list[str]:
        texts = await self._store.attribute_values(name, msgspec.json.encode(prefix).decode()[:-1])
        others = await self._store.attribute_values(name, prefix) if not prefix.startswith('"') else []
        return sorted({_written(value) for value in (*texts, *others)})[:MOST_VALUES]

    async def suggest(self, text: str, at: int | None = None) -> Suggestions:
        from holdfast.looking.about.suggesting import suggest

        return await suggest(self._store, self.attribute_values, text, at)

    async def schedules(self) -> list[ScheduleView]:
        from holdfast.looking.control import schedule_views

        return await schedule_views(self._store)

    async def limits(self) -> list[LimitView]:
        from holdfast.looking.control import limit_views

        return await limit_views(self._store)

    async def held_back(self, run_id: str) -> list[HeldBackView]:
        from holdfast.looking.control import held_back_views

        return await held_back_views(self._store, run_id)

    async def verify_audit(
        self, run_id: str | None = None, *, told: Callable[[int], None] | None = None
    ) -> VerdictView:
        from holdfast.looking.control import verdict_view

        return await verdict_view(self._store, run_id, told)

    async def chain(self, run_id: str | None = None, *, after: int = 0, limit: int = 100) -> ChainPage:
        from holdfast.looking.about.chain import chain_page

        check_limit(limit)
        check_place("after", after)
        return await chain_page(self._store, run_id, after, limit)

    async def export_audit(self, run_id: str | None = None) -> AsyncGenerator[bytes, None]:
        from holdfast.looking.control import chain_rows

        async for row in chain_rows(self._store, run_id):
            yield msgspec.json.encode(row) + b"\n"

    async def preview(
        self,
        schedule: str | None = None,
        n: int = 20,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
    ) -> list[TickPreview]:
        from holdfast.schedules.preview import previewed

        row = await self._schedule(schedule) if schedule is not None else None
        return previewed(row, self._now, n, {"cron": cron, "every": every, "timezone": timezone})

    async def past_ticks(
        self, schedule: str, start: datetime | None = None, end: datetime | None = None, *, n: int = 50
    ) -> list[PastTick]:
        from holdfast.looking.about.past import past_ticks

        return await past_ticks(self._store, await self._schedule(schedule), start, end, n)

    async def _schedule(self, id: str) -> ScheduleRow:
        row = next((row for row in await self._store.schedules() if row.id == id), None)
        if row is None:
            raise NoSuchSchedule(f"there is no schedule {id!r}")
        return row

    async def audit(self, **which: Unpack[AuditAsked]) -> AuditPageView:
        since, until = which.get("since"), which.get("until")
        others: Any = {name: value for name, value in which.items() if name not in ("since", "until")}
        check_limit(which.get("limit", 50))
        check_place("before", which.get("before"))
        page = await self._store.acts(
            AuditFilter(
                at_from=from_datetime(since) if since is not None else None,
                at_until=from_datetime(until) if until is not None else None,
                **others,
            )
        )
        items = [
            AuditView(
                n=row.n,
                at=to_datetime(row.at),
                actor=row.actor,
                action=row.action,
                target=row.target,
                detail=codec.readable(row.detail),
            )
            for row in page.rows
        ]
        return AuditPageView(items=items, next=page.next, partial=page.partial)


def moment(at: Instant | None) -> datetime | None:
    """Return an instant as views have it."""
    return to_datetime(at) if at is not None else None


def check_limit(limit: int) -> None:
    """Refuse a number of rows that no page has."""
    if not 1 <= limit <= _MOST:
        raise BadInput(f"limit must be between 1 and {_MOST:,}, not {limit}")


def check_place(name: str, number: int | None) -> None:
    """Refuse a number after or before which no row can be."""
    if number is not None and not 0 <= number <= _LAST:
        raise BadInput(f"{name} must be between 0 and {_LAST}, not {number}")


def _written(value: str) -> str:
    """Return a value of an attribute as the filter language writes it: a text that looks like nothing else is bare."""
    decoded = codec.decode(value)
    bare = isinstance(decoded, str) and decoded.replace("-", "").replace("_", "").isalnum() and not _is_json(decoded)
    return str(decoded) if bare else value


def _is_json(text: str) -> bool:
    try:
        codec.decode(text)
    except BadInput:
        return False
    return True
