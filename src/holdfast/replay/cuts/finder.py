"""Finding a cut: where an ended run continues when it is reopened.

Everything from one entry of the history on is cut away, and the run continues from the rest. Any prefix of a history is
a consistent state, because a crash there would have left it. The exception is a loop that has forgotten iterations
since: they are missing from the prefixes that end before its state.

Results of calls made before the cut are kept, unless these calls are to be done again: they follow the cut as facts
that the code has not seen, as they might have come after that crash.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.errors import CannotReopen
from holdfast.replay import entry as entries
from holdfast.replay.cuts.cut import OF_STEPS, UNDO, Cut, Point, Redone, covers, doubt_of, lost_in, summed, unkept
from holdfast.replay.entry import Earlier, decode_entry, encode_entry
from holdfast.replay.location import DEADLINE, inside, is_ending, is_undoing
from holdfast.replay.past import names_of

_NOT_COMPLETED = frozenset({"failed", "cancelled"})
_MAX_LISTED = 20


def cut_for_retry(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which a failed run tries again: what failed it, or the first step that was undone.

    Raises:
        CannotReopen: the run has forgotten too much to go on from there.
    """
    past = CutFinder(rows, run_id)
    points = past.failures() + past.undone()
    if not points:
        return msgspec.structs.replace(past.cut(past.end(), "retry", at), collected=tuple(past.collected()))
    return past.cut(min(points), "retry", at)


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

    What was called beside it, before it ended, keeps its result. The cut is earlier where something before the call
    must not stay: the failure that ended the run, its cancel request, the first step that was undone.

    Raises:
        CannotReopen: there is no such call, or the run has forgotten too much to go on from there.
    """
    past = CutFinder(rows, run_id)
    points = [past.named(path), *past.failures(), *past.cancels(), *past.undone()]
    return past.cut(min(points), "rerun", at, past.location(path))


def cut_for_undoing(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which an ended run undoes what is not undone yet, and does nothing else.

    Compensations that completed stay completed, in whichever order they ran.

    Raises:
        CannotReopen: there is nothing left to undo.
    """
    return CutFinder(rows, run_id).undoing(at)


def cut_for_all(rows: list[EntryRow], at: Instant, run_id: str = "") -> Cut:
    """Return the cut from which an ended run does everything again that its present life did.

    Raises:
        CannotReopen: what an earlier life did was undone.
    """
    past = CutFinder(rows, run_id)
    past.undone()
    return past.cut(past.beginning(), "rerun", at)


