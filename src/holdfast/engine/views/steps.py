"""Steps as they are shown: one record for each step of a run, made from its history."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any

from holdfast.changes import step_name
from holdfast.clock import Instant, to_datetime
from holdfast.context.references import find_activity
from holdfast.context.steps import key_for
from holdfast.contract.rows import EntryRow
from holdfast.definitions import Activity, Registry, Workflow
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.cuts import threw
from holdfast.replay.entry import OVER_LIMIT, STOPPED, UNCOUNTED, Earlier, decode_entry
from holdfast.replay.location import is_ending, is_undoing
from holdfast.replay.past import names_of

_OVER = frozenset({"completed", "failed", "cancelled"})
_COMPENSATION = entries.CompensationAdded.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step of a run as its history tells it.

    `status` is pending (it will be attempted again as soon as a worker has the run), running, waiting (for its next
    attempt), skipped (its condition said not now), completed, failed or cancelled. `attempts` counts those begun, the
    present one included; `failures` (those that threw or timed out) and `skips` count over all of them, whatever was
    reopened in between.
    `started_at` is the start of the present or last attempt, `last_attempt_at` when the last one finished,
    `next_attempt_at` when a waiting or skipped step goes on. `error` stays that of the last attempt that failed.
    """

    path: str
    name: str
    status: str
    attempts: int
    failures: int
    skips: int
    started_at: datetime | None
    first_started_at: datetime | None
    last_attempt_at: datetime | None
    finished_at: datetime | None
    next_attempt_at: datetime | None
    result: Any = field(repr=False)
    error: ErrorData | None
    idempotency_key: str
    """That of run and step, also where the activity makes one of its own."""
    compensation: bool
    heartbeat_at: datetime | None = None
    """When the body of the present attempt last reported progress."""
    progress: Any = field(default=None, repr=False)
    """What it said."""
    run_id: str = ""
    created_at: datetime | None = None
    """When the code called it."""
    priority: int | None = None
    max_attempts: int | None = None
    timeout: timedelta | None = None
    """As the activity says that it is run with now, and so are the two before; None also where this engine cannot tell
    the activity from the name of the step."""
    reason: str = ""
    """Why a step that is skipped does not begin: what its condition said, or the limit that it waits for."""
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    """What it was called with, by name, where that is recorded: `@activity(record_arguments=True)`, or for all."""


ActivityOf = Callable[[str], Activity[..., Any] | None]
"""Returns the activity that a step of this name runs, None where that is not known."""


