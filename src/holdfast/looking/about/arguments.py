"""The arguments of a step: as they were recorded, or as present code passes them again in a replay."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from holdfast.context.steps import StepVerb, arguments_of
from holdfast.contract.rows import RunRow
from holdfast.contract.store import Store
from holdfast.definitions import Registry
from holdfast.engine.views.steps import steps_of
from holdfast.errors import BadInput, HoldfastError
from holdfast.histories.recorded import RecordedRun, bring_to_its_end, recorded_run, unbegun
from holdfast.looking.facts import aside
from holdfast.looking.source import perilous
from holdfast.looking.times import span
from holdfast.looking.views import StepView
from holdfast.payloads import codec
from holdfast.policy import Retry


class ArgumentsView(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a step by the names of its parameters, and how they are known; `said` is why they are not."""

    run: str
    step: str
    source: Literal["recorded", "replayed", "unknown"]
    arguments: Any = None
    """An object, null where they are not known."""
    said: str = ""
    retry: str = ""
    """How patiently the code at hand tries it again, in words: `2 s x 2, at most 5 min, 8 attempts`."""
    queue: str = ""
    """Of the code at hand: the queue in which its attempts wait for a worker, and the limit under which they run."""
    limit: str = ""
    timeout: timedelta | None = None
    """How long an attempt may take, and how long it may be silent."""
    heartbeat_timeout: timedelta | None = None


class StepDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All there is of one step of a run."""

    run: str
    step: StepView
    arguments: ArgumentsView


async def step_arguments(store: Store, row: RunRow, step: str, code: Registry | None) -> ArgumentsView:
    """Return what `Desk.arguments` does."""
    entries = await store.history(row.key)
    steps = await aside(len(entries), lambda: steps_of(row.id, entries, {}, row.ended, row.generation))
    known = {each.path: each for each in steps}
    if step not in known:
        near = get_close_matches(step, known, 1)
        raise BadInput(f"run {row.id} has called no step {step!r}{f'; did you mean {near[0]}?' if near else ''}")
    recorded = known[step].arguments
    called: StepVerb | str = "they are not recorded, and the code of the workflow is not at hand here to replay it"
    if peril := perilous(row):
        called = f"they are not recorded; {peril}"
    elif code is not None and row.workflow in code.names():
        # A turn cannot be driven from inside a task, and a long history takes a while.
        called = await asyncio.to_thread(_called, recorded_run(row, entries), row.version, code, step)
    told = ArgumentsView(run=row.id, step=step, source="unknown", **_options(called))
    if recorded is not None:
        return replace(told, source="recorded", arguments=dict(recorded))
    found = await asyncio.to_thread(_given, called) if not isinstance(called, str) else called
    if isinstance(found, str):
        return replace(told, said=found)
    return replace(told, source="replayed", arguments=found)


def _options(called: StepVerb | str) -> dict[str, Any]:
    """Return how the code at hand runs a step, as far as a person asks who sees it wait."""
    if isinstance(called, str):
        return {}
    options = called.activity.settings
    return {
        "retry": retry_words(options.retry),
        "queue": options.queue or "",
        "limit": options.limit or "",
        "timeout": options.timeout,
        "heartbeat_timeout": options.heartbeat_timeout,
    }


def retry_words(retry: Retry) -> str:
    """Return how patiently a step is tried again, in words; empty for one that is tried once."""
    if retry.max_attempts == 1:
        return ""
    grows = f" x {retry.coefficient:g}" if retry.coefficient != 1 else ""
    most = retry.max_interval if grows and retry.max_interval is not None else None
    limit = f", at most {_span(most)}" if most is not None else ""
    tries = f", {retry.max_attempts:,} attempts" if retry.max_attempts is not None else ", without end"
    return f"{_span(retry.initial_interval)}{grows}{limit}{tries}"


def _span(length: timedelta) -> str:
    return span(length // timedelta(microseconds=1))


def _called(recorded: RecordedRun, version: str, code: Registry, step: str) -> StepVerb | str:
    """Return the call of a step, or why it is not known; nothing is executed but workflow code."""
    try:
        execution = unbegun(recorded, code.get(recorded.workflow, version), code.errors)
    except HoldfastError as error:
        return f"they are not recorded, and the code at hand does not fit: {error}"
    journal = execution.journal
    journal.activities = code.activities
    journal.open = calls = _Calls(step, journal.names.path)
    try:
        bring_to_its_end(execution, recorded)
    except HoldfastError as error:
        if calls.found is None:
            return f"they are not recorded, and the code at hand does not fit: {error}"
    finally:
        execution.drop()
    if calls.found is None:
        return "they are not recorded, and the replay does not come to this step: its history was cut"
    return calls.found


def _given(called: StepVerb) -> dict[str, Any] | str:
    """Return the arguments of a call, or why they are not known."""
    text = arguments_of(called.activity.function, called.args, called.kwargs)
    return codec.decode(text) if text is not None else "they are no JSON"


class _Calls(dict[str, Any]):
    """The calls that are open, of which that of one step is kept when it is made."""

    def __init__(self, step: str, path: Any) -> None:
        super().__init__()
        self.found: StepVerb | None = None
        self._step = step
        self._path = path

    def __setitem__(self, location: str, verb: Any) -> None:
        if isinstance(verb, StepVerb) and self._path(location) == self._step:
            self.found = verb
        super().__setitem__(location, verb)
