"""The key-value store: the whole engine on any driver, in one process at a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import apsw

from holdfast.clock import Instant, micros
from holdfast.contract.rows import TakenOver
from holdfast.contract.store import Store
from holdfast.errors import BadInput
from holdfast.kv.driver import Driver
from holdfast.stores.keyvalue.connections import KeyValueConnections, KeyValueLook, OpenDriver
from holdfast.stores.keyvalue.space import process_is_gone
from holdfast.stores.liveness import Fate
from holdfast.stores.sqlite import workers as sqlite_workers
from holdfast.stores.sqlite.backup import copy_file
from holdfast.stores.sqlite.file import MEMORY
from holdfast.stores.sqlite.statements import SQL
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.system import boot_time

_WORKERS = "SELECT id, host, boot, pid FROM workers WHERE state = 'live'"

_LET_LAPSE = "UPDATE workers SET lease_until = min(lease_until, ?2 - 1) WHERE id = ?1"


class KeyValueStore(SQLiteStore):
    """Runs in a key space of their own, behind any driver.

    Everything is held in memory, for up to about 10,000 open runs, and every commit is one batch of the driver. One
    process at a time may have it open: another is refused (StoreBusy), or, where it cannot be told that the first one
    still runs, that one is fenced (StoreReplaced). Steps with `transaction=True` and `connection=` are refused.

    Args:
        driver: the key space; closed with the store. Or a function that opens one, which lets the store open it again
            when the driver has closed itself after an error.
        name: what it is called among others, for faces.
        shown: what errors call it.
        path: where its files are, if it has some.
        open_to_look: opens a driver that only reads, though another process has the key space open.
    """

    def __init__(
        self,
        driver: Driver | OpenDriver,
        *,
        name: str = "",
        shown: str = "",
        path: str = "",
        open_to_look: OpenDriver | None = None,
    ) -> None:
        super().__init__(MEMORY)
        if not isinstance(driver, Driver) and not callable(driver):
            raise BadInput(f"a key-value store needs a Driver, or a function that opens one, not {driver!r}")
        kind = f" of {type(driver).__name__}" if isinstance(driver, Driver) else ""
        self.shown: str = shown or f"the key space{kind}"
        self.name: str = name
        self.path: str = path or self.shown
        self.fences: bool = True
        """Whether to open it though a process of another machine may have it open, which then may write no more."""
        self._renewals: dict[str, tuple[int, int]] = {}
        """When the row of a worker was last renewed, and how often that is done, in microseconds since boot."""
        self._loads: dict[str, str] = {}
        self._driver = driver
        self._open_to_look = open_to_look or driver
        self._connections: KeyValueConnections = KeyValueConnections(self.shown, driver)

    async def open(self, *, look_only: bool = False) -> None:
        if not self._connections.is_open:
            if look_only:
                self._connections = KeyValueLook(self.shown, self._open_to_look)
            else:
                self._connections = KeyValueConnections(self.shown, self._driver, fences=self.fences)
        await self._connections.open()
        self.durability = "power" if self._connections.space.driver.durability == "disk" else "process"

    def another(self) -> SQLiteStore:
        raise BadInput(f"{self.shown}: one store at a time may have a key space open")

    async def copy_to(self, path: str, progress: Callable[[int, int], None]) -> tuple[int, int]:
        """Write a copy of everything as an SQLite database, into an empty file."""
        connections = self._connections
        return await connections.copy(lambda: copy_file(connections.writer, self.shown, path, progress))

    transact = Store.transact  # which refuses: there are no tables of users'

    async def join(self, worker: str, lease: timedelta, about: str = "{}") -> None:
        await super().join(worker, lease, about)
        self._renewals[worker] = boot_time(), micros(lease) // 3

    def renew(self, worker: str, load: str = "{}") -> bool:
        self._loads[worker] = load  # which the event loop writes: a driver is asked from no other thread
        return super().renew(worker, load)

    async def _write_renewals(self) -> None:
        """Write when the workers of this process last said that they live; their death is dated by it."""
        now = boot_time()
        due = [worker for worker, (last, every) in self._renewals.items() if now - last > every]
        if due:
            rows = [(worker, now, self._loads.get(worker, "{}")) for worker in due if worker in self._connections.locks]
            await self._connections.write(lambda db: db.executemany(SQL["renew_worker"], rows).fetchall())
            self._renewals |= {worker: (now, self._renewals[worker][1]) for worker in due}

    async def leave(self, worker: str) -> None:
        await super().leave(worker)
        self._renewals.pop(worker, None)
        self._loads.pop(worker, None)

    async def take_over(self, now: Instant) -> list[TakenOver]:
        await self._connections.check_owner()
        await self._write_renewals()
        fates = await self.fates()
        if not fates:
            return []

        def declare(db: apsw.Connection) -> list[TakenOver]:
            # Whatever its lease says: it may write no more.
            lapsed = [worker for worker, fate in fates.items() if fate is Fate.LAPSED]
            db.executemany(_LET_LAPSE, [(worker, boot_time()) for worker in lapsed])
            return sqlite_workers.declare_dead(db, fates, now)

        return await self._connections.write(declare)

    async def fates(self) -> dict[str, Fate]:
        """Return what became of workers of earlier processes: this one alone has the key space."""
        rows = await self._connections.read(lambda db: db.execute(_WORKERS).fetchall())
        mine, known = self._connections.locks, self._connections.space.before_is_gone
        fates: dict[str, Fate] = {}
        for worker, host, boot, pid in rows:
            if worker not in mine:
                gone = process_is_gone(str(host), str(boot), int(str(pid))) if known is None else known
                fates[str(worker)] = Fate.DIED if gone else Fate.LAPSED
        return fates
