"""Acts on runs on Temporal: cancel, terminate, pause, resume, nudge, recover."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from holdfast.clock import Instant, from_datetime, micros
from holdfast.context.notes import encode_attributes
from holdfast.contract.rows import EntryRow, RunRow, RunStanding, Status
from holdfast.engine.views.steps import steps_of
from holdfast.errors import BadInput, HoldfastError, Moved, NoSuchRun, NotOffered, RunTerminal
from holdfast.temporal.client.answers import ENDED, refused
from holdfast.temporal.client.reopening import Looked, TemporalReopener
from holdfast.temporal.wire import ACTS, Carry, packed, raw

_SOON = 2.0
"""For how many seconds a worker is asked for the children of a run that is terminated."""


class ToldAndSeen(Looked, Protocol):
    """What runs are told by, and seen."""

    on_terminated: Callable[[str], None]

    def handle(self, run_id: str) -> WorkflowHandle[Any, RawValue]: ...
    def begins(self, found: WorkflowExecutionDescription, carry: Carry) -> Instant | None: ...
    async def here(self, run_id: str) -> WorkflowExecutionDescription: ...
    async def started(self, run_id: str) -> tuple[str, Carry]: ...
    async def state(self, run_id: str, patient: bool) -> tuple[Status, str, Instant | None]: ...
    async def ended(self, run_id: str) -> tuple[RunStanding, tuple[str | None, str | None]]: ...
    async def history(self, row: RunRow) -> list[EntryRow]: ...
    async def signal(self, run_id: str, name: str, value: RawValue) -> None: ...


class TemporalControl:
    """Acts on single runs of one namespace."""

    def __init__(self, port: ToldAndSeen) -> None:
        self._port = port

    @property
    def reopener(self) -> TemporalReopener:
        """Letting runs go on that have ended."""
        return TemporalReopener(self._port)

    async def cancel(self, run_id: str, compensate: bool, by: str | None, reason: str) -> bool:
        """Ask a run to stop; False if it has ended."""
        found = await self._port.here(run_id)
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return False
        if await self._is(run_id, found, Status.COMPENSATING):
            return False
        told = msgspec.json.encode({"compensate": compensate, "by": by or "", "reason": reason})
        try:
            if compensate:  # the server passes on the first cancel only, which may not have asked for this
                await self._port.handle(run_id).signal(ACTS + "cancel", raw(told))
            await self._port.handle(run_id).cancel(reason=told.decode())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                await self._port.here(run_id)
                return False
            raise refused(run_id, error) from error
        return True

    async def _is(self, run_id: str, found: WorkflowExecutionDescription, status: Status) -> bool:
        """Whether a worker says of an open run that has begun that it has a status."""
        if found.status is not WorkflowExecutionStatus.RUNNING:
            return False
        has_begun = self._port.begins(found, (await self._port.started(run_id))[1]) is None
        return has_begun and (await self._port.state(run_id, patient=False))[0] is status

    async def terminate(self, run_id: str, by: str | None, reason: str) -> bool:
        """End a run here and now; its parent is told, and children that follow it are cancelled."""
        if (await self._port.here(run_id)).status is not WorkflowExecutionStatus.RUNNING:
            return False
        _, carry = await self._port.started(run_id)
        following = await self._following(run_id)
        try:
            await self._port.handle(run_id).terminate(reason=reason or f"terminated by {by}" if by else reason or None)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise refused(run_id, error) from error
        self._port.on_terminated(run_id)
        if carry.parent:
            told = raw('["cancelled"]', id=f"{run_id}/{carry.reopens}")
            with suppress(RPCError):  # the parent has ended, too
                await self._port.handle(carry.parent).signal(ACTS + "child", told)
        for child in following:
            with suppress(NoSuchRun, Moved):
                await self.cancel(child, False, by, reason)
        return True

    async def _following(self, run_id: str) -> list[str]:
        """Return the open children that are cancelled with a run, as a worker says: if none answers soon, none."""
        try:
            async with asyncio.timeout(_SOON):
                children = (await self._port.carry(run_id)).children
        except (HoldfastError, TimeoutError):
            return []
        return [child for child, with_parent in children.items() if with_parent]

    async def pause(
        self, run_id: str, until: datetime | None, duration: timedelta | None, by: str | None, reason: str
    ) -> bool:
        """Let a run begin nothing more until it is resumed."""
        if until is not None and duration is not None:
            raise BadInput("pause a run until a time or for a duration, not both")
        end = from_datetime(until, "until") if until is not None else None
        if duration is not None:
            end = self._port.clock.now() + micros(duration, "duration")
        found = await self._port.here(run_id)
        if (await found.memo()).get("blocked") or await self._is(run_id, found, Status.CANCELLING):
            return False
        return await self._act(run_id, "pause", end)

    async def resume(self, run_id: str, by: str | None, reason: str) -> bool:
        """Let a paused run go on, or a cancelled one continue."""
        found = await self._port.here(run_id)
        if found.status in ENDED and (await self._port.ended(run_id))[0].status is Status.CANCELLED:
            await self.reopener.resume(run_id)
            return True
        if not (await found.memo()).get("paused"):
            return False
        return await self._act(run_id, "resume", None)

    async def nudge(self, run_id: str, step: str, by: str | None, reason: str) -> bool:
        """Try a step now that waits for its next attempt."""
        row = await self._port.row(run_id)
        if row.status is Status.MOVED:
            raise Moved(run_id, row.wait)
        if row.status.is_terminal or row.status is Status.PENDING:
            return False
        steps = steps_of(run_id, await self._port.history(row))
        if not any(each.next_attempt_at is not None and step in ("", each.path) for each in steps):
            return False
        return await self._act(run_id, "nudge", step)

    async def recover(self, run_id: str, by: str | None, reason: str) -> bool:
        """Try a blocked run again with the code there is now."""
        if not (await (await self._port.here(run_id)).memo()).get("blocked"):
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
            await self._port.signal(run_id, ACTS + what, packed(value))
        except RunTerminal:
            return False
        return True
