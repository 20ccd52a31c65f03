"""One run replayed step by step: it stops at calls, lines, facts and where code and history differ.

Only workflow code is executed and nothing is written: the history answers the calls of the code, or they get no answer.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Literal

import msgspec

from holdfast.context.api import Context
from holdfast.contract.rows import EntryRow
from holdfast.definitions import Registry
from holdfast.histories.judging import NotingJournal
from holdfast.histories.misfits import CallLine
from holdfast.histories.recorded import RecordedRun, unbegun
from holdfast.payloads.errors import error_text
from holdfast.replay.entry import FACTS, KINDS
from holdfast.replay.execution import Execution
from holdfast.replay.loop import RunTask, is_done
from holdfast.replay.turn import Ending, Outcome
from holdfast.replay.verbs import Verb

Resume = Literal["go", "call", "fact", "quit"]
"""How it goes on after a stop: to the next place that was named, call, or fact; or to the end without stopping."""

_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_ASYNCIO = os.path.join(os.path.dirname(asyncio.__file__), "")
_DEEPEST = 20
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200


class CodeFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A function of the user's that is being run or waits, with its variables as texts."""

    file: str
    line: int
    function: str
    text: str
    variables: dict[str, str]


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the code made and that has no result yet; `recorded` says whether history has one later on."""

    path: str
    kind: str
    recorded: bool


class WaitingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task of the run, where it is, and what its `await` waits for."""

    name: str
    waits_for: str
    frames: list[CodeFrame]


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replay stands."""

    kind: Literal["call", "line", "fact", "divergence", "end"]
    said: str
    frames: list[CodeFrame]
    """The code that is being run, innermost last; none between two facts."""
    open: list[OpenCall]
    tasks: list[WaitingTask]


class Breaks(msgspec.Struct, kw_only=True):
    """Where to stop: at calls by their path or name, at lines of files, and where code and history part."""

    calls: set[str] = msgspec.field(default_factory=set)
    lines: set[tuple[str, int]] = msgspec.field(default_factory=set)
    divergence: bool = True


class Debugger:
    """Replays one run and asks at each stop how to go on.

    Not for use inside a task of an event loop: a turn cannot be driven there.
    """

    def __init__(
        self, recorded: RecordedRun, registry: Registry, ask: Callable[[Stop], Resume], breaks: Breaks
    ) -> None:
        self._recorded = recorded
        self._registry = registry
        self._ask = ask
        self.breaks = breaks
        self._resume: Resume = "go" if breaks.calls or breaks.lines else "call"
        self._facts = [row for row in recorded.entries if row.kind in FACTS]
        self._told = 0

    def go_on(self) -> None:
        """Do not stop at the first call."""
        self._resume = "go"

    def run(self) -> Stop:
        """Replay the run and return where it stands when its history ends.

        Raises:
            UnknownWorkflow: the code at hand does not have its workflow.
            BadInput: its input cannot be read.
        """
        recorded, registry = self._recorded, self._registry
        workflow = registry.get(recorded.workflow, recorded.version)
        self._execution = execution = unbegun(recorded, workflow, registry.errors)
        execution.guarded = False  # a person at a prompt reads files and waits
        journal = DebugJournal(execution.journal.run, execution.loop, registry.errors)
        journal.activities, journal.debugger = registry.activities, self
        execution.journal = journal
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            turn = execution.begin_some(recorded.entries, (), None, self._after_fact)
        finally:
            sys.settrace(before)
        try:
            assert turn is not None
            return self._stop("end", _ended(turn.outcome), None)
        finally:
            execution.drop()

    def called(self, call: CallLine) -> None:
        """Stop at a call, if it is one to stop at."""
        name = call.path.rpartition("/")[2].partition("#")[0]
        if self._resume == "call" or (self._resume != "quit" and {call.path, name} & self.breaks.calls):
            self._pause("call", f"the code calls {call.path} ({call.kind})", sys._getframe(2))

    def parted(self, path: str, recorded: str, current: str) -> None:
        """Stop before code and history part."""
        if self.breaks.divergence and self._resume != "quit":
            said = f"here they part: at {path} history has {recorded}; the code has {current}"
            self._pause("divergence", said, sys._getframe(2))

    def _after_fact(self) -> bool:
        applied = len(self._facts) - len(self._execution.journal.past.facts)
        if self._resume == "fact" and applied > self._told and applied <= len(self._facts):
            self._pause("fact", f"the code was told {self._fact(self._facts[applied - 1])}", None)
        self._told = applied
        return False

    def _fact(self, row: EntryRow) -> str:
        return f"{KINDS[row.kind].word} of {self._execution.journal.names.path(row.location)} (entry {row.seq})"

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Follow the lines of a file that has one to stop at; asked whenever code is entered, or goes on."""
        return self._trace_lines if self._lines_of(frame) else None

    def _trace_lines(self, frame: FrameType, event: str, argument: Any) -> Any:
        line = frame.f_lineno
        if event == "line" and self._resume != "quit" and line in self._lines_of(frame):
            self._pause("line", f"before line {line} of {frame.f_code.co_filename}", frame)
        return self._trace_lines

    def _lines_of(self, frame: FrameType) -> list[int]:
        file = frame.f_code.co_filename
        return [line for name, line in self.breaks.lines if file == name or file.endswith(os.sep + name)]

    def _pause(self, kind: Any, said: str, frame: FrameType | None) -> None:
        tracing = sys.gettrace()
        sys.settrace(None)
        try:
            self._resume = self._ask(self._stop(kind, said, frame))
        finally:
            sys.settrace(tracing)

    def _stop(self, kind: Any, said: str, frame: FrameType | None) -> Stop:
        journal = self._execution.journal
        ends = {row.location for row in journal.past.facts}
        open_calls = [
            OpenCall(path=journal.names.path(at), kind=verb.word, recorded=at in ends)
            for at, verb in journal.open.items()
        ]
        running = asyncio.current_task(self._execution.loop) if frame is not None else None  # type: ignore[arg-type]  # a RunLoop
        tasks = [_task(task, journal) for task in self._execution.loop.live_tasks() if task is not running]
        return Stop(kind=kind, said=said, frames=_stack(frame), open=open_calls, tasks=tasks)


