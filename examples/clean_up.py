"""Periodic clean-up: a cron line starts a run each time, and what is over for long enough is deleted as well.

    python examples/clean_up.py

Every second it deletes the files of a folder that are older than a day, until none is left; a real one would say
cron="0 3 * * *". The schedule is in the database: kill the program and run it again, and the clean-up that was cut off
goes on, the tick that was missed is made up for. Remove clean-up.db and clean-up.files to begin again.
"""

import asyncio
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

from holdfast import Context, Engine, Retention, workflow

A_DAY = timedelta(days=1)
KEEP = Retention(completed=A_DAY, failed=30 * A_DAY)  # the runs of the clean-up are cleaned up, too


def find_old(folder: str, age: timedelta) -> list[str]:
    before = time.time() - age.total_seconds()
    return sorted(path.name for path in Path(folder).iterdir() if path.stat().st_mtime < before)


def delete(folder: str, name: str) -> None:
    print(f"  deleting {name}")
    Path(folder, name).unlink(missing_ok=True)  # gone already if this was cut off right after it


@workflow
async def clean_up(ctx: Context, folder: str, age: timedelta) -> int:
    old = await ctx.step(find_old, folder, age)
    for name in old:
        await ctx.step(delete, folder, name)
    return len(old)


def make_files(folder: Path) -> None:
    """Make some files that become a day old within the next seconds, unless that was done before."""
    if not folder.exists():
        folder.mkdir()
        for number in range(3):
            (folder / f"upload-{number}").touch()
            modified = time.time() - A_DAY.total_seconds() + number
            os.utime(folder / f"upload-{number}", (modified, modified))


async def main(database: str) -> None:
    folder = Path(database).with_suffix(".files")
    make_files(folder)
    async with (
        Engine(database, workflows=[clean_up], retention=KEEP) as engine,
        engine.watch(types=["run.completed"]) as completed,
    ):
        # A clean-up that takes longer than a second is not begun twice: overlap="skip" is the default.
        await engine.schedules.put("clean-up", clean_up, str(folder), A_DAY, cron="* * * * * *")
        async for _ in completed:
            if not any(folder.iterdir()):
                break
        await engine.schedules.delete("clean-up")  # a real one stays
        print("the folder is clean")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "clean-up.db"))
