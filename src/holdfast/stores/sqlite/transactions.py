"""Steps that write the user's own tables: their rows and the record of their end are one transaction of SQLite.

Each has its own connection, so that the store can take it away from a body that takes too long: all other commits
wait for it. A database in memory has only one connection, the event loop's; there the body runs on the loop.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import cache
from typing import Any

import apsw

from holdfast.clock import Instant
from holdfast.contract.operations import Delivered, Fenced, Transact
from holdfast.errors import DefinitionError, StepTimeout, StoreClosed
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.files import migrations
from holdfast.stores.sql.statements import at_once
from holdfast.stores.sqlite import file as sqlite_file
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.statements import PlainStatements

LONGEST = timedelta(seconds=5)
Body = Callable[[Any], str]

_HARMLESS_PRAGMAS = frozenset(
    {
        "collation_list", "compile_options", "data_version", "database_list", "defer_foreign_keys", "foreign_key_check",
        "foreign_key_list", "function_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list",
        "table_xinfo",
    }
)  # fmt: skip
_NAMES_A_TABLE_FIRST = frozenset(
    {
        apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_CREATE_TABLE, apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_CREATE_VTABLE, apsw.SQLITE_CREATE_VIEW,
        # One of our names in the schema temp would hide the table itself.
        apsw.SQLITE_CREATE_TEMP_TABLE, apsw.SQLITE_CREATE_TEMP_VIEW,
    }
)  # fmt: skip
_NAMES_A_TABLE_SECOND = frozenset(
    {
        apsw.SQLITE_ALTER_TABLE, apsw.SQLITE_CREATE_INDEX, apsw.SQLITE_DROP_INDEX, apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_DROP_TRIGGER, apsw.SQLITE_CREATE_TEMP_TRIGGER,
    }
)  # fmt: skip


class SQLiteTransactions:
    """The transactions of steps that one store has under way."""

    def __init__(self, path: str, patience: float, connect: Callable[[], apsw.Connection]) -> None:
        self._path = path
        self._patience = patience
        self._connect = connect
        self._open: set[_StepTransaction] = set()
        self._closed = False
        self._lock = threading.Lock()

    def run(
        self, attempt: Transact, body: Body, now: Callable[[], Instant], expired: Callable[[], None]
    ) -> Delivered | Fenced:
        """Call a body in a transaction on a connection of its own; see Store.transact."""
        check_limit(attempt)
        try:
            turn = _StepTransaction(self._connect(), attempt, expired)
        except apsw.Error as error:
            raise translate(error, self._path) from error
        try:
            with self._lock:
                self._open.add(turn)
                if self._closed:
                    raise StoreClosed(f"{self._path}: the store is closed")
            turn.db.pragma("foreign_keys", True)
            sqlite_file.insist(lambda: turn.db.execute("BEGIN IMMEDIATE"), self._patience, self._path)
            return turn.run(body, now)
        except apsw.ConnectionClosedError as error:
            raise StoreClosed(f"{self._path}: the store was closed") from error
        except apsw.Error as error:
            if turn.raised is error:
                raise
            raise translate(error, self._path) from error
        finally:
            turn.leave()
            with self._lock:
                self._open.discard(turn)

    def close(self) -> None:
        """Take the connections of those that are not done yet away, and refuse others."""
        with self._lock:
            self._closed = True
            turns = list(self._open)
        for turn in turns:
            turn.take_away()
            if not turn.taken:  # it is about to commit
                turn.left.wait(self._patience)

    def handles(self) -> list[object]:
        """Return the connections that there are, for a forked child to keep open."""
        return [turn.db for turn in list(self._open)]


def run_in_memory(
    db: apsw.Connection, loop: asyncio.AbstractEventLoop, attempt: Transact, body: Body, now: Callable[[], Instant]
) -> Delivered | Fenced:
    """Call a body in a transaction on the only connection there is, on the event loop's thread."""
    check_limit(attempt)
    done: Future[Delivered | Fenced] = Future()

    def run() -> None:
        try:
            db.pragma("foreign_keys", True)
            db.execute("BEGIN IMMEDIATE")
            done.set_result(_StepTransaction(db, attempt, lambda: None, only=True).run(body, now))
        except BaseException as error:
            done.set_exception(error)

    if asyncio._get_running_loop() is loop:
        run()
    else:
        try:
            loop.call_soon_threadsafe(run)
        except RuntimeError as error:
            raise StoreClosed("the event loop of a database in memory is closed") from error
    return done.result()


def check_limit(attempt: Transact) -> None:
    """Refuse a body that may take longer than others should wait."""
    if attempt.limit > LONGEST:
        raise DefinitionError(
            f"the timeout of an activity with transaction=True may be at most {LONGEST.seconds} s on SQLite, because "
            f"all other commits wait for it; it is {attempt.limit}"
        )


