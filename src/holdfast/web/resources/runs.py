"""Runs: lists of them, counts, and one of them from several sides."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

import msgspec

from holdfast.contract.rows import Status
from holdfast.errors import BadFilter
from holdfast.looking.views import Count, Head, RunView, StatusCount
from holdfast.web.problems import Problem
from holdfast.web.resources.house import ListView
from holdfast.web.routing import ApiAnswer, ApiCall, LongQuery, Nothing, TellingQuery, zone_of

LONGEST_WAIT = timedelta(seconds=60)


class RunQuery(TellingQuery, frozen=True, kw_only=True):
    """How much of a run is looked at."""

    facts: int | None = None
    """The newest so many facts alone (10,000 at most, which is what it is by itself): `partial` tells of more."""
    cut: bool = False
    """Of values longer than 64 KiB only how many bytes they have and how they begin."""


class ListQuery(TellingQuery, frozen=True, kw_only=True):
    """Which runs."""

    q: str = ""
    """A filter, as `status:failed created:-24h`."""
    limit: int = 50
    cursor: str | None = None
    """The `next` of the page before."""
    fields: str = ""
    """Of each run only these, divided by commas, and its id: `status,why`; all if it is not said."""


class ChosenPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs of which only some fields were asked for."""

    as_of: datetime
    items: list[dict[str, Any]]
    next: str | None = None
    partial: bool = False
    searched_to: datetime | None = None


class CountQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which runs are counted."""

    q: str = ""
    zone: str = "UTC"


class HistoryQuery(LongQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which facts of a history."""

    after: int = 0
    limit: int = 100
    newest: bool = False
    """The last ones instead of the first."""
    archived: bool = False
    """Those that a retry or rerun cut away."""


class ResultQuery(TellingQuery, frozen=True, kw_only=True):
    """How long an end is waited for."""

    wait: timedelta = timedelta(0)
    """Up to a minute, as PT30S."""


class ChildrenQuery(TellingQuery, frozen=True, kw_only=True):
    """Which runs that it started."""

    depth: int = 1


class InboxQuery(LongQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which messages of an inbox: those after a number, the oldest first."""

    after: int = 0
    limit: int = 100


class AfterQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of a list: those after a number, the oldest first."""

    after: int = 0
    limit: int = 100


class FramesQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which error the source is shown."""

    step: str | None = None
    """The path of a step: its last error. Without it where the run waits, or its own error."""


class ProgressQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which runs the progress is shown."""

    run: list[str]
    """Their ids, up to 50."""


class BeforeQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of a list: those before a number, the newest first."""

    before: int | None = None
    limit: int = 50


class FactsQuery(Nothing, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many facts of a run are read."""

    facts: int = 5_000
    """The newest so many, up to 10,000: `partial` says that there are more."""


class StepQuery(LongQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which step."""

    step: str
    """Its path."""


class CountsView(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs there are of each status."""

    items: list[StatusCount]


async def runs(call: ApiCall) -> ApiAnswer:
    desk = call.desk.in_zone(zone_of(call.query.zone))
    query: ListQuery = call.query
    wanted = _fields_of(query.fields)
    page = await desk.heads(query.q, limit=query.limit, cursor=query.cursor, relative=query.relative)
    if not wanted:
        return ApiAnswer(page)
    shown = [call.redaction.shown(head, call.who) for head in page.items]
    items = [{name: value for name, value in head.items() if name in wanted} for head in shown]
    return ApiAnswer(ChosenPage(**{**msgspec.structs.asdict(page), "items": items}))


def _fields_of(asked: str) -> set[str]:
    """Return the names of fields that were asked for; the id is always among them, for it is what a run is known by."""
    if not asked:
        return set()
    wanted = {name.strip() for name in asked.split(",")}
    for name in wanted - set(Head.__struct_fields__):
        near = get_close_matches(name, Head.__struct_fields__, 1)
        more = f"did you mean {near[0]}?" if near else f"there are: {', '.join(Head.__struct_fields__)}"
        raise Problem(400, "bad-request", f"a run has no field {name[:60]!r}; {more}", field="fields")
    return wanted | {"id"}


async def count(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.in_zone(zone_of(call.query.zone)).count(call.query.q))


async def counts(call: ApiCall) -> ApiAnswer:
    if not call.query.q:
        return ApiAnswer(CountsView(items=await call.desk.counts()))
    desk = call.desk.in_zone(zone_of(call.query.zone))
    as_of = (await desk.heads(call.query.q, limit=1)).as_of
    found: list[StatusCount] = []
    for status in Status:
        try:
            counted = await desk.count(f"{call.query.q} status:{status}")
        except BadFilter:
            counted = Count(n=0, exact=True)  # the filter itself was read above, and leaves this status out
        found.append(StatusCount(status=str(status), n=counted.n, exact=counted.exact, as_of=as_of))
    return ApiAnswer(CountsView(items=found))


async def run(call: ApiCall) -> ApiAnswer:
    view = await _run(call)
    tag = etag_of(view)
    if tag in tags_of(call.headers.get("if-none-match", "")):
        return ApiAnswer(None, 304, {"ETag": tag})
    return ApiAnswer(view, 200, {"ETag": tag})


async def _run(call: ApiCall) -> RunView:
    desk = call.desk.in_zone(zone_of(call.query.zone))
    return await desk.run(call.path["id"], relative=call.query.relative, facts=call.query.facts)


def etag_of(view: RunView) -> str:
    """Return the tag of a run as it is shown: another one when anything of it is another."""
    content = msgspec.json.encode(msgspec.structs.replace(view, as_of=view.head.created_at))
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def tags_of(header: str) -> set[str]:
    """Return the tags that a header names."""
    return {tag.strip().removeprefix("W/") for tag in header.split(",")}


async def why(call: ApiCall) -> ApiAnswer:
    desk = call.desk.in_zone(zone_of(call.query.zone))
    return ApiAnswer(await desk.why(call.path["id"], relative=call.query.relative))


async def steps(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.steps(call.path["id"]))


async def result(call: ApiCall) -> ApiAnswer:
    desk = call.desk.in_zone(zone_of(call.query.zone))
    wait = min(call.query.wait, LONGEST_WAIT)
    return ApiAnswer(await desk.result(call.path["id"], wait=wait, relative=call.query.relative))


async def children(call: ApiCall) -> ApiAnswer:
    desk = call.desk.in_zone(zone_of(call.query.zone))
    return ApiAnswer(await desk.children(call.path["id"], depth=call.query.depth, relative=call.query.relative))


async def inbox(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.inbox(call.path["id"], after=call.query.after, limit=call.query.limit))


async def frames(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.frames(call.path["id"], call.query.step))


async def progress(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(ListView(await call.desk.progress(call.query.run)))


async def evidence(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.evidence(call.path["id"], after=call.query.after, limit=call.query.limit))


async def audit(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.audit(target=call.path["id"], limit=call.query.limit, before=call.query.before))


async def bars(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.calls(call.path["id"], facts=call.query.facts))


async def timeline(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.timeline(call.path["id"], facts=call.query.facts))


async def arguments(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.arguments(call.path["id"], call.query.step))


async def graph(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.run_graph(call.path["id"]))


async def state(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.state(call.path["id"]))


async def misfit(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.misfit(call.path["id"]))


async def recording(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(await call.desk.record(call.path["id"], by=call.who.name))


async def history(call: ApiCall) -> ApiAnswer:
    query: HistoryQuery = call.query
    return ApiAnswer(
        await call.desk.history(
            call.path["id"],
            after=query.after,
            limit=query.limit,
            newest=query.newest,
            archived=query.archived,
        )
    )
