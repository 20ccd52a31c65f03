"""Figures for people: how often runs and steps ended, how long they took, and which steps fail most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from holdfast.changes import step_name
from holdfast.clock import Instant, from_datetime, micros, to_datetime
from holdfast.contract.figures import BOUNDS, CLAIMED, HOUR, MINUTE, Figure, FigureFilter
from holdfast.contract.heads import HeadFilter
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.waits import meant_error, notes_of
from holdfast.errors import BadInput

By = Literal["step", "workflow", "time"]
DAY: Instant = 24 * HOUR
_SLOTS = ((2 * HOUR, MINUTE), (DAY, 10 * MINUTE), (7 * DAY, HOUR), (30 * DAY, 6 * HOUR))
"""How long slots of time are for ranges of up to so long; for longer ones they are days. Where the minutes of a day are
more than are added up at once, they are hours."""
_FINE = 6 * HOUR
"""Shorter ranges are added up from minutes."""
_MINUTES_KEPT = 2 * DAY
_MOST_SLOTS = 1_000
_BEFORE = (0, *BOUNDS)


_TOLD = 10
"""Of so many steps, those that fail most, the errors of attempts that are retried are looked for."""


class FigureView(msgspec.Struct, frozen=True, kw_only=True):
    """Runs or attempts of steps: how often they came to each end, and how long they took, in seconds.

    Half of them took at most `p50`, and 19 of 20 `p95`. Both are estimated from buckets whose bounds are each four
    times the one before, so they may be off by a factor of two, and are exact where there is only one. Of runs it is
    the time from start to end, and `claim_p50` and `claim_p95` are for how long they were due before a worker claimed
    them.
    """

    at: datetime | None = None
    """When the slot of time begins."""
    workflow: str = ""
    step: str = ""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    """Attempts that raised and after which the step was tried again."""
    lost: int = 0
    """Attempts of which nothing came, because their worker died or hung."""
    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    claimed: int = 0
    claim_p50: float | None = None
    claim_p95: float | None = None
    error_type: str = ""
    """Of a step: the class of the newest error in a dead letter that no person has seen, or of one that is retried."""


class FiguresView(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of all workers together from `since` to `until`.

    By step those that fail most come first, by workflow those with most runs, by time the oldest; `total` is all of
    them together. If it is `partial`, there was too much to add up, and `since` is later than asked for.
    """

    by: By
    since: datetime
    until: datetime
    slot: float | None
    """By time: how many seconds a slot has."""
    partial: bool
    items: list[FigureView]
    total: FigureView


