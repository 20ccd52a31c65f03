"""A worker in a process of its own, for tests that kill it: worker.py ADDRESS"""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

from tests.temporal import flows

from holdfast.temporal import TemporalEngine


async def main(address: str) -> None:
    async with TemporalEngine(address, workflows=flows.EVERY, lease=timedelta(seconds=2)):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
