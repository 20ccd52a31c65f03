"""What the tests of dead letters, audit, retention and schedules share: an engine reduced to its store and clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from holdfast.changes import Change
from holdfast.contract.operations import Committed, Operation, Outcome, Started
from holdfast.contract.rows import RunRow, Status
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, NewLetter, NewRun, RunEnd, StartRun, TurnEffects
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.clock import JumpingClock

BEGIN = datetime(2026, 1, 31, 12, tzinfo=UTC)


class PlainPort:
    """A port that commits each operation by itself and remembers what it was told and asked."""

    def __init__(self, store: Store, clock: JumpingClock | None = None) -> None:
        self.store: Store = store
        self.clock = clock or JumpingClock(BEGIN)
        self.actor = "engine-1"
        self.patience = 60.0
        self.told: list[Change] = []
        self.asked: list[Operation] = []

    async def apply(self, operation: Operation) -> Outcome:
        self.asked.append(operation)
        await asyncio.sleep(0)  # as an engine's commit does, so that others may decide on what is about to change
        return (await self.store.apply([operation]))[0]

    def notify(self, change: Change) -> None:
        self.told.append(change)

    def types(self) -> list[str]:
        """Return the types of the changes told so far."""
        return [change.type for change in self.told]

    async def run(self, id: str, *, workflow: str = "order", input: str = '{"amount":5}') -> RunRow:
        """Start a run and return it."""
        await self.store.join("w", timedelta(minutes=1))
        new = NewRun(
            id=id, workflow=workflow, version="1", input=input, digest=7, seed=1, at=self.clock.now(), owner="w"
        )
        assert isinstance(await self.apply(StartRun(run=new)), Started)
        return await self.row(id)

    async def row(self, id: str) -> RunRow:
        """Return a run that must be there."""
        row = await self.store.get(id)
        assert row is not None
        return row

    async def end(self, id: str, status: Status = Status.COMPLETED, **fields: object) -> None:
        """End a run as its owner would."""
        row = await self.row(id)
        end = RunEnd(status=status, at=self.clock.now(), **fields)  # type: ignore[arg-type]  # fields of RunEnd
        assert isinstance(
            await self.apply(CommitTurn(key=row.key, epoch=row.epoch, at=self.clock.now(), end=end)), Committed
        )

    async def fail(self, id: str, *letters: str, retryable: bool = True, workflow: str = "order") -> None:
        """Start a run, or go on with it, and let it fail with dead letters of these ids."""
        row = await self.store.get(id) or await self.run(id, workflow=workflow)
        error = ErrorData(type="bank.Declined", message="no funds", retryable=retryable)
        new = [
            NewLetter(id=letter, step="orders/~3/charge#2", attempts=3, error=codec.encode(error).decode())
            for letter in letters
        ]
        end = RunEnd(status=Status.FAILED, at=self.clock.now(), error=codec.encode(error).decode())
        turn = CommitTurn(key=row.key, epoch=row.epoch, at=self.clock.now(), end=end, effects=TurnEffects(letters=new))
        assert isinstance(await self.apply(turn), Committed)


@asynccontextmanager
async def plain_port() -> AsyncIterator[PlainPort]:
    """Open a store in memory and give it a port."""
    store = SQLiteStore(":memory:")
    await store.open()
    try:
        yield PlainPort(store)
    finally:
        await store.close()
