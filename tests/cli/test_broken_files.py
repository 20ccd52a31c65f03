"""Looking at a file that cannot be looked at: a named error, one line, and not a byte of the file is changed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.cli.test_shell import every_command
from tests.support.command_cases import LOOKS, OTHERS, furnished, looks
from tests.support.paths import ROOT

from holdfast.cli.main import main
from holdfast.stores.sqlite.store import SQLiteStore

LOOKING = [*looks()]
FILE = Path("holdfast.db")
ENDS = {"letters": (0, 3), "doctor": (1,), "result": (1,), "watch": (1,), "check": (0, 5), "debug": (0, 1)}
"""How commands end that do not end with 0: the run has failed, and there is something to look at."""


@pytest.fixture(scope="module")
def furnished_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something of everything, all of it in the file itself."""
    file = tmp_path_factory.mktemp("shop") / "holdfast.db"
    furnished(f"sqlite:///{file}")
    with apsw.Connection(str(file)) as connection:
        connection.pragma("wal_checkpoint", "truncate")
    connection.close()
    return file


@pytest.fixture
def shop(furnished_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of it in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes of `check`
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    shutil.copyfile(furnished_file, FILE)


def test_every_command_that_looks_is_known_here():
    """FACES 10, line 13: a later command cannot be forgotten."""
    assert {path for path, _ in every_command()} == {*LOOKS, *OTHERS}


def told(capsys: pytest.CaptureFixture[str], *command: str) -> tuple[int, str]:
    """Return how a command ended and what it said was wrong; one line, or a line of the doctor."""
    code = main(command)
    out, err = capsys.readouterr()
    if command[0] == "doctor":
        assert code == 1
        return 4, out
    if command[:2] == ("db", "status") and code == 0:
        return 4, out  # it says of what schema the file is
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


ACTING = (
    ("cancel", "sleeps"), ("cancel", "--where", "is:open", "--dry-run"), ("send", "waits", "approval", "1"),
    ("publish", "stock"), ("start", "sleeper", "-i", "days=1"), ("set", "sleeps", "size=3"),
    ("pause", "--workflow", "sleeper"), ("letters", "ack", "L"), ("schedules", "pause", "nightly"),
    ("purge", "completed", "--older-than", "1d", "--dry-run"), ("token", "create"),
)  # fmt: skip


def test_an_act_neither_brings_a_file_up_to_date_nor_makes_a_database_of_an_empty_one(shop, capsys):
    """Workers of an older holdfast may be at work on it: only `db upgrade`, and engines, change tables."""
    for data, words in (
        (gzip.decompress((ROOT / "tests/golden/schema_10/sqlite.db.gz").read_bytes()), "holdfast db upgrade"),
        (b"", "is not an SQLite database"),
    ):
        FILE.write_bytes(data)
        for command in ACTING:
            code, said = told(capsys, *command)
            assert (code, words in said) == (4, True), (command, said)
            assert FILE.read_bytes() == data, command


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
    data = bytearray(FILE.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    FILE.write_bytes(data)
    for command in unchanged():
        code, said = told(capsys, *command)
        assert code in (1, 4), command
        assert "malformed" in said or "damaged" in said, (command, said)


def test_a_file_that_is_not_to_be_written_is_looked_at_all_the_same(shop, capsys):
    FILE.chmod(0o444)
    for command in unchanged():
        assert main(command) in ENDS.get(command[0], (0,)), (command, capsys.readouterr().err)
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


def test_a_wal_in_a_directory_that_is_not_to_be_written_is_named(shop, capsys):
    """What was committed last is in the -wal, and SQLite cannot read it without a file of its own beside it."""
    connection = apsw.Connection(str(FILE))
    connection.execute("UPDATE runs SET updated = updated + 1")
    kept = {part: Path(f"holdfast.db{part}").read_bytes() for part in ("", "-wal")}
    connection.close()
    for part, data in kept.items():
        Path(f"holdfast.db{part}").write_bytes(data)
    Path("holdfast.db-shm").unlink(missing_ok=True)
    Path("holdfast.db-shm").symlink_to(Path("no such directory") / "shm")  # as root may write anywhere
    for command in unchanged():
        code, said = told(capsys, *command)
        assert (code, "holdfast.db-wal" in said) == (4, True), (command, said)
        assert Path("holdfast.db-wal").read_bytes() == kept["-wal"], command