def steps_of(
    run_id: str,
    rows: list[EntryRow],
    beats: Mapping[str, tuple[Instant, str]] = MappingProxyType({}),
    ended: Instant | None = None,
    generation: int = 0,
    activity_of: ActivityOf = lambda name: None,
) -> list[Step]:
    """Return the steps of a history in order of their first call.

    `beats` says when they last reported progress. Of a run that has `ended` no step is still under way.
    """
    names = names_of(rows)
    calls = {row.location: decode_entry(row.kind, row.data).where for row in rows if row.kind == _COMPENSATION}
    cut: dict[str, Earlier] = {}
    undone: dict[str, int] = {}
    steps: dict[str, Step] = {}
    kept: dict[str, EntryRow] = {}
    """What came of attempts, before their callbacks were told."""
    for row in rows:
        if row.kind == entries.EndKept.kind:
            kept[row.location] = row
        elif row.location in kept:
            del kept[row.location]
        if row.kind == entries.Reopened.kind:
            mark = decode_entry(row.kind, row.data)
            cut, undone = mark.cut or cut, mark.undone or undone
        if row.kind == entries.StepBegun.kind:
            path = names.path(row.location)
            steps[row.location] = _begun(path, row, cut.get(path, Earlier()))
        elif row.location in steps and (change := _CHANGES.get(row.kind)):
            step = steps[row.location]
            steps[row.location] = replace(step, **change(step, decode_entry(row.kind, row.data), to_datetime(row.at)))
    for location, row in kept.items():
        if location in steps:
            step, mark = steps[location], decode_entry(row.kind, row.data)
            steps[location] = replace(step, **_CHANGES[mark.what](step, mark.kept(), to_datetime(row.at)))
    for location, step in steps.items():
        named = names.path(calls.get(location.partition("/")[0]) or location)
        settings = _settings(activity_of(step.name))
        key = key_for(run_id, generation, named, undone)
        steps[location] = replace(step, run_id=run_id, idempotency_key=key, **settings)
    for location, (at, detail) in beats.items():
        if location in steps:
            steps[location] = replace(steps[location], heartbeat_at=to_datetime(at), progress=codec.decode(detail))
    if ended is not None:
        over = {"status": "cancelled", "finished_at": to_datetime(ended), "next_attempt_at": None}
        steps = {
            location: step if step.status in _OVER else replace(step, **over)  # type: ignore[arg-type]
            for location, step in steps.items()
        }
    return list(steps.values())


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come.

    Of a sequence or graph: its present activity, counted from zero, and its name. Of code: what it said with
    `ctx.progress(done, of)`, or the number of steps that have completed; the name is that of the step under way.
    """

    index: float
    name: str
    total: float | None
    """None for code that has not said of how much."""
    fraction: float | None
    """Of a sequence or graph (index + 1) / total: the present activity counts as if it were done, so that the last one
    shows 1.0. Of code index / total.
    """
    done: bool
    """Whether nothing is left to do."""
    steps: int = 0
    """How many steps have completed, of those that its history still has."""
    reported: Any = field(default=None, repr=False)
    """What the step under way said last with `heartbeat(...)`."""


def progress_of_code(rows: list[EntryRow], steps: list[Step], ended: bool) -> Progress:
    """Return how far a run of code has come."""
    own = [step for step in steps if not step.compensation and not step.path.startswith("end#")]
    completed = sum(step.status == "completed" for step in own)
    now = next((step for step in reversed(own) if step.status not in _OVER), None)
    noted = next((row for row in reversed(rows) if row.kind == entries.ProgressNoted.kind), None)
    said = decode_entry(noted.kind, noted.data) if noted is not None else entries.ProgressNoted(completed)
    fraction = said.done / said.of if said.of else None
    name, reported = (now.name, now.progress) if now is not None else ("", None)
    return Progress(said.done, name, said.of, fraction, ended, completed, reported)


def progress_of(workflow: Workflow[Any, Any], steps: list[Step]) -> Progress | None:
    """Return how far a run has come, by the names of its steps; None for a workflow that was not declared as data.

    The present activity of a sequence is the first that has begun and not completed, otherwise the one after the last
    that has; one that the list no longer has counts where the run will go on after it. In a graph the index is the
    number of nodes that have completed.
    """
    places = {name: place for place, name in enumerate(workflow.activities)}
    if not places:
        return None
    own = [step for step in steps if step.path == step.name and not step.compensation]
    known = [places[step.name] for step in own if step.name in places]
    completed = {step.name for step in own if step.status == "completed"} & places.keys()
    following = known[-1] + 1 if known else 0
    begun = [step.name for step in own if step.status != "completed"]
    now = min(begun, key=lambda name: places.get(name, following), default=None)
    if not workflow.in_order:
        index = following = len(completed)
        now = now or next((name for name in places if name not in completed), None)
    else:
        index = places.get(now, following) if now is not None else following
    total = len(places)
    index = min(index, total - 1)
    name, done = now or workflow.activities[index], now is None and following == total
    reported = next((step.progress for step in own if step.name == name and step.status not in _OVER), None)
    return Progress(index, name, total, (index + 1) / total, done, len(completed), reported)


def state_of(input: str, rows: list[EntryRow]) -> dict[str, Any] | None:
    """Return what a sequence has accumulated, None if this is not the input of one.

    As it merges what its activities return: in the order of their calls, mappings only.
    """
    given = codec.decode(input)
    if not isinstance(given, dict) or given.keys() != {"input", "begin_at"} or not isinstance(given["input"], dict):
        return None
    state = dict(given["input"])
    results = {row.location: decode_entry(row.kind, row.data) for row in rows if row.kind == entries.StepCompleted.kind}
    for row in rows:
        if row.kind == entries.StepBegun.kind and row.location in results and not _after(row.location):
            result = codec.decode(bytes(results[row.location].result))
            state.update(result if isinstance(result, dict) else {})
    return state


def _after(location: str) -> bool:
    """Tell whether a step is none of the workflow's own: it undoes one, or is a hook."""
    return is_undoing(location) or is_ending(location)


def activities_of(registry: Registry, workflow: str, version: str) -> ActivityOf:
    """Return what finds the activities of a workflow by the names of their steps."""
    if workflow not in registry.names():
        return registry.activities.get
    definition = registry.get(workflow, version)
    listed = {activity.name: activity for activity in definition.listed}

    @cache
    def find(name: str) -> Activity[..., Any] | None:
        return listed.get(name) or find_activity(definition.function, name) or registry.activities.get(name)

    return find


