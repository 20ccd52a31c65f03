"""Letting ended runs continue: another execution under the same id, with a prefix of the entries."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import msgspec
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.common import RawValue, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from holdfast.clock import Clock, Instant
from holdfast.contract.rows import TERMINAL, EntryRow, InboxKind, Message, RunRow, Status
from holdfast.engine.client.reopen import Redo, not_allowed
from holdfast.errors import CannotReopen, Moved, NoSuchRun, RunTerminal
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.cuts import Cut, cut_for_all, cut_for_rerun, cut_for_resume, cut_for_retry
from holdfast.temporal.wire import ACTS, VERSION, Carry, packed, raw, rows_of

FindCut = Callable[[list[EntryRow], Instant, str], Cut]


class Looked(Protocol):
    """What is looked at, and where."""

    client: Client
    clock: Clock

    async def row(self, run_id: str) -> RunRow: ...
    async def carry(self, run_id: str) -> Carry: ...
    async def described(self, run_id: str) -> WorkflowExecutionDescription: ...
    async def signal(self, run_id: str, name: str, value: RawValue) -> None: ...


class TemporalReopener:
    """Reopens runs of one namespace. Children that failed are reopened first, one by one."""

    def __init__(self, port: Looked) -> None:
        self._port = port

    async def retry(self, run_id: str, by: str | None, reason: str, *, dry_run: bool = False) -> Redo | None:
        """Let a failed run go on from what failed, with a fresh budget of attempts."""
        return await self._reopen(run_id, "retry", {Status.FAILED}, cut_for_retry, dry_run)

    async def rerun(
        self, run_id: str, from_step: str | None, by: str | None, reason: str, dry_run: bool = False
    ) -> Redo:
        """Let an ended run do a step, and all that came after it, again; without a step, everything."""

        def cut(rows: list[EntryRow], at: Instant, run: str) -> Cut:
            return cut_for_all(rows, at, run) if from_step is None else cut_for_rerun(rows, from_step, at, run)

        return await self._reopen(run_id, "rerun", set(TERMINAL), cut, dry_run)

    async def resume(self, run_id: str) -> Redo:
        """Let a cancelled run go on at its first step that was not completed."""
        return await self._reopen(run_id, "resume", {Status.CANCELLED}, cut_for_resume)

    async def _reopen(self, run_id: str, how: str, allowed: set[Status], find: FindCut, dry_run: bool = False) -> Redo:
        port, now = self._port, self._port.clock.now()
        row = await port.row(run_id)
        if row.status is Status.MOVED:
            raise Moved(run_id, row.wait)
        if row.status not in allowed:
            raise CannotReopen(run_id, not_allowed(row, how, allowed))
        carry = await port.carry(run_id)
        cut = find(sorted(rows_of(carry.rows), key=lambda each: each.seq), now, run_id)
        messages = list(cut.messages)
        children: list[str] = []
        for child in (*cut.children, *cut.from_beginning, *cut.unheard):
            children += await self._child(child, cut, messages, now, dry_run)
        redo = Redo(
            run_id=run_id,
            since=cut.reason,
            steps=tuple(redone.path for redone in cut.redone),
            children=(*children, *(child for child, _ in cut.restarted)),
            unsure={redone.path: redone.doubt for redone in cut.redone if redone.doubt},
        )
        if dry_run:
            return redo
        kept = [each for each in carry.rows if each[1] < cut.seq]
        unread = [*messages, *(Message(*fields) for fields in carry.inbox)]
        carry.inbox = [(carry.numbers + n, *message[1:]) for n, message in enumerate(unread, 1)]
        carry.numbers += len(unread)
        carry.rows = [*kept, *((*each,) for each in cut.entries)]
        carry.reopens += 1
        carry.version = VERSION
        carry.children = {}
        if carry.timeout is not None:
            carry.deadline = now + carry.timeout
        found = await port.described(run_id)
        try:
            await port.client.start_workflow(
                row.workflow,
                args=[raw(row.input), packed(carry)],
                id=run_id,
                task_queue=found.task_queue,
                result_type=RawValue,
                task_timeout=carry.rules.task_timeout,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo=dict(await found.memo()),
                search_attributes=found.typed_search_attributes,
            )
        except WorkflowAlreadyStartedError:
            raise CannotReopen(run_id, f"run {run_id!r} was reopened by another caller meanwhile") from None
        for child in children:
            await self._tell_end(child, run_id)
        return redo

    async def _tell_end(self, child: str, run_id: str) -> None:
        """Tell a run of the end of a child that was reopened before it, and had nobody to tell."""
        row = await self._port.row(child)
        if row.parent != run_id or not row.status.is_terminal:
            return
        error = codec.decode(row.error.encode(), ErrorData) if row.error is not None else None
        ended = entries.ChildEnded(row.status.value, msgspec.Raw(row.output or "null"), error)
        with suppress(RunTerminal):
            told = raw(entries.encode_entry(ended), id=f"{child}/{row.reopens}")
            await self._port.signal(run_id, ACTS + "child", told)

    async def _child(self, child: str, cut: Cut, messages: list[Message], now: Instant, dry_run: bool) -> list[str]:
        """Reopen a child whose end the run must hear otherwise this time, or tell it of an end it has not heard."""
        try:
            row: RunRow | None = await self._port.row(child)
        except NoSuchRun:
            row = None
        if row is None:
            gone = ErrorData(type="NoSuchRun", message=f"child {child!r} ended and was deleted meanwhile")
            messages.append(_told(child, entries.ChildEnded("failed", error=gone), now))
            return []
        if not row.status.is_terminal:
            return []
        if row.status is Status.COMPLETED and child not in cut.from_beginning:
            messages.append(_told(child, entries.ChildEnded("completed", msgspec.Raw(row.output or "null")), now))
            return []
        again = cut_for_retry if row.status is Status.FAILED else cut_for_resume
        again = cut_for_all if child in cut.from_beginning else again
        await self._reopen(child, "retry", set(TERMINAL), again, dry_run)
        return [child]


def _told(child: str, ended: entries.ChildEnded, now: Instant) -> Message:
    return Message(0, InboxKind.CHILD_ENDED, child, "", entries.encode_entry(ended), now)
