"""A function in a cloud: it is woken by an alarm, may live for ten seconds, and may be killed at any moment.

    python examples/woken_function.py          be the cloud: wake the function whenever its alarm is due
    python examples/woken_function.py wake     be the function: one life of it

The function reads an archive page by page, waits between the pages as its source asks, and writes a summary. What it
knows is in its key space: a life that ends, well or by a kill, is followed by one that goes on from what is recorded.
Remove the folder `archive` to begin again.
"""

import asyncio
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

from holdfast import Context, Retry, activity, workflow
from holdfast.kv import DirectoryDriver, Standing, drive

LIFE = timedelta(seconds=10)
"""What the cloud allows; then the process is killed."""
PAGES = 6
PAUSE = timedelta(milliseconds=200)
HOME = "archive"


@activity(retry=Retry(crash_limit=1000))  # to be killed is nothing out of the ordinary here
async def read_page(number: int) -> int:
    print(f"  reading page {number}", flush=True)
    await asyncio.sleep(0.05)
    return 100 + number


@activity(retry=Retry(crash_limit=1000))
async def write_summary(words: int) -> None:
    print(f"  writing a summary of {words} words", flush=True)


@workflow
async def summarize(ctx: Context) -> int:
    words = 0
    for number in range(PAGES):
        words += await ctx.step(f"page-{number}", read_page, number)
        await ctx.sleep(PAUSE)
    await ctx.step(write_summary, words)
    return words


async def wake() -> Standing[int]:
    """Live once: go on until there is nothing to do, or until the time is nearly over."""
    driver = DirectoryDriver(HOME)
    try:
        return await drive(driver, summarize, id="archive", lifespan=LIFE * 0.8)
    finally:
        driver.close()


def next_alarm() -> datetime | None:
    """Ask the key space, as a cloud asks its own alarms."""
    driver = DirectoryDriver(HOME)
    try:
        return driver.get_alarm()
    finally:
        driver.close()


def cloud() -> None:
    alarm: datetime | None = datetime.now(UTC)
    while alarm is not None:
        time.sleep(max((alarm - datetime.now(UTC)).total_seconds(), 0))
        life = subprocess.Popen([sys.executable, "-u", __file__, "wake"])  # noqa: S603  # this very file
        try:
            life.wait(LIFE.total_seconds())
        except subprocess.TimeoutExpired:
            life.kill()
            life.wait()
        alarm = next_alarm()
    standing = asyncio.run(wake())
    print(f"{standing.state}: {standing.output} words")


if __name__ == "__main__":
    if sys.argv[1:] == ["wake"]:
        asyncio.run(wake())
    else:
        cloud()
