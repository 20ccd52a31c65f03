"""Routes that look beside runs: letters, workers, queues, limits, events, schedules, the audit trail, the database."""

from __future__ import annotations

from holdfast.looking.about.chain import ChainPage
from holdfast.looking.about.checks import CheckView
from holdfast.looking.about.figures import BarsView, FiguresView
from holdfast.looking.about.graph import GraphView
from holdfast.looking.about.inputs import InputView
from holdfast.looking.about.past import PastTick
from holdfast.looking.about.suggesting import Suggestions
from holdfast.looking.about.versions import VersionView
from holdfast.looking.acting.limits import LimitView
from holdfast.looking.database import DatabaseView
from holdfast.looking.views import (
    AuditPageView,
    EventNameView,
    EventPage,
    HouseFinding,
    LetterGroup,
    LetterView,
    QueueView,
    ScheduleView,
    VerdictView,
    WorkerView,
)
from holdfast.schedules.preview import TickPreview
from holdfast.web.resources import house, suggest
from holdfast.web.resources.house import ListView
from holdfast.web.routing import get

ROUTES = [
    get("/letters", house.letters, ListView[LetterView], "List dead letters, newest first", query=house.LettersQuery),
    get("/letters/groups", house.letter_groups, ListView[LetterGroup], "List unseen dead letters by their cause"),
    get("/workers", house.workers, ListView[WorkerView], "List the workers: alive, silent, dead"),
    get("/workers/{id}", house.worker, WorkerView, "Show one worker", problems=(404,)),
    get("/versions", house.versions, ListView[VersionView], "List the versions of workflows, and who has them"),
    get(
        "/figures",
        house.figures,
        FiguresView,
        "Tell how often runs and steps ended and how long they took",
        query=house.FiguresQuery,
    ),
    get("/inputs", house.inputs, ListView[InputView], "List what workflows take, as JSON Schema"),
    get("/bars", house.bars, BarsView, "Tell how many runs ended and failed over time", query=house.BarsQuery),
    get("/checks", house.checks, ListView[CheckView], "List checks before deploys", query=house.LimitQuery),
    get("/graph", house.graph, GraphView, "Show which steps of a workflow follow which", query=house.GraphQuery),
    get("/suggest", suggest.suggest, Suggestions, "Complete a filter", query=suggest.SuggestQuery),
    get("/names/workflows", suggest.workflows, ListView[str], "List names of workflows", query=suggest.PrefixQuery),
    get("/names/attributes", suggest.attributes, ListView[str], "List names of attributes", query=suggest.PrefixQuery),
    get("/names/values", suggest.values, ListView[str], "List values of an attribute", query=suggest.ValuesQuery),
    get("/queues", house.queues, ListView[QueueView], "List what waits in queues, and what was taken from them"),
    get("/limits", house.limits, ListView[LimitView], "List the limits that workers share"),
    get("/events", house.event_names, ListView[EventNameView], "List the names of events: queued, and waited for"),
    get(
        "/events/queued",
        house.events,
        EventPage,
        "List the events that are queued under a name",
        query=house.EventsQuery,
    ),
    get(
        "/schedules",
        house.schedules,
        ListView[ScheduleView],
        "List the schedules, or show one",
        query=house.SchedulesQuery,
        problems=(404,),
    ),
    get(
        "/schedules/preview",
        house.preview,
        ListView[TickPreview],
        "List the next ticks of a schedule, or of a timetable",
        query=house.PreviewQuery,
        problems=(404,),
    ),
    get(
        "/schedules/past",
        house.past,
        ListView[PastTick],
        "List past ticks of a schedule, and which have a run",
        query=house.PastQuery,
        problems=(404,),
    ),
    get("/audit", house.audit, AuditPageView, "List what was done, newest first", query=house.AuditQuery),
    get(
        "/audit/verify",
        house.verify_audit,
        VerdictView,
        "Check that the audit trail is whole",
        query=house.VerifyQuery,
        problems=(404,),
    ),
    get(
        "/audit/chain",
        house.chain,
        ChainPage,
        "List the rows of a chain as they are stored, to be checked",
        role="admin",
        query=house.ChainQuery,
        problems=(404,),
    ),
    get(
        "/audit/export",
        house.export_audit,
        str,
        "Return all that was done, or what a run put on record, to be checked by others",
        query=house.VerifyQuery,
        problems=(404,),
        role="admin",
    ),
    get("/database", house.database, DatabaseView, "Say how the database is"),
    get("/doctor", house.doctor, ListView[HouseFinding], "Say what is wrong with the house"),
]
