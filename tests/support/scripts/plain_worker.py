"""A worker that serves a file until its standard input is closed; run by tests/crash/test_two_processes.py."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast import Engine

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.scripts.shared_workflows import echo  # found only once the path is set


async def main() -> None:
    async with Engine(sys.argv[1], workflows=[echo]):
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main())
