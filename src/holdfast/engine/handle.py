"""Run handles and what they show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.changes import Change
from holdfast.clock import micros, to_datetime
from holdfast.contract.rows import EntryRow, LetterFilter, RunRow, Status
from holdfast.engine.views.steps import Progress, Step, progress_of, steps_of
from holdfast.engine.views.timeline import TimelineItem, timeline
from holdfast.errors import RunBlocked, RunCancelled, RunFailed
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_from_data
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
    key: int = field(default=0, repr=False, compare=False)
    """Its place in the order of creation."""
    begins_at: datetime | None = None
    deadline_at: datetime | None = None
    priority: int = 0
    unique_key: str | None = None
    actor: str | None = None
    tenant: str | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    reopened: int = 0
    """How often it was let go on after it had ended."""
    compensation: list[dict[str, Any]] | None = None
    """What was undone when it failed: name, status, attempts and error of each, in that order."""


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

    # Talking to it. Every verb is the engine's of the same name, on this run.

    async def send(
        self,
        name: str,
        payload: object = None,
        *,
        id: str | None = None,
        dead_letter: bool = False,
        connection: object = None,
    ) -> bool:
        """Send the run a message; when this returns it is durable and will be delivered exactly once.

        Raises:
            NoSuchRun, RunTerminal: nobody will ever take it.
        """
        return await self._engine.send(self.id, name, payload, id=id, dead_letter=dead_letter, connection=connection)

    async def ask(self, name: str, payload: object = None, *, type: Any = Any, timeout: timedelta | None = None) -> Any:
        """Send the run a request and wait for its reply."""
        return await self._engine.ask(self.id, name, payload, type=type, timeout=timeout)

    async def query(self, name: str, *args: Any, type: Any = Any, **kwargs: Any) -> Any:
        """Ask the run's code about its state, without changing anything."""
        return await self._engine.query(self.id, name, *args, type=type, **kwargs)

    # Acting on it.

    async def cancel(self, *, compensate: bool = False, by: str | None = None, reason: str = "") -> bool:
        """Ask the run to stop; False if it has ended already."""
        return await self._engine.cancel(self.id, compensate=compensate, by=by, reason=reason)

    async def terminate(self, *, by: str | None = None, reason: str = "") -> bool:
        """End the run here and now, running none of its code; False if it has ended already."""
        return await self._engine.terminate(self.id, by=by, reason=reason)

    async def pause(
        self,
        *,
        until: datetime | None = None,
        duration: timedelta | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Let the run begin nothing more until it is resumed, or until a time; False if it cannot be paused."""
        return await self._engine.pause(self.id, until=until, duration=duration, by=by, reason=reason)

    async def resume(self, *, by: str | None = None, reason: str = "") -> bool:
        """Let the run go on if it is paused or cancelled; False if it is neither."""
        return await self._engine.resume(self.id, by=by, reason=reason)

    async def retry(self, *, by: str | None = None, reason: str = "") -> None:
        """Let the run, which failed, go on from the step that failed."""
        await self._engine.retry(self.id, by=by, reason=reason)

    async def rerun(self, *, from_step: str | None = None, by: str | None = None, reason: str = "") -> None:
        """Let the run, which has ended, do a step, and all that came after it, again."""
        await self._engine.rerun(self.id, from_step=from_step, by=by, reason=reason)

    async def recover(self, *, by: str | None = None) -> bool:
        """Try the run, which is blocked, again with the code there is now; False if it is not blocked."""
        return await self._engine.recover(self.id, by=by)

    async def set_attributes(self, attributes: Mapping[str, Any], *, by: str | None = None) -> None:
        """Set searchable attributes of the run; None removes one."""
        await self._engine.set_attributes(self.id, attributes, by=by)

    # Looking at it.

    async def history(self) -> list[HistoryEntry]:
        """Return the run's history, oldest fact first."""
        row = await self._engine._row(self.id)
        return readable(await self._engine.store.history(row.key))

    async def steps(self) -> list[Step]:
        """Return the run's steps in order of their first call, with attempts, errors, results and progress."""
        row, store = await self._engine._row(self.id), self._engine.store
        return steps_of(self.id, await store.history(row.key), await store.beats(row.key), row.ended, row.generation)

    async def progress(self) -> Progress | None:
        """Return how far the run of a sequence or graph has come; None if its workflow is code, or not known here."""
        row, registry = await self._engine._row(self.id), self._engine.registry
        if row.workflow not in registry.names():
            return None
        return progress_of(registry.get(row.workflow, row.version), await self.steps())

    async def timeline(self) -> list[TimelineItem]:
        """Return all that happened to the run and was done to it, in order of time."""
        row, store = await self._engine._row(self.id), self._engine.store
        return timeline(
            row,
            await store.history(row.key),
            await store.audit(self.id),
            await store.letters(LetterFilter(run=self.id)),
            await store.evidence(self.id),
            await store.history(row.key, archived=True),
        )

    async def watch(self) -> AsyncIterator[Change]:
        """Yield what happens to the run from now on, whichever engine runs it, until it has ended.

        It is read from the store when something may have happened; the last change is the run's end.
        """
        async for change in self._engine._follow(self.id):
            yield change


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
        key=row.key,
        begins_at=to_datetime(row.begins) if row.begins is not None else None,
        deadline_at=to_datetime(row.deadline) if row.deadline is not None else None,
        priority=row.priority,
        unique_key=row.unique_key,
        actor=row.actor,
        tenant=row.tenant,
        attributes=codec.decode(row.attributes),
        reopened=row.reopens,
        compensation=codec.decode(row.compensation) if row.compensation is not None else None,
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
