"""What a run undid: which of its steps were taken back by compensations that completed.

History does not say what a compensation undoes; its place does. It stands for the step that was called just before it
and is still under way, else for the one that ended last before it in its branch; several in a row stand for as many
steps, in the order of their calls. One that was added before anything was done there stands for what is called next.
A compensation that failed, or was cut off, has undone nothing as far as anybody knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from holdfast.contract.rows import EntryRow
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry

_CALLS = frozenset({entries.StepBegun.kind, entries.ChildBegun.kind})
_ENDS = frozenset({entries.StepCompleted.kind, entries.StepFailed.kind, entries.ChildEnded.kind})


class Undone(NamedTuple):
    """The locations of the steps and children that were undone, and of the calls of `compensate` that undid."""

    steps: list[str]
    compensations: list[str]
    stands_for: dict[str, str]
    """For each compensation, completed or not, the step that it stands for; empty for none."""
    forgotten: list[str]
    """Iterations that their loop has forgotten and in which something was undone, as prefixes of locations."""


def undone_in(rows: Sequence[EntryRow]) -> Undone:
    """Return what the completed compensations of a history undid."""
    undoing = [row for row in rows if row.location.startswith("^") and "/" in row.location]
    if not undoing:
        return Undone([], [], {}, [])
    completed = {row.location.partition("/")[0] for row in undoing if row.kind == entries.StepCompleted.kind}
    places = _Places(rows)
    added = list(places.matched())
    undid = [each for each in added if each.row.location in completed]
    steps = dict.fromkeys(each.step for each in undid if each.step)
    calls = [each.where for each in undid if not places.forgotten(each)]
    forgotten = dict.fromkeys(each.scope for each in undid if places.forgotten(each))
    return Undone(list(steps), calls, {each.row.location: each.step for each in added}, list(forgotten))


class _Added(NamedTuple):
    """A compensation, the call that added it and, once it is known, the step that it stands for."""

    row: EntryRow
    where: str
    seq: int
    """Where it stands among the facts as the code saw them."""
    step: str = ""

    @property
    def scope(self) -> str:
        """The prefix of everything in its branch."""
        return self.where[: self.where.rfind("/") + 1]


class _Places:
    """A history, indexed by branch."""

    def __init__(self, rows: Sequence[EntryRow]) -> None:
        own = [row for row in rows if not row.location.startswith("^")]
        self._facts = [row.seq for row in own if row.kind in entries.FACTS]
        self._calls = {row.location: row for row in own if row.kind in _CALLS}
        self._ends = {row.location: row for row in own if row.kind in _ENDS and row.location in self._calls}
        self._sorted = sorted(self._ends)
        self._direct: dict[str, list[EntryRow]] = defaultdict(list)
        for row in self._calls.values():
            self._direct[row.location[: row.location.rfind("/") + 1]].append(row)
        self._added: dict[str, list[_Added]] = defaultdict(list)
        for row in rows:
            if row.kind == entries.CompensationAdded.kind and (entry := decode_entry(row.kind, row.data)).where:
                added = _Added(row, entry.where, entry.before or row.seq)
                self._added[added.scope].append(added)
        self._taken: set[str] = set()

    def matched(self) -> Iterator[_Added]:
        """Yield every compensation with the step it stands for; those of inner branches have the first choice."""
        for scope in sorted(self._added, key=lambda scope: -scope.count("/")):
            yield from self._in_branch(scope, self._added[scope])

    def forgotten(self, added: _Added) -> bool:
        """Tell whether a compensation is there but nothing of the branch that added it."""
        return bool(added.scope) and not added.step and not self._direct[added.scope] and not self._under(added.scope)

    def _in_branch(self, scope: str, added: list[_Added]) -> Iterator[_Added]:
        """Match the compensations of a branch, those that stand together at a time."""
        ended = sorted((self._ends[location] for location in self._under(scope)), key=_seq)
        calls = self._direct[scope]

        def place(each: _Added) -> tuple[int, int]:
            return bisect_left(ended, each.seq, key=_seq), bisect_left(calls, each.seq, key=_seq)

        before = 0
        for _, together in groupby(added, place):
            group = list(together)
            since = ended[bisect_right(ended, before, key=_seq) : place(group[0])[0]]
            steps = self._untaken(self._just_called(calls, group[0].seq)) or self._untaken(since)
            if steps or (before and not since):
                steps = steps[-len(group) :]
            else:
                steps = self._untaken(calls[place(group[0])[1] :])[: len(group)]
            self._taken.update(steps)
            steps.sort(key=lambda location: self._calls[location].seq)
            before = group[-1].seq
            for n, each in enumerate(group):
                yield each._replace(step=steps[n] if n < len(steps) else "")

    def _untaken(self, rows: list[EntryRow]) -> list[str]:
        return [row.location for row in rows if row.location not in self._taken]

    def _under(self, scope: str) -> list[str]:
        """Return where something ended in a branch, or in branches of it."""
        low = bisect_left(self._sorted, scope)
        return self._sorted[low : bisect_right(self._sorted, scope + "\x7f")]

    def _just_called(self, calls: list[EntryRow], seq: int) -> list[EntryRow]:
        """Return the calls that were made before an entry in the same stretch of code: none of them has ended."""
        at = bisect_left(self._facts, seq)
        since = self._facts[at - 1] if at else 0
        return calls[bisect_right(calls, since, key=_seq) : bisect_left(calls, seq, key=_seq)]


def _seq(row: EntryRow) -> int:
    return row.seq
