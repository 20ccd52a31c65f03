"""SQLite in memory in front of a key space: a transaction is committed there once the driver has its rows.

BEGIN, statements, a batch of the driver, COMMIT; or ROLLBACK if the batch failed. The event loop goes on during the
batch, so other reads and writes wait for their turn: they see only what is durable. If the answer of a batch was lost,
memory and driver may differ: everything is read back before anything else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import apsw

from holdfast.errors import OutcomeUnknown, PayloadTooLarge, ReadOnly, StoreClosed, StoreError, StoreReplaced
from holdfast.kv.driver import Driver, answer
from holdfast.stores.keyvalue.rows import ChangedRows, everything, fill, tables_of
from holdfast.stores.keyvalue.space import EngineSpace, check_driver
from holdfast.stores.sql.files import check_current, migrations
from holdfast.stores.sql.statements import at_once
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import guard as sqlite_guard
from holdfast.stores.sqlite.connections import How, SQLiteConnections, Work, snapshot
from holdfast.stores.sqlite.errors import translate

T = TypeVar("T")
OpenDriver = Callable[[], Driver | Awaitable[Driver]]

_HOOK = "holdfast"
FRESH = 1.0
"""For how many seconds what was read is shown, where the key space is only looked at."""


class KeyValueConnections(SQLiteConnections):
    """The one connection of an open store, and the key space behind it."""

    space: EngineSpace
    _changes: ChangedRows

    def __init__(self, name: str, driver: Driver | OpenDriver, *, fences: bool = True) -> None:
        super().__init__(name, "process", 0.0)
        self._driver = driver
        self._fences = fences
        self._marks: dict[str, int] = {}
        self._turn = asyncio.Lock()
        self._lost = False
        """Whether what is in memory may not be what is stored."""
        self._replaced: StoreReplaced | None = None

    async def open(self) -> None:
        if self.is_open:
            return
        self.loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._lost, self._replaced = False, None
        await self._connect()
        sqlite_guard.opened(self, None)
        self.refusal, self.is_open = "", True

    async def _connect(self) -> None:  # type: ignore[override]  # a driver may have to be waited for
        given = self._driver
        driver = given if isinstance(given, Driver) else await answer(given())
        self.space = EngineSpace(driver, self.path)
        try:
            check_driver(driver)
            await self._read_back()
        except BaseException:
            await self._let_go()
            raise

    async def _let_go(self) -> None:
        """Close a driver that can be opened again."""
        self.space.abandon()
        if not isinstance(self._driver, Driver):
            await answer(self.space.driver.close())

    async def _read_back(self) -> None:
        """Make the key space this process's own, and the database in memory what it says."""
        found = await self.space.take(self._fences, again=self._lost)
        schema, newest = self.space.schema, migrations("sqlite")[-1][0]
        db, marks = _database(found, schema, self.path)
        if schema < newest:
            now = dict(everything(db))
            await self.space.write(now, [key for key in found if key not in now], newest)
            marks = dict(db.execute("SELECT name, seq FROM sqlite_sequence"))
        self._use(db, marks)

    def _use(self, db: apsw.Connection, marks: dict[str, int]) -> None:
        self.writer = self.reader = db
        self._marks = marks
        self._changes = ChangedRows(tables_of(db))
        db.preupdate_hook(self._changes.note, id=_HOOK)

    async def close(self) -> None:
        self.refusal, self.is_open = f"{self.path}: the store is closed", False
        async with self._turn:
            try:
                if not self._lost and self._replaced is None:
                    await self.space.release()
            except StoreError:
                pass  # the next process finds that this one is gone
            finally:
                self.space.abandon()
                self.writer.close()
                self.locks.clear()
                sqlite_guard.closed(self, None)
                await answer(self.space.driver.close())

    def ready(self) -> None:
        if self._replaced is not None:
            raise self._replaced
        super().ready()

    @property
    def idle(self) -> bool:
        return not (self.space.waits or self._lost or self._turn.locked())

    def commit_here(self, work: Work[T], how: How[T] | None = None) -> T:
        return at_once(self._through(work))

    async def write(self, work: Work[T], inline: bool = False, brief: bool = False) -> T:
        self.ready()
        if self.idle:
            return at_once(self._through(work))
        # In a task of its own: a batch that is under way is finished, whatever becomes of the caller.
        task = asyncio.ensure_future(self._in_turn(work))
        task.add_done_callback(_heard)
        return await asyncio.shield(task)

    async def _in_turn(self, work: Work[T]) -> T:
        async with self._turn:
            await self._be_whole()
            return await self._through(work)

    async def read(self, work: Work[T]) -> T:
        self.ready()
        if not (self._lost or self._turn.locked()):
            return self._look(work)
        async with self._turn:
            await self._be_whole()
            return self._look(work)

    def _look(self, work: Work[T]) -> T:
        return self._translating(self.reader, snapshot, work)

    async def copy(self, work: Callable[[], T]) -> T:
        """Do something with the connection that must not come between a batch and its commit."""
        self.ready()
        async with self._turn:
            await self._be_whole()
            return work()

    async def check_owner(self) -> None:
        """Find out whether another process has the key space now, though nothing was written since.

        Raises:
            StoreReplaced: it has.
        """
        self.ready()
        async with self._turn:
            await self._be_whole()
            try:
                await self.space.check_owner()
            except StoreReplaced as error:
                self._replaced = error
                raise

    async def _be_whole(self) -> None:
        """Read everything back if that is due."""
        self.ready()
        if not self._lost:
            return
        self.writer.close()
        await self._let_go()
        try:
            await self._connect()
        except StoreReplaced as error:
            self._replaced = error
            raise
        self._lost = False

    async def _through(self, work: Work[T]) -> T:
        """Do something in one transaction, durable in the key space before it is committed here."""
        db, marks, sent = self.writer, dict(self._marks), False
        try:
            db.execute("BEGIN IMMEDIATE")
            result = work(db)
            puts, deletes = self._changes.take(marks)
            sent = True
            await self.space.write(puts, deletes)
            db.execute("COMMIT")
        except BaseException as error:
            self._undo(error, sent)
            if isinstance(error, apsw.Error):
                raise translate(error, self.path) from error
            raise
        self._marks = marks
        return result

    def _undo(self, error: BaseException, sent: bool) -> None:
        if isinstance(error, StoreReplaced):
            self._replaced = error
        elif sent and not _wrote_nothing(error):
            self._lost = True
        self._changes.clear()
        if self.writer.in_transaction:
            self.writer.execute("ROLLBACK")

    def abandon(self) -> list[object]:
        self.space.abandon()
        return super().abandon()


