"""Routes that act: on one run or many, dead letters, schedules and whole queues."""

from __future__ import annotations

from typing import Any

from holdfast.looking.acting.causes import LetterPlan
from holdfast.looking.acting.limits import LimitNumbers
from holdfast.looking.acting.purging import PurgeReport
from holdfast.looking.acting.requests import RevealedView, ScheduleRequest
from holdfast.looking.views import Acted, Answer, LetterDetail, SelectionView
from holdfast.web.resources import acts, doing
from holdfast.web.resources.bulk import BulkBody, Bulks, BulkView, LettersBody
from holdfast.web.routing import LARGE_BODY, Route, act

_GONE_OR_BUSY = (404, 409, 429)
_DOING = [
    act(
        "POST",
        "/runs",
        doing.start,
        "Start a run",
        body=doing.StartBody,
        largest=LARGE_BODY,
        statuses=(200, 201),
        problems=(409, 429),
    ),
    act(
        "POST",
        "/runs/{id}/messages",
        doing.send,
        "Send a run a message",
        body=doing.MessageBody,
        largest=LARGE_BODY,
        problems=_GONE_OR_BUSY,
    ),
    act(
        "POST",
        "/runs/{id}/requests",
        doing.ask,
        "Send a run a request, and wait for its reply",
        body=doing.RequestBody,
        largest=LARGE_BODY,
        answers=Answer,
        problems=(*_GONE_OR_BUSY, 504),
    ),
    act(
        "POST",
        "/runs/{id}/queries",
        doing.query,
        "Ask the code of a run about its state",
        body=doing.QueryBody,
        answers=Answer,
        role="reader",
        problems=(404, 409),
    ),
    act(
        "POST",
        "/runs/{id}/reveal",
        doing.reveal,
        "See one masked value of a run as it is stored; that it was seen, by whom and why, is on record",
        body=doing.RevealBody,
        answers=RevealedView,
        problems=(404,),
    ),
    act(
        "POST",
        "/events",
        doing.publish,
        "Publish an event to the runs that wait for it",
        body=doing.MessageBody,
        largest=LARGE_BODY,
        problems=(429,),
    ),
    act(
        "GET",
        "/letters/{id}",
        doing.letter,
        "Show one dead letter with what it holds",
        answers=LetterDetail,
        role="viewer",
        problems=(404,),
    ),
    act(
        "POST",
        "/letters/{id}/acknowledge",
        doing.acknowledge,
        "Note that a dead letter was seen",
        body=doing.ReasonBody,
        problems=(404,),
    ),
    act(
        "POST",
        "/letters/{id}/replay",
        doing.replay,
        "Let the run of a dead letter go on, or deliver its event again",
        body=doing.ReplayBody,
        problems=_GONE_OR_BUSY,
    ),
    act("DELETE", "/letters/{id}", doing.remove_letter, "Forget a dead letter", query=doing.ReasonQuery),
    act(
        "POST",
        "/schedules/pause",
        doing.on_schedule(lambda desk: desk.pause_schedule),
        "Let a schedule start nothing",
        body=doing.ScheduleActBody,
        problems=(404,),
    ),
    act(
        "POST",
        "/schedules/resume",
        doing.on_schedule(lambda desk: desk.resume_schedule),
        "Let a paused schedule go on",
        body=doing.ScheduleActBody,
        problems=(404,),
    ),
    act(
        "POST",
        "/schedules/trigger",
        doing.on_schedule(lambda desk: desk.trigger_schedule),
        "Start a run of a schedule now",
        body=doing.ScheduleActBody,
        problems=(404, 409, 429),
    ),
    act(
        "POST",
        "/schedules/backfill",
        doing.backfill,
        "Start the runs of past ticks",
        body=doing.BackfillBody,
        problems=(404, 409),
    ),
    act(
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
    act(
        "DELETE",
        "/schedules",
        doing.delete_schedule,
        "Forget a schedule; its runs stay",
        query=doing.ScheduleQuery,
        role="admin",
        problems=(404,),
    ),
    act(
        "POST",
        "/work/pause",
        doing.pause_work,
        "Let nothing begin of a workflow, a queue or a limit",
        body=doing.WorkBody,
    ),
    act("POST", "/work/resume", doing.resume_work, "Let a paused workflow, queue or limit go on", body=doing.WorkBody),
    act(
        "PUT",
        "/limits",
        doing.override_limit,
        "Put other numbers of a limit in force until they are cleared",
        query=doing.NamedLimitQuery,
        body=LimitNumbers,
    ),
    act(
        "DELETE",
        "/limits",
        doing.restore_limit,
        "Let the numbers of a limit be those that engines declare",
        query=doing.NamedLimitQuery,
    ),
    act(
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


def acting_routes() -> list[Route]:
    """Return every route that acts, for one server: it keeps how acts on many runs go."""
    bulks = Bulks()
    return [
        *_DOING,
        *_ACTS,
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
            method="POST",
            path="/letters/bulk",
            handler=bulks.letters,
            body=LettersBody,
            answers=LetterPlan,
            also={202: BulkView},
            summary="Count what an act on all unseen dead letters of a cause would come to, or begin it",
            role="operator",
            statuses=(200, 202),
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
