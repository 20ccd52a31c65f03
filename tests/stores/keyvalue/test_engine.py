"""Engines on key spaces: by which addresses they are opened, what they refuse, and what damage they notice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.support.key_spaces import OddDriver
from tests.support.waiting import eventually

from holdfast import Context, Engine, activity, workflow
from holdfast.errors import BadInput, MissingExtra, RunFailed, StoreBusy, StoreCorrupt
from holdfast.stores import open_store
from holdfast.stores.keyvalue import KeyValueStore
from holdfast.testing import TestEngine

RAN: list[str] = []


async def note(what: str) -> str:
    RAN.append(what)
    return what


@workflow
async def errand(ctx: Context, name: str) -> list[str]:
    first = await ctx.step("first", note, f"{name} first")
    await ctx.receive("go")
    return [first, await ctx.step("last", note, f"{name} last")]


@pytest.mark.parametrize("address", ["kv+dir:///{path}/space", "kv+lmdb:///{path}/space", "kv+memory://{path}"])
async def test_an_engine_is_opened_by_the_address_of_a_key_space_and_goes_on_there(tmp_path: Path, address: str):
    """S0-10, S0-40, S0-41, G3"""
    RAN.clear()
    where = address.format(path=tmp_path)
    async with TestEngine(where, workflows=[errand]) as engine:
        await engine.start(errand, "a", id="a")
        await engine.settle()
    async with TestEngine(where, workflows=[errand]) as engine:
        await engine.get("a").send("go")
        assert await engine.get("a").result() == ["a first", "a last"]
    assert RAN == ["a first", "a last"]


@pytest.mark.slow
async def test_an_engine_is_opened_by_the_address_of_a_redis_server(tmp_path: Path, unused_tcp_port: int):
    """S0-41"""
    if not any((Path(folder) / "redis-server").exists() for folder in os.environ["PATH"].split(os.pathsep)):
        pytest.skip("redis-server is not installed: `make redis`")
    where = f"kv+redis://127.0.0.1:{unused_tcp_port}/0?space=shop"
    server = subprocess.Popen(
        ["redis-server", "--port", str(unused_tcp_port), "--dir", str(tmp_path), "--save", ""],
        stdout=subprocess.DEVNULL,
    )
    try:

        async def answers() -> bool:
            try:
                reader = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
            except OSError:
                return False
            reader[1].close()
            return True

        await eventually(answers)
        async with TestEngine(where, workflows=[errand]) as engine:
            await engine.start(errand, "a", id="a")
            await engine.settle()
        async with TestEngine(where, workflows=[errand]) as engine:
            await engine.get("a").send("go")
            assert await engine.get("a").result() == ["a first", "a last"]
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize(
    "address",
    ["kv+dir://", "kv+dir:///x?y=1", "kv+lmdb:///", "kv+redis://", "kv+redis://:secret@", "kv+s3://bucket", "kv+:///x"],
)
def test_an_address_that_names_no_key_space_is_refused_and_not_shown(address: str):
    with pytest.raises(BadInput) as refused:
        open_store(address)
    assert "secret" not in str(refused.value)


def test_the_password_of_a_server_is_in_no_error():
    store = open_store("kv+redis://kim:secret@host:6379/0?space=shop")
    assert isinstance(store, KeyValueStore)
    assert store.shown == "kv+redis://host:6379/0?space=shop"


async def test_transactions_of_users_are_refused_by_name():
    """S0-41"""

    @activity(transaction=True)
    def insert() -> None: ...

    @workflow
    async def books(ctx: Context) -> None:
        await ctx.step(insert)

    async with TestEngine("kv+memory://", workflows=[books, errand]) as engine:
        with pytest.raises(RunFailed, match="transaction=True needs SQLite or PostgreSQL"):
            await engine.execute(books)
        with pytest.raises(BadInput, match="connection="):
            await engine.start(errand, "a", connection=object())


async def test_a_second_process_is_refused_by_name(tmp_path: Path):
    """S0-41: also where the driver has no lock of its own, as on LMDB."""
    code = (
        "import asyncio, sys\nfrom holdfast import Engine\nfrom holdfast.errors import StoreBusy\n"
        "async def main():\n  try:\n    async with Engine(sys.argv[1]):\n      pass\n"
        "  except StoreBusy as error:\n    print(error)\nasyncio.run(main())"
    )
    for kind in ("dir", "lmdb"):
        where = f"kv+{kind}:///{tmp_path / kind}"
        async with Engine(where, workflows=[errand]):
            with pytest.raises(StoreBusy):
                await open_store(where).open()
            done = await asyncio.to_thread(
                subprocess.run, [sys.executable, "-c", code, where], capture_output=True, text=True, check=True
            )
            assert "has it open" in done.stdout


async def test_a_batch_that_was_not_written_whole_is_dropped_and_other_damage_is_refused(tmp_path: Path):
    """G1, S0-41: what was acknowledged is there, or nothing is acknowledged any more."""
    RAN.clear()
    where, folder = f"kv+dir:///{tmp_path / 'space'}", tmp_path / "space"
    async with TestEngine(where, workflows=[errand]) as engine:
        await engine.start(errand, "a", id="a")
        await engine.settle()
    [segment] = folder.glob("*.log")
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[-100:-1])  # the beginning of what would be the next batch
    async with TestEngine(where, workflows=[errand]) as engine:
        await engine.get("a").send("go")
        assert await engine.get("a").result() == ["a first", "a last"]
    assert RAN == ["a first", "a last"]
    middle = len(whole) // 2
    segment.write_bytes(whole[:middle] + b"\xff" + whole[middle + 1 :])
    with pytest.raises(StoreCorrupt):
        await open_store(where).open()


@pytest.mark.parametrize("how", ["fail", "lose", "lost"])
async def test_runs_go_on_and_no_recorded_step_runs_again_whichever_batch_goes_wrong(how: str):
    """G1, G3, S0-40: a batch that fails, or whose answer is lost before or after it was written, one after another."""
    for number in range(1, 12):
        RAN.clear()
        driver = OddDriver()
        async with TestEngine(store=KeyValueStore(driver), workflows=[errand]) as engine:
            driver.do(how, after=number)
            for attempt in range(20):
                try:
                    run = await engine.start(errand, "a", id="a")
                    await run.send("go", id="go")
                    assert await run.result(timeout=timedelta(minutes=5)) == ["a first", "a last"]
                    break
                except Exception:
                    assert driver.happened, attempt
            else:
                pytest.fail("it never came to its end")
        recorded = 2
        assert len(RAN) - recorded <= len(driver.happened)


def test_a_driver_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtra, match="lmdb"):
        asyncio.run(open_store("kv+lmdb:///nowhere").open())
