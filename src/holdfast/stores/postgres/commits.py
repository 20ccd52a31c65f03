"""Batches on their way into PostgreSQL: locked and read in one round trip, decided here, written in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection

from holdfast.clock import Clock, new_id
from holdfast.contract.operations import Operation, Outcome
from holdfast.contract.turns import CommitTurn
from holdfast.errors import BadData, OutcomeUnknown, StoreUnreachable
from holdfast.stores.postgres.connections import in_pipeline
from holdfast.stores.postgres.database import BEGIN, Database, Lost
from holdfast.stores.postgres.errors import is_lost
from holdfast.stores.postgres.locks import Locks, locks_of
from holdfast.stores.postgres.statements import NotLocked, PostgresStatements, encoded, found
from holdfast.stores.rules.batch import Batch
from holdfast.stores.rules.facts import Split, facts_of
from holdfast.stores.rules.fence import outcome_of
from holdfast.stores.sql.statements import MAX_PARAMETER
from holdfast.stores.sql.tables import Row

EXPIRES = 20_000_000
"""How many microseconds a statement may be on its way: it is made again after that, so it must not be written late."""


class Commits:
    """The batches of one store."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self.tokens: set[str] = set()
        """Tokens of commits whose outcome is known: the next one deletes them."""
        self.exclusive = 0
        """How many batches kept every other process out."""

    async def apply(self, operations: Sequence[Operation]) -> tuple[list[Outcome], bool]:
        """Make a batch durable; return the outcomes, and whether it only added facts, which only its runs see."""
        split = Split(operations)
        try:
            if not split.others and not _huge(split.turns):
                return await self._append(split.turns), True
            return await self._commit(operations, split), False
        except UnicodeEncodeError as error:
            raise BadData(f"{self._database.connections.where}: a text is not valid Unicode: {error}") from error

    async def _append(self, turns: Sequence[CommitTurn]) -> list[Outcome]:
        """Write turns that only add facts, in one statement; doing it twice changes nothing."""
        rows = encoded(facts_of(turns))

        async def work(connection: AsyncConnection[Any]) -> set[Row]:
            values = (rows, self._clock.now() + EXPIRES)
            return set(await found([await self._database.on(connection).execute("append_facts", values)]))

        fenced = await self._database.insist(self._database.connections.writer, work)
        return [outcome_of(turn, fenced) for turn in turns]

    async def _commit(self, operations: Sequence[Operation], split: Split) -> list[Outcome]:
        database, writer = self._database, self._database.connections.writer
        attempt = _CommitAttempt(database, operations, split, lambda: [*self.tokens])
        while True:
            try:
                outcomes = await database.insist(writer, attempt.make, doubtful=lambda: attempt.sent)
                self.tokens.difference_update(attempt.dropped)
                self.tokens.add(attempt.token)
                self.exclusive += attempt.exclusive
                return outcomes
            except NotLocked:
                attempt.exclusive = not attempt.locks.share_no_limits()
            except Lost as lost:
                await writer.drop()
                if await self._happened(attempt.token, lost):
                    self.tokens.add(attempt.token)
                    return attempt.outcomes

    async def _happened(self, token: str, lost: Lost) -> bool:
        """Find out whether a commit happened whose answer never came; if not, it never will."""

        async def ask(connection: AsyncConnection[Any]) -> bool:
            [(made,)] = await found([await self._database.on(connection).execute("settle_token", (token,))])
            return bool(made)

        try:
            return await self._database.insist(self._database.connections.writer, ask)
        except StoreUnreachable as error:
            raise OutcomeUnknown(
                f"{self._database.connections.where}: the connection broke while committing, and the server cannot be "
                f"asked what became of it: {lost}"
            ) from error

    async def forget_tokens(self, connection: AsyncConnection[Any]) -> None:
        """Delete what is only needed while the outcome of a commit may have to be asked for."""
        if self.tokens:
            await self._database.on(connection).write("drop_tokens", [(token,) for token in self.tokens])
            self.tokens.clear()


