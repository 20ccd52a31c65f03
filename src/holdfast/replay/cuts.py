"""Cuts: where an ended run goes on when it is reopened.

Everything from one entry of the history on is cut away, and the run continues from what is left. Any prefix of a
history is a consistent state, for it is what a crash there would have left; except where a loop has forgotten
iterations since: what it forgot is missing from the prefixes that end before its state.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.errors import CannotReopen
from holdfast.replay import entry as entries
from holdfast.replay.entry import UNCOUNTED, Earlier, decode_entry, encode_entry
from holdfast.replay.location import DEADLINE, is_undoing
from holdfast.replay.past import names_of

_OF_STEPS = entries.STEP_ENDS | {
    entries.StepBegun.kind,
    entries.AttemptBegun.kind,
    entries.AttemptFailed.kind,
    entries.AttemptLost.kind,
    entries.AttemptSkipped.kind,
    entries.Reopened.kind,
}
_NOT_COMPLETED = frozenset({"failed", "cancelled"})
_MAX_LISTED = 20


@dataclass(frozen=True)
class Cut:
    """Where a run is cut and what it then needs: facts with this `seq` and later ones go, `entries` are appended.

    `messages` were consumed by facts that go and are to be queued again. `children` ended failed or cancelled, are
    waited for again, and have to be reopened too. `unheard` are children whose end, if they have ended, found the run
    ended or no longer waiting: it has to be told, for it may wait for them again.
    """

    seq: int
    entries: list[EntryRow]
    messages: list[Message]
    children: tuple[str, ...]
    reason: str
    unheard: tuple[str, ...] = ()
    restarted: tuple[tuple[str, str], ...] = ()
    """Children whose start goes too, and the path of that call: the run starts them again, which takes another id."""


def cut_for_retry(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which a failed run tries again: what failed it, or the first step that was undone.

    Raises:
        CannotReopen: the run has forgotten too much to go on from there.
    """
    past = CutFinder(rows, run_id)
    points = past.failures() + past.undone()
    return past.cut(min(points, default=past.end()), "retry", at)


