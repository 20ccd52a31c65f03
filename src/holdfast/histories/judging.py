"""Whether one run fits present code: it is replayed as an engine would continue it, and differences are reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.contract.rows import EntryRow
from holdfast.definitions import Registry, Workflow
from holdfast.errors import HistoryMismatch, HoldfastError, UnknownWorkflow
from holdfast.histories.misfits import CallLine, Misfit, Trial
from holdfast.histories.patching import place_of, tried_patch
from holdfast.histories.recorded import RecordedRun, unbegun
from holdfast.payloads.errors import error_text
from holdfast.replay.entry import CALLS, KINDS, Entry
from holdfast.replay.execution import Execution
from holdfast.replay.journal import Journal
from holdfast.replay.past import names_of
from holdfast.replay.turn import Ending

_BEFORE, _AFTER = 3, 2
"""How many calls are shown up to the divergence, and after it."""


class Judge:
    """Replays runs against workflows; nothing is executed and nothing is written.

    Not for use inside a task of an event loop: a turn cannot be driven there.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._compared: set[tuple[str, ...]] = set()
        self.queues: Counter[str] = Counter()
        """How many runs that fit go on only with a worker that serves each queue, since this was last taken."""

    def judge(self, recorded: RecordedRun) -> Misfit | None:
        """Return why a run cannot go on with the code there is, None if it can."""
        try:
            workflow = self._registry.get(recorded.workflow, recorded.version)
        except UnknownWorkflow as error:
            return _misfit(recorded, "no-workflow", str(error))
        found = self._replayed(recorded, workflow)
        if found is None or not isinstance(found, HistoryMismatch):
            if found is None:
                return None
            return _misfit(recorded, "input" if not isinstance(found, HoldfastError) else "code", error_text(found))
        misfit = _diverged(recorded, found)
        if misfit.kind == "new-call":
            misfit = _with(misfit, trial=self._tried(recorded, workflow, found))
        if misfit.alike not in self._compared:
            self._compared.add(misfit.alike)
            misfit = _with(misfit, **self._beside(recorded, workflow))
        return misfit

    def _replayed(self, recorded: RecordedRun, workflow: Workflow[Any, Any]) -> Exception | None:
        """Return what blocks a run, None if nothing does."""
        try:
            execution = self._execution(recorded, workflow)
        except Exception as unfit:
            return _Unreadable(error_text(unfit))
        try:
            outcome = execution.begin(recorded.entries).outcome
            if outcome is None or outcome.ending is not Ending.BLOCKED:
                needed = {
                    getattr(getattr(verb, "activity", None), "queue", None) for verb in execution.journal.open.values()
                }
                self.queues.update({workflow.queue, *(queue for queue in needed if queue is not None)})
                return None
            return execution.journal.violation or execution.loop.violation or _Unreadable(str(outcome.error))
        finally:
            execution.drop()

    def _execution(self, recorded: RecordedRun, workflow: Workflow[Any, Any]) -> Execution:
        execution = unbegun(recorded, workflow, self._registry.errors, looked_at=False)
        execution.journal.activities = self._registry.activities
        return execution

    def _tried(self, recorded: RecordedRun, workflow: Workflow[Any, Any], found: HistoryMismatch) -> Trial:
        patch = tried_patch(workflow, found)
        if isinstance(patch, str):
            return Trial(tried=False, said=patch)
        with patch:
            still = self._replayed(recorded, workflow)
        return Trial(tried=True, fits=still is None, said="" if still is None else str(still))

    def _beside(self, recorded: RecordedRun, workflow: Workflow[Any, Any]) -> dict[str, list[CallLine]]:
        """Return the recorded calls and the present ones around the divergence."""
        execution = self._execution(recorded, workflow)
        journal = execution.journal
        noting = execution.journal = NotingJournal(journal.run, execution.loop, self._registry.errors)
        noting.activities = self._registry.activities
        try:
            execution.begin(recorded.entries)
        finally:
            execution.drop()
        was, now = calls_of(recorded.entries), noting.calls
        same = 0
        while same < min(len(was), len(now)) and (was[same].path, was[same].kind) == (now[same].path, now[same].kind):
            same += 1
        since = max(0, same - _BEFORE)
        return {"recorded": was[since : same + _AFTER], "present": now[since : same + _AFTER]}


class _Unreadable(Exception):
    """The run cannot be brought to its beginning."""


class NotingJournal(Journal):
    """A journal that notes which calls the code makes, and at which lines."""

    __slots__ = ("calls",)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.calls: list[CallLine] = []

    def begin(self, location: str, call: Entry) -> Any:
        self._note(location, call.word)
        return super().begin(location, call)

    def begin_step(self, location: str, digest: int, attempt: int) -> Any:
        self._note(location, "step")
        return super().begin_step(location, digest, attempt)

    def _note(self, location: str, kind: str) -> None:
        path = self.names.path(location)
        if not self.calls or self.calls[-1].path != path:
            file, line = place_of(self.loop.workflow_line())
            self.calls.append(CallLine(path=path, kind=kind, file=file, line=line))


def calls_of(rows: Sequence[EntryRow]) -> list[CallLine]:
    """Return the calls that a history has, in their order."""
    names = names_of(rows)
    return [CallLine(path=names.path(row.location), kind=KINDS[row.kind].word) for row in rows if row.kind in CALLS]


def _misfit(recorded: RecordedRun, kind: str, message: str) -> Misfit:
    return Misfit(run=recorded.id, workflow=recorded.workflow, version=recorded.version, kind=kind, message=message)


def _diverged(recorded: RecordedRun, found: HistoryMismatch) -> Misfit:
    file, line = place_of(found.place)
    if found.current.startswith("a new "):
        kind = "new-call"
    elif found.current.startswith("no such call"):
        kind = "call-gone"
    else:
        kind = "other-call"
    return _with(
        _misfit(recorded, kind, str(found)),
        path=found.path, history=found.recorded, code=found.current, file=file, line=line, advice=found.advice,
    )  # fmt: skip


def _with(misfit: Misfit, **changed: Any) -> Misfit:
    from msgspec.structs import replace

    return replace(misfit, **changed)
