"""Pause many runs by the desk, and be killed while the second page is made; the test finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from holdfast import Engine
from holdfast.looking import LocalDesk, bulk
from holdfast.looking.acts import Options


async def main(address: str) -> None:
    async with Engine(address, run_workflows=False) as engine:
        desk = LocalDesk(engine.store, engine=engine)
        plan = await desk.select("pause", "workflow:approval")
        page = 0

        async def killed(*args: object) -> object:
            nonlocal page
            page += 1
            if page == 2:
                asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGKILL)
            return await act_on(*args)  # type: ignore[arg-type]  # as it was called

        act_on, bulk._act_on = bulk._act_on, killed  # type: ignore[assignment]  # the same but for its end
        async for progress in desk.bulk(plan.selection, Options(by="kim")):
            print(progress.changed, flush=True)


bulk.PAGE = 10
asyncio.run(main(sys.argv[1]))
