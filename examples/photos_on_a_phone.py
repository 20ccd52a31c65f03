"""Photos leave a phone: each has a key space of its own on the phone's disk, and no database is needed.

The app may be killed at any moment. Opened again, it drives what is not finished: a photo that was uploaded is not
uploaded again. A function that a cloud wakes by an alarm, and lets live for ten seconds, is the same program: it says
so by `lifespan`, and what it could not finish is begun again by the next call.
"""

import asyncio
from datetime import timedelta
from pathlib import Path

from holdfast import Context, Retry, activity, step_context, workflow
from holdfast.kv import DirectoryDriver, drive

PHOTOS = ["beach.jpg", "dinner.jpg", "sunset.jpg"]
HOME = Path("photos")


async def shrink(photo: str) -> str:
    print(f"  shrinking {photo}", flush=True)
    await asyncio.sleep(0.01)
    return f"small-{photo}"


@activity(retry=Retry(max_attempts=20, initial_interval=timedelta(milliseconds=10)))
async def upload(photo: str) -> str:
    print(f"  uploading {photo}", flush=True)
    await asyncio.sleep(0.01)
    if step_context().attempt == 1:
        raise ConnectionError("no network")  # the next attempt is recorded, and made when its time has come
    return f"https://photos.example/{photo}"


async def remove(photo: str) -> None:
    print(f"  removing {photo} from the phone", flush=True)


@workflow
async def keep(ctx: Context, photo: str) -> str:
    small = await ctx.step(shrink, photo)
    address = await ctx.step(upload, small)
    await ctx.step(remove, photo)
    return address


async def send(photo: str) -> str:
    driver = DirectoryDriver(HOME / photo)
    try:
        while True:
            standing = await drive(
                driver, keep, photo, id=photo, lifespan=timedelta(seconds=10), patience=timedelta(seconds=1)
            )
            if standing.ended:
                return standing.output or "lost"
    finally:
        driver.close()


async def main() -> None:
    addresses = await asyncio.gather(*map(send, PHOTOS))
    print(f"{len(addresses)} photos are safe, the last at {addresses[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
