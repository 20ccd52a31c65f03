"""Standing pauses: the work that a worker leaves alone because an operator paused the workflow or its queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.contract.store import Store
from holdfast.engine.runs.runner import Runner
from holdfast.engine.steps.queue.served import Queues

_LANES_EVERY = 30
"""Each so many looks it is asked whether runs wait in lanes of workflows that have none in this code."""


class StandingPauses:
    """The pauses of workflows and queues, as this worker last saw them; it looks once a second."""

    def __init__(self, store: Store, queues: Queues, runner: Runner, wake: Callable[[], None]) -> None:
        self._store = store
        self._queues = queues
        self._runner = runner
        self._wake = wake
        self._looks = 0

    async def look(self) -> None:
        """See what is paused now: claim none of it, let go of what is in memory, and claim again what was resumed."""
        queues = self._queues
        if self._looks % _LANES_EVERY == 0:
            queues.drain(await self._store.lane_workflows())
        self._looks += 1
        before = queues.paused
        queues.paused = frozenset((row.kind, row.name) for row in await self._store.paused())
        if queues.paused:
            asyncio.get_running_loop().call_soon(self._hold_back)
        if before - queues.paused:
            self._wake()

    def _hold_back(self) -> None:
        """Let runs go that must begin nothing more; each time, for some may have come into memory since."""
        runner = self._runner
        for resident in list(runner.residents.values()):
            if not self._queues.is_open(resident.workflow) and not resident.phase:
                if resident.parked:
                    runner.departures.release(resident)
                else:
                    runner.pauses.hold_back(resident)
