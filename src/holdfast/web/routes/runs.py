"""Routes that look at runs."""

from __future__ import annotations

from holdfast.histories.recorded import RecordedRun
from holdfast.looking.about.arguments import ArgumentsView
from holdfast.looking.about.checks import MisfitView
from holdfast.looking.about.frames import FrameList
from holdfast.looking.about.graph import RunGraphView
from holdfast.looking.about.progress import ProgressView
from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
from holdfast.looking.about.state import StateView
from holdfast.looking.about.timeline import CallList, MomentList
from holdfast.looking.views import (
    AuditPageView,
    Count,
    HeldBackView,
    HistoryPage,
    Page,
    ResultView,
    RunView,
    StepList,
    Why,
)
from holdfast.web.resources import house, runs
from holdfast.web.resources.house import ListView
from holdfast.web.routing import Route, TellingQuery, get

ROUTES = [
    Route(
        method="GET",
        path="/runs",
        handler=runs.runs,
        query=runs.ListQuery,
        answers=Page,
        otherwise=runs.ChosenPage,
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
    get("/runs/{id}/result", runs.result, ResultView, "Say how a run ended", query=runs.ResultQuery, problems=(404,)),
    get(
        "/runs/{id}/bars",
        runs.bars,
        CallList,
        "Show the calls of a run with their attempts, waits and messages as they lie in time",
        query=runs.FactsQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/timeline",
        runs.timeline,
        MomentList,
        "Tell all that happened to a run and was done to it, in order of time",
        query=runs.FactsQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/children",
        runs.children,
        ChildList,
        "List the runs that a run started",
        query=runs.ChildrenQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/inbox",
        runs.inbox,
        InboxPage,
        "List what a run was sent and has not received",
        query=runs.InboxQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/frames",
        runs.frames,
        FrameList,
        "Show the code around where a run waits, or where its error or that of a step was raised",
        role="reader",
        query=runs.FramesQuery,
        problems=(404,),
    ),
    get(
        "/progress",
        runs.progress,
        ListView[ProgressView],
        "Tell how many steps of runs are done",
        query=runs.ProgressQuery,
    ),
    get(
        "/runs/{id}/evidence",
        runs.evidence,
        EvidencePage,
        "List what a run put on record",
        query=runs.AfterQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/audit",
        runs.audit,
        AuditPageView,
        "List what was done to a run, newest first",
        query=runs.BeforeQuery,
    ),
    get("/runs/{id}/graph", runs.graph, RunGraphView, "Show how each node of a run's graph stands", problems=(404,)),
    get(
        "/runs/{id}/misfit",
        runs.misfit,
        MisfitView,
        "Show where a run's history and the code at hand part",
        role="reader",
        problems=(404,),
    ),
    get(
        "/runs/{id}/state",
        runs.state,
        StateView,
        "Show what a run answers to its queries",
        role="reader",
        problems=(404,),
    ),
    get(
        "/runs/{id}/arguments",
        runs.arguments,
        ArgumentsView,
        "Say what a step was called with",
        query=runs.StepQuery,
        problems=(404,),
    ),
    get(
        "/runs/{id}/recording",
        runs.recording,
        RecordedRun,
        "Return a run's input and history, to be replayed",
        role="admin",
        problems=(404,),
    ),
]
