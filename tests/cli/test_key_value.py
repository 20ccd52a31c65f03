"""The command line on a key space: looking while an engine has it open, acting while none has."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.transfer_cases import House, contents, order, sleeper

from holdfast.kv import DirectoryDriver
from holdfast.testing import JumpingClock

URL = "kv+dir:///shop.keys"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    """A key space with a run that ended and one that sleeps, in the current folder."""
    monkeypatch.chdir(tmp_path)
    house = House(URL, JumpingClock())
    house.bank_open = True

    async def fill() -> None:
        async with house.engine() as engine:
            await engine.execute(order, "lamp", id="order-7")
            await engine.start(sleeper, 3, id="order-8")
            await engine.settle()

    asyncio.run(fill())
    return house


def test_a_key_space_is_looked_at_while_a_process_has_it_open_and_nothing_is_written(run, shop):
    """S0-41: no lock is taken, and a batch that is being written is not seen."""
    driver = DirectoryDriver("shop.keys")
    before = {path.name: path.read_bytes() for path in Path("shop.keys").iterdir()}
    listed = run("list", "--url", URL)
    assert (listed.code, "order-7" in listed.out, "order-8" in listed.out) == (0, True, True)
    assert "completed" in run("show", "order-7", "--url", URL).out
    assert run("why", "order-8", "--url", URL).code == 0
    assert "completed 1" in run("db", "status", "--url", URL).out
    assert "has it open" in run("export", URL, "some.holdfast").err  # which no worker may be at work for
    assert {path.name: path.read_bytes() for path in Path("shop.keys").iterdir()} == before
    driver.close()


def test_an_act_is_refused_while_a_process_has_the_key_space_open(run, shop):
    """S0-41: a command never takes it away from an engine."""
    driver = DirectoryDriver("shop.keys")
    refused = run("cancel", "order-8", "--url", URL)
    assert refused.code != 0
    assert "has it open" in refused.err
    driver.close()
    assert run("cancel", "order-8", "--url", URL).code == 0
    assert [dict(row)["status"] for row in contents(URL)["runs"] if dict(row)["id"] == "order-8"] != ["suspended"]


def test_runs_are_exported_to_sqlite_and_imported_again(run, shop):
    """S0-48"""
    assert run("export", URL, "all.holdfast").code == 0
    assert run("import", "all.holdfast", "sqlite:///shop.db").code == 0
    assert "order-8" in run("list", "--url", "sqlite:///shop.db").out
    assert run("export", "sqlite:///shop.db", "back.holdfast").code == 0
    assert run("import", "back.holdfast", "kv+dir:///other.keys").code == 0
    assert "order-8" in run("list", "--url", "kv+dir:///other.keys").out


def test_a_backup_is_an_sqlite_database_and_is_not_restored_to_a_key_space(run, shop):
    assert run("db", "backup", "kept.db", "--url", URL).code == 0
    assert "order-8" in run("list", "--url", "sqlite:///kept.db").out
    refused = run("db", "restore", "kept.db", "--url", "kv+dir:///other.keys")
    assert refused.code != 0
    assert "holdfast import" in refused.err


@pytest.mark.parametrize("url", ["kv+dir:///nowhere", "kv+memory://shop", "kv+nothing://x", "kv+redis://"])
def test_what_cannot_be_looked_at_is_said(run, tmp_path, monkeypatch, url):
    monkeypatch.chdir(tmp_path)
    refused = run("list", "--url", url)
    assert refused.code != 0
    assert refused.err
    assert "Traceback" not in refused.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("kind", ["dir", "lmdb"])
def test_a_folder_without_a_key_space_is_no_database_and_untouched(run, tmp_path, kind):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    refused = run("list", "--url", f"kv+{kind}:///{tmp_path}/other")
    assert "there is no such database" in refused.err
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["file"]
