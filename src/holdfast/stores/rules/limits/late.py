"""What time does to limits: turns that were not used, keys that are not in use, instants of another boot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import Instant
from holdfast.contract.limits import GRANTED_FOR, GrantTurns
from holdfast.contract.operations import Done, Outcome
from holdfast.contract.rows import InboxKind
from holdfast.rates import SKEW
from holdfast.stores.rules.limits.rows import Waiter
from holdfast.stores.sql.tables import Row

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_MOST_PASSED = 1000
"""After how many turns that nothing will use one look is enough: the next is a second later."""


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
    names |= await _take_away(batch, map(_waiter, late), operation.at)
    for name in names:
        found = await limits.rows.get(name, "", "")
        if found is not None:
            found[0].stale = 0
            limits.note(*found)
    await limits.grant_all(names, operation.at, operation.now)
    passed_over = await _pass_over(batch, operation) if operation.paused else 0
    await limits.rows.write()
    forgotten = await statements.change("forget_limit_keys", (operation.now,))
    limits.rows.forget_idle(operation.now)
    return Done(len(late) + len(names) + passed_over + forgotten)


async def _take_away(batch: Batch, waiters: Iterable[Waiter], at: Instant) -> dict[str, None]:
    """Let steps that were given their turn have it no more, and return the names of their limits."""
    names: dict[str, None] = {}
    for waiter in waiters:
        await batch.limits.remove(waiter)
        names[waiter.name] = None
        run = await batch.run(waiter.run) if not (waiter.place or waiter.task) else None
        if run is not None:  # it waits by a clock that may have been set back: let it ask again
            batch.put(run, InboxKind.LIMIT_TURN, waiter.location, waiter.name, "", at)
    return names


async def _pass_over(batch: Batch, operation: GrantTurns) -> int:
    """Give turns that nothing will use, since a workflow or queue is paused, to the first in line that may begin."""
    passed = 0
    while passed < _MOST_PASSED:
        await batch.limits.rows.write()
        turns = map(_waiter, await batch.statements.read("paused_limit_turns", operation.paused))
        found = [turn for turn in turns if turn.place or (turn.granted or 0) <= operation.now]
        if not found:
            break
        names = await _take_away(batch, found, operation.at)
        await batch.limits.grant_all(names, operation.at, operation.now)
        passed += len(found)
    return passed


def _waiter(row: Row) -> Waiter:
    return Waiter(*row)  # type: ignore[arg-type]  # columns as in Waiter


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
