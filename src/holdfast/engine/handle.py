"""Run handles and what they show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast import codec
from holdfast.clock import micros, to_datetime
from holdfast.codec import ErrorData, error_from_data
from holdfast.errors import RunBlocked, RunCancelled, RunFailed
from holdfast.records import EntryRow, RunRow, Status
from holdfast.replay import entry as entries
from holdfast.replay.location import Names

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Run:
    """A run as it stood when it was looked at."""

    id: str
    workflow: str
    version: str
    status: Status
    waiting_for: str
    due_at: datetime | None
    input: Any
    output: Any
    error: ErrorData | None
    parent: str | None
    generation: int
    created_at: datetime
    updated_at: datetime
    ended_at: datetime | None
    owner: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One fact of a run's history, readable."""

    seq: int
    path: str
    kind: str
    at: datetime
    entry: entries.Entry
    row: EntryRow


class RunHandle(Generic[R]):
    """A run to talk to; the run itself lives in the store."""

    def __init__(self, engine: Engine, run_id: str, result_type: Any = Any) -> None:
        self._engine = engine
        self.id = run_id
        self._result_type = result_type

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def result(self, timeout: timedelta | None = None) -> R:
        """Wait for the run to end and return its result.

        Raises:
            RunFailed: it failed; the cause is its error.
            RunCancelled: it was cancelled.
            RunBlocked: its code cannot continue its history.
            TimeoutError: it has not ended within `timeout`; the run goes on.
        """
        seconds = micros(timeout, "timeout") / 1e6 if timeout is not None else None
        row = await asyncio.wait_for(self._engine._ended(self.id), seconds)
        if row.status is Status.COMPLETED:
            result: R = codec.decode(row.output or "null", self._result_type, f"the result of run {self.id!r}")
            return result
        cause, reason = None, ""
        if row.error is not None:
            data = codec.decode(row.error, ErrorData)
            cause = error_from_data(data, self._engine.registry.errors)
            reason = f": {data.type}: {data.message}"
            if data.traceback:
                cause.add_note(f"Where it was raised:\n{data.traceback}")
        if row.status is Status.CANCELLED:
            raise RunCancelled(self.id, f"run {self.id!r} was cancelled{reason}")
        if row.status is Status.BLOCKED:
            if isinstance(cause, RunBlocked):
                raise cause
            raise RunBlocked(self.id, f"run {self.id!r} is blocked{reason}") from cause
        raise RunFailed(self.id, f"run {self.id!r} failed{reason}") from cause

    async def status(self) -> Status:
        """Return where the run stands now.

        Raises:
            NoSuchRun: it does not exist (any more).
        """
        return (await self._engine._row(self.id)).status

    async def describe(self) -> Run:
        """Return everything known about the run now."""
        return run_of(await self._engine._row(self.id))

    async def send(self, name: str, payload: object = None) -> None:
        """Send the run a message; when this returns it is durable and will be delivered exactly once.

        Raises:
            NoSuchRun, RunTerminal: nobody will ever take it.
        """
        await self._engine.send(self.id, name, payload)

    async def cancel(self) -> bool:
        """Ask the run to stop; False if it has ended already."""
        return await self._engine.cancel(self.id)

    async def history(self) -> list[HistoryEntry]:
        """Return the run's history, oldest fact first."""
        row = await self._engine._row(self.id)
        return readable(await self._engine.store.history(row.key))


def run_of(row: RunRow) -> Run:
    """Return a stored run in its public form."""
    return Run(
        id=row.id,
        workflow=row.workflow,
        version=row.version,
        status=row.status,
        waiting_for=row.wait,
        due_at=to_datetime(row.due) if row.due is not None else None,
        input=codec.decode(row.input),
        output=codec.decode(row.output) if row.output is not None else None,
        error=codec.decode(row.error, ErrorData) if row.error is not None else None,
        parent=row.parent,
        generation=row.generation,
        created_at=to_datetime(row.created),
        updated_at=to_datetime(row.updated),
        ended_at=to_datetime(row.ended) if row.ended is not None else None,
        owner=row.owner,
        epoch=row.epoch,
    )


def readable(rows: list[EntryRow]) -> list[HistoryEntry]:
    """Return stored facts with paths and words instead of keys and numbers."""
    names = Names()
    for row in rows:
        if row.kind == entries.Name.kind:
            names.add(entries.decode_entry(row.kind, row.data).name)
    return [
        HistoryEntry(
            seq=row.seq,
            path=names.path(row.location),
            kind=entries.KINDS[row.kind].word,
            at=to_datetime(row.at),
            entry=entries.decode_entry(row.kind, row.data),
            row=row,
        )
        for row in rows
        if row.kind != entries.Name.kind
    ]
