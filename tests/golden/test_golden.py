"""Databases of every schema there ever was open in this code, and their runs come to the end that they came to then."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.golden import make, make_keys
from tests.golden.schema_10 import story
from tests.support.transfer_cases import contents

from holdfast.contract.rows import InboxKind, Status
from holdfast.stores import open_store
from holdfast.stores.keyvalue.space import FORMAT
from holdfast.stores.sql.tables import TABLES
from holdfast.testing.invariants import violations
from holdfast.transfer.backup import restore

OPEN = {
    Status.PENDING, Status.RUNNING, Status.SUSPENDED, Status.PAUSED, Status.CANCELLING, Status.COMPENSATING,
    Status.BLOCKED,
}  # fmt: skip

LATER = {InboxKind.LIMIT_TURN, InboxKind.NUDGE}
"""Kinds of inbox rows that came with a later schema."""


def golden_sqlite(folder: Path) -> str:
    path = folder / "golden.db"
    path.write_bytes(gzip.decompress(make.SQLITE.read_bytes()))
    return f"sqlite:///{path}"


def golden_postgres(database: str) -> str:
    address, _, schema = database.partition("schema=")
    make.load(address.rstrip("?&"), schema, gzip.decompress(make.POSTGRES.read_bytes()))
    return database


async def opens_and_ends(database: str, expected: dict[str, Any]) -> None:
    rows = contents(database)
    assert [table for table in TABLES if table in rows and not rows[table]] == []
    assert {dict(row)["kind"] for row in rows["inbox"]} == {*InboxKind} - LATER
    store = open_store(database)
    await store.open()
    counted = (await store.counts()).runs
    assert {status for status in OPEN if not counted.get(status)} == set()
    assert await violations(store) == []
    await store.close()
    assert await story.finish(database, datetime.fromisoformat(expected["now"])) == expected["runs"]
    await store.open()
    assert await violations(store) == []
    await store.close()


async def test_a_file_of_the_first_schema_opens_and_its_runs_come_to_their_end(tmp_path: Path) -> None:
    """G1 G2 G15: in SQLite."""
    await opens_and_ends(golden_sqlite(tmp_path), json.loads(make.EXPECTED.read_text())["sqlite"])


async def test_a_file_of_the_first_schema_can_be_restored_as_a_backup(tmp_path: Path) -> None:
    """G1 G2 G15"""
    backup = golden_sqlite(tmp_path).removeprefix("sqlite:///")
    await restore(backup, str(tmp_path / "restored.db"))
    expected = json.loads(make.EXPECTED.read_text())["sqlite"]
    database = f"sqlite:///{tmp_path}/restored.db"
    assert await story.finish(database, datetime.fromisoformat(expected["now"])) == expected["runs"]


async def test_a_dump_of_the_first_schema_opens_and_its_runs_come_to_their_end(database: str) -> None:
    """G1 G2 G15: in PostgreSQL."""
    await opens_and_ends(golden_postgres(database), json.loads(make.EXPECTED.read_text())["postgres"])


async def test_keys_of_the_first_format_open_and_their_runs_come_to_their_end(tmp_path: Path) -> None:
    """S0-41 G1 G2 G15: an engine on a key space, as a worker on another machine left it."""
    make_keys.load(tmp_path / "space")
    database = f"kv+dir:///{tmp_path / 'space'}"
    store = open_store(database)
    await store.open()
    counted = (await store.counts()).runs
    assert {status for status in OPEN if not counted.get(status)} == set()
    assert await violations(store) == []
    await store.close()
    expected = json.loads(make_keys.EXPECTED.read_text())
    assert await story.finish(database, datetime.fromisoformat(expected["now"])) == expected["runs"]
    await store.open()
    assert await violations(store) == []
    await store.close()


def test_there_are_keys_of_every_format_that_there_ever_was() -> None:
    """A new format comes with some of its own; those of the earlier ones stay."""
    every = {f"keys_{number}" for number in range(1, FORMAT + 1)}
    assert {path.name for path in Path(__file__).parent.glob("keys_*")} == every
