"""Operations that are tried again: their limit instants are dated anew for each try.

An operation that is minutes late would look like the first of another boot, and take back what began meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.clock import Clock, Instant
from holdfast.contract.limits import CorrectPlaces, GrantTurns, LeaveLimits, PauseLimit, PutLimit, TakeTasks
from holdfast.contract.operations import FinishTask, Operation
from holdfast.contract.turns import CommitTurn, StartRun


def dating(clock: Clock) -> Callable[[Sequence[Operation]], list[Operation]]:
    """Return a function that dates operations anew, by the lease's clock."""
    return lambda operations: [dated(operation, clock.now()) for operation in operations]


def dated(operation: Operation, now: Instant) -> Operation:
    """Return an operation as if it were asked for now, as far as limits are concerned."""
    match operation:
        case CommitTurn():
            return _turn(operation, now)
        case StartRun() if operation.turn is not None:
            return replace(operation, turn=_turn(operation.turn, now))
        case LeaveLimits():
            return replace(operation, leaves=[replace(leave, now=now) for leave in operation.leaves])
        case FinishTask() if operation.leave is not None:
            return replace(operation, leave=replace(operation.leave, now=now))
        case TakeTasks() | CorrectPlaces() | GrantTurns() | PutLimit() | PauseLimit():
            return replace(operation, now=now)
    return operation


def _turn(turn: CommitTurn, now: Instant) -> CommitTurn:
    effects = turn.effects
    if effects is None or not (effects.enters or effects.exits or effects.unlimits):
        return turn
    later = replace(
        effects,
        enters=[replace(enter, now=now) for enter in effects.enters],
        exits=[replace(leave, now=now) for leave in effects.exits],
        unlimits=[(location, now) for location, _ in effects.unlimits],
    )
    return replace(turn, effects=later)