class BarView(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of time: how many runs ended in it, however, and how many of them failed."""

    at: datetime
    ended: int
    failed: int


class BarsView(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that ended, all workers together, by slots of time, oldest first."""

    since: datetime
    until: datetime
    slot: float
    """How many seconds a slot has."""
    items: list[BarView]
    partial: bool = False
    """Of a filter: whether only the newest 10,000 runs that meet it were looked at, or as many as the budget allows."""


def bars_of(figures: FiguresView) -> BarsView:
    """Return the bars of figures by time."""
    assert figures.slot is not None
    items = [
        BarView(at=each.at, ended=each.completed + each.failed + each.cancelled, failed=each.failed)
        for each in figures.items
        if each.at is not None
    ]
    return BarsView(since=figures.since, until=figures.until, slot=figures.slot, items=items)


async def bars_of_filter(store: Store, which: HeadFilter, since: datetime | None, until: datetime | None) -> BarsView:
    """Return how many of the runs that meet a filter ended and failed over time; the last day by itself."""
    end = store.clock.now() if until is None else from_datetime(until, "until")
    first = end - DAY if since is None else from_datetime(since, "since")
    if first >= end:
        raise BadInput(f"bars from {to_datetime(first)} until {to_datetime(end)}: the period is empty")
    slot = next((slot for most, slot in _SLOTS if end - first <= most), DAY)
    if (end - first) // slot > _MOST_SLOTS:
        raise BadInput(f"bars go back {_MOST_SLOTS} days at most")
    first = first // slot * slot
    ended = {"ended_from": max(which.ended_from or first, first), "ended_until": min(which.ended_until or end, end)}
    page = await store.ends(msgspec.structs.replace(which, **ended))
    counted = Counter((at // slot * slot, status == Status.FAILED) for at, status in page.ends)
    items = [
        BarView(at=to_datetime(at), ended=counted[at, False] + counted[at, True], failed=counted[at, True])
        for at in range(first, end, slot)
    ]
    return BarsView(
        since=to_datetime(first), until=to_datetime(end), slot=slot / 1e6, items=items, partial=not page.exact
    )


async def figure_views(
    store: Store,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    last: timedelta = timedelta(days=1),
    workflow: str | None = None,
    by: str = "step",
) -> FiguresView:
    """Return what `Desk.figures` does."""
    if by not in ("step", "workflow", "time"):
        raise BadInput(f"figures are by step, workflow or time, not by {by!r}")
    now = store.clock.now()
    end = now if until is None else from_datetime(until, "until")
    first = end - micros(last, "last") if since is None else from_datetime(since, "since")
    if first >= end:
        raise BadInput(f"figures from {to_datetime(first)} until {to_datetime(end)}: the period is empty")
    which = _filter(first, end, workflow, by, now)  # type: ignore[arg-type]  # it is one of By
    page = await store.figures(which)
    if page.partial and by == "time" and which.slot < HOUR:
        which = _filter(first, end, workflow, by, now, finest=HOUR)  # type: ignore[arg-type]  # it is one of By
        page = await store.figures(which)
    errors = await _errors(store) if by == "step" else {}
    groups: dict[tuple[Instant, str, str], list[Figure]] = {}
    if by == "time":
        groups = {(start, "", ""): [] for start in range(page.since // which.slot * which.slot, end, which.slot)}
    for row in page.rows:
        groups.setdefault((row.start, row.workflow, row.step), []).append(row)
    items = [
        _view(rows, at=to_datetime(start) if by == "time" else None, workflow=name, step=step,
              error_type=errors.get((name, step), ""))
        for (start, name, step), rows in groups.items()
    ]  # fmt: skip
    if by != "time":
        items.sort(key=_weight if by == "step" else _ended, reverse=True)
    if by == "step":
        items[:_TOLD] = [await _with_error(store, each) for each in items[:_TOLD]]
    return FiguresView(
        by=which.by,
        since=to_datetime(page.since),
        until=to_datetime(end),
        slot=which.slot / 1e6 if by == "time" else None,
        partial=page.partial,
        items=items,
        total=_view(page.rows, workflow=workflow or ""),
    )


def _filter(
    first: Instant, last: Instant, workflow: str | None, by: By, now: Instant, finest: Instant = MINUTE
) -> FigureFilter:
    """Return which figures to read: minutes while they are kept and few, else hours."""
    length, minutes = last - first, first >= now - _MINUTES_KEPT
    slot = max(next((slot for most, slot in _SLOTS if length <= most), DAY), finest)
    if not minutes:
        slot = max(slot, HOUR)
    if length // slot > _MOST_SLOTS and by == "time":
        raise BadInput(f"figures by time go back {_MOST_SLOTS} days at most; they are kept for less")
    fine = minutes and (slot < HOUR if by == "time" else length <= _FINE)
    span = MINUTE if fine else HOUR
    since = first // (slot if by == "time" else span) * (slot if by == "time" else span)
    return FigureFilter(since=since, until=last, workflow=workflow, by=by, span=span, slot=slot)


def _view(rows: Iterable[Figure], **fields: object) -> FigureView:
    counted: dict[str, int] = {}
    ends: list[Figure] = []
    claims: list[Figure] = []
    for row in rows:
        counted[row.outcome] = counted.get(row.outcome, 0) + row.n
        if row.outcome == CLAIMED:
            claims.append(row)
        elif row.outcome != "lost":  # how long it took is not known
            ends.append(row)
    n = sum(row.n for row in ends)
    known = {name: counted[name] for name in FigureView.__struct_fields__ if name in counted}
    return FigureView(
        **known,  # type: ignore[arg-type]  # the fields that count
        **fields,  # type: ignore[arg-type]
        mean=round(sum(row.total for row in ends) / n / 1e6, 6) if n else None,
        p50=quantile(ends, 0.5),
        p95=quantile(ends, 0.95),
        claim_p50=quantile(claims, 0.5),
        claim_p95=quantile(claims, 0.95),
    )


def quantile(rows: Sequence[Figure], part: float) -> float | None:
    """Return how many seconds so large a part of what was counted took at most, as its buckets tell.

    Where that is beyond all bounds, it is the last of them. Within a bucket all ratios are taken to be as likely.
    """
    n = sum(row.n for row in rows)
    if not n:
        return None
    if n == 1:
        return round(sum(row.total for row in rows) / 1e6, 6)
    wanted, passed = part * n, 0
    for place, bound in enumerate(BOUNDS):
        here = sum(row.buckets[place] for row in rows)
        if passed + here >= wanted and here:
            lower, inside = _BEFORE[place], (wanted - passed) / here
            took = bound * inside if not lower else lower * (bound / lower) ** inside
            return round(took / 1e6, 6)
        passed += here
    return BOUNDS[-1] / 1e6


def _weight(view: FigureView) -> tuple[int, int]:
    return view.failed + view.retried + view.lost, view.completed


def _ended(view: FigureView) -> tuple[int, int]:
    return view.completed + view.failed + view.cancelled, view.claimed


async def _errors(store: Store) -> dict[tuple[str, str], str]:
    """Return the class of the newest error by workflow and step."""
    found = sorted(await store.letter_groups(), key=lambda group: group.last)
    return {
        (group.workflow, step_name(group.step)): meant_error(group.error_type, group.message)[0]
        for group in found
        if group.step
    }


async def _with_error(store: Store, view: FigureView) -> FigureView:
    """Return what a step that is retried failed with last, by the newest run that waits to try it again."""
    if view.error_type or not view.retried:
        return view
    which = HeadFilter(workflows=(view.workflow,), waiting=f"step {view.step}", limit=1)
    notes = [note for head in (await store.heads(which)).heads for note in notes_of(head.wait or "")]
    error = next((note.error for note in notes if note.kind == "retry" and step_name(note.step) == view.step), "")
    return msgspec.structs.replace(view, error_type=error.partition(":")[0])
