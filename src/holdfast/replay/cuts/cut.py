"""A cut as a value: where a run is cut, what follows the cut, what is done again, and what was lost."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import NamedTuple

import msgspec

from holdfast.contract.rows import EntryRow, Message
from holdfast.errors import KeyConflict, StepSkipped
from holdfast.payloads.codec import qualified_name
from holdfast.replay import entry as entries
from holdfast.replay.entry import UNCOUNTED, Earlier, decode_entry

OF_STEPS = entries.STEP_ENDS | {
    entries.StepBegun.kind,
    entries.AttemptBegun.kind,
    entries.AttemptFailed.kind,
    entries.AttemptLost.kind,
    entries.AttemptSkipped.kind,
    entries.Reopened.kind,
}
_NOT_TRIED = frozenset({qualified_name(StepSkipped), qualified_name(KeyConflict)})
"""Failures for which no body ran."""
UNDO = "undo"
"""How a run goes on that only undoes what is not undone yet."""


class Redone(NamedTuple):
    """A step that is done again, by its path."""

    path: str
    doubt: str = ""
    """Why it is not known that its last attempt had no effect; empty where that is known."""


class Cut(msgspec.Struct, frozen=True):
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
    redone: tuple[Redone, ...] = ()
    """The steps that are done again."""
    kept: tuple[str, ...] = ()
    """The locations of steps that ended after the cut and keep their results."""
    standing: tuple[str, ...] = ()
    """The paths of steps whose failure stays as it is."""
    from_beginning: tuple[str, ...] = ()
    """Children that do everything again."""
    collected: tuple[str, ...] = ()
    """Failures that the code took and did not name as the cause of its own, where that is all that failed the run."""


class Point(NamedTuple):
    """Where a history may be cut, and why."""

    seq: int
    reason: str


def only_undoes(before: entries.Reopened | None) -> bool:
    """Tell by the mark of its last reopening whether a run, whose failure was told then, only undoes what is left."""
    return before is not None and before.how == UNDO


def lost_in(gone: Iterable[EntryRow], kept: Iterable[EntryRow]) -> dict[str, Earlier]:
    """Return what entries that are cut away say about steps, by location; others that came before them are kept."""
    lost: dict[str, Earlier] = {}
    before = {row.location: row for row in kept if row.kind in OF_STEPS}
    for row in gone:
        if row.kind not in OF_STEPS or row.location == "!":
            continue
        entry, last = decode_entry(row.kind, row.data), before.get(row.location)
        before[row.location] = row
        if row.kind == entries.Reopened.kind:
            told = entry.step
        else:
            begun = row.kind in (entries.StepBegun.kind, entries.AttemptBegun.kind)
            failed = (
                row.kind == entries.StepFailure.kind and threw(entry, last.kind if last is not None else None)
            ) or (row.kind == entries.AttemptFailed.kind and not entry.error.postpones)
            skipped = row.kind == entries.AttemptSkipped.kind and not entry.reason.startswith(UNCOUNTED)
            told = Earlier(entry.attempt if begun else 0, int(failed), int(skipped))
        lost[row.location] = summed(lost.get(row.location, Earlier()), told)
    return lost


def threw(failure: entries.StepFailure, last: int | None) -> bool:
    """Tell whether a step failed by an attempt that threw or timed out; `last` is the kind of entry that came before.

    Otherwise its attempts were lost with their process too often, or none was made.
    """
    return last != entries.AttemptLost.kind and failure.error.type not in _NOT_TRIED


def unkept(row: EntryRow) -> EntryRow:
    """Return what came of a step whose callbacks were being told, as the entry that it would have become."""
    if row.kind != entries.EndKept.kind:
        return row
    mark = decode_entry(row.kind, row.data)
    return row._replace(kind=mark.what, data=bytes(mark.entry).decode())


def doubt_of(last: EntryRow) -> str:
    """Return why it is not known that the last attempt of a step had no effect, by the last that history has of it."""
    entry = decode_entry(last.kind, last.data)
    if last.kind in (entries.StepFailure.kind, entries.AttemptFailed.kind):
        bases = {entry.error.type.rpartition(".")[2], *entry.error.bases}
        if "StepTimeout" in bases:
            return "its last attempt timed out"
        return "its last attempt was lost" if "StepCrashed" in bases else ""
    if last.kind == entries.AttemptLost.kind:
        return "" if entry.why == "held" else "its last attempt was lost"
    if last.kind == entries.AttemptSkipped.kind:
        return ""
    return "it had completed" if last.kind == entries.StepCompleted.kind else "it was under way"


def covers(paths: Set[str], path: str) -> bool:
    """Tell whether a path, or what it lies in, is among others."""
    while path:
        if path in paths:
            return True
        path = path.rpartition("/")[0]
    return False


def summed(one: Earlier, other: Earlier) -> Earlier:
    """Return what two cuts took from a step together."""
    return Earlier(max(one.attempt, other.attempt), one.failures + other.failures, one.skips + other.skips)
