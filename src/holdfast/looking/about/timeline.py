"""The timeline of a run: from facts of its history to one row for each call, with its attempts, waits and messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from holdfast.clock import to_datetime
from holdfast.contract.rows import EntryRow, LetterFilter, RunRow
from holdfast.contract.store import Store
from holdfast.looking.facts import aside
from holdfast.looking.views import EntryView
from holdfast.payloads import codec

MOST_FACTS = 10_000
"""Of how many facts a timeline is made at most."""


class StretchView(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time of a call: done, failed, lost, running, wait, child or backoff; without `end` it goes on."""

    begin: datetime
    end: datetime | None = None
    state: str
    attempt: int = 0
    error: str = ""


class MarkView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that came or went."""

    at: datetime
    name: str


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """A call of workflow code, with its attempts, waits and messages as they lie in time."""

    path: str
    kind: str
    name: str
    status: str
    depth: int = 0
    begun_at: datetime
    ended_at: datetime | None = None
    next_at: datetime | None = None
    """When it is tried again, or gives up waiting."""
    attempts: int = 0
    note: str = ""
    error: str = ""
    bars: list[StretchView] = []
    marks: list[MarkView] = []


class CallList(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a run in the order of their first call; `partial`: of the newest facts alone."""

    run: str
    items: list[CallView]
    partial: bool = False


