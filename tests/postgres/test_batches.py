"""PostgreSQL gives what SQLite gives: random batches, every operation and outcome, every table compared."""

from __future__ import annotations

from itertools import count
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.stores.test_batches import Dice

from holdfast.chains import broken_link
from holdfast.contract.operations import Operation, Outcome
from holdfast.contract.store import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.rules import letters as batch_letters
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import LEASE

NUMBERED = {"events": {"n"}, "event_cursors": {"n"}, "event_queues": {"last"}}
"""Events are numbered per name in PostgreSQL, over all names in SQLite."""
OWN = {"workers", "commit_lock", "name_locks", "commit_tokens", "migrations", "sqlite_sequence", "secrets"}


class Both:
    """One store of each kind, driven alike; run keys and letters are numbered alike."""

    def __init__(self, url: str, dialect: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sqlite, self.postgres = SQLiteStore(":memory:"), PostgresStore(url, dialect=dialect)
        self._highest = 0
        self.postgres._database.keys = lambda: self._highest + 1
        self._letters = {store: count(1) for store in (self.sqlite, self.postgres)}
        self._current: Store = self.sqlite
        monkeypatch.setattr(batch_letters, "new_id", lambda: f"letter-{next(self._letters[self._current])}")

    async def open(self) -> None:
        for store in (self.sqlite, self.postgres):
            await store.open()
            await store.join("w", LEASE)

    async def close(self) -> None:
        for store in (self.sqlite, self.postgres):
            await store.close()

    async def apply(self, batch: list[Operation]) -> tuple[list[Outcome], list[Outcome]]:
        self._highest = next((n for (n,) in self._in_memory("SELECT seq FROM sqlite_sequence WHERE name = 'runs'")), 0)
        self._current = self.sqlite
        expected = await self.sqlite.apply(batch)
        self._current = self.postgres
        return expected, await self.postgres.apply(batch)

    def _in_memory(self, sql: str) -> list[Any]:
        return self.sqlite._connections.reader.execute(sql).fetchall()

    def tables(self) -> dict[str, list[str]]:
        names = [name for (name,) in self._in_memory("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {name: [row[1] for row in self._in_memory(f"PRAGMA table_info({name})")] for name in names}
        return {
            name: [column for column in found if column not in NUMBERED.get(name, ())]
            for name, found in columns.items()
            if name not in OWN
        }

    def differences(self) -> dict[str, tuple[list[Any], list[Any]]]:
        """Return what is not alike: of each table the rows that only one of them has."""
        found = {}
        with psycopg.connect(make_conninfo(self.postgres._connections.conninfo)) as connection:
            for name, columns in self.tables().items():
                listed = ", ".join(columns)
                here = {tuple(row) for row in self._in_memory(f"SELECT {listed} FROM {name}")}
                there = {*connection.execute(f'SELECT {listed} FROM "{self.postgres.schema}".{name}')}
                if here != there:
                    found[name] = (sorted(here - there, key=str), sorted(there - here, key=str))
        return found


async def compare(seed: int, url: str, dialect: str | None, monkeypatch: pytest.MonkeyPatch) -> int:
    dice, both = Dice(seed), Both(url, dialect, monkeypatch)
    await both.open()
    for number in range(12):
        size = dice.random.choice([1, 2, 5, 25, 60])
        batch: list[Operation] = [dice.operation() if number else dice.start() for _ in range(size if number else 15)]
        expected, found = await both.apply(batch)
        for operation, one, other in zip(batch, expected, found, strict=True):
            assert other == one, (seed, number, operation)
        assert both.differences() == {}, (seed, number)
        for key, id, epoch in both._in_memory("SELECT key, id, epoch FROM runs"):
            dice.epochs[key] = dice.epochs[id] = epoch
        now, limit = dice.at + dice.random.choice([0, 50]), dice.random.randrange(4)
        stores = (both.sqlite, both.postgres)
        claims = [await store.claim("w", now, limit, ["order"]) for store in stores]
        assert claims[1] == claims[0], (seed, number)
        limit = dice.random.randrange(4)
        tasks = [await store.claim_tasks("w", now, limit, ["q", "r"], ["pay", "ship"]) for store in stores]
        assert tasks[1] == tasks[0], (seed, number)
        assert await both.postgres.next_due(["order"]) == await both.sqlite.next_due(["order"]), (seed, number)
    assert broken_link(await both.postgres.audit()) is None
    await both.close()
    return both.postgres.commits.exclusive


@pytest.mark.parametrize("seed", range(6))
async def test_a_batch_gives_what_it_gives_in_sqlite(seed: int, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2-29, G2, G8: every operation, with whatever else a turn may ask for; in every table."""
    await compare(seed, database, None, monkeypatch)


@pytest.mark.parametrize("dialect", ["direct", "pooler"])
async def test_each_dialect_gives_the_same(dialect: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be used behind a pooler has another way."""
    await compare(100, database, dialect, monkeypatch)
