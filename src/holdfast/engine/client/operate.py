"""Acting on runs: cancel, terminate, pause, resume, retry, rerun, recover. Each is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from holdfast.changes import Change
from holdfast.clock import FAR_FUTURE, Instant, from_datetime, micros, to_datetime
from holdfast.context.children import derived_id
from holdfast.context.notes import encode_attributes
from holdfast.contract.operations import (
    Done,
    KeyHeld,
    Outcome,
    Pause,
    Refused,
    Reopen,
    RequestCancel,
    SetAttributes,
    Terminate,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import TERMINAL, EntryRow, InboxKind, Message, RunRow, Status
from holdfast.definitions import Registry, check_run_id
from holdfast.engine.client.link import Link
from holdfast.engine.runs.ends import Rules, cancelled_end
from holdfast.errors import (
    BadData,
    BadInput,
    CannotReopen,
    Contended,
    HoldfastError,
    InvalidDuration,
    NoSuchLetter,
    NoSuchRun,
    StoreError,
    UniqueConflict,
)
from holdfast.ops.port import audited, check_who
from holdfast.patience import within
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.cuts import Cut, cut_for_all, cut_for_rerun, cut_for_resume, cut_for_retry
from holdfast.replay.entry import encode_entry
from holdfast.texts import LONGEST_REMARK, check_text, shown

Action = Literal["cancel", "terminate", "pause", "resume", "retry"]
_ATTEMPTS = 5
_DEEPEST_FAMILY = 50


@dataclass(frozen=True, slots=True)
class BulkReport:
    """What acting on many runs came to; with `dry_run` only `matched` is filled."""

    matched: list[str]
    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `recover()` found: workers declared dead, blocked runs to try again, whether runs waited for a worker."""

    dead_workers: int
    unblocked: int
    due: bool


def check_bulk(action: str, by: str | None, reason: str, which: Mapping[str, Any]) -> None:
    """Check what is to be done to many runs, by which person and why, and that it is said to which.

    Raises:
        BadInput: there is no such action, or no filter.
    """
    check_who(by, reason)
    if action not in ("cancel", "terminate", "pause", "resume", "retry"):
        raise BadInput(f"bulk() does cancel, terminate, pause, resume or retry, not {shown(action)}")
    if not any(value not in (None, {}) for value in which.values()):
        raise BadInput("bulk() needs a filter, such as workflow= or status=: it does not act on everything")


