"""An open run as it is handed over: made from its rows in the store, the same each time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.contract.moves import Departure
from holdfast.contract.rows import EntryRow, EvidenceRow, InboxKind, Message, RunRow
from holdfast.contract.store import Store
from holdfast.replay import entry as entries
from holdfast.temporal.client.handover import FORWARDED, HandOver

EVENTS = frozenset({InboxKind.EVENT, InboxKind.NOTICE})
"""Inbox rows that only a runtime with events can give back."""
_PAGE = 1000
_BEGINNINGS = frozenset({entries.StepBegun.kind, entries.AttemptBegun.kind})
_TRIES = frozenset(
    {
        entries.AttemptFailed.kind,
        entries.AttemptLost.kind,
        entries.AttemptSkipped.kind,
        entries.EndKept.kind,
    }
)


async def handed_over(
    store: Store, row: RunRow, departure: Departure, queue: str, token: str = "", held: bool = False
) -> HandOver:
    """Return a run that is at rest, or moving, as it is handed over.

    Of its inbox it has what came before it was marked; `held` lets it arrive paused until the mover resumes it.
    """
    move = departure.move
    history = await store.history(row.key)
    inbox = (await store.inboxes({row.key: 0}))[row.key]
    later = {each.id for each in inbox if move is not None and each.n > move.inbox}  # these are forwarded
    paused = held or (move is not None and move.paused)
    return HandOver(
        token=token,
        id=row.id,
        workflow=row.workflow,
        version=row.version,
        queue=queue,
        input=row.input,
        seed=row.seed,
        digest=row.digest,
        begun=row.begins or row.created,
        rows=[*history, *lost_attempts(history, departure.lost or "handed back", move.at if move else row.updated)],
        inbox=[each for each in inbox if each.kind in FORWARDED and (move is None or each.n <= move.inbox)],
        seen=[each for each in departure.seen if each not in later],
        generation=row.generation,
        reopens=row.reopens,
        begins=row.begins,
        timeout=departure.timeout,
        deadline=row.deadline,
        attributes={name: _text(value) for name, value in _attributes(row).items()},
        evidence=[(item.id, item.kind, item.data, item.at) for item in await _evidence(store, row.id)],
        parent=row.parent or "",
        children=departure.children,
        paused=paused,
        paused_until=move.until if paused and move is not None and move.paused else None,
        actor=row.actor,
        tenant=row.tenant,
        unique_key=row.unique_key,
    )


def lost_attempts(history: Sequence[EntryRow], why: str, at: Instant) -> list[EntryRow]:
    """Return marks for the attempts that history has begun and not ended: they do not go along, and count as lost."""
    begun: dict[str, int] = {}
    for row in history:
        if row.kind in _BEGINNINGS:
            begun[row.location] = entries.decode_entry(row.kind, row.data).attempt
        elif row.kind in entries.STEP_ENDS or row.kind in _TRIES:
            begun.pop(row.location, None)
    last = max((row.seq for row in history), default=0)
    return [
        EntryRow(location, seq, entries.AttemptLost.kind, at, entries.encode_entry(entries.AttemptLost(attempt, why)))
        for seq, (location, attempt) in enumerate(begun.items(), last + 1)
    ]


def to_forward(inbox: Sequence[Message], move_inbox: int) -> list[Message]:
    """Return what came into the inbox of a run after it was marked, and is sent after it."""
    return [each for each in inbox if each.n > move_inbox and each.kind in FORWARDED]


async def _evidence(store: Store, run_id: str) -> list[EvidenceRow]:
    found: list[EvidenceRow] = []
    while page := await store.evidence(run_id, after=found[-1].n if found else 0, limit=_PAGE):
        found += page
    return found


def _attributes(row: RunRow) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(row.attributes, type=dict[str, msgspec.Raw])


def _text(value: msgspec.Raw) -> str:
    return bytes(value).decode()
