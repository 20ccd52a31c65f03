"""A run's input and history as a file, and its replay against present code."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, TypeVar

import msgspec

from holdfast.context.code import WorkflowCode
from holdfast.contract.rows import EntryRow, RunRow
from holdfast.definitions import Workflow
from holdfast.errors import BadInput, HistoryMismatch
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData, error_from_data
from holdfast.replay.entry import CALLS, FACTS, KINDS, Name, ProgressNoted
from holdfast.replay.execution import Execution
from holdfast.replay.journal import RunInfo
from holdfast.replay.turn import Ending, Outcome, Turn

R = TypeVar("R")
_OF_NO_CONSEQUENCE = (Name.kind, ProgressNoted.kind)
_NO_ERRORS: Mapping[str, type[BaseException]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run's input and history, to keep beside the tests and replay for ever."""

    id: str
    workflow: str
    input: str
    generation: int
    seed: int
    created: int
    entries: list[EntryRow]
    deadline: int | None = None
    reopens: int = 0
    version: str = ""
    """The version of the workflow that it was started with, empty where that was not recorded."""

    def to_json(self) -> str:
        """Return it as text for a file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordedRun:
        """Read what `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> RecordedRun:
        """Read what `holdfast record` wrote.

        Raises:
            BadInput: the file is no recording of a run.
            OSError: it cannot be read.
        """
        with open(path, "rb") as file:
            text = file.read()
        try:
            return cls.from_json(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadInput(
                f"{os.fspath(path)}: is no recording of a run, as `holdfast record` writes it: {error}"
            ) from None


def recorded_run(row: RunRow, entries: list[EntryRow]) -> RecordedRun:
    """Return a history, or its beginning, with what its run was begun with."""
    begun = entries[0].at if row.generation and entries else row.begins or row.created
    return RecordedRun(
        row.id,
        row.workflow,
        row.input,
        row.generation,
        row.seed,
        begun,
        entries,
        row.deadline,
        row.reopens,
        row.version,
    )


@dataclass(frozen=True, slots=True)
class Replayed(Generic[R]):
    """How far a history brings the code there is now: it waits, or it has ended, with an output or an error.

    `renewed`: it began again with `continue_as_new`.
    """

    status: Literal["waiting", "completed", "failed", "cancelled", "renewed"]
    output: R | None = None
    error: ErrorData | None = None


def replay(recorded: RecordedRun | str | os.PathLike[str], workflow: Workflow[..., R]) -> Replayed[R]:
    """Replay a history, or that of a file which `holdfast record` wrote, and return how far the workflow comes.

    Nothing is executed and nothing is written.

    Raises:
        HistoryMismatch: the code does not do what was recorded; the message shows both.
        BadInput: the file is no recording.
    """
    if not isinstance(recorded, RecordedRun):
        recorded = RecordedRun.from_file(recorded)
    execution = unbegun(recorded, workflow)

    def drive() -> Turn:
        try:
            return bring_to_its_end(execution, recorded)
        finally:
            execution.drop()

    # A turn cannot be driven from inside a task; in a thread of its own it may be called from an async test too.
    with ThreadPoolExecutor(1) as thread:
        turn = thread.submit(drive).result()
    return _replayed(turn.outcome, workflow)


def unbegun(
    recorded: RecordedRun,
    workflow: Workflow[Any, Any],
    errors: Mapping[str, type[BaseException]] = _NO_ERRORS,
    *,
    looked_at: bool = True,
) -> Execution:
    """Return the run before its first turn; `errors` are the classes that recorded errors come back as.

    With `looked_at` its code is replayed though it has ended; otherwise what an engine would go on with is.
    """
    args, kwargs = workflow.decode_input(recorded.input)
    info = RunInfo(
        recorded.id,
        workflow.name,
        recorded.generation,
        recorded.seed,
        0,
        recorded.reopens,
        recorded.deadline,
        looked_at=looked_at,
    )
    return Execution(info, WorkflowCode(workflow, args, kwargs), deque(), recorded.created, errors, True)


def bring_to_its_end(execution: Execution, recorded: RecordedRun) -> Turn:
    """Bring a run to where its history ends; raises HistoryMismatch as `replay` does."""
    turn = execution.begin(recorded.entries)
    if turn.outcome is not None and turn.outcome.ending is Ending.BLOCKED:
        assert turn.outcome.error is not None
        error = error_from_data(turn.outcome.error, {})
        raise error if isinstance(error, Exception) else HistoryMismatch(recorded.id, str(error))
    more = [row for row in turn.entries if row.kind not in _OF_NO_CONSEQUENCE]
    if more and recorded.entries and turn.outcome is None and more[0].kind not in FACTS:
        # A fact is a timer that is due in the very moment at which the history ends.
        calls = [row for row in more if row.kind in CALLS] or more
        asked = f"{KINDS[calls[0].kind].word} {execution.journal.names.path(calls[0].location)!r}"
        raise HistoryMismatch(
            recorded.id, f"run {recorded.id}: after its recorded history the code asks for more: {asked}"
        )
    return turn


def _replayed(outcome: Outcome | None, workflow: Workflow[..., R]) -> Replayed[R]:
    if outcome is None:
        return Replayed("waiting")
    if outcome.ending is Ending.COMPLETED:
        where = f"the result of workflow {workflow.name!r}"
        return Replayed("completed", codec.decode(outcome.payload or "null", workflow.result_type, where))
    if outcome.ending is Ending.RENEWED:
        return Replayed("renewed")
    return Replayed("failed" if outcome.ending is Ending.FAILED else "cancelled", error=outcome.error)
