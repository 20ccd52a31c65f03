"""Which call a compensation undoes, decided when it is registered: each call is claimed by one compensation.

It is the call that ended last in its branch or, if none has ended since the last call, that last call itself, which is
still under way. Several compensations in a row after calls made side by side claim that many of them, in the order of
the calls.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.context.children import ChildVerb
from holdfast.context.steps import StepVerb
from holdfast.replay.entry import CompensationAdded, encode_entry
from holdfast.replay.journal import Compensation, Journal
from holdfast.replay.location import Scope


class SideBySide(NamedTuple):
    """Compensations registered in a row for calls made side by side."""

    calls: list[str]
    """The calls that are left to claim."""
    left: int
    """How many there were after the last claim."""
    made: int
    """How many calls of any kind the branch had made by then."""
    order: list[str]
    """The calls in the order in which they were made."""
    members: list[int]
    """Where the compensations are on the run's stack."""


def claim(journal: Journal, scope: Scope) -> str:
    """Return where the call is that a compensation undoes which is registered now; empty for none."""
    if isinstance(scope.ended, list) and scope.ended:
        return _one_of_several(journal, scope, scope.ended)
    if scope.ended:
        location, scope.ended = str(scope.ended), ""
        return _whole(journal, location)
    if isinstance(scope.called, str):
        scope.called = [scope.called]
    calls = scope.called
    calls[:] = [each for each in calls if each in journal.open or each.endswith("/")]
    if not calls:
        return ""
    _detach(journal, calls[-1])
    return _one_of_several(journal, scope, calls)


def disclaim(journal: Journal, scope: Scope, location: str) -> None:
    """Note that a call is claimed by a compensation that names it, or that history has."""
    _detach(journal, location)
    for place in (location, location + "/"):
        scope.ended = _without(scope.ended, place)
        scope.called = _without(scope.called, place)


def _without(calls: str | list[str], location: str) -> str | list[str]:
    if isinstance(calls, str):
        return "" if calls == location else calls
    if location in calls:
        calls.remove(location)
    return calls


def _detach(journal: Journal, location: str) -> None:
    """Let the end of a call that is claimed while it is under way be no other compensation's."""
    verb = journal.open.get(location)
    if isinstance(verb, StepVerb | ChildVerb):
        verb.scope = Scope()


def _one_of_several(journal: Journal, scope: Scope, calls: list[str]) -> str:
    """Claim the newest of several calls; those claimed in a row are handed out again, in the order of the calls."""
    row = scope.together
    if not (isinstance(row, SideBySide) and row.calls is calls and (row.left, row.made) == (len(calls), scope.made)):
        row = SideBySide(calls, 0, 0, [each.rstrip("/") for each in scope.called], [])
    stack = journal.compensations or []
    claimed = [stack[member].entry.undoes for member in row.members] + [_whole(journal, calls.pop())]
    claimed.sort(key=lambda location: row.order.index(location) if location in row.order else -1)
    for member, undoes in zip(row.members, claimed, strict=False):
        _relabel(journal, stack[member], undoes)
    scope.together = row._replace(left=len(calls), made=scope.made, members=[*row.members, len(stack)])
    return claimed[-1]


def _relabel(journal: Journal, compensation: Compensation, undoes: str) -> None:
    """Change what a compensation undoes that was registered in this turn."""
    if compensation.entry.undoes == undoes:
        return
    compensation.entry = msgspec.structs.replace(compensation.entry, undoes=undoes)
    rows = journal.turn.entries
    for index, row in enumerate(rows):
        if row.location == compensation.location and row.kind == CompensationAdded.kind:
            rows[index] = row._replace(data=encode_entry(compensation.entry))


def _whole(journal: Journal, location: str) -> str:
    """Return where a join, race or loop is, empty if it is claimed or something in it is; any other call as it is."""
    if not location.endswith("/"):
        return location
    place = location[:-1]
    added = [each.entry for each in journal.compensations or ()]
    return "" if any(each.undoes == place or each.where.startswith(location) for each in added) else place
