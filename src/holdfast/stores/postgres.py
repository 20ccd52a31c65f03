"""The PostgreSQL store: one database, any number of workers on any number of machines."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import AsyncConnection

from holdfast.clock import Instant, micros, new_id
from holdfast.commits import CommitTurn
from holdfast.errors import BadInput, OutcomeUnknown, StoreBusy, StoreUnreachable
from holdfast.operations import Committed, Fenced, Operation, Outcome
from holdfast.records import Claim, Status, Task
from holdfast.stores.batch import Batch
from holdfast.stores.postgres_connections import Connections, Listener
from holdfast.stores.postgres_dialect import Dialect, dialect_of
from holdfast.stores.postgres_errors import AGAIN, UNPREPARED, is_lost, translate
from holdfast.stores.postgres_locks import Locks, locks_of, only_facts
from holdfast.stores.postgres_schema import check_schema_name, prepare_schema
from holdfast.stores.postgres_statements import NotLocked, Statements, encoded, found, new_keys, sql
from holdfast.stores.run_state import Row
from holdfast.stores.sql_store import Look, SQLStore
from holdfast.stores.statements import Statements as AnyStatements
from holdfast.stores.worker_lock import machine

T = TypeVar("T")

POISON_CLAIMS = 3
POLL = 0.2
POLL_LISTENING = 1.0
"""How often, in seconds, to look what others did when nobody says: more often when nobody can."""
STIR = 0.02
_TRIES = 60
_PATIENCE = 10.0


class PostgresStore(SQLStore):
    """Runs in a schema of a PostgreSQL database.

    Args:
        url: `postgresql://user@host/database`, as libpq has it; `?schema=name` says where the tables are.
        durability: `power` waits for every commit to be on the disk, `process` does not (`synchronous_commit`).
        dialect: a profile of what the server lacks (see Dialect), or its name.
    """

    def __init__(self, url: str, *, durability: str = "power", dialect: str | Dialect | None = None) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f"durability is 'power' or 'process', not {durability!r}")
        conninfo, self.schema = _split(url)
        self.durability = durability
        self.dialect = dialect_of(dialect)
        self._connections = Connections(conninfo, _masked(conninfo), self.dialect, durability)
        self.clock = self._clock = self._connections.clock
        self._sql = sql(self.schema)
        self._me = new_id()
        self._keys = new_keys()
        self._channel = f"holdfast_{self.schema}"
        self._listener: Listener | None = None
        self._looked = 0.0
        self._stirring: asyncio.Task[None] | None = None
        self._token = ""
        self._workers: dict[str, timedelta] = {}
        self.is_open = False
        self.commits = 0
        self.collisions = 0
        """How often a batch was done again because somebody else was faster."""

    async def open(self) -> None:
        if self.is_open:
            return
        self._connections.open()
        try:
            await self._connections.writer.use(self._prepare)
        except psycopg.Error as error:
            await self._connections.close()
            raise translate(error, self._connections.where) from error
        except BaseException:
            await self._connections.close()
            raise
        if self.dialect.notify:
            self._listener = Listener(self._connections, self._channel, self._me)
            self._listener.start()
        self.is_open = True

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        await prepare_schema(connection, self.schema, self.dialect, self._connections.where)
        [(now,)] = await (await connection.execute(self._sql["clock"])).fetchall()
        self._clock.told(now)

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if self._stirring is not None:
            await asyncio.wait([self._stirring])
        if self._listener is not None:
            await self._listener.stop()
        await self._connections.close()

    # Looking.

    async def look(self, look: Look[T], *, together: bool = False) -> T:
        async def work(connection: AsyncConnection[Any]) -> T:
            statements = Statements(connection, self.schema, self._keys)
            if not together:
                return await look(statements)
            async with connection.pipeline():
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                result = await look(statements)
                await connection.execute("COMMIT")
            return result

        return await self._connections.read(work)

    async def due(self, worker: str, now: Instant) -> list[int]:
        return [int(key or 0) for (key,) in await self._ask("own_due", worker, now)]

    async def next_due(self, workflows: Sequence[str] | None = None) -> Instant | None:
        if workflows is None:
            [(due,)] = await self._ask("next_due_of_any")
        else:
            [(due,)] = await self._ask("next_due", encoded(workflows))
        return None if due is None else int(due)

    def changed(self) -> bool:
        self._connections.ready()
        now, listener = time.monotonic(), self._listener
        heard = listener is not None and listener.heard
        if not heard and now - self._looked < (POLL_LISTENING if listener is not None and listener.hears else POLL):
            return False
        if listener is not None:
            listener.heard = False
        self._looked = now
        return True

    async def _ask(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.look(lambda db: db.read(name, [values]))

    # Committing.

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        facts = only_facts(operations)
        if all(facts):
            return await self._insisting(lambda: self._append(operations))
        outcomes = await self._commit(operations, facts)
        self._stir()
        return outcomes

    async def _append(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Write turns that only add facts, in one statement; doing it twice changes nothing."""
        turns = [turn for turn in operations if isinstance(turn, CommitTurn)]
        rows = _facts(turns)

        async def work(connection: AsyncConnection[Any]) -> set[Row]:
            statements = Statements(connection, self.schema, self._keys)
            if self.dialect.lock_table:
                return set(await statements.read("append_facts", rows))
            async with connection.pipeline():
                await connection.execute("BEGIN")
                await statements.execute("share_gate_row", ())
                fenced = set(await statements.read("append_facts", rows))
                await connection.execute("COMMIT")
            return fenced

        fenced = await self._connections.writer.use(work)
        return [_outcome(turn, fenced) for turn in turns]

    async def _commit(self, operations: Sequence[Operation], facts: Sequence[bool]) -> list[Outcome]:
        attempt = _Attempt(self, operations, facts)
        while True:
            try:
                return await self._insisting(lambda: self._connections.writer.use(attempt.make))
            except NotLocked:
                attempt.alone = True
            except _Lost as lost:
                if await self._happened(attempt.token, lost):
                    return attempt.outcomes

    async def _happened(self, token: str, lost: _Lost) -> bool:
        """Find out whether a commit happened whose answer never came; if not, it never will."""

        async def ask(connection: AsyncConnection[Any]) -> bool:
            cursor = await Statements(connection, self.schema, self._keys).execute("void_token", (token,))
            happened = cursor.rowcount == 0
            await connection.execute(self._sql["drop_token"].replace("$1", "%s"), (token,))
            return happened

        try:
            return await self._insisting(lambda: self._connections.writer.use(ask))
        except StoreUnreachable as error:
            raise OutcomeUnknown(
                f"{self._connections.where}: the connection broke while committing, and the server cannot be asked "
                f"what became of it: {lost}"
            ) from error

    async def _insisting(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do something again while somebody else is in the way, for as long as that is likely to help."""
        deadline = time.monotonic() + _PATIENCE
        for number in range(_TRIES):
            try:
                return await work()
            except psycopg.Error as error:
                line = self._connections.writer
                lost = line.connection is None
                if not (lost or isinstance(error, AGAIN + UNPREPARED)) or number == _TRIES - 1:
                    raise translate(error, self._connections.where) from error
                if time.monotonic() > deadline:
                    raise translate(error, self._connections.where) from error
                self.collisions += not lost
            except StoreUnreachable:
                if time.monotonic() > deadline or number > 6:
                    raise
            await asyncio.sleep(random.uniform(0, min(0.5, 0.002 * 2**number)))
        raise StoreBusy(f"{self._connections.where}: others were always faster")

    def _stir(self) -> None:
        """Hint to other processes that something was committed: soon, once for many, and not in the commit itself."""
        if self.dialect.notify and self._stirring is None:
            self._stirring = asyncio.get_running_loop().create_task(self._hint(), name="holdfast hint")

    async def _hint(self) -> None:
        try:
            await asyncio.sleep(STIR)
            await self._connections.reader.use(
                lambda connection: connection.execute("SELECT pg_notify(%s, %s)", (self._channel, self._me))
            )
        except (psycopg.Error, StoreUnreachable):
            pass  # others look by themselves
        finally:
            self._stirring = None

    # Claiming.

    async def claim(
        self, worker: str, now: Instant, limit: int, workflows: Sequence[str], poison: str, *, suspects: bool = True
    ) -> list[Claim]:
        known = encoded(workflows)
        rows = await self._taking("claim_runs", worker, now, limit, known) if limit > 0 else []
        if not rows and limit > 0 and suspects:
            rows = await self._insisting(
                lambda: self._connections.writer.use(lambda conn: self._suspect(conn, worker, now, known, poison))
            )
        return [_claim(row) for row in sorted(rows)]

    async def claim_tasks(
        self, worker: str, now: Instant, limit: int, queues: Sequence[str], activities: Sequence[str]
    ) -> list[Task]:
        rows = await self._taking("claim_tasks", worker, limit, encoded(queues), encoded(activities))
        return [Task(**dict(zip(Task.__struct_fields__, row[1:], strict=True))) for row in sorted(rows)]

    async def _taking(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement that takes something; what it took, should its answer be lost, its worker is told later."""

        async def work(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            statements = Statements(connection, self.schema, self._keys)
            if self.dialect.lock_table and self.dialect.skip_locked:
                return await found([await statements.execute(name, values)])
            await connection.execute("BEGIN")
            await statements.execute("share_gate_row", ())
            rows = await found([await statements.execute(name, values)])
            await connection.execute("COMMIT")
            return rows

        return list(await self._insisting(lambda: self._connections.reader.use(work)))

    async def _suspect(
        self, connection: AsyncConnection[Any], worker: str, now: Instant, known: str, poison: str
    ) -> list[tuple[Any, ...]]:
        """Take the next run that was claimed before without progress; those that never get anywhere are blocked."""
        statements = Statements(connection, self.schema, self._keys)
        await connection.execute("BEGIN")
        await statements.execute("share_gate_row", ())
        rows: list[tuple[Any, ...]] = []
        while due := await found([await statements.execute("due_suspect", (now, known))]):
            [(key, claims)] = due
            if int(claims or 0) < POISON_CLAIMS:
                if not await statements.read("suspect_running", [(worker,)]):
                    rows = await found([await statements.execute("claim_suspect", (worker, now, key))])
                break
            await statements.write("block_poison", [(key, now)])
            await statements.write("put_results", [(key, None, poison, None)])
        await connection.execute("COMMIT")
        return rows

    # Workers.

    async def join(self, worker: str, lease: timedelta) -> None:
        self._connections.ready()
        await asyncio.get_running_loop().run_in_executor(None, self._join, worker, micros(lease))
        self._workers[worker] = lease

    def _join(self, worker: str, lease: int) -> None:
        def work(connection: psycopg.Connection[Any]) -> None:
            session, begun, now = self._session(connection)
            values = (worker, lease, session, begun, machine(), os.getpid(), socket.gethostname())
            psycopg.RawCursor(connection).execute(self._sql["join_worker"], values)
            self._clock.told(now)

        self._connections.renew(work)

    def _session(self, connection: psycopg.Connection[Any]) -> tuple[int, str, Instant]:
        if not self.dialect.sessions:
            [(now,)] = connection.execute(self._sql["clock"]).fetchall()
            return 0, "", now
        [(session, begun, now)] = connection.execute(self._sql["session"]).fetchall()
        return session, begun, now

    def renew(self, worker: str) -> bool:
        def work(connection: psycopg.Connection[Any]) -> bool:
            session, begun, _ = self._session(connection)
            rows = psycopg.RawCursor(connection).execute(self._sql["renew_worker"], (worker, session, begun)).fetchall()
            for (now,) in rows:
                self._clock.told(now)
            return bool(rows)

        return self._connections.renew(work)

    async def leave(self, worker: str) -> None:
        async def work(statements: AnyStatements) -> None:
            batch = Batch(statements)
            await batch.tasks.lose(worker, "handed back")
            await batch.flush()
            await statements.write("hand_back", [(worker,)])
            await statements.write("delete_worker", [(worker,)])

        await self.alone(work)
        self._workers.pop(worker, None)
        self._stir()

    async def take_over(self, now: Instant) -> int:
        suspects = await self._suspects()
        if not suspects:
            return 0

        async def work(statements: AnyStatements) -> int:
            batch, dead = Batch(statements), 0
            for worker, died in suspects.items():
                if await statements.change("declare_dead", (worker, int(died))):
                    how = "crash" if died or not await self._hangs(statements, worker) else "lapse"
                    await batch.tasks.lose(worker, how, now)
                    await batch.flush()
                    await statements.write("free_lost", [(worker, now, how)])
                    dead += 1
            await statements.write("prune_dead", [()])
            return dead

        dead = await self.alone(work)
        if dead:
            self._stir()
        return dead

    async def _suspects(self) -> dict[str, bool]:
        """Return who seems to be dead: known to have died (True), or silent for longer than its lease.

        After the server was away nobody is taken for dead who had no time yet to say that he is alive.
        """
        line = self._connections.reader
        rows = await self._ask("other_workers", encoded([*self._workers]), machine())
        longest = max((lease.total_seconds() for lease in self._workers.values()), default=0.0)
        returned = line.broken_before and time.monotonic() - line.opened < longest
        died = {str(worker): here and not _exists(pid) for worker, pid, _, here in rows}
        return {worker: died[worker] for worker, _, lapsed, _ in rows if died[worker] or (lapsed and not returned)}

    async def _hangs(self, statements: AnyStatements, worker: str) -> bool:
        return not self.dialect.sessions or bool(await statements.read("is_connected", [(worker,)]))

    async def alone(self, work: Look[T]) -> T:

        async def transaction(connection: AsyncConnection[Any]) -> T:
            statements = Statements(connection, self.schema, self._keys)
            async with connection.pipeline():
                await connection.execute("BEGIN")
                await statements.execute("lock_gate" if self.dialect.lock_table else "lock_gate_row", ())
                result = await work(statements)
                await connection.execute("COMMIT")
            return result

        return await self._insisting(lambda: self._connections.writer.use(transaction))


class _Lost(Exception):
    """The connection broke after a commit was sent: whether it happened, nobody said."""


class _Attempt:
    """One batch on its way into the database, made again until somebody says what became of it."""

    def __init__(self, store: PostgresStore, operations: Sequence[Operation], facts: Sequence[bool]) -> None:
        self._store = store
        self._operations = operations
        self._facts = facts
        self._locks = locks_of(each for each, fact in zip(operations, facts, strict=True) if not fact)
        self.alone = self._locks.alone
        self.token = ""
        self.outcomes: list[Outcome] = []

    async def make(self, connection: AsyncConnection[Any]) -> list[Outcome]:
        """Apply the batch in one transaction: one round trip to lock and read, one to write and commit.

        Raises:
            NotLocked: it needs what it could not know beforehand, and is to be made alone.
            _Lost: the connection broke, perhaps after the commit.
        """
        store, sent = self._store, False
        statements = Statements(connection, store.schema, store._keys)
        before, self.token = store._token, new_id()
        try:
            async with connection.pipeline():
                await connection.execute("BEGIN")
                self.outcomes = await (self._by_itself(statements) if self.alone else self._beside_others(statements))
                await statements.execute("put_token", (self.token,))
                if before:
                    await statements.execute("drop_token", (before,))
                sent = True
                await connection.execute("COMMIT")
        except psycopg.Error as error:
            if sent and is_lost(error, connection):
                await store._connections.writer.drop()
                raise _Lost(str(error)) from error
            raise
        store._token = self.token
        return self.outcomes

    async def _by_itself(self, statements: Statements) -> list[Outcome]:
        await statements.execute("lock_gate" if self._store.dialect.lock_table else "lock_gate_row", ())
        return await Batch(statements).apply(self._operations)

    async def _beside_others(self, statements: Statements) -> list[Outcome]:
        locks, operations, facts = self._locks, self._operations, self._facts
        turns = [turn for turn, fact in zip(operations, facts, strict=True) if fact and isinstance(turn, CommitTurn)]
        others = [each for each, fact in zip(operations, facts, strict=True) if not fact]
        batch = Batch(statements)
        if not self._store.dialect.lock_table:
            await statements.execute("share_gate_row", ())
        fenced = await _prefetch(statements, batch, locks, turns)
        made = iter(await batch.apply(others, prefetch=False))
        pairs = zip(operations, facts, strict=True)
        return [_outcome(each, fenced) if fact and isinstance(each, CommitTurn) else next(made) for each, fact in pairs]


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
        await statements.write("insert_facts", _facts(turns))
    statements.locked = {int(key or 0) for (key,) in await found([locked])}
    batch.know_runs(locks.ids, await found([runs]))
    batch.know_alive(str(worker) for (worker,) in await found([alive]))
    batch.know_buried(locks.new_ids, await found(buried))
    batch.know_unread(locks.parked, await found(unread))
    batch.keys.know_held(locks.ending, await found(held))
    batch.events.know_pending(names, await found(pending))
    return set(await found(fenced))


def _facts(turns: Iterable[CommitTurn]) -> list[Row]:
    return [(turn.key, turn.epoch, *entry) for turn in turns for entry in turn.entries]


def _outcome(turn: CommitTurn, fenced: set[Row]) -> Outcome:
    return Fenced(turn.key) if (turn.key, turn.epoch) in fenced else Committed(turn.key)


def _claim(row: Sequence[Any]) -> Claim:
    (
        _, key, id, epoch, workflow, version, input, seed, generation, status, claims, created, parent, begins,
        deadline, reopens, lost, before,
    ) = row  # fmt: skip
    return Claim(
        key=key, id=id, epoch=epoch, workflow=workflow, version=version, input=input, seed=seed, generation=generation,
        status=Status(status), lost=lost, claims=claims, created=created, parent=parent, begins=begins,
        deadline=deadline, reopens=reopens, paused=before == Status.PAUSED,
    )  # fmt: skip


def _exists(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _split(url: str) -> tuple[str, str]:
    """Return what libpq understands of an address, and the schema."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    schema = next((value for name, value in query if name == "schema"), "holdfast")
    rest = urlencode([(name, value) for name, value in query if name != "schema"], safe="/:,")
    address = urlunsplit(parts._replace(query=rest))
    if not parts.netloc:  # a socket's folder is given as ?host=, and urlunsplit drops what it takes for nothing
        address = re.sub(r"^(\w+):/*", r"\1:///", address)
    try:
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error as error:
        raise BadInput(f"cannot tell what the address of the database means: {' '.join(str(error).split())}") from None
    return address, check_schema_name(schema)


def _masked(conninfo: str) -> str:
    """Return an address for messages: who and where, never the password."""
    known = psycopg.conninfo.conninfo_to_dict(conninfo)
    port = f":{known['port']}" if known.get("port") else ""
    return (
        f"postgresql://{known.get('user') or ''}@{known.get('host') or 'localhost'}{port}/{known.get('dbname') or ''}"
    )
