"""What callers can do to one run on Temporal, and see of it: the RunPort of this runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
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
from holdfast.clock import Clock, Instant, from_datetime, new_id
from holdfast.contract.rows import EntryRow, EvidenceRow, Message, RunRow, RunStanding, Status
from holdfast.definitions import Registry, check_message_id, check_run_id
from holdfast.engine.views.run import Run, run_of
from holdfast.engine.views.timeline import TimelineItem, timeline
from holdfast.errors import (
    BadInput,
    HoldfastError,
    Moved,
    NoSuchRun,
    NotOffered,
    RunBlocked,
    RunTerminal,
    StoreUnreachable,
    UnknownQuery,
)
from holdfast.payloads import codec
from holdfast.replay.location import check_name
from holdfast.temporal.client.answers import ENDED, attributes_of, ended_of, moved_of, named_error, refused
from holdfast.temporal.client.control import TemporalControl
from holdfast.temporal.wire import ACTS, MOST_BYTES, Carry, data_of, raw, rows_of, said, too_large, unpacked

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_NOT_BEGUN = "Missing initialize workflow"
"""What the SDK says of a query for a run that has not had its first task."""
_NO_TASK_YET = 2
"""How many events there are before the first task of an execution begins, unless something was sent to it."""
_SOON = 2.0
"""For how many seconds a worker is asked where a run stands that is only listed."""


class TemporalPort:
    """Acts on single runs."""

    def __init__(self, client: Client, registry: Registry, clock: Clock, patience: float) -> None:
        self.client = client
        self.registry = registry
        self.patience = patience
        self.clock = clock
        self.time_of: Callable[[Instant], Instant] = lambda at: at
        """The time of runs at a time of the server's: the same one, but in tests."""
        self.on_terminated: Callable[[str], None] = lambda run_id: None
        """Called with a run that a caller of this process ended."""
        self._updates: dict[str, Any] = {}
        self._blocked: dict[str, asyncio.Event] = {}
        self._closing = asyncio.Event()

    @property
    def messaging(self) -> TemporalPort:
        """Messages, requests and queries."""
        return self

    @property
    def control(self) -> TemporalControl:
        """What is done to runs."""
        return TemporalControl(self)

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

    async def here(self, run_id: str) -> WorkflowExecutionDescription:
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
        row = await self._row(run_id, patient)
        if row.status.is_terminal and row.ended is None:
            await self.ended(run_id)  # its end is decided, and the server hears of it at this moment
            return await self._row(run_id, patient)
        return row

    async def _row(self, run_id: str, patient: bool) -> RunRow:
        found = await self.described(run_id)
        encoded, carry = await self.started(run_id)
        memo = await found.memo()
        output = error = compensation = failed_step = None
        wait, due = "", None
        status = ENDED.get(found.status) if found.status is not None else None
        if memo.get("moved"):
            status, wait = Status.MOVED, str(memo["moved"])
        elif status is not None:
            standing, more = await self.ended(run_id)
            status, output, error = standing
            compensation, failed_step = more
            compensation = compensation or memo.get("compensation")
        elif memo.get("blocked"):
            status, error = Status.BLOCKED, str(memo["blocked"])
        elif memo.get("paused"):
            status, due = Status.PAUSED, memo["paused"] if memo["paused"] is not True else None
        else:
            status, wait, due = await self._open(run_id, found, carry, patient)
        closed = self.time_of(from_datetime(found.close_time)) if found.close_time is not None else None
        created = self.time_of(from_datetime(found.start_time))
        begins = created + carry.delay if carry.delay else None
        deadline = carry.deadline
        if carry.timeout is not None and deadline is None:
            deadline = (carry.begun or begins or created) + carry.timeout
        return RunRow(
            key=from_datetime(found.start_time),
            id=run_id,
            workflow=found.workflow_type,
            version=carry.workflow_version,
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
            begins=begins,
            deadline=deadline,
            unique_key=memo.get("unique_key"),
            actor=memo.get("actor"),
            tenant=memo.get("tenant"),
            reopens=carry.reopens,
            compensation=compensation,
            attributes=attributes_of(found),
            failed_step=failed_step,
        )

    async def _open(
        self, run_id: str, found: WorkflowExecutionDescription, carry: Carry, patient: bool
    ) -> tuple[Status, str, Instant | None]:
        """Return where an open run stands, by the word of a worker unless none has had it yet."""
        begins = self.begins(found, carry)
        no_worker = found.history_length <= _NO_TASK_YET and not carry.generation and not carry.rows
        if begins is not None or no_worker:
            return Status.PENDING, "", begins
        return await self.state(run_id, patient)

    def begins(self, found: WorkflowExecutionDescription, carry: Carry) -> Instant | None:
        """Return when a run begins that was started to begin later, None if that time has come: no worker knows it."""
        begins = self.time_of(from_datetime(found.start_time)) + carry.delay
        return begins if carry.delay and begins > self.clock.now() else None

    async def state(self, run_id: str, patient: bool) -> tuple[Status, str, int | None]:
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
        carry = await self.carry(run_id)
        entries = sorted(rows_of(carry.rows), key=lambda entry: entry.seq)
        kept = [
            EvidenceRow(run=run_id, n=n, id=id, kind=kind, data=data, at=at, previous="", hash=hash)
            for n, (id, kind, data, at, hash) in enumerate(carry.evidence, 1)
        ]
        return timeline(row, entries, [], [], kept, [])

    async def follow(self, run_id: str) -> AsyncIterator[Change]:
        """Refuse: the changes of a run are not told one by one.

        Raises:
            NotOffered: always.
        """
        raise NotOffered("run.watch()", "watch", "wait with run.result(), or look with run.describe() and run.steps()")
        yield  # a generator, as callers expect

    async def started(self, run_id: str) -> tuple[str, Carry]:
        """Return what the present execution of a run was started with, without a worker."""
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

    def close(self) -> None:
        """Tell those who wait for a run that its engine stops."""
        self._closing.set()

    async def end_of(self, run_id: str) -> RunStanding:
        """Wait for a run to end, or to be blocked."""
        ending = asyncio.ensure_future(self.ended(run_id))
        return await self._blocked_before(run_id, ending) or ending.result()[0]

    async def _blocked_before(self, run_id: str, coming: asyncio.Future[Any]) -> RunStanding | None:
        """Wait for something to come of a run; return how it stands if it is blocked before that."""
        event = self._blocked.setdefault(run_id, asyncio.Event())
        pause = _FIRST_PAUSE
        try:
            while True:
                noticing = [asyncio.ensure_future(each.wait()) for each in (event, self._closing)]
                try:
                    await asyncio.wait([coming, *noticing], timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in noticing:
                        each.cancel()
                if coming.done():
                    return None
                if self._closing.is_set():
                    raise HoldfastError(f"the engine stopped before run {run_id!r} ended; the run goes on")
                if event.is_set():
                    event.clear()
                    pause = _FIRST_PAUSE / 4
                memo = await (await self.described(run_id)).memo()
                if memo.get("blocked"):
                    return RunStanding(Status.BLOCKED, error=str(memo["blocked"]))
                pause = min(pause * 2, _LONGEST_PAUSE)
        finally:
            coming.cancel()

    async def ended(self, run_id: str) -> tuple[RunStanding, tuple[str | None, str | None]]:
        """Wait for a run to end; return what came of it, what was undone, and the step that failed."""
        while True:
            try:
                result = await self.handle(run_id).result()
                if said(result, "moved"):
                    return RunStanding(Status.MOVED), (None, None)
                return RunStanding(Status.COMPLETED, data_of(result).decode()), (None, None)
            except WorkflowFailureError as failed:
                return ended_of(failed.cause)
            except RPCError as error:
                if error.status is not RPCStatusCode.DEADLINE_EXCEEDED:
                    raise refused(run_id, error) from error
            except RuntimeError as error:
                if "No completion event" not in str(error):
                    raise
            # The server, or the connection, broke off: it is asked again, for as many months as the run takes.

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
        await self.signal(run_id, name, raw(encoded, id=message_id or ""))
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
        replying = asyncio.ensure_future(self._updates[request].result())
        try:
            if await self._blocked_before(run_id, replying) is not None:
                raise RunBlocked(run_id, f"run {run_id!r} is blocked and cannot reply; the request stays")
            answer: RawValue = replying.result()
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
            raise named_error(run_id, str(failed), self.registry.errors) from None
        except WorkflowQueryRejectedError as failed:
            raise UnknownQuery(f"run {run_id} does not answer: {failed}") from None
        except RPCError as error:
            raise refused(run_id, error) from error

    async def evict(self, run_id: str) -> bool:
        """Refuse: which runs are in memory is for Temporal's own cache to say."""
        raise NotOffered("run.evict()", "evict", "TemporalEngine(max_resident=...) bounds how many are in memory")

    async def signal(self, run_id: str, name: str, value: RawValue) -> None:
        """Tell a run something.

        Raises:
            RunTerminal, Moved, NoSuchRun: it takes nothing.
        """
        try:
            await self.handle(run_id).signal(name, value)
        except RPCError as error:
            raise await self._refusal(run_id, error) from error

    async def _refusal(self, run_id: str, error: RPCError) -> HoldfastError:
        """Return why a run takes nothing: it is not there, or has ended."""
        if error.status is RPCStatusCode.NOT_FOUND:
            found = await self.described(run_id)
            ended = ENDED.get(found.status) if found.status is not None else None
            if ended is not None:
                return moved_of(run_id, await found.memo()) or RunTerminal(run_id, ended)
        return refused(run_id, error)


def _check_name(name: str, what: str = "message name") -> None:
    check_name(name, what)
    if name.startswith((ACTS, "__")):
        raise BadInput(f"{what} {name!r} is taken: on Temporal names that begin with {ACTS!r} or '__' are not free")