class MomentView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened: when, what, at which call of the run (empty: to the run itself), and more about it."""

    at: datetime
    what: str
    where: str = ""
    detail: Any = None


class MomentList(msgspec.Struct, frozen=True, kw_only=True):
    """All that happened to a run and was done to it, in order of time.

    With `partial` its newest facts alone, without what reopenings cut away.
    """

    run: str
    items: list[MomentView]
    partial: bool = False


def entry_views(rows: list[EntryRow], shown: set[int], archived: bool = False) -> list[EntryView]:
    """Return facts as they are shown, of those given the ones with these numbers; others name their calls."""
    from holdfast.engine.views.history import readable

    return [
        EntryView(
            seq=entry.seq,
            at=entry.at,
            kind=entry.kind,
            path=entry.path,
            data=codec.decode(entry.row.data),
            archived=archived,
        )
        for entry in readable(rows)
        if entry.seq in shown
    ]


def call_list(run_id: str, rows: list[EntryRow], shown: set[int], partial: bool) -> CallList:
    """Return what `Desk.calls` does, of facts that were read."""
    timeline = Timeline()
    timeline.take(entry_views(rows, shown))
    return CallList(run=run_id, items=[_call(row) for row in timeline.rows()], partial=partial)


def _call(row: CallRow) -> CallView:
    return CallView(
        path=row.path,
        kind=row.kind,
        name=row.name,
        status=row.status,
        depth=row.depth,
        begun_at=row.begun,
        ended_at=row.ended,
        next_at=row.next,
        attempts=row.attempts,
        note=row.note,
        error=row.error,
        bars=[
            StretchView(begin=bar.begin, end=bar.end, state=bar.state, attempt=bar.attempt, error=bar.error)
            for bar in row.bars
        ],
        marks=[MarkView(at=at, name=name) for at, name in row.marks],
    )


async def moment_list(
    store: Store, row: RunRow, facts: int, with_names: Callable[[int, list[EntryRow]], Awaitable[list[EntryRow]]]
) -> MomentList:
    """Return what `Desk.timeline` does."""
    from holdfast.engine.views.timeline import timeline

    rows = await store.history(row.key, newest=True, limit=facts + 1)
    partial = len(rows) > facts
    named = await with_names(row.key, rows[1:]) if partial else rows
    acts, evidence = await store.audit(row.id), await store.evidence(row.id)
    letters = await store.letters(LetterFilter(run=row.id))
    archived = [] if partial else await store.history(row.key, archived=True)

    def made() -> list[MomentView]:
        return [
            MomentView(at=each.at, what=each.what, where=each.where, detail=each.detail or None)
            for each in timeline(row, named, acts, letters, evidence, archived)
        ]

    return MomentList(run=row.id, items=await aside(len(named) + len(archived), made), partial=partial)


@dataclass(slots=True)
class Bar:
    """A stretch of time of a call: done, failed, lost, running, wait, child or backoff; without `end` it goes on."""

    begin: datetime
    end: datetime | None
    state: str
    attempt: int = 0
    error: str = ""


@dataclass(slots=True)
class CallRow:
    """A call of workflow code: a step, a sleep, a message that is waited for, a child, a branch, a loop."""

    path: str
    kind: str
    name: str
    begun: datetime
    status: str = "running"
    ended: datetime | None = None
    next: datetime | None = None
    """When it is tried again, or gives up waiting."""
    bars: list[Bar] = field(default_factory=list)
    marks: list[tuple[datetime, str]] = field(default_factory=list)
    """Messages that came or went, and when."""
    attempts: int = 0
    note: str = ""
    error: str = ""
    depth: int = 0
    left: set[str] = field(default_factory=set)
    """Branches that have not ended."""

    def close(self, at: datetime, state: str, error: str = "") -> None:
        """End what is under way."""
        if self.bars and self.bars[-1].end is None:
            self.bars[-1].end, self.bars[-1].state, self.bars[-1].error = at, state, error

    def over(self, at: datetime, status: str) -> None:
        """End the call."""
        self.status, self.ended, self.next = status, at, None

    def again(self, at: datetime, until: datetime | None) -> None:
        """Wait for the next attempt."""
        self.next = until
        self.bars.append(Bar(at, until, "backoff"))


class Timeline:
    """The rows of a run, as facts come."""

    def __init__(self) -> None:
        self._rows: dict[str, CallRow] = {}
        self.seq = 0
        """The number of the last fact that was taken."""

    def take(self, entries: Iterable[EntryView]) -> None:
        """Add facts that follow those that were taken before."""
        for entry in entries:
            self.seq = entry.seq
            given = entry.data if isinstance(entry.data, list) else []
            begin = _BEGINS.get(entry.kind)
            if begin is not None:
                row = self._rows.get(entry.path)
                if row is None:
                    row = CallRow(entry.path, begin[0], entry.path.rpartition("/")[2], entry.at)
                    row.depth = self._depth(entry.path)
                    self._rows[entry.path] = row
                begin[1](row, entry.at, _Given(given))
            elif entry.kind == "branch ended":
                self._branch(entry, given)
            elif (known := self._rows.get(entry.path)) is not None and entry.kind in _GOES_ON:
                _GOES_ON[entry.kind](known, entry.at, _Given(given))

    def _branch(self, entry: EntryView, given: list[Any]) -> None:
        above, _, name = entry.path.rpartition("/")
        parent = self._rows.get(above)
        if parent is not None and name in parent.left:
            parent.left.discard(name)
            if not parent.left:
                parent.over(entry.at, "failed" if given[:1] == ["failed"] else "completed")

    def _depth(self, path: str) -> int:
        parts = path.split("/")
        return sum("/".join(parts[:n]) in self._rows for n in range(1, len(parts)))

    def rows(self) -> list[CallRow]:
        """Return the calls in the order of their first call, those that undo others after all others."""
        return sorted(self._rows.values(), key=lambda row: "undo#" in row.path)


class _Given:
    """What a fact says, by position; what it leaves out is None."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __getitem__(self, place: int) -> Any:
        return self._values[place] if place < len(self._values) else None

    def number(self, place: int, otherwise: int) -> int:
        return self[place] if isinstance(self[place], int) else otherwise

    def names(self, place: int) -> list[str]:
        return [str(each) for each in self[place]] if isinstance(self[place], list) else []

    def moment(self, place: int) -> datetime | None:
        return to_datetime(self[place]) if isinstance(self[place], int) else None

    def error(self, place: int) -> str:
        said = self[place]
        if not isinstance(said, dict):
            return ""
        return f"{str(said.get('type', '')).rpartition('.')[2]}: {said.get('message', '')}"


_Happens = Callable[[CallRow, datetime, _Given], None]


def _step(row: CallRow, at: datetime, given: _Given) -> None:
    row.attempts = given.number(1, 1)
    row.bars.append(Bar(at, None, "running", row.attempts))


