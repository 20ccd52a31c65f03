"""Photos from a phone that is often offline: a list of activities, of which two wait for the network.

    python examples/photo_upload.py            the network comes after a second

The photo is looked at at once, uploaded when there is a network, announced when there is a network and enough battery,
and then deleted from the phone. Each activity is given all that is known so far, and what it returns is added. Kill the
program whenever you like and run it again: it goes on with the activity it was at. Remove photo.db to begin again.
"""

import asyncio
import hashlib
import sys
import time
from datetime import timedelta
from typing import Any

from holdfast import Engine, NotReady, Retry, activity
from holdfast.declarative import conditions, sequence

State = dict[str, Any]
BEGUN = time.monotonic()
SOON = timedelta(milliseconds=300)


def phone() -> State:
    """What activities and conditions may ask their context: a real app asks the phone."""
    return {"is_connected": time.monotonic() - BEGUN > 1, "battery_level": 0.8}


def connected(step: Any) -> bool | NotReady:
    return step.is_connected or NotReady("no network", SOON)


def enough_battery(step: Any) -> bool | NotReady:
    return step.battery_level > 0.2 or step.input["urgent"] or NotReady("low battery", SOON)


def capture(photo: State) -> State:
    print(f"  looking at {photo['uri']}")
    return {"hash": hashlib.sha256(photo["uri"].encode()).hexdigest()[:8]}


@activity(
    retry=Retry.storage,
    timeout=timedelta(minutes=1),
    run_when=connected,
    on_skipped=lambda step, reason: print(f"  not uploading yet: {reason}"),
)
async def upload(photo: State) -> State:
    print(f"  uploading {photo['uri']}")
    await asyncio.sleep(0.1)
    return {"key": f"photos/{photo['hash']}"}


@activity(retry=Retry.external_service, run_when=conditions.all(connected, enough_battery))
async def notify(photo: State) -> None:
    print(f"  telling the server that move {photo['move_id']} has {photo['key']}")


def delete_local(photo: State) -> State:
    print(f"  deleting {photo['uri']} from the phone")
    return {"uri": None}


photo_upload = sequence("photo_upload", [capture, upload, notify, delete_local])


async def main(database: str) -> None:
    async with Engine(database, workflows=[photo_upload], context=phone) as engine:
        photo = {"move_id": 123, "uri": "file://photo.jpg", "urgent": False}
        run = await engine.start(photo_upload, photo, id="photo-1")
        print(f"move 123: {(await run.result())['key']}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "photo.db"))
