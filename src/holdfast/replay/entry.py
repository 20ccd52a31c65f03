"""Entries: what happened, one small frozen class per kind.

An entry is a *call* (workflow code asked for something), a *fact* (something the code waited for has happened; facts
are applied in order of seq and drive the code) or a *mark* (the code, or the engine on behalf of a step, noted
something that drives nothing). In the store an entry is its kind number and the JSON array of its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from holdfast.payloads.codec import ErrorData

CALL, FACT, MARK = "call", "fact", "mark"
OVER_LIMIT = "limit "
"""How the reason of a skip begins that a limit asked for."""
STOPPED = "the worker stopped"
"""The reason of a skip before which an attempt was counted that did not begin any more."""
UNCOUNTED = (OVER_LIMIT, STOPPED)
"""How the reasons of skips begin that no condition asked for."""
_NULL = msgspec.Raw(b"null")


class Entry(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The base of all kinds."""

    kind: ClassVar[int]
    role: ClassVar[str]
    word: ClassVar[str]


class Name(Entry, frozen=True):
    """A name and, by its location, its number."""

    kind, role, word = 0, MARK, "name"
    name: str


class StepBegun(Entry, frozen=True):
    """A step was called and its first attempt counted."""

    kind, role, word = 1, CALL, "step"
    digest: int
    attempt: int = 1
    """More than 1 if an earlier call of this step was cut away: no number is given twice."""
    arguments: msgspec.Raw = _NULL
    """By the names of the parameters, where they are recorded."""


class StepCompleted(Entry, frozen=True):
    """A step's result."""

    kind, role, word = 2, FACT, "step completed"
    attempt: int
    result: msgspec.Raw


class StepFailure(Entry, frozen=True):
    """A step failed for good."""

    kind, role, word = 3, FACT, "step failed"
    attempt: int
    error: ErrorData


class AttemptBegun(Entry, frozen=True):
    """Another attempt was counted, before its body runs."""

    kind, role, word = 4, MARK, "attempt"
    attempt: int


class AttemptFailed(Entry, frozen=True):
    """An attempt threw or timed out and will be followed by another."""

    kind, role, word = 5, MARK, "attempt failed"
    attempt: int
    error: ErrorData
    retry_at: int


class AttemptLost(Entry, frozen=True):
    """An attempt ended without a result of its own.

    `why` is crash (its process died), outlived (its process died after the attempt had run there for over a minute),
    outage (its process died in a minute in which workers died that did not run it), lapse (its worker hung), handed
    back (an orderly stop or a storage fault), bystander (a suspect whose worker died while it ran in a child process of
    its own), cleared (a suspect that only raised in its child process and runs in the worker again), or held (it never
    ran: another step has its key).
    """

    kind, role, word = 6, MARK, "attempt lost"
    attempt: int
    why: str


class Cancelled(Entry, frozen=True):
    """The code gave up waiting for this call (a timeout, a lost race, a cancelled task)."""

    kind, role, word = 7, MARK, "cancelled"


class SleepBegun(Entry, frozen=True):
    """A durable sleep and its deadline."""

    kind, role, word = 8, CALL, "sleep"
    deadline: int


class TimerFired(Entry, frozen=True):
    """A timer's time has come: a sleep, the timeout of a receive, or an asyncio timer."""

    kind, role, word = 9, FACT, "timer fired"


class ReceiveBegun(Entry, frozen=True):
    """A wait for a message with one of these names."""

    kind, role, word = 10, CALL, "receive"
    names: list[str]
    deadline: int | None = None


class MessageReceived(Entry, frozen=True):
    """The message a wait was given."""

    kind, role, word = 11, FACT, "message"
    name: str
    id: str
    payload: msgspec.Raw
    source: str = ""
    """Empty for a message sent to the run, else event or notice (see `contract.rows.Message`)."""


class SendBegun(Entry, frozen=True):
    """A message to another run; `refused` says why it could not be delivered: missing, full, or how that run ended.

    Of one that was moved the address stands behind that.
    """

    kind, role, word = 12, CALL, "send"
    target: str
    name: str
    digest: int
    refused: str = ""


