"""The table of routes: every operation of the API, who may use it, what it takes and what it answers."""

from __future__ import annotations

from typing import Any

from holdfast.histories.recorded import RecordedRun
from holdfast.looking.about.arguments import ArgumentsView
from holdfast.looking.about.chain import ChainPage
from holdfast.looking.about.checks import CheckView
from holdfast.looking.about.figures import BarsView, FiguresView
from holdfast.looking.about.frames import FrameList
from holdfast.looking.about.graph import GraphView, RunGraphView
from holdfast.looking.about.inputs import InputView
from holdfast.looking.about.past import PastTick
from holdfast.looking.about.progress import ProgressView
from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
from holdfast.looking.about.state import StateView
from holdfast.looking.about.suggesting import Suggestions
from holdfast.looking.about.versions import VersionView
from holdfast.looking.acting.purging import PurgeReport
from holdfast.looking.acting.requests import ScheduleRequest
from holdfast.looking.database import DatabaseView
from holdfast.looking.doctor import HouseFinding
from holdfast.looking.views import (
    Acted,
    Answer,
    AuditPageView,
    Count,
    EventNameView,
    EventPage,
    HeldBackView,
    HistoryPage,
    LetterDetail,
    LetterGroup,
    LetterView,
    LimitView,
    Page,
    QueueView,
    ResultView,
    RunView,
    ScheduleView,
    SelectionView,
    StepList,
    VerdictView,
    Why,
    WorkerView,
)
from holdfast.schedules.preview import TickPreview
from holdfast.web.resources import acts, doing, house, runs, server, suggest, tokens
from holdfast.web.resources.bulk import BulkBody, Bulks, BulkView
from holdfast.web.resources.house import ListView
from holdfast.web.routing import LARGE_BODY, Handler, LiveQuery, Route, TellingQuery


def routes() -> list[Route]:
    """Return every route, for one server: acts on many runs are kept by the server that was asked for them."""
    bulks = Bulks()
    return [*_RUNS, *_SIDES, *_DOING, *_ACTS, *_bulk(bulks), *_HOUSE, *tokens.ROUTES, *_SERVER]


def _get(path: str, handler: Handler, answers: Any, summary: str, **more: Any) -> Route:
    return Route(method="GET", path=path, handler=handler, answers=answers, summary=summary, **more)


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
        query=runs.CountQuery,
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
        query=runs.RunQuery,
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

_SIDES = [
    _get("/runs/{id}/result", runs.result, ResultView, "Say how a run ended", query=runs.ResultQuery, problems=(404,)),
    _get(
        "/runs/{id}/children",
        runs.children,
        ChildList,
        "List the runs that a run started",
        query=runs.ChildrenQuery,
        problems=(404,),
    ),
    _get(
        "/runs/{id}/inbox",
        runs.inbox,
        InboxPage,
        "List what a run was sent and has not received",
        query=runs.AfterQuery,
        problems=(404,),
    ),
    _get(
        "/runs/{id}/frames",
        runs.frames,
        FrameList,
        "Show the code around where a run waits, or where its error or that of a step was raised",
        role="reader",
        query=runs.FramesQuery,
        problems=(404,),
    ),
    _get(
        "/progress",
        runs.progress,
        ListView[ProgressView],
        "Tell how many steps of runs are done",
        query=runs.ProgressQuery,
    ),
    _get("/runs/{id}/evidence", runs.evidence, EvidencePage, "List what a run put on record", query=runs.AfterQuery),
    _get(
        "/runs/{id}/audit",
        runs.audit,
        AuditPageView,
        "List what was done to a run, newest first",
        query=runs.BeforeQuery,
    ),
    _get("/runs/{id}/graph", runs.graph, RunGraphView, "Show how each node of a run's graph stands", problems=(404,)),
    _get(
        "/runs/{id}/state",
        runs.state,
        StateView,
        "Show what a run answers to its queries",
        role="reader",
        problems=(404,),
    ),
    _get(
        "/runs/{id}/arguments",
        runs.arguments,
        ArgumentsView,
        "Say what a step was called with",
        query=runs.StepQuery,
        problems=(404,),
    ),
    _get(
        "/runs/{id}/recording",
        runs.recording,
        RecordedRun,
        "Return a run's input and history, to be replayed",
        role="admin",
        problems=(404,),
    ),
]


