"""Key-value stores under the tests of the store's contract, over each driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.contract.store import Store
from holdfast.kv import DirectoryDriver, MemoryDriver
from holdfast.kv.drivers.lmdb import LMDBDriver
from holdfast.kv.drivers.redis import RedisDriver
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.testing.conformance import Another, StoreConformance


class _OnDriver(StoreConformance):
    @pytest.fixture
    def another(self) -> Another:
        pytest.skip("one process at a time has a key space open")

    @pytest.fixture
    async def store(self, made: KeyValueStore) -> AsyncIterator[Store]:
        await made.open()
        yield made
        if not made._connections.is_open:
            return
        # What the store holds in memory is what another process reads.
        before = await contents(made)
        await made.close()
        await made.open()
        assert await contents(made) == before
        await made.close()


async def contents(store: KeyValueStore) -> dict[str, list[object]]:
    def look(db):
        names = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence'")
        found = {name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for (name,) in names.fetchall()}
        found["highest"] = db.execute("SELECT * FROM sqlite_sequence WHERE seq > 0 ORDER BY name").fetchall()
        return found

    return await store._connections.read(look)


class TestOnMemory(_OnDriver):
    """S1-36, S0-41: a driver in memory. Its rules are those of SQLite, which quick runs try over a file."""

    quick = False

    @pytest.fixture
    def made(self) -> KeyValueStore:
        return KeyValueStore(MemoryDriver())


@pytest.mark.slow
class TestOnDirectory(_OnDriver):
    """S1-36, S0-41: a directory of files."""

    @pytest.fixture
    def made(self, tmp_path: Path) -> KeyValueStore:
        return KeyValueStore(lambda: DirectoryDriver(tmp_path / "space"))


@pytest.mark.slow
class TestOnLMDB(_OnDriver):
    """S1-36, S0-41: an LMDB environment."""

    @pytest.fixture
    def made(self, tmp_path: Path) -> KeyValueStore:
        return KeyValueStore(lambda: LMDBDriver(tmp_path / "space"))


@pytest.mark.slow
@pytest.mark.leaves("process")
class TestOnRedis(_OnDriver):
    """S1-36, S0-41: a Redis server, which is waited for between a transaction's statements and its commit."""

    quick = False

    @pytest.fixture
    def made(self, redis_socket: Path, request: pytest.FixtureRequest) -> KeyValueStore:
        return KeyValueStore(lambda: RedisDriver.connect(f"unix://{redis_socket}", request.node.name))
