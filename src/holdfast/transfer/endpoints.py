"""A store as a house to move from or to: one long look at it, one long change of it, and who works there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.stores.liveness import boot_id, boot_time, is_free, machine, process_exists
from holdfast.stores.sql.files import migrations
from holdfast.stores.sql.statements import Statements
from holdfast.stores.sql.store import Look, SQLStore
from holdfast.stores.sqlite.file import MEMORY
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.transfer.tables import Worker

if TYPE_CHECKING:
    from holdfast.stores.postgres.store import PostgresStore

T = TypeVar("T")


def house_of(store: Store) -> House:
    """Return the house that an open store is.

    Raises:
        BadInput: nobody knows how to move from or to such a store.
    """
    if isinstance(store, SQLiteStore):
        return SQLiteHouse(store)
    if isinstance(store, SQLStore) and hasattr(store, "dialect"):
        return PostgresHouse(store)
    raise BadInput(f"cannot export from or import into a {type(store).__name__}")


class House:
    """What moving needs of a database."""

    dialect: str

    def __init__(self, store: SQLStore) -> None:
        self._store = store

    @property
    def schema(self) -> int:
        """The number of its schema."""
        return migrations(self.dialect)[-1][0]

    async def look(self, work: Look[T]) -> T:
        """Read in one transaction, however long that takes, while others go on."""
        return await self._store.look(work, together=True, patient=True)

    async def change(self, work: Look[T]) -> T:
        """Write in one transaction: all or nothing."""
        return await self._store.alone(work)

    async def deliver(self) -> None:
        """Deliver what is on its way, so that it is where it belongs when everything is moved."""
        while await self._store.relay():
            pass

    async def undelivered(self, db: Statements) -> bool:
        """Tell whether something is still on its way."""
        return False

    async def workers(self) -> list[Worker]:
        """Return who works there or did, as far as is known."""
        fates = await self._fates()
        rows = await self._store.look(lambda db: db.read("moving_workers", [()]))
        return [
            Worker(str(id), int(pid or 0), str(host), fates.get(str(id), "alive") if state == "live" else "dead")
            for id, pid, host, state in rows
        ]

    async def _fates(self) -> dict[str, str]:
        """Return what became of workers that are in the books but do not seem to be at work."""
        raise NotImplementedError


class SQLiteHouse(House):
    """A database file, or one in memory."""

    dialect = "sqlite"
    _store: SQLiteStore

    async def look(self, work: Look[T]) -> T:
        if self._store.path == MEMORY:
            return await super().look(work)
        # In a thread and through a store of its own: neither the event loop nor any commit waits for a long look.
        return await asyncio.to_thread(asyncio.run, self._look_alone(work))

    async def _look_alone(self, work: Look[T]) -> T:
        store = SQLiteStore(self._store.path, durability=self._store.durability)
        await store.open()
        try:
            return await store.look(work, together=True, patient=True)
        finally:
            await store.close()

    async def _fates(self) -> dict[str, str]:
        if self._store.path == MEMORY:
            return {}  # there are no other processes, and nobody renews a lease
        folder, boot, now = Path(self._store.path).parent, boot_id(), boot_time()
        fates = {}
        for id, its_boot, lease_until, lock in await self._store.look(lambda db: db.read("live_workers", [()])):
            if its_boot != boot or (lock and is_free(str(folder / str(lock)))):
                fates[str(id)] = "crash"
            elif int(lease_until or 0) < now:
                fates[str(id)] = "hung" if lock else "lapse"  # whoever holds its lock is still there
        return fates


class PostgresHouse(House):
    """A schema of a PostgreSQL database."""

    dialect = "postgres"
    _store: PostgresStore

    async def undelivered(self, db: Statements) -> bool:
        return bool(await db.read("read_outbox", [(0, 1)]))

    async def _fates(self) -> dict[str, str]:
        sessions = self._store.dialect == "direct"

        async def look(db: Statements) -> dict[str, str]:
            fates = {}
            for id, pid, lapsed, here in await db.read("other_workers", [("[]", machine())]):
                if here and not process_exists(int(pid or 0)):
                    fates[str(id)] = "crash"
                elif lapsed and not sessions:
                    fates[str(id)] = "lapse"
                elif lapsed:
                    fates[str(id)] = "hung" if await db.read("is_connected", [(id,)]) else "crash"
            return fates

        return await self._store.look(look)
