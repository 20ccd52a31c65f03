"""Removing from a run's key space what no replay reads."""

from __future__ import annotations

from holdfast.clock import Clock
from holdfast.kv import keys
from holdfast.kv.driver import Driver
from holdfast.kv.space import Changes, Space
from holdfast.kv.standing import ENDED
from holdfast.replay import entry as entries
from holdfast.replay.past import after_checkpoints

_ATTEMPTS = frozenset(
    {entries.AttemptBegun.kind, entries.AttemptFailed.kind, entries.AttemptLost.kind, entries.AttemptSkipped.kind}
    | {entries.EndKept.kind}
)


async def compact(driver: Driver, clock: Clock | None = None) -> int:
    """Delete the keys that no replay reads, and return how many.

    Of an open run these are the iterations of loops whose later state is recorded, the earlier attempts of steps that
    completed, and results under idempotency keys that have expired. Of a run that has ended they are its history, its
    messages and their ids, and those results. What it came to, its audit trail, dead letters and answers stay. A driver
    that has the run meanwhile is fenced, if it compares; otherwise none may have it.
    """
    space = Space(driver)
    rows = await space.load()
    removed = await space.finish_renewal()
    state, now = space.state, (clock or Clock()).now()
    if state is not None and state.state in ENDED:
        found = [keys.entry_key(row.location, row.seq) for row in rows]
        found += [key for key in space.stored if key[:2] in (keys.MESSAGE, keys.SEEN, keys.RESULT)]
    else:
        read = {row.seq for row in after_checkpoints(rows)}
        completed = {row.location for row in rows if row.kind == entries.StepCompleted.kind}
        superfluous = [
            row for row in rows if row.seq not in read or (row.kind in _ATTEMPTS and row.location in completed)
        ]
        last = rows[-1].seq if rows else 0  # the next entry counts from it
        found = [keys.entry_key(row.location, row.seq) for row in superfluous if row.seq != last]
        results = [key for key in space.stored if key.startswith(keys.RESULT)]
        found += [key for key in results if space.result(key, now) is None]
    changes = Changes()
    for place, key in enumerate(found, 1):
        space.delete(changes, key)
        if len(changes.deletes) >= driver.max_batch // 2 or place == len(found):
            removed += len(changes.deletes)
            await space.commit(changes)
            changes = Changes()
    return removed
