"""Making runs in memory: a new run, one continued from its history, a new life, or one that is only looked at."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.clock import Instant, micros
from holdfast.context.code import WorkflowCode
from holdfast.contract.rows import Claim, EntryRow, RunRow
from holdfast.contract.turns import NewRun
from holdfast.definitions import Registry, Workflow
from holdfast.engine.runs.resident import Resident
from holdfast.engine.settings import Settings
from holdfast.replay.execution import Execution
from holdfast.replay.journal import RunInfo
from holdfast.replay.loop import Handle


class RunLoader:
    """Makes runs of the workflows that an engine knows."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._guarded = settings.development
        self._grace = micros(settings.cancel_grace)
        self._records = settings.record_arguments
        self._trails = settings.step_trail
        self._propagate = settings.propagate_child_failures
        self._ready: deque[Handle] = deque()

    def new(self, run: NewRun, key: int, workflow: Workflow[Any, Any]) -> Resident:
        """Return a run that begins now."""
        timeout = run.options.timeout
        deadline = run.at + timeout if timeout is not None else None
        info = RunInfo(run.id, workflow.name, 0, run.seed, key, 0, deadline)
        resident = Resident(run.id, key, 1, workflow, self._execution(info, workflow, run.input, run.at), self._grace)
        resident.created = run.at
        return resident

    def claimed(
        self, claim: Claim, workflow: Workflow[Any, Any], history: Sequence[EntryRow], now: Instant
    ) -> Resident:
        """Return a claimed run, to be brought to where its history ends."""
        info = RunInfo(claim.id, workflow.name, claim.generation, claim.seed, claim.key, claim.reopens, claim.deadline)
        begun = claim.begins or claim.created
        if claim.generation:
            begun = history[0].at if history else now
        execution = self._execution(info, workflow, claim.input, begun)
        resident = Resident(claim.id, claim.key, claim.epoch, workflow, execution, self._grace)
        resident.child = claim.parent is not None
        resident.created = claim.created
        return resident

    def renewed(self, resident: Resident, encoded: str, first: Sequence[EntryRow]) -> Resident:
        """Return the next life of a run, whose first entries are durable."""
        info = resident.execution.journal.run._replace(generation=resident.generation + 1)
        execution = self._execution(info, resident.workflow, encoded, first[0].at)
        renewed = Resident(resident.id, resident.key, resident.epoch, resident.workflow, execution, self._grace)
        renewed.seen = resident.seen
        renewed.child = resident.child
        renewed.created = resident.created
        renewed.row_stale = True
        return renewed

    def unreadable(self, claim: Claim) -> Resident:
        """Return a stand-in for a run that cannot even begin, enough to say so."""
        info = RunInfo(claim.id, claim.workflow, claim.generation, claim.seed, claim.key)
        workflow = self._registry.get(claim.workflow)
        execution = Execution(info, WorkflowCode(workflow, (), {}), self._ready, claim.created, {}, False)
        return Resident(claim.id, claim.key, claim.epoch, workflow, execution, 0)

    def look_into(self, row: RunRow, history: Sequence[EntryRow]) -> Execution:
        """Return a run that is to be replayed only to be asked, and dropped; nothing of it is committed."""
        workflow = self._registry.get(row.workflow, row.version)
        info = RunInfo(
            row.id, workflow.name, row.generation, row.seed, row.key, row.reopens, row.deadline, looked_at=True
        )
        begun = history[0].at if row.generation and history else row.begins or row.created
        return self._execution(info, workflow, row.input, begun)

    def _execution(self, info: RunInfo, workflow: Workflow[Any, Any], encoded: str, begun: Instant) -> Execution:
        trail = self._trails or workflow.step_trail
        if self._records or trail or not self._propagate:
            info = info._replace(record_arguments=self._records, step_trail=trail, propagate=self._propagate)
        args, kwargs = workflow.decode_input(encoded)
        code = WorkflowCode(workflow, args, kwargs)
        execution = Execution(info, code, self._ready, begun, self._registry.errors, self._guarded)
        execution.journal.activities = self._registry.activities
        return execution
