"""The books of a world of many runs: every operation that took effect, as the store did it, whoever heard of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.simulation.world import World

from holdfast.contract.operations import (
    Committed,
    Delivered,
    Done,
    Existing,
    Fenced,
    KeyHeld,
    Operation,
    Outcome,
    Published,
    Refused,
    Reopen,
    SendMessage,
    Started,
    Tick,
)
from holdfast.contract.rows import EntryRow, InboxKind, Status
from holdfast.contract.turns import CommitTurn, PublishEvent, StartRun
from holdfast.replay import entry as entries

CONSERVED = frozenset({"job", "rare", "word"})
"""Names under which nothing may ever be lost; `news` is for everybody."""


class Books(World):
    """What took effect, in order; added up when all is over."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.stacks: list[tuple[int | str, str, Any]] = []
        """What was registered to be undone, and cut away again; by the key or the id of the run."""
        self.issued = Counter[str]()
        """How many copies of each payload were published or sent."""
        self.names: dict[str, str] = {}
        self.consumed: list[tuple[int, int]] = []
        """The inbox rows that turns took, by run and number."""
        self.delivered: dict[tuple[int, int], str] = {}
        """The payloads of messages that were sent, by run and number."""
        self.given_back = Counter[tuple[str, str]]()
        """The payloads that reopened runs were given again."""
        self.ticked = Counter[str]()
        self.evidence = Counter[int]()
        self.effects: dict[str, set[str]] = {}
        self.owners: dict[str, set[int]] = {}
        self.undone = Counter[int | str]()
        self.audits = 0
        self.bodies_of = Counter[tuple[str, str, int]]()
        self.busy_keys: set[str] = set()
        self.orderly = not self.rate
        """Whether no body can outlive its worker: nothing fails, is killed or lapses."""
        self.gates = Counter[tuple[str, str]]()

    # What bodies say.

    def begin(self, run: str, token: str, attempt: int) -> None:
        self.bodies_of[run, token, attempt] += 1

    def fails(self, token: str, failures: int) -> bool:
        self.failed[token] += 1
        return self.failed[token] <= failures

    def enter_key(self, key: str) -> None:
        if key in self.busy_keys and self.orderly:
            self.wrong.append(f"two bodies at once for {key}")
        self.busy_keys.add(key)

    def leave_key(self, key: str) -> None:
        self.busy_keys.discard(key)

    # What the store says.

    def note(self, operations: Sequence[Operation], outcomes: list[Outcome] | None) -> list[Outcome] | None:
        for operation, outcome in zip(operations, outcomes or (), strict=False):
            self._note(operation, outcome)
        return outcomes

    def _note(self, operation: Operation, outcome: Outcome) -> None:
        in_vain = isinstance(outcome, Refused | KeyHeld | Fenced | Existing) or outcome == Done(0)
        if getattr(operation, "audit", None) is not None and not in_vain:
            self.audits += 1
        match operation, outcome:
            case CommitTurn(), Committed():
                self._turn(outcome.key, operation, outcome)
            case StartRun(turn=CommitTurn() as turn), Started(committed=Committed() as committed):
                self._turn(outcome.key, turn, committed)
            case PublishEvent(), Published(duplicate=False):
                self._issue(operation.name, operation.payload, operation.deduplicate)
            case SendMessage(), Delivered(duplicate=False):
                self._issue(operation.name, operation.payload, False)
                self.delivered[outcome.key, outcome.n] = operation.payload.strip('"')
            case Tick(), Done():
                self.ticked.update(outcome.ids)
            case Reopen(), Done(count=1):
                self._reopen(operation)

    def _issue(self, name: str, payload: str, once: bool) -> None:
        token = payload.strip('"')
        self.names[token] = name
        self.issued[token] = 1 if once else self.issued[token] + 1

    def _turn(self, key: int, turn: CommitTurn, outcome: Committed) -> None:
        self.consumed += [(key, n) for n in turn.consumed]
        if turn.renewal is not None:
            self.stacks.append((key, "renewed", None))
        for row in turn.entries:
            entry: Any = entries.decode_entry(row.kind, row.data)
            if row.kind == entries.CompensationAdded.kind:
                self.stacks.append((key, "added", (row.seq, bytes(entry.args).decode())))
        effects = turn.effects
        if effects is not None:
            for event in effects.publishes:
                if event.location not in outcome.refused:
                    self._issue(event.name, event.payload, event.deduplicate)
            self.evidence[key] += len(effects.evidence)
            for leave in effects.leaves:
                if leave.result is not None:
                    self.effects.setdefault(leave.key, set()).add(leave.result)
                    self.owners.setdefault(leave.key, set()).add(key)
        compensating = turn.state is not None and turn.state.status is Status.COMPENSATING
        if compensating or (turn.end is not None and turn.end.compensation is not None):
            self.undone[key] += 1

    def _reopen(self, operation: Reopen) -> None:
        for child in operation.children:
            self._reopen(child)
        self.undone[operation.target] += 1
        self.stacks.append((operation.target, "cut", operation.cut))
        for message in operation.messages:
            if message.kind != InboxKind.CHILD_ENDED:
                self.given_back[message.payload.strip('"'), operation.target] += 1


def undoing(rows: Sequence[EntryRow]) -> tuple[list[str], list[str]]:
    """Return what a history says was registered to be undone, and what of it has ended, each in order."""
    added: dict[str, str] = {}
    ended: list[str] = []
    for row in rows:
        if row.kind == entries.CompensationAdded.kind:
            entry: Any = entries.decode_entry(row.kind, row.data)
            added[row.location] = bytes(entry.args).decode()
        elif row.kind in (entries.StepCompleted.kind, entries.StepFailure.kind) and row.location.startswith("^"):
            ended.append(added.get(row.location.partition("/")[0], f"nobody's {row.location}"))
    return list(added.values()), ended
