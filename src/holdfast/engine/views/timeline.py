"""The timeline of a run: everything that happened to it, in order of time and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.contract.rows import AuditRow, EntryRow, EvidenceRow, LetterRow, RunRow
from holdfast.payloads import codec
from holdfast.payloads.codec import ErrorData
from holdfast.replay import entry as entries
from holdfast.replay.entry import decode_entry
from holdfast.replay.location import DEADLINE, Names, is_ending, is_undoing
from holdfast.replay.past import names_of

Detail = dict[str, Any]


class TimelineItem(msgspec.Struct, frozen=True):
    """One thing that happened: when, what, at which call of the run (empty: to the run itself), and more about it."""

    at: datetime
    what: str
    where: str
    detail: Detail = msgspec.field(default_factory=dict)


def timeline(
    run: RunRow,
    rows: list[EntryRow],
    audit: list[AuditRow],
    letters: list[LetterRow],
    evidence: list[EvidenceRow],
    archived: list[EntryRow],
) -> list[TimelineItem]:
    """Merge all that is known about a run.

    `archived` is what reopenings cut away, in the order it was archived: it did happen, and is marked `cut_away`. Where
    times are equal, history comes in its own order, and what others noted about the run after it.
    """
    items = [_started(run)]
    items += _told(_chronicle(rows, archived), {each.id for each in evidence})
    items += [TimelineItem(to_datetime(each.at), "evidence", "", _evidence(each)) for each in evidence]
    items += [TimelineItem(to_datetime(each.at), "dead letter", each.step, _letter(each)) for each in letters]
    items += [TimelineItem(to_datetime(each.at), each.action, "", _action(each)) for each in audit]
    items += _ended(run)
    return sorted(items, key=lambda item: item.at)


# The run itself, and what others noted about it.


def _started(run: RunRow) -> TimelineItem:
    about = {"workflow": run.workflow, "version": run.version, "actor": run.actor, "parent": run.parent}
    begins = {"begins": to_datetime(run.begins)} if run.begins is not None else {}
    return TimelineItem(to_datetime(run.created), "run started", "", _filled(about) | begins)


def _ended(run: RunRow) -> Iterator[TimelineItem]:
    if run.ended is None:
        return
    detail: Detail = {"status": run.status.value}
    if run.error is not None:
        detail["error"] = codec.decode(run.error, ErrorData).brief()
    if run.compensation is not None:
        detail["compensation"] = _value(run.compensation)
    yield TimelineItem(to_datetime(run.ended), f"run {run.status.value}", "", detail)


def _evidence(row: EvidenceRow) -> Detail:
    return {"kind": row.kind, "id": row.id, "data": _value(row.data)}


def _letter(row: LetterRow) -> Detail:
    error = {"error": codec.decode(row.error, ErrorData).brief()} if row.error else {}
    about = {"id": row.id, "kind": row.kind, "name": row.name, "attempts": row.attempts, "outcome": row.outcome}
    return _filled(about) | error


def _action(row: AuditRow) -> Detail:
    return {"actor": row.actor} | ({"detail": _value(row.detail)} if row.detail else {})


# What history tells.


class _Told(NamedTuple):
    """An entry with the names that its history had."""

    row: EntryRow
    names: Names
    cut_away: bool
    again: tuple[str, ...] = ()
    """For a reopening, the steps that run again."""


def _chronicle(rows: list[EntryRow], archived: list[EntryRow]) -> list[_Told]:
    """Return every entry in the order it was recorded.

    A reopening left its first mark where it cut; what it cut away came before that mark, and had the names of the
    history up to there and its own.
    """
    names, history = names_of(rows), rows
    told = [_Told(row, names, False) for row in rows]
    for group in reversed(_groups(rows, archived)):
        cut = group[0].seq
        history = [row for row in history if row.seq < cut] + group
        names = names_of(history)
        place = next((n for n, each in enumerate(told) if _reopens(each.row) and each.row.seq == cut), len(told))
        told[place:place] = [_Told(row, names, True) for row in group]
    return told


def _groups(rows: list[EntryRow], archived: list[EntryRow]) -> list[list[EntryRow]]:
    """Divide archived entries by the reopenings that cut them away."""
    marks = [row for row in (*archived, *rows) if _reopens(row)]
    cuts = {row.seq for row in marks}
    times = {row.at for row in marks}
    groups: list[list[EntryRow]] = []
    last: EntryRow | None = None
    for row in archived:
        if (
            last is None
            or row.seq <= last.seq
            or (row.seq in cuts and (_is_last(last) or _between(times, last.at, row.at)))
        ):
            groups.append([])
        groups[-1].append(row)
        last = row
    return groups


def _is_last(row: EntryRow) -> bool:
    """Tell whether nothing follows an entry but a reopening, or hooks."""
    return row.kind == entries.Ended.kind or is_ending(row.location)


def _between(times: set[Instant], first: Instant, last: Instant) -> bool:
    return first < last and any(first <= time <= last for time in times)


def _reopens(row: EntryRow) -> bool:
    return row.kind == entries.Reopened.kind


def _told(chronicle: Sequence[_Told], evidence: set[str]) -> Iterator[TimelineItem]:
    calls: dict[str, EntryRow] = {}
    for told in _without_repeats(chronicle):
        row = told.row
        if row.kind in entries.CALLS:
            calls[row.location] = row
        say = _WORDS.get(row.kind)
        if say is None or (row.kind == entries.Ended.kind and not told.cut_away):
            continue  # the run's own end says more
        entry = decode_entry(row.kind, row.data)
        if row.kind == entries.EvidenceAdded.kind and entry.id in evidence:
            continue
        words = say(entry, _Place(row, told.names, calls.get(row.location)))
        if words is not None:
            what, detail = words
            again = {"steps": list(told.again)} if told.again else {}
            cut_away = {"cut_away": True} if told.cut_away else {}
            yield TimelineItem(to_datetime(row.at), what, _where(told, entry), detail | again | cut_away)


def _without_repeats(chronicle: Sequence[_Told]) -> Iterator[_Told]:
    """Make one of the marks of a reopening, of which there is one for each step that runs again."""
    first: _Told | None = None
    last = 0
    for told in chronicle:
        path = () if told.row.location == "!" else (told.names.path(told.row.location),)
        if first is not None and _reopens(told.row) and told.row.seq == last + 1:
            first, last = first._replace(again=first.again + path), told.row.seq
            continue
        if first is not None:
            yield first
            first = None
        if _reopens(told.row):
            first, last = told._replace(again=path), told.row.seq
        else:
            yield told
    if first is not None:
        yield first


def _where(told: _Told, entry: Any) -> str:
    row, names = told.row, told.names
    if row.location[:1] in "!*" or row.location == DEADLINE or _reopens(row) or row.kind == entries.Decided.kind:
        return ""
    if row.kind == entries.CompensationAdded.kind:
        return names.path(entry.where.rpartition("/")[0])
    if row.kind in _NAMED_OTHERWISE:
        return names.path(row.location.rpartition("/")[0])
    return names.path(row.location)


_NAMED_OTHERWISE = (
    entries.Patched.kind,
    entries.LoopCheckpoint.kind,
    entries.EvidenceAdded.kind,
    entries.ProgressNoted.kind,
)
"""Kinds whose last name is not one that the code gave."""


class _Place(NamedTuple):
    """Where an entry stands: its row, the names there, and the call it belongs to."""

    row: EntryRow
    names: Names
    call: EntryRow | None

    def kind(self, undoing: str, otherwise: str) -> str:
        """Return one word for the step of a compensation and another for any other; hooks have their own."""
        if is_ending(self.row.location):
            return undoing.replace("compensation", "hook")
        return undoing if is_undoing(self.row.location) else otherwise


Words = tuple[str, Detail] | None


def _plain(what: str, *fields: str) -> Callable[[Any, _Place], Words]:
    """Tell an entry by a word and some of its fields, as they are; those that say nothing are left out."""

    def say(entry: Any, place: _Place) -> Words:
        return what, _filled({name: getattr(entry, name) for name in fields})

    return say


def _timer_fired(entry: Any, place: _Place) -> Words:
    if place.row.location == DEADLINE:
        return "deadline of the run passed", {}
    kind = place.call.kind if place.call else None
    waits = {entries.SleepBegun.kind: "sleep over", entries.ReceiveBegun.kind: "no message came in time"}
    return waits.get(kind or 0, "timer fired"), {}


def _attempt_failed(entry: entries.AttemptFailed, place: _Place) -> Words:
    detail = {"attempt": entry.attempt, "error": entry.error.brief(), "retry_at": to_datetime(entry.retry_at)}
    return "attempt failed", detail


def _step_failed(entry: entries.StepFailure, place: _Place) -> Words:
    what = place.kind("compensation failed", "step failed")
    return what, {"attempt": entry.attempt, "error": entry.error.brief()}


def _step_completed(entry: entries.StepCompleted, place: _Place) -> Words:
    what = place.kind("compensation completed", "step completed")
    return what, {"attempt": entry.attempt, "result": _value(entry.result)}


def _receive(entry: entries.ReceiveBegun, place: _Place) -> Words:
    until = {"until": to_datetime(entry.deadline)} if entry.deadline is not None else {}
    return "waiting for a message", {"names": entry.names, **until}


def _message(entry: entries.MessageReceived, place: _Place) -> Words:
    about = {"name": entry.name, "id": entry.id, "source": entry.source or "message"}
    return "message received", about | {"payload": _value(entry.payload)}


def _send_done(entry: entries.SendDone, place: _Place) -> Words:
    if not entry.refused:
        return None
    published = place.call is not None and place.call.kind == entries.PublishBegun.kind
    return ("event refused" if published else "message refused"), {"reason": entry.refused}


def _child_ended(entry: entries.ChildEnded, place: _Place) -> Words:
    begun = decode_entry(place.call.kind, place.call.data) if place.call else None
    about = {"id": begun.id if begun else "", "status": entry.status}
    return "child ended", _filled(about) | ({"error": entry.error.brief()} if entry.error else {})


def _loop_state(entry: entries.LoopCheckpoint, place: _Place) -> Words:
    return "loop state", {"iteration": entry.iteration, "forgotten": entry.trimmed, "state": _value(entry.state)}


def _patched(entry: entries.Patched, place: _Place) -> Words:
    name = place.names.path(place.row.location.rpartition("/")[2])
    return "patched", {"name": name.removeprefix("patched ")}


def _skipped(entry: entries.AttemptSkipped, place: _Place) -> Words:
    return "attempt skipped", {"reason": entry.reason, "check_at": to_datetime(entry.check_at)}


def _compensation(entry: entries.CompensationAdded, place: _Place) -> Words:
    about = {"name": entry.name, "args": _value(entry.args), "kwargs": _value(entry.kwargs)}
    return "compensation added", about | _filled({"undoes": place.names.path(entry.undoes)})


def _run_failed(entry: entries.Ended, place: _Place) -> Words:
    return f"run {entry.status}", {"failed": [place.names.path(location) for location in entry.failed]}


_WORDS: dict[int, Callable[[Any, _Place], Words]] = {
    entries.StepBegun.kind: lambda entry, place: (
        place.kind("compensation started", "attempt begun"),
        {"attempt": entry.attempt},
    ),
    entries.AttemptBegun.kind: _plain("attempt begun", "attempt"),
    entries.AttemptFailed.kind: _attempt_failed,
    entries.AttemptLost.kind: _plain("attempt lost", "attempt", "why"),
    entries.AttemptSkipped.kind: _skipped,
    entries.StepCompleted.kind: _step_completed,
    entries.StepFailure.kind: _step_failed,
    entries.Cancelled.kind: _plain("given up"),
    entries.SleepBegun.kind: lambda entry, _: ("sleep begun", {"until": to_datetime(entry.deadline)}),
    entries.TimerFired.kind: _timer_fired,
    entries.ReceiveBegun.kind: _receive,
    entries.MessageReceived.kind: _message,
    entries.SendBegun.kind: _plain("message sent", "target", "name"),
    entries.PublishBegun.kind: _plain("event published", "name"),
    entries.SendDone.kind: _send_done,
    entries.ChildBegun.kind: _plain("child begun", "id", "refused"),
    entries.ChildEnded.kind: _child_ended,
    entries.JoinBegun.kind: _plain("join begun", "branches"),
    entries.RaceBegun.kind: _plain("race begun", "branches"),
    entries.BranchEnded.kind: _plain("branch ended", "status"),
    entries.RaceWon.kind: _plain("race won", "winner"),
    entries.LoopBegun.kind: _plain("loop begun"),
    entries.LoopCheckpoint.kind: _loop_state,
    entries.LoopEnded.kind: _plain("loop ended", "iterations"),
    entries.LoopKept.kind: _plain("loop keeps its history", "hindrance"),
    entries.Forgotten.kind: _plain("never awaited"),
    entries.Patched.kind: _patched,
    entries.CancelRequested.kind: _plain("cancel requested", "compensate"),
    entries.Renewed.kind: _plain("new life begun"),
    entries.CompensationAdded.kind: _compensation,
    entries.AttributesSet.kind: lambda entry, _: ("attributes set", {"values": _value(entry.values)}),
    entries.EvidenceAdded.kind: lambda entry, _: ("evidence", {"kind": entry.what, "id": entry.id}),
    entries.Replied.kind: _plain("reply", "to"),
    entries.ProgressNoted.kind: _plain("progress", "done", "of"),
    entries.Reopened.kind: _plain("run reopened", "how"),
    entries.Ended.kind: _run_failed,
    entries.Decided.kind: _plain("end decided", "status"),
}


def _value(json: str | msgspec.Raw) -> Any:
    """Return what a JSON text says; a text that is none stands for itself."""
    text = json if isinstance(json, str) else bytes(json).decode()
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _filled(detail: Detail) -> Detail:
    return {name: value for name, value in detail.items() if value not in (None, "", False)}
