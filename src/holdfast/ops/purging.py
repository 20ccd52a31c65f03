"""Deleting old records by hand: counted first, a part at a time, on record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Literal, NamedTuple, get_args

import msgspec

from holdfast.changes import Change
from holdfast.clock import FAR_FUTURE, Instant, micros, to_datetime
from holdfast.contract.operations import Done, Purge
from holdfast.contract.rows import Status
from holdfast.errors import BadInput
from holdfast.events import Events
from holdfast.ops.port import Port, audited, check_who

PurgeKind = Literal["completed", "failed", "cancelled", "letters", "seen_letters", "events"]
PURGE_KINDS: tuple[str, ...] = get_args(PurgeKind)
_MOST = 100_000
_BATCH = 200
_IDS_KEPT = timedelta(days=365)
"""How long the ids of runs that go are not taken for others, as `Retention` does unless it is told otherwise."""


class Purged(NamedTuple):
    """How many were deleted, or would be; `more` if there are others that are old enough."""

    number: int
    more: bool


class Purging:
    """Deletes what is over for longer than that; runs that have not ended are never touched."""

    def __init__(self, port: Port, events: Events) -> None:
        self._port = port
        self._events = events

    async def purge(
        self,
        kind: PurgeKind,
        *,
        older_than: timedelta,
        limit: int = 10_000,
        dry_run: bool = False,
        by: str | None = None,
        reason: str = "",
    ) -> Purged:
        """Delete up to `limit` of a kind in transactions of 200, each on record; with `dry_run` only count them.

        The callbacks of `Retention` are not called.

        Args:
            kind: runs that are `completed`, `failed` or `cancelled`, by their end; `letters`, also those that no person
                has seen, or only `seen_letters`; `events` that no run took.
            older_than: the age from which they go.
            limit: at most so many.
            dry_run: whether only to count.
            by, reason: who does this and why, for the audit trail.

        Raises:
            BadInput: there is no such kind, or the limit is none.
        """
        check_who(by, reason)
        if kind not in PURGE_KINDS:
            raise BadInput(f"there is nothing called {kind!r} to purge; there are {', '.join(PURGE_KINDS)}")
        if not 1 <= limit <= _MOST:
            raise BadInput(f"limit must be between 1 and {_MOST:,}, not {limit!r}")
        now = self._port.clock.now()
        before = now - micros(older_than, "older_than")
        audit = audited(self._port, by, "purge", reason=reason or None, kind=kind, before=to_datetime(max(before, 0)))
        total, more = 0, False
        for purge in self._purges(kind, before, now):
            if dry_run:
                outcome = await self._port.apply(msgspec.structs.replace(purge, look=True, limit=limit + 1))
                assert isinstance(outcome, Done)
                total += len(outcome.ids)
            else:
                done, left = await self._all(msgspec.structs.replace(purge, audit=audit), limit - total)
                total, more = total + done, more or left
        if total and not dry_run:
            self._port.notify(Change(type="purged", at=to_datetime(now), data={kind: total}))
        return Purged(min(total, limit), more or total > limit)

    def _purges(self, kind: PurgeKind, before: Instant, now: Instant) -> Iterator[Purge]:
        if before <= 0:
            return
        if kind in ("letters", "seen_letters"):
            for what in ("work", "event"):
                yield Purge(what=what, before=before, at=now, acknowledged=kind == "seen_letters")
        elif kind == "events":
            yield Purge(what="queued", before=before, at=now, unread=dict(self._events.unread))
        else:
            kept = min(now + micros(_IDS_KEPT), FAR_FUTURE)
            yield Purge(what=Status(kind), before=before, at=now, keep_ids=kept)

    async def _all(self, purge: Purge, limit: int) -> tuple[int, bool]:
        """Delete up to a limit; tell how many, and whether there may be more."""
        total = 0
        while total < limit:
            size = min(_BATCH, limit - total)
            outcome = await self._port.apply(msgspec.structs.replace(purge, limit=size))
            assert isinstance(outcome, Done)
            total += outcome.count
            if outcome.count < size:
                return total, False
            await asyncio.sleep(0)
        look = await self._port.apply(msgspec.structs.replace(purge, look=True, limit=1))
        assert isinstance(look, Done)
        return total, bool(look.ids)
