"""A store as one end of a transfer: one long read, one long write, and its workers."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.stores.liveness import Fate
from holdfast.stores.sql.files import migrations
from holdfast.stores.sql.looks import Look
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.store import SQLStore
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.transfer.tables import ExportedWorker

T = TypeVar("T")


class Endpoint:
    """An open store that runs are exported from or imported into.

    Raises:
        BadInput: runs cannot be transferred from or to such a store.
    """

    def __init__(self, store: Store) -> None:
        if not isinstance(store, SQLStore):
            raise BadInput(f"cannot export from or import into a {type(store).__name__}")
        self._store = store

    @property
    def schema(self) -> int:
        """The number of its schema."""
        return migrations(self._store.kind)[-1][0]

    def another(self) -> SQLStore:
        """Return a store of the same database that is not open yet."""
        return self._store.another()

    async def look(self, work: Look[T]) -> T:
        """Read in one transaction, however long that takes, while other processes go on."""
        if isinstance(self._store, SQLiteStore) and not self._store.in_memory:
            # In a thread and through a store of its own: neither the event loop nor any commit waits for a long look.
            return await asyncio.to_thread(asyncio.run, _look_beside(self._store, work))
        return await self._store.look(work, together=True, patient=True)

    async def change(self, work: Look[T]) -> T:
        """Write in one transaction: all or nothing."""
        return await self._store.exclusive(work)

    async def deliver(self) -> None:
        """Deliver what is on its way, so that it is where it belongs when everything is exported."""
        while await self._store.relay():
            pass

    async def undelivered(self, statements: Statements) -> bool:
        """Tell whether something is still on its way."""
        return await self._store.undelivered(statements)

    async def workers(self) -> list[ExportedWorker]:
        """Return the workers that are there or were, as far as is known."""
        fates = await self._store.fates()
        rows = await self._store.look(lambda db: db.read("known_workers", [()]))
        return [
            ExportedWorker(
                str(id),
                int(pid or 0),
                str(host),
                fates.get(str(id), Fate.ALIVE) if state == "live" else Fate.DECLARED_DEAD,
            )
            for id, pid, host, state in rows
        ]


async def _look_beside(store: SQLiteStore, work: Look[T]) -> T:
    beside = store.another()
    await beside.open()
    try:
        return await beside.look(work, together=True, patient=True)
    finally:
        await beside.close()
