"""Idempotency keys: one step at a time holds a key, whichever run it belongs to, and later steps get its result."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from holdfast.clock import Instant
from holdfast.contract.operations import Committed, Fenced, KeepResult, KeyAnswer, Outcome
from holdfast.contract.rows import InboxKind
from holdfast.contract.turns import LeaveKey, TakeKey
from holdfast.stores.sql.tables import Row, StoredRun

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_TAKEN, _HELD, _CONFLICT = KeyAnswer("taken"), KeyAnswer("held"), KeyAnswer("conflict")


class _Key(NamedTuple):
    """A row of keys; `expires` says of a result until when it is kept, and of a key that is held since when it is."""

    digest: int
    run: int
    location: str
    result: str | None
    expires: Instant
    waiting: int


class KeyRules:
    """The keys of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._held: dict[int, list[tuple[str, str]]] = {}
        """Keys that runs hold, read before they were asked for."""

    async def take(self, run: StoredRun, take: TakeKey, at: Instant) -> KeyAnswer:
        """Take a key for a step, or say who has it."""
        batch = self._batch
        batch.note_side_rows(run)
        self._held.pop(run.key, None)
        key = await self._get(take.activity, take.key)
        if key is not None and key.result is not None and key.expires <= at:
            key = None
        if key is not None and key.digest != take.digest:
            return _CONFLICT
        if key is not None and key.result is not None:
            return KeyAnswer("hit", key.result)
        mine = key is None or (key.run, key.location) == (run.key, take.location)
        if key is not None and not mine:
            holder = await batch.run(key.run)
            if holder is not None and holder.ended is None:
                await batch.statements.write("wait_for_key", [(take.activity, take.key, run.key, take.location)])
                await self._put(take.activity, take.key, key._replace(waiting=key.waiting + 1))
                return _HELD
        waiting = key.waiting if key is not None else 0
        since = key.expires if key is not None and mine else at
        await self._put(take.activity, take.key, _Key(take.digest, run.key, take.location, None, since, waiting))
        return _TAKEN

    async def leave(self, run: StoredRun, leave: LeaveKey, at: Instant) -> None:
        """Give up a key that a run holds, with or without a result."""
        key = await self._get(leave.activity, leave.key)
        if key is None or key.run != run.key or key.result is not None:
            return
        if leave.result is None:
            await self._batch.statements.write("delete_key", [(leave.activity, leave.key)])
        else:
            done = key._replace(result=leave.result, expires=leave.expires, waiting=0)
            await self._put(leave.activity, leave.key, done)
        if key.waiting:
            await self._wake(leave.activity, leave.key, at)

    async def keep(self, operation: KeepResult) -> Outcome:
        """Keep a result that came too late for its attempt, while the key is still the run's."""
        run = await self._batch.run(operation.run)
        if run is None or run.ended is not None:
            return Fenced(operation.run)
        await self.leave(run, operation.leave, run.updated)
        return Committed(run.key)

    async def free(self, run: StoredRun, at: Instant) -> None:
        """Give up every key a run holds or waits for: it goes no further for now."""
        if not run.side_rows:
            return
        statements = self._batch.statements
        if run.key not in self._held:
            self.know_held([run.key], await statements.read("keys_held", [(run.key,)]))
        for activity, key in sorted(self._held.pop(run.key)):
            await self.leave(run, LeaveKey(activity=activity, key=key), at)
        await statements.write("forget_key_waiters", [(run.key,)])

    def know_held(self, runs: Iterable[int], rows: Iterable[Row]) -> None:
        """Take in the keys that runs hold."""
        self._held.update((run, []) for run in runs)
        for run, activity, key in rows:
            self._held[int(run or 0)].append((str(activity), str(key)))

    async def undo(self, run: StoredRun) -> None:
        """Forget the results a run left under its keys: what its steps did was undone, and must be done again."""
        await self._batch.statements.write("forget_results", [(run.key,)])

    async def _wake(self, activity: str, key: str, at: Instant) -> None:
        batch = self._batch
        for run, location in await batch.statements.read("key_waiters", [(activity, key)]):
            waiter = await batch.run(int(run or 0))
            if waiter is not None and waiter.ended is None:
                batch.put(waiter, InboxKind.KEY_FREED, str(location), key, "", at)
        await batch.statements.write("delete_key_waiters", [(activity, key)])

    async def _get(self, activity: str, key: str) -> _Key | None:
        rows = await self._batch.statements.read("get_key", [(activity, key)])
        return _Key(*rows[0]) if rows else None  # type: ignore[arg-type]  # columns as in _Key

    async def _put(self, activity: str, name: str, key: _Key) -> None:
        await self._batch.statements.write("put_key", [(activity, name, *key)])
