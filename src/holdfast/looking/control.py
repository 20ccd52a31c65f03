"""Schedules and limits, as a desk on a store shows them, and whether the audit trail is intact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import datetime, timedelta

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.limits import LimitSpec
from holdfast.contract.rows import AuditRow, EvidenceRow, ScheduleRow
from holdfast.contract.store import Store
from holdfast.errors import BadInput, NoSuchRun
from holdfast.events import Event
from holdfast.looking.acting.limits import LimitKeyView, LimitNumbers, LimitView
from holdfast.looking.facts import limit_words
from holdfast.looking.times import span
from holdfast.looking.views import HeldBackView, ScheduleView, VerdictView

_KEYS = 20
_PAGE = 1_000
_AT_ONCE = 50


async def schedule_views(store: Store) -> list[ScheduleView]:
    """Return the schedules that there are, each with how its last run stands."""
    rows = await store.schedules()
    heads = await store.heads_of([row.last_run for row in rows if row.last_run is not None])
    views: list[ScheduleView] = []
    for row in rows:
        if views and len(views) % _AT_ONCE == 0:
            await asyncio.sleep(0)  # there may be thousands, and reading each takes a while
        views.append(_schedule(row, str(heads[row.last_run].status) if row.last_run in heads else ""))
    return views


def _schedule(row: ScheduleRow, status: str) -> ScheduleView:
    from holdfast.schedules.view import schedule_of

    next_at = to_datetime(row.next) if row.next is not None else None
    try:
        found = schedule_of(row)
    except BadInput as error:
        return ScheduleView(
            id=row.id, workflow=row.workflow, when="", paused=row.paused, next_at=next_at, last_run=row.last_run,
            last_status=status,
            wrong=str(error),
        )  # fmt: skip
    when = f"{found.cron} {found.timezone}" if found.cron is not None else f"every {_length(found.every)}"
    return ScheduleView(
        id=row.id,
        workflow=row.workflow,
        when=when,
        paused=row.paused,
        next_at=next_at,
        until=found.until,
        last_run=row.last_run,
        last_status=status,
        overlap=found.overlap,
        catch_up=found.catch_up,
        jitter=found.jitter,
        input=found.input,
    )


def _length(duration: timedelta | None) -> str:
    return span(round(duration.total_seconds() * 1e6)) if duration is not None else ""


def rule_words(event: Event) -> str:
    """Return to whom events of a name are given, and for how long; nothing where that is as it is of itself."""
    if event == Event(name=event.name):
        return ""
    whom = "to the run that waits longest" if event.single else "to every run that waits"
    since = {"after_wait": " and did so before it came", "after_create": " and was there before it came"}
    lasts = f", for {_length(event.expire_after)}" if event.expire_after is not None else ""
    return whom + since.get(event.delivery, "") + lasts


async def limit_views(store: Store) -> list[LimitView]:
    """Return the limits that workers share: what they allow, what is used and what waits."""
    moved = store.clock.now() - store.lease_clock.now()

    def at(instant: Instant | None) -> datetime | None:
        later = instant is not None and instant > store.lease_clock.now()
        return to_datetime(instant + moved) if instant is not None and later else None

    found: list[LimitView] = []
    for row in await store.limits():
        keys = [
            LimitKeyView(
                key=key.key,
                used=key.used,
                waiting=key.waiting + key.granted,
                next_turn=at(key.invited),
                held_until=at(max(key.held_until, key.open_until or 0)),
                failures=key.failures,
            )
            for key in await store.limit_keys(row.name, _KEYS)
        ]
        turns = [key.next_turn for key in keys if key.next_turn is not None]
        found.append(
            LimitView(
                name=row.name,
                allows=limit_words(row.override or row.spec, trips=True),
                used=row.used,
                waiting=row.waiting + row.granted,
                next_turn=min(turns, default=None),
                paused=row.paused,
                overridden=row.override is not None,
                declared=limit_words(row.spec, trips=True) if row.override is not None else "",
                numbers=_numbers(row.override or row.spec),
                keys=keys,
            )
        )
    return found


def _numbers(spec: str) -> LimitNumbers:
    found = msgspec.json.decode(spec, type=LimitSpec)
    return LimitNumbers(
        at_once=found.at_once,
        rate=found.rate,
        per=timedelta(microseconds=found.per),
        burst=found.burst,
        per_key_at_once=found.per_key_at_once,
        trip_after=found.trip_after,
        cool_down=timedelta(microseconds=found.cool_down) if found.trip_after is not None else None,
    )


async def held_back_views(store: Store, run_id: str) -> list[HeldBackView]:
    """Return what flow control holds back of a run: itself, or steps of it."""
    from holdfast.engine.views.reasons import reasons_of

    found = await reasons_of(store, run_id, lambda workflow: None, store.clock.now(), store.lease_clock.now())
    return [
        HeldBackView(
            code=each.code,
            kind=each.kind,
            name=each.name,
            key=each.key,
            step=each.step,
            since=each.since,
            until=each.until,
        )
        for each in found
    ]


async def verdict_view(store: Store, run_id: str | None, told: Callable[[int], None] | None = None) -> VerdictView:
    """Check the chain of the audit trail, or of what one run put on record; `told` hears how many rows hold so far."""
    from holdfast.chains import broken_link

    checked, last = 0, ""
    async with aclosing(chain_rows(store, run_id)) as rows:
        async for row in rows:
            broken = broken_link([row], last, checked)
            if broken is not None:
                return VerdictView(ok=False, checked=checked, broken_at=broken, last=last)
            checked, last = checked + 1, row.hash
            if told is not None:
                told(checked)
    return VerdictView(ok=True, checked=checked, last=last)


async def check_known(store: Store, run_id: str) -> None:
    """Refuse a run of which nothing is on record if there is none: what it put there may outlive it.

    Raises:
        NoSuchRun: there is no run with that id.
    """
    if not await store.heads_of([run_id]):
        raise NoSuchRun(run_id, ", and no evidence of one")


async def chain_rows(store: Store, run_id: str | None) -> AsyncGenerator[AuditRow | EvidenceRow, None]:
    """Yield the rows of the audit trail, or of what one run put on record, in their order."""
    after = 0
    while True:
        rows: list[AuditRow] | list[EvidenceRow]
        rows = await (store.audit(None, after, _PAGE) if run_id is None else store.evidence(run_id, after, _PAGE))
        for row in rows:
            yield row
        if not rows and not after and run_id is not None:
            await check_known(store, run_id)
        if len(rows) < _PAGE:
            return
        after = rows[-1].n
