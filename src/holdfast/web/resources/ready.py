"""Whether the server can answer, for a load balancer: no token is needed, and nothing else is told."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from holdfast.errors import HoldfastError
from holdfast.looking.desk import Desk

EVERY = 1.0
"""How many seconds an answer is good for, however often it is asked."""
PATIENCE = 2.0
"""How many seconds the store may take."""


class Readiness:
    """Looks into the database, at most once a second."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._looking: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def answered(self) -> Response:
        """Return 200 if the database answers, 503 if it does not."""
        loop = asyncio.get_running_loop()
        if self._looking is None or (self._looking.done() and loop.time() >= self._until):
            self._looking = loop.create_task(self._look(loop), name="holdfast readiness")
        ready = await asyncio.shield(self._looking)
        headers = {} if ready else {"Retry-After": "1"}
        return Response("ok\n" if ready else "not ready\n", 200 if ready else 503, headers, "text/plain")

    async def _look(self, loop: asyncio.AbstractEventLoop) -> bool:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._desk.letters(limit=1)
            return True
        except (HoldfastError, TimeoutError):
            return False
        finally:
            self._until = loop.time() + EVERY
