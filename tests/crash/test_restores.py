"""A backup put in the place of the database while an engine is at work on it, by an operator who forgot to stop it."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest
from tests.support.waiting import LONG

from holdfast import Context, Engine, workflow
from holdfast.errors import StoreError, StoreReplaced

PUT_THERE = {
    "mv": "mv copy.db app.db",
    "cp": "cp copy.db app.db",
    "mv, and the wal removed": "mv copy.db app.db && rm -f app.db-wal app.db-shm",
    "cp, and the wal removed": "cp copy.db app.db && rm -f app.db-wal app.db-shm",
}

LOOKS = """
import sys, apsw
print(apsw.Connection(sys.argv[1]).pragma("integrity_check"))
"""


async def echo(number: int) -> str:
    return "x" * 300 + str(number)


@workflow
async def work(ctx: Context, number: int) -> int:
    for step in range(number):
        await ctx.step(echo, step)
    return number


@workflow
async def listener(ctx: Context) -> None:
    while True:
        await ctx.receive("word", str)


def engine_on(folder: Path) -> Engine:
    return Engine(folder / "app.db", workflows=[work, listener], durability="process")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a database, and an older backup of it that was made while no engine was open."""

    async def make(name: str) -> None:
        async with engine_on(tmp_path) as engine:
            await asyncio.gather(*(engine.execute(work, 3, id=f"{name}-{number}") for number in range(100)))

    asyncio.run(make("old"))
    shutil.copy(tmp_path / "app.db", tmp_path / "backup.db")
    asyncio.run(make("newer"))
    shutil.copy(tmp_path / "app.db", tmp_path / "newer.db")
    return tmp_path


class Load:
    """Callers that start runs and send messages, and note how many were acknowledged though the file was replaced."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.replaced = False
        self.acknowledged = 0
        self.late: list[str] = []
        self.errors: Counter[type[BaseException]] = Counter()

    async def start(self, caller: int) -> None:
        ids = (f"new-{caller}-{number}" for number in count())
        while await self._call(lambda: self._engine.start(work, 5, id=next(ids))):
            pass

    async def send(self) -> None:
        while await self._call(lambda: self._engine.get("listener").send("word", "x" * 500)):
            pass

    async def _call(self, call: Callable[[], Awaitable[object]]) -> bool:
        began_late = self.replaced
        try:
            await call()
        except StoreError as error:
            self.errors[type(error)] += 1
            return False
        self.acknowledged += 1
        if began_late:
            self.late.append("acknowledged after the backup was put there")
        return True


async def restore_under_load(folder: Path, command: str, seconds: float) -> bool:
    """Return whether the copy was made in the middle of a checkpoint: it is noticed at its end, and both are mixed."""
    shutil.copy(folder / "backup.db", folder / "copy.db")
    engine = engine_on(folder)
    await engine.open()
    try:
        await engine.start(listener, id="listener")
        load = Load(engine)
        callers = [asyncio.ensure_future(load.start(caller)) for caller in range(4)]
        callers.append(asyncio.ensure_future(load.send()))
        follower = asyncio.ensure_future(follow(engine))
        waiter: asyncio.Future[None] = asyncio.ensure_future(engine.get("listener").result())
        await asyncio.sleep(seconds)
        assert not any(caller.done() for caller in callers)
        copying = await asyncio.create_subprocess_shell(command, cwd=folder)
        assert await copying.wait() == 0
        load.replaced = True
        await asyncio.wait_for(asyncio.gather(*callers), LONG)
        assert load.acknowledged
        assert set(load.errors) == {StoreReplaced}
        with pytest.raises(StoreReplaced, match=r"remove .*app\.db-wal") as told:
            await asyncio.wait_for(waiter, LONG)
        with pytest.raises(StoreReplaced):
            await asyncio.wait_for(follower, LONG)
        with pytest.raises(StoreReplaced):
            await asyncio.wait_for(engine.get("listener").result(), LONG)
    finally:
        await engine.stop()
    kept_apart = restored(folder) and not load.late
    assert kept_apart or "during a checkpoint" in str(told.value), load.late
    return not kept_apart


async def follow(engine: Engine) -> None:
    async for _ in engine.get("listener").watch():
        pass


def restored(folder: Path) -> bool:
    """Whether the restored file has not been touched, or is at least whole by itself."""
    if (folder / "app.db").read_bytes() == (folder / "backup.db").read_bytes():
        return True
    alone = folder / "alone.db"
    alone.unlink(missing_ok=True)
    shutil.copy(folder / "app.db", alone)
    done = subprocess.run([sys.executable, "-c", LOOKS, str(alone)], capture_output=True, text=True)
    return done.stdout.strip() == "ok"


def put_back(folder: Path, name: str) -> None:
    """Do what the error says."""
    for old in ("app.db", "app.db-wal", "app.db-shm"):
        (folder / old).unlink(missing_ok=True)
    shutil.copy(folder / name, folder / "app.db")


@pytest.mark.parametrize("how", PUT_THERE)
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_backup_put_in_the_place_of_an_open_database_is_not_destroyed_and_nothing_is_acknowledged_after_it(
    folder: Path, how: str, times: int
) -> None:
    """G14"""
    dice = random.Random(f"{how} {times}")
    mixed = 0
    for _ in range(times):
        mixed += asyncio.run(restore_under_load(folder, PUT_THERE[how], dice.uniform(0.05, 0.8)))
        put_back(folder, "newer.db")
    assert mixed == 0 or ("cp" in how and mixed <= max(1, times // 5))

    put_back(folder, "backup.db")

    async def go_on() -> None:
        async with engine_on(folder) as engine:
            assert await engine.get("old-7").result() == 3

    asyncio.run(go_on())
