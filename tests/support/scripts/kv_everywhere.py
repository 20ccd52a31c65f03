"""The fifty-step order on a key space, killed at one batch and then continued; run by tests/kv/test_kills.py.

usage: kv_everywhere.py WORK_DIR KIND FIRST STEP

KIND is a driver of `opened`. For every batch FIRST, FIRST + STEP, ... and for each moment (before the batch, inside it,
after it) a fresh key space is driven until that batch, in a forked process that is then killed with SIGKILL, and driven
to its end by another. Prints one line of JSON per kill; ends when a life does not meet its batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.scripts import crash_everywhere
from tests.support.scripts.crash_everywhere import fifty

from holdfast.kv import Driver, deliver, drive
from holdfast.kv.driver import answer
from holdfast.kv.drivers import directory
from holdfast.kv.space import Space
from holdfast.replay import entry as entries
from holdfast.testing.drivers import FaultyDriver

PATIENCE = timedelta(seconds=5)


def opened(kind: str, place: Path) -> Driver:
    if kind == "directory":
        return directory.DirectoryDriver(place)
    if kind == "lmdb":
        from holdfast.kv.drivers.lmdb import LMDBDriver

        return LMDBDriver(place)
    if kind == "redis":
        import redis.asyncio

        from holdfast.kv.drivers.redis import RedisDriver

        return RedisDriver(redis.asyncio.Redis(unix_socket_path=os.environ["REDIS_SOCKET"]), place.name)
    raise SystemExit(f"no driver {kind}")


class Killing(FaultyDriver):
    """A driver whose process is killed at one batch."""

    def __init__(self, driver: Driver, kill_at: int, moment: str) -> None:
        super().__init__(driver)
        self._kill_at, self._moment = kill_at, moment

    async def batch(
        self,
        puts: Mapping[bytes, bytes],
        deletes: Collection[bytes] = (),
        expect: Mapping[bytes, bytes | None] | None = None,
    ) -> None:
        here = self.batches + 1 == self._kill_at
        if here and self._moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self._moment == "inside":
            self._die_inside()
        await super().batch(puts, deletes, expect)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)

    def _die_inside(self) -> None:
        directory._write = _half
        driver: Any = self._driver
        if hasattr(driver, "_lmdb"):
            begun = driver._begun
            driver._begun = lambda write: _Uncommitted(begun(write)) if write else begun(write)
        elif hasattr(driver, "_client"):
            asyncio.get_running_loop().create_task(_soon_killed())


class _Uncommitted:
    """A transaction of LMDB whose process is killed when all is put and nothing committed."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transaction, name)

    def commit(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


async def _soon_killed() -> None:
    """Die between asking a server and its answer: whether the server has done it is not known."""
    for _ in range(random.randrange(20)):
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGKILL)


def _half(file: int, data: bytes, at: int) -> None:
    os.pwrite(file, data[: len(data) // 2], at)
    os.kill(os.getpid(), signal.SIGKILL)


async def first_life(kind: str, place: Path, kill_at: int, moment: str) -> None:
    driver = opened(kind, place)
    await deliver(driver, "first", "one")
    await deliver(driver, "second", "two")
    await drive(Killing(driver, kill_at, moment), fifty, id="order", patience=PATIENCE)
    await answer(driver.close())


async def recorded(driver: Driver) -> list[str]:
    """Return the steps whose results are durable."""
    return [
        str(entries.decode_entry(row.kind, row.data).result, "utf-8").strip('"')
        for row in await Space(driver).load()
        if row.kind == entries.StepCompleted.kind
    ]


async def second_life(kind: str, place: Path) -> tuple[list[str], dict]:
    """Return which steps were recorded when it began, and where the run stands in the end."""
    driver = opened(kind, place)
    done = await recorded(driver)
    standing = await drive(driver, fifty, id="order", patience=PATIENCE)
    left = len(await answer(driver.list(b"\x01m")))
    await answer(driver.close())
    return done, {
        "state": standing.state,
        "output": standing.output,
        "error": standing.error and standing.error.message,
        "left": left,
    }


def one_kill(work: Path, kind: str, kill_at: int, moment: str) -> dict:
    place = work / f"{kill_at}-{moment}"
    crash_everywhere.LOG = work / f"{kill_at}-{moment}.log"
    crash_everywhere.LOG.touch()
    child = os.fork()
    if child == 0:
        crash_everywhere.LIFE = "first"
        asyncio.run(first_life(kind, place, kill_at, moment))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    crash_everywhere.LIFE = "second"
    done, stands = asyncio.run(second_life(kind, place))
    lines = [line.split(" ", 1) for line in crash_everywhere.LOG.read_text().splitlines()]
    second = {name for life, name in lines if life == "second"}
    twice = second & {name for life, name in lines if life == "first"}
    return {
        "kill_at": kill_at, "moment": moment, "killed": killed, **stands,
        "again": sorted(second & set(done)), "twice": sorted(twice), "steps": len({name for _, name in lines}),
    }  # fmt: skip


def main() -> None:
    work, kind, first, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    kill_at = first
    while True:
        for moment in ("before", "inside", "after"):
            report = one_kill(work, kind, kill_at, moment)
            if not report["killed"]:
                return
            print(json.dumps(report), flush=True)
        kill_at += step


if __name__ == "__main__":
    main()
