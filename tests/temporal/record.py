"""Record histories of Temporal's, one of each kind of run: python -m tests.temporal.record FOLDER"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.temporal import flows
from tests.temporal.server import temporal_server

from holdfast.errors import HoldfastError
from holdfast.temporal import TemporalEngine
from holdfast.temporal.wire import VERSION


async def main(folder: Path) -> None:
    with temporal_server() as address:
        options: dict[str, Any] = {"lease": timedelta(seconds=30), "stop_grace": timedelta(seconds=1)}
        async with TemporalEngine(address, workflows=flows.EVERY, **options) as engine:
            runs: dict[str, Any] = {
                "count": await engine.start(flows.count, 5),
                "steps": await engine.start(flows.steps, 1),
                "together": await engine.start(flows.together),
                "parent": await engine.start(flows.parent),
                "sender": await engine.start(flows.sender),
                "looping": await engine.start(flows.looping, 5),
                "lives": await engine.start(flows.lives, 1),
                "failed": await engine.start(flows.saga, True),
                "undone": await engine.start(flows.saga, False),
                "cleaned": await engine.start(flows.cleaning),
                "talk": await engine.start(flows.talk),
                "open": await engine.start(flows.waiting_kid),
                "delayed": await engine.start(flows.waiting_kid, delay=timedelta(hours=1)),
            }
            await runs["delayed"].send("go", "early")
            await asyncio.sleep(5)
            await runs["undone"].cancel(compensate=True)
            await runs["cleaned"].cancel()
            await runs["delayed"].cancel()
            await runs["talk"].send("x", 5)
            await runs["talk"].send("b", "now")
            await runs["talk"].ask("ask", 1)
            await runs["together"].send("word")
            for name, run in runs.items():
                if name != "open":
                    with suppress(HoldfastError):
                        await run.result()
                history = await engine._client.handle(run.id).fetch_history()
                (folder / f"{name}-{VERSION}.json").write_text(history.to_json())
        async with TemporalEngine(address, workflows=flows.EVERY, history_limit=20, **options) as engine:
            run = await engine.start(flows.count, 8)
            await run.result()
            (folder / f"count-short-{VERSION}.json").write_text(
                (await engine._client.handle(run.id).fetch_history()).to_json()
            )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
