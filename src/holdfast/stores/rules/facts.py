"""Turns that only add facts, nine of ten: they are written without reading their runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeGuard

from holdfast.contract.limits import LeaveLimits, TakeTasks
from holdfast.contract.operations import (
    Beat,
    BeatTask,
    FinishTask,
    KeepResult,
    Operation,
    Outcome,
    SendMessage,
)
from holdfast.contract.turns import CommitTurn, PublishEvent, StartRun
from holdfast.stores.rules.batch import Batch
from holdfast.stores.rules.fence import outcome_of
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.tables import Row

_SHARED = (
    CommitTurn,
    StartRun,
    SendMessage,
    PublishEvent,
    Beat,
    BeatTask,
    FinishTask,
    KeepResult,
    LeaveLimits,
    TakeTasks,
)
"""What neither ends nor cuts the runs of others."""


class InsertingStatements(Statements, Protocol):
    """Statements that also tell how many rows were inserted: as many as were given unless a run is fenced."""

    async def insert(self, name: str, rows: Sequence[Row]) -> int:
        """Insert rows and return how many there are now that were not there before."""


class Split:
    """A batch in two: turns that only add facts to a run which nothing else in the batch may end or cut, and the rest.

    The former need nothing but the epoch.
    """

    __slots__ = ("_facts", "others", "turns")

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._facts = _each_only_facts(operations)
        self.turns: list[CommitTurn] = []
        self.others: list[Operation] = []
        for operation, fact in zip(operations, self._facts, strict=True):
            if fact and isinstance(operation, CommitTurn):
                self.turns.append(operation)
            else:
                self.others.append(operation)

    def outcomes(self, fenced: set[Row], made: Iterable[Outcome]) -> list[Outcome]:
        """Return the outcomes of all, in order, from those of the two parts."""
        turns, rest = iter(self.turns), iter(made)
        return [outcome_of(next(turns), fenced) if fact else next(rest) for fact in self._facts]


async def apply(statements: InsertingStatements, operations: Sequence[Operation]) -> list[Outcome]:
    """Apply a batch beside which nothing else is written."""
    split = Split(operations)
    fenced: set[Row] = set()
    if split.turns:
        facts = facts_of(split.turns)
        if await statements.insert("insert_facts", facts) < len(facts):
            fenced.update(await statements.read("fenced_facts", [(turn.key, turn.epoch) for turn in split.turns]))
    return split.outcomes(fenced, await Batch(statements).apply(split.others) if split.others else ())


def facts_of(turns: Iterable[CommitTurn]) -> list[Row]:
    """Return the rows of facts, each with the epoch in which it may be written."""
    return [(turn.key, turn.epoch, *entry) for turn in turns for entry in turn.entries]


def only_facts(operation: Operation) -> TypeGuard[CommitTurn]:
    """Whether an operation is a turn that adds entries to a history and does nothing else."""
    return (
        type(operation) is CommitTurn
        and operation.state is None
        and operation.end is None
        and operation.renewal is None
        and operation.effects is None
        and operation.inbox is None
        and not (operation.reset_claims or operation.trial or operation.trims or operation.sends or operation.children)
        and not operation.consumed
        and bool(operation.entries)
    )


def _each_only_facts(operations: Sequence[Operation]) -> list[bool]:
    """Tell of each operation whether it only adds facts to a run that nothing else in the batch may end or cut."""
    counted: dict[int, int] = {}
    for operation in operations:
        if type(operation) is CommitTurn:
            counted[operation.key] = counted.get(operation.key, 0) + 1
        elif not isinstance(operation, _SHARED):
            return [False] * len(operations)
    return [only_facts(each) and counted[each.key] == 1 for each in operations]
