"""A worker process for tests of crashing steps, on the database in argv, until it is killed or its stdin closes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.support.scripts import steps_bodies as bodies

from holdfast import Context, Engine, Retry, activity, workflow


def local(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that no other process can import."""

    def body(*args: Any) -> Any:
        return function(*args)

    return body


ONCE = Retry(max_attempts=1)
LOCAL_CRASH, LOCAL_LINGER = local(bodies.crash), local(bodies.linger)


@workflow
async def crasher(ctx: Context, log: str, companions: int = 0, importable: bool = True) -> str:
    body = bodies.crash if importable else LOCAL_CRASH
    return await ctx.step(activity(name="crash", retry=ONCE)(body), log, companions)


@workflow
async def innocent(ctx: Context, log: str, seconds: float, importable: bool = True) -> int:
    body = bodies.linger if importable else LOCAL_LINGER
    return await ctx.step(activity(name="linger", retry=ONCE)(body), log, seconds)


WORKFLOWS: list[Any] = [crasher, innocent]


async def main() -> None:
    async with Engine(sys.argv[1], workflows=WORKFLOWS, stop_grace=timedelta(milliseconds=1)):
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
