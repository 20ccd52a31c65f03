"""The PostgreSQL store: one database, any number of workers on any number of machines."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit
from uuid import UUID

import msgspec
import psycopg
from psycopg import AsyncConnection

from holdfast.clock import Instant, micros, new_id, old_id
from holdfast.contract.operations import Delivered, Fenced, Operation, Outcome, Refused, SendMessage, Transact
from holdfast.contract.rows import Claim, Task
from holdfast.contract.turns import CommitTurn, StartRun
from holdfast.errors import BadData, BadInput, OutcomeUnknown, StoreError, StoreUnreachable
from holdfast.stores.liveness import boot_time, machine, process_exists
from holdfast.stores.postgres.batch import BEGIN, Attempt, Lost, lock_gate
from holdfast.stores.postgres.connections import ANSWER, Connections, Line, Listener, Work
from holdfast.stores.postgres.connections import together as in_pipeline
from holdfast.stores.postgres.dialect import Dialect, dialect_of
from holdfast.stores.postgres.enclosed import enclose
from holdfast.stores.postgres.errors import AGAIN, UNPREPARED, translate
from holdfast.stores.postgres.schema import check_schema_name, prepare_schema
from holdfast.stores.postgres.statements import NotLocked, Statements, encoded, found, new_keys, sql
from holdfast.stores.postgres.transactions import Transactions
from holdfast.stores.rules.batch import Batch
from holdfast.stores.rules.facts import Split, facts_of, outcome_of
from holdfast.stores.sql.statements import MAX_PARAMETER
from holdfast.stores.sql.statements import Statements as AnyStatements
from holdfast.stores.sql.store import Look, SQLStore
from holdfast.stores.sql.tables import Row, record_of

T = TypeVar("T")

_logger = logging.getLogger("holdfast.store")

POISON_CLAIMS = 3
POLL = 0.2
POLL_LISTENING = 1.0
"""How often, in seconds, to look what others did when nobody says: more often when nobody can."""
STIR = 0.02
SILENCE = timedelta(seconds=10)
"""For how long a process may keep everybody from being alone without a word, before its transaction is ended."""
PATIENCE = 10.0
OUTAGE = 4.0
"""For how many seconds to try again while others are always faster, and while there is no server to be reached."""
_RELAYED = 500
_OLD = timedelta(days=1)
_EXPIRES = 20_000_000


class PostgresStore(SQLStore):
    """Runs in a schema of a PostgreSQL database.

    Args:
        url: `postgresql://user@host/database`, as libpq has it; `?schema=name` says where the tables are.
        durability: `power` waits for every commit to be on the disk, `process` does not (`synchronous_commit`).
        dialect: `pooler` where a pooler stands before the server (see Dialect).
    """

    def __init__(self, url: str, *, durability: str = "power", dialect: str | None = None) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f"durability is 'power' or 'process', not {durability!r}")
        conninfo, self.schema = _split(url)
        self.durability = durability
        self._connections = Connections(conninfo, _masked(conninfo), dialect_of(dialect), durability)
        self.clock = self._clock = self._connections.clock
        self._sql = sql(self.schema)
        self._me = new_id()
        self._keys = new_keys()
        self._channel = f"holdfast_{self.schema}"
        self._listener: Listener | None = None
        self._looked = 0.0
        self._stirring: asyncio.Task[None] | None = None
        self._tokens: set[str] = set()
        """Tokens of commits whose outcome is known: the next one deletes them."""
        self._opening = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._workers: dict[str, timedelta] = {}
        self._transactions = Transactions(self._connections, self.schema)
        self.is_open = False
        self.collisions = 0
        """How often a batch was done again because somebody else was faster."""
        self.kept_out = 0
        """How many batches kept everybody else out."""

    @property
    def dialect(self) -> Dialect:
        """What stands between this store and its server, as far as is known."""
        return self._connections.dialect

    async def open(self) -> None:
        async with self._opening:
            if not self.is_open:
                await self._open()

    async def _open(self) -> None:
        self._connections.open()
        self._transactions = Transactions(self._connections, self.schema)
        try:
            await self._connections.writer.use(self._prepare)
        except psycopg.Error as error:
            await self._connections.close()
            raise translate(error, self._connections.where) from error
        except BaseException:
            await self._connections.close()
            raise
        if self.dialect is Dialect.DIRECT:
            self._listener = Listener(self._connections, self._channel, self._me)
            self._listener.start()
        self.is_open = True

    async def _prepare(self, connection: AsyncConnection[Any]) -> None:
        await prepare_schema(connection, self.schema, self._connections.where)
        await self._ask_clock(connection)
        [(level,)] = await (await connection.execute("SHOW synchronous_commit")).fetchall()
        if level == "off" and self.durability == "power":
            self.durability = "process"
            _logger.warning(
                "%s: synchronous_commit is off for this role and cannot be set here, so what is acknowledged survives "
                "the death of processes only; ALTER ROLE ... SET synchronous_commit = on",
                self._connections.where,
            )

    async def _ask_clock(self, connection: AsyncConnection[Any]) -> None:
        asked = boot_time()
        [(now,)] = await (await connection.execute(self._sql["clock"])).fetchall()
        self._clock.told(now, asked)

    async def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        last = [task for task in (self._stirring, self._asking) if task is not None]
        last.append(asyncio.get_running_loop().create_task(self._last_words(), name="holdfast last words"))
        _, silent = await asyncio.wait(last, timeout=1)
        if silent:
            self._connections.cut()
            for task in silent:
                task.cancel()
            await asyncio.wait(silent, timeout=1)
        if self._listener is not None:
            await self._listener.stop()
        self._transactions.close()
        await self._connections.close()

    async def _last_words(self) -> None:
        with suppress(psycopg.Error, StoreError):
            await self._connections.writer.use(self._forget_tokens)

    async def _forget_tokens(self, connection: AsyncConnection[Any]) -> None:
        if self._tokens:
            await self._on(connection).write("drop_tokens", [(token,) for token in self._tokens])
            self._tokens.clear()

    # Looking.

    async def look(self, look: Look[T], *, together: bool = False, patient: bool = False) -> T:
        async def work(connection: AsyncConnection[Any]) -> T:
            statements = self._on(connection)
            if not together:
                return await look(statements)
            async with in_pipeline(connection, self.dialect):
                await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                result = await look(statements)
                await connection.execute("COMMIT")
            return result

        return await self._connections.read(work, None if patient else ANSWER)

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
        if self._clock.stale and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._set_clock(), name="holdfast clock")
        heard = listener is not None and listener.heard
        if not heard and now - self._looked < (POLL_LISTENING if listener is not None and listener.hears else POLL):
            return False
        if listener is not None:
            listener.heard = False
        self._looked = now
        return True

    async def _set_clock(self) -> None:
        with suppress(StoreError):
            await self._connections.read(self._ask_clock)

    def _on(self, connection: AsyncConnection[Any]) -> Statements:
        return Statements(connection, self.schema, self._keys)

    async def _ask(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.look(lambda db: db.read(name, [values]))

    # Committing.

    async def apply(self, operations: Sequence[Operation]) -> list[Outcome]:
        split = Split(operations)
        try:
            if not split.others and not _huge(split.turns):
                return await self._append(split.turns)
            outcomes = await self._commit(operations, split)
        except UnicodeEncodeError as error:
            raise BadData(f"{self._connections.where}: a text is no Unicode: {error}") from error
        self._stir()
        return outcomes

    async def _append(self, turns: Sequence[CommitTurn]) -> list[Outcome]:
        """Write turns that only add facts, in one statement; doing it twice changes nothing."""
        rows = encoded(facts_of(turns))

        async def work(connection: AsyncConnection[Any]) -> set[Row]:
            statements = self._on(connection)
            # What is held up on its way for longer than it is waited for must not be written: it was made again since.
            values = (rows, self._clock.now() + _EXPIRES)
            return set(await found([await statements.execute("append_facts", values)]))

        fenced = await self._insisting(self._connections.writer, work)
        return [outcome_of(turn, fenced) for turn in turns]

    async def _commit(self, operations: Sequence[Operation], split: Split) -> list[Outcome]:
        attempt = Attempt(self.schema, self.dialect, self._keys, operations, split, lambda: [*self._tokens])
        while True:
            try:
                outcomes = await self._insisting(self._connections.writer, attempt.make, doubtful=lambda: attempt.sent)
                self._tokens.difference_update(attempt.dropped)
                self._tokens.add(attempt.token)
                self.kept_out += attempt.alone
                return outcomes
            except NotLocked:
                attempt.alone = True
            except Lost as lost:
                await self._connections.writer.drop()
                if await self._happened(attempt.token, lost):
                    self._tokens.add(attempt.token)
                    return attempt.outcomes

    async def _happened(self, token: str, lost: Lost) -> bool:
        """Find out whether a commit happened whose answer never came; if not, it never will."""

        async def ask(connection: AsyncConnection[Any]) -> bool:
            [(made,)] = await found([await self._on(connection).execute("void_token", (token,))])
            return bool(made)

        try:
            return await self._insisting(self._connections.writer, ask)
        except StoreUnreachable as error:
            raise OutcomeUnknown(
                f"{self._connections.where}: the connection broke while committing, and the server cannot be asked "
                f"what became of it: {lost}"
            ) from error

    async def _insisting(
        self,
        line: Line,
        work: Work[T],
        *,
        twice: bool = True,
        answer: float | None = ANSWER,
        doubtful: Callable[[], bool] = lambda: False,
    ) -> T:
        """Do something again while somebody else is in the way, for as long as that is likely to help.

        After a lost connection only what may be done `twice` is: what takes something for a worker may have taken it.
        What is `doubtful` then is asked for first (Lost).
        """
        began, pause = time.monotonic(), 0.002
        while True:
            try:
                return await line.use(work, answer)
            except psycopg.Error as error:
                lost = line.connection is None
                if lost and doubtful():
                    raise Lost(str(error)) from error
                again = (lost and twice) or isinstance(error, AGAIN + UNPREPARED)
                if not again or time.monotonic() - began > (OUTAGE if lost else PATIENCE):
                    raise translate(error, self._connections.where) from error
                self.collisions += not lost
            except StoreUnreachable:
                if time.monotonic() - began > OUTAGE:
                    raise
            await asyncio.sleep(random.uniform(0, pause))
            pause = min(pause * 2, 0.5)

    def _stir(self) -> None:
        """Hint to other processes that something was committed: soon, once for many, and not in the commit itself."""
        if self.dialect is Dialect.DIRECT and self._stirring is None:
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

    # What others commit.

    async def enclose(self, connection: object, operation: StartRun | SendMessage) -> Outcome:
        self._connections.ready()
        return await enclose(connection, self.schema, self._keys, operation)

    def transact(
        self,
        attempt: Transact,
        body: Callable[[Any], str],
        now: Callable[[], Instant],
        expired: Callable[[], None],
    ) -> Delivered | Fenced:
        self._connections.ready()
        return self._transactions.run(attempt, body, now, expired)

    async def relay(self) -> int:
        after = done = 0
        while rows := await self._ask("read_outbox", after, _RELAYED):
            after = rows[-1][0]
            done += await self._deliver(rows)
            if len(rows) < _RELAYED:
                break
        return done

    async def _deliver(self, rows: Sequence[tuple[int, str]]) -> int:
        """Deliver what was left in the outbox; each has an id that is remembered, so that twice is once."""
        messages = [msgspec.json.decode(message, type=SendMessage) for _, message in rows]
        outcomes = await self.apply(messages)
        refused = [outcome if isinstance(outcome, Refused) else None for outcome in outcomes]
        gone = [row for row, why in zip(rows, refused, strict=True) if why is None or why.reason != "full"]
        orphans: list[Row] = [
            (str(UUID(int=n)), each.target, "", each.name, each.payload, "", each.at, each.at)
            for (n, _), each, why in zip(rows, messages, refused, strict=True)
            if why is not None and why.status is None
        ]

        async def forget(connection: AsyncConnection[Any]) -> None:
            statements = self._on(connection)
            async with in_pipeline(connection, self.dialect):
                await connection.execute(BEGIN)
                if orphans:  # their run was deleted since: nobody will ever take them
                    await statements.write("insert_event_letters", orphans)
                await statements.write("drop_outbox", [(n,) for n, _ in gone])
                await connection.execute("COMMIT")

        if gone:
            await self._insisting(self._connections.writer, forget)
        return len(gone)

    # Claiming.

    async def claim(
        self, worker: str, now: Instant, limit: int, workflows: Sequence[str], poison: str, *, suspects: bool = True
    ) -> list[Claim]:
        known = encoded(workflows)
        rows = await self._taking("claim_runs", worker, now, limit, known) if limit > 0 else []
        if not rows and limit > 0 and suspects:
            line = self._connections.writer
            rows = await self._insisting(
                line, lambda conn: self._suspect(conn, worker, now, known, poison), twice=False
            )
        return [record_of(Claim, row[1:]) for row in sorted(rows)]

    async def claim_tasks(
        self, worker: str, now: Instant, limit: int, queues: Sequence[str], activities: Sequence[str]
    ) -> list[Task]:
        rows = await self._taking("claim_tasks", worker, limit, encoded(queues), encoded(activities))
        return [record_of(Task, row[1:]) for row in sorted(rows)]

    async def _taking(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run one statement that takes something; what it took, should its answer be lost, its worker is told later."""

        async def work(connection: AsyncConnection[Any]) -> list[tuple[Any, ...]]:
            return await found([await self._on(connection).execute(name, values)])

        return await self._insisting(self._connections.reader, work, twice=False)

    async def _suspect(
        self, connection: AsyncConnection[Any], worker: str, now: Instant, known: str, poison: str
    ) -> list[tuple[Any, ...]]:
        """Take the next run that was claimed before without progress; those that never get anywhere are blocked."""
        statements = self._on(connection)
        await connection.execute(BEGIN)
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
            asked = boot_time()
            session, begun, now = self._session(connection)
            values = (worker, lease, session, begun, machine(), os.getpid(), socket.gethostname())
            psycopg.RawCursor(connection).execute(self._sql["join_worker"], values)
            self._clock.told(now, asked)

        self._connections.renew(work)

    def _session(self, connection: psycopg.Connection[Any]) -> tuple[int, str, Instant]:
        if self.dialect is Dialect.POOLER:
            [(now,)] = connection.execute(self._sql["clock"]).fetchall()
            return 0, "", now
        [(session, begun, now)] = connection.execute(self._sql["session"]).fetchall()
        return session, begun, now

    def renew(self, worker: str) -> bool:
        def work(connection: psycopg.Connection[Any]) -> bool:
            session, begun, _ = self._session(connection)
            asked = boot_time()
            rows = psycopg.RawCursor(connection).execute(self._sql["renew_worker"], (worker, session, begun)).fetchall()
            for (now,) in rows:
                self._clock.told(now, asked)
            if self.dialect is Dialect.DIRECT:
                gate = f'"{self.schema}".gate'
                psycopg.RawCursor(connection).execute(self._sql["end_silent"], (micros(SILENCE), gate))
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
            await statements.write("old_tokens", [(old_id(_OLD),)])
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
        died = {str(worker): here and not process_exists(pid) for worker, pid, _, here in rows}
        return {worker: died[worker] for worker, _, lapsed, _ in rows if died[worker] or (lapsed and not returned)}

    async def _hangs(self, statements: AnyStatements, worker: str) -> bool:
        return self.dialect is Dialect.POOLER or bool(await statements.read("is_connected", [(worker,)]))

    async def alone(self, work: Look[T]) -> T:

        async def transaction(connection: AsyncConnection[Any]) -> T:
            statements = self._on(connection)
            async with in_pipeline(connection, self.dialect):
                await connection.execute(BEGIN)
                await lock_gate(statements)
                result = await work(statements)
                await connection.execute("COMMIT")
            return result

        return await self._insisting(self._connections.writer, transaction, answer=None)


