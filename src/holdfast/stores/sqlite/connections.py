"""Which connection is used when: commits run on the event loop if that is safe, on a thread if they could wait."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import apsw

from holdfast.errors import ReadOnly, StoreClosed, StoreError
from holdfast.stores.liveness import WorkerLock
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite import guard as sqlite_guard
from holdfast.stores.sqlite.checkpoints import Checkpoints, begin_wal
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.thread import JobThread
from holdfast.stores.sqlite.transactions import SQLiteTransactions
from holdfast.stores.sqlite.watch import FileWatch

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
How = Callable[[apsw.Connection, Callable[[apsw.Connection], T]], T]

CHECK_FILE_EVERY = 5.0
BRIEF = 0.5
"""For how many seconds a commit waits for a lock before the committer, which tries again, hears of it."""

SLOW_COMMIT = 0.002
LEAVE_TO_THREAD = 1.0
"""When commits take this long on average (a disk that takes its time to sync), the event loop leaves them to the thread
for a while: the hop is nothing beside them, and the loop stays free."""


class SQLiteConnections:
    """The connections of one open store.

    `writer` has one owner at a time: the event loop while the thread is not busy, the thread otherwise. `reader`
    belongs to the event loop, another to the checkpoint thread, another to the thread that renews leases. All of them
    are opened with the store, so that they are connections to the same file.
    """

    writer: apsw.Connection
    reader: apsw.Connection
    checkpoints: Checkpoints | None = None
    thread: JobThread | None = None
    file: FileWatch | None = None

    def __init__(self, path: str, durability: str, patience: float) -> None:
        self.path = path
        self.is_open = False
        self.refusal = f"{path}: the store is not open"
        self.expected: os.stat_result | None = None
        """Which file must be opened, where that is known."""
        self._durability = durability
        self._patience = patience
        self._renewing = threading.Lock()
        self._renewer: apsw.Connection | None = None
        self._checked = 0.0
        self._version: object = None
        self._average = 0.0
        self._slow_until = 0.0
        self.locks: dict[str, WorkerLock | None] = {}
        self.transactions = SQLiteTransactions(path, patience, self.another)
        self.loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Open everything, migrating if need be; harmless when it is open."""
        if self.is_open:
            return
        if self.path == sqlite_file.MEMORY:
            self.loop = asyncio.get_running_loop()
            self.writer = self.reader = sqlite_file.connect_memory()
            sqlite_guard.opened(self, None)
        else:
            thread = JobThread("holdfast-writer")
            try:
                await thread.do(self._connect)
            except BaseException:
                thread.stop()
                raise
            self.thread = thread
            self.transactions = SQLiteTransactions(self.path, self._patience, self.another)
        self.refusal, self.is_open = "", True

    def _connect(self) -> None:
        try:
            with sqlite_guard.opening():
                self.file = None
                self.writer, opened = sqlite_file.connect(self.path, self._durability, self._patience, self.expected)
                more: list[apsw.Connection] = []
                try:
                    begin_wal(self.writer, grown=self._durability == "power")
                    self.file = FileWatch(self.path, opened)
                    while len(more) < 3:
                        more.append(self.another())
                except BaseException:
                    for connection in more:
                        connection.close()
                    sqlite_file.close(self.writer, whole=self.file is not None and self._whole())
                    raise
                self.reader, self._renewer, copier = more
                self.checkpoints = Checkpoints(self.writer, copier, self.file)
                sqlite_guard.opened(self, self.file.stat)
        except apsw.Error as error:
            raise translate(error, self.path) from error

    def another(self) -> apsw.Connection:
        """Open one more connection to the file that is open."""
        assert self.file is not None
        return sqlite_file.reconnect(self.path, self._durability, self._patience, self.file.check)

    def _whole(self) -> bool:
        """Whether the file is ours as we left it, so that the WAL may be put into it."""
        try:
            if self.file is not None:
                self.file.check()
                self.file.verify()
        except StoreError:
            return False
        return True

    async def close(self) -> None:
        """Finish what is queued and release everything."""
        self.refusal, self.is_open = f"{self.path}: the store is closed", False
        self.reader.close()
        if self.thread is not None:
            await self.thread.do(self._close_writers)
            self.thread.stop()
        self._release_locks()
        sqlite_guard.closed(self, self.file.stat if self.file else None)

    def _close_writers(self) -> None:
        self.transactions.close()
        if self.checkpoints is not None:
            self.checkpoints.stop()
        with self._renewing:
            if self._renewer is not None:
                self._renewer.close()
                self._renewer = None
        sqlite_file.close(self.writer, whole=self._whole())

    def abandon(self) -> list[object]:
        """Refuse further use in a forked child and return what must never be closed there (see sqlite_guard)."""
        self.is_open = False
        self.refusal = f"{self.path}: the store was inherited through a fork; open a new one in this process"
        self._release_locks()
        ours = [self.writer, self.reader, self._renewer, self.checkpoints and self.checkpoints.connection]
        return [*ours, *self.transactions.handles()]

    def _release_locks(self) -> None:
        for lock in self.locks.values():
            if lock is not None:
                lock.release()
        self.locks.clear()

    def ready(self) -> None:
        """Refuse a closed store, a file that is known to be replaced and, looking every few seconds, one that is."""
        if self.refusal:
            raise StoreClosed(self.refusal)
        if self.file is not None:
            if self.file.verdict is not None:
                self.file.refuse()
            now = time.monotonic()
            if now - self._checked > CHECK_FILE_EVERY:
                self.file.check()
                self._checked = now

    def verify(self) -> None:
        """Refuse a file that is not as SQLite left it: another was put in its place, or another program wrote it."""
        if self.file is not None:
            self.file.verify()

    @property
    def idle(self) -> bool:
        """Whether the event loop may commit by itself now."""
        if self.thread is None or self.checkpoints is None:
            return True
        return not (self.thread.busy or self.checkpoints.behind or time.monotonic() < self._slow_until)

    def commit_here(self, work: Work[T], how: How[T] | None = None) -> T:
        """Do something in one transaction on the event loop's thread; the caller made sure of `ready` and `idle`.

        Raises:
            apsw.BusyError: another process or connection holds the lock; nothing was done.
        """
        began = time.monotonic()
        result = self._commit(work, how=how)
        ended = time.monotonic()
        self._average = 0.9 * self._average + 0.1 * (ended - began)
        if self._average > SLOW_COMMIT:
            self._average, self._slow_until = 0.0, ended + LEAVE_TO_THREAD
        return result

    def _commit(self, work: Work[T], patient: bool = False, how: How[T] | None = None) -> T:
        if self.file is not None and self.file.unsure:
            self.file.verify()
        result = self._translating(self.writer, how or transact, work)
        if self.file is not None and self.checkpoints is not None:
            self.file.verify()  # what was written into another database is not acknowledged
            self.checkpoints.finish(patient)
        return result

    def _commit_patiently(self, work: Work[T], until: float) -> T:
        if self.checkpoints is not None:
            self.checkpoints.wait()
        return self._insist(lambda: self._commit(work, patient=True), until)

    async def write(self, work: Work[T], inline: bool = False, brief: bool = False) -> T:
        """Do something in one transaction, on this thread if it is small and need not wait.

        What is `brief` is asked for again by its caller, and waits for a lock only for a moment.
        """
        self.ready()
        if self.thread is None:
            return self._commit(work)
        if inline and self.idle:
            try:
                return self.commit_here(work)
            except apsw.BusyError:
                pass
        # From now on, not from when the thread comes to it: it may have waited there behind others.
        until = time.monotonic() + min(self._patience, BRIEF if brief else self._patience)
        return await self.thread.do(lambda: self._commit_patiently(work, until))

    async def read(self, work: Work[T]) -> T:
        """Look at what is committed, all of it as of one moment."""
        self.ready()
        try:
            found = self._translating(self.reader, snapshot, work)
        except apsw.BusyError:
            if self.thread is None:
                raise
            found = await self.thread.do(lambda: self._insist(lambda: self._translating(self.writer, snapshot, work)))
        if self.file is not None:
            self.file.verify()  # what another database says is not the answer
        return found

    def renew(self, work: Work[T]) -> T:
        """Do something in one transaction on a connection for lease renewals, waiting for the lock."""
        self.ready()
        with self._renewing:
            self.ready()
            renewer = self._renewer
            assert renewer is not None  # there is one while the store is open
            self.verify()
            return self._insist(lambda: self._translating(renewer, transact, work))

    def changed(self) -> bool:
        """Whether another connection may have committed since the last call."""
        self.ready()
        self.verify()
        if self.thread is None or self.thread.busy:
            return False
        try:
            version = self.writer.execute("PRAGMA data_version").get
        except apsw.Error:
            return True
        before, self._version = self._version, version
        return before is not None and before != version

    def _insist(self, work: Callable[[], T], until: float | None = None) -> T:
        left = self._patience if until is None else max(until - time.monotonic(), 0.0)
        return sqlite_file.insist(work, left, self.path)

    def _translating(self, db: apsw.Connection, how: Callable[[apsw.Connection, Work[T]], T], work: Work[T]) -> T:
        try:
            return how(db, work)
        except apsw.BusyError:
            raise
        except apsw.Error as error:
            if self.file is not None and not isinstance(error, apsw.FullError):
                self.file.suspect()
                if isinstance(error, apsw.CorruptError | apsw.NotADBError):
                    self.file.malformed(error)
            raise translate(error, self.path, db.system_errno) from error


