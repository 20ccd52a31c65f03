"""Looking at a file that cannot be looked at: a named error, one line, and not a byte of the file is changed."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.support.paths import ROOT
from tests.support.transfer_cases import WORKFLOWS, House, approval, order

from holdfast.cli.main import main
from holdfast.stores.sqlite.store import SQLiteStore
from holdfast.testing import JumpingClock

LOOKING = [
    ("list",), ("list", "is:open"), ("list", "is:attention"), ("list", "--count"), ("show", "order-9"),
    ("why", "order-10"), ("history", "order-9"), ("workers",), ("letters", "list"), ("letters", "groups"),
    ("db", "status"), ("record", "order-10"), ("check", "--app", "shop_code:workflows", "--jobs", "1"), ("doctor",),
]  # fmt: skip
FILE = Path("holdfast.db")
workflows = WORKFLOWS


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database in the current folder, and the code of its runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setitem(sys.modules, "shop_code", sys.modules[__name__])
    house = House("sqlite:///holdfast.db", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(order, "lamp", id="order-9")  # the bank is closed
            await engine.start(approval, 2, id="order-10")
            await engine.settle()

    asyncio.run(fill())
    Path("shop_code.py").write_text("from tests.support.transfer_cases import WORKFLOWS as workflows\n")


def told(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str]:
    """Return how a command ended and what it said was wrong; one line, or a line of the doctor."""
    code = main(command)
    out, err = capsys.readouterr()
    if command[0] == "doctor":
        assert code == 1
        return 4, out
    assert err.count("\n") == 1, (command, err)
    assert "defect" not in err
    return code, err


def unchanged() -> Iterator[tuple[str, ...]]:
    """Yield every command that looks, and see after each that the file is as it was, and no other is there."""
    before = hashlib.sha256(FILE.read_bytes()).digest()
    for command in LOOKING:
        yield command
        assert hashlib.sha256(FILE.read_bytes()).digest() == before, command


def test_a_file_of_an_older_schema_is_named_with_the_command_that_upgrades_it(shop, capsys):
    for end in ("-wal", "-shm"):
        Path(f"holdfast.db{end}").unlink(missing_ok=True)
    FILE.write_bytes(gzip.decompress((ROOT / "tests/golden/schema_10/sqlite.db.gz").read_bytes()))
    for command in unchanged():
        code, said = told(capsys, *command)
        assert (code, "holdfast db upgrade" in said) == (4, True), command


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (b"no database at all, but a text" * 200, "is not an SQLite database"),
        (b"SQLite format 3\0" + bytes(5000), "belongs to another application"),
    ],
)
def test_a_file_that_is_no_database_of_ours_is_named(shop, capsys, damage, words):
    FILE.write_bytes(damage)
    for command in unchanged():
        code, said = told(capsys, *command)
        assert (code, words in said) == (4, True), (command, said)


def test_a_corrupt_file_is_named(shop, capsys):
    with apsw.Connection(str(FILE)) as connection:
        connection.pragma("wal_checkpoint", "truncate")
    connection.close()
    data = bytearray(FILE.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    FILE.write_bytes(data)
    for command in unchanged():
        code, said = told(capsys, *command)
        assert code in (1, 4), command
        assert "malformed" in said or "damaged" in said, (command, said)


def test_a_file_that_is_not_to_be_written_is_looked_at_all_the_same(shop, capsys):
    with apsw.Connection(str(FILE)) as connection:
        connection.pragma("wal_checkpoint", "truncate")
    connection.close()
    FILE.chmod(0o444)
    for command in unchanged():
        assert main(command) == (1 if command == ("doctor",) else 0), command
        capsys.readouterr()


def test_a_file_that_is_deleted_meanwhile_is_not_made_again(shop, capsys, monkeypatch):
    kept = FILE.read_bytes()
    opened = SQLiteStore.open

    async def open_and_delete(self: SQLiteStore, *, look_only: bool = False) -> None:
        await opened(self, look_only=look_only)
        FILE.unlink()

    monkeypatch.setattr(SQLiteStore, "open", open_and_delete)
    for command in LOOKING:
        FILE.write_bytes(kept)
        code = main(command)
        assert code in (0, 1, 4), command
        assert "defect" not in capsys.readouterr().err
        assert not FILE.exists(), command
    assert main(("list",)) == 4
    assert "no database is named and there is no holdfast.db here" in capsys.readouterr().err


def test_a_file_that_another_program_keeps_locked_is_named(shop, capsys):
    connection = apsw.Connection(str(FILE))
    connection.pragma("locking_mode", "exclusive")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        for command in unchanged():
            code, said = told(capsys, *command)
            assert code in (1, 4), command
            assert "lock" in said, (command, said)
    finally:
        connection.execute("ROLLBACK")
        connection.close()
