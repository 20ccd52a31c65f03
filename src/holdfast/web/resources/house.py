"""Everything but runs: dead letters, workers, queues, limits, events, schedules, the audit trail."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Generic, Literal, TypeVar

import msgspec

from holdfast.errors import NoSuchSchedule
from holdfast.looking.about.past import PastTick
from holdfast.looking.acting.limits import LimitView
from holdfast.looking.desk import FiguresAsked
from holdfast.looking.views import LetterGroup, LetterView, QueueView, ScheduleView, WorkerView
from holdfast.schedules.preview import TickPreview
from holdfast.texts import shown
from holdfast.web.problems import Problem
from holdfast.web.routing import ApiAnswer, ApiCall, LongQuery, Nothing, zone_of

T = TypeVar("T")


class ListView(msgspec.Struct, Generic[T], frozen=True):
    """All there are."""

    items: list[T]


class LettersQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters."""

    limit: int = 50
    seen: Literal["false", "true", "all"] = "false"
    """Those that no person has seen, those that were seen, or all."""
    workflow: str | None = None
    before: str | None = None
    """The id of the last of the page before."""


class EventsQuery(LongQuery, frozen=True, kw_only=True):
    """Which events of a name."""

    name: str
    after: int = 0
    limit: int = 50


class PreviewQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose next ticks: of a schedule by its id, or of a timetable that is none yet."""

    id: str | None = None
    n: int = 20
    cron: str | None = None
    every: timedelta | None = None
    """As PT1H."""
    timezone: str = "UTC"


class GraphQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which workflow."""

    workflow: str


class AuditQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of the audit trail."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    before: int | None = None
    """The `next` of the page before."""


class FiguresQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which figures."""

    since: datetime | None = None
    """A day before `until` if it is not said, which is now if it is not said."""
    until: datetime | None = None
    last: timedelta | None = None
    """How far back instead of `since`, as PT1H or P7D."""
    workflow: str | None = None
    by: Literal["step", "workflow", "time"] = "step"


class BarsQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which time."""

    since: datetime | None = None
    """A day before `until` if it is not said, which is now if it is not said."""
    until: datetime | None = None
    workflow: str | None = None
    q: str = ""
    """A filter, of whose newest 10,000 runs it is told."""
    zone: str = "UTC"


class LimitQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many."""

    limit: int = 50


class VerifyQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which chain is checked."""

    run: str | None = None
    """What this run put on record; without it the audit trail."""


class ChainQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of which chain."""

    run: str | None = None
    """What this run put on record; without it the audit trail."""
    after: int = 0
    limit: int = 100


async def letters(call: ApiCall) -> ApiAnswer:
    seen = {"false": False, "true": True, "all": None}[call.query.seen]
    which = call.query
    found = await call.desk.letters(limit=which.limit, seen=seen, workflow=which.workflow, before=which.before)
    return ApiAnswer(ListView[LetterView](found))


async def letter_groups(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[LetterGroup](await call.desk.letter_groups()))


async def workers(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[WorkerView](await call.desk.workers()))


async def worker(call: ApiCall) -> ApiAnswer:
    for each in await call.desk.workers():
        if each.id == call.path["id"]:
            return ApiAnswer(each)
    raise Problem(404, "not-found", f"there is no worker {call.path['id']!r}, or none any more")


async def versions(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.versions()))


async def figures(call: ApiCall) -> ApiAnswer:
    asked: FiguresQuery = call.query
    if asked.last is not None and asked.since is not None:
        raise Problem(400, "bad-request", "say since or last, not both", field="last")
    which: FiguresAsked = {"since": asked.since, "until": asked.until, "workflow": asked.workflow, "by": asked.by}
    if asked.last is not None:
        which["last"] = asked.last
    return ApiAnswer(await call.desk.figures(**which))


async def inputs(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.inputs()))


async def bars(call: ApiCall) -> ApiAnswer:
    asked: BarsQuery = call.query
    desk = call.desk.in_zone(zone_of(asked.zone))
    return ApiAnswer(await desk.bars(asked.q, since=asked.since, until=asked.until, workflow=asked.workflow))


async def checks(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.checks(limit=call.query.limit)))


async def graph(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.graph(call.query.workflow))


async def queues(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[QueueView](await call.desk.queues()))


async def limits(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView[LimitView](await call.desk.limits()))


async def event_names(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.event_names()))


async def events(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.events(call.query.name, after=call.query.after, limit=call.query.limit))


class SchedulesQuery(LongQuery, frozen=True, kw_only=True):
    """Which schedules."""

    id: str | None = None
    """This one alone."""


async def schedules(call: ApiCall) -> ApiAnswer:
    found, wanted = await call.desk.schedules(), call.query.id
    if wanted is not None:
        found = [each for each in found if each.id == wanted]
        if not found:
            raise NoSuchSchedule(f"there is no schedule {shown(wanted)}")
    return ApiAnswer(ListView[ScheduleView](found))


async def preview(call: ApiCall) -> ApiAnswer:
    query: PreviewQuery = call.query
    ticks = await call.desk.preview(query.id, query.n, cron=query.cron, every=query.every, timezone=query.timezone)
    return ApiAnswer(ListView[TickPreview](ticks))


class PastQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Past ticks of which schedule: the newest, or those from `start` on and before `end`."""

    id: str
    start: datetime | None = None
    end: datetime | None = None
    n: int = 50


async def past(call: ApiCall) -> ApiAnswer:
    query: PastQuery = call.query
    return ApiAnswer(ListView[PastTick](await call.desk.past_ticks(query.id, query.start, query.end, n=query.n)))


async def audit(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.audit(**msgspec.structs.asdict(call.query)))


async def verify_audit(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.verify_audit(call.query.run))


async def chain(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.chain(call.query.run, after=call.query.after, limit=call.query.limit))


async def export_audit(call: ApiCall) -> ApiAnswer:
    if call.query.run is not None:
        await call.desk.evidence(call.query.run, limit=1)  # that there is no such run is said before the first row
    return ApiAnswer(call.desk.export_audit(call.query.run))


async def database(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.database())


async def doctor(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.doctor()))


async def held_back(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.held_back(call.path["id"])))
