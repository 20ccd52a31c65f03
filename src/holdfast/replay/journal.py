"""The journal of one run: read the past at a location, record the new, notice a mismatch.

While recorded facts remain to be applied the run is *replaying*: every call the code makes must be one that history
recorded. A call that is not, a fact for a call that the code did not make, or another argument digest is a mismatch. It
is found before anything wrong is recorded or acted on: the violation is remembered, and the code never continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.changes import step_name
from holdfast.contract.rows import EntryRow, Message
from holdfast.errors import DuplicateName, HistoryMismatch, RunBlocked
from holdfast.payloads.codec import ErrorData, error_from_data
from holdfast.replay import entry as entries
from holdfast.replay import inbox
from holdfast.replay.entry import Entry, decode_entry, encode_entry, encoder
from holdfast.replay.location import (
    Names,
    Scope,
    checkpoint_location,
    compensation_location,
    inside,
    name_key,
    number,
    repeats_beside,
)
from holdfast.replay.loop import RunLoop, is_done
from holdfast.replay.past import (
    ATTEMPT_KINDS,
    NOTHING_LEFT,
    Conclusion,
    Past,
    RecordedStep,
    after_checkpoints,
    pauses_of,
    unseen_of,
)
from holdfast.replay.run_info import RunInfo
from holdfast.replay.turn import Turn
from holdfast.replay.verbs import Gate, Verb

__all__ = [
    "CANCEL",
    "NAMES",
    "PREFIXES",
    "Compensation",
    "Gate",
    "Journal",
    "RecordedStep",
    "RunInfo",
    "Verb",
]

CANCEL = "*"
NAMES = "!"
_NO_ACTIVITIES: Mapping[str, Any] = {}


class Compensation:
    """One thing to undo if the run fails, at its place on the run's stack."""

    __slots__ = ("activity", "entry", "location")

    def __init__(self, location: str, entry: entries.CompensationAdded) -> None:
        self.location = location
        self.entry = entry
        self.activity: Any = None
        """What to run, once the call was made in this life; otherwise it has to be found by its name."""


