"""A run's history as it is shown: paths and words instead of keys and numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from holdfast.clock import to_datetime
from holdfast.contract.rows import EntryRow
from holdfast.replay import entry as entries
from holdfast.replay.past import names_of


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One fact of a run's history, readable."""

    seq: int
    path: str
    kind: str
    at: datetime
    entry: entries.Entry = field(repr=False)
    row: EntryRow = field(repr=False)


def readable(rows: list[EntryRow]) -> list[HistoryEntry]:
    """Return stored facts with paths and words instead of keys and numbers."""
    names = names_of(rows)
    return [
        HistoryEntry(
            seq=row.seq,
            path=names.path(row.location),
            kind=entries.KINDS[row.kind].word,
            at=to_datetime(row.at),
            entry=entries.decode_entry(row.kind, row.data),
            row=row,
        )
        for row in rows
        if row.kind != entries.Name.kind
    ]
