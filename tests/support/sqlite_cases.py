"""What the tests of the SQLite store share."""

from __future__ import annotations

from pathlib import Path

from holdfast.stores.sqlite.store import SQLiteStore


async def opened(path: Path, **options: object) -> SQLiteStore:
    """Return an open store."""
    store = SQLiteStore(path, **options)  # type: ignore[arg-type]
    await store.open()
    return store
