"""What a parked run waits for, as its row says it: words first, then notes.

`runs.wait` begins with words that people can read and search, `message approved; timer`. If there is more to say, a
line of JSON follows: a list of notes. The commit that parks the run writes both, so a reader can say why it waits
without reading its history.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.texts import shortened

MOST_BYTES = 400
"""How long a wait may be."""
_ERROR, _LOOKED_AT = 80, 400


class WaitNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a run waits for; `kind` is the first of its words."""

    kind: str
    step: str = ""
    """The path of the step that waits."""
    names: tuple[str, ...] = ()
    """Of messages; of a child, its id."""
    queue: str = ""
    limit: str = ""
    """That the step waits for; of a `retry`, that has told it when its turn comes."""
    activity: str = ""
    key: str = ""
    """The idempotency key, of this activity, that another step holds."""
    attempt: int = 0
    """How often its body has failed."""
    of: int | None = None
    """How often it may."""
    until: Instant | None = None
    """When it goes on, or gives up."""
    error: str = ""
    """The last error, or why the step was put off."""
    skipped: bool = False
    """Whether its condition put the step off."""


def write_wait(words: str, notes: Sequence[WaitNote]) -> str:
    """Return what is stored: never more than MOST_BYTES, but for the words."""
    left = list(notes)
    while left:
        text = f"{words}\n{msgspec.json.encode(left).decode()}"
        if len(text.encode()) <= MOST_BYTES:
            return text
        longest = max(left, key=lambda note: len(note.error))
        if longest.error:
            left[left.index(longest)] = msgspec.structs.replace(longest, error=longest.error[: len(longest.error) // 2])
        else:
            left.pop()
    return words


def error_head(type_name: str, message: str) -> str:
    """Return the class and the beginning of the message of an error, on one line; without a class the message alone."""
    said = ": ".join(filter(None, (type_name.rpartition(".")[2], " ".join(message[:_LOOKED_AT].split()))))
    return shortened(said, _ERROR)


def meant_error(type_name: str, message: str) -> tuple[str, str]:
    """Return class and message of an error; a StepFailed stands for one of another class, which its message names."""
    if type_name.rpartition(".")[2] != "StepFailed" or not message:
        return type_name, message
    kind, _, rest = message.partition(": ")
    return kind, rest


def words_of(wait: str) -> str:
    """Return the words of what is stored."""
    return wait.partition("\n")[0]


def notes_of(wait: str) -> list[WaitNote]:
    """Return what a run waits for, from what is stored: the words, with more about those that have a note."""
    words, _, line = wait.partition("\n")
    noted: list[WaitNote] = msgspec.json.decode(line, type=list[WaitNote]) if line else []
    found: list[WaitNote] = []
    for word in filter(None, words.split("; ")):
        kind, _, rest = word.partition(" ")
        if kind == "step":
            path, _, queue = rest.partition(" (queue ")
            found.append(WaitNote(kind="queue", step=path, queue=queue.removesuffix(")")))
        elif kind in _NOTED and any(note.kind == kind for note in noted):
            continue
        elif kind == "message":
            found.append(WaitNote(kind=kind, names=tuple(rest.split(","))))
        elif kind == "child":
            found.append(WaitNote(kind=kind, names=(rest,)))
        elif kind == "limit":
            found.append(WaitNote(kind=kind, limit=rest))
        else:
            found.append(WaitNote(kind=kind))
    return [*noted, *found]


_NOTED = frozenset({"retry", "key", "limit", "message"})
"""Kinds that notes replace: what they say includes the words."""
