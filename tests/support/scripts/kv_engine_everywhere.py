"""The fifty-step order in an engine on a key space, killed at one batch and then continued.

Run by tests/stores/keyvalue/test_kills.py.

usage: kv_engine_everywhere.py WORK_DIR KIND FIRST STEP

As crash_everywhere.py, but what is counted are batches of the driver, also those that open and close the store; and on
a directory a life is also killed when half of a batch is written.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tests.support.scripts import crash_everywhere

from holdfast.kv.driver import answer
from holdfast.kv.drivers import directory
from holdfast.stores.keyvalue import KeyValueStore

KIND = ""


class KillingDriver(directory.DirectoryDriver):
    """A directory whose process is killed at one batch."""

    batches, kill_at, moment = 0, 0, ""

    def batch(self, puts: Mapping[bytes, bytes], deletes: Collection[bytes] = (), expect: Any = None) -> None:
        self.batches += 1
        here = self.batches == self.kill_at
        if here and self.moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if here and self.moment == "inside":
            directory._write = half
        super().batch(puts, deletes, expect)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)


def half(file: int, data: bytes, at: int) -> None:
    os.pwrite(file, data[: len(data) // 2], at)
    os.kill(os.getpid(), signal.SIGKILL)


def opened(path: str) -> Any:
    if KIND == "directory":
        return KillingDriver(path)
    if KIND == "lmdb":
        from holdfast.kv.drivers.lmdb import LMDBDriver

        return LMDBDriver(path)
    from holdfast.kv.drivers.redis import RedisDriver

    return RedisDriver.connect(f"unix://{os.environ['REDIS_SOCKET']}", path)


def killing(path: str, kill_at: int, moment: str) -> KeyValueStore:
    async def open_driver() -> Any:
        driver = await answer(opened(path))
        if KIND == "directory":
            driver.kill_at, driver.moment = kill_at, moment
            return driver
        batch, batches = driver.batch, 0

        def counted(*args: Any) -> Any:
            nonlocal batches
            batches += 1
            if batches != kill_at:
                return batch(*args)
            if moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            return _then_die(batch(*args))

        driver.batch = counted
        return driver

    return KeyValueStore(open_driver)


async def _then_die(given: Any) -> None:
    await answer(given)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    work, KIND, first, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    everywhere: Any = crash_everywhere
    if KIND == "directory":
        everywhere.MOMENTS = ("before", "inside", "after")
    everywhere.KillingStore, everywhere.SQLiteStore = killing, lambda path: KeyValueStore(lambda: opened(path))
    crash_everywhere.kill_at_each(work, first, step)
