"""What a rule says about a run, with one of the codes that never change."""

from __future__ import annotations

import shlex
from typing import Literal

import msgspec

from holdfast.clock import Instant
from holdfast.contract.heads import RunHead
from holdfast.contract.waits import WaitNote, error_head, meant_error
from holdfast.looking.views import Help
from holdfast.looking.why.requests import request_of

Code = Literal[
    "completed", "failed.step", "failed.code", "failed.timeout", "failed.child", "cancelled", "terminated", "moved",
    "moving",
    "blocked.mismatch", "blocked.poison", "blocked.busy_loop", "blocked.stuck", "blocked.code", "paused", "cancelling",
    "compensating", "ending.hook", "pending.later", "pending.nobody", "pending.busy", "pending.admission", "debounced",
    "overdue", "running.step", "running.silent", "running.dead", "waiting.retry", "waiting.condition", "waiting.limit",
    "waiting.circuit", "waiting.paused", "waiting.queue", "waiting.queue.nobody", "waiting.key", "waiting.message",
    "waiting.message.similar", "waiting.event", "waiting.child", "waiting.sleep", "waiting.several", "waiting.unknown",
]  # fmt: skip
"""Every code there is. Words of sentences change, codes do not: programs may compare them."""


class Say(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says."""

    code: Code
    text: str
    since: Instant | None = None
    until: Instant | None = None
    subject: dict[str, str] = {}
    follows: str | None = None
    """The run that it waits for."""
    help: tuple[Help, ...] = ()


def helping(say: str, *words: str) -> Help:
    """Return a command that would move a run, and what it does."""
    return Help(say=say, command=" ".join(["holdfast", *map(shlex.quote, words)]), request=request_of(words))


def discreet(head: RunHead) -> RunHead:
    """Return a run whose errors have lost their texts, but for those that are holdfast's own."""
    kind, _ = meant_error(head.error_type or "", head.error_message or "")
    words, _, line = head.wait.partition("\n")
    if line:
        notes = msgspec.json.decode(line, type=list[WaitNote])
        told = [msgspec.structs.replace(note, error="" if note.skipped else _class_in(note.error)) for note in notes]
        line = f"\n{msgspec.json.encode(told).decode()}"
    if kind.rpartition(".")[2] not in _OURS:
        head = msgspec.structs.replace(head, error_type=kind or head.error_type, error_message="")
    return msgspec.structs.replace(head, wait=f"{words}{line}")


_OURS = frozenset({"HistoryMismatch", "StuckRun", "BusyLoop", "Superseded", "Terminated"})


def _class_in(error: str) -> str:
    """Return the class of an error from its head, which is one word before a colon; nothing if it begins otherwise."""
    name = error.partition(":")[0]
    return name if name.isidentifier() else ""


def error_of(head: RunHead) -> str:
    """Return the error of a run, short."""
    return error_head(*meant_error(head.error_type or "an error", head.error_message or ""))


def lower(text: str) -> str:
    """Return a sentence as it goes on after another."""
    return text[:1].lower() + text[1:]