class Journal:
    """See the module's docstring."""

    __slots__ = (
        "_errors",
        "activities",
        "background",
        "before",
        "cancelling",
        "compensating",
        "compensations",
        "inbox",
        "kids",
        "loop",
        "names",
        "next_seq",
        "open",
        "past",
        "polls",
        "queries",
        "receivers",
        "recorded_at",
        "renewal",
        "root",
        "run",
        "silent",
        "turn",
        "undo_asked",
        "violation",
    )

    def __init__(self, run: RunInfo, loop: RunLoop, errors: Mapping[str, type[BaseException]]) -> None:
        self.run = run
        self.loop = loop
        self.root = Scope()
        self.names = Names()
        self.next_seq = 1
        self.open: dict[str, Verb] = {}
        self.receivers: dict[str, Any] | None = None
        self.kids: dict[str, Verb] | None = None
        self.inbox: dict[str, deque[Message]] | None = None
        self.cancelling: int | None = None
        """When the run was asked to stop."""
        self.undo_asked = False
        """Whether it was asked to undo what it did, too."""
        self.compensations: list[Compensation] | None = None
        """What to undo if the run fails, the last first."""
        self.compensating = False
        """Whether the code has ended and what it did is being undone."""
        self.activities = _NO_ACTIVITIES
        """Activities by name, for compensations whose function cannot be found from the workflow's code."""
        self.queries: dict[str, Callable[..., Any]] | None = None
        """What answers questions about the run's state, by name."""
        self.background: dict[str, Verb] | None = None
        """The steps that nothing waits for, while they are open: the run ends after them."""
        self.polls: list[Callable[[], None]] | None = None
        """What ends the polls that this turn began, to be called when it is over."""
        self.before: entries.Reopened | None = None
        """The mark that says what reopenings cut away and what was undone before them, None if nothing was."""
        self.recorded_at = 0
        """When the last entry of the loaded history was recorded."""
        self.silent = False
        self.violation: Exception | None = None
        self.renewal: str | None = None
        self._errors = errors
        self.past = NOTHING_LEFT
        """What history has and the code has not come to yet."""
        self.turn = Turn()
        """What the turn under way asks for."""

    def close(self) -> None:
        """Let go of everything that waits; the run is dropped."""
        self.open.clear()
        self.loop.home = self.loop.within = self.loop.ended_alone = None
        self.receivers = self.kids = self.queries = self.compensations = self.background = None

    def caught_up(self) -> None:
        """Forget what was only the past: from here on the turn asks for new things."""
        self.silent = False
        turn = self.turn
        started = {verb: None for verb in turn.started if not is_done(verb)}
        turn.started = [*(verb for verb in self.open.values() if verb.recalled and verb not in started), *started]
        turn.abandoned = ()
        if self.past.empty:
            self.past = NOTHING_LEFT

    # Reading the past.

    def load(self, rows: Sequence[EntryRow]) -> None:
        """Take in a recorded history, in order of seq."""
        if not rows:
            return
        past = self.past = Past()
        calls, marks, tries, facts = past.calls, past.marks, past.tries, past.facts
        reopened = False
        for row in after_checkpoints(rows):
            kind = row.kind
            if kind in entries.FACTS:
                facts.append(row)
            elif kind in entries.CALLS:
                calls[row.location] = row
            elif kind == entries.Name.kind:
                self.names.add(decode_entry(kind, row.data).name)
            elif kind not in entries.KINDS:
                self.block(
                    RunBlocked(
                        self.run.id,
                        f"run {self.run.id}: entry {row.seq} of its history is of kind {kind}, which this version of "
                        "holdfast does not know; a newer one wrote it",
                    )
                )
            elif kind in ATTEMPT_KINDS:
                tries.setdefault(row.location, []).append(row)
                if kind == entries.Reopened.kind:
                    reopened, mark = True, decode_entry(kind, row.data)
                    self.before = mark if mark.cut or mark.undone else self.before
            elif kind == entries.CompensationAdded.kind:
                added = decode_entry(kind, row.data)
                self._push(row.location, added)
                if added.where:
                    marks[added.where, kind] = row
            elif kind == entries.Decided.kind:
                self.run = self.run._replace(conclusion=Conclusion(row.location, decode_entry(kind, row.data)))
            elif kind == entries.Withheld.kind:
                past.unseen, past.withheld = unseen_of(rows)
            else:
                marks[row.location, kind] = row
                if kind == entries.LoopCheckpoint.kind:
                    # In its place among the facts, so that what ran beside the loop is where it was then.
                    facts.append(row)
        self.next_seq = rows[-1].seq + 1
        self.recorded_at = max(map(_AT, rows))
        if reopened:
            past.pauses = pauses_of(rows)
        if self.run.conclusion is not None:
            self._load_end(past, self.run.conclusion.place)

    def _load_end(self, past: Past, place: str) -> None:
        """Leave only the hooks of what history has; or all but them, where the code is to be looked at."""
        if self.run.looked_at:
            past.remove(place)
            self.run = self.run._replace(conclusion=None)
        else:
            past.keep_only(place)
            self.compensations = None

    @property
    def replaying(self) -> bool:
        """Whether recorded facts remain to be applied."""
        return bool(self.past.facts)

    def gate(self, loop: str) -> Gate | None:
        """Return what brings a loop to its recorded state, None if it has none."""
        location = checkpoint_location(loop)
        if self.past.marks.pop((location, entries.LoopCheckpoint.kind), None) is None:
            return None
        gate = self.open[location] = Gate(self, location)
        return gate

    def error(self, data: ErrorData, known: Mapping[str, type[BaseException]] | None = None) -> BaseException:
        """Return a recorded error as the exception to raise; `known` are classes registered for this call alone."""
        return error_from_data(data, {**self._errors, **known} if known else self._errors)

    # Recording the new.

    def locate(self, scope: Scope, name: str, explicit: bool) -> str:
        """Return the location of the next use of a name in a scope.

        Raises:
            DuplicateName: an explicit name was used here before.
        """
        counts = scope.counts
        if counts is None:
            counts = scope.counts = {}
        repeat = counts[name] = counts.get(name, 0) + 1
        key = self.names.codes.get(name)
        if key is None:
            key = self.names.add(name)
            self.record(NAMES + key, entries.Name(name))
        if repeat == 1:
            return scope.prefix + key
        if explicit:
            raise DuplicateName(
                f"{name!r} is used twice in one scope of run {self.run.id}{self.at_line()}; "
                "give each call a name of its own, or leave the name out to have them numbered"
            )
        return f"{scope.prefix}{key}#{number(repeat)}"

    def recorded(self, location: str, kind: int) -> Any:
        """Return the recorded call that is about to be made again, None if there is none of this kind."""
        row = self.past.calls.get(location)
        return decode_entry(kind, row.data) if row is not None and row.kind == kind else None

    def begin(self, location: str, call: Entry) -> Any:
        """Return the recorded form of a call, or None after recording it as new.

        On a mismatch the violation is set and the call itself is returned, so that the caller goes on to a verb that
        nothing will ever resolve.
        """
        past = self.past
        row = past.calls.pop(location, None) if past.calls else None
        if row is None:
            if past.strict:
                self._unexpected(location, call)
                return call
            self.record(location, call)
            return None
        if row.kind != call.kind:
            self.mismatch(location, f"a {entries.KINDS[row.kind].word}", f"a {call.word}")
            return call
        return decode_entry(row.kind, row.data)

    def begin_step(self, location: str, digest: int, attempt: int) -> entries.StepBegun | None:
        """Return the recorded form of the call of a step, as `begin` does; `SAME_STEP` if it is as it is made now."""
        data, past = f"[{digest},{attempt}]", self.past
        row = past.calls.pop(location, None) if past.calls else None
        if row is not None and row.kind == _STEP_BEGUN:
            return SAME_STEP if row.data == data else decode_entry(_STEP_BEGUN, row.data)
        if row is not None or past.facts:
            if row is not None:
                past.calls[location] = row
            recorded: entries.StepBegun | None = self.begin(location, entries.StepBegun(digest, attempt))
            return recorded
        seq, at = self.next_seq, self.loop.now
        self.next_seq = seq + 1
        if at < self.recorded_at:
            at = self.recorded_at
        else:
            self.recorded_at = at
        self.turn.entries.append(_row(EntryRow, (location, seq, _STEP_BEGUN, at, data)))
        return None

    def mark(self, location: str, mark: Entry) -> bool:
        """Record something the code noted, unless history has it; tells whether it is new."""
        if self.loop.dead or self.violation:
            return False
        row = self.past.marks.pop((location, mark.kind), None)
        if row is not None:
            if row.data != (now := encode_entry(mark)):
                self.mismatch(location, f"{mark.word} {row.data}", f"{mark.word} {now}")
        elif self.past.strict:
            self._unexpected(location, mark)
        else:
            self.record(location, mark)
            return True
        return False

    def has_mark(self, location: str, kind: int) -> bool:
        """Take a recorded mark, telling whether it was there."""
        return self.past.marks.pop((location, kind), None) is not None

    def record(self, location: str, entry: Entry) -> int:
        """Append an entry to the history and return its seq."""
        seq = self.next_seq
        self.next_seq = seq + 1
        at = self.loop.now
        if at < self.recorded_at:
            at = self.recorded_at  # a run that was reopened or paused asks for it now, not when it first came here
        else:
            self.recorded_at = at
        self.turn.entries.append(_row(EntryRow, (location, seq, entry.kind, at, encoder.encode(entry).decode())))
        return seq

    def abandon(self, verb: Verb) -> None:
        """Note that the code gave up waiting for a verb."""
        self.open.pop(verb.location, None)
        verb.forget()
        self.mark(verb.location, entries.Cancelled())
        self.turn.abandon(verb)

    def remove(self, location: str, word: str) -> None:
        """Tolerate the recorded call at a location, and everything under it, though the code no longer makes it."""
        row = self.past.calls.pop(location, None)
        if row is None:
            return
        if entries.KINDS[row.kind].word != word:
            self.mismatch(location, f"a {entries.KINDS[row.kind].word}", f"removed(..., {word!r})")
            return
        self.past.remove(location)

    def end(self, failed: Sequence[str]) -> None:
        """Record that the run failed, and the calls that ended it, unless history has just that."""
        mark = entries.Ended("failed", list(failed))
        row = self.past.marks.pop((NAMES, mark.kind), None)
        if row is None or row.data != encode_entry(mark):
            self.record(NAMES, mark)

    # Compensations.

    def registered(self, where: str) -> Compensation | None:
        """Take the compensation that history has for a call in the code."""
        row = self.past.marks.pop((where, entries.CompensationAdded.kind), None)
        return (self.compensations or [])[int(row.location[2:])] if row is not None else None

    def has_compensation(self, prefix: str, name: str, repeat: int) -> bool:
        """Tell whether history has the `repeat`-th call under a prefix that asks for a compensation of this name."""
        key = self.names.key(PREFIXES["compensation"] + name)
        return key is not None and (name_key(prefix, key, repeat), entries.CompensationAdded.kind) in self.past.marks

    def register(self, added: entries.CompensationAdded) -> Compensation | None:
        """Put a new compensation on the stack; None if history says that the code does not come here now."""
        if self.past.strict:
            self._unexpected(added.where, added)
            return None
        location = compensation_location(len(self.compensations or ()))
        self.record(location, added)
        return self._push(location, added)

    def carried(self) -> list[Entry]:
        """Return what is on the stack as a new life takes it over: its calls are not made there."""
        return [msgspec.structs.replace(each.entry, where="", undoes="") for each in self.compensations or ()]

    def _push(self, location: str, added: entries.CompensationAdded) -> Compensation:
        if self.compensations is None:
            self.compensations = []
        compensation = Compensation(location, added)
        self.compensations.append(compensation)
        return compensation

    # Waiting for messages.

    def take_in(self, message: Message) -> None:
        """Keep a message or an event until a receive waits for it."""
        if self.inbox is None:
            self.inbox = {}
        inbox.put(self.inbox, message)

    def unwanted_events(self) -> list[int]:
        """Take out the events that no open receive waits for; return their numbers in the inbox."""
        if not self.inbox:
            return []
        wanted = {name for verb in (self.receivers or {}).values() for name in verb.names}
        return inbox.take_events(self.inbox, wanted)

    # Mismatches.

    def mismatch(self, location: str, recorded: str, current: str, advice: str = "") -> None:
        """Block the run: history and code disagree at a location."""
        if self.violation is None:
            path, place = self.names.path(location), self.loop.workflow_line()
            message = (
                f"run {self.run.id}: at {path!r} history has {recorded}, the code now has {current}{self.at_line()}. "
                "The workflow changed under a run that is under way: put the old code back"
                + (f", or {advice}" if advice else "")
                + '; see "Changing code under open runs" in the documentation'
            )
            about = {"path": path, "recorded": recorded, "current": current, "place": place, "advice": advice}
            self.violation = HistoryMismatch(self.run.id, message, **about)

    def _unexpected(self, location: str, entry: Entry) -> None:
        following = self.past.facts[0]
        path, word = self.names.path(following.location), entries.KINDS[following.kind].word
        recorded = f"nothing there but goes on with {path!r} ({word})"
        if entry.role == entries.CALL or entry.word in PREFIXES:
            name = self._call_name(location, entry.word)
            advice = f'put the new call under `if ctx.patched("add-{name}"):`'
            if repeats_beside(location, (row.location for row in self.past.facts)):
                advice += f', or in a loop, round by round, under `if ctx.patched(f"add-{name}-{{round}}"):`'
            self.mismatch(location, recorded, f"a new {entry.word}", advice)
        else:
            self.mismatch(location, recorded, f"{entry.word!r} {encode_entry(entry)}")

    def unmatched(self) -> None:
        """Block the run if history holds calls that the code, having caught up, did not make."""
        for location, row in self.past.calls.items():
            word = entries.KINDS[row.kind].word
            now = f"no such call; {self._whereabouts()}"
            self.mismatch(location, f"a {word} (entry {row.seq})", now, self._removal(location))
            return

    def unexpected_fact(self, row: EntryRow) -> None:
        """Block the run: a recorded fact answers a call the code has not made."""
        recorded = f"{entries.KINDS[row.kind].word!r} (entry {row.seq})"
        now = f"no such call open; {self._whereabouts()}"
        self.mismatch(row.location, recorded, now, self._removal(row.location))

    def _removal(self, location: str) -> str:
        """Return the advice that makes up for the outermost recorded call at or around a location."""
        call = next((at for at in self.past.calls if at == location or inside(location, at)), None)
        if call is None:
            return ""
        word = entries.KINDS[self.past.calls[call].kind].word
        keep = f'keep its place with `ctx.removed("{self._call_name(call, word)}", "{word}")`'
        made = (row for row in self.turn.entries if entries.KINDS[row.kind].role == entries.CALL)
        if (new := next(made, None)) is None:
            return keep
        name = self._call_name(new.location, entries.KINDS[new.kind].word)
        return f'put the new call under `if ctx.patched("add-{name}"):`, or if the recorded one was taken out, {keep}'

    def _call_name(self, location: str, word: str) -> str:
        return step_name(self.names.path(location)).removeprefix(PREFIXES.get(word, ""))

    def _whereabouts(self) -> str:
        if self.renewal is not None:
            return "it continues as new"
        return f"it waits at {places}" if (places := self.loop.whereabouts()) else "it has ended"

    def at_line(self) -> str:
        """Return the line that the code is at, as errors show it: ` (shop.py:12)`."""
        return f" ({place.rpartition('/')[2]})" if (place := self.loop.workflow_line()) else ""

    def block(self, error: RunBlocked) -> None:
        """Block the run for a reason of its own."""
        if self.violation is None:
            self.violation = error


_STEP_BEGUN = entries.StepBegun.kind
SAME_STEP = entries.StepBegun(0, 0)
"""Stands for the recorded call of a step that is made again just as it was."""
_row: Any = tuple.__new__  # a NamedTuple without its own constructor: made twice for each step
_AT = attrgetter("at")
PREFIXES = {
    "receive": "receive ",
    "send": "send ",
    "publish": "publish ",
    "compensation": "compensate ",
    "attributes": "set ",
    "evidence": "evidence ",
    "reply": "",
}
"""What stands before the name in the location of some calls, so that a step of the same name is another one."""
