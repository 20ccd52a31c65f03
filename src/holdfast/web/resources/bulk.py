"""Acts on many runs: a dry run that counts and makes a selection, the act itself in the background, its progress."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, NoSuchRun, StoreError
from holdfast.looking.acts import ACTIONS, Options
from holdfast.looking.desk import Desk
from holdfast.looking.views import BulkProgress, SelectionView
from holdfast.web.problems import Problem, problem_of
from holdfast.web.routing import ApiAnswer, ApiCall, zone_of

MOST_OF_OPERATORS = 1_000
"""On how many runs at once an operator may act who is no admin; and how many may be named one by one."""
_MOST_KEPT = 100
_SAMPLE = 20
_PAGE = 50
_LASTS = timedelta(minutes=10)


class BulkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dry run, with `q` or `ids`; or, with the `selection` that a dry run made, the act itself."""

    action: str = ""
    """Of a dry run; that of a selection is known."""
    q: str | None = None
    ids: list[str] | None = None
    selection: str | None = None
    dry_run: bool = True
    reason: str = ""
    zone: str = "UTC"
    before: int | None = None
    """Where an act that was stopped goes on: the `next` of its progress."""
    compensate: bool = False
    duration: timedelta | None = None
    from_step: str | None = None
    step: str = ""
    attributes: dict[str, Any] = {}


class BulkView(msgspec.Struct, frozen=True, kw_only=True):
    """How an act on many runs goes: running, finished, stopped or failed."""

    id: str
    state: str
    by: str
    progress: BulkProgress
    said: str = ""
    """Of one that failed: what went wrong. What was done before is done."""


class _Bulk:
    """An act on many runs that is under way, or was."""

    def __init__(self, action: str, by: str) -> None:
        self.id = secrets.token_hex(8)
        self.by = by
        self.state = "running"
        self.progress = BulkProgress(action=action, changed=0)
        self.said = ""
        self.stopping = False
        self.task: asyncio.Task[None] | None = None

    @property
    def view(self) -> BulkView:
        return BulkView(id=self.id, state=self.state, by=self.by, progress=self.progress, said=self.said)

    async def run(self, pages: AsyncGenerator[BulkProgress, None]) -> None:
        try:
            async for self.progress in pages:
                if self.stopping and not self.progress.finished:
                    self.state = "stopped"
                    return
            self.state = "finished"
        except Exception as error:
            problem = problem_of(error)
            self.state, self.said = "failed", problem.detail if problem is not None else type(error).__name__
            if problem is None:
                raise
        finally:
            await pages.aclose()


class Bulks:
    """The acts on many runs that this server was asked for: those under way, and the last ones that are over."""

    def __init__(self) -> None:
        self._bulks: dict[str, _Bulk] = {}
        self._seal = Seal()

    async def post(self, call: ApiCall) -> ApiAnswer:
        """Count what an act would come to, or begin it."""
        body: BulkBody = call.body
        if body.selection is None and body.action not in ACTIONS:
            raise Problem(400, "bad-input", f"there is no act {body.action!r}; there are {', '.join(ACTIONS)}")
        given = [name for name in ("q", "ids", "selection") if getattr(body, name) is not None]
        if len(given) != 1 or (body.selection is not None) == body.dry_run:
            raise Problem(
                400, "bad-input", "give q or ids for a dry run, or the selection of a dry run with dry_run false"
            )
        if body.selection is None:
            return ApiAnswer(await self._select(call, body))
        return self._begin(call, body)

    async def _select(self, call: ApiCall, body: BulkBody) -> SelectionView:
        _check_role(call, body.action)
        if body.ids is not None:
            found = await _select_ids(call.desk, body.action, body.ids)
        else:
            found = await call.desk.in_zone(zone_of(body.zone)).select(body.action, body.q or "")
        sealed = self._seal.closed(
            Chosen(
                action=body.action,
                matched=found.matched if found.exact else MOST_OF_OPERATORS + 1,
                selection=found.selection,
                ids=body.ids or [],
            )
        )
        return msgspec.structs.replace(found, selection=sealed)

    def _begin(self, call: ApiCall, body: BulkBody) -> ApiAnswer:
        chosen = self._seal.opened(body.selection or "")
        _check_role(call, chosen.action)
        if body.action and chosen.action != body.action:
            raise Problem(400, "bad-input", f"the selection is for {chosen.action}, not for {body.action}")
        if chosen.matched > MOST_OF_OPERATORS:
            call.who.need("admin", f"acting on more than {MOST_OF_OPERATORS:,} runs")
        self._forget_old()
        options = Options(
            by=call.who.name,
            reason=body.reason,
            compensate=body.compensate,
            duration=body.duration,
            from_step=body.from_step,
            step=body.step,
            attributes=body.attributes,
        )
        pages = (
            _one_by_one(call.desk, chosen, options)
            if chosen.ids
            else call.desk.bulk(chosen.selection, options, before=body.before)
        )
        bulk = _Bulk(chosen.action, call.who.name)
        bulk.task = asyncio.create_task(bulk.run(pages))
        self._bulks[bulk.id] = bulk
        return ApiAnswer(bulk.view, 202, {"Location": f"{call.root}/api/v1/bulk/{bulk.id}"})

    async def get(self, call: ApiCall) -> ApiAnswer:
        """Return how an act on many runs goes."""
        return ApiAnswer(self._of(call).view)

    async def stop(self, call: ApiCall) -> ApiAnswer:
        """Stop an act on many runs after the page in hand."""
        bulk = self._of(call)
        bulk.stopping = True
        if bulk.task is not None:
            await asyncio.wait([bulk.task])
        return ApiAnswer(bulk.view)

    def view(self, bulk_id: str) -> BulkView:
        """Return how an act on many runs goes.

        Raises:
            Problem: 404, there is no such act.
        """
        if bulk_id not in self._bulks:
            raise Problem(404, "not-found", f"this server knows no act on many runs {bulk_id!r}")
        return self._bulks[bulk_id].view

    def _of(self, call: ApiCall) -> _Bulk:
        self.view(call.path["id"])
        return self._bulks[call.path["id"]]

    def _forget_old(self) -> None:
        over = [each.id for each in self._bulks.values() if each.state != "running"]
        for bulk_id in over[: max(0, len(self._bulks) - _MOST_KEPT + 1)]:
            del self._bulks[bulk_id]
        if len(self._bulks) >= _MOST_KEPT:
            raise Problem(
                429, "too-many", f"{_MOST_KEPT} acts on many runs are under way here", headers={"Retry-After": "5"}
            )


