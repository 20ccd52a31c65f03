"""What a run says about itself: attributes to search by, evidence, progress, answers to requests."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.context.api import Request
from holdfast.contract.turns import Evidence, Reply
from holdfast.errors import BadInput
from holdfast.payloads import codec
from holdfast.replay import entry as entries
from holdfast.replay.journal import NAMES, Journal
from holdfast.replay.location import Scope, check_name, name_key

_EXACT = 2**53
_PROGRESS = "report progress"


def set_attributes(journal: Journal, scope: Scope, attributes: Mapping[str, Any]) -> None:
    """Set searchable attributes of the run."""
    encoded = encode_attributes(attributes)
    if not encoded:
        return
    values = msgspec.Raw(codec.encode(dict(attributes), "attributes"))
    if journal.mark(journal.locate(scope, "set attributes", False), entries.AttributesSet(values)):
        journal.turn.extra().attributes.update(encoded)


_LONGEST = 1024


def encode_attributes(attributes: Mapping[str, Any]) -> dict[str, str | None]:
    """Return attributes as JSON text by name; None stands for one to remove.

    Raises:
        BadInput: a name that is not fit for one, or a value that cannot be searched by.
    """
    if not isinstance(attributes, Mapping):
        raise BadInput(f"attributes are a mapping of names to values, not {attributes!r}")
    encoded: dict[str, str | None] = {}
    for name, value in attributes.items():
        check_name(name, "attribute name")
        simple = value is None or isinstance(value, str | int | float)
        if not simple or (isinstance(value, float) and not math.isfinite(value)):
            raise BadInput(f"attribute {name!r} must be a str, int, float, bool or None, not {_kind(value)}")
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
            value = int(value)  # so that 1 and 1.0 find each other
        encoded[name] = codec.encode(value, f"attribute {name!r}").decode() if value is not None else None
        if len((encoded[name] or "").encode()) > _LONGEST:
            raise BadInput(f"attribute {name!r} is too long to search by: at most {_LONGEST} bytes")
    return encoded


def _kind(value: object) -> str:
    """Return what a value is, for an error: not the value, which may be confidential."""
    return repr(value) if isinstance(value, float) else f"an object of class {type(value).__name__}"


def evidence(journal: Journal, scope: Scope, kind: str, data: object) -> str:
    """Add an item to the run's audit trail and return its id."""
    check_name(kind, "evidence kind")
    encoded = codec.encode(data, f"evidence {kind!r}").decode()
    location = journal.locate(scope, f"evidence {kind}", False)
    run = journal.run
    item = str(uuid.uuid5(uuid.NAMESPACE_URL, f"holdfast:{run.id}/{run.generation}/{location}"))
    if journal.mark(location, entries.EvidenceAdded(kind, item)):
        journal.turn.extra().evidence.append(Evidence(id=item, kind=kind, data=encoded, at=journal.loop.now))
    return item


def progress(journal: Journal, scope: Scope, done: float, of: float | None) -> None:
    """Note how far the run has come; while history is replayed there is nothing new to note."""
    for name, value in (("done", done), ("of", of)):
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not (number or (name == "of" and value is None)):
            raise BadInput(f"ctx.progress(): {name} must be a number, not {_kind(value)}")
    repeat = scope.repeat(_PROGRESS)
    key = journal.names.key(_PROGRESS)
    location = None if key is None else name_key(scope.prefix, key, repeat)
    noted = location is not None and journal.has_mark(location, entries.ProgressNoted.kind)
    if noted or journal.past.behind or journal.loop.dead or journal.violation:
        return
    if key is None:
        key = journal.names.add(_PROGRESS)
        journal.record(NAMES + key, entries.Name(_PROGRESS))
    journal.record(name_key(scope.prefix, key, repeat), entries.ProgressNoted(done, of))


def reply(journal: Journal, scope: Scope, request: Request[Any], value: object) -> None:
    """Answer a request."""
    if not isinstance(request, Request):
        raise BadInput(f"ctx.reply() answers what ctx.receive_request() returned, not {request!r}")
    encoded = codec.encode(value, "the reply to a request").decode()
    if journal.mark(journal.locate(scope, "reply to", False), entries.Replied(request.id)):
        journal.turn.extra().replies.append(Reply(message=request.id, payload=encoded))
