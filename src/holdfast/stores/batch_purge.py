"""Deleting what is old enough, a little at a time; open runs are never touched."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from holdfast.operations import Done, Purge
from holdfast.records import TERMINAL, Message, Status

if TYPE_CHECKING:
    from holdfast.stores.batch import Batch

_OF_RUNS = (
    "purge_entries", "purge_archive", "purge_inputs", "purge_results", "purge_attributes", "purge_message_ids",
    "purge_replies", "purge_cursors", "purge_inbox", "purge_runs",
)  # fmt: skip


class Purges:
    """One purge."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        batch.flush()

    def apply(self, purge: Purge) -> Done:
        """Delete up to `limit` rows."""
        statements, limit = self._batch.statements, purge.limit
        if purge.what in TERMINAL:
            return self._runs(purge)
        if purge.what in ("work", "event"):
            rows = statements.read("old_letters", [(purge.what, purge.before, limit, int(purge.acknowledged))])
            for (letter,) in rows:
                statements.change("delete_letter", (letter,))
            return Done(len(rows), tuple(str(letter) for (letter,) in rows))
        if purge.what == "queued":
            return self._queued(purge)
        if purge.what == "keys":
            return Done(statements.change("purge_keys", (purge.before, limit)))
        if purge.what == "ids":
            count = statements.change("purge_tombstones", (purge.at, limit))
            self._batch.forget_runs()
            return Done(count + statements.change("purge_event_ids", (purge.before, limit)))
        raise ValueError(f"nothing is called {purge.what!r}")

    def _runs(self, purge: Purge) -> Done:
        statements = self._batch.statements
        rows = statements.read("old_runs", [(Status(purge.what), purge.before, purge.limit)])
        if rows:
            keys = msgspec.json.encode([key for key, _ in rows]).decode()
            statements.change("bury", (keys, purge.keep_ids))
            for statement in _OF_RUNS:
                statements.change(statement, (keys,))
            self._batch.forget_runs()
        return Done(len(rows), tuple(str(id) for _, id in rows))

    def _queued(self, purge: Purge) -> Done:
        batch = self._batch
        rows = batch.statements.read("old_events", [(purge.before, purge.limit)])
        for n, name, id, payload, at in rows:
            batch.statements.change("delete_event", (n,))
            if purge.unread.get(str(name)) == "dead_letter":
                message = Message(0, "event", str(name), str(id), str(payload), int(at or 0))
                batch.letters.event(message, None, purge.at)
        for name, count in Counter(str(row[1]) for row in rows).items():
            batch.events.removed(name, count)
        return Done(len(rows), tuple(str(row[2]) for row in rows))
