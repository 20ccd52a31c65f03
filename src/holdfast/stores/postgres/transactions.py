"""Steps that write the user's own tables: their rows and the record of their end are one transaction of PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.clock import Instant
from holdfast.contract.operations import Delivered, Fenced, Transact
from holdfast.errors import DefinitionError, StepTimeout, StoreError
from holdfast.stores.postgres.address import Dialect
from holdfast.stores.postgres.connections import PostgresConnections, cut
from holdfast.stores.postgres.errors import is_lost, translate
from holdfast.stores.postgres.statements import BlockingStatements, encoded
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.statements import at_once

Body = Callable[[Any], str]

_KEPT = 4
"""How many connections are kept for the next steps."""
_MOST = 20
"""How many there may be at once: a server has few to give."""


class PostgresTransactions:
    """The transactions of steps on one store, each on a connection of its own."""

    def __init__(self, connections: PostgresConnections, schema: str) -> None:
        self._connections = connections
        self._schema = schema
        self._kept: list[Connection[Any]] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST)
        self._closed = False

    def run(
        self, attempt: Transact, body: Body, now: Callable[[], Instant], expired: Callable[[], None]
    ) -> Delivered | Fenced:
        """Call a body in a transaction; see Store.transact.

        The run's row is locked only when the body is done, so that others need not wait for it; if the run was lost
        meanwhile, all is rolled back.
        """
        with self._places:
            return self._run(attempt, body, now, expired)

    def _run(
        self, attempt: Transact, body: Body, now: Callable[[], Instant], expired: Callable[[], None]
    ) -> Delivered | Fenced:
        connection = self._connection()
        turn = _StepTransaction(self._connections, connection, attempt, expired)
        try:
            with connection.transaction():
                return self._record(turn, attempt, body, now)
        except _Lost:
            return Fenced(attempt.run)
        except psycopg.Error as error:
            if turn.raised is error and not is_lost(error, connection):
                raise
            raise translate(error, self._connections.where) from error
        finally:
            self._give_back(connection, fit=not turn.over())

    def _record(self, turn: _StepTransaction, attempt: Transact, body: Body, now: Callable[[], Instant]) -> Delivered:
        statements = BlockingStatements(turn.connection, self._schema)
        batch = Batch(statements)
        if at_once(batch.tasks.may_record(attempt)) is None:
            raise _Lost
        payload = turn.call(body)
        nothing = encoded([])
        at_once(statements.execute("lock_runs", (encoded([attempt.run]), *[nothing] * 5)))
        batch = Batch(statements)
        run = at_once(batch.tasks.may_record(attempt))
        if run is None:
            raise _Lost
        return at_once(batch.tasks.record(run, attempt, payload, now()))

    def close(self) -> None:
        """Give up the connections that are kept."""
        with self._lock:
            self._closed, kept, self._kept = True, self._kept, []
        for connection in kept:
            connection.close()

    def _connection(self) -> Connection[Any]:
        with self._lock:
            kept, self._kept = self._kept, []
        while kept:
            connection = kept.pop()
            try:
                connection.execute("DISCARD ALL")  # whatever the last body left behind, and whether the server is there
            except psycopg.Error:
                connection.close()
                continue
            with self._lock:
                self._kept += kept
            return connection
        return self._connections.connect_blocking()

    def _give_back(self, connection: Connection[Any], fit: bool) -> None:
        fit = fit and not connection.closed and connection.info.transaction_status is TransactionStatus.IDLE
        connection.row_factory, connection.cursor_factory = tuple_row, Cursor
        with self._lock:
            if fit and not self._closed and len(self._kept) < _KEPT:
                self._kept.append(connection)
                return
        connection.close()


class _Lost(Exception):
    """The run is another's now, or has ended: nothing is to be written."""


class _StepTransaction:
    """One body with its connection, and who may still take that away."""

    def __init__(
        self,
        connections: PostgresConnections,
        connection: Connection[Any],
        attempt: Transact,
        expired: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.raised: BaseException | None = None
        """What the body raised."""
        self._connections = connections
        self._session = connection.info.backend_pid
        self._limit = attempt.limit
        self._expired = expired
        self._lock = threading.Lock()
        self._over = False
        self._late = False

    def call(self, body: Body) -> str:
        """Call the body, for as long as it may take."""
        timer = threading.Timer(self._limit.total_seconds(), self._too_late)
        timer.name, timer.daemon = "holdfast transaction", True
        timer.start()
        try:
            payload = body(self.connection)
        except BaseException as error:
            self.raised = error
            if not self.over():
                raise
        finally:
            timer.cancel()
        if self.over():
            raise StepTimeout(f"the transaction was not done within {self._limit}") from self.raised
        if self.connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise DefinitionError(
                "the transaction was ended inside the step: holdfast commits, or rolls back if it raises"
            )
        return payload

    def over(self) -> bool:
        """Let the connection not be taken away any more; True if it was."""
        with self._lock:
            self._over = True
            return self._late

    def _too_late(self) -> None:
        with self._lock:
            if self._over:
                return
            self._late = True
        if self._connections.dialect is Dialect.POOLER:
            cut(self.connection)  # a pooler's number of the session is made up
            self._expired()
            return
        with suppress(StoreError):  # a server that cannot be reached has ended it, too
            self._connections.renew(
                lambda connection: connection.execute("SELECT pg_terminate_backend(%s)", (self._session,))
            )
        self._expired()
