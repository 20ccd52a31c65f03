"""Acts on many runs: a dry run that counts and makes a selection, the act itself in the background, its progress."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.looking.acting.causes import LetterCause
from holdfast.looking.acts import ACTIONS, Options
from holdfast.looking.views import BulkProgress
from holdfast.web.problems import Problem, problem_of
from holdfast.web.routing import ApiAnswer, ApiCall, zone_of

MOST_OF_OPERATORS = 1_000
"""On how many runs, or dead letters, at once an operator may act who is no admin."""
_MOST_KEPT = 100


class BulkBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dry run, with `q` or `ids`; or, with the `selection` that a dry run made, the act itself."""

    action: str = ""
    """Of a dry run; that of a selection is known."""
    q: str | None = None
    ids: list[str] | None = None
    selection: str | None = None
    dry_run: bool = True
    count: bool = True
    """Of a dry run: whether all that match are counted, up to 10,000, or only the newest 200 looked at."""
    reason: str = ""
    zone: str = "UTC"
    before: int | None = None
    """Where an act that was stopped goes on: the `next` of its progress."""
    compensate: bool = False
    duration: timedelta | None = None
    from_step: str | None = None
    step: str = ""
    attributes: dict[str, Any] = {}


class LettersBody(LetterCause, frozen=True, kw_only=True):
    """A dry run on all unseen dead letters of a cause; or, with the `until` that it answered, the act itself."""

    action: str
    dry_run: bool = True
    until: str = ""
    """The id of the newest letter that is acted on."""
    reason: str = ""


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
            _check_role(call, body.action)
            desk = call.desk.in_zone(zone_of(body.zone))
            return ApiAnswer(await desk.select(body.action, body.q or "", ids=body.ids or (), count=body.count))
        return await self._begin(call, body, body.selection)

    async def _begin(self, call: ApiCall, body: BulkBody, selection: str) -> ApiAnswer:
        chosen = await call.desk.chosen(selection)
        _check_role(call, chosen.action)
        if body.action and chosen.action != body.action:
            raise Problem(400, "bad-input", f"the selection is for {chosen.action}, not for {body.action}")
        _check_number(call, chosen.matched, chosen.exact, "runs")
        options = Options(
            by=call.who.name,
            reason=body.reason,
            compensate=body.compensate,
            duration=body.duration,
            from_step=body.from_step,
            step=body.step,
            attributes=body.attributes,
        )
        return self._begun(call, chosen.action, call.desk.bulk(selection, options, before=body.before))

    async def letters(self, call: ApiCall) -> ApiAnswer:
        """Count what an act on the dead letters of a cause would come to, or begin it."""
        body: LettersBody = call.body
        cause = LetterCause(workflow=body.workflow, step=body.step, error=body.error)
        plan = await call.desk.plan_letters(body.action, cause)
        if body.dry_run:
            return ApiAnswer(plan)
        if not body.until:
            raise Problem(400, "bad-input", "give the `until` that a dry run answered", field="until")
        _check_number(call, plan.matched, plan.exact, "dead letters")
        pages = call.desk.act_on_letters(body.action, cause, body.until, by=call.who.name, reason=body.reason)
        return self._begun(call, body.action, pages)

    def _begun(self, call: ApiCall, action: str, pages: AsyncGenerator[BulkProgress, None]) -> ApiAnswer:
        self._forget_old()
        bulk = _Bulk(action, call.who.name)
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


def _check_number(call: ApiCall, matched: int, exact: bool, what: str) -> None:
    if matched > MOST_OF_OPERATORS or not exact:
        call.who.need("admin", f"acting on more than {MOST_OF_OPERATORS:,} {what}")


def _check_role(call: ApiCall, action: str) -> None:
    if action == "terminate":
        call.who.need("admin", "terminate runs")