def _attempt(row: CallRow, at: datetime, given: _Given) -> None:
    row.attempts, row.status, row.next = given.number(0, row.attempts + 1), "running", None
    if row.bars and row.bars[-1].state == "backoff":
        row.bars[-1].end = at
    row.bars.append(Bar(at, None, "running", row.attempts))


def _attempt_failed(row: CallRow, at: datetime, given: _Given) -> None:
    row.error, row.status = given.error(1), "waiting"
    row.close(at, "failed", row.error)
    row.again(at, given.moment(2))


def _attempt_lost(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "lost", str(given[1] or ""))
    row.status = "waiting"
    row.again(at, None)


def _skipped(row: CallRow, at: datetime, given: _Given) -> None:
    if row.bars and row.bars[-1].end is None:
        row.bars.pop()
    row.status, row.note = "skipped", str(given[0] or "")
    row.again(at, given.moment(1))


def _step_completed(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "done")
    row.over(at, "completed")


def _step_failed(row: CallRow, at: datetime, given: _Given) -> None:
    row.error = given.error(1)
    row.close(at, "failed", row.error)
    row.over(at, "failed")


def _cancelled(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "lost")
    row.over(at, "cancelled")


def _sleep(row: CallRow, at: datetime, given: _Given) -> None:
    row.status, row.next = "waiting", given.moment(0)
    row.bars.append(Bar(at, None, "wait"))


def _timer(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "wait")
    row.over(at, "completed")
    row.note = "gave up" if row.kind == "message" else ""


def _receive(row: CallRow, at: datetime, given: _Given) -> None:
    row.status, row.name, row.next = "waiting", " or ".join(given.names(0)) or row.name, given.moment(1)
    row.bars.append(Bar(at, None, "wait"))


def _message(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "wait")
    row.over(at, "completed")
    row.marks.append((at, str(given[0])))
    row.note = f"from {given[3]}" if given[3] else ""


def _child(row: CallRow, at: datetime, given: _Given) -> None:
    row.name = str(given[0] or row.name)
    if given[2]:
        row.over(at, "failed")
    else:
        row.bars.append(Bar(at, None, "child"))


def _child_ended(row: CallRow, at: datetime, given: _Given) -> None:
    row.close(at, "child")
    row.over(at, str(given[0] or "completed"))
    row.error = given.error(2)


def _branches(row: CallRow, at: datetime, given: _Given) -> None:
    row.left = set(given.names(0))


def _race_won(row: CallRow, at: datetime, given: _Given) -> None:
    row.over(at, "completed")
    row.note = f"won by {given[0]}"


def _loop(row: CallRow, at: datetime, given: _Given) -> None:
    """It has begun, and nothing more is known of it."""


def _loop_state(row: CallRow, at: datetime, given: _Given) -> None:
    row.note = f"iteration {given[0]}"


def _loop_ended(row: CallRow, at: datetime, given: _Given) -> None:
    row.over(at, "completed")
    row.note = f"{given[0]} iterations"


def _send(row: CallRow, at: datetime, given: _Given) -> None:
    row.name = f"{given[1]} to {given[0]}" if row.kind == "send" else str(given[0])
    row.over(at, "completed")
    row.marks.append((at, row.name))


_BEGINS: dict[str, tuple[str, _Happens]] = {
    "step": ("step", _step),
    "sleep": ("sleep", _sleep),
    "receive": ("message", _receive),
    "child": ("child", _child),
    "join": ("join", _branches),
    "race": ("race", _branches),
    "loop": ("loop", _loop),
    "send": ("send", _send),
    "publish": ("publish", _send),
}
_GOES_ON: dict[str, _Happens] = {
    "attempt": _attempt,
    "attempt failed": _attempt_failed,
    "attempt lost": _attempt_lost,
    "skipped": _skipped,
    "step completed": _step_completed,
    "step failed": _step_failed,
    "cancelled": _cancelled,
    "timer fired": _timer,
    "message": _message,
    "child ended": _child_ended,
    "race won": _race_won,
    "loop state": _loop_state,
    "loop ended": _loop_ended,
}
