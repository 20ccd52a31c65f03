"""Terminate some runs and start others while another process acts on many; begin when a line is read."""

from __future__ import annotations

import asyncio
import sys

from tests.crash.test_acts_on_many import approval

from holdfast import Engine


async def main(address: str, writer: int, runs: int) -> None:
    async with Engine(address, workflows=[approval], run_workflows=False) as engine:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(writer, runs, 8):
            await engine.start(approval, id=f"late-{writer}-{number}")
            await engine.get(f"order-{number}").terminate(by=f"writer-{writer}")
    print("done", flush=True)


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