class CutFinder:
    """A history, indexed for the questions a cut asks."""

    def __init__(self, rows: list[EntryRow], run_id: str) -> None:
        decided = next((row.seq for row in rows if row.kind == entries.Decided.kind), None)
        self.decided = decided
        """Where the end was decided, after which came only hooks, and results of calls that outlasted a cancel."""
        if decided is not None:
            rows = [row for row in rows if not is_ending(row.location)]
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

    def nothing(self) -> Point:
        """Return the point after the last entry."""
        last = self.rows[-1].seq + 1 if self.rows else 1
        return Point(self.decided or last, "nothing is done again")

    def beginning(self) -> Point:
        """Return the point after what an earlier life left to this one."""
        for row in self.rows:
            carried = row.kind == entries.CompensationAdded.kind and not decode_entry(row.kind, row.data).where
            if row.kind not in (entries.Renewed.kind, entries.Reopened.kind) and not carried:
                return Point(row.seq, "the beginning")
        return self.nothing()

    def end(self) -> Point:
        """Return the point at which the run failed."""
        ended = self._last(entries.Ended)
        return Point(ended.seq, "the end of the run, which its own code raised") if ended else self.nothing()

    def failures(self) -> list[Point]:
        """Return the final failure of each call whose error ended the run, and the deadline it may have missed."""
        ended = self._last(entries.Ended)
        points = [Point(self.ends[DEADLINE].seq, "the run's deadline")] if DEADLINE in self.ends else []
        for location in decode_entry(ended.kind, ended.data).failed if ended else ():
            call = self.calls.get(location)
            if call is None and location in self.ends:
                points.append(Point(self.ends[location].seq, "an asyncio timeout"))
            failure = self._failure(call) if call is not None and not is_undoing(location) else None
            if call is not None and failure is not None:
                points.append(Point(failure.seq, f"the failure of {self._describe(call)}"))
        return points

    def _failure(self, call: EntryRow) -> EntryRow | None:
        """Return what to cut so that a failed call is tried again."""
        end = self.ends.get(call.location)
        if call.kind == entries.StepBegun.kind:
            return end if end is not None and end.kind == entries.StepFailure.kind else None
        if call.kind == entries.ChildBegun.kind and not decode_entry(call.kind, call.data).refused:
            return end
        return call  # so that its deadline is set again, and its refusal forgotten

    def cancels(self) -> list[Point]:
        """Return the request that stopped the run."""
        kind = entries.CancelRequested.kind
        return [Point(row.seq, "the cancel request") for row in self.facts if row.kind == kind]

    def undone(self) -> list[Point]:
        """Return what the compensations that ran undo: those that failed, too, which may have undone it.

        A compensation that undoes nothing in particular stands for all that was done after it was registered.
        """
        ran = self._places_run()
        return [self._undone_by(row) for row in self.compensations if row.location in ran]

    def _places_run(self) -> set[str]:
        return {row.location.partition("/")[0] for row in self.calls.values() if is_undoing(row.location)}

    def _undone_by(self, row: EntryRow) -> Point:
        added = decode_entry(row.kind, row.data)
        if not added.where:  # an earlier life's
            raise CannotReopen(
                self.run_id,
                f"{self._run()} continued as new, and its compensations undid what it had done before that; "
                "that history is gone: start a new run",
            )
        call = self.calls.get(added.undoes)
        if call is None:  # it names none, or a loop has forgotten it
            return Point(self._whole(row.seq), f"compensation {added.name!r}, which ran")
        end = self.ends.get(call.location) if call.kind == entries.StepBegun.kind else None
        return Point((end or call).seq, f"{self._describe(call)}, which was undone")

    def _whole(self, seq: int) -> int:
        """Return an entry, or the beginning of the outermost loop that has forgotten something before it."""
        return min((begun for begun, _, _ in self._forgotten(seq)), default=seq)

    def collected(self) -> Iterator[str]:
        """Yield the calls of steps and children that failed, in words."""
        for location, end in self.ends.items():
            call = self.calls.get(location)
            if call is None or is_undoing(location):
                continue
            child = end.kind == entries.ChildEnded.kind and decode_entry(end.kind, end.data).status in _NOT_COMPLETED
            if child or end.kind == entries.StepFailure.kind:
                yield self._describe(call)

    def location(self, path: str) -> str:
        """Return where the call with a readable path is."""
        return self._call(path).location

    def named(self, path: str) -> Point:
        """Return the end of a step or child, or the call of anything else, by its readable path."""
        call = self._call(path)
        ends = call.kind in (entries.StepBegun.kind, entries.ChildBegun.kind)
        end = self.ends.get(call.location) if ends and not self._refused(call) else None
        return Point((end or call).seq, self._describe(call))

    def _refused(self, call: EntryRow) -> bool:
        return call.kind == entries.ChildBegun.kind and bool(decode_entry(call.kind, call.data).refused)

    def _call(self, path: str) -> EntryRow:
        calls = {self.names.path(row.location): row for row in self.calls.values() if not is_undoing(row.location)}
        call = calls.get(path)
        if call is None:
            from difflib import get_close_matches  # for this error only

            near = get_close_matches(path, calls, 3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            listed = ", ".join(list(calls)[:_MAX_LISTED]) or "none"
            more = f" and {len(calls) - _MAX_LISTED} more" if len(calls) > _MAX_LISTED else ""
            raise CannotReopen(self.run_id, f"{self._run()} has no call {path!r}{hint}; it has: {listed}{more}")
        return call

    # What a cut means.

    def cut(self, point: Point, how: str, at: Instant, named: str = "") -> Cut:
        """Return the cut at a point; `named` is the location of the call to do again, if one was named."""
        seq = point.seq
        self.check(seq)
        before = self.rows[: bisect_left(self.rows, seq, key=_seq)]
        gone = self.rows[len(before) :]
        open_calls = {row.location: row for row in before if row.kind in entries.CALLS}
        results = self._results(gone, open_calls, how, named)
        told = _told(gone, results)
        now = max(at, before[-1].at) if before else at
        marks: list[tuple[str, int, str]] = [
            (location, entries.Reopened.kind, encode_entry(mark))
            for location, mark in self._marks(how, open_calls, gone, told)
        ]
        if results:
            marks.append(("!", entries.Withheld.kind, encode_entry(entries.Withheld())))
            # What a call returned after the code had given it up is its end now.
            ends = {entries.ResultKept.kind: entries.StepCompleted.kind}
            marks += [(row.location, ends.get(row.kind, row.kind), row.data) for row in told]
        appended = [EntryRow(location, seq + n, kind, now, data) for n, (location, kind, data) in enumerate(marks)]
        kept = tuple(row.location for row in results)
        messages, children, unheard = self._others(gone, open_calls, how, named)
        begun = [row for row in gone if row.kind == entries.ChildBegun.kind]
        calls = [(decode_entry(row.kind, row.data), self.names.path(row.location)) for row in begun]
        restarted = tuple((call.id, path) for call, path in calls if not call.refused)
        again = open_calls.get(named)
        whole = again is not None and again.kind == entries.ChildBegun.kind
        return Cut(
            seq,
            appended,
            messages,
            tuple(children),
            point.reason,
            tuple(unheard),
            restarted,
            redone=tuple(self._redone(seq, set(kept))),
            kept=kept,
            standing=tuple(
                self.names.path(end.location)
                for end in self.facts
                if end.kind == entries.StepFailure.kind and (end.seq < seq or end.location in kept)
            ),
            from_beginning=(decode_entry(again.kind, again.data).id,) if again is not None and whole else (),
        )

    def _results(self, gone: list[EntryRow], open_calls: dict[str, EntryRow], how: str, named: str) -> list[EntryRow]:
        """Return the ends of steps that stay though they came after the cut: their calls were made before it.

        None that was undone, and nothing that is to be done again. A rerun keeps failures that the code had handled;
        retry and resume try again what failed.
        """
        undone = [added.undoes for added in self._ran()]
        if not all(undone):
            return []  # what such a compensation undid is not known
        places = [*undone, *self._ended_by(), *([named] if named else [])]
        kinds = {entries.StepCompleted.kind, entries.ResultKept.kind}
        kinds |= {entries.StepFailure.kind} if how == "rerun" else set()
        ended = {row.location for row in gone if row.kind in entries.STEP_ENDS}
        return [
            row
            for row in (unkept(each) if each.location not in ended else each for each in gone)
            if row.kind in kinds
            and row.location in open_calls
            and not is_undoing(row.location)
            and not any(row.location == place or inside(row.location, place) for place in places)
        ]

    def _ran(self) -> list[Any]:
        """Return the compensations that ran, whatever came of them."""
        ran = self._places_run()
        return [decode_entry(row.kind, row.data) for row in self.compensations if row.location in ran]

    def _ended_by(self) -> list[str]:
        """Return the locations of the calls whose failure ended the run."""
        ended = self._last(entries.Ended)
        return list(decode_entry(ended.kind, ended.data).failed) if ended else []

    def _redone(self, seq: int, kept: set[str]) -> Iterator[Redone]:
        """Yield the steps that had begun and are done again after a cut."""
        taken_back = set(self._taken_back())
        last: dict[str, EntryRow] = {}
        for row in self.rows:
            if row.kind in OF_STEPS and row.kind != entries.Reopened.kind:
                last[row.location] = row
        for location, call in self.calls.items():
            end = self.ends.get(location)
            if call.kind != entries.StepBegun.kind or is_undoing(location) or location in kept:
                continue
            if end is None or end.seq >= seq:
                path = self.names.path(location)
                yield Redone(path, "" if covers(taken_back, path) else doubt_of(last[location]))

    def _marks(
        self, how: str, open_calls: dict[str, EntryRow], gone: list[EntryRow], told: list[EntryRow]
    ) -> list[tuple[str, entries.Reopened]]:
        """Return the marks of a reopening: one for each step that is tried again, and what the run no longer has.

        A step whose result is kept has one, too, if the beginning of what led to it is cut away.
        """
        beginnings: dict[str, int] = {}
        for row in told:
            beginnings.setdefault(row.location, row.seq)
        kept = self.rows[: len(self.rows) - len(gone)]
        lost = lost_in((row for row in gone if row.seq < beginnings.get(row.location, row.seq + 1)), kept)
        again = [
            location
            for location, call in open_calls.items()
            if call.kind == entries.StepBegun.kind and location in lost
        ]
        cut, undone = self._before()
        for location, earlier in lost.items():
            if location not in open_calls:
                path = self.names.path(location)
                cut[path] = summed(cut.get(path, Earlier()), earlier)
        for path in self._taken_back():
            undone[path] = undone.get(path, 0) + 1
        first, *others = again or ["!"]
        mark = entries.Reopened(how, lost.get(first, Earlier()), cut, undone)
        return [(first, mark), *((location, entries.Reopened(how, lost[location])) for location in others)]

    def _before(self) -> tuple[dict[str, Earlier], dict[str, int]]:
        """Return what reopenings so far have cut away, and what was undone before them."""
        cut: dict[str, Earlier] = {}
        undone: dict[str, int] = {}
        for row in self.rows:
            if row.kind == entries.Reopened.kind:  # each repeats what those before it said
                before = decode_entry(row.kind, row.data)
                cut, undone = before.cut or cut, before.undone or undone
        return dict(cut), dict(undone)

    def _taken_back(self) -> Iterator[str]:
        """Yield what the compensations that completed undid, and the calls that asked for them, by their paths.

        A compensation that failed, or was cut off, has undone nothing as far as is known.
        """
        done = {row.location.partition("/")[0] for row in self.facts if row.kind == entries.StepCompleted.kind}
        completed = [decode_entry(row.kind, row.data) for row in self.compensations if row.location in done]
        yield from dict.fromkeys(self.names.path(each.undoes) for each in completed if each.undoes)
        yield from (self.names.path(each.where) for each in completed if each.where)

    def undoing(self, at: Instant) -> Cut:
        """Return the cut at the first compensation that has not completed, after which those that have follow again."""
        done = {row.location for row in self.facts if row.kind == entries.StepCompleted.kind}
        left = {at: row for at, row in self.calls.items() if is_undoing(at) and at not in done}
        if not left:
            raise CannotReopen(self.run_id, f"{self._run()} has no compensation that failed: nothing is left to undo")
        seq = min(row.seq for row in left.values())
        gone = self.rows[bisect_left(self.rows, seq, key=_seq) :]
        again = [
            row for row in gone if row.kind == entries.Name.kind or (is_undoing(row.location) and row.location in done)
        ]
        cut, undone = self._before()
        for location, earlier in lost_in((row for row in gone if row.location in left), ()).items():
            path = self.names.path(location)
            cut[path] = summed(cut.get(path, Earlier()), earlier)
        mark = EntryRow(
            "!",
            0,
            entries.Reopened.kind,
            max(at, self.rows[-1].at),
            encode_entry(entries.Reopened(UNDO, cut=cut, undone=undone)),
        )
        rows = [row._replace(seq=seq + n) for n, row in enumerate([*again, mark])]
        redone = tuple(Redone(self.names.path(location)) for location in left)
        return Cut(seq, rows, [], (), "the first compensation that failed", redone=redone)

    def _others(
        self, gone: Iterable[EntryRow], open_calls: dict[str, EntryRow], how: str, named: str
    ) -> tuple[list[Message], list[str], list[str]]:
        """Return what others sent and started that the run, without these entries, waits for again."""
        ended_by = self._ended_by()
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
            elif row.kind == entries.ChildEnded.kind and row.location in begun and row.location != named:
                status = decode_entry(row.kind, row.data).status
                handled = how == "rerun" and status == "failed" and row.location not in ended_by
                if status in _NOT_COMPLETED and not handled:
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


def _seq(row: EntryRow) -> int:
    return row.seq


def _told(gone: list[EntryRow], results: list[EntryRow]) -> list[EntryRow]:
    """Return results that are kept, with what led to each since its step was last reopened: attempts and failures."""
    ends = {row.location: row for row in results}
    last = {row.location: row.seq for row in gone if row.kind == entries.Reopened.kind}
    return [
        end if row.seq == end.seq else row
        for row in gone
        if (end := ends.get(row.location)) is not None
        and (row.seq == end.seq or (last.get(row.location, 0) < row.seq < end.seq and row.kind in OF_STEPS))
    ]
