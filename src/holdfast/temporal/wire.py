"""What crosses Temporal's history: payloads, the input of a turn, its answer, what one execution hands to the next.

All of it is JSON that Temporal's own tools can show. Later releases read these records: fields are only added, with
defaults.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from holdfast.contract.rows import EntryRow, InboxKind, Message
from holdfast.errors import PayloadTooLarge

T = TypeVar("T")
VERSION = 5
"""Of the interpreter: which commands it makes of the same answers. Runs under way keep the one they began with.

Since 2 a blocked run that is cancelled ends, and what a cancelled run undid is in its memo. Since 3 the result of an
attempt may bring the answer of the turn that takes it, see `Ahead`. Since 4 a run that begins later waits for its time
though it is sent something before. Since 5 what is asked of Temporal depends on answers and not on the task in which
they come: see `sdk.Alarms`; and a run that is cancelled before its first turn never enters its code.
"""
MOST_BYTES = 2_000_000
"""How large a payload may be, a little below the server's own limit of 2 MiB."""
_LARGE = 64_000
_PLAIN, _PACKED = b"json/plain", b"binary/holdfast-zlib"
_TASK = 10_000_000
TURN = "holdfast.turn"
ACTS = "holdfast."
"""How the names of signals and queries begin that are not a message or a query of the code."""

Row = tuple[str, int, int, int, str]
Evidence = tuple[str, str, str, int, str]
"""Id, kind, data, time and hash of a piece."""


class Happening(msgspec.Struct, array_like=True, omit_defaults=True):
    """Something that came about, for the next turn.

    `kind` is begin, end (of an attempt: `location`, its number `n`, and a TaskEnd as `data`), mail (an inbox row, whose
    fields are in `data`), due (a time came that the last answer named), sent, refused (a child whose id is taken),
    nudge, or more (the last answer left steps to begin).
    """

    kind: str
    at: int
    location: str = ""
    n: int = 0
    data: str = ""


class TurnInput(msgspec.Struct, omit_defaults=True):
    """What a turn is made of; `number` tells whether the code in memory is where it should be."""

    number: int
    happenings: list[Happening]
    long: int = 0
    """Whether the history is so long that the run is to go on in another execution: 1, and 2 if it is twice as long."""


