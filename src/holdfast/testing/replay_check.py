"""The check of `TestEngine(replay=True)`: after every fact, a replay must reach the same point as the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from holdfast.contract.operations import Committed, Operation, Outcome
from holdfast.contract.rows import Status
from holdfast.contract.store import Store
from holdfast.contract.turns import CommitTurn, RunEnd
from holdfast.definitions import Registry
from holdfast.engine.runs.resident import LIVE, PAUSING, Resident
from holdfast.engine.worker.committer import from_callback
from holdfast.errors import HistoryMismatch
from holdfast.histories.recorded import RecordedRun, bring_to_its_end, recorded_run, unbegun
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import turn as turns
from holdfast.replay.entry import FACTS, KINDS, LoopCheckpoint
from holdfast.replay.execution import Execution


class ReplayCheck:
    """Replays the runs that a worker drives, after each of their facts.

    It stands between the worker and its store: what a commit made durable is read back and replayed before the worker
    hears of it. Nothing that the worker does is changed by what is found.
    """

    def __init__(self, store: Store, registry: Registry, residents: Callable[[], Mapping[int, Resident]]) -> None:
        self.diverged: Exception | None = None
        """Of the first replay that did not come to where the run was."""
        self.replays = 0
        """How many histories were replayed."""
        self._store = store
        self._registry = registry
        self._residents = residents
        self._apply = store.apply
        setattr(store, "apply", self._checked)  # noqa: B010  # of this one store, whatever its class
        setattr(store, "apply_now", lambda operations: None)  # noqa: B010

    async def _checked(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await self._apply(operations)
        commits: dict[int, list[CommitTurn]] = {}
        for operation, outcome in zip(operations, outcomes, strict=True):
            if isinstance(operation, CommitTurn) and isinstance(outcome, Committed):
                commits.setdefault(operation.key, []).append(operation)
        for key, of_run in commits.items():
            if self.diverged is None:
                try:
                    await self._check(key, of_run)
                except Exception as error:
                    self.diverged = error
        return outcomes

    async def _check(self, key: int, commits: list[CommitTurn]) -> None:
        facts = [row.seq for commit in commits for row in commit.entries if row.kind in FACTS]
        resident = self._residents().get(key)
        if not facts or resident is None or resident.phase is PAUSING or any(commit.renewal for commit in commits):
            return  # the code of a run that is being paused is not told what is recorded
        row = await self._store.get(resident.id)
        if row is None or row.generation != resident.generation:
            return
        rows, end = await self._store.history(key), commits[-1].end
        if end is not None and any(each.kind == LoopCheckpoint.kind for each in rows):
            return  # what has ended may have forgotten what a replay of its end would need
        cuts = [] if any(commit.trims for commit in commits) else facts[1:]
        for fact in cuts:  # several facts at once: also where the history was between them
            before = [each for each in rows if each.seq < fact]
            await from_callback(partial(self._replay, recorded_run(row, before), row.version))
        now = recorded_run(row, rows)
        if end is not None:
            await from_callback(partial(self._replay, now, row.version, end=end))
        else:
            await from_callback(lambda: self._replay(now, row.version, _level(resident, commits)))

    def _replay(
        self, recorded: RecordedRun, version: str, resident: Resident | None = None, end: RunEnd | None = None
    ) -> None:
        self.replays += 1
        replayed = unbegun(recorded, self._registry.get(recorded.workflow, version), self._registry.errors)
        replayed.journal.activities = self._registry.activities
        try:
            turn = bring_to_its_end(replayed, recorded)
            if resident is not None and not turn.entries and _waits(replayed) != _waits(resident.execution):
                raise _diverged(recorded, replayed, f"{_said(resident.execution)}; replayed, it {_said(replayed)}")
            if end is not None and (was := _ended(end)) and was != (now := _outcome(turn.outcome)):
                raise _diverged(recorded, replayed, f"{was}; replayed, it {now or _said(replayed)}")
        except HistoryMismatch as mismatch:
            if isinstance(mismatch, _Diverged):
                raise
            raise _diverged(recorded, replayed, f"does something else when it is replayed: {mismatch}") from None
        finally:
            replayed.drop()


def _level(resident: Resident, commits: Sequence[CommitTurn]) -> Resident | None:
    """Return a run whose code is where its history is; it may be ahead of its commits, or have ended before hooks."""
    level = resident.phase is LIVE and resident.commits <= len(commits)
    return resident if level and resident.execution.journal.run.conclusion is None else None


class _Diverged(HistoryMismatch):
    """Found by comparing."""


def _diverged(recorded: RecordedRun, replayed: Execution, what: str) -> HistoryMismatch:
    last = recorded.entries[-1]
    place = f"{KINDS[last.kind].word} {replayed.journal.names.path(last.location)!r}"
    return _Diverged(recorded.id, f"run {recorded.id} is not deterministic: after {place} it {what}")


def _waits(execution: Execution) -> tuple[list[str], int | None]:
    return sorted(execution.journal.open), execution.next_due()


def _said(execution: Execution) -> str:
    names, (places, due) = execution.journal.names, _waits(execution)
    waits = [repr(names.path(place)) for place in places] + ([f"a timer at {due}"] if due is not None else [])
    return f"waits for {', '.join(waits) or 'nothing'}"


def _ended(end: RunEnd) -> str:
    """Say how a run ended, as far as its code alone decides that."""
    if end.status is Status.COMPLETED:
        return f"completed with {end.output}"
    if end.status is Status.FAILED and end.error is not None:
        error = codec.decode(end.error, ErrorData)
        return f"failed with {error.type}: {error.message}"
    return ""


def _outcome(outcome: turns.Outcome | None) -> str:
    if outcome is None:
        return ""
    if outcome.error is not None:
        return f"{outcome.ending} with {outcome.error.type}: {outcome.error.message}"
    return f"{outcome.ending} with {outcome.payload}"