def _do(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
    given: dict[str, Any] = {"answers": Acted, "role": "operator", **more}
    return Route(method=method, path=path, handler=handler, summary=summary, **given)


_GONE_OR_BUSY = (404, 409, 429)
_DOING = [
    _do(
        "POST",
        "/runs",
        doing.start,
        "Start a run",
        body=doing.StartBody,
        largest=LARGE_BODY,
        statuses=(200, 201),
        problems=(409, 429),
    ),
    _do(
        "POST",
        "/runs/{id}/messages",
        doing.send,
        "Send a run a message",
        body=doing.MessageBody,
        largest=LARGE_BODY,
        problems=_GONE_OR_BUSY,
    ),
    _do(
        "POST",
        "/runs/{id}/requests",
        doing.ask,
        "Send a run a request, and wait for its reply",
        body=doing.RequestBody,
        largest=LARGE_BODY,
        answers=Answer,
        problems=(*_GONE_OR_BUSY, 504),
    ),
    _do(
        "POST",
        "/runs/{id}/queries",
        doing.query,
        "Ask the code of a run about its state",
        body=doing.QueryBody,
        answers=Answer,
        role="reader",
        problems=(404, 409),
    ),
    _do(
        "POST",
        "/events",
        doing.publish,
        "Publish an event to the runs that wait for it",
        body=doing.MessageBody,
        largest=LARGE_BODY,
        problems=(429,),
    ),
    _do(
        "GET",
        "/letters/{id}",
        doing.letter,
        "Show one dead letter with what it holds",
        answers=LetterDetail,
        role="viewer",
        problems=(404,),
    ),
    _do(
        "POST",
        "/letters/{id}/acknowledge",
        doing.acknowledge,
        "Note that a dead letter was seen",
        body=doing.ReasonBody,
        problems=(404,),
    ),
    _do(
        "POST",
        "/letters/{id}/replay",
        doing.replay,
        "Let the run of a dead letter go on, or deliver its event again",
        body=doing.ReplayBody,
        problems=_GONE_OR_BUSY,
    ),
    _do("DELETE", "/letters/{id}", doing.remove_letter, "Forget a dead letter", query=doing.ReasonQuery),
    _do(
        "POST",
        "/schedules/pause",
        doing.on_schedule(lambda desk: desk.pause_schedule),
        "Let a schedule start nothing",
        body=doing.ScheduleActBody,
        problems=(404,),
    ),
    _do(
        "POST",
        "/schedules/resume",
        doing.on_schedule(lambda desk: desk.resume_schedule),
        "Let a paused schedule go on",
        body=doing.ScheduleActBody,
        problems=(404,),
    ),
    _do(
        "POST",
        "/schedules/trigger",
        doing.on_schedule(lambda desk: desk.trigger_schedule),
        "Start a run of a schedule now",
        body=doing.ScheduleActBody,
        problems=(404, 409, 429),
    ),
    _do(
        "POST",
        "/schedules/backfill",
        doing.backfill,
        "Start the runs of past ticks",
        body=doing.BackfillBody,
        problems=(404, 409),
    ),
    _do(
        "PUT",
        "/schedules",
        doing.put_schedule,
        "Put a schedule",
        query=doing.ScheduleQuery,
        body=ScheduleRequest,
        role="admin",
        largest=LARGE_BODY,
        problems=(404, 409),
    ),
    _do(
        "DELETE",
        "/schedules",
        doing.delete_schedule,
        "Forget a schedule; its runs stay",
        query=doing.ScheduleQuery,
        role="admin",
        problems=(404,),
    ),
    _do(
        "POST",
        "/work/pause",
        doing.pause_work,
        "Let nothing begin of a workflow, a queue or a limit",
        body=doing.WorkBody,
    ),
    _do("POST", "/work/resume", doing.resume_work, "Let a paused workflow, queue or limit go on", body=doing.WorkBody),
    _do(
        "POST",
        "/purge",
        doing.purge,
        "Delete what is old enough, or count it",
        body=doing.PurgeBody,
        role="admin",
        answers=PurgeReport,
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
            answers=SelectionView,
            also={202: BulkView},
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


_HOUSE = [
    _get("/letters", house.letters, ListView[LetterView], "List dead letters, newest first", query=house.LettersQuery),
    _get("/letters/groups", house.letter_groups, ListView[LetterGroup], "List unseen dead letters by their cause"),
    _get("/workers", house.workers, ListView[WorkerView], "List the workers: alive, silent, dead"),
    _get("/workers/{id}", house.worker, WorkerView, "Show one worker", problems=(404,)),
    _get("/versions", house.versions, ListView[VersionView], "List the versions of workflows, and who has them"),
    _get(
        "/figures",
        house.figures,
        FiguresView,
        "Tell how often runs and steps ended and how long they took",
        query=house.FiguresQuery,
    ),
    _get("/inputs", house.inputs, ListView[InputView], "List what workflows take, as JSON Schema"),
    _get("/bars", house.bars, BarsView, "Tell how many runs ended and failed over time", query=house.BarsQuery),
    _get("/checks", house.checks, ListView[CheckView], "List checks before deploys", query=house.LimitQuery),
    _get("/graph", house.graph, GraphView, "Show which steps of a workflow follow which", query=house.GraphQuery),
    _get("/suggest", suggest.suggest, Suggestions, "Complete a filter", query=suggest.SuggestQuery),
    _get("/names/workflows", suggest.workflows, ListView[str], "List names of workflows", query=suggest.PrefixQuery),
    _get("/names/attributes", suggest.attributes, ListView[str], "List names of attributes", query=suggest.PrefixQuery),
    _get("/names/values", suggest.values, ListView[str], "List values of an attribute", query=suggest.ValuesQuery),
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
    _get(
        "/schedules/past",
        house.past,
        ListView[PastTick],
        "List past ticks of a schedule, and which have a run",
        query=house.PastQuery,
        problems=(404,),
    ),
    _get("/audit", house.audit, AuditPageView, "List what was done, newest first", query=house.AuditQuery),
    _get(
        "/audit/verify", house.verify_audit, VerdictView, "Check that the audit trail is whole", query=house.VerifyQuery
    ),
    _get(
        "/audit/chain",
        house.chain,
        ChainPage,
        "List the rows of a chain as they are stored, to be checked",
        role="admin",
        query=house.ChainQuery,
    ),
    _get(
        "/audit/export",
        house.export_audit,
        str,
        "Return all that was done, or what a run put on record, to be checked by others",
        query=house.VerifyQuery,
        role="admin",
    ),
    _get("/database", house.database, DatabaseView, "Say how the database is"),
    _get("/doctor", house.doctor, ListView[HouseFinding], "Say what is wrong with the house"),
]
_SERVER = [
    _get("/live", server.live, str, "Send views as they change, as events", query=LiveQuery, problems=(404,)),
    _get("/", server.server, server.ServerView, "Say what answers here, and to whom"),
]