def _check_role(call: ApiCall, action: str) -> None:
    if action == "terminate":
        call.who.need("admin", "terminate runs")


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """What a dry run chose, and how many it counted."""

    action: str
    matched: int
    selection: str = ""
    ids: list[str] = []


class Seal:
    """Lets a client keep what this server said, and brings it back unchanged: what is done is what was counted."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def closed(self, chosen: Chosen) -> str:
        """Return it as a text for a client to keep."""
        text = base64.urlsafe_b64encode(msgspec.json.encode(chosen)).decode().rstrip("=")
        return f"{text}.{self._mark(text)}"

    def opened(self, sealed: str) -> Chosen:
        """Return what a client has kept.

        Raises:
            Problem: 409, it is not what this server said.
        """
        text, _, mark = sealed.partition(".")
        if not hmac.compare_digest(mark.encode(), self._mark(text).encode()):
            raise Problem(
                409,
                "conflict",
                "this server made no such selection, or was started again since; look again with a dry run",
            )
        return msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=Chosen)

    def _mark(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()


async def _select_ids(desk: Desk, action: str, ids: list[str]) -> SelectionView:
    """Return what acting on runs that are named would come to."""
    if not 1 <= len(ids) <= MOST_OF_OPERATORS or len(set(ids)) != len(ids):
        raise Problem(400, "bad-input", f"ids must name 1 to {MOST_OF_OPERATORS:,} runs, each once", field="ids")
    can: list[str] = []
    cannot = Counter[str]()
    for run_id in ids:
        try:
            said = (await desk.act(action, run_id, Options(by="dry run", dry_run=True))).said
        except StoreError:
            raise
        except HoldfastError as error:
            cannot["not there" if isinstance(error, NoSuchRun) else str(error)] += 1
            continue
        if said.startswith("it is "):
            cannot[said.removeprefix("it is ")] += 1
        else:
            can.append(run_id)
    return SelectionView(
        selection="",
        action=action,
        matched=len(ids),
        exact=True,
        can=len(can),
        cannot=dict(cannot),
        sample=can[:_SAMPLE],
        expires_at=(await desk.heads(limit=1)).as_of + _LASTS,
    )


async def _one_by_one(desk: Desk, chosen: Chosen, options: Options) -> AsyncGenerator[BulkProgress, None]:
    """Act on runs that are named, and tell after each page what came of all so far."""
    changed, cannot, failed = 0, Counter[str](), Counter[str]()
    errors: dict[str, str] = {}
    for number, run_id in enumerate(chosen.ids, 1):
        try:
            done = await desk.act(chosen.action, run_id, options)
        except StoreError:
            raise
        except HoldfastError as error:
            failed[type(error).__name__] += 1
            if len(errors) < _SAMPLE:
                errors[run_id] = str(error)
        else:
            changed += done.changed
            if not done.changed:
                cannot[done.said.removeprefix("it is ")] += 1
        finished = number == len(chosen.ids)
        if finished or number % _PAGE == 0:
            yield BulkProgress(
                action=chosen.action,
                changed=changed,
                cannot=dict(cannot),
                failed=dict(failed),
                errors=dict(errors),
                finished=finished,
            )