class SendDone(Entry, frozen=True):
    """The outcome of a send reached the code."""

    kind, role, word = 13, FACT, "sent"
    refused: str = ""


class ChildBegun(Entry, frozen=True):
    """A child run was started; `refused` is taken when its id belongs to another run.

    It is full when its workflow refuses more runs, ancestors when only runs that wait for it could make room.
    """

    kind, role, word = 14, CALL, "child"
    id: str
    digest: int
    refused: str = ""


class ChildEnded(Entry, frozen=True):
    """A child's result or error."""

    kind, role, word = 15, FACT, "child ended"
    status: str
    result: msgspec.Raw = _NULL
    error: ErrorData | None = None


class JoinBegun(Entry, frozen=True):
    """A join and its branches."""

    kind, role, word = 16, CALL, "join"
    branches: list[str]


class RaceBegun(Entry, frozen=True):
    """A race and its branches."""

    kind, role, word = 17, CALL, "race"
    branches: list[str]


class BranchEnded(Entry, frozen=True):
    """A branch of a join or race ended: completed, failed or cancelled."""

    kind, role, word = 18, MARK, "branch ended"
    status: str


class RaceWon(Entry, frozen=True):
    """The branch that won a race."""

    kind, role, word = 19, MARK, "race won"
    winner: str


class LoopBegun(Entry, frozen=True):
    """A durable loop."""

    kind, role, word = 20, CALL, "loop"


class LoopCheckpoint(Entry, frozen=True):
    """The state with which iteration `iteration` begins; iterations below `trimmed` are gone from the history."""

    kind, role, word = 21, MARK, "loop state"
    iteration: int
    trimmed: int
    state: msgspec.Raw


class LoopEnded(Entry, frozen=True):
    """A loop's body said Break."""

    kind, role, word = 22, MARK, "loop ended"
    iterations: int


class Patched(Entry, frozen=True):
    """The run takes the new path of `patched(name)` here."""

    kind, role, word = 23, MARK, "patched"


class CancelRequested(Entry, frozen=True):
    """A caller or an operator asked the run to stop."""

    kind, role, word = 24, FACT, "cancel"
    compensate: bool = False


class Renewed(Entry, frozen=True):
    """A new life of the run began (continue-as-new); its time is the time of this entry."""

    kind, role, word = 25, MARK, "renewed"


class CompensationAdded(Entry, frozen=True):
    """What to run if the run fails later: an activity by name and its arguments; `where` is the call in the code.

    Its own location is its place in the run's stack of compensations, which outlives the loop that added to it.
    `undoes` is where the call is that it undoes: a step, a child, or a join, race or loop with all that is in it; empty
    if nothing had been done there yet, or what was done has another compensation.
    """

    kind, role, word = 26, MARK, "compensation"
    where: str
    name: str
    args: msgspec.Raw
    kwargs: msgspec.Raw
    undoes: str = ""