def _settings(activity: Activity[..., Any] | None) -> dict[str, Any]:
    if activity is None:
        return {}
    settings = activity.settings
    return {
        "priority": settings.priority,
        "max_attempts": settings.retry.max_attempts,
        "timeout": settings.timeout or None,
    }


def _begun(path: str, row: EntryRow, earlier: Earlier) -> Step:
    at, call = to_datetime(row.at), decode_entry(row.kind, row.data)
    return Step(
        path=path,
        name=step_name(path),
        status="running",
        attempts=call.attempt,
        failures=earlier.failures,
        skips=earlier.skips,
        started_at=at,
        first_started_at=at,
        last_attempt_at=None,
        finished_at=None,
        next_attempt_at=None,
        result=None,
        error=None,
        idempotency_key="",
        compensation=is_undoing(row.location),
        created_at=at,
        arguments=codec.decode(bytes(call.arguments)),
    )


def _attempt_begun(step: Step, mark: entries.AttemptBegun, at: datetime) -> dict[str, Any]:
    return {
        "status": "running",
        "attempts": mark.attempt,
        "started_at": at,
        "first_started_at": step.first_started_at or at,
        "finished_at": None,
        "next_attempt_at": None,
        "reason": "",
    }


def _attempt_failed(step: Step, mark: entries.AttemptFailed, at: datetime) -> dict[str, Any]:
    return {
        **_ran(step, mark.attempt, at),
        "status": "waiting",
        "failures": step.failures + (not mark.error.postpones),
        "next_attempt_at": to_datetime(mark.retry_at),
        "error": mark.error,
    }


def _attempt_lost(step: Step, mark: entries.AttemptLost, at: datetime) -> dict[str, Any]:
    return {**_ran(step, mark.attempt, at), "status": "pending", "next_attempt_at": None}


def _attempt_skipped(step: Step, mark: entries.AttemptSkipped, at: datetime) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "status": "pending" if mark.reason == STOPPED else "skipped",
        "skips": step.skips + (not mark.reason.startswith(UNCOUNTED)),
        "next_attempt_at": to_datetime(mark.check_at),
        "reason": mark.reason,
    }
    in_line = mark.reason.startswith(OVER_LIMIT) and to_datetime(mark.check_at) <= at
    if mark.reason == STOPPED or in_line:  # nothing says when it begins
        changes["next_attempt_at"] = None
    if step.status == "running":  # what was counted at the call never ran
        ran = step.last_attempt_at is not None
        changes |= {"attempts": step.attempts - 1, "started_at": step.started_at if ran else None}
        changes |= {} if ran else {"first_started_at": None}
    return changes


def _completed(step: Step, fact: entries.StepCompleted, at: datetime) -> dict[str, Any]:
    result = codec.decode(bytes(fact.result))
    ended = _ran(step, fact.attempt, at)
    return {**ended, "status": "completed", "finished_at": at, "next_attempt_at": None, "result": result}


def _failed(step: Step, fact: entries.StepFailure, at: datetime) -> dict[str, Any]:
    return {
        **_ran(step, fact.attempt, at),
        "status": "failed",
        "failures": step.failures + threw(fact, entries.AttemptLost.kind if step.status == "pending" else None),
        "finished_at": at,
        "next_attempt_at": None,
        "error": fact.error,
    }


def _cancelled(step: Step, mark: entries.Cancelled, at: datetime) -> dict[str, Any]:
    return {"status": "cancelled", "finished_at": at, "next_attempt_at": None}


def _reopened(step: Step, mark: entries.Reopened, at: datetime) -> dict[str, Any]:
    counts = {
        "attempts": max(step.attempts, mark.step.attempt),
        "failures": step.failures + mark.step.failures,
        "skips": step.skips + mark.step.skips,
    }
    return {"status": "pending", "finished_at": None, "next_attempt_at": None, **counts}


def _ran(step: Step, attempt: int, at: datetime) -> dict[str, Any]:
    """Return what the end of an attempt says about it, whether or not its beginning was noted after a skip."""
    return {"attempts": max(attempt, step.attempts), "last_attempt_at": at}


_CHANGES: dict[int, Callable[[Step, Any, datetime], dict[str, Any]]] = {
    entries.AttemptBegun.kind: _attempt_begun,
    entries.AttemptFailed.kind: _attempt_failed,
    entries.AttemptLost.kind: _attempt_lost,
    entries.AttemptSkipped.kind: _attempt_skipped,
    entries.StepCompleted.kind: _completed,
    entries.ResultKept.kind: _completed,
    entries.StepFailure.kind: _failed,
    entries.Cancelled.kind: _cancelled,
    entries.Reopened.kind: _reopened,
}