def cut_for_resume(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which a cancelled run goes on: its cancel request, or the first step that was undone.

    Raises:
        CannotReopen: the run has forgotten too much to go on from there.
    """
    past = CutFinder(rows, run_id)
    points = past.cancels() + past.undone()
    return past.cut(min(points, default=past.nothing()), "resume", at)


def cut_for_rerun(rows: list[EntryRow], path: str, at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which an ended run does the call at `path`, and all that came after it, again.

    It is earlier where something before the call must not stay: the failure that ended the run, its cancel request,
    the first step that was undone.

    Raises:
        CannotReopen: there is no such call, or the run has forgotten too much to go on from there.
    """
    past = CutFinder(rows, run_id)
    points = [past.named(path), *past.failures(), *past.cancels(), *past.undone()]
    return past.cut(min(points), "rerun", at)


def cut_for_all(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which an ended run does everything again that its present life did.

    Raises:
        CannotReopen: what an earlier life did was undone.
    """
    past = CutFinder(rows, run_id)
    past.undone()
    return past.cut(past.beginning(), "rerun", at)


class _Point(NamedTuple):
    seq: int
    reason: str


class CutFinder:
    """A history, indexed for the questions a cut asks."""

    def __init__(self, rows: list[EntryRow], run_id: str) -> None:
        self.rows = rows
        self.run_id = run_id
        self.names = names_of(rows)
        self.calls: dict[str, EntryRow] = {}
        self.compensations = [row for row in rows if row.kind == entries.CompensationAdded.kind]
        self.ends: dict[str, EntryRow] = {}
        self.facts: list[EntryRow] = []
        for row in rows:
            if row.kind in entries.CALLS:
                self.calls[row.location] = row
            elif row.kind in entries.FACTS:
                self.ends[row.location] = row
                self.facts.append(row)

    # Where to cut.

    def nothing(self) -> _Point:
        """Return the point after the last entry."""
        return _Point(self.rows[-1].seq + 1 if self.rows else 1, "nothing is done again")

    def beginning(self) -> _Point:
        """Return the point after what an earlier life left to this one."""
        for row in self.rows:
            carried = row.kind == entries.CompensationAdded.kind and not decode_entry(row.kind, row.data).where
            if row.kind not in (entries.Renewed.kind, entries.Reopened.kind) and not carried:
                return _Point(row.seq, "the beginning")
        return self.nothing()

    def end(self) -> _Point:
        """Return the point at which the run failed."""
        ended = self._last(entries.Ended)
        return _Point(ended.seq, "the end of the run, which its own code raised") if ended else self.nothing()

    def failures(self) -> list[_Point]:
        """Return the final failure of each call whose error ended the run, and the deadline it may have missed."""
        ended = self._last(entries.Ended)
        points = [_Point(self.ends[DEADLINE].seq, "the run's deadline")] if DEADLINE in self.ends else []
        for location in decode_entry(ended.kind, ended.data).failed if ended else ():
            call = self.calls.get(location)
            if call is None and location in self.ends:
                points.append(_Point(self.ends[location].seq, "an asyncio timeout"))
            failure = self._failure(call) if call is not None and not is_undoing(location) else None
            if call is not None and failure is not None:
                points.append(_Point(failure.seq, f"the failure of {self._describe(call)}"))
        return points

    def _failure(self, call: EntryRow) -> EntryRow | None:
        """Return what to cut so that a failed call is tried again."""
        end = self.ends.get(call.location)
        if call.kind == entries.StepBegun.kind:
            return end if end is not None and end.kind == entries.StepFailure.kind else None
        if call.kind == entries.ChildBegun.kind and not decode_entry(call.kind, call.data).refused:
            return end
        return call  # so that its deadline is set again, and its refusal forgotten

    def cancels(self) -> list[_Point]:
        """Return the request that stopped the run."""
        kind = entries.CancelRequested.kind
        return [_Point(row.seq, "the cancel request") for row in self.facts if row.kind == kind]

    def undone(self) -> list[_Point]:
        """Return what the compensations that ran undo: those that failed, too, which may have undone it.

        A compensation that undoes nothing in particular stands for all that was done after it was registered.
        """
        ran = {row.location.partition("/")[0] for row in self.calls.values() if is_undoing(row.location)}
        return [self._undone_by(row) for row in self.compensations if row.location in ran]

    def _undone_by(self, row: EntryRow) -> _Point:
        added = decode_entry(row.kind, row.data)
        if not added.where:  # an earlier life's
            raise CannotReopen(
                self.run_id,
                f"{self._run()} continued as new, and its compensations undid what it had done before that; "
                "that history is gone: start a new run",
            )
        call = self.calls.get(added.undoes)
        if call is None:  # it names none, or a loop has forgotten it
            return _Point(self._whole(row.seq), f"compensation {added.name!r}, which ran")
        end = self.ends.get(call.location) if call.kind == entries.StepBegun.kind else None
        return _Point((end or call).seq, f"{self._describe(call)}, which was undone")

    def _whole(self, seq: int) -> int:
        """Return an entry, or the beginning of the outermost loop that has forgotten something before it."""
        return min((begun for begun, _, _ in self._forgotten(seq)), default=seq)

    def named(self, path: str) -> _Point:
        """Return the end of a step, or the call of anything else, by its readable path."""
        calls = {self.names.path(row.location): row for row in self.calls.values() if not is_undoing(row.location)}
        call = calls.get(path)
        if call is None:
            near = get_close_matches(path, calls, 3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            listed = ", ".join(list(calls)[:_MAX_LISTED]) or "none"
            more = f" and {len(calls) - _MAX_LISTED} more" if len(calls) > _MAX_LISTED else ""
            raise CannotReopen(self.run_id, f"{self._run()} has no call {path!r}{hint}; it has: {listed}{more}")
        end = self.ends.get(call.location) if call.kind == entries.StepBegun.kind else None
        return _Point((end or call).seq, self._describe(call))

    # What a cut means.

    def cut(self, point: _Point, how: str, at: Instant) -> Cut:
        """Return the cut at a point."""
        seq = point.seq
        self.check(seq)
        kept = self.rows[: bisect_left(self.rows, seq, key=_seq)]
        gone = self.rows[len(kept) :]
        open_calls = {row.location: row for row in kept if row.kind in entries.CALLS}
        now = max(at, kept[-1].at) if kept else at
        marks = [
            EntryRow(location, seq + n, entries.Reopened.kind, now, encode_entry(mark))
            for n, (location, mark) in enumerate(self._marks(how, open_calls, gone))
        ]
        messages, children, unheard = self._others(gone, open_calls)
        begun = [row for row in gone if row.kind == entries.ChildBegun.kind]
        calls = [(decode_entry(row.kind, row.data), self.names.path(row.location)) for row in begun]
        restarted = tuple((call.id, path) for call, path in calls if not call.refused)
        return Cut(seq, marks, messages, tuple(children), point.reason, tuple(unheard), restarted)

    def _marks(
        self, how: str, open_calls: dict[str, EntryRow], gone: list[EntryRow]
    ) -> list[tuple[str, entries.Reopened]]:
        """Return the marks of a reopening: one for each step that is tried again, and what the run no longer has."""
        lost = _lost(gone)
        again = [
            location
            for location, call in open_calls.items()
            if call.kind == entries.StepBegun.kind and location in lost
        ]
        cut: dict[str, Earlier] = {}
        undone: dict[str, int] = {}
        for row in self.rows:
            if row.kind == entries.Reopened.kind:  # each repeats what those before it said
                before = decode_entry(row.kind, row.data)
                cut, undone = before.cut or cut, before.undone or undone
        cut, undone = dict(cut), dict(undone)
        for location, earlier in lost.items():
            if location not in open_calls:
                path = self.names.path(location)
                cut[path] = _sum(cut.get(path, Earlier()), earlier)
        for path in self._taken_back():
            undone[path] = undone.get(path, 0) + 1
        first, *others = again or ["!"]
        told = entries.Reopened(how, lost.get(first, Earlier()), cut, undone)
        return [(first, told), *((location, entries.Reopened(how, lost[location])) for location in others)]

    def _taken_back(self) -> Iterator[str]:
        """Yield what the compensations that completed undid, and the calls that asked for them, by their paths.

        A compensation that failed, or was cut off, has undone nothing as far as is known.
        """
        done = {row.location.partition("/")[0] for row in self.facts if row.kind == entries.StepCompleted.kind}
        completed = [decode_entry(row.kind, row.data) for row in self.compensations if row.location in done]
        yield from dict.fromkeys(self.names.path(each.undoes) for each in completed if each.undoes)
        yield from (self.names.path(each.where) for each in completed if each.where)

    def _others(
        self, gone: Iterable[EntryRow], open_calls: dict[str, EntryRow]
    ) -> tuple[list[Message], list[str], list[str]]:
        """Return what others sent and started that the run, without these entries, waits for again."""
        begun = {
            row.location: call.id
            for row in open_calls.values()
            if row.kind == entries.ChildBegun.kind and not (call := decode_entry(row.kind, row.data)).refused
        }
        messages: list[Message] = []
        children: list[str] = []
        for row in gone:
            if row.kind == entries.MessageReceived.kind:
                taken = decode_entry(row.kind, row.data)
                payload = bytes(taken.payload).decode()
                messages.append(Message(0, taken.source or InboxKind.MESSAGE, taken.name, taken.id, payload, row.at))
            elif row.kind == entries.ChildEnded.kind and row.location in begun:
                if decode_entry(row.kind, row.data).status in _NOT_COMPLETED:
                    children.append(begun[row.location])
                else:
                    messages.append(Message(0, InboxKind.CHILD_ENDED, begun[row.location], "", row.data, row.at))
        return messages, children, [id for location, id in begun.items() if location not in self.ends]

    def check(self, seq: int) -> None:
        """Refuse a cut inside what a loop has forgotten: after its beginning, before the state it would go on from.

        Raises:
            CannotReopen: naming the loop and the earliest points there are.
        """
        for begun, row, state in self._forgotten(seq):
            raise CannotReopen(
                self.run_id,
                f"{self._run()} cannot go on from entry {seq}: loop {self.names.path(row.location[:-2])!r} has "
                f"forgotten its iterations before {state.trimmed}. The earliest points are its iteration "
                f"{state.iteration} (entry {row.seq + 1}) and the beginning of the loop (entry {begun}); "
                "a larger history_keep keeps more",
            )

    def _forgotten(self, seq: int) -> Iterator[tuple[int, EntryRow, Any]]:
        """Yield the loops of whose past something is missing before an entry: where each begins, and its state."""
        for row in self.rows:
            if row.kind != entries.LoopCheckpoint.kind or row.seq < seq:
                continue
            state, loop = decode_entry(row.kind, row.data), row.location[:-2]
            begun = self.calls[loop].seq if loop in self.calls else 0
            if state.trimmed and begun < seq and not self._complete(begun, seq):
                yield begun, row, state

    def _complete(self, begin: int, end: int) -> bool:
        """Tell whether every entry of a range is there: a loop that forgets leaves gaps."""
        return bisect_left(self.rows, end, key=_seq) - bisect_right(self.rows, begin - 1, key=_seq) == end - begin

    def _last(self, kind: type[entries.Entry]) -> EntryRow | None:
        return next((row for row in reversed(self.rows) if row.kind == kind.kind), None)

    def _describe(self, call: EntryRow) -> str:
        return f"{entries.KINDS[call.kind].word} {self.names.path(call.location)!r}"

    def _run(self) -> str:
        return f"run {self.run_id}" if self.run_id else "the run"


def _lost(gone: Iterable[EntryRow]) -> dict[str, Earlier]:
    """Return what entries that are cut away say about steps, by location."""
    lost: dict[str, Earlier] = {}
    for row in gone:
        if row.kind not in _OF_STEPS or row.location == "!":
            continue
        entry = decode_entry(row.kind, row.data)
        if row.kind == entries.Reopened.kind:
            told = entry.step
        else:
            begun = row.kind in (entries.StepBegun.kind, entries.AttemptBegun.kind)
            failed = row.kind == entries.StepFailure.kind or (
                row.kind == entries.AttemptFailed.kind and not entry.error.postpones
            )
            skipped = row.kind == entries.AttemptSkipped.kind and not entry.reason.startswith(UNCOUNTED)
            told = Earlier(entry.attempt if begun else 0, int(failed), int(skipped))
        lost[row.location] = _sum(lost.get(row.location, Earlier()), told)
    return lost


def _sum(one: Earlier, other: Earlier) -> Earlier:
    return Earlier(max(one.attempt, other.attempt), one.failures + other.failures, one.skips + other.skips)


def _seq(row: EntryRow) -> int:
    return row.seq
