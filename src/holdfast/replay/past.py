"""The past of a run: the recorded calls, facts and marks that a replay has not reached yet.

The code takes each one when it reaches it again. A run that has caught up has none left, and most runs never had any:
all of these share `NOTHING_LEFT`, so that a parked run keeps no empty tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.contract.rows import EntryRow
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.location import Names, inside, iterations

ATTEMPT_KINDS = frozenset(
    {
        entries.AttemptBegun.kind,
        entries.AttemptFailed.kind,
        entries.AttemptLost.kind,
        entries.AttemptSkipped.kind,
        entries.EndKept.kind,
        entries.Reopened.kind,
    }
)


class RecordedStep(NamedTuple):
    """A step that history has, for code that has to know before it calls it."""

    name: str
    ended: bool
    left: int
    """How many facts follow the call: as many as were yet to be applied when the code made it."""
    passed: bool
    """Whether the code is known to have gone on since the end."""
    failed: bool = False
    """Whether it failed for good."""


class Conclusion(NamedTuple):
    """How a run ended whose hooks are to be called, and where that is kept."""

    place: str
    decided: entries.Decided


class Past:
    """What history has and the code has not come to yet."""

    __slots__ = ("calls", "facts", "marks", "pauses", "tries", "unseen", "withheld")

    def __init__(self) -> None:
        self.calls: dict[str, EntryRow] = {}
        self.facts: deque[EntryRow] = deque()
        self.marks: dict[tuple[str, int], EntryRow] = {}
        self.tries: dict[str, list[EntryRow]] = {}
        """The recorded attempts of each step, beyond its first beginning."""
        self.unseen: frozenset[int] = frozenset()
        """The seqs of facts that the code had not seen when they were recorded: it may have no use for them."""
        self.withheld = 0
        """The seq after which the code has not seen facts: calls they lead to are new. 0 if it has seen all."""
        self.pauses: deque[tuple[int, int]] | None = None
        """Where in the history the run was reopened, and for how long it had ended then."""

    @property
    def empty(self) -> bool:
        """Whether the code has come to all of it."""
        return not (self.calls or self.facts or self.marks or self.tries)

    @property
    def behind(self) -> bool:
        """Whether the code has yet to come to something it did: a fact, or a call after the last fact."""
        return bool(self.facts or self.calls)

    @property
    def strict(self) -> bool:
        """Whether history must have what the code asks for now: the code has seen the facts that remain."""
        return bool(self.facts) and (not self.withheld or self.facts[0].seq < self.withheld)

    def next_fact(self) -> EntryRow | None:
        """Take the next recorded fact."""
        return self.facts.popleft() if self.facts else None

    def steps(self, names: Names, prefix: str) -> Iterator[RecordedStep]:
        """Yield the steps right under a prefix that the code has not called yet, in order of call."""
        if not self.calls:
            return
        ends = {row.location: row for row in self.facts if row.kind in entries.STEP_ENDS}
        facts = [row.seq for row in self.facts]
        added = (row.seq for (_, kind), row in self.marks.items() if kind == entries.CompensationAdded.kind)
        acted = max(*(row.seq for row in self.calls.values()), 0, *added)
        for location, row in self.calls.items():
            if (
                row.kind == entries.StepBegun.kind
                and location.startswith(prefix)
                and "/" not in location[len(prefix) :]
            ):
                name, end = names.path(location[len(prefix) :]), ends.get(location)
                left = len(facts) - bisect_right(facts, row.seq)
                failed = end is not None and end.kind == entries.StepFailure.kind
                yield RecordedStep(name, end is not None, left, end is not None and end.seq < acted, failed)

    def keep_only(self, location: str) -> None:
        """Forget everything but what is under a location."""
        self.facts = deque(row for row in self.facts if inside(row.location, location))
        self.calls = {at: row for at, row in self.calls.items() if inside(at, location)}
        self.tries = {at: rows for at, rows in self.tries.items() if inside(at, location)}
        self.marks, self.pauses, self.withheld = {}, None, 0

    def remove(self, location: str) -> None:
        """Forget everything at a location and under it."""

        def gone(at: str) -> bool:
            return at == location or inside(at, location)

        self.facts = deque(row for row in self.facts if not gone(row.location))
        self.calls = {at: row for at, row in self.calls.items() if not gone(at)}
        self.tries = {at: rows for at, rows in self.tries.items() if not gone(at)}
        self.marks = {key: row for key, row in self.marks.items() if not gone(key[0])}


NOTHING_LEFT = Past()
"""The past of every run that has none left: only read, never written."""


def names_of(rows: Iterable[EntryRow], known: Names | None = None) -> Names:
    """Return the names a history gives to its locations, after those of its beginning that are known."""
    names = Names() if known is None else known
    for row in rows:
        if row.kind == entries.Name.kind:
            names.add(decode_entry(row.kind, row.data).name)
    return names


def after_checkpoints(rows: Sequence[EntryRow]) -> Sequence[EntryRow]:
    """Return a history without the iterations of loops that a recorded state has made superfluous."""
    ranges = [
        iterations(row.location[:-2], 0, decode_entry(row.kind, row.data).iteration)
        for row in rows
        if row.kind == entries.LoopCheckpoint.kind
    ]
    if not ranges:
        return rows
    outer: list[tuple[str, str]] = []
    for low, high in sorted(ranges):
        if not outer or low >= outer[-1][1]:
            outer.append((low, high))
        elif high > outer[-1][1]:
            outer[-1] = (outer[-1][0], high)
    lows = [low for low, _ in outer]
    return [row for row in rows if not _covered(row.location, lows, outer)]


def _covered(location: str, lows: list[str], ranges: list[tuple[str, str]]) -> bool:
    at = bisect_right(lows, location) - 1
    return at >= 0 and location < ranges[at][1]


def pauses_of(rows: Sequence[EntryRow]) -> deque[tuple[int, int]]:
    """Return where a run was reopened and how long before that its last entry was made."""
    found: deque[tuple[int, int]] = deque()
    before = rows[0].at
    for row in rows:
        if row.kind == entries.Reopened.kind:
            found.append((row.seq, row.at - before))
        before = row.at
    return found


def unseen_of(rows: Sequence[EntryRow]) -> tuple[frozenset[int], int]:
    """Return which facts were withheld from the code, and the seq after which all are, 0 if it made entries since."""
    engine = entries.FACTS | ATTEMPT_KINDS
    found: set[int] = set()
    mark = 0
    for row in rows:
        if row.kind == entries.Withheld.kind:
            mark = row.seq
        elif row.kind not in engine:
            mark = 0
        elif mark:
            found.add(row.seq)
    return frozenset(found), mark
