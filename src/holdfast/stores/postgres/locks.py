"""What a batch locks before it begins, so that no other batch changes its rows and no two batches wait for each other.

Every batch locks in one order: first names of events and idempotency keys, then limits, then runs, each lowest first.
Batches that only use places which their workers have kept share a limit; any other batch locks it exclusively. What a
batch cannot know beforehand is not locked. If the batch then touches it (`NotLocked`), it is applied again, with
exclusive locks on its limits, or in an exclusive transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.contract.limits import LeaveLimits, TakeTasks
from holdfast.contract.operations import Beat, BeatTask, FinishTask, KeepResult, Operation, SendMessage
from holdfast.contract.turns import CommitTurn, EnterLimit, LeaveLimit, NewRun, PublishEvent, StartRun, TurnEffects
from holdfast.stores.postgres.statements import lane_lock, limit_lock, name_lock
from holdfast.stores.rules.rows import ids_of, new_ids_of


@dataclass(slots=True)
class Locks:
    """Everything a batch may change, as far as it can be told beforehand."""

    exclusive: bool = False
    """Whether no other process may commit meanwhile: what operators do to runs, and what looks at many."""
    names: set[int] = field(default_factory=set)
    """Rows of name_locks."""
    keys: set[int] = field(default_factory=set)
    """Keys of runs."""
    ids: set[str] = field(default_factory=set)
    new_ids: list[str] = field(default_factory=list)
    ending: set[int] = field(default_factory=set)
    """Runs that end: their parents are told."""
    parked: dict[int, int] = field(default_factory=dict)
    """Runs whose state is written, and how much of their inbox they have seen; 0 for those that end."""
    events: set[str] = field(default_factory=set)
    """Names under which something is published: runs that wait for them may be given it."""
    waited: set[str] = field(default_factory=set)
    """Names of events that a run begins to wait for."""
    freed: set[tuple[str, str]] = field(default_factory=set)
    """Idempotency keys that are given up: runs that wait for them are told."""
    limits: set[tuple[str, str, str]] = field(default_factory=set)
    """Limits that attempts enter or leave, with the key and the worker."""
    left: dict[str, int] = field(default_factory=dict)
    """The limits that the batch has for itself, and how many runs that wait for them may be told."""
    kept: dict[str, int] = field(default_factory=dict)
    """The limits of which attempts have places that their workers kept, and how many do."""

    @property
    def shared_limits(self) -> set[int]:
        """The limits that other batches may use meanwhile, as long as they only do the same."""
        return {limit_lock(name) for name in self.kept} - self.own_limits

    @property
    def own_limits(self) -> set[int]:
        """The limits that no other batch may use meanwhile."""
        return {limit_lock(name) for name in self.left}

    def share_no_limits(self) -> bool:
        """Have for itself what was to be shared; False if nothing was."""
        shared = bool(self.shared_limits)
        for name, count in self.kept.items():
            self.left[name] = self.left.get(name, 1) + count
        self.kept.clear()
        return shared

    def _take_turn(self, turn: CommitTurn, new: bool) -> None:
        if not new:
            self.keys.add(turn.key)
            if turn.state is not None:
                self.parked[turn.key] = min(turn.state.seen, self.parked.get(turn.key, turn.state.seen))
            if turn.end is not None:
                self.ending.add(turn.key)
                self.parked[turn.key] = 0
        if turn.end is not None and turn.end.workflow:
            self.names.add(lane_lock(turn.end.workflow))
        for child in turn.children:
            self._enter(child.run)
        if turn.effects is not None:
            self._take_effects(turn.effects)

    def _enter(self, run: NewRun) -> None:
        lane = run.options.lane
        if lane is not None:
            self.names.add(lane_lock(run.workflow))
            # Which run they end is known only to the store.
            self.exclusive = self.exclusive or bool(lane.window) or lane.on_full == "cancel_oldest"

    def _take_effects(self, effects: TurnEffects) -> None:
        self.exclusive = self.exclusive or effects.enter is not None
        self.exclusive = self.exclusive or bool(effects.returns)  # what they are called is known only to the store
        for wait in effects.waits:
            self.names.update(name_lock("event", name) for name in wait.names)
            self.waited.update(wait.names)
        for event in effects.publishes:
            self._publish(event)
        for take in effects.takes:
            self.names.add(name_lock("key", take.activity, take.key))
        for left in effects.leaves:
            self._free(left.activity, left.key)
        for enter in effects.enters:
            self._use(enter, kept=enter.counted > 0)
        for leave in effects.exits:
            self._use(leave)

    def _use(self, limited: EnterLimit | LeaveLimit, *, kept: bool = False) -> None:
        self.limits.add((limited.limit, limited.key, limited.worker))
        if kept:
            self.kept[limited.limit] = self.kept.get(limited.limit, 0) + 1
        else:
            self.left[limited.limit] = self.left.get(limited.limit, 1) + 1

    def _publish(self, event: PublishEvent) -> None:
        self.names.add(name_lock("event", event.name))
        self.events.add(event.name)
        if event.deduplicate:
            self.names.add(name_lock("event id", event.id))

    def _free(self, activity: str, key: str) -> None:
        self.names.add(name_lock("key", activity, key))
        self.freed.add((activity, key))

    def take(self, operation: Operation) -> None:
        """Add what one operation may change."""
        self.ids.update(ids_of(operation))
        self.new_ids.extend(new_ids_of(operation))
        match operation:
            case CommitTurn():
                self._take_turn(operation, new=False)
            case StartRun():
                self.exclusive = self.exclusive or operation.audit is not None
                self._enter(operation.run)
                if operation.turn is not None:
                    self._take_turn(operation.turn, new=True)
            case PublishEvent():
                self.exclusive = self.exclusive or operation.audit is not None
                self._publish(operation)
            case Beat():
                self.keys.add(operation.key)
            case FinishTask() | BeatTask():
                self.keys.add(operation.run)
                if isinstance(operation, FinishTask) and operation.leave is not None:
                    self._use(operation.leave)
            case TakeTasks():
                self.names.update(name_lock("queue", queue) for queue in operation.at_once)
                self.limits.add((operation.limit, "", operation.worker))
                self.left[operation.limit] = self.left.get(operation.limit, 1) + operation.room
            case KeepResult():
                self.keys.add(operation.run)
                self._free(operation.leave.activity, operation.leave.key)
            case LeaveLimits():
                for leave in operation.leaves:
                    self._use(leave)
            case SendMessage():
                self.exclusive = self.exclusive or operation.audit is not None
            case _:
                self.exclusive = True


def locks_of(operations: Iterable[Operation]) -> Locks:
    """Return what a batch has to lock."""
    locks = Locks()
    for operation in operations:
        locks.take(operation)
    return locks
