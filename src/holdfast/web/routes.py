"""The table of routes: every operation of the API, who may use it, what it takes and what it answers."""

from __future__ import annotations

from holdfast.looking.views import Count, HistoryPage, Page, RunView, StepList, Why
from holdfast.web.resources import runs, server
from holdfast.web.routing import Route, RouteTable, TellingQuery

ROUTES = [
    Route(
        method="GET",
        path="/",
        handler=server.server,
        answers=server.ServerView,
        summary="Say what answers here, and to whom",
    ),
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
]
TABLE = RouteTable(ROUTES)
