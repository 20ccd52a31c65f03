"""The desk over HTTP: the same interface, asked of a server on another machine, by the standard library alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from copy import copy
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from urllib.parse import quote

import msgspec

from holdfast import errors
from holdfast.histories.recorded import RecordedRun
from holdfast.looking import views
from holdfast.looking.about.arguments import ArgumentsView
from holdfast.looking.about.chain import ChainPage
from holdfast.looking.about.checks import MisfitView
from holdfast.looking.about.figures import BarsView, FiguresView
from holdfast.looking.about.frames import FrameList
from holdfast.looking.about.graph import GraphView, RunGraphView
from holdfast.looking.about.inputs import InputView
from holdfast.looking.about.past import PastTick
from holdfast.looking.about.progress import ProgressView
from holdfast.looking.about.runs import ChildList, EvidencePage, InboxPage
from holdfast.looking.about.state import StateView
from holdfast.looking.about.suggesting import Suggestions
from holdfast.looking.about.timeline import CallList, MomentList
from holdfast.looking.about.versions import VersionView
from holdfast.looking.acting.causes import LetterPlan
from holdfast.looking.acting.limits import LimitView
from holdfast.looking.acting.purging import PurgeReport
from holdfast.looking.acting.requests import RevealedView
from holdfast.looking.acting.tokens import NewToken, TokenRequest, TokenView
from holdfast.looking.database import DatabaseView, StoreView
from holdfast.looking.desk import AuditAsked, Desk, FiguresAsked, SpanAsked
from holdfast.looking.views import HouseFinding
from holdfast.schedules.preview import TickPreview
from holdfast.web.asking import Asking

if TYPE_CHECKING:
    from holdfast.looking.acting.causes import LetterCause
    from holdfast.looking.acting.limits import LimitNumbers
    from holdfast.looking.acting.requests import PurgeRequest, RevealRequest, ScheduleRequest, StartRequest, WorkKind
    from holdfast.looking.acts import Options
    from holdfast.looking.bulk import Selection
    from holdfast.web.resources.bulk import BulkView

T = TypeVar("T")

_POLL = 0.3
_PAGE = 1_000


class RemoteDesk(Asking, Desk):
    """A desk of another process, at the address under which its dashboard is mounted.

    Who acts is whom the server knows the token by, whatever is said here.

    Args:
        url: as `https://shop.example.com/workflows`.
        token: sent as `Authorization: Bearer`.
        zone: the time zone of filters and sentences, as Europe/Berlin.
    """

    def __init__(self, url: str, token: str, *, zone: str = "UTC") -> None:
        super().__init__(url, token)
        self._zone = zone

    def in_zone(self, zone: tzinfo | None) -> Self:
        other = copy(self)
        other._zone = str(zone) if zone is not None else "UTC"
        return other

    def discreet(self) -> Self:
        return self

    # Runs.

    async def heads(
        self, which: str = "", *, limit: int = 50, cursor: str | None = None, relative: bool = False
    ) -> views.Page:
        return await self._told("/runs", views.Page, relative, q=which, limit=limit, cursor=cursor)

    async def count(self, which: str = "") -> views.Count:
        return await self._get("/counts/runs", views.Count, q=which, zone=self._zone)

    async def bars(self, which: str = "", **span: Unpack[SpanAsked]) -> BarsView:
        return await self._get("/bars", BarsView, q=which, zone=self._zone, **span)

    async def counts(self) -> list[views.StatusCount]:
        return await self._items("/counts", views.StatusCount)

    async def why(self, run_id: str, *, relative: bool = False) -> views.Why:
        return await self._told(f"{_run(run_id)}/why", views.Why, relative)

    async def source(self, run_id: str) -> views.SourceLine | None:
        return (await self.why(run_id)).source

    async def frames(self, run_id: str, step: str | None = None) -> FrameList:
        return await self._get(f"{_run(run_id)}/frames", FrameList, step=step)

    async def progress(self, ids: Sequence[str]) -> list[ProgressView]:
        return await self._items("/progress", ProgressView, run=ids)

    async def run(self, run_id: str, *, relative: bool = False, facts: int | None = None) -> views.RunView:
        return await self._told(_run(run_id), views.RunView, relative, facts=facts)

    async def steps(self, run_id: str) -> views.StepList:
        return await self._get(f"{_run(run_id)}/steps", views.StepList)

    async def result(self, run_id: str, *, wait: timedelta = timedelta(0), relative: bool = False) -> views.ResultView:
        path = f"{_run(run_id)}/result"
        while True:
            part = min(wait, timedelta(seconds=60))
            found = await self._told(path, views.ResultView, relative, wait=_duration(part))
            wait -= part
            if found.ended or wait <= timedelta(0):
                return found

    async def children(self, run_id: str, *, depth: int = 1, relative: bool = False) -> ChildList:
        return await self._told(f"{_run(run_id)}/children", ChildList, relative, depth=depth)

    async def inbox(self, run_id: str, *, after: int = 0, limit: int = 100) -> InboxPage:
        return await self._get(f"{_run(run_id)}/inbox", InboxPage, after=after, limit=limit)

    async def evidence(self, run_id: str, *, after: int = 0, limit: int = 100) -> EvidencePage:
        return await self._get(f"{_run(run_id)}/evidence", EvidencePage, after=after, limit=limit)

    async def history(
        self, run_id: str, *, after: int = 0, limit: int = 100, newest: bool = False, archived: bool = False
    ) -> views.HistoryPage:
        path = f"{_run(run_id)}/history"
        return await self._get(path, views.HistoryPage, after=after, limit=limit, newest=newest, archived=archived)

    async def calls(self, run_id: str, *, facts: int = 5_000) -> CallList:
        return await self._get(f"{_run(run_id)}/bars", CallList, facts=facts)

    async def timeline(self, run_id: str, *, facts: int = 5_000) -> MomentList:
        return await self._get(f"{_run(run_id)}/timeline", MomentList, facts=facts)

    async def arguments(self, run_id: str, step: str) -> ArgumentsView:
        return await self._get(f"{_run(run_id)}/arguments", ArgumentsView, step=step)

    async def record(self, run_id: str, *, by: str | None = None) -> RecordedRun:
        return await self._get(f"{_run(run_id)}/recording", RecordedRun)

    async def held_back(self, run_id: str) -> list[views.HeldBackView]:
        return await self._items(f"{_run(run_id)}/held-back", views.HeldBackView)

    # Acts.

    async def act(self, action: str, run_id: str, options: Options) -> views.Acted:
        if action == "attributes":
            path = f"{_run(run_id)}/attributes"
            query = {"reason": options.reason, "dry_run": options.dry_run}
            return await self._send("PATCH", path, views.Acted, options.attributes, **query)
        body: dict[str, Any] = {"reason": options.reason, "dry_run": options.dry_run}
        more: dict[str, dict[str, Any]] = {
            "cancel": {"compensate": options.compensate},
            "pause": {"duration": options.duration},
            "rerun": {"from_step": options.from_step},
            "nudge": {"step": options.step},
        }
        body |= more.get(action, {})
        return await self._send("POST", f"{_run(run_id)}/{_part(action)}", views.Acted, body)

    async def select(
        self, action: str, which: str = "", *, ids: Sequence[str] = (), count: bool = True
    ) -> views.SelectionView:
        body = {"action": action, "zone": self._zone, "count": count, **({"ids": list(ids)} if ids else {"q": which})}
        return await self._send("POST", "/bulk", views.SelectionView, body)

    async def chosen(self, selection: str) -> Selection:
        from holdfast.looking.bulk import unchecked

        return unchecked(selection)

    async def bulk(
        self, selection: str, options: Options, *, before: int | None = None
    ) -> AsyncGenerator[views.BulkProgress, None]:
        from holdfast.web.resources.bulk import BulkView

        given = msgspec.structs.asdict(options)
        body = {name: given[name] for name in ("reason", "compensate", "duration", "from_step", "step", "attributes")}
        body |= {"selection": selection, "dry_run": False, "before": before}
        async with aclosing(self._followed(await self._send("POST", "/bulk", BulkView, body))) as pages:
            async for page in pages:
                yield page

    async def _followed(self, bulk: BulkView) -> AsyncGenerator[views.BulkProgress, None]:
        """Tell how an act on many goes until it is over; leave the iteration to stop it."""
        from holdfast.web.resources.bulk import BulkView

        told: views.BulkProgress | None = None
        try:
            while bulk.state == "running":
                await asyncio.sleep(_POLL)
                bulk = await self._get(f"/bulk/{_part(bulk.id)}", BulkView)
                if bulk.progress != told and bulk.state == "running":
                    told = bulk.progress
                    yield told
            if bulk.state == "failed":
                raise errors.StoreError(bulk.said)
            yield bulk.progress
        finally:
            if bulk.state == "running":
                await self._send("DELETE", f"/bulk/{_part(bulk.id)}", BulkView, None)

    async def start(self, request: StartRequest, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/runs", views.Acted, {**msgspec.structs.asdict(request), "reason": reason})

    async def send(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> views.Acted:
        body = {"name": name, "payload": payload, "reason": reason, "id": id}
        return await self._send("POST", f"{_run(run_id)}/messages", views.Acted, body)

    async def publish(
        self, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> views.Acted:
        body = {"name": name, "payload": payload, "reason": reason, "id": id}
        return await self._send("POST", "/events", views.Acted, body)

    async def ask(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", timeout: timedelta
    ) -> views.Answer:
        body = {"name": name, "payload": payload, "reason": reason, "timeout": timeout}
        return await self._send("POST", f"{_run(run_id)}/requests", views.Answer, body)

    async def query(self, run_id: str, name: str, arguments: dict[str, Any] | None = None) -> views.Answer:
        body = {"name": name, "arguments": arguments or {}}
        return await self._send("POST", f"{_run(run_id)}/queries", views.Answer, body)

    async def reveal(self, run_id: str, request: RevealRequest, *, by: str, reason: str) -> RevealedView:
        body = {**msgspec.structs.asdict(request), "reason": reason}
        return await self._send("POST", f"{_run(run_id)}/reveal", RevealedView, body)

    async def pause_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/work/pause", views.Acted, {"kind": kind, "name": name, "reason": reason})

    async def resume_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/work/resume", views.Acted, {"kind": kind, "name": name, "reason": reason})

    async def override_limit(
        self, name: str, numbers: LimitNumbers | None, *, by: str, reason: str = ""
    ) -> views.Acted:
        how = "DELETE" if numbers is None else "PUT"
        return await self._send(how, "/limits", views.Acted, numbers, name=name, reason=reason)

    async def acknowledge(self, letter_id: str, *, by: str, reason: str = "") -> views.Acted:
        path = f"/letters/{_part(letter_id)}/acknowledge"
        return await self._send("POST", path, views.Acted, {"reason": reason})

    async def replay(
        self, letter_id: str, *, by: str, reason: str = "", to: str | None = None, broadcast: bool = False
    ) -> views.Acted:
        body = {"reason": reason, "to": to, "broadcast": broadcast}
        return await self._send("POST", f"/letters/{_part(letter_id)}/replay", views.Acted, body)

    async def remove_letter(self, letter_id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("DELETE", f"/letters/{_part(letter_id)}", views.Acted, None, reason=reason)

    async def plan_letters(self, action: str, cause: LetterCause) -> LetterPlan:
        body = {"action": action, **msgspec.structs.asdict(cause)}
        return await self._send("POST", "/letters/bulk", LetterPlan, body)

    async def act_on_letters(
        self, action: str, cause: LetterCause, until: str, *, by: str, reason: str = ""
    ) -> AsyncGenerator[views.BulkProgress, None]:
        from holdfast.web.resources.bulk import BulkView

        body = {"action": action, **msgspec.structs.asdict(cause), "until": until, "dry_run": False, "reason": reason}
        async with aclosing(self._followed(await self._send("POST", "/letters/bulk", BulkView, body))) as pages:
            async for page in pages:
                yield page

    async def put_schedule(self, id: str, request: ScheduleRequest, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("PUT", "/schedules", views.Acted, request, id=id, reason=reason)

    async def pause_schedule(self, id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/schedules/pause", views.Acted, {"id": id, "reason": reason})

    async def resume_schedule(self, id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/schedules/resume", views.Acted, {"id": id, "reason": reason})

    async def trigger_schedule(self, id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("POST", "/schedules/trigger", views.Acted, {"id": id, "reason": reason})

    async def backfill_schedule(
        self, id: str, start: datetime, end: datetime, *, by: str, reason: str = "", limit: int = 1_000
    ) -> views.Acted:
        body = {"id": id, "start": start, "end": end, "reason": reason, "limit": limit}
        return await self._send("POST", "/schedules/backfill", views.Acted, body)

    async def delete_schedule(self, id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("DELETE", "/schedules", views.Acted, None, id=id, reason=reason)

    async def purge(self, request: PurgeRequest, *, by: str, reason: str = "", dry_run: bool = True) -> PurgeReport:
        body = {**msgspec.structs.asdict(request), "reason": reason, "dry_run": dry_run}
        return await self._send("POST", "/purge", PurgeReport, body)

    async def create_token(self, request: TokenRequest, *, by: str, reason: str = "") -> NewToken:
        body = {**msgspec.structs.asdict(request), "reason": reason}
        return await self._send("POST", "/tokens", NewToken, body)

    async def revoke_token(self, id: str, *, by: str, reason: str = "") -> views.Acted:
        return await self._send("DELETE", f"/tokens/{_part(id)}", views.Acted, None, reason=reason)

    async def tokens(self) -> list[TokenView]:
        return await self._items("/tokens", TokenView)

    # The house.

    async def letters(
        self, *, limit: int = 50, seen: bool | None = False, workflow: str | None = None, before: str | None = None
    ) -> list[views.LetterView]:
        wanted = {False: "false", True: "true", None: "all"}[seen]
        which = {"limit": limit, "seen": wanted, "workflow": workflow, "before": before}
        return await self._items("/letters", views.LetterView, **which)

    async def letter(self, letter_id: str) -> views.LetterDetail:
        return await self._get(f"/letters/{_part(letter_id)}", views.LetterDetail)

    async def letter_groups(self) -> list[views.LetterGroup]:
        return await self._items("/letters/groups", views.LetterGroup)

    async def store(self) -> StoreView:
        about: dict[str, str] = await self._get("/", dict)
        return StoreView(kind=about["store"], name=about["database"], durability=about["durability"])

    async def database(self) -> DatabaseView:
        return await self._get("/database", DatabaseView)

    async def doctor(self) -> list[HouseFinding]:
        return await self._items("/doctor", HouseFinding)

    async def workers(self) -> list[views.WorkerView]:
        return await self._items("/workers", views.WorkerView)

    async def versions(self) -> list[VersionView]:
        return await self._items("/versions", VersionView)

    async def queues(self) -> list[views.QueueView]:
        return await self._items("/queues", views.QueueView)

    async def event_names(self) -> list[views.EventNameView]:
        return await self._items("/events", views.EventNameView)

    async def events(self, name: str, *, after: int = 0, limit: int = 50) -> views.EventPage:
        return await self._get("/events/queued", views.EventPage, name=name, after=after, limit=limit)

    async def workflows(self, prefix: str = "") -> list[str]:
        return await self._items("/names/workflows", str, prefix=prefix)

    async def attributes(self, prefix: str = "") -> list[str]:
        return await self._items("/names/attributes", str, prefix=prefix)

    async def attribute_values(self, name: str, prefix: str = "") -> list[str]:
        return await self._items("/names/values", str, name=name, prefix=prefix)

    async def suggest(self, text: str, at: int | None = None) -> Suggestions:
        return await self._get("/suggest", Suggestions, q=text, at=at)

    async def inputs(self) -> list[InputView]:
        return await self._items("/inputs", InputView)

    async def graph(self, workflow: str) -> GraphView:
        return await self._get("/graph", GraphView, workflow=workflow)

    async def run_graph(self, run_id: str) -> RunGraphView:
        return await self._get(f"{_run(run_id)}/graph", RunGraphView)

    async def misfit(self, run_id: str) -> MisfitView:
        return await self._get(f"{_run(run_id)}/misfit", MisfitView)

    async def state(self, run_id: str) -> StateView:
        return await self._get(f"{_run(run_id)}/state", StateView)

    async def figures(self, **which: Unpack[FiguresAsked]) -> FiguresView:
        last = which.pop("last", None)
        if last is not None and which.get("since") is None:
            which["since"] = (which.get("until") or (await self.heads(limit=1)).as_of) - last
        return await self._get("/figures", FiguresView, **which)

    async def schedules(self) -> list[views.ScheduleView]:
        return await self._items("/schedules", views.ScheduleView)

    async def limits(self) -> list[LimitView]:
        return await self._items("/limits", LimitView)

    async def preview(
        self,
        schedule: str | None = None,
        n: int = 20,
        *,
        cron: str | None = None,
        every: timedelta | None = None,
        timezone: str = "UTC",
    ) -> list[TickPreview]:
        said = _duration(every) if every is not None else None
        return await self._items(
            "/schedules/preview", TickPreview, id=schedule, n=n, cron=cron, every=said, timezone=timezone
        )

    async def past_ticks(
        self, schedule: str, start: datetime | None = None, end: datetime | None = None, *, n: int = 50
    ) -> list[PastTick]:
        first, last = (each.isoformat() if each is not None else None for each in (start, end))
        return await self._items("/schedules/past", PastTick, id=schedule, start=first, end=last, n=n)

    async def verify_audit(
        self, run_id: str | None = None, *, told: Callable[[int], None] | None = None
    ) -> views.VerdictView:
        return await self._get("/audit/verify", views.VerdictView, run=run_id)

    async def chain(self, run_id: str | None = None, *, after: int = 0, limit: int = 100) -> ChainPage:
        return await self._get("/audit/chain", ChainPage, run=run_id, after=after, limit=limit)

    async def export_audit(self, run_id: str | None = None) -> AsyncGenerator[bytes, None]:
        after: int | None = 0
        while after is not None:
            page = await self.chain(run_id, after=after, limit=_PAGE)
            for row in page.items:
                yield msgspec.json.encode(row.audit_row() if run_id is None else row.evidence_row()) + b"\n"
            after = page.next

    async def audit(self, **which: Unpack[AuditAsked]) -> views.AuditPageView:
        return await self._get("/audit", views.AuditPageView, **which)

    async def _told(self, path: str, kind: type[T], relative: bool, **query: Any) -> T:
        return await self._get(path, kind, relative=relative, zone=self._zone, **query)


def _run(run_id: str) -> str:
    """Return the path of a run.

    Raises:
        InvalidId: it can be the id of none.
    """
    from holdfast.definitions import check_run_id

    return f"/runs/{quote(check_run_id(run_id), safe='')}"


def _part(text: str) -> str:
    return quote(text, safe="")


def _duration(length: timedelta) -> str:
    written: str = msgspec.to_builtins(length)
    return written