class AttemptCall(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What the worker that runs an attempt has to know, beside what the activity itself says: see TaskCall.

    Its step is the activity's id; an empty `key` is the run's id and the step.
    """

    arguments: msgspec.Raw
    called_at: int
    key: str = ""
    own_key: str | None = None
    timeout: int | None = None
    heartbeat_timeout: int | None = None
    suspect: bool = False
    in_process: bool = False


class Begin(msgspec.Struct, array_like=True, omit_defaults=True):
    """An attempt to begin: an activity of Temporal's."""

    location: str
    attempt: int
    path: str
    activity: str
    queue: str
    call: msgspec.Raw
    timeout: int = 0
    """For how long the server waits for its end; 0: for as long as its worker lives, which keeps the step's timeout."""


class Sending(msgspec.Struct, array_like=True):
    """A message to another run."""

    location: str
    target: str
    name: str
    id: str
    payload: str


class ChildToStart(msgspec.Struct, array_like=True):
    """A run to start."""

    location: str
    id: str
    workflow: str
    queue: str
    input: str
    carry: str
    with_parent: bool


class RunEnded(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How the run, or this life of it, ended: see `replay.turn.Outcome`; `told` is what its parent is told."""

    status: str
    payload: str = ""
    error: str = ""
    compensation: str = ""
    failed_step: str = ""
    rows: list[Row] = []
    told: str = ""


class TurnAnswer(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What a turn asks for. `taken` are the happenings it took, fewer than it was given if one could not be."""

    taken: int
    rows: list[Row] = []
    trims: list[tuple[str, str]] = []
    consumed: list[int] = []
    begin: list[Begin] = []
    stop: list[str] = []
    sends: list[Sending] = []
    children: list[ChildToStart] = []
    replies: list[tuple[str, str]] = []
    attributes: dict[str, str | None] = {}
    evidence: list[tuple[str, str, str, int]] = []
    due: int | None = None
    at: int = 0
    """The time of the turn: what was due by then it has done."""
    long: int = 0
    """What it was told of the length of the history."""
    more: bool = False
    status: str = "running"
    wait: str = ""
    blocked: str = ""
    ended: RunEnded | None = None


class Ahead(msgspec.Struct, array_like=True):
    """The answer of a turn that was made where the attempt of a step ended, to be taken if the run is still there.

    It goes with the result of the attempt, in the metadata of its payload. `number` and `at` are those of the batch.
    """

    number: int
    at: int
    answer: TurnAnswer


class RunRules(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Settings that decide commands: they travel with the run, so that a replay elsewhere makes the same ones."""

    history_limit: int = 8_000
    """After how many events of Temporal's history the run goes on in another execution."""
    grace: int = 60_000_000
    lease: int = 30_000_000
    pending: int = 1_000
    """How many activities of the run Temporal is given at a time."""

    @property
    def task_timeout(self) -> timedelta:
        """After how long the server takes a worker for dead that was making a turn."""
        return timedelta(microseconds=min(self.lease, _TASK))


class Carry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What one execution of Temporal's hands to the next one of the same run, beside the input."""

    version: int = 1
    """Of the interpreter that it began with; never changed here, since it is left out of what is recorded."""
    seed: int = 0
    digest: int = 0
    workflow_version: str = ""
    """The version of the workflow that it began with, empty if that was not known where it was started."""
    generation: int = 0
    begun: int = 0
    delay: int = 0
    """How long after the start of the execution the run begins."""
    timeout: int | None = None
    deadline: int | None = None
    rows: list[Row] = []
    """The history of this life, if it goes on; a new life has only what it takes over."""
    inbox: list[tuple[int, str, str, str, str, int]] = []
    numbers: int = 0
    """Of the last inbox row."""
    seen: list[str] = []
    """The ids of the last messages."""
    attributes: dict[str, str] = {}
    evidence: list[Evidence] = []
    reopens: int = 0
    parent: str = ""
    children: dict[str, bool] = {}
    """The children that have not ended, and whether they are cancelled with this run."""
    paused: bool = False
    """Whether it was paused where it comes from, and until when."""
    paused_until: int | None = None
    rules: RunRules = msgspec.field(default_factory=RunRules)


def raw(data: bytes | str, **said: str) -> RawValue:
    """Return encoded JSON as a payload; what else is said goes into its metadata."""
    text = data.encode() if isinstance(data, str) else data
    metadata = {"encoding": _PLAIN, **{f"holdfast-{name}": value.encode() for name, value in said.items()}}
    return RawValue(Payload(metadata=metadata, data=text))


def data_of(value: RawValue) -> bytes:
    """Return the JSON of a payload; one without data is null."""
    payload = value.payload
    if payload.metadata.get("encoding") == _PACKED:
        return zlib.decompress(payload.data)
    return payload.data or b"null"


def said(value: RawValue, name: str) -> str:
    """Return what the metadata of a payload says, empty if nothing."""
    return value.payload.metadata.get(f"holdfast-{name}", b"").decode()


def result_of(result: bytes) -> str:
    """Return the result of an attempt as a TaskEnd."""
    return '{"result":' + result.decode() + "}"


def with_ahead(result: bytes, ahead: Ahead) -> RawValue:
    """Return the result of an attempt with the answer of the turn that takes it, without it if that is large."""
    encoded = msgspec.json.encode(ahead).decode()
    return raw(result, ahead=encoded) if len(encoded) <= _LARGE else raw(result)


def ahead_in(value: RawValue) -> Ahead | None:
    """Return the answer that came with the result of an attempt."""
    encoded = said(value, "ahead")
    return msgspec.json.decode(encoded, type=Ahead) if encoded else None


def packed(value: object) -> RawValue:
    """Return one of the records above as a payload, compressed where it is large."""
    data = msgspec.json.encode(value)
    if len(data) <= _LARGE:
        return raw(data)
    return RawValue(Payload(metadata={"encoding": _PACKED}, data=zlib.compress(data, 6)))


def unpacked(value: RawValue, kind: type[T]) -> T:
    """Return the record that a payload carries."""
    return msgspec.json.decode(data_of(value), type=kind)


def too_large(what: str, size: int) -> PayloadTooLarge:
    """Return the refusal of what Temporal would not take."""
    return PayloadTooLarge(
        f"{what} takes {size:,} bytes, and a Temporal server takes at most {MOST_BYTES:,}: keep large data elsewhere, "
        "and pass where it is"
    )


def linked(items: Sequence[tuple[str, str, str, int]], before: Sequence[Evidence] = ()) -> list[Evidence]:
    """Return evidence with more at its end, each piece with the hash that chains it to the one before."""
    chain = [*before]
    for item in items:
        last = chain[-1][4] if chain else ""
        chain.append((*item, hashlib.sha256("\n".join([last, *map(str, item)]).encode()).hexdigest()))
    return chain


def rows_of(rows: list[Row]) -> list[EntryRow]:
    """Return recorded entries as replay takes them."""
    return [EntryRow(*row) for row in rows]


def is_cancel(mail: Happening) -> bool:
    """Whether an inbox row asks the run to stop."""
    return mail_of(mail).kind == InboxKind.CANCEL


def mail_of(happening: Happening) -> Message:
    """Return the inbox row that came."""
    fields: Any = msgspec.json.decode(happening.data)
    return Message(*fields)
