"""What callers do to one run on Temporal, and see of it: the RunPort of this runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateStage,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from holdfast.changes import Change
from holdfast.clock import Clock, from_datetime, micros, new_id
from holdfast.context.notes import encode_attributes
from holdfast.contract.rows import EntryRow, Message, RunRow, RunStanding, Status
from holdfast.definitions import Registry, check_message_id, check_run_id
from holdfast.engine.port import Reopening
from holdfast.engine.views.run import Run, run_of
from holdfast.engine.views.timeline import TimelineItem, timeline
from holdfast.errors import (
    BadInput,
    HoldfastError,
    Moved,
    NoSuchRun,
    NotOffered,
    RunTerminal,
    StoreUnreachable,
    UnknownQuery,
)
from holdfast.payloads import codec
from holdfast.replay.location import check_name
from holdfast.temporal.client.answers import attributes_of, ended_of, moved_of, named_error, refused
from holdfast.temporal.client.reopening import TemporalReopener
from holdfast.temporal.wire import ACTS, MOST_BYTES, Carry, data_of, packed, raw, rows_of, said, too_large, unpacked

_ENDED = {
    WorkflowExecutionStatus.COMPLETED: Status.COMPLETED,
    WorkflowExecutionStatus.FAILED: Status.FAILED,
    WorkflowExecutionStatus.TIMED_OUT: Status.FAILED,
    WorkflowExecutionStatus.CANCELED: Status.CANCELLED,
    WorkflowExecutionStatus.TERMINATED: Status.CANCELLED,
}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_NOT_BEGUN = "Missing initialize workflow"
"""What the SDK says of a query for a run that has not had its first task."""
_SOON = 2.0
"""For how many seconds a worker is asked where a run stands that is only listed."""


class TemporalPort:
    """Acts on single runs."""

    def __init__(self, client: Client, registry: Registry, clock: Clock, patience: float) -> None:
        self.client = client
        self.registry = registry
        self.patience = patience
        self.clock = clock
        self._updates: dict[str, Any] = {}
        self._blocked: dict[str, asyncio.Event] = {}

    @property
    def messaging(self) -> TemporalPort:
        """Messages, requests and queries."""
        return self

    @property
    def control(self) -> TemporalPort:
        """What is done to runs."""
        return self

    @property
    def reopener(self) -> Reopening:
        """Letting runs go on that have ended."""
        return TemporalReopener(self)

    def handle(self, run_id: str) -> WorkflowHandle[Any, RawValue]:
        """Return Temporal's own handle of a run."""
        return self.client.get_workflow_handle(check_run_id(run_id), result_type=RawValue)

    # Looking.

    async def described(self, run_id: str) -> WorkflowExecutionDescription:
        """Return what the server says of a run, without a worker.

        Raises:
            NoSuchRun: there is none, or its retention is over.
        """
        try:
            return await self.handle(run_id).describe()
        except RPCError as error:
            raise refused(run_id, error) from error

    async def _here(self, run_id: str) -> WorkflowExecutionDescription:
        """Return what the server says of a run that has not left for another runtime.

        Raises:
            Moved: it has.
        """
        found = await self.described(run_id)
        if (moved := moved_of(run_id, await found.memo())) is not None:
            raise moved
        return found

    async def carry(self, run_id: str) -> Carry:
        """Return a run's entries and what else goes with it, as a worker has them.

        Raises:
            StoreUnreachable: no worker answers.
        """
        return unpacked(await self._ask(run_id, ACTS + "carry", []), Carry)

    async def row(self, run_id: str, patient: bool = True) -> RunRow:
        """Return a run as it stands; unless `patient`, one whose workers do not answer soon is running.

        Raises:
            NoSuchRun: there is no such run (any more).
        """
        found = await self.described(run_id)
        encoded, carry = await self._started(run_id)
        memo = await found.memo()
        output = error = compensation = failed_step = None
        wait, due = "", None
        status = _ENDED.get(found.status) if found.status is not None else None
        if memo.get("moved"):
            status, wait = Status.MOVED, str(memo["moved"])
        elif status is not None:
            standing, more = await self._end(run_id)
            status, output, error = standing
            compensation, failed_step = more
            compensation = compensation or memo.get("compensation")
        elif memo.get("blocked"):
            status, error = Status.BLOCKED, str(memo["blocked"])
        elif memo.get("paused"):
            status = Status.PAUSED
        else:
            status, wait, due = await self._state(run_id, patient)
        closed = from_datetime(found.close_time) if found.close_time is not None else None
        created = from_datetime(found.start_time)
        return RunRow(
            key=from_datetime(found.start_time),
            id=run_id,
            workflow=found.workflow_type,
            version="",
            status=status,
            wait=wait,
            due=due,
            epoch=1,
            owner=None,
            generation=carry.generation,
            seed=carry.seed,
            digest=carry.digest,
            inbox=carry.numbers,
            claims=0,
            input=encoded,
            output=output,
            error=error,
            parent=carry.parent or None,
            created=carry.begun or created,
            updated=closed or self.clock.now(),
            ended=closed,
            deadline=carry.deadline,
            unique_key=memo.get("unique_key"),
            actor=memo.get("actor"),
            tenant=memo.get("tenant"),
            reopens=carry.reopens,
            compensation=compensation,
            attributes=attributes_of(found),
            failed_step=failed_step,
        )

    async def _state(self, run_id: str, patient: bool) -> tuple[Status, str, int | None]:
        """Return what a worker says of an open run."""
        try:
            async with asyncio.timeout(None if patient else _SOON):
                state = msgspec.json.decode(data_of(await self._ask(run_id, ACTS + "state", [])))
        except UnknownQuery:
            return Status.PENDING, "", None
        except (StoreUnreachable, TimeoutError):
            if patient:
                raise
            return Status.RUNNING, "", None
        return Status(state["status"]), state["wait"], state["due"]

    async def describe(self, run_id: str) -> Run:
        """Return everything known about a run."""
        return run_of(await self.row(run_id))

    async def inbox(self, row: RunRow) -> list[Message]:
        """Return what was sent to a run and its code has not taken."""
        return [Message(*fields) for fields in (await self.carry(row.id)).inbox]

    async def history(self, row: RunRow) -> list[EntryRow]:
        """Return a run's entries, in order."""
        return sorted(rows_of((await self.carry(row.id)).rows), key=lambda entry: entry.seq)

    async def beats(self, row: RunRow) -> dict[str, tuple[int, str]]:
        """Return nothing: what steps say of their progress is shown by Temporal, with its pending activities."""
        return {}

    async def timeline(self, run_id: str) -> list[TimelineItem]:
        """Return all that happened to a run, by its own entries."""
        row = await self.row(run_id)
        return timeline(row, await self.history(row), [], [], [], [])

    async def follow(self, run_id: str) -> AsyncIterator[Change]:
        """Refuse: the changes of a run are not told one by one.

        Raises:
            NotOffered: always.
        """
        raise NotOffered("run.watch()", "watch", "wait with run.result(), or look with run.describe() and run.steps()")
        yield  # a generator, as callers expect

    async def _started(self, run_id: str) -> tuple[str, Carry]:
        async for event in self.handle(run_id).fetch_history_events(page_size=1):
            given = event.workflow_execution_started_event_attributes.input.payloads
            carry = unpacked(RawValue(given[1]), Carry) if len(given) > 1 else Carry()
            return data_of(RawValue(given[0])).decode(), carry
        raise NoSuchRun(run_id)

    # Waiting.

    def blocked(self, run_id: str) -> None:
        """Let callers that wait for a run see at once that it was blocked in this process."""
        event = self._blocked.get(run_id)
        if event is not None:
            event.set()

    async def end_of(self, run_id: str) -> RunStanding:
        """Wait for a run to end, or to be blocked."""
        ending = asyncio.ensure_future(self._end(run_id))
        event = self._blocked.setdefault(run_id, asyncio.Event())
        pause = _FIRST_PAUSE
        try:
            while True:
                noticing = asyncio.ensure_future(event.wait())
                try:
                    await asyncio.wait([ending, noticing], timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    noticing.cancel()
                if ending.done():
                    return ending.result()[0]
                if event.is_set():
                    event.clear()
                    pause = _FIRST_PAUSE / 4
                memo = await (await self.described(run_id)).memo()
                if memo.get("blocked"):
                    return RunStanding(Status.BLOCKED, error=str(memo["blocked"]))
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            ending.cancel()

    async def _end(self, run_id: str) -> tuple[RunStanding, tuple[str | None, str | None]]:
        """Wait for a run to end; return what came of it, what was undone, and the step that failed."""
        try:
            result = await self.handle(run_id).result()
            if said(result, "moved"):
                return RunStanding(Status.MOVED), (None, None)
            return RunStanding(Status.COMPLETED, data_of(result).decode()), (None, None)
        except WorkflowFailureError as failed:
            return ended_of(failed.cause)
        except RPCError as error:
            raise refused(run_id, error) from error
        except RuntimeError as error:
            if "No completion event" not in str(error):
                raise
            return await self._end(run_id)  # the connection broke while the server was asked: it is asked again

    # Talking.

    async def send(
        self,
        run_id: str,
        name: str,
        payload: object,
        message_id: str | None,
        dead_letter: bool,
        connection: object = msgspec.UNSET,
        by: str | None = None,
        reason: str = "",
    ) -> bool:
        """Send a message: a signal."""
        if connection is not msgspec.UNSET:
            raise NotOffered("send(connection=...)", "transactions", "send after the transaction has committed")
        if dead_letter:
            raise NotOffered(
                "send(dead_letter=True)", "dead_letters", "catch RunTerminal, and keep the message yourself"
            )
        _check_name(name)
        check_message_id(message_id)
        encoded = codec.encode(payload, f"message {name!r}")
        if len(encoded) > MOST_BYTES:
            raise too_large(f"message {name!r}", len(encoded))
        await self._signal(run_id, name, raw(encoded, id=message_id or ""))
        return True

    async def request(self, run_id: str, name: str, payload: object, by: str | None, reason: str) -> str:
        """Send a request: an update, accepted by a worker that is alive."""
        _check_name(name)
        encoded, request = codec.encode(payload, f"request {name!r}"), new_id()
        if len(encoded) > MOST_BYTES:
            raise too_large(f"request {name!r}", len(encoded))
        try:
            self._updates[request] = await self.handle(run_id).start_update(
                name,
                raw(encoded),
                wait_for_stage=WorkflowUpdateStage.ACCEPTED,
                id=request,
                result_type=RawValue,
            )
        except RPCError as error:
            raise await self._refusal(run_id, error) from error
        return request

    async def reply_to(self, request: str, run_id: str) -> str:
        """Wait for a run's reply to a request."""
        try:
            answer: RawValue = await self._updates[request].result()
        except WorkflowUpdateFailedError as failed:
            cause = failed.cause
            if isinstance(cause, ApplicationError) and cause.type in ("RunTerminal", "Moved"):
                raise (RunTerminal if cause.type == "RunTerminal" else Moved)(run_id, cause.message) from None
            raise RunTerminal(run_id, "without a reply") from failed
        except RPCError as error:
            raise await self._refusal(run_id, error) from error
        finally:
            self._updates.pop(request, None)
        return data_of(answer).decode()

    async def query(
        self, run_id: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], answer_type: Any
    ) -> Any:
        """Ask the code of a run, by way of a worker."""
        _check_name(name, "query name")
        given = [raw(codec.encode(value, f"an argument of query {name!r}")) for value in args]
        if kwargs:
            given.append(raw(codec.encode(dict(kwargs), f"an argument of query {name!r}"), kwargs="1"))
        answer = await self._ask(run_id, name, given)
        return codec.decode(data_of(answer), answer_type, f"the answer to query {name!r}")

    async def _ask(self, run_id: str, name: str, args: list[RawValue]) -> RawValue:
        try:
            answer: RawValue = await self.handle(run_id).query(
                name, args=args, result_type=RawValue, rpc_timeout=timedelta(seconds=self.patience)
            )
            return answer
        except WorkflowQueryFailedError as failed:
            if _NOT_BEGUN in str(failed):
                raise UnknownQuery(f"run {run_id} has not begun, so it answers nothing yet") from None
            raise named_error(run_id, str(failed)) from None
        except WorkflowQueryRejectedError as failed:
            raise UnknownQuery(f"run {run_id} does not answer: {failed}") from None
        except RPCError as error:
            raise refused(run_id, error) from error

    async def evict(self, run_id: str) -> bool:
        """Refuse: which runs are in memory is for Temporal's own cache to say."""
        raise NotOffered("run.evict()", "evict", "TemporalEngine(max_resident=...) bounds how many are in memory")

    # Acting.

    async def cancel(self, run_id: str, compensate: bool, by: str | None, reason: str) -> bool:
        """Ask a run to stop; False if it has ended."""
        if (await self._here(run_id)).status is not WorkflowExecutionStatus.RUNNING:
            return False
        if (await self._state(run_id, patient=False))[0] is Status.COMPENSATING:
            return False
        told = msgspec.json.encode({"compensate": compensate, "by": by or "", "reason": reason})
        try:
            if compensate:  # the server passes on the first cancel only, which may not have asked for this
                await self.handle(run_id).signal(ACTS + "cancel", raw(told))
            await self.handle(run_id).cancel(reason=told.decode())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                await self._here(run_id)
                return False
            raise refused(run_id, error) from error
        return True

    async def terminate(self, run_id: str, by: str | None, reason: str) -> bool:
        """End a run here and now; its parent is told."""
        if (await self._here(run_id)).status is not WorkflowExecutionStatus.RUNNING:
            return False
        _, carry = await self._started(run_id)
        try:
            await self.handle(run_id).terminate(reason=reason or f"terminated by {by}" if by else reason or None)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise refused(run_id, error) from error
        if carry.parent:
            told = raw('["cancelled"]', id=f"{run_id}/{carry.reopens}")
            try:
                await self.handle(carry.parent).signal(ACTS + "child", told)
            except RPCError:
                return True  # the parent has ended, too
        return True

    async def pause(
        self, run_id: str, until: datetime | None, duration: timedelta | None, by: str | None, reason: str
    ) -> bool:
        """Let a run begin nothing more until it is resumed."""
        if until is not None and duration is not None:
            raise BadInput("pause a run until a time or for a duration, not both")
        end = from_datetime(until, "until") if until is not None else None
        if duration is not None:
            end = self.clock.now() + micros(duration, "duration")
        return await self._act(run_id, "pause", end)

    async def resume(self, run_id: str, by: str | None, reason: str) -> bool:
        """Let a paused run go on, or a cancelled one continue."""
        found = await self._here(run_id)
        if found.status in _ENDED and (await self._end(run_id))[0].status is Status.CANCELLED:
            await TemporalReopener(self).resume(run_id)
            return True
        if not (await found.memo()).get("paused"):
            return False
        return await self._act(run_id, "resume", None)

    async def nudge(self, run_id: str, step: str, by: str | None, reason: str) -> bool:
        """Try a step now that waits for its next attempt."""
        row = await self.row(run_id)
        if row.status is Status.MOVED:
            raise Moved(run_id, row.wait)
        if "retry" not in row.wait:
            return False
        return await self._act(run_id, "nudge", step)

    async def recover(self, run_id: str, by: str | None, reason: str) -> bool:
        """Try a blocked run again with the code there is now."""
        if not (await (await self._here(run_id)).memo()).get("blocked"):
            return False
        return await self._act(run_id, "recover", None)

    async def set_attributes(self, run_id: str, attributes: Mapping[str, Any], by: str | None, reason: str) -> None:
        """Set searchable attributes of a run that has not ended."""
        encoded = encode_attributes(attributes)
        if not await self._act(run_id, "attributes", encoded):
            raise NotOffered(
                f"set_attributes() of run {run_id!r}, which has ended,", "attributes.ended", "set them before it ends"
            )

    async def _act(self, run_id: str, what: str, value: object) -> bool:
        try:
            await self._signal(run_id, ACTS + what, packed(value))
        except RunTerminal:
            return False
        return True

    async def _signal(self, run_id: str, name: str, value: RawValue) -> None:
        try:
            await self.handle(run_id).signal(name, value)
        except RPCError as error:
            raise await self._refusal(run_id, error) from error

    async def _refusal(self, run_id: str, error: RPCError) -> HoldfastError:
        """Return why a run takes nothing: it is not there, or has ended."""
        if error.status is RPCStatusCode.NOT_FOUND:
            found = await self.described(run_id)
            ended = _ENDED.get(found.status) if found.status is not None else None
            if ended is not None:
                return moved_of(run_id, await found.memo()) or RunTerminal(run_id, ended)
        return refused(run_id, error)


def _check_name(name: str, what: str = "message name") -> None:
    check_name(name, what)
    if name.startswith((ACTS, "__")):
        raise BadInput(f"{what} {name!r} is taken: on Temporal names that begin with {ACTS!r} or '__' are not free")
