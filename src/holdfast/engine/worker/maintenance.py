"""Background maintenance of an engine: it starts what schedules ask for, and deletes old rows."""

from __future__ import annotations

import asyncio
import logging

from holdfast.clock import Clock, Instant
from holdfast.ops.retention import Sweeper
from holdfast.schedules.ticker import Ticker

_logger = logging.getLogger("holdfast.engine")
_LOOK_EVERY = 1.0
_AFTER_A_FAULT = 5_000_000


class Maintenance:
    """Ticks schedules when they are due; looks for new ones once a second, if another process committed."""

    def __init__(self, clock: Clock, ticker: Ticker, sweeper: Sweeper | None) -> None:
        self._clock = clock
        self._ticker = ticker
        self._sweeper = sweeper
        self._ticking: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._stale = True
        self._urgent = True
        self._looked = 0.0
        self.next_tick: Instant | None = None

    def start(self) -> None:
        """Begin."""
        if self._sweeper is not None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweeper.run(), name="holdfast retention")

    @property
    def busy(self) -> bool:
        """Whether schedules are being looked at."""
        return self._urgent or (self._ticking is not None and not self._ticking.done())

    def stale(self) -> None:
        """Note that schedules may have changed."""
        self._stale = self._urgent = True

    def other_process_committed(self) -> None:
        """Note that another process may have changed schedules; looked at within a second."""
        self._stale = True

    def poll(self) -> None:
        """Called every few milliseconds: start what is due."""
        if self._ticking is not None and not self._ticking.done():
            return
        loop = asyncio.get_running_loop()
        due = self.next_tick is not None and self.next_tick <= self._clock.now()
        if due or self._urgent or (self._stale and loop.time() - self._looked >= _LOOK_EVERY):
            self._stale = self._urgent = False
            self._looked = loop.time()
            self._ticking = loop.create_task(self._tick(), name="holdfast schedules")

    async def _tick(self) -> None:
        try:
            self.next_tick = await self._ticker.tick()
        except Exception:
            _logger.exception("schedules could not be looked at, trying again")
            self.next_tick = self._clock.now() + _AFTER_A_FAULT

    def begin_to_stop(self) -> None:
        """Begin no sweep any more."""
        if self._sweeper is not None:
            self._sweeper.stop()

    async def stop(self) -> None:
        """Finish what is under way."""
        self.begin_to_stop()
        for task in (self._ticking, self._sweeping):
            if task is not None:
                await asyncio.wait([task])
