"""One batch on its way into PostgreSQL: locked and read in one round trip, decided here, written in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection

from holdfast.clock import new_id
from holdfast.contract.operations import Operation, Outcome
from holdfast.contract.turns import CommitTurn
from holdfast.stores.postgres.connections import together
from holdfast.stores.postgres.dialect import Dialect
from holdfast.stores.postgres.errors import is_lost
from holdfast.stores.postgres.locks import Locks, locks_of
from holdfast.stores.postgres.statements import Statements, encoded, found
from holdfast.stores.rules.batch import Batch
from holdfast.stores.rules.facts import Split, facts_of
from holdfast.stores.sql.tables import Row

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Who waited for a lock must then see what was done meanwhile."""


class Lost(Exception):
    """The connection broke after a commit was sent: whether it happened, nobody said."""


class Attempt:
    """One batch on its way into the database, made again until somebody says what became of it."""

    def __init__(
        self,
        schema: str,
        dialect: Dialect,
        keys: Callable[[], int],
        operations: Sequence[Operation],
        split: Split,
        known: Callable[[], list[str]],
    ) -> None:
        self._schema = schema
        self._dialect = dialect
        self._keys = keys
        self._operations = operations
        self._split = split
        self._locks = locks_of(split.others)
        self.alone = self._locks.alone
        self._known = known
        """Returns the tokens of commits whose outcome is known."""
        self.dropped: list[str] = []
        """Those that this one has deleted."""
        self.token = ""
        self.sent = False
        """Whether the commit may have reached the server."""
        self.outcomes: list[Outcome] = []

    async def make(self, connection: AsyncConnection[Any]) -> list[Outcome]:
        """Apply the batch in one transaction: one round trip to lock and read, one to write and commit.

        Raises:
            NotLocked: it needs what it could not know beforehand, and is to be made alone.
            Lost: the connection broke, perhaps after the commit.
        """
        statements = Statements(connection, self._schema, self._keys)
        self.token, self.sent, self.dropped = new_id(), False, self._known()
        try:
            async with together(connection, self._dialect):
                await connection.execute(BEGIN)
                self.outcomes = await (self._by_itself(statements) if self.alone else self._beside_others(statements))
                await statements.execute("put_token", (self.token,))
                if self.dropped:
                    await statements.write("drop_tokens", [(token,) for token in self.dropped])
                self.sent = True
                await connection.execute("COMMIT")
        except psycopg.Error as error:
            if self.sent and is_lost(error, connection):
                raise Lost(str(error)) from error
            raise
        return self.outcomes

    async def _by_itself(self, statements: Statements) -> list[Outcome]:
        await lock_gate(statements)
        return await Batch(statements).apply(self._operations)

    async def _beside_others(self, statements: Statements) -> list[Outcome]:
        split = self._split
        batch = Batch(statements)
        await statements.execute("be_patient", ())
        fenced = await _prefetch(statements, batch, self._locks, split.turns)
        return split.outcomes(fenced, await batch.apply(split.others, prefetch=False))


async def lock_gate(statements: Statements) -> None:
    """Keep everybody else out. Who waits for that gives up after a second and tries again, for all queue behind him."""
    await statements.execute("hurry", ())
    await statements.execute("lock_gate", ())


async def _prefetch(statements: Statements, batch: Batch, locks: Locks, turns: Sequence[CommitTurn]) -> set[Row]:
    """Lock what a batch may change and read what its rules will ask for, in one round trip; return who is fenced."""
    ask, execute = statements.ask, statements.execute
    wanted = (encoded([*locks.ids]), encoded([*locks.ending]), encoded([*locks.events]), encoded([*locks.freed]))
    if locks.slots:
        await execute("lock_slots", (encoded([*locks.slots]),))
    locked = await execute("lock_runs", (encoded([*locks.keys, *(turn.key for turn in turns)]), *wanted))
    runs = await execute("locked_runs", (encoded([*locks.keys]), *wanted))
    alive = await execute("live_workers", ())
    buried = await ask("tombstone", [(id,) for id in locks.new_ids]) if locks.new_ids else []
    unread = await ask("unread", [*locks.parked.items()]) if locks.parked else []
    held = await ask("keys_held", [(key,) for key in locks.ending]) if locks.ending else []
    statements.slots = frozenset(locks.slots)
    names = [name for name in locks.waited if name]
    pending = await ask("pending_of", [(name,) for name in names]) if names else []
    fenced = await ask("fenced_facts", [(turn.key, turn.epoch) for turn in turns]) if turns else []
    if turns:
        await statements.write("insert_facts", facts_of(turns))
    statements.locked = {int(key or 0) for (key,) in await found([locked])}
    batch.know_runs(locks.ids, await found([runs]))
    batch.know_alive(str(worker) for (worker,) in await found([alive]))
    batch.know_buried(locks.new_ids, await found(buried))
    batch.know_unread(locks.parked, await found(unread))
    batch.keys.know_held(locks.ending, await found(held))
    batch.events.know_pending(names, await found(pending))
    return set(await found(fenced))
