"""Acting on runs: cancel, terminate, pause, resume, recover. Each is audited in its own transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from holdfast.changes import Change
from holdfast.clock import FAR_FUTURE, from_datetime, micros, to_datetime
from holdfast.contract.operations import (
    Done,
    Nudge,
    Outcome,
    Pause,
    Refused,
    RequestCancel,
    SetAttributes,
    Terminate,
    Unblock,
    Unpause,
)
from holdfast.contract.rows import RunRow, Status
from holdfast.definitions import Registry, check_run_id
from holdfast.engine.client.link import Link
from holdfast.engine.runs.ends import Rules, cancelled_end
from holdfast.errors import (
    BadData,
    BadInput,
    Contended,
    HoldfastError,
    InvalidDuration,
    NoSuchRun,
    StoreError,
)
from holdfast.ops.dead_letters import NotSafe
from holdfast.ops.port import audited, check_who
from holdfast.patience import within
from holdfast.payloads.codec import ErrorData
from holdfast.texts import check_text, shown

if TYPE_CHECKING:
    from holdfast.engine.client.reopen import Reopener

Action = Literal["cancel", "terminate", "pause", "resume", "retry"]


class BulkReport(msgspec.Struct, frozen=True):
    """What acting on many runs came to; with `dry_run` only `matched` is filled."""

    matched: list[str]
    changed: list[str] = msgspec.field(default_factory=list)
    unchanged: list[str] = msgspec.field(default_factory=list)
    failed: dict[str, str] = msgspec.field(default_factory=dict)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    """Runs that a retry of many leaves alone, because it is not known to be safe, and why."""


class RecoveryReport(msgspec.Struct, frozen=True):
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
        """Lets runs go on that have ended."""

    @cached_property
    def reopener(self) -> Reopener:
        """What lets runs that have ended go on; loaded when that is asked for."""
        from holdfast.engine.client.reopen import Reopener

        return Reopener(self._link, self._registry, self._tell)

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
                await self._cancelled(now_is)
                await self._tell("run.cancelled", run_id, status="cancelled")  # it had not begun, so no worker tells
        return asked

    async def terminate(self, run_id: str, by: str | None, reason: str) -> bool:
        """End a run here and now; False if it has ended already."""
        check_who(by, reason)
        now = self._link.clock.now()
        error = ErrorData(type="Terminated", message=reason or "the run was terminated", retryable=False)
        audit = audited(self._link, by, "terminate", reason=reason or None)
        operation = Terminate(target=check_run_id(run_id), end=cancelled_end(self._rules, now, error), audit=audit)
        outcome = await self._link.apply(operation)
        while isinstance(outcome, Refused) and outcome.reason == "decided":
            from holdfast.engine.client.decided import as_decided  # rarely needed

            operation = await as_decided(self._link, self._rules, operation, error)
            outcome = await self._link.apply(operation)
        ended = self._took_effect(run_id, outcome)
        if ended:
            self._link.worker.forget(run_id)
            if self._registry.hooked and operation.decided is None:
                await self._cancelled(await self._link.row(run_id))
            status = str(operation.end.status)
            await self._tell(f"run.{status}", run_id, status=status, reason=reason or "terminated")
        return ended

    async def _cancelled(self, row: RunRow) -> None:
        """Call the hook of a run that ended without its code, so that there is no state to tell."""
        known = row.workflow in self._registry.names()
        hooks = self._registry.get(row.workflow, row.version).hooks if known else None
        if hooks is not None and hooks.on_cancelled is not None:
            left = self._link.observers.call(hooks.on_cancelled, row.id, row.id, None)
            if left is not None:
                await left

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
            await self.reopener.resume(run_id, by, reason)
            return True
        resumed = self._took_effect(run_id, outcome)
        if resumed:
            await self._tell("run.resumed", run_id)
        return resumed

    async def nudge(self, run_id: str, step: str, by: str | None, reason: str) -> bool:
        """Let what waits to be tried again be tried now; False if nothing of that kind waits."""
        if step:
            check_text(step, "step")
        audit = audited(self._link, by, "nudge", reason=reason or None, step=step or None)
        operation = Nudge(target=check_run_id(run_id), at=self._link.clock.now(), step=step, audit=audit)
        return self._took_effect(run_id, await self._link.deliver(operation))

    # The rest.

    async def set_attributes(self, run_id: str, attributes: Mapping[str, Any], by: str | None, reason: str) -> None:
        """Set searchable attributes of a run; None removes one."""
        from holdfast.context.notes import encode_attributes

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
        await self._link.row_here(run_id)
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

    async def bulk(
        self, action: Action, run_ids: Sequence[str], by: str | None, reason: str, steps: Collection[str] = ()
    ) -> BulkReport:
        """Do the same to many runs, one after another; what cannot be done to one stops no other.

        A retry takes only what is safe to do again, and `steps` by name. Once the store does not answer none of the
        rest is tried.
        """
        acts: dict[Action, Callable[[str], Coroutine[Any, Any, bool | None]]] = {
            "cancel": lambda run_id: self.cancel(run_id, False, by, reason),
            "terminate": lambda run_id: self.terminate(run_id, by, reason),
            "pause": lambda run_id: self.pause(run_id, None, None, by, reason),
            "resume": lambda run_id: self.resume(run_id, by, reason),
            "retry": lambda run_id: self._retry(run_id, by, reason, steps),
        }
        report = BulkReport(list(run_ids))
        away: HoldfastError | None = None
        for run_id in run_ids:
            if away is not None:
                report.failed[run_id] = f"not tried: {away}"
                continue
            try:
                changed = await within(self._link.patience, acts[action](run_id))
            except NotSafe as why:
                report.skipped[run_id] = str(why)
            except HoldfastError as error:
                report.failed[run_id] = f"{type(error).__name__}: {error}"
                away = error if isinstance(error, StoreError) and not isinstance(error, Contended | BadData) else None
            else:
                (report.unchanged if changed is False else report.changed).append(run_id)
        return report

    async def _retry(self, run_id: str, by: str | None, reason: str, steps: Collection[str]) -> bool:
        await self.reopener.retry(run_id, by, reason, named=steps)
        return True

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