class _StepTransaction:
    """One transaction: what is done in it, and who may still end it."""

    def __init__(
        self, db: apsw.Connection, attempt: Transact, expired: Callable[[], None], *, only: bool = False
    ) -> None:
        self.db = db
        self.left = threading.Event()
        self.raised: BaseException | None = None
        """What the body raised."""
        self.taken = False
        """Whether the connection was taken away."""
        self._attempt = attempt
        self._expired = expired
        self._only = only
        self._lock = threading.Lock()
        self._over = False
        self._rolled_back = False
        self._gone = threading.Event()

    def run(self, body: Body, now: Callable[[], Instant]) -> Delivered | Fenced:
        """Do it in the transaction that was begun, and end that one way or the other."""
        db = self.db
        try:
            batch = Batch(PlainStatements(db))
            run = at_once(batch.tasks.may_record(self._attempt))
            if run is None:
                return Fenced(self._attempt.run)
            payload = self._call(body)
            if self._rolled_back:
                raise DefinitionError("the transaction was rolled back inside the step, as INSERT OR ROLLBACK does")
            delivered = at_once(batch.tasks.record(run, self._attempt, payload, now()))
            db.execute("COMMIT")
            return delivered
        finally:
            if self._mine and db.in_transaction:
                db.execute("ROLLBACK")

    def _call(self, body: Body) -> str:
        timer = threading.Timer(self._attempt.limit.total_seconds(), self._too_late)
        timer.name, timer.daemon = "holdfast transaction", True
        timer.start()
        try:
            self._watch_over()
            payload = body(self.db)
        except BaseException as error:
            self.raised = error
            if not self._finish():
                raise
        else:
            self._finish()
        finally:
            timer.cancel()
            if self._mine:
                self._stop_watching()
        if self.taken:
            raise StepTimeout(f"the transaction was not done within {self._attempt.limit}") from self.raised
        return payload

    def _watch_over(self) -> None:
        """Let nothing but this object end the transaction, nor anything be written after it was rolled back."""
        self.db.authorizer = _authorize
        self.db.set_commit_hook(_no_commit)
        self.db.set_rollback_hook(self._note_rollback)

    def _stop_watching(self) -> None:
        self.db.authorizer = None
        self.db.set_commit_hook(None)
        self.db.set_rollback_hook(None)

    def _note_rollback(self) -> None:
        self._rolled_back = True

    @property
    def _mine(self) -> bool:
        """Whether the connection was not taken away."""
        return self._only or not self.taken

    def _finish(self) -> bool:
        """Let the connection not be taken away any more; True if it was."""
        with self._lock:
            self._over = True
        if self.taken:
            self._gone.wait()
        return self.taken

    def _too_late(self) -> None:
        if self.take_away():
            self._expired()

    def take_away(self) -> bool:
        """Close the connection under the body, unless that is done; the transaction is rolled back by it."""
        with self._lock:
            if self._over or self.taken:
                return False
            self.taken = True
        self.db.interrupt()
        while not self._only:
            try:
                self.db.close(True)
                break
            except apsw.ThreadingViolationError:  # in the middle of a statement
                time.sleep(0.001)
                self.db.interrupt()
        self._gone.set()
        return True

    def leave(self) -> None:
        """Let go of the connection."""
        with self._lock:
            self._over = True
        if self.taken:
            self._gone.wait()
        self.db.close(True)
        self.left.set()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    """Refuse what would end the transaction, or touch what is holdfast's own."""
    if action == apsw.SQLITE_TRANSACTION:
        raise DefinitionError(f"{first} in a step with transaction=True: holdfast commits, or rolls back if it raises")
    if action in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH):
        raise DefinitionError("ATTACH and DETACH do not work in a step with transaction=True")
    if action == apsw.SQLITE_PRAGMA and first not in _HARMLESS_PRAGMAS:
        raise DefinitionError(f"PRAGMA {first} does not work in a step with transaction=True")
    table = first if action in _NAMES_A_TABLE_FIRST else second if action in _NAMES_A_TABLE_SECOND else None
    if table is not None and table.lower() in own_tables():
        raise DefinitionError(f"table {table} belongs to holdfast: a step may look at it, and write its own tables")
    return apsw.SQLITE_OK


def _no_commit() -> bool:
    raise DefinitionError("the transaction of this step was rolled back: nothing more can be written in it")


@cache
def own_tables() -> frozenset[str]:
    """Return the names of holdfast's tables."""
    scripts = (script for _, script in migrations("sqlite"))
    return frozenset(name for script in scripts for name in re.findall(r"CREATE TABLE (\w+)", script))