class DebugJournal(NotingJournal):
    """A journal that tells a debugger of each call before it is answered, and of what does not fit."""

    __slots__ = ("debugger",)
    debugger: Debugger

    def _note(self, location: str, kind: str) -> None:
        noted = len(self.calls)
        super()._note(location, kind)
        if len(self.calls) > noted:
            self.debugger.called(self.calls[-1])

    def mismatch(self, location: str, recorded: str, current: str, advice: str = "") -> None:
        if self.violation is None:
            self.debugger.parted(self.names.path(location), recorded, current)
        super().mismatch(location, recorded, current, advice)


def _ended(outcome: Outcome | None) -> str:
    if outcome is None:
        return "the history ends here, and the code waits"
    if outcome.error is not None:
        word = "is blocked" if outcome.ending is Ending.BLOCKED else str(outcome.ending)
        return f"the run {word}: {outcome.error.type.rpartition('.')[2]}: {outcome.error.message}"
    return f"the run {outcome.ending}: {_cut(outcome.payload or '')}"


def _cut(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}..."


# What is seen of code.


def _stack(frame: FrameType | None) -> list[CodeFrame]:
    """Return the user's functions that are being run, outermost first."""
    found: list[CodeFrame] = []
    while frame is not None and frame.f_code is not _DRIVE:
        if _is_users(frame):
            found.append(_frame(frame))
        frame = frame.f_back
    return found[::-1] if frame is not None else []


_DRIVE = Execution._drive.__code__


def _is_users(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith((_PACKAGE, _ASYNCIO, "<frozen"))


def _frame(frame: FrameType) -> CodeFrame:
    file = frame.f_code.co_filename
    return CodeFrame(
        file=file,
        line=frame.f_lineno,
        function=frame.f_code.co_qualname,
        text=linecache.getline(file, frame.f_lineno).strip(),
        variables={name: shown(value) for name, value in frame.f_locals.items()},
    )


def shown(value: Any) -> str:
    """Return a value as a short text, whatever its `__repr__` does; a call that has no result yet by its path."""
    if isinstance(value, Context):
        return "<the context of the run>"
    if isinstance(value, Verb):
        return f"<{value.word} {value.journal.names.path(value.location)}, {'done' if is_done(value) else 'open'}>"
    try:
        return _SHORT.repr(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {error_text(error)}>"


def _task(task: RunTask, journal: Any) -> WaitingTask:
    frames = [_frame(frame) for frame in _chain(task.get_coro()) if _is_users(frame)]
    return WaitingTask(name=task.get_name(), waits_for=_waits_for(task, journal), frames=frames)


def _chain(coro: Any) -> Iterator[FrameType]:
    """Yield the frames of a coroutine and of what it awaits, outermost first."""
    for _ in range(_DEEPEST):
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None) or getattr(coro, "ag_frame", None)
        if frame is None:
            return
        yield frame
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None) or getattr(coro, "ag_await", None)


def _waits_for(task: RunTask, journal: Any) -> str:
    waiter = getattr(task, "_fut_waiter", None)  # asyncio's own
    if waiter is None:
        return "its turn"
    return " and ".join(_named(each, journal) for each in _members(waiter)) or "nothing"


def _members(waiter: Any) -> Iterable[Any]:
    """Return what a gather waits for, one by one, or what is waited for itself."""
    children = getattr(waiter, "_children", None)
    return [each for each in children if not each.done()] if children else [waiter]


def _named(waiter: Any, journal: Any) -> str:
    if isinstance(waiter, Verb):
        path = journal.names.path(waiter.location)
        own = path.rpartition("/")[2].partition(" ")[0].partition("#")[0]
        return path if own == waiter.word else f"{waiter.word} {path}"
    if isinstance(waiter, asyncio.Task):
        return f"task {waiter.get_name()}"
    timer = journal.loop.next_timer()
    return "a future of asyncio" if timer is None else "a future or timer of asyncio"
