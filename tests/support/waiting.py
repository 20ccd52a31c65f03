"""Waiting, in real time, for something that other tasks, threads or processes bring about."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

LONG = 60.0
"""How many seconds are waited for what takes milliseconds: a machine may be busy, and only a failure takes as long."""


async def eventually(check: Callable[[], Any], within: float = LONG) -> Any:
    """Wait until something is true, or a coroutine returns something that is, letting other tasks run; return it."""
    async with asyncio.timeout(within):
        while True:
            done = check()
            if inspect.isawaitable(done):
                done = await done
            if done:
                return done
            await asyncio.sleep(0.002)


def soon(check: Callable[[], bool], within: float = LONG) -> bool:
    """Wait until something is true, without an event loop; return whether it became true."""
    end = time.monotonic() + within
    while not check():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
