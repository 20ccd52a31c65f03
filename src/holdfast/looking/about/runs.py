"""What belongs to one run: the runs it started, the messages it has not received, its evidence."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.clock import to_datetime
from holdfast.contract.heads import HeadFilter, RunHead
from holdfast.contract.store import Store
from holdfast.engine.views.messages import unread
from holdfast.errors import BadInput
from holdfast.looking.control import check_known
from holdfast.looking.views import Head
from holdfast.payloads import codec

DEEPEST = 10
_MOST_OF_ONE = 200
_MOST = 1_000


class ChildView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that another started; `depth` is 1 for a child, 2 for a child of that."""

    depth: int
    head: Head


class ChildList(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a run started, each after its parent, oldest first; with `more` there are others, older ones."""

    run: str
    items: list[ChildView]
    more: bool = False


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message, or an event that the run was given, which its code has not received."""

    n: int
    name: str
    id: str
    payload: Any
    sent_at: datetime
    event: bool = False


class InboxPage(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that a run has not received, oldest first; `next` is the number after which there are more."""

    run: str
    items: list[MessageView]
    next: int | None = None


class EvidenceView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a run put on record; each hash is made of its row and the hash before it."""

    n: int
    id: str
    kind: str
    data: Any
    recorded_at: datetime
    hash: str


class EvidencePage(msgspec.Struct, frozen=True, kw_only=True):
    """What a run put on record, oldest first; `next` is the number after which there is more."""

    run: str
    items: list[EvidenceView]
    next: int | None = None


async def descendants(store: Store, run_id: str, depth: int) -> tuple[list[tuple[int, RunHead]], bool]:
    """Return the runs that a run started, with their depths, each after its parent; and whether there are more.

    Raises:
        BadInput: the depth is none.
    """
    if not 1 <= depth <= DEEPEST:
        raise BadInput(f"depth must be between 1 and {DEEPEST}, not {depth}")
    found: list[tuple[int, RunHead]] = []
    more = False
    to_see = [(1, run_id)]
    while to_see:
        level, parent = to_see.pop()
        page = await store.heads(HeadFilter(parent=parent, limit=_MOST_OF_ONE))
        more = more or page.next is not None
        place = next((n + 1 for n, (_, head) in enumerate(found) if head.id == parent), 0)
        found[place:place] = [(level, head) for head in reversed(page.heads)]
        if len(found) > _MOST:
            return found[:_MOST], True
        if level < depth:
            to_see += [(level + 1, head.id) for head in page.heads]
    return found, more


async def inbox_page(store: Store, head: RunHead, after: int, limit: int) -> InboxPage:
    """Return messages that a run has not received, those after a number."""
    found = unread((await store.inboxes({head.key: after}))[head.key])
    items = [
        MessageView(
            n=each.number, name=each.name, id=each.id, payload=each.payload, sent_at=each.sent_at, event=each.event
        )
        for each in found[:limit]
    ]
    return InboxPage(run=head.id, items=items, next=items[-1].n if len(found) > limit else None)


async def evidence_page(store: Store, run_id: str, after: int, limit: int) -> EvidencePage:
    """Return what a run put on record, that after a number."""
    rows = await store.evidence(run_id, after, limit + 1)
    if not rows and not after:
        await check_known(store, run_id)
    items = [
        EvidenceView(
            n=row.n,
            id=row.id,
            kind=row.kind,
            data=codec.readable(row.data),
            recorded_at=to_datetime(row.at),
            hash=row.hash,
        )
        for row in rows[:limit]
    ]
    return EvidencePage(run=run_id, items=items, next=items[-1].n if len(rows) > limit else None)
