"""What must hold of every store at every moment, whatever crashed: run it after every test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from holdfast.contract.rows import EntryRow, RunFilter, RunRow, Status
from holdfast.contract.store import Store
from holdfast.replay import entry as entries
from holdfast.replay.location import Names
from holdfast.stores.sql.store import SQLStore

_PAGE = 500
_ONCE = frozenset(kind for kind, cls in entries.KINDS.items() if cls.role == entries.FACT) - {
    entries.CancelRequested.kind  # asked again to undo, or out of its grace
}


async def violations(store: Store) -> list[str]:
    """Return every broken invariant of every run, in words; an empty list is what we promise."""
    found: list[str] = []
    before: int | None = None
    while rows := await store.runs(RunFilter(limit=_PAGE, before=before)):
        for row in rows:
            history = await store.history(row.key)
            unread = (await store.inboxes({row.key: 0}))[row.key]
            problems = list(_of_row(row, len(unread)))
            try:
                problems += _of_history(history)
            except (KeyError, ValueError) as error:
                if row.status is not Status.BLOCKED:
                    problems.append(f"its history cannot be read: {error!r}")
            found += [f"run {row.id}: {problem}" for problem in problems]
        before = rows[-1].key
    if isinstance(store, SQLStore):
        wrong = await store.look(lambda db: db.read("wrong_limits", [()]), together=True)
        found += [f"limit {name}: the counters of key {key!r} are wrong" for name, key in wrong]
    return found


def _of_row(row: RunRow, unread: int) -> Iterator[str]:
    if row.status.is_terminal:
        if row.owner is not None or row.due is not None:
            yield f"ended {row.status} but has owner {row.owner} and due {row.due}"
        if row.ended is None:
            yield f"ended {row.status} without a time"
        if unread and row.status is Status.COMPLETED:
            yield f"ended {row.status} with {unread} unread inbox rows"
    elif row.ended is not None or row.output is not None:
        yield f"is {row.status} but has a result or an end"
    if row.wait == "place" and (row.owner is not None or row.due is not None):
        yield f"waits for a place but has owner {row.owner} and due {row.due}"
    if row.epoch < 0 or row.claims < 0:
        yield f"has epoch {row.epoch} and {row.claims} claims"


def _of_history(history: list[EntryRow]) -> Iterator[str]:
    names = Names()
    last_seq, last_at = 0, 0
    by_location: dict[str, list[tuple[EntryRow, Any]]] = defaultdict(list)
    for row in history:
        if row.seq <= last_seq:
            yield f"entry {row.seq} does not follow {last_seq}"
        if row.at < last_at:
            yield f"entry {row.seq} is older than the one before it"
        last_seq, last_at = row.seq, row.at
        entry = entries.decode_entry(row.kind, row.data)
        if row.kind == entries.Name.kind:
            expected = "!" + names.add(entry.name)
            if row.location != expected:
                yield f"name {entry.name!r} stands at {row.location}, not {expected}"
        by_location[row.location].append((row, entry))
    for location, facts in by_location.items():
        for problem in _of_location(facts):
            yield f"{names.path(location) if location[:1] != '!' else location}: {problem}"


def _of_location(facts: list[tuple[EntryRow, Any]]) -> Iterator[str]:
    kinds = [row.kind for row, _ in facts]
    for kind in _ONCE:
        if kinds.count(kind) > 1:
            yield f"{kinds.count(kind)} times {entries.KINDS[kind].word}"
    if len(entries.STEP_ENDS.intersection(kinds)) > 1:
        yield "both completed and failed"
    if entries.StepBegun.kind in kinds:
        yield from _of_step(facts)
    for row, entry in facts:
        if row.kind in (entries.SleepBegun.kind, entries.ReceiveBegun.kind) and entry.deadline is not None:
            for fired, _ in facts:
                if fired.kind == entries.TimerFired.kind and fired.at < entry.deadline:
                    yield f"the timer fired {entry.deadline - fired.at} us early"


def _of_step(facts: list[tuple[EntryRow, Any]]) -> Iterator[str]:
    current, open_ = 0, False
    for row, entry in facts:
        if row.kind == entries.StepBegun.kind:
            current, open_ = entry.attempt, True
        elif row.kind == entries.AttemptBegun.kind:
            if open_:
                yield f"attempt {entry.attempt} begins while {current} is under way"
            if entry.attempt != current + 1:
                yield f"attempt {entry.attempt} follows {current}"
            current, open_ = entry.attempt, True
        elif row.kind == entries.Reopened.kind:
            current, open_ = max(current, entry.step.attempt), False
        elif row.kind == entries.AttemptSkipped.kind:
            current, open_ = current - 1, False
        elif row.kind in (entries.AttemptFailed.kind, entries.AttemptLost.kind, *entries.STEP_ENDS):
            if entry.attempt != current:
                yield f"{entries.KINDS[row.kind].word} names attempt {entry.attempt}, not {current}"
            open_ = False
