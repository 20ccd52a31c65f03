"""Starting runs and sending messages inside a caller's own transaction: they exist once that commits.

A started run is inserted; no other process knows it yet, so none waits for its row. A message would have to lock the
row of its run, and commits of that run would wait as long as the caller's transaction lasts. So it is put into the
outbox, and the next worker that looks there delivers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor, errors
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast.contract.operations import Delivered, Operation, Outcome, Refused, SendMessage
from holdfast.contract.rows import Status
from holdfast.contract.turns import StartRun
from holdfast.errors import BadInput
from holdfast.stores.postgres.connections import in_pipeline
from holdfast.stores.postgres.database import BEGIN, Database
from holdfast.stores.postgres.statements import PostgresStatements, Waited, new_keys
from holdfast.stores.rules.batch import Batch
from holdfast.stores.sql.tables import Row, Value

_TRIES = 3
_AT_ONCE = 500
"""How many messages of the outbox are delivered in one batch."""
_encode = msgspec.json.Encoder().encode


async def enclose(
    connection: object, schema: str, keys: Callable[[], int], operation: StartRun | SendMessage
) -> Outcome:
    """Do an operation inside the transaction that a connection of the caller has open.

    Raises:
        BadInput: it is no connection of psycopg, has no transaction open, or leads to another database.
    """
    if not isinstance(connection, AsyncConnection | Connection):
        raise BadInput(f"connection must be a psycopg connection with a transaction open, not {connection!r}")
    if connection.info.transaction_status is TransactionStatus.IDLE and connection.autocommit:
        raise BadInput("connection has no transaction open: call within `async with connection.transaction():`")
    statements = _Enclosed(connection, schema, keys)
    try:
        if isinstance(operation, SendMessage):
            return await _send(statements, operation)
        return await _start(statements, operation)
    except errors.UndefinedTable as error:
        raise BadInput(f"connection leads to a database without holdfast's tables (schema {schema!r})") from error


async def _start(statements: _Enclosed, operation: StartRun) -> Outcome:
    for tries in range(_TRIES):
        await statements.say("SAVEPOINT holdfast")
        try:
            [outcome] = await Batch(statements).apply([operation])
        except errors.UniqueViolation:
            await statements.say("ROLLBACK TO SAVEPOINT holdfast")
            if tries == _TRIES - 1:
                raise  # a transaction that sees only the past cannot see it: the caller has to begin another
            continue  # another run of this id was committed just now
        await statements.say("RELEASE SAVEPOINT holdfast")
        return outcome
    raise AssertionError("unreachable")


async def _send(statements: _Enclosed, operation: SendMessage) -> Outcome:
    target = await Batch(statements).named(operation.target)
    if target is None:
        return Refused(None)
    if operation.deduplicate and await statements.read("known_message", [(target.key, operation.id)]):
        return Delivered(target.key, duplicate=True)
    if target.ended is not None and not operation.dead_letter:
        return Refused(Status(target.status))
    once = msgspec.structs.replace(operation, deduplicate=True, dead_letter=True)
    await statements.write("put_outbox", [(new_keys()(), _encode(once).decode())])
    return Delivered(target.key)


class _Enclosed(PostgresStatements):
    """Statements on a connection that belongs to the caller, waited for one by one."""

    def __init__(
        self, connection: AsyncConnection[Any] | Connection[Any], schema: str, keys: Callable[[], int]
    ) -> None:
        super().__init__(connection, schema, keys)  # type: ignore[arg-type]  # it is only used by `execute`
        self._theirs = connection

    async def execute(self, name: str, values: Sequence[Value]) -> Any:
        if isinstance(self._theirs, AsyncConnection):
            cursor = AsyncRawCursor(self._theirs, row_factory=tuple_row)
            await cursor.execute(self._sql[name], values)
            return cursor
        blocking: RawCursor[Any] = RawCursor(self._theirs, row_factory=tuple_row)
        await asyncio.to_thread(blocking.execute, self._sql[name], values)
        return Waited(blocking)

    async def say(self, command: str) -> None:
        """Run a command without parameters."""
        if isinstance(self._theirs, AsyncConnection):
            await self._theirs.execute(command.encode())
        else:
            await asyncio.to_thread(self._theirs.execute, command.encode())


class Outbox:
    """Messages that callers left in their own transactions, until a worker delivers them."""

    def __init__(self, database: Database, apply: Callable[[Sequence[Operation]], Awaitable[list[Outcome]]]) -> None:
        self._database = database
        self._apply = apply

    async def deliver(self) -> int:
        """Deliver what was committed since; return how many."""
        after = done = 0
        while rows := await self._database.ask("read_outbox", after, _AT_ONCE):
            after = rows[-1][0]
            done += await self._deliver(rows)
            if len(rows) < _AT_ONCE:
                break
        return done

    async def _deliver(self, rows: Sequence[tuple[Any, ...]]) -> int:
        """Deliver some; each has an id that is remembered, so that delivering it twice is harmless."""
        messages = [msgspec.json.decode(message, type=SendMessage) for _, message in rows]
        outcomes = await self._apply(messages)
        refused = [outcome if isinstance(outcome, Refused) else None for outcome in outcomes]
        gone = [row for row, why in zip(rows, refused, strict=True) if why is None or why.reason != "full"]
        orphans: list[Row] = [
            (str(UUID(int=n)), each.target, "", each.name, each.payload, "", each.at, each.at)
            for (n, _), each, why in zip(rows, messages, refused, strict=True)
            if why is not None and why.status is None
        ]

        async def forget(connection: AsyncConnection[Any]) -> None:
            statements = self._database.on(connection)
            async with in_pipeline(connection, self._database.connections.dialect):
                await connection.execute(BEGIN)
                if orphans:  # their run was deleted since: they stay as dead letters
                    await statements.write("insert_event_letters", orphans)
                await statements.write("drop_outbox", [(n,) for n, _ in gone])
                await connection.execute("COMMIT")

        if gone:
            await self._database.insist(self._database.connections.writer, forget)
        return len(gone)
