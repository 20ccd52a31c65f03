"""Whether an attempt may begin under a limit, and from which time."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.contract.limits import LimitSpec
from holdfast.contract.turns import EnterLimit, LeaveLimit
from holdfast.rates import turn_of
from holdfast.stores.rules.limits.rows import KeyRecord, LimitRecord

KEPT_FROM = 4
"""How many places of a limit and key a worker must have to keep those that it does not need just now."""


def goes_on(limit: LimitRecord, key: KeyRecord, leave: LeaveLimit, enter: EnterLimit) -> bool:
    """Tell whether an attempt simply has the place of the one before it: what is counted stays as it is.

    This is so of steps in a row under a limit for which none waits, that has no rate, and that nothing holds back.
    """
    if (leave.limit, leave.key, leave.worker) != (enter.limit, enter.key, enter.worker) or leave.places != 1:
        return False
    return leave.hold is None and not leave.probe and leave.verdict != "failed" and is_calm(limit, key)


def is_calm(limit: LimitRecord, key: KeyRecord) -> bool:
    """Tell whether no more than its numbers are used of a limit for which none waits and that nothing holds back."""
    if limit.paused or limit.waiting or limit.granted or limit.stale:
        return False
    if key.failures or key.held_until or key.open_until is not None:
        return False
    numbers = limit.numbers
    if numbers.rate is not None or (numbers.at_once is not None and limit.used > numbers.at_once):
        return False
    return numbers.per_key_at_once is None or key.used <= numbers.per_key_at_once


def may_keep(limit: LimitRecord, key: KeyRecord, held: int) -> bool:
    """Tell whether a worker that has so many places of a key may keep those that it does not need just now.

    It is busy under that limit, and more than half of it is free for others.
    """
    numbers = limit.numbers
    if held < KEPT_FROM or numbers.trip_after is not None or not is_calm(limit, key):
        return False
    if numbers.at_once is not None and limit.used * 2 > numbers.at_once:
        return False
    return numbers.per_key_at_once is None or key.used * 2 <= numbers.per_key_at_once


def has_place(limit: LimitRecord, key: KeyRecord) -> bool:
    """Tell whether an attempt under a key might begin now, as far as others are concerned."""
    return not is_full(limit) and key_has_place(limit.numbers, key)


def is_full(limit: LimitRecord) -> bool:
    """Tell whether nothing may begin under a limit, whatever its key."""
    most = limit.numbers.at_once
    return bool(limit.paused) or (most is not None and limit.used + limit.granted >= most)


def key_has_place(numbers: LimitSpec, key: KeyRecord) -> bool:
    """Tell whether an attempt under a key might begin, as far as others of that key are concerned."""
    if numbers.trip_after is not None and key.open_until is not None and (key.probe or key.granted):
        return False  # one attempt tries whether the service is back
    return numbers.per_key_at_once is None or key.used + key.granted < numbers.per_key_at_once


def turn_under(limit: LimitRecord, key: KeyRecord, now: Instant) -> Instant:
    """Return from when the next attempt under a key may begin, as far as time is concerned."""
    numbers = limit.numbers
    turn = max(now, key.held_until)
    if numbers.trip_after is not None:
        turn = max(turn, key.open_until or 0)
    if numbers.rate is not None:
        turn = max(turn, turn_of(key.instants, now, numbers.rate, numbers.per, numbers.burst, key.granted))
    return turn
