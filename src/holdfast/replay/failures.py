"""Where an error came from: an exception remembers the call that raised it, a failed run the calls that ended it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import JoinError
from holdfast.payloads.errors import cause_of, members_of, own

_ORIGIN = "__holdfast_origin__"
_MAX_ERRORS = 1000


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the call that an error came from."""

    attempts: int = 0
    """How often it was tried, if it is a step."""
    call: Any = field(default=None, compare=False, repr=False)
    """What a dead letter tells of it, see `Verb.failed_call`."""


def located(error: BaseException, location: str, attempts: int = 0, call: Any = None) -> BaseException:
    """Return an error that remembers the location of the call that raises it, and how often that was tried."""
    try:
        setattr(error, _ORIGIN, (location, Origin(attempts, call)))
    except Exception:  # noqa: S110  # an exception that takes no attributes does not say where it came from
        pass
    return error


def origins(error: BaseException) -> dict[str, Origin]:
    """Return the locations of the calls an error came from, nearest first, each with what is known of it.

    There are none if the code itself raised it.
    Looks at what caused it, at what was being handled when it was raised, and at the members of groups and joins.
    """
    found: dict[str, Origin] = {}
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < _MAX_ERRORS:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        origin = own(each, "__dict__").get(_ORIGIN)
        if origin is not None:
            found.setdefault(*origin)
        waiting.extend(reversed(list(_behind(each))))
    return found


def _behind(error: BaseException) -> Iterable[BaseException]:
    yield from members_of(error)
    if issubclass(type(error), JoinError):
        yield from own(error, "__dict__").get("errors", {}).values()
    cause = cause_of(error)
    if cause is not None:
        yield cause
