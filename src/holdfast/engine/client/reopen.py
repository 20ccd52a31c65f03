"""Letting ended runs continue: retry, rerun, resume, undo. The history decides what is done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

import msgspec

from holdfast.changes import step_name
from holdfast.clock import Instant
from holdfast.contract.operations import Done, KeyHeld, Refused, Reopen
from holdfast.contract.rows import AWAY, TERMINAL, EntryRow, InboxKind, Message, RunRow, Status
from holdfast.contract.turns import Lane
from holdfast.definitions import Registry, check_run_id
from holdfast.engine.client.link import Link
from holdfast.errors import CannotReopen, UniqueConflict
from holdfast.ops.dead_letters import DeadLetter, NotSafe
from holdfast.ops.port import audited, check_who
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.cuts import (
    UNDO,
    Cut,
    covers,
    cut_for_all,
    cut_for_rerun,
    cut_for_resume,
    cut_for_retry,
    cut_for_undoing,
)
from holdfast.replay.entry import decode_entry, encode_entry
from holdfast.texts import LONGEST_REMARK, check_text

_ATTEMPTS = 5
_DEEPEST_FAMILY = 50

FindCut = Callable[[list[EntryRow], Instant, str], Cut]


class Redo(msgspec.Struct, frozen=True, kw_only=True):
    """What letting a run go on does again; all else keeps its results."""

    run_id: str
    since: str
    """From where on the run goes on."""
    steps: tuple[str, ...] = ()
    """The paths of steps that had begun and are done again; more may follow them, as the code goes."""
    children: tuple[str, ...] = ()
    """The ids of child runs that go on with it, or are started again."""
    unsure: dict[str, str] = msgspec.field(default_factory=dict)
    """Of these steps, those of which it is not known that their last attempt had no effect, and why."""
    undone: tuple[str, ...] = ()
    """Of these steps, those that a compensation undid: their idempotency keys are new ones."""


class Reopener:
    """Lets runs go on that have ended."""

    def __init__(self, link: Link, registry: Registry, tell: Callable[..., Awaitable[None]]) -> None:
        self._link = link
        self._registry = registry
        self._tell = tell

    async def replay(self, letter: DeadLetter, by: str, reason: str, named: Collection[str] | None = None) -> bool:
        """Retry the run of a dead letter, or undo what is left if it is of a compensation; False if it was dealt with.

        `named` is as in `retry`.
        """
        if letter.step.startswith("end#"):
            raise CannotReopen(
                letter.run_id,
                f"letter {letter.id!r} is of {letter.step!r}, a callback of run {letter.run_id!r}, which has ended: a "
                "callback is not called again alone; do what it was to do, and acknowledge the letter",
            )
        if letter.compensation:
            ended = {Status.FAILED, Status.CANCELLED}
            done = await self._reopen(letter.run_id, UNDO, ended, cut_for_undoing, by, reason, letter=letter.id)
        else:
            if named is not None and letter.idempotent:
                named = {*named, letter.activity}
            done = await self.retry(letter.run_id, by, reason, letter=letter.id, named=named)
        return done is not None

    async def retry(
        self,
        run_id: str,
        by: str | None,
        reason: str = "",
        *,
        letter: str = "",
        named: Collection[str] | None = None,
        dry_run: bool = False,
    ) -> Redo | None:
        """Let a failed run go on from what failed, with a fresh budget of attempts; return what is done again.

        None if it was on behalf of a dead letter that was dealt with meanwhile. With `named` it goes on only if that is
        safe: steps of which it is not known whether they took effect must be among these names, or idempotent.

        Raises:
            NotSafe: it is not.
            CannotReopen: it cannot go on, or would only fail again.
        """

        def judge(row: RunRow, cut: Cut) -> None:
            self._refuse_hopeless(row, cut)
            if named is not None:
                self._check_safe(row, cut, named)

        return await self._reopen(
            run_id, "retry", {Status.FAILED}, cut_for_retry, by, reason, judge, dry_run, letter=letter
        )

    async def rerun(
        self, run_id: str, from_step: str | None, by: str | None, reason: str, dry_run: bool = False
    ) -> Redo:
        """Let an ended run do a step, and all that came after it, again; without a step, everything."""
        if from_step is not None:
            check_text(from_step, "from_step", longest=LONGEST_REMARK)

        def cut(rows: list[EntryRow], at: Instant, run: str) -> Cut:
            return cut_for_all(rows, at, run) if from_step is None else cut_for_rerun(rows, from_step, at, run)

        done = await self._reopen(
            run_id, "rerun", set(TERMINAL - AWAY), cut, by, reason, dry_run=dry_run, from_step=from_step or ""
        )
        assert done is not None
        return done

    async def resume(self, run_id: str, by: str | None, reason: str) -> None:
        """Let a cancelled run go on at its first step that was not completed."""
        await self._reopen(run_id, "resume", {Status.CANCELLED}, cut_for_resume, by, reason)

    async def _reopen(
        self,
        run_id: str,
        how: str,
        allowed: set[Status],
        cut: FindCut,
        by: str | None,
        reason: str = "",
        judge: Callable[[RunRow, Cut], None] = lambda row, cut: None,
        dry_run: bool = False,
        **detail: str,
    ) -> Redo | None:
        check_run_id(run_id)
        check_who(by, reason)
        for _ in range(_ATTEMPTS):
            row = await self._link.row_here(run_id)
            if row.status not in allowed:
                raise CannotReopen(run_id, not_allowed(row, how, allowed))
            operation, found = await self._reopening(row, cut, judge, _DEEPEST_FAMILY)
            redo = _redo(row.id, found, operation)
            if dry_run:
                return redo
            operation = msgspec.structs.replace(
                operation,
                audit=audited(self._link, by, how, reason=reason or None, cut=operation.cut, **_said(detail)),
                letter=detail.get("letter", ""),
                undoing=how == UNDO,
            )
            outcome = await self._link.apply(operation)
            if isinstance(outcome, Refused) and outcome.reason == "letter":
                return None
            if isinstance(outcome, KeyHeld):
                raise UniqueConflict(outcome.id, row.workflow, row.unique_key or "")
            if isinstance(outcome, Done):
                await self._tell("run.reopened", run_id, how=how)
                return redo
        raise CannotReopen(run_id, f"run {run_id!r} changed while it was read; try again")

    async def _reopening(
        self, row: RunRow, cut: FindCut, judge: Callable[[RunRow, Cut], None], depth: int
    ) -> tuple[Reopen, Cut]:
        """Return what reopens a run, with the children whose failure it must hear otherwise this time."""
        now = self._link.clock.now()
        found = cut(await self._link.store.history(row.key), now, row.id)
        judge(row, found)
        await self._refuse_restarts(row, found)
        messages, children, unended = list(found.messages), [], []
        for child_id in (*found.children, *found.from_beginning, *found.unheard):
            child = await self._link.store.get(child_id)
            if child is None:
                if child_id not in found.unheard:
                    raise CannotReopen(row.id, f"run {row.id!r} waits for child {child_id!r}, which was purged")
                gone = ErrorData(type="NoSuchRun", message=f"child {child_id!r} ended and was deleted meanwhile")
                messages.append(_child_row(child_id, entries.ChildEnded("failed", error=gone), now))
            elif child.status in AWAY:
                raise CannotReopen(
                    row.id, f"run {row.id!r} waits for child {child_id!r}, which continues in another runtime"
                )
            elif not child.status.is_terminal:
                unended.append(child_id)
            elif child_id in found.from_beginning:
                children.append((await self._reopening(child, cut_for_all, judge, depth - 1))[0])
            elif child.status is Status.COMPLETED:
                ended = entries.ChildEnded("completed", msgspec.Raw(child.output or "null"))
                messages.append(_child_row(child_id, ended, now))
            elif depth:
                again = cut_for_retry if child.status is Status.FAILED else cut_for_resume
                children.append((await self._reopening(child, again, judge, depth - 1))[0])
        operation = Reopen(
            target=row.id,
            epoch=row.epoch,
            cut=found.seq,
            at=now,
            entries=found.entries,
            messages=messages,
            children=children,
            unended=unended,
            kept=list(found.kept),
            standing=list(found.standing),
            lane=self._lane(row),
        )
        return operation, found

    def _lane(self, row: RunRow) -> Lane | None:
        """Return where a run waits for a place again."""
        known = row.workflow in self._registry.names()
        return self._registry.get(row.workflow, row.version).lane(row.input) if known else None

    # What is refused.

    async def _refuse_restarts(self, row: RunRow, cut: Cut) -> None:
        """Refuse a cut after which the run would start a child again whose id the code gave, and which is there."""
        from holdfast.context.children import derived_id

        for child_id, path in cut.restarted:
            derived = {derived_id(row.id, row.generation, reopens, path) for reopens in range(row.reopens + 1)}
            if child_id not in derived and await self._link.store.get(child_id) is not None:
                raise CannotReopen(
                    row.id,
                    f"run {row.id!r} would start its child {child_id!r} again, and that id is taken: go on from a "
                    "later step, or let ctx.child() make the ids",
                )

    def _refuse_hopeless(self, row: RunRow, cut: Cut) -> None:
        """Refuse to retry a run whose own code, the same as now, made an error of failures that it does not name."""
        if not cut.collected or row.fingerprint is None or row.workflow not in self._registry.names():
            return
        if self._registry.get(row.workflow, row.version).fingerprint != row.fingerprint:
            return  # put right, it may go another way
        failed = ", ".join(cut.collected)
        raise CannotReopen(
            row.id,
            f"run {row.id!r} failed by an error that its own code raised after {failed} had failed; retry does nothing "
            "of that again, and the code would only raise it again. Write `raise ... from failure` in the workflow, "
            "with the failure it took (an ExceptionGroup of several): then retry knows what to do again. This run can "
            "rerun(from_step=...) any of them",
        )

    def _check_safe(self, row: RunRow, cut: Cut, named: Collection[str]) -> None:
        """Refuse what may do again what was done, unless that does no harm or the step is named.

        Raises:
            NotSafe: saying why.
        """
        if row.error is not None and not codec.decode(row.error, ErrorData).retryable:
            raise NotSafe("its failure says that trying again is pointless")
        from holdfast.engine.views.steps import activities_of

        activity_of = activities_of(self._registry, row.workflow, row.version)
        for redone in cut.redone:
            name = step_name(redone.path)
            if redone.doubt and name not in named and redone.path not in named:
                activity = activity_of(name)
                if activity is None or not activity.settings.idempotent:
                    raise NotSafe(f"step {redone.path!r} of run {row.id!r}: {redone.doubt}")


def _said(detail: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in detail.items() if value}


def _redo(run_id: str, cut: Cut, operation: Reopen) -> Redo:
    children = (*(child for each in operation.children for child in _family(each)), *(id for id, _ in cut.restarted))
    unsure = {redone.path: redone.doubt for redone in cut.redone if redone.doubt}
    steps = tuple(redone.path for redone in cut.redone)
    marks = (decode_entry(row.kind, row.data) for row in cut.entries if row.kind == entries.Reopened.kind)
    taken_back = {path for mark in marks for path in mark.undone}
    undone = tuple(path for path in steps if covers(taken_back, path))
    return Redo(run_id=run_id, since=cut.reason, steps=steps, children=children, unsure=unsure, undone=undone)


def _family(operation: Reopen) -> Iterator[str]:
    yield operation.target
    for child in operation.children:
        yield from _family(child)


def _child_row(child_id: str, ended: entries.ChildEnded, now: Instant) -> Message:
    return Message(0, InboxKind.CHILD_ENDED, child_id, "", encode_entry(ended), now)


def not_allowed(row: RunRow, how: str, allowed: set[Status]) -> str:
    """Return why a run cannot be reopened that way, with the way out."""
    wanted = " or ".join(sorted(allowed))
    way_out = {
        Status.COMPLETED: "rerun(from_step=...) does parts of a completed run again",
        Status.CANCELLED: "resume() lets a cancelled run go on",
        Status.FAILED: "retry() lets a failed run go on",
        Status.BLOCKED: "put its code right, or recover() it",
        Status.PAUSED: "resume() lets a paused run go on",
    }.get(row.status, "wait for it to end, or cancel it")
    return f"run {row.id!r} is {row.status}, and {how} takes a run that is {wanted}: {way_out}"