def _huge(turns: Sequence[CommitTurn]) -> bool:
    """Whether facts are too large for one parameter, and have to be written in pieces."""
    return sum(len(entry.data) for turn in turns for entry in turn.entries) > MAX_PARAMETER // 2


def _split(url: str) -> tuple[str, str]:
    """Return what libpq understands of an address, and the schema."""
    parts = urlsplit(url)
    # Taken apart by hand: libpq knows no plus signs for spaces.
    given = [part for part in parts.query.split("&") if part]
    named = [part.removeprefix("schema=") for part in given if part.startswith("schema=")]
    schema = unquote(named[-1]) if named else "holdfast"
    address = urlunsplit(parts._replace(query="&".join(part for part in given if not part.startswith("schema="))))
    if not parts.netloc:  # a socket's folder is given as ?host=, and urlunsplit drops what it takes for nothing
        address = re.sub(r"^(\w+):/*", r"\1:///", address)
    try:
        psycopg.conninfo.conninfo_to_dict(address)
    except psycopg.Error:
        raise BadInput(
            "cannot tell what the address of the database means: is every % in it followed by two digits, and every "
            "/ : @ in the password written as %2F %3A %40?"
        ) from None
    return address, check_schema_name(schema)


def _masked(conninfo: str) -> str:
    """Return an address for messages: who and where, never the password."""
    known = psycopg.conninfo.conninfo_to_dict(conninfo)
    port = f":{known['port']}" if known.get("port") else ""
    return (
        f"postgresql://{known.get('user') or ''}@{known.get('host') or 'localhost'}{port}/{known.get('dbname') or ''}"
    )
