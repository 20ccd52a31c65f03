"""A batch gives the same result row by row, set-based, and as single commits: random batches, compared."""

from __future__ import annotations

from random import Random
from typing import get_args

import pytest

from holdfast.records import (
    CommitTurn,
    End,
    EntryRow,
    NewRun,
    Operation,
    Outcome,
    Parent,
    Renewal,
    RequestCancel,
    Send,
    SendMessage,
    StartChild,
    StartRun,
    State,
    Status,
    Unblock,
)
from holdfast.stores.sqlite import SQLiteStore
from holdfast.testing.conformance import LEASE, NOW

IDS = [f"run-{n}" for n in range(12)]
TABLES = ["runs", "inputs", "results", "entries", "inbox", "workers"]
OPEN = [status for status in Status if not status.terminal]


class Dice:
    """Random operations on a few runs, so that they meet each other often."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.at = NOW
        self.seq = 0

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def operation(self) -> Operation:
        self.at += 1
        match self.random.randrange(10):
            case 0 | 1:
                turn = self.turn() if self.chance(60) else None
                return StartRun(run=self.run(), turn=turn)
            case 2:
                return SendMessage(target=self.id(), name="n", id="", payload=str(self.at), at=self.at)
            case 3:
                return RequestCancel(target=self.id(), at=self.at)
            case 4 if self.chance(30):
                return Unblock(
                    at=self.at, workflow="order", fingerprint="a", target=self.id() if self.chance(50) else ""
                )
            case _:
                return self.turn()

    def id(self) -> str:
        return self.random.choice(IDS)

    def run(self, parent: Parent | None = None) -> NewRun:
        owner = self.random.choice(["w", None, "stranger"])
        return NewRun(
            id=self.id(), workflow="order", version="1", input=str(self.at), digest=self.at, seed=1, at=self.at,
            owner=owner, parent=parent,
        )  # fmt: skip

    def turn(self) -> CommitTurn:
        entries = [self.entry() for _ in range(self.random.randrange(3))]
        location, seq = (entries[0].location, entries[0].seq) if entries else ("a0", 1)
        key = self.random.randrange(1, 12)
        sends = [
            Send(
                target=self.id(), name="s", id="", payload="1", at=self.at, location=location, seq=seq,
                refusals={reason: reason for reason in ("missing", "completed", "failed", "cancelled")},
            )
            for _ in range(self.random.choice([0, 0, 0, 1, 2]))
        ]  # fmt: skip
        children = [
            StartChild(run=self.run(Parent(key, "x", location)), location=location, seq=seq, taken="taken")
            for _ in range(self.random.choice([0, 0, 0, 1]))
        ]
        return CommitTurn(
            key=key,
            epoch=self.random.choice([0, 1, 1, 1, 1]),
            at=self.at,
            entries=entries,
            consumed=[n for n in range(1, 6) if self.chance(10)],
            trims=[("a0", "a1")] if self.chance(10) else [],
            sends=sends,
            children=children,
            state=self.state() if self.chance(50) else None,
            end=self.end() if self.chance(8) else None,
            renewal=Renewal(input="next", generation=2) if self.chance(8) else None,
            reset_claims=self.chance(20),
        )

    def entry(self) -> EntryRow:
        self.seq += 1
        return EntryRow(self.random.choice(["a0", "a0/~a1", "a1", "b10"]), self.seq, 1, self.at, "{}")

    def state(self) -> State:
        return State(
            status=self.random.choice(OPEN),
            seen=self.random.randrange(4),
            wait=self.random.choice(["", "timer"]),
            due=self.random.choice([None, NOW + 1000]),
            released=self.chance(30),
            error=self.random.choice([None, None, "why"]),
            fingerprint=self.random.choice([None, "a", "b"]),
        )

    def end(self) -> End:
        status = self.random.choice([Status.COMPLETED, Status.FAILED, Status.CANCELLED])
        return End(status=status, at=self.at, output=self.random.choice([None, "o"]), payload=str(self.at))


def contents(store: SQLiteStore) -> dict[str, list[tuple[object, ...]]]:
    db = store._connections.reader
    found = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
    found["workers"] = [(row[0], row[-1]) for row in found["workers"]]
    return found


@pytest.mark.parametrize("start", range(0, 60, 10))
async def test_a_batch_gives_what_its_operations_give_one_by_one(start: int) -> None:
    kinds: set[type[Outcome]] = set()
    for seed in range(start, start + 10):
        kinds |= await compare(seed)
    assert kinds == set(get_args(Outcome))


async def compare(seed: int) -> set[type[Outcome]]:
    dice = Dice(seed)
    plain, bulk, single = (SQLiteStore(":memory:", inline_limit=limit) for limit in (10**6, 0, 10**6))
    for store in (plain, bulk, single):
        await store.open()
        await store.join("w", LEASE)
    kinds: set[type[Outcome]] = set()
    for _ in range(12):
        batch = [dice.operation() for _ in range(dice.random.choice([1, 2, 5, 25]))]
        outcomes: list[Outcome] = []
        for operation in batch:
            outcomes += await single.apply([operation])
        assert await plain.apply(batch) == outcomes, seed
        assert await bulk.apply(batch) == outcomes, seed
        expected = contents(single)
        assert contents(plain) == expected, seed
        assert contents(bulk) == expected, seed
        kinds |= {type(outcome) for outcome in outcomes}
    for store in (plain, bulk, single):
        await store.close()
    return kinds