class Earlier(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """What a step had come to in entries that a reopening cut away: its highest attempt, its failures and skips."""

    attempt: int = 0
    failures: int = 0
    skips: int = 0


class Reopened(Entry, frozen=True):
    """The run had ended here and goes on (retry, resume, rerun); a step's location gets a fresh budget of attempts.

    The first mark of a reopening also says what the run no longer has, by the readable paths of steps, for the numbers
    of names may be given again: `cut` are those whose call was cut away, `undone` how often each step was undone by its
    compensation, and each compensation did undo; a path stands for all that is under it, too. Both hold for all
    reopenings so far.
    """

    kind, role, word = 27, MARK, "reopened"
    how: str
    step: Earlier = Earlier()
    """About the step at this location, whose call was kept."""
    cut: dict[str, Earlier] = {}
    undone: dict[str, int] = {}


class PublishBegun(Entry, frozen=True):
    """An event by name; `refused` is full when its queue had no room."""

    kind, role, word = 28, CALL, "publish"
    name: str
    digest: int
    refused: str = ""


class AttributesSet(Entry, frozen=True):
    """Searchable attributes were set."""

    kind, role, word = 29, MARK, "attributes"
    values: msgspec.Raw


class EvidenceAdded(Entry, frozen=True):
    """An item was added to the run's audit trail."""

    kind, role, word = 30, MARK, "evidence"
    what: str
    id: str


class Replied(Entry, frozen=True):
    """A request was answered; `to` is the id of the message that asked."""

    kind, role, word = 31, MARK, "reply"
    to: str


class AttemptSkipped(Entry, frozen=True):
    """A step's condition said not now; it is asked again at `check_at`. No attempt is counted."""

    kind, role, word = 32, MARK, "skipped"
    reason: str
    check_at: int


class Ended(Entry, frozen=True):
    """The run failed; `failed` are the locations of the calls whose errors ended it, none if the code itself raised."""

    kind, role, word = 33, MARK, "ended"
    status: str
    failed: list[str] = []


class Withheld(Entry, frozen=True):
    """The run is being paused: the code has not seen the facts that follow, until it makes calls of its own again."""

    kind, role, word = 34, MARK, "withheld"


class Forgotten(Entry, frozen=True):
    """The code never awaited this call, which failed a loop when it came to record its state."""

    kind, role, word = 35, MARK, "forgotten"


class LoopKept(Entry, frozen=True):
    """A loop came to where it forgets its past, and could not: what hinders it."""

    kind, role, word = 36, MARK, "loop kept"
    hindrance: str


class ProgressNoted(Entry, frozen=True):
    """The code said how far it has come; nothing depends on it, so code that says it elsewhere fits all the same."""

    kind, role, word = 40, MARK, "progress"
    done: float
    of: float | None = None


class ResultKept(Entry, frozen=True):
    """What a call returned that could not be interrupted when the run was cancelled; `resume` hands it to the code."""

    kind, role, word = 45, MARK, "result kept"
    attempt: int
    result: msgspec.Raw


class Decided(Entry, frozen=True):
    """How the run ended: its hooks run from here on, and nothing changes this any more.

    `failed` is as in Ended; `state` is what the code answered to the query `state`.
    """

    kind, role, word = 51, MARK, "decided"
    status: str
    result: msgspec.Raw = _NULL
    error: ErrorData | None = None
    failed: list[str] = []
    compensation: msgspec.Raw = _NULL
    state: msgspec.Raw = _NULL


class EndKept(Entry, frozen=True):
    """What came of an attempt, before the callbacks of its activity were told; then it is recorded as what it is."""

    kind, role, word = 50, MARK, "end kept"
    what: int
    """The kind of the entry that tells it."""
    entry: msgspec.Raw

    @classmethod
    def of(cls, entry: Entry) -> EndKept:
        """Keep an entry."""
        return cls(entry.kind, msgspec.Raw(encoder.encode(entry)))

    def kept(self) -> Any:
        """Return the entry that is kept."""
        return DECODERS[self.what](bytes(self.entry))


KINDS: dict[int, type[Entry]] = {kind.kind: kind for kind in Entry.__subclasses__()}
FACTS = frozenset(kind for kind, cls in KINDS.items() if cls.role == FACT)
CALLS = frozenset(kind for kind, cls in KINDS.items() if cls.role == CALL)
STEP_ENDS = frozenset({StepCompleted.kind, StepFailure.kind})
BY_WORD = {cls.word: cls for cls in KINDS.values() if cls.role == CALL}

encoder = msgspec.json.Encoder()


class _Decoders(dict[int, Callable[[str | bytes], Any]]):
    """What decodes each kind, made when it is first needed: a run meets few of them, and a program may meet none."""

    def __missing__(self, kind: int) -> Callable[[str | bytes], Any]:
        decode = self[kind] = msgspec.json.Decoder(KINDS[kind]).decode
        return decode


DECODERS = _Decoders()


def encode_entry(entry: Entry) -> str:
    """Return the stored form of an entry."""
    return encoder.encode(entry).decode()


def decode_entry(kind: int, data: str) -> Any:
    """Return the entry of a stored row."""
    return DECODERS[kind](data)
