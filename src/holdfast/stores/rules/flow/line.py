"""The line of lanes: they give their runs to workers in turn, as far as there are places and their rate allows.

The number of rows read for one run does not depend on how many runs or lanes wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import Claim
from holdfast.contract.turns import Lane
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row, Value, record_of

_MOST_ASKED = 1000
"""How many lanes are asked for a run in one transaction: many may be full."""
_encode = msgspec.json.Encoder().encode


async def begins_of(statements: Statements, workflow: str, lane: Lane, now: Instant) -> list[Instant]:
    """Return when the last runs of a lane began, oldest first.

    None is later than now: if the clock was set back, they count as of now, once and for all.
    """
    rows = await statements.read("get_begins", [(workflow, lane.key)])
    begins = msgspec.json.decode(str(rows[0][0]), type=list[int]) if rows else []
    if begins and begins[-1] > now:
        begins = [min(begun, now) for begun in begins]
        await statements.write("put_begins", [(workflow, lane.key, _encode(begins).decode(), now + lane.per)])
    return begins


def rate_allows(begins: Sequence[Instant], lane: Lane, now: Instant) -> Instant:
    """Return from when one more run of a lane may begin: at most `rate` begin in any time of `per`."""
    if lane.rate is None or len(begins) < lane.rate:
        return now
    return max(begins[-lane.rate] + lane.per, now)


class Line:
    """The lanes of some workflows, as they give runs to one worker in one transaction."""

    def __init__(self, statements: Statements, worker: str, now: Instant, rules: Mapping[str, Lane]) -> None:
        self._statements = statements
        self._worker = worker
        self._now = now
        self._rules = rules
        self._line: list[tuple[int, int, str, str]] = []
        """Lanes in line, as (minus priority, number, workflow, lane)."""
        self._last: dict[tuple[str, int], int] = {}
        self._held: dict[tuple[str, str], int] = {}
        self._begins: dict[tuple[str, str], list[Instant]] = {}

    async def take(self, room: int, full: bool = False) -> list[Claim]:
        """Make the next runs the worker's, at most as many as it has room for; see Store.claim_waiting."""
        if room <= 0 or not await self._statements.read("live_worker", [(self._worker,)]):
            return []
        for workflow in self._rules:
            if full:
                await self._statements.write("recall_lanes", [(workflow, self._now)])
            await self._call_in(workflow, room)
        chosen: list[int] = []
        asked = 0
        while len(chosen) < room and asked < _MOST_ASKED and await self._is_there_a_line(room):
            asked += 1
            run = await self._next()
            if run is not None:
                chosen.append(run)
        await self._write_begins()
        return await self._claim(chosen)

    async def _call_in(self, workflow: str, room: int) -> None:
        """Let lanes join the line whose time has come."""
        for lane, priority in await self._statements.read("ready_lanes", [(workflow, self._now, room)]):
            number = await self._end_of_line(workflow, int(priority or 0))
            await self._statements.write("put_number", [(workflow, lane, priority, number, None)])

    async def _is_there_a_line(self, room: int) -> bool:
        """Tell whether a lane is in line; those that were read may all have left it."""
        if not self._line:
            for workflow in self._rules:
                await self._read_line(workflow, room)
        return bool(self._line)

    async def _read_line(self, workflow: str, room: int) -> None:
        for (priority,) in await self._statements.read("lane_priorities", [(workflow,)]):
            for number, lane in await self._statements.read("lanes_in_line", [(workflow, priority, room)]):
                heapq.heappush(self._line, (-int(priority or 0), int(number or 0), workflow, str(lane)))

    async def _end_of_line(self, workflow: str, priority: int) -> int:
        last = self._last.get((workflow, priority))
        if last is None:
            [(last,)] = await self._statements.read("last_number", [(workflow, priority)])  # type: ignore[assignment]
        self._last[workflow, priority] = number = int(last or 0) + 1
        return number

    async def _next(self) -> int | None:
        """Let the first lane in line give its next run, if it may; it goes to the end of the line, or leaves it."""
        minus, _, workflow, lane = heapq.heappop(self._line)
        priority = -minus
        later = await self._not_yet(workflow, lane)
        if later is not None:
            await self._statements.write("stop_lane", [(workflow, lane, later or None)])
            self._line = [each for each in self._line if each[2:] != (workflow, lane)]
            heapq.heapify(self._line)
            return None
        waiting = await self._statements.read("next_in_lane", [(workflow, lane, priority)])
        if not waiting:
            await self._statements.write("drop_lane", [(workflow, lane, priority)])
            return None
        run, since = (int(value or 0) for value in waiting[0])
        if since > self._now:
            await self._statements.write("put_number", [(workflow, lane, priority, None, since)])
            return None
        await self._statements.write("change_place", [(workflow, run, 1, self._now)])
        if (workflow, lane) in self._held:
            self._held[workflow, lane] += 1
        if (workflow, lane) in self._begins:
            self._begins[workflow, lane].append(self._now)
        number = await self._end_of_line(workflow, priority)
        await self._statements.write("put_number", [(workflow, lane, priority, number, None)])
        heapq.heappush(self._line, (minus, number, workflow, lane))
        return run

    async def _not_yet(self, workflow: str, key: str) -> Instant | None:
        """Return when a lane is to be called in, 0 if only when a place is free, None if it may give a run now."""
        rule = self._rules[workflow]
        where = (workflow, key)
        if rule.at_once is not None:
            if where not in self._held:
                [(held,)] = await self._statements.read("count_places", [(*where, 1, rule.at_once)])
                self._held[where] = int(held or 0)
            if self._held[where] >= rule.at_once:
                return 0
        if rule.rate is not None:
            lane = msgspec.structs.replace(rule, key=key)
            if where not in self._begins:
                self._begins[where] = await begins_of(self._statements, workflow, lane, self._now)
            allowed = rate_allows(self._begins[where], lane, self._now)
            return allowed if allowed > self._now else None
        return None

    async def _write_begins(self) -> None:
        for (workflow, lane), begins in self._begins.items():
            rule = self._rules[workflow]
            assert rule.rate is not None
            if begins and begins[-1] == self._now:
                kept = _encode(begins[-rule.rate :]).decode()
                await self._statements.write("put_begins", [(workflow, lane, kept, self._now + rule.per)])
        for workflow in dict.fromkeys(workflow for workflow, _ in self._begins):
            await self._statements.write("old_begins", [(workflow, self._now)])

    async def _claim(self, chosen: Sequence[int]) -> list[Claim]:
        if not chosen:
            return []
        rows: list[Row] = [(key,) for key in chosen]
        before = {int(row[0] or 0): row for row in await self._statements.read("lock_waiting", rows)}
        taken: list[tuple[Value, ...]] = [before[key] for key in chosen if key in before]
        for key, *_ in taken:
            await self._statements.write("take_waiting", [(self._worker, self._now, key)])
        if not taken:
            return []
        claims = [record_of(Claim, row) for row in await self._statements.read("taken_runs", taken)]
        order = {key: place for place, key in enumerate(chosen)}
        return sorted(claims, key=lambda claim: order[claim.key])