class KeyValueLook(KeyValueConnections):
    """A key space that is only looked at, as it was a moment ago; whatever would write raises ReadOnly.

    It is read again when that was a second ago, or ten times as long ago as it took.
    """

    _again = 0.0
    """When it is to be read again."""

    async def _read_back(self) -> None:
        began = time.monotonic()
        found = await self.space.look()
        check_current(self.space.schema, "sqlite", self.path)
        db, marks = _database(found, self.space.schema, self.path)
        self._use(db, marks)
        ended = time.monotonic()
        self._again = ended + max(FRESH, 10 * (ended - began))

    async def read(self, work: Work[T]) -> T:
        if time.monotonic() > self._again:
            async with self._turn:
                self.ready()
                before = self.writer
                if time.monotonic() > self._again:  # else another look has just read it
                    await self._read_back()
                    before.close()
        return await super().read(work)

    @property
    def idle(self) -> bool:
        return False  # so that nothing is committed on the way

    async def check_owner(self) -> None:
        self.ready()

    async def _through(self, work: Work[T]) -> T:
        raise ReadOnly(f"{self.path}: was opened only to look, which changes nothing")


def _database(found: dict[bytes, bytes], schema: int, name: str) -> tuple[apsw.Connection, dict[str, int]]:
    """Return a database in memory with what was found, of the newest schema, and the highest numbers it gave out."""
    if schema == migrations("sqlite")[-1][0] or not schema:
        db = sqlite_file.connect_memory()
        return db, fill(db, found) if schema else {}
    db = apsw.Connection(sqlite_file.MEMORY, statementcachesize=200)
    for number, script in migrations("sqlite"):
        if number <= schema:
            db.execute(script)
            db.execute(f"PRAGMA user_version = {number}")
    db.execute(f"PRAGMA application_id = {sqlite_file.APPLICATION_ID}")
    marks = fill(db, found)
    sqlite_file.migrate(db, name)
    return db, marks


def _wrote_nothing(error: BaseException) -> bool:
    """Whether a batch that raised this has left the key space as it was, and the driver can go on."""
    return isinstance(error, StoreError | PayloadTooLarge) and not isinstance(error, OutcomeUnknown | StoreClosed)


def _heard(task: asyncio.Future[T]) -> None:
    """Let nothing be said of an error that no caller waits for any more."""
    if not task.cancelled():
        task.exception()
