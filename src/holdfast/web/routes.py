"""The table of routes: every operation of the API, who may use it, what it takes and what it answers."""

from __future__ import annotations

from typing import Any

from holdfast.looking.database import DatabaseView
from holdfast.looking.doctor import HouseFinding
from holdfast.looking.views import (
    Acted,
    AuditPageView,
    Count,
    EventNameView,
    EventPage,
    HeldBackView,
    HistoryPage,
    LetterGroup,
    LetterView,
    LimitView,
    Page,
    QueueView,
    RunView,
    ScheduleView,
    SelectionView,
    StepList,
    VerdictView,
    Why,
    WorkerView,
)
from holdfast.schedules.preview import TickPreview
from holdfast.web.resources import acts, house, runs, server
from holdfast.web.resources.bulk import BulkBody, Bulks, BulkView
from holdfast.web.resources.house import ListView
from holdfast.web.routing import LARGE_BODY, Handler, Route, TellingQuery


def routes() -> list[Route]:
    """Return every route, for one server: acts on many runs are kept by the server that was asked for them."""
    bulks = Bulks()
    return [*_RUNS, *_ACTS, *_bulk(bulks), *_HOUSE, *_SERVER]


_RUNS = [
    Route(
        method="GET",
        path="/runs",
        handler=runs.runs,
        query=runs.ListQuery,
        answers=Page,
        summary="List runs, newest first, each with why it is where it is",
    ),
    Route(
        method="GET",
        path="/counts",
        handler=runs.counts,
        answers=runs.CountsView,
        summary="Count the runs of each status",
    ),
    Route(
        method="GET",
        path="/counts/runs",
        handler=runs.count,
        query=runs.CountQuery,
        answers=Count,
        summary="Count runs, up to 10,000",
    ),
    Route(
        method="GET",
        path="/runs/{id}",
        handler=runs.run,
        query=TellingQuery,
        answers=RunView,
        summary="Show one run with its payloads and steps",
        statuses=(200, 304),
        problems=(404,),
    ),
    Route(
        method="GET",
        path="/runs/{id}/why",
        handler=runs.why,
        query=TellingQuery,
        answers=Why,
        summary="Say why a run is where it is",
        problems=(404,),
    ),
    Route(
        method="GET",
        path="/runs/{id}/steps",
        handler=runs.steps,
        answers=StepList,
        summary="List the steps of a run",
        problems=(404,),
    ),
    Route(
        method="GET",
        path="/runs/{id}/history",
        handler=runs.history,
        query=runs.HistoryQuery,
        answers=HistoryPage,
        summary="Show facts of a run's history",
        problems=(404,),
    ),
    Route(
        method="GET",
        path="/runs/{id}/held-back",
        handler=house.held_back,
        answers=ListView[HeldBackView],
        summary="List what flow control holds back of a run",
        problems=(404,),
    ),
]

_ACTS = [
    *(
        Route(
            method="POST",
            path=f"/runs/{{id}}/{action}",
            handler=acts.acting(action),
            body=body,
            answers=Acted,
            summary=said,
            role="admin" if action == "terminate" else "operator",
            problems=(404, 409, 412),
        )
        for (action, body), said in zip(acts.BODIES.items(), acts.SAID, strict=True)
    ),
    Route(
        method="PATCH",
        path="/runs/{id}/attributes",
        handler=acts.set_attributes,
        query=acts.AttributesQuery,
        body=dict[str, Any],
        answers=Acted,
        summary="Give a run attributes, by which it is found; null removes one",
        role="operator",
        problems=(404, 409, 412),
        largest=LARGE_BODY,
    ),
]


def _bulk(bulks: Bulks) -> list[Route]:
    return [
        Route(
            method="POST",
            path="/bulk",
            handler=bulks.post,
            body=BulkBody,
            answers=SelectionView | BulkView,
            summary="Count what an act on many runs would come to, or begin it",
            role="operator",
            statuses=(200, 202),
            problems=(404, 409),
            largest=LARGE_BODY,
        ),
        Route(
            method="GET",
            path="/bulk/{id}",
            handler=bulks.get,
            answers=BulkView,
            summary="Say how an act on many runs goes",
            role="operator",
            problems=(404,),
        ),
        Route(
            method="DELETE",
            path="/bulk/{id}",
            handler=bulks.stop,
            answers=BulkView,
            summary="Stop an act on many runs after the page in hand",
            role="operator",
            problems=(404,),
        ),
    ]


def _get(path: str, handler: Handler, answers: Any, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, answers=answers, summary=summary, **more)


_HOUSE = [
    _get("/letters", house.letters, ListView[LetterView], "List dead letters, newest first", query=house.LettersQuery),
    _get("/letters/groups", house.letter_groups, ListView[LetterGroup], "List unseen dead letters by their cause"),
    _get("/workers", house.workers, ListView[WorkerView], "List the workers: alive, silent, dead"),
    _get("/workers/{id}", house.worker, WorkerView, "Show one worker", problems=(404,)),
    _get("/queues", house.queues, ListView[QueueView], "List what waits in queues, and what was taken from them"),
    _get("/limits", house.limits, ListView[LimitView], "List the limits that workers share"),
    _get("/events", house.event_names, ListView[EventNameView], "List the names of events: queued, and waited for"),
    _get(
        "/events/queued",
        house.events,
        EventPage,
        "List the events that are queued under a name",
        query=house.EventsQuery,
    ),
    _get("/schedules", house.schedules, ListView[ScheduleView], "List the schedules"),
    _get(
        "/schedules/preview",
        house.preview,
        ListView[TickPreview],
        "List the next ticks of a schedule, or of a timetable",
        query=house.PreviewQuery,
        problems=(404,),
    ),
    _get("/audit", house.audit, AuditPageView, "List what was done, newest first", query=house.AuditQuery),
    _get(
        "/audit/verify", house.verify_audit, VerdictView, "Check that the audit trail is whole", query=house.VerifyQuery
    ),
    _get("/database", house.database, DatabaseView, "Say how the database is"),
    _get("/doctor", house.doctor, ListView[HouseFinding], "Say what is wrong with the house"),
]
_SERVER = [
    _get("/", server.server, server.ServerView, "Say what answers here, and to whom"),
]