class RunControl:
    """What an operator does to runs."""

    def __init__(self, link: Link, registry: Registry, rules: Rules) -> None:
        self._link = link
        self._registry = registry
        self._rules = rules

    # Stopping.

    async def cancel(self, run_id: str, compensate: bool, by: str | None, reason: str) -> bool:
        """Ask a run to stop; False if it has ended already."""
        now, rules = self._link.clock.now(), self._rules
        operation = RequestCancel(
            target=check_run_id(run_id),
            at=now,
            compensate=compensate,
            payload=cancelled_end(rules, now).payload,
            unread=rules.unread,
            rules=rules.republished,
            audit=audited(self._link, by, "cancel", reason=reason or None, compensate=compensate or None),
        )
        outcome = await self._link.deliver(operation)
        asked = self._took_effect(run_id, outcome)
        if asked and (self._link.observers.listen(run_id) or self._registry.hooked):
            now_is = await self._link.row(run_id)
            if now_is.status is Status.CANCELLED and not now_is.epoch:
                self._cancelled(now_is)
                await self._tell("run.cancelled", run_id, status="cancelled")  # it had not begun, so no worker tells
        return asked

    async def terminate(self, run_id: str, by: str | None, reason: str) -> bool:
        """End a run here and now; False if it has ended already."""
        check_who(by, reason)
        now = self._link.clock.now()
        error = ErrorData(type="Terminated", message=reason or "the run was terminated", retryable=False)
        end = cancelled_end(self._rules, now, error)
        audit = audited(self._link, by, "terminate", reason=reason or None)
        outcome = await self._link.apply(Terminate(target=check_run_id(run_id), end=end, audit=audit))
        ended = self._took_effect(run_id, outcome)
        if ended:
            self._link.worker.forget(run_id)
            if self._registry.hooked:
                self._cancelled(await self._link.row(run_id))
            await self._tell("run.cancelled", run_id, status="cancelled", reason=reason or "terminated")
        return ended

    def _cancelled(self, row: RunRow) -> None:
        """Call the hook of a run that ended without its code, so that there is no state to tell."""
        known = row.workflow in self._registry.names()
        hooks = self._registry.get(row.workflow, row.version).hooks if known else None
        if hooks is not None and hooks.on_cancelled is not None:
            self._link.observers.call(hooks.on_cancelled, row.id, row.id, None)

    # Pausing.

    async def pause(
        self, run_id: str, until: datetime | None, duration: timedelta | None, by: str | None, reason: str
    ) -> bool:
        """Let a run begin nothing more; False if it has ended, is being cancelled or is blocked."""
        if until is not None and duration is not None:
            raise BadInput("pause a run until an instant or for a duration, not both")
        now = self._link.clock.now()
        end = from_datetime(until, "until") if until is not None else None
        if duration is not None:
            end = now + micros(duration, "duration")
        if end is not None and end > FAR_FUTURE:
            raise InvalidDuration("a pause that ends after the year 9999: leave its end out")
        audit = audited(self._link, by, "pause", reason=reason or None, until=to_datetime(end) if end else None)
        operation = Pause(target=check_run_id(run_id), at=now, until=end, audit=audit)
        outcome = await self._link.deliver(operation)
        paused = self._took_effect(run_id, outcome)
        if isinstance(outcome, Done):
            await self._tell("run.paused", run_id)  # no worker has it, so none tells
        return paused

    async def resume(self, run_id: str, by: str | None, reason: str) -> bool:
        """Let a paused or cancelled run go on; False if it is neither."""
        now = self._link.clock.now()
        audit = audited(self._link, by, "resume", reason=reason or None)
        operation = Unpause(target=check_run_id(run_id), at=now, audit=audit)
        outcome = await self._link.deliver(operation)
        if isinstance(outcome, Refused) and outcome.status is Status.CANCELLED:
            await self._reopen(run_id, "resume", {Status.CANCELLED}, cut_for_resume, by, reason)
            return True
        resumed = self._took_effect(run_id, outcome)
        if resumed:
            await self._tell("run.resumed", run_id)
        return resumed

    # Reopening.

    async def replay(self, run_id: str, by: str, reason: str, letter: str) -> None:
        """Retry a run on behalf of a dead letter that was not dealt with yet."""
        await self.retry(run_id, by, reason, letter)

    async def retry(self, run_id: str, by: str | None, reason: str = "", letter: str = "") -> None:
        """Let a failed run go on from what failed, with a fresh budget of attempts."""
        await self._reopen(run_id, "retry", {Status.FAILED}, cut_for_retry, by, reason, letter=letter or None)

    async def rerun(self, run_id: str, from_step: str | None, by: str | None, reason: str) -> None:
        """Let an ended run do a step, and all that came after it, again; without a step, everything."""
        if from_step is not None:
            check_text(from_step, "from_step", longest=LONGEST_REMARK)

        def cut(rows: list[EntryRow], at: Instant, run: str) -> Cut:
            return cut_for_all(rows, at, run) if from_step is None else cut_for_rerun(rows, from_step, at, run)

        await self._reopen(run_id, "rerun", set(TERMINAL), cut, by, reason, from_step=from_step)

    async def _reopen(
        self,
        run_id: str,
        how: str,
        allowed: set[Status],
        cut: Callable[[list[EntryRow], Instant, str], Cut],
        by: str | None,
        reason: str,
        **detail: object,
    ) -> None:
        check_run_id(run_id)
        check_who(by, reason)
        for _ in range(_ATTEMPTS):
            row = await self._link.row(run_id)
            if row.status not in allowed:
                raise CannotReopen(run_id, _not_allowed(row, how, allowed))
            operation = await self._reopening(row, cut, _DEEPEST_FAMILY)
            audit = audited(self._link, by, how, reason=reason or None, cut=operation.cut, **detail)
            letter = str(detail.get("letter") or "")
            outcome = await self._link.apply(msgspec.structs.replace(operation, audit=audit, letter=letter))
            if isinstance(outcome, Refused) and outcome.reason == "letter":
                raise NoSuchLetter(f"dead letter {letter!r} was dealt with already")
            if isinstance(outcome, KeyHeld):
                raise UniqueConflict(outcome.id, row.workflow, row.unique_key or "")
            if isinstance(outcome, Done):
                await self._tell("run.reopened", run_id, how=how)
                return
        raise CannotReopen(run_id, f"run {run_id!r} changes while it is looked at; try again")

    async def _reopening(self, row: RunRow, cut: Callable[[list[EntryRow], Instant, str], Cut], depth: int) -> Reopen:
        """Return what reopens a run, with the children whose failure it must hear otherwise this time."""
        now = self._link.clock.now()
        found = cut(await self._link.store.history(row.key), now, row.id)
        await self._refuse_restarts(row, found)
        messages, children, unended = list(found.messages), [], []
        for child_id in (*found.children, *found.unheard):
            child = await self._link.store.get(child_id)
            if child is None:
                if child_id in found.children:
                    raise CannotReopen(row.id, f"run {row.id!r} waits for child {child_id!r}, which was purged")
                gone = ErrorData(type="NoSuchRun", message=f"child {child_id!r} ended and was deleted meanwhile")
                messages.append(_child_row(child_id, entries.ChildEnded("failed", error=gone), now))
                continue
            if child.status is Status.COMPLETED:
                ended = entries.ChildEnded("completed", msgspec.Raw(child.output or "null"))
                messages.append(_child_row(child_id, ended, now))
            elif child.status.is_terminal and depth:
                again = cut_for_retry if child.status is Status.FAILED else cut_for_resume
                children.append(await self._reopening(child, again, depth - 1))
            elif not child.status.is_terminal:
                unended.append(child_id)
        return Reopen(
            target=row.id,
            epoch=row.epoch,
            cut=found.seq,
            at=now,
            entries=found.entries,
            messages=messages,
            children=children,
            unended=unended,
        )

    async def _refuse_restarts(self, row: RunRow, cut: Cut) -> None:
        """Refuse a cut after which the run would start a child again whose id the code gave, and which is there."""
        for child_id, path in cut.restarted:
            derived = {derived_id(row.id, row.generation, reopens, path) for reopens in range(row.reopens + 1)}
            if child_id not in derived and await self._link.store.get(child_id) is not None:
                raise CannotReopen(
                    row.id,
                    f"run {row.id!r} would start its child {child_id!r} again, and that id is taken: go on from a "
                    "later step, or let ctx.child() make the ids",
                )

    # The rest.

    async def set_attributes(self, run_id: str, attributes: Mapping[str, Any], by: str | None, reason: str) -> None:
        """Set searchable attributes of a run; None removes one."""
        encoded = encode_attributes(attributes)
        audit = audited(self._link, by, "set attributes", reason=reason or None, names=sorted(encoded))
        operation = SetAttributes(
            target=check_run_id(run_id), attributes=encoded, at=self._link.clock.now(), audit=audit
        )
        self._took_effect(run_id, await self._link.apply(operation))

    async def recover(self, run_id: str, by: str | None, reason: str) -> bool:
        """Try a blocked run again with the code there is now; False if it is not blocked."""
        audit = audited(self._link, by, "recover", reason=reason or None)
        outcome = await self._link.apply(Unblock(at=self._link.clock.now(), target=check_run_id(run_id), audit=audit))
        if isinstance(outcome, Done) and outcome.count:
            return True
        await self._link.row(run_id)
        return False

    async def recover_all(self) -> RecoveryReport:
        """Take over what dead workers left and try blocked runs whose code has changed."""
        link, now = self._link, self._link.clock.now()
        dead = await link.worker.take_over()
        unblocked = 0
        for workflow in self._registry.all():
            outcome = await link.apply(Unblock(at=now, workflow=workflow.name, fingerprint=workflow.fingerprint))
            unblocked += outcome.count if isinstance(outcome, Done) else 0
        due = await link.store.next_due(link.worker.runner.queues.workflows)
        link.worker.look()
        return RecoveryReport(len(dead), unblocked, due is not None and due <= now)

    async def bulk(self, action: Action, run_ids: Sequence[str], by: str | None, reason: str) -> BulkReport:
        """Do the same to many runs, one after another; what cannot be done to one stops no other.

        Once the store does not answer none of the rest is tried.
        """
        acts: dict[Action, Callable[[str], Coroutine[Any, Any, bool | None]]] = {
            "cancel": lambda run_id: self.cancel(run_id, False, by, reason),
            "terminate": lambda run_id: self.terminate(run_id, by, reason),
            "pause": lambda run_id: self.pause(run_id, None, None, by, reason),
            "resume": lambda run_id: self.resume(run_id, by, reason),
            "retry": lambda run_id: self.retry(run_id, by, reason),
        }
        report = BulkReport(list(run_ids))
        away: HoldfastError | None = None
        for run_id in run_ids:
            if away is not None:
                report.failed[run_id] = f"not tried: {away}"
                continue
            try:
                changed = await within(self._link.patience, acts[action](run_id))
            except HoldfastError as error:
                report.failed[run_id] = f"{type(error).__name__}: {error}"
                away = error if isinstance(error, StoreError) and not isinstance(error, Contended | BadData) else None
            else:
                (report.unchanged if changed is False else report.changed).append(run_id)
        return report

    def _took_effect(self, run_id: str, outcome: Outcome) -> bool:
        if isinstance(outcome, Refused):
            if outcome.status is None:
                raise NoSuchRun(run_id)
            return False
        return True

    async def _tell(self, type: str, run_id: str, status: str = "", **data: object) -> None:
        if not self._link.observers.listen(run_id):
            return
        at, row = to_datetime(self._link.clock.now()), await self._link.row(run_id)
        self._link.notify(Change(type=type, at=at, run_id=run_id, workflow=row.workflow, status=status, data=data))


def _child_row(child_id: str, ended: entries.ChildEnded, now: Instant) -> Message:
    return Message(0, InboxKind.CHILD_ENDED, child_id, "", encode_entry(ended), now)


def _not_allowed(row: RunRow, how: str, allowed: set[Status]) -> str:
    wanted = " or ".join(sorted(allowed))
    way_out = {
        Status.COMPLETED: "rerun(from_step=...) does parts of a completed run again",
        Status.CANCELLED: "resume() lets a cancelled run go on",
        Status.FAILED: "retry() lets a failed run go on",
        Status.BLOCKED: "put its code right, or recover() it",
        Status.PAUSED: "resume() lets a paused run go on",
    }.get(row.status, "wait for it to end, or cancel it")
    return f"run {row.id!r} is {row.status}, and {how} takes a run that is {wanted}: {way_out}"
