"""Limits that workers share: places counted by worker, steps that wait in line, and turns given through inboxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.clock import Instant
from holdfast.contract.limits import (
    CorrectPlaces,
    GrantTurns,
    LeaveLimits,
    LimitAnswer,
    PauseLimit,
    PutLimit,
    TakeTasks,
)
from holdfast.contract.operations import Done, KeyAnswer, Outcome, Refused
from holdfast.contract.rows import InboxKind
from holdfast.contract.turns import EnterLimit, LeaveKey, LeaveLimit, TurnEffects
from holdfast.rates import SKEW, after_begin, idle_from
from holdfast.stores.rules.limits.late import grant_turns
from holdfast.stores.rules.limits.rows import KeyRecord, LimitRecord, LimitRows, Waiter, encoded
from holdfast.stores.rules.limits.tasks import take_tasks
from holdfast.stores.rules.limits.turns import goes_on, has_place, is_calm, is_full, key_has_place, may_keep, turn_under
from holdfast.stores.sql.tables import Row, StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_ENTERED, _PROBES = LimitAnswer("entered"), LimitAnswer("entered", probe=True)
_MAY_KEEP = LimitAnswer("entered", keep=True)
_WAITS, _UNKNOWN = LimitAnswer("waits"), LimitAnswer("unknown")
_IN_LINE = ""
"""The owner of an attempt in a queue that waits for its limit."""
_UNDATED = -1
"""When a turn was given, where that was not known: the next worker that looks dates it."""
_MOST_GRANTED = 1000
"""How many turns may be given and not used yet: each that is used gives the next."""
_REMEMBERED = 86_400_000_000
"""For how many microseconds failures in a row are remembered while nothing else happens under their key."""


class LimitRules:
    """The limits of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.rows = LimitRows(batch.statements)
        """What the batch has read of limits, and will write."""

    def know(self, wanted: Sequence[Row], rows: Iterable[Row]) -> None:
        """Take in limits with their keys and counts, read before they were asked for; there are no others."""
        self.rows.know(wanted, rows)

    def pending(self) -> list[tuple[str, list[Row]]]:
        """Return what is to be written, by statement."""
        return self.rows.pending()

    async def use(
        self, run: StoredRun, effects: TurnEffects, at: Instant, keys: Mapping[str, KeyAnswer]
    ) -> dict[str, LimitAnswer]:
        """Let attempts of a turn leave limits, and others enter; a step that does both comes after those that wait."""
        answers: dict[str, LimitAnswer] = {}
        if len(effects.enters) == len(effects.exits) == 1 and not (keys or effects.unlimits or run.side_rows):
            enter = effects.enters[0]
            found = await self.rows.get(enter.limit, enter.key, enter.worker)
            held = self.rows.counts[enter.limit, enter.key, enter.worker] if found is not None else 0
            if held and found is not None and goes_on(*found, effects.exits[0], enter):
                return {enter.location: _MAY_KEEP if may_keep(*found, held) else _ENTERED}
        for location, now in effects.unlimits:
            await self.withdraw(run, location, at, now)
        for leave in effects.exits:
            await self.leave(leave, at)
        for enter in effects.enters:
            key = keys.get(enter.location)
            if key is None or key.outcome == "taken":
                answers[enter.location] = await self.enter(run, enter, at)
            elif run.side_rows:
                await self.withdraw(run, enter.location, at, enter.now)
        for take in effects.takes if answers else ():
            answer = answers.get(take.location)
            if answer is not None and answer.outcome != "entered" and keys[take.location].outcome == "taken":
                await self._batch.keys.leave(run, LeaveKey(activity=take.activity, key=take.key), at)
        return answers

    # Entering.

    async def enter(self, run: StoredRun, enter: EnterLimit, at: Instant) -> LimitAnswer:
        """Take a place for an attempt, or let it wait in line."""
        found = await self.rows.get(enter.limit, enter.key, enter.worker)
        if found is None:
            return _UNKNOWN
        limit, key = found
        if enter.counted:
            held = self.rows.counts[enter.limit, enter.key, enter.worker]
            if held >= enter.counted and is_calm(limit, key) and not run.side_rows:
                return _MAY_KEEP if may_keep(limit, key, held) else _ENTERED
            await self.leave(LeaveLimit(limit=enter.limit, key=enter.key, worker=enter.worker, now=enter.now), at)
        key.seen(enter.now)
        mine = await self._waiter(run.key, enter.location) if run.side_rows else None
        answer = await self._enter(run.key, limit, key, enter, mine, at)
        if answer is _WAITS:
            self._batch.note_side_rows(run)
        return answer

    async def enter_task(self, run: int, enter: EnterLimit, at: Instant) -> LimitAnswer:
        """Take a place for an attempt that is being taken from a queue, or put it in line."""
        found = await self.rows.get(enter.limit, enter.key, enter.worker)
        if found is None:
            return _UNKNOWN
        limit, key = found
        key.seen(enter.now)
        mine = await self._waiter(run, enter.location) if limit.granted or limit.waiting else None
        return await self._enter(run, limit, key, enter, mine, at, task=1)

    async def _enter(
        self,
        run: int,
        limit: LimitRecord,
        key: KeyRecord,
        enter: EnterLimit,
        mine: Waiter | None,
        at: Instant,
        *,
        task: int = 0,
    ) -> LimitAnswer:
        if mine is not None:
            if mine.granted is None and (mine.name, mine.key) == (enter.limit, enter.key):
                await self._park(run, enter.location, task)
                return _WAITS
            await self.remove(mine)
        first = mine is not None or not key.waiting
        if first and has_place(limit, key) and turn_under(limit, key, enter.now) <= enter.now:
            answer = self._begin(limit, key, enter)
            if limit.waiting:
                await self._grant(limit, at, enter.now)
            return answer
        await self._wait(run, limit, key, enter, mine, task)
        await self._grant(limit, at, enter.now)
        return _WAITS

    def is_full(self, name: str) -> bool:
        """Tell whether nothing more may begin under a limit, whatever its key."""
        limit = self.rows.limits.get(name)
        return limit is not None and is_full(limit)

    def _begin(self, limit: LimitRecord, key: KeyRecord, enter: EnterLimit) -> LimitAnswer:
        limit.used += 1
        key.used += 1
        self.rows.counts[enter.limit, enter.key, enter.worker] += 1
        self.rows.changed_counts[enter.limit, enter.key, enter.worker] = None
        numbers = limit.numbers
        if numbers.rate is not None:
            begins = after_begin(key.instants, enter.now, numbers.rate, numbers.per, numbers.burst)
            key.begins, key.at = encoded(begins).decode(), enter.now
            key.idle = max(key.idle, idle_from(begins, numbers.per, numbers.burst))
        probes = numbers.trip_after is not None and key.open_until is not None
        if probes:
            key.probe = enter.worker
        self.note(limit, key)
        if probes:
            return _PROBES
        held = self.rows.counts[enter.limit, enter.key, enter.worker]
        return _MAY_KEEP if may_keep(limit, key, held) else _ENTERED

    async def _wait(
        self, run: int, limit: LimitRecord, key: KeyRecord, enter: EnterLimit, before: Waiter | None, task: int
    ) -> None:
        limit.last += 1
        n = before.n if before is not None else limit.last
        waiter = (run, enter.location, enter.limit, enter.key, enter.priority, n, enter.now, None, 0, task)
        await self._batch.statements.write("put_limit_waiter", [waiter])
        await self._park(run, enter.location, task)
        limit.waiting += 1
        key.waiting += 1
        if key.head is None or (-enter.priority, n) < (-(key.head_priority or 0), key.head):
            key.head_priority, key.head = enter.priority, n
        self.note(limit, key)

    async def _park(self, run: int, location: str, task: int) -> None:
        """Let no worker take an attempt from its queue before it is its turn."""
        if task:
            await self._batch.statements.write("own_task", [(_IN_LINE, run, location)])

    # Leaving.

    async def leave(self, leave: LeaveLimit, at: Instant) -> None:
        """Give places back, and take in what the attempt says of the service."""
        found = await self.rows.get(leave.limit, leave.key, leave.worker)
        if found is None:
            return
        limit, key = found
        key.seen(leave.now)
        held = self.rows.counts[leave.limit, leave.key, leave.worker]
        self._judge(limit, key, leave)
        self._give_back(limit, key, leave.worker, min(leave.places, held))
        if limit.waiting:
            await self._grant(limit, at, leave.now)

    def _give_back(self, limit: LimitRecord, key: KeyRecord, worker: str, places: int) -> None:
        if places:
            if key.probe == worker and places == self.rows.counts[limit.name, key.key, worker]:
                key.probe = ""  # the attempt that tried went with them
            limit.used -= places
            key.used -= places
            self.rows.counts[limit.name, key.key, worker] -= places
            self.rows.changed_counts[limit.name, key.key, worker] = None
            self.note(limit, key)

    def _judge(self, limit: LimitRecord, key: KeyRecord, leave: LeaveLimit) -> None:
        """Hold a key back if the service said so, or if too many attempts failed in a row."""
        if leave.hold is not None:
            if leave.now + leave.hold > key.held_until:
                key.held_until, key.at = leave.now + leave.hold, leave.now
            key.idle = max(key.idle, key.held_until)
            self.note(limit, key)
        numbers = limit.numbers
        if numbers.trip_after is None:
            return
        probed = leave.probe and key.probe == leave.worker
        if probed:
            key.probe = ""
        if leave.verdict == "failed":
            key.failures += 1
            key.at = leave.now
            key.idle = max(key.idle, leave.now + numbers.cool_down + _REMEMBERED)
            if probed or (key.open_until is None and key.failures >= numbers.trip_after):
                key.open_until = leave.now + numbers.cool_down
        elif leave.verdict == "ok" and (probed or key.open_until is None):
            key.failures, key.open_until = 0, None
        self.note(limit, key)

    # The line.

    async def withdraw(self, run: StoredRun, location: str, at: Instant, now: Instant) -> None:
        """Let a step wait no longer."""
        waiter = await self._waiter(run.key, location)
        if waiter is not None:
            await self._forget([waiter], at, now)

    async def forget(self, run: StoredRun, at: Instant) -> None:
        """Let no step of a run wait any longer: it goes no further for now."""
        rows = await self._batch.statements.read("limit_waiters_of", [(run.key,)])
        if rows:
            await self._forget([Waiter(*row) for row in rows], at)  # type: ignore[arg-type]  # columns as in Waiter

    async def forget_tasks(self, run: StoredRun, locations: Sequence[str], at: Instant) -> None:
        """Let attempts wait no longer that were taken out of their queues."""
        rows = await self._batch.statements.read("limit_waiters_of", [(run.key,)])
        waiters = [Waiter(*row) for row in rows]  # type: ignore[arg-type]  # columns as in Waiter
        gone = [waiter for waiter in waiters if waiter.task and waiter.location in locations]
        if gone:
            await self._forget(gone, at)

    async def _forget(self, waiters: Sequence[Waiter], at: Instant, now: Instant | None = None) -> None:
        for waiter in waiters:
            await self.remove(waiter)
        for name in dict.fromkeys(waiter.name for waiter in waiters):
            limit = self.rows.limits.get(name)
            if limit is not None and limit.waiting:
                await self._grant(limit, at, now)

    async def _waiter(self, run: int, location: str) -> Waiter | None:
        rows = await self._batch.statements.read("get_limit_waiter", [(run, location)])
        return Waiter(*rows[0]) if rows else None  # type: ignore[arg-type]  # columns as in Waiter

    async def remove(self, waiter: Waiter) -> None:
        """Delete a waiter, and free what was reserved for it."""
        await self._batch.statements.write("delete_limit_waiter", [(waiter.name, waiter.run, waiter.location)])
        if waiter.task:
            await self._batch.statements.write("unpark_task", [(waiter.run, waiter.location)])
        found = await self.rows.get(waiter.name, waiter.key, "")
        if found is None:
            return
        limit, key = found
        if waiter.place:
            limit.granted -= 1
            key.granted -= 1
        else:
            limit.waiting -= 1
            key.waiting -= 1
            if waiter.granted is not None:
                key.invited = None
            if waiter.granted is not None or waiter.n == key.head:
                await self._find_head(key)
        self.note(limit, key)

    async def _find_head(self, key: KeyRecord) -> None:
        rows = await self._batch.statements.read("first_limit_waiter", [(key.name, key.key)]) if key.waiting else []
        key.head_priority, key.head = (int(rows[0][4] or 0), int(rows[0][5] or 0)) if rows else (None, None)

    async def _grant(self, limit: LimitRecord, at: Instant | None, now: Instant | None) -> None:
        """Give turns to the first in line, as many as may begin; without the time only where that does not matter."""
        numbers = limit.numbers
        while limit.waiting and not limit.paused and limit.granted < _MOST_GRANTED:
            if numbers.at_once is not None and limit.used + limit.granted >= numbers.at_once:
                return
            key = await self._next_key(limit)
            if key is None:
                return
            if now is not None:
                key.seen(now)
            elif numbers.rate is not None or key.held_until or key.open_until is not None:
                limit.stale = 1  # the next worker that looks knows the time
                self.note(limit, key)
                return
            await self._tell_first(limit, key, at, now)

    async def _next_key(self, limit: LimitRecord) -> KeyRecord | None:
        """Return the key whose first waiter is the first of those that may begin."""
        known = [key for key in self.rows.keys.values() if key.name == limit.name]
        if limit.waiting > sum(key.waiting for key in known):
            await self.rows.write()
            rows = await self._batch.statements.read("next_limit_key", [(limit.name,)])
            return self.rows.adopt(rows[0]) if rows else None
        ready = (key for key in known if key.ready)
        return min(ready, key=lambda key: (-(key.head_priority or 0), key.head or 0), default=None)

    async def _tell_first(self, limit: LimitRecord, key: KeyRecord, at: Instant | None, now: Instant | None) -> None:
        """Give the first waiter of a key its turn, from now or a later instant on."""
        batch = self._batch
        [row] = await batch.statements.read("first_limit_waiter", [(key.name, key.key)])
        waiter = Waiter(*row)  # type: ignore[arg-type]  # columns as in Waiter
        run = await batch.run(waiter.run)
        if run is None or run.ended is not None:
            await self.remove(waiter)
            return
        turn = turn_under(limit, key, now) if now is not None else _UNDATED
        wait = turn - now if now is not None else 0
        granted = (limit.name, waiter.run, waiter.location, turn, int(wait == 0))
        await batch.statements.write("grant_limit_turn", [granted])
        if wait:
            key.invited = turn
        else:
            limit.waiting -= 1
            key.waiting -= 1
            limit.granted += 1
            key.granted += 1
        await self._find_head(key)
        self.note(limit, key)
        if waiter.task:
            if not wait:
                await batch.statements.write("unpark_task", [(waiter.run, waiter.location)])
            batch.note_woken(run)
            return
        at = run.updated if at is None else at
        batch.put(run, InboxKind.LIMIT_TURN, waiter.location, limit.name, str(at + wait) if wait else "", at)

    def note(self, limit: LimitRecord, key: KeyRecord) -> None:
        """Note that a limit and a key of it changed."""
        numbers = limit.numbers
        key.ready = int(key.head is not None and key.invited is None and key_has_place(numbers, key))
        self.rows.changed_limits[limit.name] = limit
        self.rows.changed_keys[key.name, key.key] = key

    # Workers.

    async def lose(self, worker: str, at: Instant | None = None) -> None:
        """Delete what a worker has that is not there any more, and give its places to others."""
        names: dict[str, None] = {}
        await self.rows.write()
        for name, key_name, used in await self._batch.statements.read("limit_counts_of", [(worker,)]):
            found = await self.rows.get(str(name), str(key_name), worker)
            if found is not None:
                self._give_back(*found, worker, int(used or 0))
                names[str(name)] = None
        await self.grant_all(names, at, None)

    async def correct(self, operation: CorrectPlaces) -> Outcome:
        """Let the counts of a worker say what it knows that it has."""
        known = {(held.limit, held.key): held for held in operation.places}
        wrong = 0
        names: dict[str, None] = {}
        await self.rows.write()
        for name, key_name, used in await self._batch.statements.read("limit_counts_of", [(operation.worker,)]):
            held = known.get((str(name), str(key_name)))
            surplus = int(used or 0) - (held.most if held is not None else 0)
            found = await self.rows.get(str(name), str(key_name), operation.worker)
            if surplus > 0 and found is not None:
                wrong += surplus
                names[str(name)] = None
                self._give_back(*found, operation.worker, surplus)
        await self.grant_all(names, operation.at, operation.now)
        return Done(wrong)

    async def grant_all(self, names: Iterable[str], at: Instant | None, now: Instant | None) -> None:
        for name in names:
            found = await self.rows.get(name, "", "")
            if found is not None and found[0].waiting:
                await self._grant(found[0], at, now)

    # Operators, and engines that open.

    async def put(self, operation: PutLimit) -> Outcome:
        """Declare a limit, or override its numbers."""
        found = await self.rows.get(operation.name, "", "")
        spec = encoded(operation.spec).decode() if operation.spec is not None else None
        if found is None:
            if operation.override or spec is None:
                return Refused(None)
            await self._batch.statements.write("insert_limit", [(operation.name, spec, operation.at)])
            del self.rows.limits[operation.name]
            return Done(1)  # nothing can wait for it yet
        limit, _ = found
        before = limit.override if operation.override else limit.spec
        if before == spec:
            await self._open_again(limit, operation.at, operation.now, boot=True)
            return Done(0)
        if operation.override:
            limit.override = spec
        else:
            limit.spec = spec or "{}"
        limit.read = None
        await self._batch.statements.write(
            "change_limit", [(limit.name, limit.spec, limit.override, limit.paused, operation.at)]
        )
        await self._open_again(limit, operation.at, operation.now)
        return Done(1, ids=(before or "",))

    async def pause(self, operation: PauseLimit) -> Outcome:
        """Let nothing begin under a limit, or let it go on."""
        found = await self.rows.get(operation.name, "", "")
        if found is None:
            return Refused(None)
        limit, _ = found
        if bool(limit.paused) == operation.paused:
            return Done(0)
        limit.paused = int(operation.paused)
        await self._batch.statements.write(
            "change_limit", [(limit.name, limit.spec, limit.override, limit.paused, operation.at)]
        )
        await self._open_again(limit, operation.at, operation.now)
        return Done(1)

    async def _open_again(self, limit: LimitRecord, at: Instant, now: Instant, boot: bool = False) -> None:
        """Look at every key of a limit whose numbers changed, or (`boot`) at those of which another boot told the time.

        A first in line that was told when it may begin is told again.
        """
        statements = self._batch.statements
        await self.rows.write()
        found = await statements.read("waiting_limit_keys", [(limit.name, now + SKEW if boot else 0)])
        for key in map(self.rows.adopt, found):
            await self.tell_again(limit, key)
        if found:
            await self._grant(limit, at, now)

    async def tell_again(self, limit: LimitRecord, key: KeyRecord) -> None:
        """Let the first in line of a key wait to be told when it may begin, though it was told."""
        if key.invited is not None:
            await self._batch.statements.write("take_back_turn", [(key.name, key.key)])
            key.invited = None
            await self._find_head(key)
        self.note(limit, key)

    async def apply(
        self, operation: LeaveLimits | TakeTasks | CorrectPlaces | GrantTurns | PutLimit | PauseLimit
    ) -> Outcome:
        """Do what a worker, an engine that opens or an operator asks of limits."""
        match operation:
            case LeaveLimits():
                for leave in operation.leaves:
                    await self.leave(leave, operation.at)
                return Done(len(operation.leaves))
            case TakeTasks():
                return await take_tasks(self._batch, operation)
            case CorrectPlaces():
                return await self.correct(operation)
            case GrantTurns():
                return await grant_turns(self._batch, operation)
            case PutLimit():
                return await self.put(operation)
            case PauseLimit():
                return await self.pause(operation)
