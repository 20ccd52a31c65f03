"""Fixtures of the tests of the SQLite store; other folders have their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sqlite_cases import opened

from holdfast.stores.sqlite import SQLiteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SQLiteStore]:
    store = await opened(path, durability="process")
    yield store
    await store.close()
