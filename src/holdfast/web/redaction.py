"""What of an answer a role may see: payloads, texts of errors, and values that look like secrets."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from holdfast.errors import BadInput
from holdfast.web.auth import Principal

HIDDEN = "hidden"
"""What a viewer sees of a payload."""
MASKED = "\u2022" * 6
"""What anyone sees of a value whose path is marked."""

_PAYLOADS: dict[str, frozenset[str]] = {
    "RunView": frozenset({"input", "output", "error", "compensation"}),
    "StepView": frozenset({"progress", "result", "reason", "traceback"}),
    "ArgumentsView": frozenset({"arguments", "said"}),
    "ResultView": frozenset({"output", "error"}),
    "Answer": frozenset({"answer"}),
    "RunNode": frozenset({"progress"}),
    "StateAnswer": frozenset({"answer", "error"}),
    "EntryView": frozenset({"data"}),
    "EventView": frozenset({"payload"}),
    "MessageView": frozenset({"payload"}),
    "EvidenceView": frozenset({"data"}),
    "LetterDetail": frozenset({"payload", "error"}),
    "ScheduleView": frozenset({"input"}),
    "ErrorHead": frozenset({"message"}),
    "StretchView": frozenset({"error"}),
    "CallView": frozenset({"error", "note"}),
    "MomentView": frozenset({"detail"}),
}
"""The fields of views that hold what users' code was given, made or raised."""
_OPEN_VALUES: dict[str, frozenset[str]] = {"Head": frozenset({"attributes"}), "AuditView": frozenset({"detail"})}
"""Fields that every role sees, but for values whose path is marked."""

_LONG: dict[str, frozenset[str]] = {
    "RunView": frozenset({"input", "output"}),
    "StepView": frozenset({"progress", "result"}),
    "ArgumentsView": frozenset({"arguments"}),
    "EntryView": frozenset({"data"}),
    "MessageView": frozenset({"payload"}),
    "EventView": frozenset({"payload"}),
    "ScheduleView": frozenset({"input"}),
}
"""The fields of those that may be so long that a page is shown their beginning."""
LONGEST = 64 << 10
"""How many bytes of JSON a value may have before a page is shown its beginning."""
_BEGINNING = 2_000

_LOOK_SECRET = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "authorization",
    "apikey",
    "privatekey",
    "accesskey",
)
_SECRET_WORDS = frozenset({"card", "iban", "cvc", "cvv", "pin"})
_MANY = 5_000
"""Answers of more values are written in a thread: a page of 50 runs has about 2,000."""
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")

Redactor = Callable[[str, str, Any], Any]
"""A function of the view, the path in the payload, and the value there: what is shown instead."""


class Redaction:
    """Which values of payloads are masked for everyone, and what is hidden from viewers.

    Args:
        paths: as `card`, `*.password` or `headers.authorization`: each names keys at the end of a path, at any depth.
            Keys that look like secrets are always masked.
        function: asked for every value that is left.
        reveals: whether an operator may see a masked value after all, one at a time and on record.
    """

    def __init__(self, paths: Iterable[str] = (), function: Redactor | None = None, reveals: bool = True) -> None:
        if isinstance(paths, str):
            raise BadInput("redact must be a list of paths, not a text")
        self._patterns = [tuple(path.split(".")) for path in paths]
        self._function = function
        self.reveals = reveals

    def shown(self, value: Any, who: Principal, cut: bool = False) -> Any:
        """Return an answer as this one may see it; `cut` leaves long values out but for how they begin."""
        if isinstance(value, msgspec.Struct):
            return self._struct(value, who, cut)
        if isinstance(value, list):
            return [self.shown(each, who, cut) for each in value]
        if isinstance(value, dict):
            return {name: self.shown(each, who, cut) for name, each in value.items()}
        return value

    async def written(self, value: Any, who: Principal, cut: bool = False) -> bytes:
        """Return an answer as this one may see it, as JSON; a large one is written in a thread: the loop goes on."""

        def write() -> bytes:
            return msgspec.json.encode(self.shown(value, who, cut))

        return await asyncio.to_thread(write) if _is_large(value) else write()

    def _struct(self, value: msgspec.Struct, who: Principal, cut: bool) -> dict[str, Any]:
        kind = type(value).__name__
        payloads, values = _PAYLOADS.get(kind, frozenset()), _OPEN_VALUES.get(kind, frozenset())
        found: dict[str, Any] = {}
        for field in type(value).__struct_fields__:
            each = getattr(value, field)
            if field in payloads and not who.may("reader"):
                found[field] = _hidden(field, each)
            elif field in payloads or field in values:
                found[field] = self.masked(each, kind)
                if cut and field in _LONG.get(kind, ()):
                    found[field] = _cut(found[field])
            else:
                found[field] = self.shown(each, who, cut)
        return found

    def masked(self, value: Any, kind: str, path: tuple[str, ...] = ()) -> Any:
        """Return a payload without the values whose paths are marked."""
        if path and self.hides(*path):
            return value if value is None else MASKED
        if isinstance(value, dict):
            return {name: self.masked(each, kind, (*path, str(name))) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked(each, kind, path) for each in value]
        if isinstance(value, msgspec.Struct):
            return self.masked(msgspec.to_builtins(value), kind, path)
        return self._function(kind, ".".join(path), value) if self._function is not None else value

    def hides(self, *path: str) -> bool:
        """Whether no one sees what is at this path."""
        return _looks_secret(path[-1]) or any(_ends_with(path, pattern) for pattern in self._patterns)


def _cut(value: Any) -> Any:
    """Return a long value as how long it is and how it begins; of a list those of its parts that are long."""
    if value is None or isinstance(value, bool | int | float):
        return value
    text = msgspec.json.encode(value)
    if len(text) <= LONGEST:
        return value
    if isinstance(value, list) and len(value) <= 4:
        return [_cut(each) for each in value]  # a fact of a history
    return {"cut_from_bytes": len(text), "begins": text[:_BEGINNING].decode("utf-8", "replace")}


def _is_large(value: Any) -> bool:
    """Whether an answer has more values than are walked through in a moment."""
    left, found = _MANY, [value]
    while found and left > 0:
        each = found.pop()
        left -= 1
        if isinstance(each, msgspec.Struct):
            found.extend(getattr(each, field) for field in type(each).__struct_fields__)
        elif isinstance(each, dict):
            left -= len(each)
            found.extend(each.values())
        elif isinstance(each, list | tuple):
            left -= len(each)
            found.extend(each)
    return left <= 0


def _ends_with(path: Sequence[str], pattern: Sequence[str]) -> bool:
    if len(pattern) > len(path):
        return False
    end = path[len(path) - len(pattern) :]
    return all(fnmatchcase(part, wanted) for part, wanted in zip(end, pattern, strict=True))


def _looks_secret(key: str) -> bool:
    plain = re.sub(r"[^a-z0-9]", "", key.lower())
    return any(word in plain for word in _LOOK_SECRET) or not _SECRET_WORDS.isdisjoint(
        word.lower() for word in _WORDS.findall(key)
    )


def _hidden(field: str, value: Any) -> Any:
    """Return what a viewer sees of a payload: that there is one; of an error its class."""
    if value is None or value == "":
        return value
    if field == "error" and isinstance(value, dict):
        return {"type": value.get("type", ""), "message": HIDDEN}
    if field == "compensation":
        return [{"hidden": True} for _ in value]
    return HIDDEN
