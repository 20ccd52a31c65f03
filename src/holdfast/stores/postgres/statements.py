"""The statements of a batch in PostgreSQL: many rows in one JSON parameter, and no wait for answers to writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any
from zlib import crc32

import msgspec
import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.rows import tuple_row

from holdfast.clock import new_number
from holdfast.stores.sql.files import Filled, Statement
from holdfast.stores.sql.statements import in_pieces
from holdfast.stores.sql.tables import TABLES, Row, Value
from holdfast.stores.sql.transfer import with_transfers

NAME_LOCKS = 1024
"""How many rows there are to lock for names that have none of their own."""

_FILES = (
    "sql/batch", "sql/many", "sql/claims", "sql/reads", "sql/heads", "sql/house", "sql/workers", "sql/transfer",
    "sql/limits", "sql/lanes", "sql/figures", "sql/tokens", "sql/moves", "postgres/heads", "postgres/postgres",
)  # fmt: skip
_READ = with_transfers(*_FILES)
_TABLES = (
    *TABLES, "workers", "commit_lock", "name_locks", "commit_tokens", "outbox", "limits", "limit_keys", "limit_counts",
    "limit_waiters", "lanes", "lane_begins", "imported_blocks", "figures", "secrets", "event_takers",
)  # fmt: skip
_TABLE = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE|TABLE) ({'|'.join(_TABLES)})\b")
_ROWS = "(SELECT {values} FROM jsonb_array_elements($1::jsonb))"
_WANTED = """
SELECT value::bigint FROM jsonb_array_elements_text($1::jsonb)
UNION ALL SELECT runs.key FROM jsonb_array_elements_text($2::jsonb) AS wanted JOIN runs ON runs.id = wanted.value
UNION ALL SELECT runs.parent_key FROM jsonb_array_elements_text($3::jsonb) AS ending
JOIN runs ON runs.key = ending.value::bigint
UNION ALL SELECT event_waiters.run FROM jsonb_array_elements_text($4::jsonb) AS wanted
JOIN event_waiters ON event_waiters.name = wanted.value
UNION ALL SELECT idempotency_waiters.run FROM jsonb_array_elements($5::jsonb) AS wanted
JOIN idempotency_waiters ON idempotency_waiters.activity = wanted.value ->> 0
AND idempotency_waiters.key = wanted.value ->> 1
UNION ALL SELECT waiter.run FROM jsonb_array_elements($6::jsonb) AS freed CROSS JOIN LATERAL (
SELECT limit_keys.key FROM limit_keys WHERE limit_keys.name = freed.value ->> 0 AND limit_keys.ready = 1
ORDER BY limit_keys.head_priority DESC, limit_keys.head LIMIT (freed.value ->> 1)::bigint) AS ready CROSS JOIN LATERAL (
SELECT limit_waiters.run FROM limit_waiters WHERE limit_waiters.name = freed.value ->> 0
AND limit_waiters.key = ready.key AND limit_waiters.granted IS NULL
ORDER BY limit_waiters.priority DESC, limit_waiters.n LIMIT (freed.value ->> 1)::bigint) AS waiter
"""
_SHARED = "SELECT 1 FROM commit_lock WHERE id < 0 FOR KEY SHARE"  # locks the table, which reading alone would not
_WORDS = {
    "beside_others": f"WITH shared AS MATERIALIZED ({_SHARED})",
    "shared": _SHARED,
    "begun": "(extract(epoch FROM backend_start) * 1000000)::bigint::text",
    "join": "JOIN",
    "greatest": "greatest",
    "for_update": "FOR UPDATE OF runs",
    "skip_locked": "FOR UPDATE OF tasks SKIP LOCKED",
    "overdue": "CASE WHEN $5::int = 1 THEN due ELSE 0 END",
    "attributes": (
        "(SELECT '{' || coalesce(string_agg(to_json(name)::text || ':' || value, ',' ORDER BY name), '') || '}' "
        "FROM attributes WHERE attributes.run = runs.key)"
    ),
    "error_type": "replace(results.error, '\\u0000', '\\ufffd')::json ->> 'type'",
    "error_message": "replace(results.error, '\\u0000', '\\ufffd')::json ->> 'message'",
    "letter_error_type": "replace(dead_letters.error, '\\u0000', '\\ufffd')::json ->> 'type'",
    "letter_error_message": "replace(dead_letters.error, '\\u0000', '\\ufffd')::json ->> 'message'",
    "wanted": " ".join(_WANTED.split()),
    "due": "runs.ended IS NULL AND runs.owner IS NULL AND runs.due IS NOT NULL AND runs.claims = 0",
    "free": "(runs.owner IS NULL OR runs.owner IN (SELECT workers.id FROM workers WHERE workers.state <> 'live'))",
    "clock": "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
}
_NEVER_PREPARED = frozenset(
    {"claim_runs", "due_stuck", "next_due", "claim_tasks", "claim_oldest_tasks", "limited_tasks"}
)
"""Statements that are planned each time they run: a plan for any parameters takes ten times as long as one for those
given."""
_TYPES = {"int": "(value ->> {n})::bigint", "text": "value ->> {n}"}
_encode = msgspec.json.Encoder().encode


@cache
def sql(schema: str) -> Mapping[str, str]:
    """Return the statements by name, their tables those of a schema."""
    return Filled(_READ, partial(_filled, schema=schema))


def _filled(statement: Statement, schema: str) -> str:
    values = [f"{_TYPES[kind].replace('{n}', str(n))} AS {name}" for n, (name, kind) in enumerate(statement.columns)]
    text = statement.fill({**_WORDS, "rows": _ROWS.replace("{values}", ", ".join(values))})
    return in_schema(text, schema)


def in_schema(text: str, schema: str) -> str:
    """Return a statement with the tables of a schema: behind a pooler there is no search path to rely on."""
    return _TABLE.sub(rf'\1 "{schema}".\2', text)


def encoded(rows: object) -> str:
    """Return a parameter in JSON; PostgreSQL's text cannot hold the character NUL, nor can names that get here."""
    text = _encode(rows).decode()
    return text if "\\u0000" not in text else _without_nul(text)


