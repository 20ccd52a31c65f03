"""Acts that are not about one run in a state: start, send, publish, dead letters, schedules, pauses, purges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.looking.acting.requests import PurgeRequest, RevealRequest, ScheduleRequest, StartRequest, WorkKind
from holdfast.looking.desk import Desk
from holdfast.looking.views import Acted
from holdfast.web.problems import Problem
from holdfast.web.routing import ApiAnswer, ApiCall, Handler, Nothing

LONGEST_WAIT = timedelta(seconds=60)


class StartBody(StartRequest, frozen=True, kw_only=True):
    """A run to start; arguments go by name."""

    reason: str = ""


class MessageBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message, or an event."""

    name: str
    payload: Any = None
    id: str | None = None
    """One that was sent before is not sent again."""
    reason: str = ""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request, for whose reply is waited."""

    name: str
    payload: Any = None
    reason: str = ""
    timeout: timedelta = timedelta(seconds=30)
    """Up to a minute, as PT30S."""


class QueryBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question about the state of a run."""

    name: str
    arguments: dict[str, Any] = {}


class ReasonBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is done."""

    reason: str = ""


class ReplayBody(ReasonBody, frozen=True, kw_only=True):
    """How a dead letter is dealt with; of an event, to which run it goes, or to all that wait."""

    to: str | None = None
    broadcast: bool = False


class ReasonQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is done."""

    reason: str = ""


class ScheduleQuery(ReasonQuery, frozen=True, kw_only=True):
    """Which schedule."""

    id: str


class NamedLimitQuery(ReasonQuery, frozen=True, kw_only=True):
    """Which limit."""

    name: str


class ScheduleActBody(ReasonBody, frozen=True, kw_only=True):
    """Which schedule, and why."""

    id: str


class BackfillBody(ScheduleActBody, frozen=True, kw_only=True):
    """Past ticks of a schedule, from `start` on and before `end`."""

    start: datetime
    end: datetime
    limit: int = 1_000


class WorkBody(ReasonBody, frozen=True, kw_only=True):
    """Of what nothing begins, or begins again."""

    kind: WorkKind
    name: str


class RevealBody(RevealRequest, frozen=True, kw_only=True):
    """Which value is to be seen as it is stored, and why."""

    reason: str


class PurgeBody(PurgeRequest, frozen=True, kw_only=True):
    """What to delete, or, unless `dry_run` is false, only to count."""

    dry_run: bool = True
    reason: str = ""


async def start(call: ApiCall) -> ApiAnswer:
    body: StartBody = call.body
    given = msgspec.structs.asdict(body)
    reason = given.pop("reason")
    if given["id"] is None:
        given["id"] = call.headers.get("idempotency-key")
    acted = await call.desk.start(StartRequest(**given), by=call.who.name, reason=reason)
    where = f"{call.root}/api/v1/runs/{acted.run}"
    return ApiAnswer(acted, 201 if acted.changed else 200, {"Location": where})


async def send(call: ApiCall) -> ApiAnswer:
    body: MessageBody = call.body
    return ApiAnswer(
        await call.desk.send(call.path["id"], body.name, body.payload, by=call.who.name, reason=body.reason, id=body.id)
    )


async def publish(call: ApiCall) -> ApiAnswer:
    body: MessageBody = call.body
    return ApiAnswer(await call.desk.publish(body.name, body.payload, by=call.who.name, reason=body.reason, id=body.id))


async def ask(call: ApiCall) -> ApiAnswer:
    body: RequestBody = call.body
    if not timedelta(0) <= body.timeout <= LONGEST_WAIT:
        raise Problem(400, "bad-input", "timeout must be between nothing and PT60S", field="timeout")
    run_id = call.path["id"]
    try:
        return ApiAnswer(
            await call.desk.ask(
                run_id, body.name, body.payload, by=call.who.name, reason=body.reason, timeout=body.timeout
            )
        )
    except TimeoutError:
        raise Problem(
            504, "timed-out", f"run {run_id!r} did not reply in time; the request stays in its inbox", run_id=run_id
        ) from None


async def query(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.query(call.path["id"], call.body.name, call.body.arguments))


async def letter(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.letter(call.path["id"]))


async def acknowledge(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.acknowledge(call.path["id"], by=call.who.name, reason=call.body.reason))


async def replay(call: ApiCall) -> ApiAnswer:
    body: ReplayBody = call.body
    return ApiAnswer(
        await call.desk.replay(
            call.path["id"], by=call.who.name, reason=body.reason, to=body.to, broadcast=body.broadcast
        )
    )


async def remove_letter(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.remove_letter(call.path["id"], by=call.who.name, reason=call.query.reason))


async def reveal(call: ApiCall) -> ApiAnswer:
    if not call.redaction.reveals:
        raise Problem(403, "forbidden", "this dashboard reveals no value to anyone: it was made with reveal=False")
    given = msgspec.structs.asdict(call.body)
    reason = given.pop("reason")
    return ApiAnswer(await call.desk.reveal(call.path["id"], RevealRequest(**given), by=call.who.name, reason=reason))


ScheduleAct = Callable[..., Awaitable[Acted]]


def on_schedule(act: Callable[[Desk], ScheduleAct]) -> Handler:
    """Return the handler of an act on a schedule."""

    async def handler(call: ApiCall) -> ApiAnswer:
        return ApiAnswer(await act(call.desk)(call.body.id, by=call.who.name, reason=call.body.reason))

    return handler


async def backfill(call: ApiCall) -> ApiAnswer:
    body: BackfillBody = call.body
    return ApiAnswer(
        await call.desk.backfill_schedule(
            body.id, body.start, body.end, by=call.who.name, reason=body.reason, limit=body.limit
        )
    )


async def put_schedule(call: ApiCall) -> ApiAnswer:
    request: ScheduleRequest = call.body
    return ApiAnswer(await call.desk.put_schedule(call.query.id, request, by=call.who.name, reason=call.query.reason))


async def delete_schedule(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.delete_schedule(call.query.id, by=call.who.name, reason=call.query.reason))


async def pause_work(call: ApiCall) -> ApiAnswer:
    body: WorkBody = call.body
    return ApiAnswer(await call.desk.pause_work(body.kind, body.name, by=call.who.name, reason=body.reason))


async def resume_work(call: ApiCall) -> ApiAnswer:
    body: WorkBody = call.body
    return ApiAnswer(await call.desk.resume_work(body.kind, body.name, by=call.who.name, reason=body.reason))


async def override_limit(call: ApiCall) -> ApiAnswer:
    query: NamedLimitQuery = call.query
    return ApiAnswer(await call.desk.override_limit(query.name, call.body, by=call.who.name, reason=query.reason))


async def restore_limit(call: ApiCall) -> ApiAnswer:
    query: NamedLimitQuery = call.query
    return ApiAnswer(await call.desk.override_limit(query.name, None, by=call.who.name, reason=query.reason))


async def purge(call: ApiCall) -> ApiAnswer:
    given = msgspec.structs.asdict(call.body)
    dry_run, reason = given.pop("dry_run"), given.pop("reason")
    return ApiAnswer(await call.desk.purge(PurgeRequest(**given), by=call.who.name, reason=reason, dry_run=dry_run))
