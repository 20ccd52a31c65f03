"""Lanes: runs of one workflow with the same key, which wait there for their turn and for a place.

A run enters its lane, is refused or displaces another run, and leaves the lane; `line.py` gives runs to workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Instant
from holdfast.contract.operations import RequestCancel
from holdfast.contract.rows import RunPlace, Status
from holdfast.contract.turns import Lane
from holdfast.stores.rules.flow.line import begins_of, rate_allows
from holdfast.stores.sql.tables import StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

PAUSED, WAITS, HOLDS = -1, 0, 1
"""What `run_places.held` says."""

_STOPPING = frozenset({Status.CANCELLING, Status.COMPENSATING})
_GENERATIONS = 1000
"""How many ancestors of a run are looked at."""


class LaneRules:
    """The lanes of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    # Entering.

    async def refusal(self, workflow: str, lane: Lane, at: Instant, parent: StoredRun | None = None) -> str:
        """Return why a run may not even wait: `full`, or `ancestors` if only those could make room; else nothing."""
        if lane.on_full == "reject":
            return "full" if await self._is_full(workflow, lane, at) else ""
        if parent is not None and lane.at_once is not None and await self._held_by_family(workflow, lane, parent):
            return "ancestors"
        return ""

    async def enter(self, run: StoredRun, lane: Lane, at: Instant) -> None:
        """Let a run wait in its lane, in place of the one that a debounce window ends, or of the oldest."""
        first: Instant | None = None
        since = max(at, run.begins or 0)
        if lane.window:
            first, since = await self._supersede(run, lane, at)
        elif lane.on_full == "cancel_oldest":
            await self._displace(run, lane, at)
        run.place, run.wait, run.due = RunPlace.WAITS, "place", None
        self._batch.touch(run, at)  # ending another may have written it before this
        where = (run.workflow, lane.key)
        await self._batch.statements.write("put_place", [(*where, run.key, WAITS, run.priority, since, first)])
        await self._batch.statements.write("enter_lane", [(*where, run.priority, since, at)])

    async def arrive(self, run: StoredRun, lane: Lane, at: Instant) -> None:
        """Let a run that was claimed before it was in a lane wait there, or end it if it is refused."""
        if run.status == Status.CANCELLING or run.place:
            return  # stopping needs no place
        if lane.rejection is not None and await self.refusal(run.workflow, lane, at):
            await self._batch.end(run, lane.rejection)
        else:
            await self.enter(run, lane, at)

    async def _is_full(self, workflow: str, lane: Lane, at: Instant) -> bool:
        """Whether as many hold a place, or wait to be given one, as there are; or as may begin now."""
        statements, where = self._batch.statements, (workflow, lane.key)
        most = max(lane.at_once or 0, lane.rate or 0)
        [(count,)] = await statements.read("count_places", [(*where, WAITS, most)])
        waiting = int(count or 0)
        if lane.at_once is not None:
            [(held,)] = await statements.read("count_places", [(*where, HOLDS, lane.at_once)])
            if int(held or 0) + waiting >= lane.at_once:
                return True
        if lane.rate is not None:
            begins = [*await begins_of(statements, workflow, lane, at), *[at] * waiting]
            return rate_allows(begins, lane, at) > at
        return False

    async def _held_by_family(self, workflow: str, lane: Lane, parent: StoredRun) -> bool:
        """Whether every place is held by a run that waits, directly or not, for the one that is to be started."""
        assert lane.at_once is not None
        rows = await self._batch.statements.read("places_of_lane", [(workflow, lane.key, lane.at_once)])
        if len(rows) < lane.at_once or any(held != HOLDS for _, held, _ in rows):
            return False
        family: set[int] = set()
        ancestor: StoredRun | None = parent
        while ancestor is not None and ancestor.key not in family and len(family) < _GENERATIONS:
            family.add(ancestor.key)
            ancestor = await self._batch.run(ancestor.parent_key) if ancestor.parent_key else None
        return all(int(run or 0) in family for run, _, _ in rows)

    async def _supersede(self, run: StoredRun, lane: Lane, at: Instant) -> tuple[Instant, Instant]:
        """End what waits under the key; return when its window was opened and when it closes now."""
        first = at
        where = (run.workflow, lane.key)
        for key, opened in await self._batch.statements.read("waiting_window", [where]):
            older = await self._batch.run(int(key or 0))
            if older is not None and older.ended is None and older.key != run.key:
                first = min(first, int(opened or 0))
                assert lane.end is not None
                await self._batch.end(older, lane.end)
        closes = at + lane.window
        return first, max(min(closes, first + lane.longest), at) if lane.longest else closes

    async def _displace(self, run: StoredRun, lane: Lane, at: Instant) -> None:
        """Stop the oldest runs of a lane until there is a place for one more; those that stop already do not count."""
        assert lane.at_once is not None
        assert lane.end is not None
        batch = self._batch
        rows = await batch.statements.read("places_of_lane", [(run.workflow, lane.key, 2 * lane.at_once + 100)])
        others = [await batch.run(int(key or 0)) for key, _, _ in rows]
        live = [other for other in others if other is not None and other.ended is None and other.key != run.key]
        live = sorted((other for other in live if other.status not in _STOPPING), key=_age)
        for oldest in live[: max(len(live) - lane.at_once + 1, 0)]:
            if oldest.place == RunPlace.WAITS and not oldest.epoch:
                await batch.end(oldest, lane.end)
            else:
                asked = RequestCancel(
                    target=oldest.id, at=at, payload=lane.end.payload, unread=lane.end.unread, rules=lane.end.rules
                )
                await batch.operators.apply(asked)

    # Being in it.

    async def leave(self, run: StoredRun) -> None:
        """Give up a place, or waiting for one: a lane that was full joins the line."""
        held, run.place = run.place, RunPlace.NONE
        self._batch.touch(run, run.updated)
        for (lane,) in await self._batch.statements.read("leave_place", [(run.workflow, run.key)]):
            if held == RunPlace.HOLDS:
                await self._batch.statements.write("wake_lane", [(run.workflow, lane)])

    async def pause(self, run: StoredRun, until: Instant | None, at: Instant) -> None:
        """Let a run that waits be passed over, or until an instant."""
        held, since = (PAUSED, at) if until is None else (WAITS, until)
        await self._batch.statements.write("change_place", [(run.workflow, run.key, held, since)])

    async def resume(self, run: StoredRun, at: Instant) -> None:
        """Let a run that was passed over wait again, at the end of its lane."""
        since = max(at, run.begins or 0) if not run.epoch else at
        await self._batch.statements.write("change_place", [(run.workflow, run.key, WAITS, since)])
        for lane, priority in await self._batch.statements.read("get_place", [(run.workflow, run.key)]):
            await self._batch.statements.write("enter_lane", [(run.workflow, lane, priority, since, at)])
        run.wait, run.due = "place", None
        self._batch.touch(run, at)


def _age(run: StoredRun) -> tuple[Instant, int]:
    return run.created, run.key


def without_displacing(lane: Lane) -> Lane:
    """Return the lane for a run that was there before, and ends no other."""
    return msgspec.structs.replace(lane, on_full="wait", window=0)
