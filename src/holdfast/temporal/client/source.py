"""A namespace as the source of a move: its runs, their states, and what they hand over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any, Self

import msgspec
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from holdfast.clock import Clock, Instant, from_datetime
from holdfast.errors import StoreUnreachable
from holdfast.temporal.client.connecting import address_of, check_server, connected
from holdfast.temporal.leaving import Leave, Left
from holdfast.temporal.wire import ACTS, MOST_BYTES, data_of, packed, too_large, unpacked

_ASKED_FOR = timedelta(seconds=10)
"""How long a worker may take to say where a run stands."""


class RunThere(msgspec.Struct, kw_only=True):
    """A run as it stands on the cluster."""

    id: str
    workflow: str
    ended: bool = False
    """It came to its end there."""
    left: Left | None = None
    """What it leaves with: as it was closed, or as it is; None if it ended, or no worker says."""
    closed: bool = False
    """Whether it was closed, to go on elsewhere."""
    silent: str = ""
    """Why nothing is known of it."""
    input: str = "null"
    actor: str | None = None
    tenant: str | None = None
    unique_key: str | None = None


class MoveSource:
    """Lets runs leave one namespace; every call is harmless when it is made again."""

    def __init__(self, address: str, client: Client) -> None:
        self.address = address
        self._client = client
        self._clock = Clock()

    @classmethod
    async def connect(cls, url: str, *, client: Client | None = None) -> Self:
        """Return the beginning that an address names, once it is known that its server can serve.

        Raises:
            BadInput: the address names none.
            StoreUnreachable, CannotOpen, UnsupportedServer: its server cannot serve.
        """
        address = address_of(url)
        client = client or await connected(address)
        await check_server(client, address, False)
        return cls(str(address), client)

    async def open_runs(self) -> AsyncIterator[tuple[str, str]]:
        """Go through the ids and workflows of open runs, as the server's visibility has them: a moment later."""
        try:
            async for found in self._client.list_workflows("ExecutionStatus = 'Running'", page_size=1_000):
                if "digest" in await found.memo():  # others are workflows of other programs
                    yield found.id, found.workflow_type
        except RPCError as error:
            raise _silent(error) from error

    async def stands(self, run_id: str) -> RunThere | None:
        """Return how a run stands, None if there is none, or none any more."""
        handle = self._client.get_workflow_handle(run_id, result_type=RawValue)
        try:
            found = await handle.describe()
            memo = await found.memo()
            input = await self._input(run_id, found)
            if found.status is not WorkflowExecutionStatus.RUNNING:
                closed = bool(memo.get("moved"))
                left = unpacked(await handle.result(), Left) if closed else None
                return _standing(found, memo, input, left=left, closed=closed, ended=not closed)
            if found.execution_time is not None and from_datetime(found.execution_time) > self._clock.now():
                silent = f"it begins at {found.execution_time.isoformat(' ', 'seconds')}: move it once it has begun"
                return _standing(found, memo, input, silent=silent)
            left, silent = await self._asked(run_id, "leaving", Left)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise _silent(error) from error
        return _standing(found, memo, input, left=left, silent=silent)

    async def hold(self, run_id: str, token: str, until: Instant) -> None:
        """Let a run begin nothing more until then."""
        await self._tell(run_id, "hold", Leave(token=token, until=until))

    async def let_go(self, run_id: str, token: str) -> None:
        """Let a run go on that was held by this token and does not leave."""
        await self._tell(run_id, "let_go", Leave(token=token))

    async def leave(self, run_id: str, token: str, address: str, children: Iterable[str] | None = None) -> None:
        """Let a run go on here no more; given its children that have left, it is closed once it has come to rest."""
        close = children is not None
        await self._tell(
            run_id, "leave", Leave(token=token, address=address, close=close, children=[*(children or ())])
        )

    def check_size(self, standing: RunThere) -> None:
        """Check that a run can leave.

        Raises:
            PayloadTooLarge: it is more than a server takes.
        """
        size = packed(standing.left).payload.ByteSize()
        if size > MOST_BYTES:
            raise too_large(f"what run {standing.id!r} has recorded", size)

    async def _tell(self, run_id: str, what: str, said: Leave) -> None:
        try:
            await self._client.get_workflow_handle(run_id).signal(ACTS + what, packed(said))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise _silent(error) from error

    async def _asked(self, run_id: str, what: str, kind: Any) -> tuple[Any, str]:
        """Return what a worker says of an open run, or why it says nothing."""
        handle = self._client.get_workflow_handle(run_id)
        try:
            answer = await handle.query(ACTS + what, result_type=RawValue, rpc_timeout=_ASKED_FOR)
            return unpacked(answer, kind), ""
        except WorkflowQueryFailedError:
            return None, "it has not begun, and only a run that has can say what it is: move it once it has"
        except WorkflowQueryRejectedError as error:
            return None, f"it does not answer: {error}"
        except RPCError as error:
            if error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
                return None, "no worker answers for it: open a TemporalEngine that knows its workflow, and move it then"
            if error.status is RPCStatusCode.NOT_FOUND:
                return None, "it is not there any more"
            raise

    async def _input(self, run_id: str, found: WorkflowExecutionDescription) -> str:
        handle = self._client.get_workflow_handle(run_id, run_id=found.run_id)
        async for event in handle.fetch_history_events(page_size=1):
            given = event.workflow_execution_started_event_attributes.input.payloads
            return data_of(RawValue(given[0])).decode() if given else "null"
        return "null"


def _standing(found: WorkflowExecutionDescription, memo: Any, input: str, **more: Any) -> RunThere:
    said = {name: memo.get(name) for name in ("actor", "tenant", "unique_key")}
    return RunThere(id=found.id, workflow=found.workflow_type, input=input, **said, **more)


def _silent(error: RPCError) -> StoreUnreachable:
    words = str(error).split("\n", 1)[0][:300]
    return StoreUnreachable(f"the Temporal server does not answer: {words}")
