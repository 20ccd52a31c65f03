"""A run that left the cluster, in the form that a store takes: the same each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.contract.moves import Arriving
from holdfast.contract.rows import EntryRow, InboxKind, Message, Status
from holdfast.contract.turns import Evidence, NewRun, Parent, RunOptions
from holdfast.replay import entry as entries
from holdfast.temporal.client.source import RunThere
from holdfast.temporal.leaving import Left
from holdfast.temporal.wire import Carry, Happening, mail_of, rows_of

_BEGINNINGS = frozenset({entries.StepBegun.kind, entries.AttemptBegun.kind})
_SETTLED = frozenset(
    {
        *entries.STEP_ENDS,
        entries.AttemptFailed.kind,
        entries.AttemptLost.kind,
        entries.AttemptSkipped.kind,
        entries.EndKept.kind,
        entries.Cancelled.kind,
        entries.ResultKept.kind,
    }
)
_REFUSED: Mapping[str, int] = {"sent": entries.SendBegun.kind, "refused": entries.ChildBegun.kind}
"""What came of a call and its code was not told: on a store that stands in the entry of the call."""


def new_run_of(standing: RunThere, version: str, parent: RunThere | None) -> NewRun:
    """Return the row that a run has while it is on its way; `parent` is that of a parent which comes with it."""
    above = parent.left.carry if parent is not None and parent.left is not None else None
    carry = _left(standing).carry
    return NewRun(
        id=standing.id,
        workflow=standing.workflow,
        version=carry.workflow_version or version,
        input=standing.input,
        digest=carry.digest,
        seed=carry.seed,
        at=carry.begun,
        parent=Parent(0, carry.parent, _called(above, standing.id)) if carry.parent else None,
        options=RunOptions(
            timeout=carry.timeout,
            unique_key=standing.unique_key,
            actor=standing.actor,
            tenant=standing.tenant,
            cancel_with_parent=above is not None and above.children.get(standing.id, False),
        ),
    )


def arriving_of(standing: RunThere, known: Sequence[str], evidence: Sequence[tuple[str, str]], at: Instant) -> Arriving:
    """Return a run that was closed, as it arrives.

    `known` are its attributes where it arrives, `evidence` names what it put on record there.
    """
    left = _left(standing)
    carry = left.carry
    inbox = [Message(*fields) for fields in carry.inbox]
    inbox += [mail_of(each) for each in left.happenings if each.kind == "mail"]
    inbox += [_told(each) for each in left.happenings if each.kind in ("end", "nudge")]
    ended = {each.location for each in left.happenings if each.kind == "end"}
    rows = _refused(sorted(rows_of(carry.rows), key=lambda row: row.seq), left.happenings)
    rows += _not_begun(rows, ended, at)
    status = Status.PAUSED if carry.paused else Status.PENDING
    if any(message.kind == InboxKind.CANCEL for message in inbox):
        status = Status.CANCELLING
    had = {*evidence}
    return Arriving(
        id=standing.id,
        input=standing.input,
        rows=rows,
        inbox=inbox,
        seen=list(carry.seen),
        status=status,
        until=carry.paused_until,
        generation=carry.generation,
        reopens=carry.reopens,
        deadline=carry.deadline,
        attributes={**dict.fromkeys(known), **carry.attributes},
        evidence=[
            Evidence(id=id, kind=kind, data=data, at=when)
            for id, kind, data, when, _ in carry.evidence
            if (id, kind) not in had
        ],
    )


def _told(happening: Happening) -> Message:
    """Return what a worker finds in the inbox: the end of an attempt, or that a step is to be tried now."""
    if happening.kind == "nudge":
        return Message(0, InboxKind.NUDGE, happening.data, "", "", happening.at)
    return Message(0, InboxKind.TASK_ENDED, happening.location, str(happening.n), happening.data, happening.at)


def _refused(rows: list[EntryRow], happenings: Sequence[Happening]) -> list[EntryRow]:
    """Return a history whose calls say that they were refused, where the code was not told yet."""
    said_of = [each for each in happenings if each.kind in _REFUSED and each.data]
    refused = {(each.location, _REFUSED[each.kind]): each for each in said_of}
    if not refused:
        return rows
    said: list[EntryRow] = []
    for row in rows:
        happening = refused.get((row.location, row.kind))
        if happening is not None:
            call = entries.decode_entry(row.kind, row.data)
            row = row._replace(data=entries.encode_entry(msgspec.structs.replace(call, refused=happening.data)))
        said.append(row)
    return said


def _not_begun(rows: Sequence[EntryRow], ended: set[str], at: Instant) -> list[EntryRow]:
    """Return marks for the attempts that were counted and never begun: they begin by the same number.

    A run is closed when nothing is under way for it, so these are all that have no end.
    """
    counted: dict[str, None] = {}
    for row in rows:
        if row.kind in _BEGINNINGS:
            counted[row.location] = None
        elif row.kind in _SETTLED:
            counted.pop(row.location, None)
    last = max((row.seq for row in rows), default=0)
    mark = entries.encode_entry(entries.AttemptSkipped(entries.STOPPED, at))
    left = [location for location in counted if location not in ended]
    return [
        EntryRow(location, seq, entries.AttemptSkipped.kind, at, mark) for seq, location in enumerate(left, last + 1)
    ]


def _left(standing: RunThere) -> Left:
    assert standing.left is not None  # it was closed, or a worker answered
    return standing.left


def _called(parent: Carry | None, child: str) -> str:
    """Return the location of the call that started a child, empty if the parent's history does not have it."""
    for row in parent.rows if parent is not None else ():
        if row[2] == entries.ChildBegun.kind and entries.decode_entry(row[2], row[4]).id == child:
            return row[0]
    return ""
