"""The time of a time-skipping server, where tests of behaviour move the clock of a TestEngine."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.clock import Instant
from holdfast.temporal import TemporalTestEngine, TimeSkippingServer


class ServersTime:
    """Stands for the clock of an engine: what it is moved by is passed to the server before the next call."""

    def __init__(self, server: TimeSkippingServer) -> None:
        self._server = server
        self._ahead = timedelta(0)

    def now(self) -> Instant:
        return self._server.clock.now() + self._ahead // timedelta(microseconds=1)

    def advance(self, duration: timedelta) -> None:
        self._ahead += duration

    def jump_to(self, instant: Instant) -> None:
        self._ahead += max(timedelta(microseconds=instant - self.now()), timedelta(0))

    async def catch_up(self) -> None:
        """Let as much time pass as the clock was moved by."""
        ahead, self._ahead = self._ahead, timedelta(0)
        if ahead:
            await self._server.sleep(ahead)


class BehaviourEngine(TemporalTestEngine):
    """A TemporalTestEngine whose time tests may move as that of a TestEngine."""

    jumping: ServersTime

    async def settle(self) -> None:
        await self.jumping.catch_up()
        await super().settle()

    async def _patiently(self, coming: Any) -> Any:
        try:
            await self.jumping.catch_up()
        except BaseException:
            coming.close()
            raise
        return await super()._patiently(coming)
