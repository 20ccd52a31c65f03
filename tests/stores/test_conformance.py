"""Every store of ours under the contract's own tests (S1-36: each on a database of its own)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.contract.store import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing.conformance import Another, StoreConformance


class _OnDisk(StoreConformance):
    inline_limit: int

    @pytest.fixture
    async def another(self, tmp_path: Path, empty_file: Path) -> AsyncIterator[Another]:
        opened: list[Store] = []
        shutil.copyfile(empty_file, tmp_path / "test.db")

        async def open_one() -> Store:
            store = SQLiteStore(tmp_path / "test.db", durability="process", inline_limit=self.inline_limit)
            await store.open()
            opened.append(store)
            return store

        yield open_one
        for store in opened:
            await store.close()

    @pytest.fixture
    async def store(self, another: Another) -> Store:
        return await another()


class TestSQLiteRowByRow(_OnDisk):
    """S1-36: every batch on the event loop's thread, a statement per row."""

    inline_limit = 1_000_000


class TestSQLiteSetBased(_OnDisk):
    """S1-36: every batch on the writer thread, a statement per kind of row.

    Proved here for the store's part (see holdfast.testing.conformance): S1-18 and B12 none lost, first in first out;
    S2-28 a claim is atomic; S2-30 the races; B24 only what the dead held is taken; G5 one holder; G6 terminal is final.
    """

    inline_limit = 0
    quick = False


@pytest.mark.slow
class TestSQLiteAsItComes(_OnDisk):
    """S1-36. The default: small batches one way and large ones the other, each of which has tests of its own above."""

    inline_limit = 8


class TestPostgres(StoreConformance):
    """S1-36: a schema of a real server, all at once and beside others."""

    quick = False

    @pytest.fixture
    def address(self, empty_database: str) -> str:
        return empty_database

    @pytest.fixture
    async def another(self, address: str) -> AsyncIterator[Another]:
        opened: list[Store] = []

        async def open_one() -> Store:
            store = PostgresStore(address)
            await store.open()
            opened.append(store)
            return store

        yield open_one
        for store in opened:
            await store.close()

    @pytest.fixture
    async def store(self, another: Another) -> Store:
        return await another()


@pytest.mark.slow
class TestOldestPostgres(TestPostgres):
    """S1-36: the same on the oldest server that is there."""

    @pytest.fixture
    def address(self, old_database: str) -> str:
        return old_database


@pytest.mark.slow
class TestSQLiteInMemory(StoreConformance):
    """S1-36: without a file, for one store alone. The statements are those of a file, and many tests use it."""

    @pytest.fixture
    def another(self) -> Another:
        pytest.skip("memory cannot be shared")

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        store = SQLiteStore(":memory:")
        await store.open()
        yield store
        await store.close()
