"""Retention: how long ended runs and other records are kept, and the sweeps that delete them, a few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.changes import Change
from holdfast.clock import FAR_FUTURE, Instant, micros, to_datetime
from holdfast.contract.operations import Done, Purge
from holdfast.contract.rows import TERMINAL, Status
from holdfast.errors import BadInput
from holdfast.events import Events
from holdfast.ops.port import Port, call_back, check_callback

_logger = logging.getLogger("holdfast.ops")

_AGES = (
    "completed", "failed", "cancelled", "dead_letters", "acknowledged_dead_letters", "events", "ids", "figures",
)  # fmt: skip
OnPurged = Callable[[str, str], object]
Look = Callable[[str], Awaitable[object]]
_MINUTES = timedelta(days=2)
"""How long the figures of single minutes are kept."""
_SPARED_AT_MOST = 3
"""How often a run is kept because its callback failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what is over is kept; None keeps it for ever. Runs that have not ended are never touched.

        Engine(..., retention=Retention(completed=timedelta(days=1), on_purged=archive))

    Args:
        completed, failed, cancelled: runs that ended so, counted from their end; those that were moved to another
            runtime stay as tombstones as long as completed ones.
        dead_letters: also those that were not acknowledged.
        acknowledged_dead_letters: those that were acknowledged or replayed, counted from when they were added.
        events: those that no run took; what `Event.on_target_ended` says of their name becomes of them.
        ids: of purged runs and published events, at least; meanwhile they are not taken for others.
        figures: how often things ended and how long they took (`holdfast stats`): hours so long, minutes two days.
        every: how often to sweep.
        on_start: whether to sweep when the engine opens, too.
        batch: how many rows to delete in one transaction.
        pause: how long to give way between two transactions.
        before_purge: is called, plain or async, with each run (a `Run`, input and output included) before it is
            deleted, by the engine that sweeps: to archive it, say. If it raises, which is logged and told as
            `callback.error`, the run stays until the next sweep; after three times it goes all the same.
        on_purged: is called, plain or async, with what was purged (`completed`, `failed`, `cancelled`, `dead_letters`
            or `events`) and its id, after it is gone. What it raises is logged, told as `callback.error`, and changes
            nothing.
    """

    completed: timedelta | None = timedelta(days=30)
    failed: timedelta | None = timedelta(days=90)
    cancelled: timedelta | None = timedelta(days=30)
    dead_letters: timedelta | None = None
    acknowledged_dead_letters: timedelta | None = timedelta(days=30)
    events: timedelta | None = timedelta(days=7)
    ids: timedelta | None = timedelta(days=365)
    figures: timedelta | None = timedelta(days=90)
    every: timedelta = timedelta(hours=1)
    on_start: bool = True
    batch: int = 100
    pause: timedelta = timedelta(milliseconds=20)
    before_purge: Callable[[Any], object] | None = None
    on_purged: OnPurged | None = None

    def __post_init__(self) -> None:
        for field in _AGES:
            if (age := getattr(self, field)) is not None:
                micros(age, field)
        if not micros(self.every, "every"):
            raise BadInput("every must be longer than zero")
        micros(self.pause, "pause")
        size: object = self.batch
        if not isinstance(size, int) or not 1 <= size <= 10_000:
            raise BadInput(f"batch must be a whole number between 1 and 10,000, not {size!r}")
        check_callback(self.before_purge, "before_purge")
        check_callback(self.on_purged, "on_purged")


class Sweeper:
    """Deletes what is old enough. Several engines may sweep one database: each row is counted and told by one."""

    def __init__(self, port: Port, retention: Retention, events: Events, look: Look | None = None) -> None:
        self._port = port
        self._retention = retention
        self._events = events
        self._look: Look = look or port.store.get
        """Returns a run in the form that callbacks are given."""
        self._spared: Counter[str] = Counter()
        """How often each run was kept because its callback failed."""
        self._stopping = asyncio.Event()

    def begin(self) -> None:
        """Let `run` and sweeps go on, after a stop."""
        self._stopping.clear()

    def stop(self) -> None:
        """End a sweep after the transaction it is in, and `run` with it."""
        self._stopping.set()

    async def run(self) -> None:
        """Sweep again and again until `stop`; a sweep that fails is logged."""
        if not self._retention.on_start:
            await self._rest(self._retention.every)
        while not self._stopping.is_set():
            try:
                await self.sweep()
            except Exception:
                _logger.exception("a sweep of what is over was given up; the next one goes on with it")
            await self._rest(self._retention.every)

    async def sweep(self) -> dict[str, int]:
        """Delete everything that is old enough now and return how much of each kind, told as a `purged` change.

        The kinds are completed, failed, cancelled, moved, dead_letters, events, keys (expired results under idempotency
        keys), ids and figures.
        """
        counts: Counter[str] = Counter()
        for kind, purge in await self._sweep_together(self._purges(self._port.clock.now()), counts):
            counts[kind] += await self._purge(kind, purge)
        if any(counts.values()):
            self._port.notify(Change(type="purged", at=to_datetime(self._port.clock.now()), data=dict(counts)))
        return dict(counts)

    def _purges(self, now: Instant) -> list[tuple[str, Purge]]:
        keep, size = self._retention, self._retention.batch
        kept_ids = FAR_FUTURE if keep.ids is None else min(now + micros(keep.ids), FAR_FUTURE)
        wanted: list[tuple[str, Purge]] = []

        def add(kind: str, what: str, age: timedelta | None, **fields: object) -> None:
            if age is not None and (before := now - micros(age)) > 0:
                wanted.append((kind, Purge(what=what, before=before, at=now, limit=size, **fields)))  # type: ignore[arg-type]

        add("completed", Status.COMPLETED, keep.completed, keep_ids=kept_ids)
        add("failed", Status.FAILED, keep.failed, keep_ids=kept_ids)
        add("cancelled", Status.CANCELLED, keep.cancelled, keep_ids=kept_ids)
        add("moved", Status.MOVED, keep.completed, keep_ids=kept_ids)
        for letters in ("work", "event"):
            add("dead_letters", letters, keep.dead_letters)
            add("dead_letters", letters, keep.acknowledged_dead_letters, acknowledged=True)
        add("events", "queued", keep.events, unread=dict(self._events.unread))
        add("keys", "keys", timedelta(0))  # each says itself when it expires
        add("ids", "ids", keep.ids)
        if keep.figures is not None:
            add("figures", "minutes", min(keep.figures, _MINUTES))
            add("figures", "hours", keep.figures)
        return wanted

    async def _sweep_together(self, wanted: list[tuple[str, Purge]], counts: Counter[str]) -> list[tuple[str, Purge]]:
        """Delete a little of every kind, and return those of which there may be more.

        Mostly there is nothing to delete: one transaction finds that out, of the size that each has later.
        """
        together = [purge for _, purge in wanted if not self._asks_first(purge)]
        share = max(self._retention.batch // max(len(together), 1), 1)
        tasks = [self._port.apply(msgspec.structs.replace(purge, limit=share)) for purge in together]
        outcomes = dict(zip(map(id, together), await asyncio.gather(*tasks), strict=True))
        more: list[tuple[str, Purge]] = []
        for kind, purge in wanted:
            outcome = outcomes.get(id(purge))
            counts.setdefault(kind, 0)
            if outcome is not None:
                assert isinstance(outcome, Done)
                counts[kind] += outcome.count
                await self._tell(kind, outcome.ids)
            if outcome is None or outcome.count >= share:
                more.append((kind, purge))
        return more

    def _asks_first(self, purge: Purge) -> bool:
        return self._retention.before_purge is not None and purge.what in TERMINAL

    async def _purge(self, kind: str, purge: Purge) -> int:
        if self._retention.before_purge is not None and self._asks_first(purge):
            return await self._purge_one_by_one(kind, purge, self._retention.before_purge)
        total = 0
        while not self._stopping.is_set():
            outcome = await self._port.apply(purge)
            assert isinstance(outcome, Done)
            total += outcome.count
            await self._tell(kind, outcome.ids)
            if outcome.count < purge.limit:
                break
            await self._rest(self._retention.pause)
        return total

    async def _purge_one_by_one(self, kind: str, purge: Purge, callback: Callable[[Any], object]) -> int:
        """Delete runs, each after its callback; those whose callback failed stay for now."""
        total, kept = 0, set[str]()
        while not self._stopping.is_set():
            # Those that stay are the oldest each time.
            wanted = msgspec.structs.replace(purge, limit=purge.limit + len(kept))
            found = await self._port.apply(msgspec.structs.replace(wanted, look=True))
            assert isinstance(found, Done)
            let_go: list[str] = []
            for run_id in found.ids:
                if run_id not in kept and not self._stopping.is_set():
                    (let_go.append if await self._may_go(run_id, callback) else kept.add)(run_id)
            outcome = await self._port.apply(msgspec.structs.replace(wanted, only=let_go))
            assert isinstance(outcome, Done)
            total += outcome.count
            await self._tell(kind, outcome.ids)
            if len(found.ids) < wanted.limit:
                break
            await self._rest(self._retention.pause)
        return total

    async def _may_go(self, run_id: str, callback: Callable[[Any], object]) -> bool:
        """Call the callback of a run that is to be deleted, and tell whether it may be."""
        run = await self._look(run_id)
        if run is None or await call_back(self._port, "before_purge", callback, run, given=run_id):
            self._spared.pop(run_id, None)
            return True
        self._spared[run_id] += 1
        if self._spared[run_id] <= _SPARED_AT_MOST:
            return False
        _logger.error("run %s is deleted though before_purge failed for it %d times", run_id, self._spared.pop(run_id))
        return True

    async def _tell(self, kind: str, ids: tuple[str, ...]) -> None:
        if self._retention.on_purged is not None:
            for id in ids:
                await call_back(self._port, "on_purged", self._retention.on_purged, kind, id)

    async def _rest(self, duration: timedelta) -> None:
        """Give way for a while, or until `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(duration.total_seconds()):
                await self._stopping.wait()
