"""The dashboard of a database, on a real server in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from tests.support.waiting import soon

from holdfast import Engine
from holdfast.web import Principal, dashboard
from holdfast.web.standalone import listen

TOKEN = "hf_known"
"""By which the server knows kim, who is an admin."""


def who(request: Any) -> Principal | None:
    return Principal("kim", "admin") if request.headers.get("authorization") == f"Bearer {TOKEN}" else None


def onlooker(database: str) -> Engine:
    """Return an engine that advances no runs."""
    return Engine(database, run_workflows=False, retention=None)


@contextmanager
def served(database: str, engine: Callable[[str], Engine] = onlooker, *, tokens: bool = False) -> Iterator[str]:
    """Serve the dashboard of a database, to kim or (with `tokens`) to bearers of its tokens; yield its address."""
    listening = listen("127.0.0.1:0")
    serving: list[uvicorn.Server] = []

    async def work() -> None:
        async with engine(database) as opened:
            app = dashboard(opened) if tokens else dashboard(opened, authenticate=who)
            config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
            serving.append(uvicorn.Server(config))
            await serving[0].serve(sockets=[listening])

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        assert soon(lambda: bool(serving) and serving[0].started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        if serving:
            serving[0].should_exit = True
        thread.join()
        listening.close()