class _CommitAttempt:
    """One batch on its way into the database, made again until the server says what became of it."""

    def __init__(
        self, database: Database, operations: Sequence[Operation], split: Split, known: Callable[[], list[str]]
    ) -> None:
        self._database = database
        self._operations = operations
        self._split = split
        self.locks = locks_of(split.others)
        self.exclusive = self.locks.exclusive
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
            NotLocked: it needs what it could not know beforehand, and is to be made exclusively.
            Lost: the connection broke, perhaps after the commit.
        """
        statements = self._database.on(connection)
        self.token, self.sent, self.dropped = new_id(), False, self._known()
        try:
            async with in_pipeline(connection, self._database.connections.dialect):
                await connection.execute(BEGIN)
                self.outcomes = await (
                    self._keeping_others_out(statements) if self.exclusive else self._beside_others(statements)
                )
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

    async def _keeping_others_out(self, statements: PostgresStatements) -> list[Outcome]:
        await statements.lock_out_others()
        return await Batch(statements).apply(self._operations)

    async def _beside_others(self, statements: PostgresStatements) -> list[Outcome]:
        split = self._split
        batch = Batch(statements)
        await statements.execute("limit_lock_waits", ())
        fenced = await _prefetch(statements, batch, self.locks, split.turns)
        return split.outcomes(fenced, await batch.apply(split.others, prefetch=False))


async def _prefetch(
    statements: PostgresStatements, batch: Batch, locks: Locks, turns: Sequence[CommitTurn]
) -> set[Row]:
    """Lock what a batch may change and read what its rules will ask for, in one round trip; return who is fenced."""
    ask, execute = statements.ask, statements.execute
    wanted = (
        encoded([*locks.ids]),
        encoded([*locks.ending]),
        encoded([*locks.events]),
        encoded([*locks.freed]),
        encoded([*locks.left.items()]),
    )
    if locks.names:
        await execute("lock_names", (encoded([*locks.names]),))
    own, shared = locks.own_limits, locks.shared_limits
    if own or shared:
        modes = sorted([*((n, 0) for n in own), *((n, 1) for n in shared)])
        await execute("lock_limits", (statements.advisory, encoded(modes)))
    locked = await execute("lock_runs", (encoded([*locks.keys, *(turn.key for turn in turns)]), *wanted))
    runs = await execute("locked_runs", (encoded([*locks.keys]), *wanted))
    alive = await execute("live_workers", ())
    purged = await ask("tombstone", [(id,) for id in locks.new_ids]) if locks.new_ids else []
    unread = await ask("unread", [*locks.parked.items()]) if locks.parked else []
    held = await ask("keys_held", [(key,) for key in locks.ending]) if locks.ending else []
    statements.names, statements.shared = frozenset(locks.names | own), frozenset(shared)
    names = [name for name in locks.waited if name]
    limits: list[Row] = [*locks.limits]
    limited = await ask("get_limit", limits) if limits else []
    pending = await ask("pending_of", [(name,) for name in names]) if names else []
    fenced = await ask("fenced_facts", [(turn.key, turn.epoch) for turn in turns]) if turns else []
    if turns:
        await statements.write("insert_facts", facts_of(turns))
    statements.locked = {int(key or 0) for (key,) in await found([locked])}
    batch.know_runs(locks.ids, await found([runs]))
    batch.know_alive(str(worker) for (worker,) in await found([alive]))
    batch.know_purged(locks.new_ids, await found(purged))
    batch.know_unread(locks.parked, await found(unread))
    batch.keys.know_held(locks.ending, await found(held))
    batch.events.know_pending(names, await found(pending))
    batch.limits.know(limits, await found(limited))
    return set(await found(fenced))


def _huge(turns: Sequence[CommitTurn]) -> bool:
    """Whether facts are too large for one parameter, and have to be written in pieces."""
    return sum(len(entry.data) for turn in turns for entry in turn.entries) > MAX_PARAMETER // 2
