"""A run's handle: everything that a caller can do to one run, and see of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.changes import Change
from holdfast.clock import micros
from holdfast.contract.rows import Status
from holdfast.engine.port import RunPort
from holdfast.engine.views.run import Run
from holdfast.errors import Moved, RunBlocked, RunCancelled, RunFailed
from holdfast.patience import patient
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_from_data

# What shows a run in detail is imported by the methods that show it: most programs never do.
if TYPE_CHECKING:
    from holdfast.engine.client.reopen import Redo
    from holdfast.engine.views.history import HistoryEntry
    from holdfast.engine.views.messages import Unread
    from holdfast.engine.views.steps import Progress, Step
    from holdfast.engine.views.timeline import TimelineItem

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A run to talk to; the run itself lives in the store."""

    def __init__(self, client: RunPort, run_id: str, result_type: Any = Any) -> None:
        self._client = client
        self.id = run_id
        self._result_type = result_type

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    @property
    def _call_patience(self) -> float:
        return self._client.patience

    async def result(self, timeout: timedelta | None = None) -> R:
        """Wait for the run to end and return its result.

        Raises:
            RunFailed: it failed; the cause is its error.
            RunCancelled: it was cancelled.
            RunBlocked: its code cannot continue its history.
            Moved: it goes on in another runtime.
            TimeoutError: it has not ended within `timeout`; the run goes on.
        """
        coming = self._client.end_of(self.id)
        row = await (coming if timeout is None else asyncio.wait_for(coming, micros(timeout, "timeout") / 1e6))
        if row.status is Status.COMPLETED:
            result: R = codec.decode(row.output or "null", self._result_type, f"the result of run {self.id!r}")
            return result
        if row.status is Status.MOVED:
            raise Moved(self.id, (await self._client.row(self.id)).wait)
        cause, reason = None, ""
        if row.error is not None:
            data = codec.decode(row.error, ErrorData)
            cause = error_from_data(data, self._client.registry.errors)
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

    @patient
    async def status(self) -> Status:
        """Return where the run stands now.

        Raises:
            NoSuchRun: it does not exist (any more).
        """
        return (await self._client.row(self.id)).status

    @patient
    async def describe(self) -> Run:
        """Return everything known about the run now."""
        return await self._client.describe(self.id)

    # Talking to it.

    async def send(
        self,
        name: str,
        payload: object = None,
        *,
        id: str | None = None,
        dead_letter: bool = False,
        connection: object = msgspec.UNSET,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Send the run a message; when this returns it is durable and will be delivered exactly once.

        A second message with the same `id` is not sent again, and False is returned. With `dead_letter` a message to a
        run that has ended is kept as a dead letter. With a psycopg `connection` to the same PostgreSQL database, it is
        sent when the transaction that is open there commits. With `by`, the actor, it is in the audit trail.

        Raises:
            BadInput: the connection is None, or leads to another database; nothing was stored.
            NoSuchRun, RunTerminal: the run will never take it; nothing was stored.
            QueueFull: too many messages of that name wait already.
        """
        return await self._client.messaging.send(self.id, name, payload, id, dead_letter, connection, by, reason)

    async def ask(
        self,
        name: str,
        payload: object = None,
        *,
        type: Any = Any,
        timeout: timedelta | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> Any:
        """Send the run a request and wait for its reply (`ctx.receive_request` and `ctx.reply`).

        With `by`, the actor, it is in the audit trail.

        Raises:
            RunTerminal: it has ended, or ends without a reply.
            TimeoutError: no reply came in time; the request stays.
        """
        seconds = micros(timeout, "timeout") / 1e6 if timeout is not None else None
        request = await self._client.messaging.request(self.id, name, payload, by, reason)
        answer = await asyncio.wait_for(self._client.reply_to(request, self.id), seconds)
        return codec.decode(answer, type, f"the reply to {name!r}")

    @patient
    async def query(self, /, name: str, *args: Any, type: Any = Any, **kwargs: Any) -> Any:
        """Ask the run's code about its state: answered by the run in memory, or by replaying its history.

        The code answers with `ctx.on_query(name, handler)`. It changes nothing, and works on runs that have ended.

        Raises:
            UnknownQuery: the code does not answer that query, or has not registered it yet.
        """
        return await self._client.messaging.query(self.id, name, args, kwargs, type)

    @patient
    async def messages(self) -> list[Unread]:
        """Return the messages that the run's code has not received yet, oldest first, with their content."""
        from holdfast.engine.views.messages import unread

        row = await self._client.row(self.id)
        return unread(await self._client.inbox(row))

    # Acting on it. `by` and `reason` go into the audit trail.

    @patient
    async def cancel(self, *, compensate: bool = False, by: str | None = None, reason: str = "") -> bool:
        """Ask the run to stop; False if it has ended already.

        CancelledError is raised at its awaits; it may clean up for `cancel_grace`, then it is cancelled regardless.
        With `compensate` what it did is undone. Children started with `cancel_with_parent` are asked too.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.control.cancel(self.id, compensate, by, reason)

    @patient
    async def terminate(self, *, by: str | None = None, reason: str = "") -> bool:
        """End the run at once as cancelled, running none of its code, blocked or not; False if it has ended.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.control.terminate(self.id, by, reason)

    @patient
    async def pause(
        self,
        *,
        until: datetime | None = None,
        duration: timedelta | None = None,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Let the run begin no step and no retry until it is resumed, or until a time; False if it cannot be paused.

        A step under way may finish and is recorded; messages wait; timers that come due fire when the run is resumed.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.control.pause(self.id, until, duration, by, reason)

    @patient
    async def nudge(self, step: str = "", *, by: str | None = None, reason: str = "") -> bool:
        """Try a step now that waits for its next attempt, or whose condition put it off; without a path, all of them.

        False if no step waits like that: the run has ended, is paused, runs, or waits for something else. It uses up
        one of the step's attempts.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.control.nudge(self.id, step, by, reason)

    @patient
    async def resume(self, *, by: str | None = None, reason: str = "") -> bool:
        """Let a paused run go on, or a cancelled run continue at its first step not completed; False if it is neither.

        Raises:
            NoSuchRun: there is no such run.
            UniqueConflict: another run has its unique key now; nothing was changed.
            CannotReopen: its loops have forgotten too much of its history to continue.
        """
        return await self._client.control.resume(self.id, by, reason)

    @patient
    async def retry(self, *, dry_run: bool = False, by: str | None = None, reason: str = "") -> Redo:
        """Let the failed run go on from the step that failed, with a fresh budget of attempts.

        Returns the steps and children that are done again. With `dry_run` it only returns them, and does nothing.

        Raises:
            CannotReopen: it cannot continue, or would only fail again: its own code raised, after failures that it does
                not name as the cause (`raise ... from`), and has not changed since.
            NoSuchRun, UniqueConflict: nothing was changed.
        """
        done = await self._client.control.reopener.retry(self.id, by, reason, dry_run=dry_run)
        assert done is not None
        return done

    @patient
    async def rerun(
        self, *, from_step: str | None = None, dry_run: bool = False, by: str | None = None, reason: str = ""
    ) -> Redo:
        """Let the ended run do a step or child, and everything after it, again; without a step, everything.

        Calls made side by side with it, before it ended, keep their results: of a fan-out only the named step or child
        is done again, and then what follows all of them. Returns what is done again; with `dry_run` without doing it.

        Raises:
            NoSuchRun, UniqueConflict, CannotReopen: nothing was changed.
        """
        return await self._client.control.reopener.rerun(self.id, from_step, by, reason, dry_run)

    @patient
    async def recover(self, *, by: str | None = None, reason: str = "") -> bool:
        """Try the blocked run again with the present code; False if it is not blocked.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.control.recover(self.id, by, reason)

    @patient
    async def evict(self) -> bool:
        """Drop the run from this process's memory while it waits; when it continues, it is replayed.

        False if it is not in memory here, or something of it is under way. An engine does this by itself with the runs
        that have waited longest when there are more than `max_resident`.

        Raises:
            NoSuchRun: there is no such run.
        """
        return await self._client.evict(self.id)

    @patient
    async def set_attributes(self, attributes: Mapping[str, Any], *, by: str | None = None, reason: str = "") -> None:
        """Set searchable attributes of the run, ended or not; None removes one.

        Raises:
            NoSuchRun: there is no such run.
        """
        await self._client.control.set_attributes(self.id, attributes, by, reason)

    # Looking at it.

    @patient
    async def history(self) -> list[HistoryEntry]:
        """Return the run's history, oldest fact first."""
        from holdfast.engine.views.history import readable

        row = await self._client.row(self.id)
        return readable(await self._client.history(row))

    @patient
    async def steps(self) -> list[Step]:
        """Return the run's steps in order of their first call, with attempts, errors, results and progress."""
        from holdfast.engine.views.steps import activities_of, steps_of

        row = await self._client.row(self.id)
        known = activities_of(self._client.registry, row.workflow, row.version)
        rows, beats = await self._client.history(row), await self._client.beats(row)
        return steps_of(self.id, rows, beats, row.ended, row.generation, known)

    @patient
    async def state(self) -> dict[str, Any] | None:
        """Return the state of a sequence's run: its input, and what its steps added to it.

        Any process can read it, without the code. None if the run is not of a sequence.
        """
        from holdfast.engine.views.steps import state_of

        row = await self._client.row(self.id)
        return state_of(row.input, await self._client.history(row))

    @patient
    async def progress(self) -> Progress:
        """Return how far the run has come: by the list of a sequence or graph, or by the reports and steps of code."""
        from holdfast.engine.views.steps import progress_of, progress_of_code, steps_of

        row, registry = await self._client.row(self.id), self._client.registry
        rows = await self._client.history(row)
        steps = steps_of(self.id, rows, await self._client.beats(row), row.ended, row.generation)
        declared = None
        if row.workflow in registry.names():
            declared = progress_of(registry.get(row.workflow, row.version), steps)
        return declared or progress_of_code(rows, steps, row.status.is_terminal)

    @patient
    async def timeline(self) -> list[TimelineItem]:
        """Return everything that happened to the run and that operators did to it, in order of time."""
        return await self._client.timeline(self.id)

    async def watch(self) -> AsyncIterator[Change]:
        """Yield what happens to the run from now on, whichever engine runs it, until it has ended.

        It reads the store when something may have happened; the last change is the run's end.
        """
        async for change in self._client.follow(self.id):
            yield change