class LookOnlyConnections(SQLiteConnections):
    """The one connection of a store that only looks; whatever would write raises ReadOnly."""

    _opened: os.stat_result

    async def open(self) -> None:
        if self.is_open:
            return
        try:
            with sqlite_guard.opening():
                self.reader, self._opened = sqlite_file.connect_to_look(self.path, self._patience)
        except apsw.Error as error:
            raise translate(error, self.path) from error
        self.writer = self.reader
        sqlite_guard.opened(self, self._opened)
        self.refusal, self.is_open = "", True

    async def close(self) -> None:
        self.refusal, self.is_open = f"{self.path}: the store is closed", False
        self.reader.close()
        sqlite_guard.closed(self, self._opened)

    async def read(self, work: Work[T]) -> T:
        self.ready()
        sqlite_file.check_same(self.path, self._opened)
        return self._insist(lambda: self._translating(self.reader, snapshot, work))

    @property
    def idle(self) -> bool:
        return False  # so that nothing is committed on the way

    def commit_here(self, work: Work[T], how: How[T] | None = None) -> T:
        raise self._refused()

    async def write(self, work: Work[T], inline: bool = False, brief: bool = False) -> T:
        self.ready()
        raise self._refused()

    def renew(self, work: Work[T]) -> T:
        self.ready()
        raise self._refused()

    def _refused(self) -> ReadOnly:
        return ReadOnly(f"{self.path}: was opened only to look, which changes nothing")


def transact(db: apsw.Connection, work: Work[T]) -> T:
    """Do something in one write transaction."""
    db.execute("BEGIN IMMEDIATE")
    try:
        result = work(db)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return result


def single_statement(db: apsw.Connection, work: Work[T]) -> T:
    """Do something that writes by one statement only, which SQLite makes a transaction by itself."""
    return work(db)


def snapshot(db: apsw.Connection, work: Work[T]) -> T:
    """Look at one moment of the database."""
    db.execute("BEGIN")
    try:
        return work(db)
    finally:
        db.execute("COMMIT")
