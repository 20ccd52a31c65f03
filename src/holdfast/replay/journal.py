"""The journal of one run: read the past at a location, record the new, notice a mismatch.

While recorded facts remain to be applied the run is *replaying*: every call the code makes must be one that history
recorded. A call that is not, a fact for a call that the code did not make, or another argument digest is a mismatch. It is
found before anything wrong is recorded or acted on: the violation is remembered, and the code simply never continues.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from holdfast.codec import ErrorData, error_from_data
from holdfast.errors import DuplicateName, HistoryMismatch, RunBlocked
from holdfast.records import EntryRow, Message, Send, StartChild
from holdfast.replay import entry as entries
from holdfast.replay.entry import Entry, decode_entry, encode_entry
from holdfast.replay.guards import user_line
from holdfast.replay.location import Names, Scope, checkpoint_location, iterations, name_key
from holdfast.replay.loop import RunLoop

CANCEL = "*"
NAMES = "!"


class RunInfo(NamedTuple):
    """What workflow code may know about its own run."""

    id: str
    workflow: str
    generation: int
    seed: int
    key: int


class Verb(asyncio.Future[Any]):
    """What a verb returns: resolved by a fact at its location."""

    __slots__ = ("journal", "location", "seq")
    word = "verb"

    def __init__(self, journal: Journal, location: str) -> None:
        self.seq = journal.loop.next_number()
        super().__init__(loop=journal.loop)  # type: ignore[arg-type]  # see RunLoop.create_future
        self.journal = journal
        self.location = location

    def __hash__(self) -> int:
        return self.seq

    def __eq__(self, other: object) -> bool:
        return self is other

    def apply(self, entry: Any) -> None:
        """Take the fact this verb waited for."""
        raise NotImplementedError

    def forget(self) -> None:
        """Stop waiting: called once, when the fact has come or the code gave up."""

    def cancel(self, msg: Any = None) -> bool:
        journal = self.journal
        if self.done() or journal.loop.dead:
            return super().cancel(msg)
        journal.abandon(self)
        return super().cancel(msg)


class Journal:
    """See the module's docstring."""

    __slots__ = (
        "_errors",
        "_facts",
        "_marks",
        "_past",
        "_removed",
        "_tries",
        "abandoned",
        "cancelling",
        "children",
        "consumed",
        "inbox",
        "kids",
        "lenient",
        "logs",
        "loop",
        "names",
        "new",
        "next_seq",
        "open",
        "receivers",
        "renewal",
        "root",
        "run",
        "sends",
        "silent",
        "started",
        "trims",
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
        self.lenient = False
        self.silent = False
        self.violation: Exception | None = None
        self.renewal: str | None = None
        self._errors = errors
        self._past: dict[str, EntryRow] = {}
        self._facts: deque[EntryRow] | tuple[()] = ()
        self._marks: dict[tuple[str, int], EntryRow] = {}
        self._tries: dict[str, list[EntryRow]] = {}
        self._removed: list[str] | None = None
        self.forget_turn()

    def forget_turn(self) -> None:
        """Start collecting what the next turn asks for."""
        self.new: list[EntryRow] = []
        self.sends: list[Send] = []
        self.children: list[StartChild] = []
        self.started: list[Any] = []
        self.abandoned: list[Verb] = []
        self.trims: list[tuple[str, str]] = []
        self.consumed: list[int] = []
        self.logs: list[tuple[int, str, tuple[Any, ...], str]] = []

    # Reading the past.

    def load(self, rows: Sequence[EntryRow]) -> None:
        """Take in a recorded history, in order of seq."""
        past, marks, tries, facts = self._past, self._marks, self._tries, deque[EntryRow]()
        for row in self._after_checkpoints(rows):
            kind = row.kind
            if kind in entries.FACTS:
                facts.append(row)
            elif kind in entries.CALLS:
                past[row.location] = row
            elif kind == entries.Name.kind:
                self.names.add(decode_entry(kind, row.data).name)
            elif kind in _ATTEMPT_KINDS:
                tries.setdefault(row.location, []).append(row)
            else:
                marks[row.location, kind] = row
        self._facts = facts
        if rows:
            self.next_seq = rows[-1].seq + 1

    def _after_checkpoints(self, rows: Sequence[EntryRow]) -> Sequence[EntryRow]:
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

    @property
    def replaying(self) -> bool:
        """Whether recorded facts remain to be applied."""
        return bool(self._facts)

    def next_fact(self) -> EntryRow | None:
        """Take the next recorded fact."""
        return self._facts.popleft() if self._facts else None

    def tries(self, location: str) -> list[EntryRow]:
        """Take the recorded attempts of a step, beyond its first beginning."""
        return self._tries.pop(location, [])

    def checkpoint(self, loop: str) -> entries.LoopCheckpoint | None:
        """Take the recorded state of a loop."""
        row = self._marks.pop((checkpoint_location(loop), entries.LoopCheckpoint.kind), None)
        return decode_entry(row.kind, row.data) if row else None

    def error(self, data: ErrorData, known: Mapping[str, type[BaseException]] | None = None) -> BaseException:
        """Return a recorded error as the exception to raise; `known` are classes registered for this call alone."""
        return error_from_data(data, {**self._errors, **known} if known else self._errors)

    # Recording the new.

    def locate(self, scope: Scope, name: str, explicit: bool) -> str:
        """Return the location of the next use of a name in a scope.

        Raises:
            DuplicateName: an explicit name was used here before.
        """
        repeat = scope.repeat(name)
        if explicit and repeat > 1:
            raise DuplicateName(
                f"{name!r} is used twice in one scope of run {self.run.id}{_at_line()}; "
                "give each call a name of its own, or leave the name out to have them numbered"
            )
        key = self.names.key(name)
        if key is None:
            key = self.names.add(name)
            self.record(NAMES + key, entries.Name(name))
        return name_key(scope.prefix, key, repeat)

    def begin(self, location: str, call: Entry) -> Any:
        """Return the recorded form of a call, or None after recording it as new.

        On a mismatch the violation is set and the call itself is returned, so that the caller goes on to a verb that
        nothing will ever resolve.
        """
        row = self._past.pop(location, None)
        if row is None:
            if self._facts and not self.lenient:
                self._unexpected(location, call)
                return call
            self.record(location, call)
            return None
        if row.kind != call.kind:
            self.mismatch(location, f"a {entries.KINDS[row.kind].word}", f"a {call.word}")
            return call
        return decode_entry(row.kind, row.data)

    def mark(self, location: str, mark: Entry) -> None:
        """Record something the code noted, unless history has it."""
        if self.loop.dead or self.violation:
            return
        if self._marks.pop((location, mark.kind), None) is None:
            if self._facts and not self.lenient:
                self._unexpected(location, mark)
                return
            self.record(location, mark)

    def has_mark(self, location: str, kind: int) -> bool:
        """Take a recorded mark, telling whether it was there."""
        return self._marks.pop((location, kind), None) is not None

    def record(self, location: str, entry: Entry) -> int:
        """Append an entry to the history and return its seq."""
        seq = self.next_seq
        self.next_seq = seq + 1
        self.new.append(EntryRow(location, seq, entry.kind, self.loop.now, encode_entry(entry)))
        return seq

    def abandon(self, verb: Verb) -> None:
        """Note that the code gave up waiting for a verb."""
        self.open.pop(verb.location, None)
        verb.forget()
        self.mark(verb.location, entries.Cancelled())
        self.abandoned.append(verb)

    def remove(self, location: str, word: str) -> None:
        """Tolerate the recorded call at a location, and everything under it, though the code no longer makes it."""
        row = self._past.pop(location, None)
        if row is not None and entries.KINDS[row.kind].word != word:
            self.mismatch(location, f"a {entries.KINDS[row.kind].word}", f"removed(..., {word!r})")
            return
        if row is None:
            return
        self._removed = [*(self._removed or ()), location]
        self.lenient = True
        for gone in [known for known in self._past if known.startswith(location + "/")]:
            del self._past[gone]

    def removed(self, location: str) -> bool:
        """Tell whether a location was given up with `remove`."""
        return any(location == gone or location.startswith(gone + "/") for gone in self._removed or ())

    # Waiting for messages.

    def match(self) -> tuple[Verb, Message] | None:
        """Take the oldest message that an open receive waits for, served in order of the calls."""
        for verb in (self.receivers or {}).values():
            heads = [queue[0] for name in verb.names if (queue := (self.inbox or {}).get(name))]
            if heads:
                message = min(heads)
                queue = (self.inbox or {})[message.name]
                queue.popleft()
                if not queue and self.inbox:
                    del self.inbox[message.name]
                return verb, message
        return None

    # Mismatches.

    def mismatch(self, location: str, recorded: str, current: str, advice: str = "") -> None:
        """Block the run: history and code disagree at a location."""
        if self.violation is None:
            self.violation = HistoryMismatch(
                self.run.id,
                f"run {self.run.id}: at {self.names.path(location)!r} history has {recorded}, the code now has {current}"
                f"{_at_line()}. The workflow changed under a run that is under way: put the old code back"
                + (f", or {advice}" if advice else "")
                + "; see docs/how-to/change-code.md",
            )

    def _unexpected(self, location: str, call: Entry) -> None:
        name = self.names.path(location).rpartition("/")[2].partition("#")[0]
        following = self._facts[0] if self._facts else None
        recorded = (
            f"nothing there but goes on with {self.names.path(following.location)!r}"
            f" ({entries.KINDS[following.kind].word})"
            if following
            else "nothing there"
        )
        self.mismatch(
            location, recorded, f"a new {call.word}", f'put the new call under `if ctx.patched("add-{name}"):`'
        )

    def unmatched(self) -> None:
        """Block the run if history holds calls that the code, having caught up, did not make."""
        for location, row in self._past.items():
            word = entries.KINDS[row.kind].word
            name = self.names.path(location).rpartition("/")[2].partition("#")[0]
            self.mismatch(
                location,
                f"a {word} (entry {row.seq})",
                f"no such call; it waits at {self.loop.whereabouts()}",
                f'keep its place with `ctx.removed("{name}", "{word}")`',
            )
            return

    def unexpected_fact(self, row: EntryRow) -> None:
        """Block the run: a recorded fact answers a call the code has not made."""
        location = row.location
        self.mismatch(
            location,
            f"{entries.KINDS[row.kind].word} (entry {row.seq})",
            f"no such call open; it waits at {self.loop.whereabouts()}",
            f'keep its place with `ctx.removed("{self.names.path(location)}", ...)`',
        )

    def block(self, error: RunBlocked) -> None:
        """Block the run for a reason of its own."""
        if self.violation is None:
            self.violation = error


_ATTEMPT_KINDS = frozenset({entries.AttemptBegun.kind, entries.AttemptFailed.kind, entries.AttemptLost.kind})


def _covered(location: str, lows: list[str], ranges: list[tuple[str, str]]) -> bool:
    at = bisect_right(lows, location) - 1
    return at >= 0 and location < ranges[at][1]


def _at_line() -> str:
    place = user_line()
    return f" ({place[0].rsplit('/', 1)[-1]}:{place[1]})" if place else ""
