"""The acts of a desk on a store of this process, done with its engine."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import BadInput
from holdfast.looking.house import LocalHouse
from holdfast.looking.views import Acted, Answer, BulkProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.engine.engine import Engine
    from holdfast.looking.acting.causes import LetterCause, LetterPlan
    from holdfast.looking.acting.limits import LimitNumbers
    from holdfast.looking.acting.purging import PurgeReport
    from holdfast.looking.acting.requests import (
        PurgeRequest,
        RevealedView,
        RevealRequest,
        ScheduleRequest,
        StartRequest,
        WorkKind,
    )
    from holdfast.looking.acting.tokens import NewToken, TokenRequest, TokenView


class LocalActs(LocalHouse):
    """The part of a desk on a store that acts on all but runs in a state."""

    def _acting(self) -> Engine:
        if self._engine is None:
            raise BadInput("this desk only looks: give it an engine to act with, LocalDesk(store, engine=engine)")
        return self._engine

    # Runs.

    async def start(self, request: StartRequest, *, by: str, reason: str = "") -> Acted:
        given = msgspec.structs.asdict(request)
        workflow, arguments = given.pop("workflow"), given.pop("arguments")
        usual = msgspec.structs.asdict(type(request)(workflow=""))
        said: Any = {name: value for name, value in given.items() if value != usual[name]}
        run_id, new = await self._acting().start_for(by, workflow, arguments, said, reason)
        return _acted(run_id, "start", new, "it was started before")

    async def send(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> Acted:
        sent = await self._acting().get(run_id).send(name, payload, id=id, by=by, reason=reason)
        return _acted(run_id, "send", sent, f"a message with the id {id} was sent before")

    async def publish(
        self, name: str, payload: Any = None, *, by: str, reason: str = "", id: str | None = None
    ) -> Acted:
        runs = await self._acting().publish(name, payload, id=id, by=by, reason=reason)
        said = f"published {name} to {runs:,} run{'' if runs == 1 else 's'}" if runs else f"{name} waits for a run"
        return Acted(run="", action="publish", changed=True, said=said, count=runs)

    async def ask(
        self, run_id: str, name: str, payload: Any = None, *, by: str, reason: str = "", timeout: timedelta
    ) -> Answer:
        reply = await self._acting().get(run_id).ask(name, payload, timeout=timeout, by=by, reason=reason)
        return Answer(run=run_id, name=name, answer=reply)

    async def query(self, run_id: str, name: str, arguments: dict[str, Any] | None = None) -> Answer:
        from holdfast.looking.source import perilous

        row = await self._store.get(run_id)
        if row is not None and (peril := perilous(row)):
            raise BadInput(f"run {run_id} cannot be asked: {peril}")
        answer = await self._acting().get(run_id).query(name, **(arguments or {}))
        return Answer(run=run_id, name=name, answer=answer)

    async def reveal(self, run_id: str, request: RevealRequest, *, by: str, reason: str) -> RevealedView:
        from holdfast.looking.acting.revealing import reveal

        return await reveal(self, self._acting(), run_id, request, by, reason)

    # What is paused as a whole.

    async def pause_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> Acted:
        engine = self._acting()
        if kind == "limit":
            changed = await engine.limits.pause(name, by=by, reason=reason)
        else:
            changed = await engine.flow.pause(**{kind: name}, by=by, reason=reason)
        return _acted(f"{kind} {name}", "pause", changed, "it was paused already")

    async def resume_work(self, kind: WorkKind, name: str, *, by: str, reason: str = "") -> Acted:
        engine = self._acting()
        if kind == "limit":
            changed = await engine.limits.resume(name, by=by, reason=reason)
        else:
            changed = await engine.flow.resume(**{kind: name}, by=by, reason=reason)
        return _acted(f"{kind} {name}", "resume", changed, "it was not paused")

    async def override_limit(self, name: str, numbers: LimitNumbers | None, *, by: str, reason: str = "") -> Acted:
        from holdfast.limits import Limit

        limit = Limit(name=name, **msgspec.structs.asdict(numbers)) if numbers is not None else None
        changed = await self._acting().limits.override(name, limit, by=by, reason=reason)
        if limit is None:
            return _acted(f"limit {name}", "restore", changed, "its numbers are those that engines declare")
        return _acted(f"limit {name}", "override", changed, "these numbers were put in force before")

    # Dead letters.

    async def acknowledge(self, letter_id: str, *, by: str, reason: str = "") -> Acted:
        changed = await self._acting().dead_letters.acknowledge(letter_id, by, reason)
        return _acted(letter_id, "acknowledge", changed, "it was dealt with before")

    async def replay(
        self, letter_id: str, *, by: str, reason: str = "", to: str | None = None, broadcast: bool = False
    ) -> Acted:
        letters = self._acting().dead_letters
        changed = await letters.replay(letter_id, to=to, broadcast=broadcast, by=by, reason=reason)
        return _acted(letter_id, "replay", changed, "it was dealt with before")

    async def remove_letter(self, letter_id: str, *, by: str, reason: str = "") -> Acted:
        changed = await self._acting().dead_letters.remove(letter_id, by, reason)
        return _acted(letter_id, "remove", changed, "there is no such letter")

    async def plan_letters(self, action: str, cause: LetterCause) -> LetterPlan:
        from holdfast.looking.acting.causes import plan_letters

        return await plan_letters(self._store, action, cause)

    def act_on_letters(
        self, action: str, cause: LetterCause, until: str, *, by: str, reason: str = ""
    ) -> AsyncGenerator[BulkProgress, None]:
        from holdfast.looking.acting.causes import act_on_letters

        acts = {"replay": self.replay, "acknowledge": self.acknowledge, "remove": self.remove_letter}

        async def act(letter_id: str) -> Acted:
            return await acts[action](letter_id, by=by, reason=reason)

        return act_on_letters(self._store, action, cause, until, act)

    # Schedules.

    async def put_schedule(self, id: str, request: ScheduleRequest, *, by: str, reason: str = "") -> Acted:
        schedules, given = self._acting().schedules, msgspec.structs.asdict(request)
        workflow, arguments = given.pop("workflow"), given.pop("arguments")
        before = {row.id: row for row in await self._store.schedules()}.get(id)
        await schedules.put_for(by, id, workflow, arguments, given, reason)
        after = {row.id: row for row in await self._store.schedules()}.get(id)
        return _acted(id, "put", before != after, "it was so before")

    async def pause_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        schedules = self._acting().schedules
        running = not (await schedules.get(id)).paused
        if running:
            await schedules.pause(id, by=by, reason=reason)
        return _acted(id, "pause", running, "it was paused already")

    async def resume_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        schedules = self._acting().schedules
        paused = (await schedules.get(id)).paused
        if paused:
            await schedules.resume(id, by=by, reason=reason)
        return _acted(id, "resume", paused, "it was not paused")

    async def trigger_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        run = await self._acting().schedules.trigger(id, by=by, reason=reason)
        return Acted(run=run, action="trigger", changed=True)

    async def backfill_schedule(
        self, id: str, start: datetime, end: datetime, *, by: str, reason: str = "", limit: int = 1_000
    ) -> Acted:
        started = await self._acting().schedules.backfill(id, start, end, limit, by=by, reason=reason)
        said = "" if started else "no tick of that time was left to start"
        return Acted(run=id, action="backfill", changed=bool(started), said=said, started=started)

    async def delete_schedule(self, id: str, *, by: str, reason: str = "") -> Acted:
        await self._acting().schedules.delete(id, by=by, reason=reason)
        return Acted(run=id, action="delete", changed=True)

    # Deleting.

    async def purge(self, request: PurgeRequest, *, by: str, reason: str = "", dry_run: bool = True) -> PurgeReport:
        from holdfast.looking.acting.purging import purge

        return await purge(self._acting(), request, by, reason, dry_run)

    # Tokens.

    async def create_token(self, request: TokenRequest, *, by: str, reason: str = "") -> NewToken:
        from holdfast.looking.acting.tokens import NewToken, token_view

        tokens = self._acting().tokens
        token, row = await tokens.create(
            request.name, request.role, expires_in=request.expires_in, by=by, reason=reason
        )
        return NewToken(**msgspec.structs.asdict(token_view(row, self._now)), token=token)

    async def revoke_token(self, id: str, *, by: str, reason: str = "") -> Acted:
        changed = await self._acting().tokens.revoke(id, by=by, reason=reason)
        return _acted(f"token {id}", "revoke", changed, "there is no token with this id that may be used")

    async def tokens(self) -> list[TokenView]:
        from holdfast.looking.acting.tokens import token_view

        return [token_view(row, self._now) for row in await self._store.tokens()]


def _acted(about: str, action: str, changed: bool, otherwise: str) -> Acted:
    return Acted(run=about, action=action, changed=changed, said="" if changed else otherwise)
