"""Deleting what is old enough, a few rows at a time; open runs are never deleted."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from holdfast.contract.operations import Done, Purge
from holdfast.contract.rows import TERMINAL, InboxKind, Message, Status
from holdfast.stores.sql.figures import SPANS
from holdfast.stores.sql.tables import Row

if TYPE_CHECKING:
    from holdfast.stores.rules.batch import Batch

_OF_RUNS = (
    "forget_entries", "purge_archive", "purge_inputs", "purge_results", "purge_attributes", "purge_message_ids",
    "purge_replies", "purge_cursors", "purge_takers", "purge_inbox", "delete_move", "purge_runs",
)  # fmt: skip


class PurgeRules:
    """One purge."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    async def apply(self, purge: Purge) -> Done:
        """Delete up to `limit` rows."""
        await self._batch.flush()
        statements, limit = self._batch.statements, purge.limit
        if purge.what in TERMINAL:
            return await self._runs(purge)
        if purge.what in ("work", "event"):
            rows = await statements.read("old_letters", [(purge.what, purge.before, limit, int(purge.acknowledged))])
            ids = tuple(str(letter) for (letter,) in rows)
            if purge.look:
                return Done(0, ids)
            for (letter,) in rows:
                await statements.write("delete_letter", [(letter,)])
            return Done(len(rows), ids)
        if purge.what == "queued":
            return await self._queued(purge)
        if purge.what == "keys":
            return Done(await statements.change("purge_keys", (purge.before, limit)))
        if purge.what == "ids":
            count = await statements.change("purge_tombstones", (purge.at, limit))
            self._batch.forget_runs()
            return Done(count + await statements.change("purge_event_ids", (purge.before, limit)))
        if purge.what in SPANS:
            return await self._figures(purge)
        if purge.what == "evidence":
            return Done(await self._batch.trails.purge(purge.run))
        raise ValueError(f"nothing is called {purge.what!r}")

    async def _runs(self, purge: Purge) -> Done:
        statements = self._batch.statements
        rows = await statements.read("old_runs", [(Status(purge.what), purge.before, purge.limit)])
        if purge.look:
            return Done(0, tuple(str(id) for _, id in rows))
        if purge.only is not None:
            may_go = set(purge.only)
            rows = [row for row in rows if row[1] in may_go]
        if rows:
            keys: list[Row] = [(key,) for key, _ in rows]
            await statements.write("bury", [(*key, purge.keep_ids) for key in keys])
            for statement in _OF_RUNS:
                await statements.write(statement, keys)
            self._batch.forget_runs()
        return Done(len(rows), tuple(str(id) for _, id in rows))

    async def _figures(self, purge: Purge) -> Done:
        count = 0
        for what in ("run", "step"):
            row = (what, SPANS[purge.what], purge.before, purge.limit - count)
            count += await self._batch.statements.change("purge_figures", row)
        return Done(count)

    async def _queued(self, purge: Purge) -> Done:
        batch = self._batch
        rows = await batch.statements.read("old_events", [(purge.before, purge.limit)])
        if purge.look:
            return Done(0, tuple(str(row[2]) for row in rows))
        for n, name, id, payload, at in rows:
            await batch.statements.write("delete_event", [(name, n)])
            if purge.unread.get(str(name)) == "dead_letter":
                message = Message(0, InboxKind.EVENT, str(name), str(id), str(payload), int(at or 0))
                batch.letters.event(message, None, purge.at)
        for name, count in Counter(str(row[1]) for row in rows).items():
            await batch.events.removed(name, count)
        return Done(len(rows), tuple(str(row[2]) for row in rows))