def _without_nul(text: str) -> str:
    return re.sub(r"(?<!\\)((?:\\\\)*)\\u0000", "\\1\ufffd", text)


def name_lock(*what: str) -> int:
    """Return which row of name_locks stands for a name."""
    return crc32("\0".join(what).encode()) % NAME_LOCKS


def limit_lock(name: str) -> int:
    """Return the number by which a limit is locked; none of them is a row of name_locks."""
    return NAME_LOCKS + crc32(name.encode()) % (1 << 30)


def new_keys() -> Callable[[], int]:
    """Return what makes keys of runs: rising, and other processes' are other ones (else the insert is tried again)."""
    last = 0

    def next_key() -> int:
        nonlocal last
        # One call stands for as many keys as a batch may take by itself.
        last = max(last + (1 << 16), new_number())
        return last

    return next_key


class NotLocked(Exception):
    """A batch needs what it has not locked: it is to be done again while no other process commits."""


class PostgresStatements:
    """The statements of one transaction on one connection, which is in pipeline mode: only reads are waited for.

    `locked` are the runs that may be changed, None when no other process can commit; `names` and limits likewise.
    Limits that are `shared` may be read.
    """

    weighs_indexes = True

    def __init__(self, connection: AsyncConnection[Any], schema: str, keys: Callable[[], int]) -> None:
        self._connection = connection
        self._schema = schema
        self._sql = sql(schema)
        self.advisory = crc32(schema.encode()) - (1 << 31)
        """What stands for this schema among the advisory locks of a database."""
        self._keys = keys
        self._numbers = new_keys()
        self.locked: set[int] | None = None
        self.names: frozenset[int] = frozenset()
        self.shared: frozenset[int] = frozenset()

    async def execute(self, name: str, values: Sequence[Value]) -> AsyncRawCursor[Any]:
        """Run one statement by its own parameters, waiting for nothing."""
        cursor = AsyncRawCursor(self._connection)
        await cursor.execute(self._sql[name], values, prepare=False if name in _NEVER_PREPARED else None)
        return cursor

    async def lock_out_others(self) -> None:
        """Let no other process commit until this transaction ends.

        Waiting for that ends after a second, to be tried again: all commits queue behind it.
        """
        await self.execute("limit_exclusive_wait", ())
        await self.execute("lock_out_others", ())

    async def read(self, name: str, rows: Sequence[Row]) -> list[tuple[Value, ...]]:
        if name == "last_key":
            return [(self._keys() - 1,)]
        if name == "insert_event":
            rows = [(*row, self._numbers()) for row in rows]
        return await found(await self.ask(name, rows))

    async def runs(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        return await self.read(name, rows)

    async def ask(self, name: str, rows: Sequence[Row]) -> list[AsyncRawCursor[Any]]:
        """Run a statement whose rows are looked at later."""
        self._check(name, rows)
        if _READ[name].columns:
            return [await self.execute(name, (encoded(rows),))]
        return [await self.execute(name, _texts(row)) for row in rows]

    async def write(self, name: str, rows: Sequence[Row]) -> None:
        self._check(name, rows)
        if name == "insert_runs":
            rows = sorted(rows, key=lambda row: str(row[1]))  # two who insert the same ids meet in the same order
        if _READ[name].columns:
            for parameter in in_pieces(rows, encoded):
                await self.execute(name, (parameter,))
        else:
            for row in rows:
                await self.execute(name, _texts(row))

    async def change(self, name: str, row: Row) -> int:
        self._check(name, [row])
        cursor = await self.execute(name, _texts(row))
        await _arrived(cursor)
        return cursor.rowcount

    async def list(self, name: str, conditions: str, values: Row) -> list[tuple[Value, ...]]:
        cursor = AsyncRawCursor(self._connection)
        text = self._sql[name].replace("{filter}", in_schema(conditions, self._schema))
        # Planned for what is asked: by a plan for any values a server read 50,000 rows where 3,000 do.
        await cursor.execute(text, _texts(values), prepare=False)
        return await found([cursor])

    def ignoring_indexes(self, column: str) -> str:
        return column

    def _check(self, name: str, rows: Sequence[Row]) -> None:
        """Refuse what others may be changing at the same time."""
        if self.locked is None:
            return
        if name in {"update_runs", "update_runs_as_usual"} and not self.locked.issuperset(
            int(row[0] or 0) for row in rows
        ):
            raise NotLocked
        if name == "insert_runs":
            self.locked.update(int(row[0] or 0) for row in rows)
        elif name in _EXCLUSIVE:
            raise NotLocked
        elif name in _BY_NAME:
            names = self.names | self.shared if name == "get_limit" else self.names
            if not names.issuperset(_BY_NAME[name](row) for row in rows):
                raise NotLocked


class BlockingStatements(PostgresStatements):
    """The same on a connection that is waited for: what is written with them runs at once."""

    def __init__(self, connection: Connection[Any], schema: str) -> None:
        super().__init__(connection, schema, new_keys())  # type: ignore[arg-type]  # it is only used by `execute`
        self._blocking = connection

    async def execute(self, name: str, values: Sequence[Value]) -> Any:
        cursor: RawCursor[Any] = RawCursor(self._blocking, row_factory=tuple_row)
        cursor.execute(self._sql[name], values)
        return Waited(cursor)


class Waited:
    """A cursor of a blocking connection that was waited for."""

    def __init__(self, cursor: RawCursor[Any]) -> None:
        self._cursor = cursor
        self.rowcount = cursor.rowcount

    async def fetchall(self) -> list[Any]:
        """Return what was found."""
        return self._cursor.fetchall()


def _event(row: Row) -> int:
    return name_lock("event", str(row[0]))


def _key(row: Row) -> int:
    return name_lock("key", str(row[0]), str(row[1]))


def lane_lock(workflow: str) -> int:
    """Return which row of name_locks stands for the lanes of a workflow."""
    return name_lock("lanes", workflow)


def _lanes(row: Row) -> int:
    return lane_lock(str(row[0]))


_BY_NAME: dict[str, Callable[[Row], int]] = {
    **dict.fromkeys(
        ("count_event", "insert_event", "pending_events", "queued_event", "oldest_event", "delete_event",
         "drop_expired", "first_waiter", "all_waiters"), _event),
    "insert_waiters": lambda row: name_lock("event", str(row[2])),
    **dict.fromkeys(
        ("get_limit", "insert_limit", "change_limit", "put_limits", "put_limit_keys", "delete_limit_keys",
         "put_limit_counts", "delete_limit_counts", "first_limit_waiter", "grant_limit_turn", "delete_limit_waiter",
         "next_limit_key", "waiting_limit_keys", "take_back_turn", "due_task_turns"),
        lambda row: limit_lock(str(row[0]))),
    **dict.fromkeys(
        ("get_key", "put_key", "delete_key", "wait_for_key", "key_waiters", "delete_key_waiters"), _key),
    **dict.fromkeys(
        ("enter_lane", "put_place", "leave_place", "get_place", "change_place", "wake_lane", "count_places",
         "places_of_lane", "waiting_window", "get_begins", "put_begins"), _lanes),
}  # fmt: skip
"""Statements for which the name of the event, the key or the limit must be locked, and by which row."""

_EXCLUSIVE = frozenset({"last_audit", "date_limit_turns", "late_limit_turns", "later_limit_keys", "forget_limit_keys"})
"""Statements that only a transaction may run beside which no other commits."""


def _texts(row: Sequence[Value]) -> Sequence[Value]:
    if any(isinstance(value, str) and "\0" in value for value in row):
        return [value.replace("\0", "\ufffd") if isinstance(value, str) else value for value in row]
    return row


async def found(cursors: Iterable[AsyncRawCursor[Any]]) -> list[tuple[Value, ...]]:
    """Return what statements found, waiting for them."""
    rows: list[tuple[Value, ...]] = []
    for cursor in cursors:
        rows += await cursor.fetchall()
    return rows


async def _arrived(cursor: AsyncRawCursor[Any]) -> None:
    """Wait until a statement that returns no rows was run."""
    try:
        await cursor.fetchall()
    except psycopg.ProgrammingError:
        pass
