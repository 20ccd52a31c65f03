"""What time does to limits: turns that were not used, keys that are not in use, instants of another boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.contract.limits import GRANTED_FOR, GrantTurns
from holdfast.contract.operations import Done, Outcome
from holdfast.contract.rows import InboxKind
from holdfast.rates import SKEW
from holdfast.stores.rules.limits.rows import Waiter

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch


async def grant_turns(batch: Batch, operation: GrantTurns) -> Outcome:
    """Give turns that were not used in time to the next, and forget keys that are not in use."""
    statements, limits, skew = batch.statements, batch.limits, SKEW
    await limits.rows.write()
    if operation.clock is not None:
        operation = msgspec.structs.replace(operation, now=operation.clock.now())
    if operation.clock is not None or await _opens_alone(batch, operation):
        await _after_boot(batch, operation)
        skew = 0
    await statements.write("date_limit_turns", [(operation.now, operation.now + skew)])
    late = await statements.read("late_limit_turns", [(operation.now - GRANTED_FOR,)])
    names = dict.fromkeys(str(name) for (name,) in await statements.read("stale_limits", [()]))
    for row in late:
        waiter = Waiter(*row)  # type: ignore[arg-type]  # columns as in Waiter
        await limits.remove(waiter)
        names[waiter.name] = None
        run = await batch.run(waiter.run) if not (waiter.place or waiter.task) else None
        if run is not None:  # it waits by a clock that may have been set back: let it ask again
            batch.put(run, InboxKind.LIMIT_TURN, waiter.location, waiter.name, "", operation.at)
    for name in names:
        found = await limits.rows.get(name, "", "")
        if found is not None:
            found[0].stale = 0
            limits.note(*found)
    await limits.grant_all(names, operation.at, operation.now)
    await limits.rows.write()
    forgotten = await statements.change("forget_limit_keys", (operation.now,))
    limits.rows.forget_idle(operation.now)
    return Done(len(late) + len(names) + forgotten)


async def _opens_alone(batch: Batch, operation: GrantTurns) -> bool:
    if operation.opens is None:
        return False
    return not await batch.statements.read("other_live_workers", [(operation.opens,)])


async def _after_boot(batch: Batch, operation: GrantTurns) -> None:
    """Bring keys of which another boot told the time to this one."""
    limits = batch.limits
    later = await batch.statements.read("later_limit_keys", [(operation.now,)])
    for key in map(limits.rows.adopt, later):
        found = await limits.rows.get(key.name, key.key, "")
        if found is not None:
            key.seen(operation.now, skew=0)
            await limits.tell_again(*found)
    await limits.grant_all(dict.fromkeys(str(row[0]) for row in later), operation.at, operation.now)
