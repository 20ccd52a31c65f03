"""The database itself: how it is, a backup while it is in use, and putting one back when no worker is alive."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.transfer_cases import House, approval, order, sleeper

from holdfast.cli.main import main
from holdfast.looking.database import DatabaseView
from holdfast.testing import JumpingClock


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A database in the current folder with a run that failed and one that waits."""
    monkeypatch.chdir(tmp_path)
    house = House("sqlite:///holdfast.db", JumpingClock())

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.start(order, "lamp", id="order-9")  # the bank is closed
            await engine.start(approval, 2, id="order-10")
            await engine.settle()

    asyncio.run(fill())
    return house


def test_the_status_of_a_database_is_told(house, capsys):
    assert main(["db", "status"]) == 0
    told = {line[:12].strip(): line[12:] for line in capsys.readouterr().out.splitlines()}
    assert told["database"] == "sqlite:///holdfast.db, from the file that is here"
    assert told["runs"] == "suspended 1, failed 1"
    assert told["schema"].endswith(", the newest that this holdfast knows")
    assert "free on its disk" in told["size"]
    assert main(["db", "status", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("schema") == "holdfast.database/1"
    view = msgspec.convert(document, DatabaseView)
    assert (view.kind, view.runs["failed"].n) == ("sqlite", 1)


def test_the_password_of_a_database_is_not_shown(capsys):
    assert main(["db", "status", "--url", "postgresql://shop:hunter2@localhost:1/shop"]) == 4
    assert "hunter2" not in "".join(capsys.readouterr())


def test_a_backup_is_made_and_put_back_and_that_is_on_record(house, capsys):
    assert main(["db", "backup", "monday.db"]) == 0
    assert capsys.readouterr().out.startswith("backed up 2 runs (1 open) to monday.db")
    assert main(["db", "backup", "monday.db"]) == 2
    assert main(["db", "restore", "monday.db"]) == 2
    assert "there is a database; to put the backup in its place say replace (--replace)" in capsys.readouterr().err
    assert main(["db", "restore", "monday.db", "--replace", "--by", "kim", "--reason", "INC-7"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("restored 2 runs (1 open) from monday.db")
    assert "holdfast.db.replaced-1" in out
    assert main(["db", "restore", "monday.db", "--url", "other.db", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 2

    async def trail() -> list[tuple[str, str]]:
        async with house.engine(run_workflows=False) as engine:
            return [(act.actor, act.action) for act in await engine.audit.records()]

    assert ("kim", "restore") in asyncio.run(trail())


async def test_a_restore_is_refused_while_a_worker_lives(house):
    async with house.engine() as engine:
        await engine.start(sleeper, 3, id="order-11")
        command = [sys.executable, "-m", "holdfast", "db", "restore", "monday.db", "--replace"]
        await engine.backup("monday.db")
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 2
        assert "stop everything that uses the database first" in done.stderr
        await engine.get("order-11").cancel()
